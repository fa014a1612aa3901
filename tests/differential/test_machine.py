"""Programs built step by step by a state machine: eager against compiled at the end of each run.

Each step sees what is there already, so that chains of views that are written, wrappers made in the region, inner tensors
taken out and inputs that share memory come up often.
``pytest -m fuzz tests/differential/test_machine.py`` searches longer.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import wrappers
from hypothesis import settings
from hypothesis import strategies as s
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from oracle import Difference, backward_of, check
from strategies import (
    BINARY,
    INDEX,
    INPLACE,
    INPLACE2,
    KINDS,
    MASKED,
    MULTI,
    OTHER,
    POINTWISE,
    REDUCE,
    SIZES,
    VIEWS,
    Program,
)

from subclass_trace.errors import UnsupportedError

DEPTH = {"dense": 0, "two": 1, "nested": 2}
MORE_VIEWS = (
    *VIEWS,
    "{a}.view(-1)[1:]",
    "{a}[1:].t()",
    "{a}.select(0, 0)",
    "{a}.unfold(0, 2, 1)",
    "{a}.flatten()",
    "{a}.movedim(0, -1)",
    "{a}.detach()",
)
MORE_INPLACE = (
    *INPLACE,
    "{a}.t_()",
    "{a}.unsqueeze_(0)",
    "{a}.data.add_(1)",
    "{a}.detach().mul_(2)",
    "{a}.clamp_(-1, 1)",
)
#: what a region refuses by a typed error although eager does it; each has a case in tests/semantics
REFUSED = (
    "the region makes an autograd leaf",
    "a result requires grad by a leaf of the region's own making alone",
    "the region uses a view that requires grad after the shape of its base",
    "the region changes the shape, or replaces an inner tensor, of an argument that is a view of another",
)
#: the same, in the words of torch's functionalization
REFUSED_INSIDE = "a mutation on a view chain"
picks = s.integers(0, 30)


class Machine(RuleBasedStateMachine):
    """Rules add lines to a program; each also runs on dense stand-ins, and a line that makes no sense there is left out
    (not by ``assume``, which would reject the whole run)."""

    @initialize(
        kind=s.sampled_from(KINDS),
        size=s.sampled_from(SIZES),
        grad=s.sampled_from(("no", "leaf", "nonleaf")),
        how=s.sampled_from(("tangent", "sum")),
        choice=s.none() | s.lists(picks, min_size=1, max_size=2),
    )
    def start(self, kind: str, size: tuple[int, ...], grad: str, how: str, choice: list[int] | None) -> None:
        self.kind, self.how, self.choice = kind, how, choice
        self.make: list[str] = []
        self.args: list[str] = []
        self.roots: list[str] = []
        self.lines: list[str] = []
        self.results: list[str] = []
        self.env: dict[str, Any] = {"torch": torch, "F": F, "TwoTensor": lambda a, b: a}
        self.depth: dict[str, int] = {}
        self._add_input(kind, size, grad)

    # ------------------------------------------------------------------------------------------ inputs
    def _add_input(self, kind: str, size: tuple[int, ...], grad: str) -> None:
        k = len(self.make)
        self.make.append(
            f"w{k} = {kind}({', '.join(map(str, size))}, seed={2 * k} + 10 * call)"
            + ("" if grad == "no" else ".requires_grad_()")
        )
        if grad != "no":
            self.roots.append(f"w{k}")
        self._add_argument(
            f"w{k} * 1" if grad == "nonleaf" else f"w{k}", wrappers.dense(*size, seed=2 * k), DEPTH.get(kind, 1)
        )

    def _add_argument(self, expression: str, stand_in: torch.Tensor, depth: int) -> None:
        name = f"x{len(self.args)}"
        # Arguments are made one by one, so that one can be a view of another.
        self.make.append(f"a{len(self.args)} = {expression}")
        self.args.append(f"a{len(self.args)}")
        self.env[name], self.depth[name] = stand_in, depth

    @precondition(lambda self: not self.lines and len(self.args) < 3)
    @rule(same_kind=s.booleans(), size=s.sampled_from(SIZES), grad=s.sampled_from(("no", "leaf", "nonleaf")))
    def another_input(self, same_kind: bool, size: tuple[int, ...], grad: str) -> None:
        self._add_input(self.kind if same_kind else "dense", size, grad)

    @precondition(lambda self: not self.lines and len(self.args) < 3)
    @rule(
        pick=picks,
        how=s.sampled_from(
            (
                "{a}",
                "{a}[1:]",
                "{a}[:2]",
                "{a}.view(-1)",
                "{a}.detach()",
                "{a}.transpose(0, -1)",
                "{a}.a",
                "type({a})({a}.a, {a}.a)",
                "type({a})({a}.a, {a}.b.clone())",
            )
        ),
    )
    def related_input(self, pick: int, how: str) -> None:
        k = pick % len(self.args)
        depth = self.depth[f"x{k}"]
        inner = ".a" in how
        if inner and not (self.kind in ("two", "nested") and depth > 0):
            return
        stand_in = self.env[f"x{k}"]
        if not inner:
            try:
                stand_in = eval(how.format(a="v"), {"v": stand_in})
            except (RuntimeError, IndexError):
                return
        self._add_argument(how.format(a=f"a{k}"), stand_in, depth - (how == "{a}.a"))

    # ------------------------------------------------------------------------------------------ steps
    def _names(self) -> list[str]:
        """Variables, newest first: small picks are the newest."""
        return [n for n, v in self.env.items() if isinstance(v, torch.Tensor)][::-1]

    def _name(self, pick: int) -> str:
        names = self._names()
        return names[pick % len(names)]

    def _step(self, text: str, a: str, b: str, no_grad: bool = False, names: str | None = None) -> None:
        before = set(self._names())
        expression = text.format(a=a, b=b)
        line = expression if names is None else f"{names} = {expression}"
        try:
            with torch.no_grad():
                exec(line, self.env)
        except Exception:
            return
        for new in set(self._names()) - before:
            self.depth[new] = max(self.depth[a], self.depth[b])
        self.lines += ["with torch.no_grad():", "    " + line] if no_grad else [line]

    def _fresh(self) -> str:
        return f"v{len(self.lines)}"

    @rule(text=s.sampled_from((*POINTWISE, *OTHER, *REDUCE, *INDEX)), a=picks, no_grad=s.integers(0, 5))
    def value(self, text: str, a: int, no_grad: int) -> None:
        if self.kind == "masked" and text not in MASKED:
            return
        self._step(text, self._name(a), self._name(a), no_grad == 5, self._fresh())

    @rule(text=s.sampled_from((*BINARY, "{a} @ {b}")), a=picks, b=picks)
    def two_values(self, text: str, a: int, b: int) -> None:
        if self.kind == "masked" and text not in BINARY[:3]:
            return
        self._step(text, self._name(a), self._name(b), False, self._fresh())

    @rule(text=s.sampled_from(MORE_VIEWS), a=picks, no_grad=s.integers(0, 5))
    def view(self, text: str, a: int, no_grad: int) -> None:
        if self.kind == "masked" and text not in VIEWS[:8]:
            return
        self._step(text, self._name(a), self._name(a), no_grad == 5, self._fresh())

    @rule(text=s.sampled_from(MULTI), a=picks)
    def several_views(self, text: str, a: int) -> None:
        if self.kind == "masked":
            return
        name = self._name(a)
        try:
            count = len(eval(text.format(a=name), dict(self.env)))
        except Exception:
            return
        if count > 3:
            return
        self._step(
            text,
            name,
            name,
            False,
            ", ".join(f"{self._fresh()}{c}" for c in "abc"[:count]) + ("," if count == 1 else ""),
        )

    def _overlaps_itself(self, name: str) -> bool:
        """Several elements in one place (``unfold``): what eager writes there depends on the order of its loop."""
        t = self.env[name]
        places = torch.arange(t.untyped_storage().nbytes() // t.element_size()).as_strided(
            t.shape, t.stride(), t.storage_offset()
        )
        return places.unique().numel() != t.numel()

    def _shape_may_change(self, name: str) -> bool:
        """Eager leaves a wrapper broken whose inner tensor changes its shape; of a view of an input it counts that as a write
        to the input (docs/limits.md)."""
        memory = {k: v.untyped_storage()._cdata for k, v in self.env.items() if isinstance(v, torch.Tensor)}
        of_input = any(k[0] == "x" and k != name and m == memory[name] for k, m in memory.items())
        wrapped = any(word in line for line in (*self.lines, *self.make) for word in (".a", ".b", "TwoTensor("))
        return not (of_input or wrapped)

    @rule(text=s.sampled_from(MORE_INPLACE), a=picks, no_grad=s.integers(0, 2))
    def write(self, text: str, a: int, no_grad: int) -> None:
        if self.kind == "masked" and text not in INPLACE[:3]:
            return
        if text in ("{a}.t_()", "{a}.unsqueeze_(0)") and not self._shape_may_change(self._name(a)):
            return
        if self._overlaps_itself(self._name(a)):
            return
        self._step(text, self._name(a), self._name(a), no_grad == 2)

    @rule(text=s.sampled_from(INPLACE2), a=picks, b=picks, no_grad=s.integers(0, 2))
    def write_from(self, text: str, a: int, b: int, no_grad: int) -> None:
        if self.kind == "masked":
            return
        x, y = self._name(a), self._name(b)
        if self._overlaps_itself(x):
            return
        if x != y and self.env[x].untyped_storage()._cdata == self.env[y].untyped_storage()._cdata:
            return  # reading what is being written: in eager the result depends on the order of the loop
        self._step(text, x, y, no_grad == 2)

    @precondition(lambda self: self.kind in DEPTH)
    @rule(a=picks, b=picks)
    def wrap(self, a: int, b: int) -> None:
        """A wrapper made in the region; its constructor is not differentiable."""
        x, y = self._name(a), self._name(b)
        like = [(self.env[n].shape, self.env[n].stride(), self.env[n].dtype, self.depth[n]) for n in (x, y)]
        if like[0] != like[1]:
            return
        new = self._fresh()
        text = "TwoTensor({a}.detach(), {b}.detach())" if self.roots else "TwoTensor({a}, {b})"
        self._step(text, x, y, False, new)
        if new in self.depth:
            self.depth[new] += 1

    @precondition(lambda self: self.kind in DEPTH)
    @rule(a=picks, half=s.sampled_from("ab"))
    def unwrap(self, a: int, half: str) -> None:
        """An inner tensor taken out of a wrapper."""
        name = self._name(a)
        if self.depth[name] == 0:
            return
        new = self._fresh()
        self.env[new], self.depth[new] = self.env[name].detach(), self.depth[name] - 1
        self.lines.append(f"{new} = {name}.{half}")

    @precondition(lambda self: len(self.results) < 4)
    @rule(a=picks)
    def output(self, a: int) -> None:
        self.results.append(self._name(a))

    # ------------------------------------------------------------------------------------------ the comparison
    def teardown(self) -> None:
        if not getattr(self, "lines", None):
            return
        results = tuple(self.results or self._names()[:1])
        choice = None if self.choice is None or not self.roots else tuple(self.choice)
        program = Program(
            tuple(self.make), tuple(self.args), tuple(self.roots), tuple(self.lines), results, choice, self.how
        )
        fn, make = program.functions()
        try:
            check(fn, make, backward=None if choice is None else backward_of(choice, self.how), specializations=1)
        except Difference as found:
            what = found.__cause__.what if isinstance(found.__cause__, UnsupportedError) else ""
            if what.startswith(REFUSED) or REFUSED_INSIDE in what:
                return
            raise Difference(f"{found}\n{program!r}") from found.__cause__


def test_programs_step_by_step() -> None:
    run_state_machine_as_test(Machine, settings=settings(max_examples=60, stateful_step_count=10))


@pytest.mark.fuzz
def test_programs_step_by_step_thoroughly() -> None:
    run_state_machine_as_test(Machine, settings=settings(settings.get_profile("thorough"), stateful_step_count=16))
