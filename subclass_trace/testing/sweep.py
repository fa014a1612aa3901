"""The sweep: each call of the table (`calls.py`) once on small instances, against the dense program.

`sweep_of(subject)` gives what came of it: findings, each with the rule that it breaks and the lines that show it, and the
coverage: which calls were right, refused, or not tried. A call runs twice without gradients, once in inference mode and
once with gradients; the first difference is its finding (`Sweep.judge` has the order).
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import random
import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as s

from .. import torch_api
from . import probes
from .calls import CONVERTED, DRAWN, KINDS, STRIDED
from .comparing import Difference, differences, flat, has_gaps, layout_of, same_twice
from .operands import MODULES, NoOperands, Operands, operands_of
from .refusals import ALL_OF_THEM, Refusal, inferred_use, means_to, missing, refusal_of
from .script import Failure, NotBuilt, Script
from .strategies import dense_specs
from .subject import Subject


@dataclass(frozen=True)
class Call:
    """One call of the table.

    Attributes:
        text: the source.
        rule: which rule a wrong value breaks.
        drawn: values are of chance.
        code: what `eval` or `exec` takes.
        names: what it names.
    """

    text: str
    rule: str
    drawn: bool
    code: CodeType
    names: frozenset[str]
    expression: bool


class Ran(NamedTuple):
    """What a call gave, the operands afterwards, and the operations that it took."""

    out: Any
    after: dict[str, Any]
    operations: frozenset[str] = frozenset()
    pointwise: bool = False


@dataclass
class Swept:
    """What came of all calls.

    Attributes:
        failures: rule -> what shows that it is broken, in the order of the table.
        passed: rule -> the number of calls that were right.
        right: calls that gave what the dense program gives, and the operations that they took.
        refused: calls that the dense program can do and the class does not, and what it says.
        limited: right calls that it refuses in inference mode or with gradients.
        untried: calls for which no operand can be built.
        use: what the class is used for, said or inferred.
        unbuilt: why there was no sweep.
        makes: factories with other numbers, whose instances have other contexts.
    """

    failures: dict[str, list[Failure]] = field(default_factory=dict)
    passed: Counter[str] = field(default_factory=Counter)
    right: dict[str, frozenset[str]] = field(default_factory=dict)
    refused: dict[str, Refusal] = field(default_factory=dict)
    limited: dict[str, Refusal] = field(default_factory=dict)
    untried: list[str] = field(default_factory=list)
    use: str = ""
    unbuilt: str = ""
    makes: tuple[str, ...] = ()


def call_of(text: str, rule: str, drawn: bool = False) -> Call:
    """A call from its source."""
    try:
        code, expression = compile(text, f"<{text}>", "eval"), True
    except SyntaxError:
        code, expression = compile(text, f"<{text}>", "exec"), False
    return Call(text, rule, drawn, code, frozenset(code.co_names), expression)


@functools.cache
def all_calls() -> tuple[Call, ...]:
    """The calls of the table."""
    known = [call_of(text, rule) for rule, texts in KINDS.items() for text in texts]
    return (*known, *(call_of(text, "ST313", True) for text in DRAWN))


class Found(Exception):
    """A call is not what it is on dense tensors.

    Args:
        rule: which rule that breaks.
        what: what should hold.
        got, expected: the two sides as text.
        lines: source behind the operands: what shows it.
    """

    def __init__(self, rule: str, what: str, got: Any, expected: Any, lines: Iterable[str]) -> None:
        super().__init__(rule)
        self.rule, self.what, self.got, self.expected = rule, what, str(got), str(expected)
        self.lines = tuple(lines)


class Sweep:
    """Judges calls on operands of one size."""

    def __init__(self, subject: Subject, operands: Operands) -> None:
        self.subject, self.operands, self.result = subject, operands, Swept()
        self.snapshot = {n: self._state(operands.shared[n]) for n in operands.wrappers}
        self.seen = Operations()  # of a backward
        self.types: dict[tuple[Any, ...], list[tuple[Call, frozenset[str], type]]] = {}

    # --------------------------------------------------------------------------------------------------------- running
    def run(self, call: Call, given: dict[str, Any]) -> Ran:
        """Run a call on these operands; raises what it raises."""
        names = {**self.operands.base, **given}
        if self.subject.random:
            torch.default_generator.manual_seed(0)
        if call.expression:
            return Ran(eval(call.code, names), given)
        with torch.enable_grad() if "backward" in call.text else contextlib.nullcontext():
            exec(call.code, names)
        return Ran(names.get("out"), {n: names[n] for n in given})

    def dense(self, call: Call) -> Ran | None:
        """What the dense program gives, or None where there is no such program."""
        given = self.operands.copies(self._used(call))
        seen = Operations()
        with contextlib.suppress(Exception), seen:
            ran = self.run(call, given)
            return ran._replace(operations=frozenset(seen.names), pointwise=seen.pointwise)
        return None

    def _used(self, call: Call) -> frozenset[str]:
        return call.names & self.operands.lines.keys()

    def given(self, call: Call, writes: bool) -> dict[str, Any]:
        """The operands of a call: new ones where it writes."""
        used = self._used(call)
        return self.operands.fresh(used) if writes else {n: self.operands.shared[n] for n in used}

    # --------------------------------------------------------------------------------------------------------- judging
    def attempt(self, call: Call, deep: bool = True) -> None:
        """Judge a call, and note what came of it."""
        if call.names & {"m", "a"} - self.operands.lines.keys():
            self.result.untried.append(call.text)
            return
        if self.operands.shared["x"].is_complex() and "float64" in call.text:
            return
        if call.text in CONVERTED and not self._converts():
            return
        dense = self.dense(call)
        if dense is None:
            return
        self.seen.names.clear()
        try:
            if self.judge(call, dense, deep):
                self.result.right[call.text] = dense.operations
                self.result.passed[call.rule] += 1
        except Found as found:
            backward = self.seen.names if found.rule in ("ST402", "ST403", "ST404") else ()
            self.note(call, found, dense.operations.union(backward))
        except Exception as error:  # of the class, where its result is looked at
            said = f"{type(error).__name__}: {error}"
            self.note(call, Found(call.rule, "its result can be looked at", said, "no exception", self.shows(call)), dense.operations)

    def judge(self, call: Call, dense: Ran, deep: bool) -> bool:
        """Is the call right? False if the class refuses it.

        Raises:
            Found: it is wrong.
        """
        writes = not call.expression or self._written(call, dense)
        with torch.no_grad():
            given = self.given(call, writes)
            before = {n: pointers(given[n]) for n in given} if writes else None
            ambient = torch_state()
            try:
                ran = self.run(call, given)
            except Exception as error:
                if call.rule != "ST507" or self._pickles():
                    self.result.refused[call.text] = refusal_of(error)
                return False
            finally:
                moved = torch_state()
                if moved != ambient:
                    set_torch_state(ambient)
        self.unmoved(call, ambient, moved)
        self.unchanged(call, writes)
        if deep and not call.drawn:
            self.twice(call, ran, writes)
        self.compare(call, ran, dense, writes)
        self.in_one_context(call)
        if call.expression:
            self.memory(call, ran, dense, writes, before)
        if deep and self.subject.valid is not None and not writes and not call.drawn:
            self.missing_elements(call, ran)
        if deep:
            self.in_inference(call, ran, writes)
            if call.expression and not writes and not call.drawn:
                self.with_grad(call, ran, dense)
        return True

    def _converts(self) -> bool:
        """Does `to` keep the class? Otherwise torch replaces what a parameter shows, not what is in it."""
        try:
            return isinstance(self.operands.shared["x"].to(torch.float64), self.subject.cls)
        except Exception:
            return False

    def _pickles(self) -> bool:
        """Can what is inside be pickled?"""
        try:
            pickle.loads(pickle.dumps([v.clone() for v in probes.leaves(self.operands.shared["x"])]))
        except Exception:
            return False
        return True

    def _written(self, call: Call, dense: Ran) -> bool:
        values = {n: self.operands.dense[n] if n in self.operands.wrappers else self.operands.shared[n] for n in dense.after}
        return any(t._version or not probes.near(t, values[n]) for n, t in dense.after.items())

    def note(self, call: Call | None, found: Found, operations: frozenset[str]) -> None:
        """Keep a finding."""
        failure = Failure(
            found.what, found.got, found.expected, found.lines, self.subject, operations, call.text if call else ""
        )
        self.result.failures.setdefault(found.rule, []).append(failure)

    # ---------------------------------------------------------------------------------------------- one check after another
    def unmoved(self, call: Call, before: tuple[Any, ...], after: tuple[Any, ...]) -> None:
        """Torch's global state is as it was."""
        if after != before:
            lines = [*self.setup(call), "before = torch.get_default_dtype(), torch.is_grad_enabled()"]
            lines += [*self.body(call, "got"), "after = torch.get_default_dtype(), torch.is_grad_enabled()", *shown("after", "before")]
            raise Found("ST319", "an operation leaves torch's global state alone", after, before, lines)

    def _state(self, x: Any) -> tuple[Any, ...]:
        names, context = x.__tensor_flatten__()
        copy = probes.copied(context)
        told = probes.same_metadata(context, copy, type(x))  # else ST106 says that it is not equal to its copy
        return list(names), copy if told else context, [t.detach().clone() for t in probes.leaves(x)]

    def unchanged(self, call: Call, writes: bool) -> None:
        """The operands are as before, or, where a call writes, other instances: their values, names and contexts."""
        for name in self._used(call) & self.operands.wrappers:
            x, (names, context, values) = self.operands.shared[name], self.snapshot[name]
            look, rule, what = "{}.__tensor_flatten__()", "ST113", "an operation leaves names and context of its operands alone"
            now, context_now = x.__tensor_flatten__()
            got, expected = (list(now), context_now), (names, context)
            if list(now) == names and probes.same_metadata(context_now, context, type(x)):
                if all(map(probes.near, probes.leaves(x), values)):
                    continue
                look, rule, what = "[v.clone() for v in leaves({})]", "ST331", "an operation leaves its operands alone"
                got, expected = probes.leaves(x), values
            other = "other" if writes else name
            lines = [*self.setup(call), "import copy", f"before = copy.deepcopy({look.format(other)})", *self.body(call, "")]
            if writes:
                lines.insert(0, f"other = {self.operands.lines[name]}")
                rule, what = "ST114", "a write to one instance leaves others alone"
            self._renew(name)
            raise Found(rule, what, got, expected, [*lines, *shown(look.format(other), "before")])

    def _renew(self, name: str) -> None:
        self.operands.shared |= self.operands.fresh(frozenset({name}))
        self.snapshot[name] = self._state(self.operands.shared[name])

    def twice(self, call: Call, ran: Ran, writes: bool) -> None:
        """The same call on the same operands gives the same."""
        try:
            with torch.no_grad():
                again = self.run(call, self.given(call, writes))
        except Exception as error:
            raise Found("ST311", "the same call works twice", error, "no exception", self.shows(call, twice=True)) from error
        if not same_twice(self, ran.out, again.out):
            lines = [*self.setup(call), *self.body(call, "expected"), *self.body(call, "got")]
            lines += shown(self.projected("got", again.out), self.projected("expected", ran.out))
            raise Found("ST311", "the same call twice gives the same", again.out, ran.out, lines)

    def compare(self, call: Call, ran: Ran, dense: Ran, writes: bool) -> None:
        """Result and written operands have the type, sizes, dtype and value of the dense program."""
        checked: list[tuple[str, Any, Any]] = [("{}", ran.out, dense.out)]
        if writes and (call.expression or "out" not in call.names):
            checked += [(n, ran.after[n], dense.after[n]) for n in sorted(ran.after)]
        for path, got, expected in checked:
            found = differences(self, call, got, expected)
            if found is not None:
                self.different(call, path, found, writes)
        self._remember(call, ran.out, dense, writes)

    def different(self, call: Call, path: str, found: Difference, writes: bool) -> None:
        """Raise what differs, by the rule that it breaks."""
        rule = found.rule or (call.rule if self.operands.lines["y"] == self.operands.same_context else self.rule_of_value(call))
        got, expected = ("got", "expected") if path == "{}" else (path, f"d{path}")
        targets = ("got", "expected") if path == "{}" else ("", "")
        lines = [*self.setup(call), *self.dense_setup(call, writes)]
        lines += [*self.body(call, targets[0]), *self.dense_body(call, targets[1], writes)]
        lines += shown(found.look.format(got + found.step), found.dense_look.format(expected + found.step), self.subject.tolerance)
        raise Found(rule, found.what, found.got, found.expected, lines)

    def in_one_context(self, call: Call) -> None:
        """Two operands of the same context give the value of the dense program as well."""
        line = self.operands.same_context
        if line is None or not {"x", "y"} <= call.names or call.drawn:
            return
        given = {**self.given(call, True), "y": self.operands.same("y", line)}
        values = {**self.operands.copies(self._used(call)), "y": self.operands.project(given["y"]) if self.operands.judged else given["y"]}
        with torch.no_grad():
            try:
                ran, dense = self.run(call, given), self.run(call, values)
            except Exception:  # it takes those of different contexts only
                return
        pairs = [("{}", ran.out, dense.out), *((n, ran.after[n], dense.after[n]) for n in given if "out" not in call.names)]
        kept, self.operands.lines["y"] = self.operands.lines["y"], line
        try:
            for path, got, expected in pairs:
                found = differences(self, call, got, expected)
                if found is not None:
                    self.different(call, path, found, True)
        finally:
            self.operands.lines["y"] = kept

    def rule_of_value(self, call: Call) -> str:
        """Which rule a wrong value breaks: that of two contexts, if it is right with one."""
        line = self.operands.same_context
        if line is None or not {"x", "y"} <= call.names:
            return call.rule
        given = {**self.given(call, True), "y": self.operands.same("y", line)}
        values = {**self.operands.copies(self._used(call)), "y": self.operands.project(given["y"])}
        try:
            with torch.no_grad():
                ran, dense = self.run(call, given), self.run(call, values)
            pairs = [(ran.out, dense.out), *((ran.after[n], dense.after[n]) for n in given)]
            wrong = any(differences(self, call, *pair) for pair in pairs)
        except Exception:
            wrong = True
        return call.rule if wrong else "ST316"

    def _remember(self, call: Call, out: Any, dense: Ran, writes: bool) -> None:
        """The types of results, for `types_agree`."""
        used = self._used(call) & self.operands.wrappers
        if not isinstance(dense.out, torch.Tensor) or writes or call.drawn or not dense.pointwise:
            return
        if all(self.operands.shared[n].shape == dense.out.shape for n in used):
            key = (call.rule, dense.out.dtype.is_floating_point, used == {"x"})
            self.types.setdefault(key, []).append((call, dense.operations, type(out)))

    def types_agree(self) -> None:
        """A call whose result is no instance of the class, where those of its like are."""
        for calls in self.types.values():
            kinds = Counter(issubclass(kind, self.subject.cls) for _, _, kind in calls)
            if kinds[True] < 6 or kinds[False] > 0.15 * kinds[True]:
                continue
            for call, operations, kind in calls:
                if not issubclass(kind, self.subject.cls):
                    name = self.subject.cls.__name__
                    lines = [*self.setup(call), *self.body(call, "got"), *shown("type(got)", "type(x)")]
                    what = f"its result is a {name}, as those of {kinds[True]} calls of this kind are"
                    self.note(call, Found("ST312", what, kind, self.subject.cls, lines), operations)

    def memory(self, call: Call, ran: Ran, dense: Ran, writes: bool, before: dict[str, Any] | None = None) -> None:
        """What is a view on dense tensors is one, what is not is none; a write gives its first argument."""
        for name in self._used(call) & self.operands.wrappers:
            x, dense_x = ran.after[name], dense.after[name]
            if writes and dense.out is dense_x and ran.out is not x:
                lines = [*self.setup(call), *self.body(call, "got"), *shown(f"got is {name}", "True")]
                raise Found("ST323", "the result is the tensor that was written", False, True, lines)
            if writes and dense_x._version and before is not None and pointers(x) != before[name]:
                look = f"[v.data_ptr() for v in leaves({name})]"
                lines = [*self.setup(call), f"before = {look}", *self.body(call, "got"), *shown(look, "before")]
                raise Found("ST324", "a write goes into the inner tensors, it does not replace them", "others", "the same", lines)
            if writes and dense_x._version and not x._version and ".data" not in call.text and "detach" not in call.text:
                lines = [*self.setup(call), f"before = {name}._version", *self.body(call, "got")]
                raise Found("ST327", "a write is counted", 0, "more than 0", [*lines, *shown(f"{name}._version > before", "True")])
        if not writes:
            self.aliases(call, ran, dense)

    def aliases(self, call: Call, ran: Ran, dense: Ran) -> None:
        """Results share memory with the operands that they share it with on dense tensors."""
        outs, dense_outs = (list(filter(torch.is_tensor, flat(r.out))) for r in (ran, dense))
        for name in self._used(call) & self.operands.wrappers:
            x, dense_x = ran.after[name], dense.after[name]
            for k, (got, expected) in enumerate(zip(outs, dense_outs, strict=False)):
                if not expected.numel() or not probes.leaves(x):
                    continue
                shared = probes.shares_memory(x, got)
                if probes.shares_memory(dense_x, expected) == shared or any(n in call.text for n in EITHER):
                    continue
                if not shared and "detach()" not in call.text:
                    lines = [*self.setup(call), *self.body(call, "got"), *shown(f"shares_memory({name}, got)", "True")]
                    raise Found("ST321", "a view looks at the memory of its base", False, True, lines)
                if shared and self._reached(call, name, k):
                    lines = [*self.setup(call), f"before = [v.clone() for v in leaves({name})]", *self.body(call, "got")]
                    lines += ["got.zero_()", *shown(f"leaves({name})", "before")]
                    what = "a write to the result does not reach the operands"
                    raise Found("ST331", what, "the operand is written", "it is as before", lines)
            self._strides(call, name, outs, dense_outs)

    def _reached(self, call: Call, name: str, k: int) -> bool:
        """Does a write to a result change an operand? Tried on new operands."""
        try:
            with torch.no_grad():
                given = self.given(call, True)
                before = [v.clone() for v in probes.leaves(given[name])]
                list(filter(torch.is_tensor, flat(self.run(call, given).out)))[k].zero_()
        except Exception:  # it cannot be written
            return False
        return not all(map(probes.near, probes.leaves(given[name]), before))

    def _strides(self, call: Call, name: str, outs: list[Any], dense_outs: list[Any]) -> None:
        x, dense_x = self.operands.shared[name], self.operands.dense[name]
        if call.text not in STRIDED or layout_of(x) != layout_of(dense_x) or x.stride() != dense_x.stride():
            return
        for got, expected in zip(outs, dense_outs, strict=False):
            if isinstance(got, self.subject.cls) and layout_of(got) == torch.strided and got.stride() != expected.stride():
                lines = [*self.setup(call), *self.dense_setup(call, False), *self.body(call, "got"), *self.dense_body(call, "expected")]
                lines += shown("got.stride()", "expected.stride()")
                raise Found("ST613", "strides as of a dense tensor", got.stride(), expected.stride(), lines)

    def missing_elements(self, call: Call, ran: Ran) -> None:
        """Results do not depend on elements that mean nothing."""
        given = self.given(call, True)
        changed = [n for n in self._used(call) & self.operands.wrappers if not bool(self.meaningful(given[n]).all())]  # type: ignore[union-attr]
        steps = []
        for n in changed:
            steps.append(f"{n} = rebuild({n}, lambda t: torch.where(mask, t, t + 7) if t.shape == mask.shape and t.is_floating_point() else t)")
            names = {**self.operands.base, "rebuild": probes.rebuild, n: given[n], "mask": self.meaningful(given[n])}
            exec(steps[-1], names)
            given[n] = names[n]
        if not changed:
            return
        with torch.no_grad():
            other = self.run(call, given)
        for a, b in zip(flat(other.out), flat(ran.out), strict=False):
            mask = self.meaningful(b)
            a, b = (self.value(t) if torch.is_tensor(t) else t for t in (a, b))
            if mask is not None and torch.is_tensor(b) and mask.shape == b.shape:
                a, b = (torch.where(mask, t, torch.zeros_like(t)) for t in (a, b))
            if not probes.same(a, b, *self.subject.tolerance):
                assert self.subject.valid is not None
                lines = [*self.setup(call), *self.body(call, "expected")]
                for n, step in zip(changed, steps, strict=True):
                    lines += [f"mask = {self.subject.valid.format(n)}", step]
                lines += [*self.body(call, "got"), 'print("got:     ", got)', 'print("expected:", expected)', f"assert False, {WHAT_IS_MISSING!r}"]
                raise Found("ST333", WHAT_IS_MISSING, a, b, lines)

    def in_inference(self, call: Call, ran: Ran, writes: bool) -> None:
        """In inference mode it gives the same."""
        if "backward" in call.text:
            return
        given = self.given(call, writes)
        try:
            with torch.inference_mode():
                other = self.run(call, given)
        except Exception as error:
            try:
                with torch.inference_mode():
                    self.run(call, self.operands.copies(self._used(call)))
            except Exception:  # nor can the dense program
                return
            if OUTSIDE in str(error):
                self.result.limited[f"{call.text} in inference mode"] = refusal_of(error)
                return
            raise Found("ST305", "what works without inference mode works in it", f"{type(error).__name__}: {error}",
                        "no exception", [*self.setup(call), *in_mode("torch.inference_mode()", self.body(call, "got"))]) from error  # fmt: skip
        if call.drawn:
            return
        pairs = [("got", other.out, ran.out), *((n, other.after[n], ran.after[n]) for n in given if writes and call.expression)]
        for path, got, expected in pairs:
            if not same_twice(self, got, expected, self.subject.tolerance):
                lines = [*self.setup(call), *self.body(call, "expected"), *in_mode("torch.inference_mode()", self.body(call, "got"))]
                lines += shown(*(("type(got), got", "type(expected), expected") if path == "got" else (path, path)))
                raise Found("ST305", "the same result as without inference mode", got, expected, lines)

    # --------------------------------------------------------------------------------------------------------- contexts
    def contexts(self) -> None:
        """Instances do not share what they know, and contexts that mean something else are not equal."""
        ops, x = self.operands, self.operands.shared["x"]
        names, context = x.__tensor_flatten__()
        if list(names) != ops.first[0] or not probes.same_metadata(context, ops.first[1], type(x)):
            lines = [f"x = {ops.lines['x']}", "import copy", "before = copy.deepcopy(x.__tensor_flatten__()[1])"]
            lines += [f"y = {(ops.variants or [(ops.lines['y'], None, '')])[-1][0]}", *shown("x.__tensor_flatten__()[1]", "before")]
            what = "making another instance leaves the first one alone"
            self.note(None, Found("ST114", what, context, ops.first[1], lines), frozenset())
        for name in ("x", "y"):
            self.rebuilt(name)
        pairs = [("y", line, y, z) for line, z, _ in ops.variants for y in [ops.same("y", ops.same_context or ops.lines["y"])]]
        for name, line, a, b in [*pairs, ("x", ops.lines["y"], x, ops.shared["y"])]:
            self._told_apart(ops.lines["x"] if name == "x" else ops.same_context or ops.lines["y"], line, a, b)

    def rebuilt(self, name: str) -> None:
        """An instance whose context is not the usual one comes back from flatten and unflatten."""
        x, dense = self.operands.shared[name], self.subject.dense
        try:
            same = not self.operands.judged or probes.near(self.value(probes.rebuild(x)), self.value(x))
        except Exception:  # that is ST101 as it is
            return
        if not same:
            lines = [f"{name} = {self.operands.lines[name]}", *shown(f"{dense}".format(f"rebuild({name})"), f"{dense}".format(name))]
            found = Found("ST101", "a rebuilt one has the same value", self.value(probes.rebuild(x)), self.value(x), lines)
            self.note(None, found, frozenset())

    def _told_apart(self, line: str, other_line: str, a: Any, b: Any) -> None:
        """Contexts of two instances that give the same inner tensors another value."""
        context, other = a.__tensor_flatten__()[1], b.__tensor_flatten__()[1]
        try:
            equal = probes.same_metadata(context, other, type(a))
            exchanged = type(a).__tensor_unflatten__(probes.inners(a), other, a.size(), a.stride())
            differ = self.operands.judged and not probes.near(self.value(exchanged), self.value(a))
        except Exception:  # other rules ask for this
            return
        kept = "" if differ or probes.kept_arguments(a) == probes.kept_arguments(exchanged) else "kept_arguments({})"
        lost = probes.kept_arguments(probes.rebuild(a)) != probes.kept_arguments(a)  # that is ST101
        if lost or not equal or not (differ or kept):
            self.result.passed["ST112"] += 1
            return
        lines = [f"a = {line}", f"b = {other_line}", "context, other = a.__tensor_flatten__()[1], b.__tensor_flatten__()[1]"]
        lines.append("c = type(a).__tensor_unflatten__(inners(a), other, a.size(), a.stride())")
        look = kept or self.subject.dense or "{}"
        lines += [f'print({look.format("a")}, "is not", {look.format("c")})', *shown("same_metadata(context, other, type(a))", "False")]
        self.note(None, Found("ST112", "contexts that mean something else are not equal", True, False, lines), frozenset())

    # ------------------------------------------------------------------------------------------------------- gradients
    def with_grad(self, call: Call, ran: Ran, dense: Ran) -> None:
        """With gradients it gives the same, and the gradients are those of the dense program."""
        wanted = sorted(n for n in self._used(call) if self.operands.shared[n].is_floating_point())
        floating = any(torch.is_tensor(t) and t.is_floating_point() for t in flat(dense.out))
        if not floating or not wanted or "requires_grad_" in call.text:
            return
        given, values = self.given(call, True), self.operands.copies(self._used(call))
        try:
            given |= {n: given[n].detach().requires_grad_() for n in wanted}
            values |= {n: values[n].requires_grad_() for n in wanted}
            expected = self.run(call, values)
            other = self.run(call, given)
        except Exception as error:
            self.result.limited.setdefault(f"{call.text} with gradients", refusal_of(error))
            return
        if not same_twice(self, detached(other.out), detached(ran.out), self.subject.tolerance):
            lines = [*self.setup(call), *in_mode("torch.no_grad()", self.body(call, "expected"))]
            lines += [f"{n}.requires_grad_()" for n in wanted] + self.body(call, "got")
            lines += shown(self.projected("got", other.out), self.projected("expected", ran.out))
            raise Found("ST306", "the same result as under no_grad", other.out, ran.out, lines)
        self.gradients(call, given, values, other.out, expected.out, wanted)

    def gradients(self, call: Call, given: dict[str, Any], values: dict[str, Any], out: Any, dense: Any, wanted: list[str]) -> None:
        """Gradients in each argument."""
        outs, dense_outs = flat(out), flat(dense)
        kept = [k for k, t in enumerate(dense_outs) if torch.is_tensor(t) and t.requires_grad]
        steps = [f"{n}.requires_grad_()" for n in wanted]
        for k in kept:
            if not outs[k].requires_grad:
                lines = [*self.setup(call), *steps, *self.body(call, "got"), *shown(f"{item('got', out, k)}.requires_grad", "True")]
                raise Found("ST401", "it requires grad, as the dense result does", False, True, lines)
        if not kept or not self.operands.judged:
            return
        outs, dense_outs = [outs[k] for k in kept], [dense_outs[k] for k in kept]
        try:
            tangents = [t.detach() for t in outs]
            dense_tangents = [self.value(t) for t in tangents]
            with self.seen:
                expected = torch.autograd.grad(dense_outs, [values[n] for n in wanted], dense_tangents, allow_unused=True)
        except Exception:  # a result that cannot be projected; an operation without a derivative
            return
        try:
            grads = torch.autograd.grad(outs, [given[n] for n in wanted], tangents, allow_unused=True)
        except Exception as error:
            self.result.limited.setdefault(f"{call.text} with a backward", refusal_of(error))
            return
        for n, g, dense_g in zip(wanted, grads, expected, strict=True):
            self.gradient(call, n, g, dense_g, steps, out, kept)

    def gradient(self, call: Call, name: str, g: Any, dense_g: Any, steps: list[str], out: Any, kept: list[int]) -> None:
        """One gradient."""
        wrapper = name in self.operands.wrappers
        rule = "ST402" if name == "x" else "ST403"
        what = f"the gradient for {name} is that of the dense program"
        if not wrapper and has_gaps(self, call, g):
            return
        if g is None or dense_g is None:
            if g is None and dense_g is not None and bool(dense_g.count_nonzero()):
                raise Found(rule, what, None, dense_g, self.grad_lines(call, name, steps, out, kept, "g", "dense_g"))
            return
        if not wrapper or isinstance(g, self.subject.cls) or type(g) in (torch.Tensor, torch.nn.Parameter):
            try:
                got = self.value(g)
            except Exception as error:
                raise Found(rule, what, error, dense_g, self.grad_lines(call, name, steps, out, kept, "g", "dense_g")) from error
            rtol, atol = (max(t, self._slack(out)) for t in self.subject.tolerance)
            scale = 1.0 if atol < 1e-4 else max(1.0, float(dense_g.abs().max())) if dense_g.numel() else 1.0
            if g.dtype != dense_g.dtype or got.shape != dense_g.shape or not self.close(g, got, dense_g, rtol, atol * scale):
                lines = self.grad_lines(call, name, steps, out, kept, self.projected("g", g), "dense_g")
                raise Found(rule, what, got, dense_g, lines)
        else:
            lines = self.grad_lines(call, name, steps, out, kept, "type(g)", f"type({name})")
            raise Found("ST404", "a gradient is of the class, or dense", type(g), self.subject.cls, lines)

    def _slack(self, out: Any) -> float:
        """The rounding of tangents in a short dtype."""
        dtypes = [t.dtype for t in flat(out) if torch.is_tensor(t) and t.is_floating_point()]
        return max((4 * torch.finfo(d).eps for d in dtypes if d.itemsize == 2), default=0.0)

    def close(self, wrapper: Any, got: torch.Tensor, expected: torch.Tensor, rtol: float, atol: float) -> bool:
        """Are the values near, where they mean something?"""
        mask = self.meaningful(wrapper)
        short = self.operands.shared["x"].dtype
        if short.is_floating_point and short.itemsize == 2 and expected.numel() and expected.is_floating_point():
            slack = 8 * torch.finfo(short).eps
            finite = expected[expected.isfinite()]
            rtol, atol = max(rtol, slack), max(atol, slack * float(finite.abs().max()) if finite.numel() else 0.0)
        if mask is not None and mask.shape == got.shape:
            got, expected = (torch.where(mask, t, torch.zeros_like(t)) for t in (got, expected))
        return probes.near(got, expected.to(got.dtype), rtol, atol)

    def meaningful(self, x: Any) -> torch.Tensor | None:
        """Which elements of a wrapper mean something, if the author has said so."""
        if self.subject.valid is None or not isinstance(x, self.subject.cls):
            return None
        mask: torch.Tensor = eval(self.subject.valid.format("_x"), {**self.operands.base, "_x": x})
        return mask

    def value(self, x: Any) -> torch.Tensor:
        """The dense value of a result."""
        return self.operands.project(x) if isinstance(x, self.subject.cls) else x

    # ------------------------------------------------------------------------------------------------- lines that show it
    def projected(self, name: str, value: Any) -> str:
        """The source of the dense value of a result."""
        wrapped = isinstance(value, self.subject.cls) and self.subject.dense is not None
        return f"{self.subject.dense.format(name)}.detach()" if wrapped and self.subject.dense else name

    def setup(self, call: Call) -> list[str]:
        """Imports and operands."""
        imports = [line for name, line in MODULES.items() if name in call.names and name != "torch"]
        seed = "torch.manual_seed(0); " if self.subject.random else ""
        return [*imports, *(f"{seed}{n} = {line}" for n, line in self.operands.lines.items() if n in call.names)]

    def dense_setup(self, call: Call, writes: bool) -> list[str]:
        """The operands of the dense program."""
        used = self._used(call)
        dense = self.subject.dense or "torch.randn({0}.shape, dtype={0}.dtype)"
        lines = [f"d{n} = {dense.format(n)}.clone()" for n in sorted(used & self.operands.wrappers)]
        return lines + [f"d{n} = {n}.clone()" for n in sorted(used - self.operands.wrappers) if writes]

    def body(self, call: Call, target: str) -> list[str]:
        """The call itself."""
        if call.expression:
            return [f"{target} = {call.text}" if target else call.text]
        lines = call.text.splitlines()
        return [*lines, f"{target} = out"] if target and "out" in call.names else lines

    def dense_body(self, call: Call, target: str, writes: bool = False) -> list[str]:
        """The call on dense tensors."""
        used = self._used(call) if writes else self._used(call) & self.operands.wrappers
        return [re.sub(rf"\b({'|'.join(used)})\b", r"d\1", line) if used else line for line in self.body(call, target)]

    def shows(self, call: Call, twice: bool = False) -> list[str]:
        """Lines that raise."""
        return [*self.setup(call), *self.body(call, "got") * (1 + twice)]

    def grad_lines(self, call: Call, name: str, steps: list[str], out: Any, kept: list[int], got: str, expected: str) -> list[str]:
        """Lines that show a gradient."""
        wrappers = self.operands.wrappers
        lines = [*self.setup(call), *self.dense_setup(call, False), *steps, *self.body(call, "y_")]
        lines += [re.sub(rf"\b({'|'.join(wrappers)})\b", r"d\1", step) for step in steps if step.split(".")[0] in wrappers]
        lines += self.dense_body(call, "dense_y")
        each = [(item("y_", out, k), item("dense_y", out, k)) for k in kept]
        tangents = [f"{a}.detach()" for a, _ in each]
        dense_tangents = [self.projected(t, flat(out)[k]) for t, k in zip(tangents, kept, strict=True)]
        dense_name = f"d{name}" if name in wrappers else name
        lines.append(f"(g,) = torch.autograd.grad([{', '.join(a for a, _ in each)}], [{name}], [{', '.join(tangents)}], allow_unused=True)")
        lines.append(f"(dense_g,) = torch.autograd.grad([{', '.join(b for _, b in each)}], [{dense_name}], [{', '.join(dense_tangents)}])")
        return lines + shown(got, expected, self.subject.tolerance)


WHAT_IS_MISSING = "a result that means something does not depend on elements that mean nothing"
#: what torch's `return_and_correct_aliasing` says in inference mode where a view of a tensor from outside is made
OUTSIDE = "Cannot set version_counter for inference tensor"
#: results that torch may give as a view or as a copy
EITHER = (
    "reshape", "flatten", "contiguous", "ravel", "to(", "float()", "double()", "half()", "bfloat16()", "cpu()", "type(",
    "type_as", "positive", "requires_grad_", "copy.", "pickle.", "Parameter", "dropout", "tensor_split",
)  # fmt: skip


class Operations(torch_api.TorchDispatchMode):
    """Notes the names of the operations that run inside, without the underscore of those in place."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.pointwise = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.pointwise &= torch.Tag.pointwise in func.tags and "mm" not in func.__name__
        self.names.add(func.__name__.split(".")[0].rstrip("_"))
        return func(*args, **(kwargs or {}))


def shown(got: str, expected: str, tolerance: tuple[float, float] | None = None) -> list[str]:
    """The end of a program: both sides are printed, and compared."""
    near = f", {tolerance[0]}, {tolerance[1]}" if tolerance else ""
    sides = [f"{name} = {source}" for name, source in (("got", got), ("expected", expected)) if name != source]
    return [*sides, 'print("got:     ", got)', 'print("expected:", expected)', f"assert same(got, expected{near})"]


def in_mode(mode: str, lines: list[str]) -> list[str]:
    """Lines inside of a mode, as one."""
    return ["\n    ".join([f"with {mode}:", *(part for line in lines for part in line.splitlines())])]


def item(name: str, out: Any, k: int) -> str:
    """The source of the k-th result."""
    return name if torch.is_tensor(out) else f"{name}[{k}]"


def detached(out: Any) -> Any:
    """The same without history."""
    if isinstance(out, (list, tuple)):
        return type(out)(map(detached, out)) if type(out) in (list, tuple) else [detached(v) for v in out]
    return out.detach() if torch.is_tensor(out) else out


def pointers(x: Any) -> list[int]:
    """Where the numbers of a tensor lie."""
    return [v.data_ptr() for v in probes.leaves(x)]


def torch_state() -> tuple[Any, ...]:
    """What torch keeps for the whole process and a call must not change."""
    return (
        torch.get_default_dtype(), torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled("cpu"), torch.get_num_threads(),
    )  # fmt: skip


def set_torch_state(state: tuple[Any, ...]) -> None:
    """Put it back."""
    torch.set_default_dtype(state[0])
    torch.set_grad_enabled(state[1])
    torch.use_deterministic_algorithms(state[2])
    torch.set_autocast_enabled("cpu", state[3])
    torch.set_num_threads(state[4])


# --------------------------------------------------------------------------------------------------------------- all of it
_DONE: weakref.WeakKeyDictionary[Subject, Swept] = weakref.WeakKeyDictionary()
#: asked before each call: may it run? (The process that watches over the checks notes what a crash or a hang was caused by.)
before_each: list[Callable[[str], bool]] = []


def sweep_of(subject: Subject) -> Swept:
    """What came of the calls for a subject; they run once."""
    if subject not in _DONE:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            _DONE[subject] = _swept(subject)
    return _DONE[subject]


def _swept(subject: Subject) -> Swept:
    try:
        sweep = Sweep(subject, operands_of(subject))
    except Exception as error:  # whatever the class does when it is built, flattened or projected
        return Swept(unbuilt=f"{type(error).__name__}: {error}".splitlines()[0])
    sweep.result.makes = tuple(make for _, _, make in sweep.operands.variants)
    sweep.contexts()
    calls = [*(call_of(text, "ST320") for text in subject.programs), *all_calls()]
    for call in calls:
        if all(ask(call.text) for ask in before_each):
            sweep.attempt(call)
    sweep.types_agree()
    _judge_refusals(sweep, {c.text: c for c in calls})
    return sweep.result


#: calls of one example of the random search
SAMPLE = 40


def sample_calls(t: Script, rules: set[str]) -> None:
    """Random search: some calls of these rules, on operands of a size, dtype and layout that hypothesis draws.

    Raises:
        Failure: one of them is wrong, which was right in the sweep.
        NotBuilt: there are no such operands.
    """
    subject = t.subject
    (spec,) = t.draw(dense_specs(1, subject.shapes(), s.sampled_from(subject.dtypes)))
    seed = t.draw(s.integers(0, 9))
    try:
        sweep = Sweep(subject, Operands(subject, spec.shape, spec.dtype, spec.layout))
    except Exception as error:
        raise NotBuilt(str(error)) from error
    known = {f.call for found in sweep_of(subject).failures.values() for f in found}
    calls = [c for c in all_calls() if c.rule in rules and c.expression and c.text not in known]
    for call in random.Random(seed).sample(calls, min(SAMPLE, len(calls))):
        sweep.attempt(call, deep=False)
        t.checks += 1
        for failures in sweep.result.failures.values():
            raise failures[0]


def _judge_refusals(sweep: Sweep, calls: dict[str, Call]) -> None:
    """Findings of the refused calls: accidents of what the class means to do, programs that were handed in, the use."""
    result, subject = sweep.result, sweep.subject
    right = set(result.right)
    known = frozenset().union(*result.right.values()) if right else frozenset()
    share = len(right) / max(1, len(right) + len(result.refused))
    for text, refusal in result.refused.items():
        call = calls[text]
        dense = sweep.dense(call)
        operations = dense.operations if dense else frozenset()
        means = means_to(subject.cls, operations, call.text) or share >= ALL_OF_THEM or (operations and operations <= known)
        meant = refusal.blunder or (refusal.accident and means)
        rule = "ST320" if text in subject.programs else "ST317" if meant else ""
        if rule:
            found = Found(rule, f"`{text}` works, as on dense tensors", refusal.said, "no exception", sweep.shows(call))
            sweep.note(call, found, operations)
    result.use = subject.use or inferred_use(right)
    for text in missing(result.use, right) if subject.use else ():
        said = result.refused[text].said if text in result.refused else "it is wrong"
        what = f"{subject.use}: `{text}` works"
        if text in result.refused:
            sweep.note(calls[text], Found("ST318", what, said, "no exception", sweep.shows(calls[text])), frozenset())
