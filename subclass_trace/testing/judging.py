"""Judges one call: on wrappers, twice, in inference mode and with gradients, against the dense
program.

`Judge.judge` has the order of the checks; the first difference is raised as `Found`, by the rule
that it breaks.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from ..torch_api.modes import TorchDispatchMode
from . import probes
from .evidence import Call, Found, Ran, flat, shown
from .gradients import Gradients
from .memory import Memory, pointers
from .refusals import Refusal, refusal_of

#: rules about calls whose result is the operand again: of the class, with its context
KEEPS = frozenset({"ST501", "ST502", "ST506", "ST507", "ST510", "ST511", "ST515"})
#: of these, with the same numbers in all inner tensors
EXACT = frozenset({"ST501", "ST506", "ST507", "ST510"})
MEANINGLESS = "a result that means something does not depend on elements that mean nothing"
#: what torch's `return_and_correct_aliasing` says in inference mode to views of what is outside
OUTSIDE = "Cannot set version_counter for inference tensor"


#: what a tensor is from outside: source, the same as a function, what should hold
OUTSIDES: tuple[tuple[str, Callable[[Any], Any], str], ...] = (
    ("torch.is_tensor({})", torch.is_tensor, "it gives a tensor"),
    ("{}.shape", lambda t: t.shape, "the sizes of the dense program"),
    ("{}.dtype", lambda t: t.dtype, "the dtype of the dense program"),
    ("{}.device", lambda t: t.device, "the device of the dense program"),
    (
        "isinstance({}, torch.nn.Parameter)",
        lambda t: isinstance(t, torch.nn.Parameter),
        "it is a parameter where the dense one is",
    ),
    ("{}.requires_grad", lambda t: t.requires_grad, "it requires grad where the dense one does"),
)


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the names of the operations that run inside, without the underscore of those in
    place."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()
        self.pointwise = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0].rstrip("_")
        self.names.add(name)
        self.pointwise &= torch.Tag.pointwise in func.tags and "mm" not in name
        return func(*args, **(kwargs or {}))


class Refused(Exception):
    """The class does not do the call; the argument is a `Refusal`."""


class Judge(Gradients, Memory):
    """Judges calls on operands of one size.

    Attributes:
        limited: right calls that are refused in inference mode or with gradients.
        seen: the operations of backwards.
        passed: rules about gradients -> comparisons.
    """

    def __init__(self, subject: Any, operands: Any) -> None:
        super().__init__(subject, operands)
        self.snapshot = {n: state(operands.shared[n]) for n in operands.wrappers}
        self.limited: dict[str, Refusal] = {}
        self.seen = Operations()  # of backwards
        self.passed: Counter[str] = Counter()

    # ---- running
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
        given, seen = self.operands.copies(self.used(call)), Operations()
        with contextlib.suppress(Exception), seen:
            out, after, _, _ = self.run(call, given)
            return Ran(out, after, frozenset(seen.names), seen.pointwise)
        return None

    def given(self, call: Call, fresh: bool) -> dict[str, Any]:
        """The operands of a call: new ones where it writes."""
        used = self.used(call)
        return self.operands.fresh(used) if fresh else {n: self.operands.shared[n] for n in used}

    # ---- judging
    def judge(self, call: Call, dense: Ran, deep: bool) -> Ran:
        """What a right call gives.

        Raises:
            Found: it is wrong.
            Refused: the class does not do it.
        """
        writes = not call.expression or self._written(dense)
        with torch.no_grad():
            given = self.given(call, writes)
            lies = {n: pointers(given[n]) for n in given}
            try:
                ran = self.run(call, given)
            except Exception as error:
                raise Refused(refusal_of(error)) from error
        self.unchanged(call, writes)
        if deep and not call.drawn:
            self.twice(call, ran, writes)
        self.compare(call, ran, dense, writes)
        if call.expression:
            self.writes(call, ran, dense, lies) if writes else self.aliases(call, ran, dense)
        if deep:
            self.one_context(call, writes)
            if self.subject.valid is not None and not writes and not call.drawn:
                self.missing_elements(call, ran)
            self.in_inference(call, ran, dense, writes)
            if call.expression and not writes and not call.drawn:
                self.with_grad(call, ran, dense)
        return ran

    def _written(self, dense: Ran) -> bool:
        ops = self.operands
        values = {n: ops.dense[n] if n in ops.wrappers else ops.shared[n] for n in dense.after}
        return any(t._version or not probes.near(t, values[n]) for n, t in dense.after.items())

    def unchanged(self, call: Call, writes: bool) -> None:
        """The operands, or where a call writes, other instances: as before."""
        for n in self.wrapped(call):
            x, (names, context, values) = self.operands.shared[n], self.snapshot[n]
            now, context_now = x.__tensor_flatten__()
            rule, what, look = "ST113", "names and context", "{}.__tensor_flatten__()"
            got: Any = (list(now), context_now)
            expected: Any = (names, context)
            if list(now) == names and probes.same_metadata(context_now, context, type(x)):
                if all(map(probes.near, probes.leaves(x), values)):
                    continue
                rule, what, look = "ST331", "numbers", "[v.clone() for v in leaves({})]"
                got, expected = probes.leaves(x), values
            other = "other" if writes else n
            rule = "ST114" if writes else rule
            before = f"before = copy.deepcopy({look.format(other)})"
            lines = [*self.setup(call), "import copy", before, *self.body(call, "")]
            if writes:
                lines.insert(0, f"other = {self.operands.lines[n]}")
            self.operands.shared |= self.operands.fresh(frozenset({n}))
            self.snapshot[n] = state(self.operands.shared[n])
            what = f"{'another instance' if writes else 'an operand'} keeps its {what}"
            lines += shown(look.format(other), "before")
            raise Found(rule, what, got, expected, lines)

    def twice(self, call: Call, ran: Ran, writes: bool) -> None:
        """The same call on the same operands gives the same."""
        lines = [*self.setup(call), *self.body(call, "expected"), *self.body(call, "got")]
        try:
            with torch.no_grad():
                again = self.run(call, self.given(call, writes))
        except Exception as error:
            what = "the same call works twice"
            raise Found("ST311", what, error, "no exception", lines) from error
        if not self.alike(ran.out, again.out):
            both = self.projected("got", again.out), self.projected("expected", ran.out)
            what = "the same call twice gives the same"
            raise Found("ST311", what, again.out, ran.out, [*lines, *shown(*both)])

    def alike(self, a: Any, b: Any, tolerance: tuple[float, float] = (0.0, 0.0)) -> bool:
        """Are two results the same: types, metadata, and numbers up to the tolerance?

        What is inside of a class that draws random numbers may differ; its dense value counts.
        """
        xs, ys = flat(a), flat(b)
        if self.subject.random and any(tolerance) and self.operands.judged:
            if list(map(type, xs)) != list(map(type, ys)):
                return False
            xs, ys = ([self.value(v) for v in vs] for vs in (xs, ys))
        pairs = zip(xs, ys, strict=False)
        return len(xs) == len(ys) and all(probes.same(x, y, *tolerance) for x, y in pairs)

    # ---- against the dense program
    def compare(self, call: Call, ran: Ran, dense: Ran, writes: bool, rule: str = "") -> None:
        """Result and written operands have the type, sizes, dtype and value of the dense
        program."""
        self._compare(call, "", "", ran.out, dense.out, writes, rule)
        if writes and "out" not in call.names:
            for n in sorted(ran.after):
                self._compare(call, n, "", ran.after[n], dense.after[n], writes, rule)

    def _compare(
        self, call: Call, name: str, step: str, got: Any, expected: Any, writes: bool, rule: str
    ) -> None:
        if isinstance(expected, (list, tuple)) and isinstance(got, (list, tuple)):
            for k, (a, b) in enumerate(zip(got, expected, strict=False)):
                self._compare(call, name, f"{step}[{k}]", a, b, writes, rule)
        found = self._difference(call, got, expected)
        if found is None:
            return
        kind, what, look, dense_look = found
        also = sorted(self.used(call) - self.operands.wrappers) if writes else ()
        sides = (name, f"d{name}") if name else ("got", "expected")
        lines = [*self.setup(call), *self.against_dense(call, "" if name else "got", also)]
        looks = look.format(sides[0] + step), dense_look.format(sides[1] + step)
        tolerance = self.subject.tolerance if not kind else None
        values: list[Any] = []
        for source, value in ((look, got), (dense_look, expected)):
            try:
                names = {**self.operands.base, **self.operands.shared, "leaves": probes.leaves}
                values.append(eval(source.format("_v"), {**names, "_v": value}))
            except Exception as error:
                values.append(f"{type(error).__name__}: {error}")
        rule = kind or rule or self._rule_of_value(call)
        raise Found(rule, what, values[0], values[1], [*lines, *shown(*looks, tolerance)])

    def _difference(self, call: Call, got: Any, expected: Any) -> tuple[str, str, str, str] | None:
        """The rule ("" where the call says it), what should hold, and what to look at on both
        sides."""
        if isinstance(expected, (list, tuple)):
            short = not isinstance(got, (list, tuple)) or len(got) != len(expected)
            return ("ST313", "as many tensors", "len({})", "len({})") if short else None
        if not isinstance(expected, torch.Tensor):
            judged = self.operands.judged and not call.drawn and not self.has_gaps(call, got)
            same = probes.same(got, expected, *self.subject.tolerance)
            return (
                ("", "the value of the dense program", "{}", "{}") if judged and not same else None
            )
        kind = call.rule if call.rule in ("ST503", "ST514") else "ST313"
        free = "nonzero" in call.text and not self.operands.judged
        for look, of, what in OUTSIDES:
            if of(got) != of(expected) and not (free and "shape" in look):
                kind = call.rule if "is" in look and call.rule in KEEPS else kind
                return "ST510" if "Parameter" in look else kind, what, look, look
        return self._inside(call, got, expected)

    def _inside(
        self, call: Call, got: Any, expected: torch.Tensor
    ) -> tuple[str, str, str, str] | None:
        """The same for what is inside of a result: devices, class and context, numbers."""
        wrapped = isinstance(got, self.subject.cls)
        places = {v.device.type for v in probes.leaves(got) if v.numel()}
        if places - {expected.device.type}:
            return (
                "ST503",
                "all inner tensors are there",
                "[v.device for v in leaves({})]",
                "[v.device for v in leaves({})]",
            )
        if call.rule in KEEPS and call.names.isdisjoint("p"):
            if not wrapped:
                return call.rule, "it keeps the class", "type({})", self.subject.cls.__qualname__
            direct = len(self.wrapped(call)) == 1 and not any(
                n in call.text for n in (".t()", "[1:]")
            )
            if direct and not self._same_context(call, got):
                look, source = "{}.__tensor_flatten__()", self.wrapped(call)[0]
                return call.rule, "it keeps names and context", look, look.format(source)
            if call.rule in EXACT and len(self.wrapped(call)) == 1:
                source = self.wrapped(call)[0]
                values = self.snapshot[source][2]
                if len(values) != len(probes.leaves(got)) or not all(
                    map(probes.near, probes.leaves(got), values)
                ):
                    return (
                        call.rule,
                        "it keeps all numbers inside",
                        "leaves({})",
                        f"leaves({source})",
                    )
        if call.drawn or not self.operands.judged or self.has_gaps(call, got):
            return None
        look = self.subject.dense or "{}" if wrapped else "{}"
        what = "the value of the dense program"
        try:
            value = self.value(got)
        except Exception:
            return "", "its result has a dense value", look, "{}"
        if wrapped and value.dtype != got.dtype and self.operands.agree:
            return "ST313", "the dense value of a result has its dtype", f"{look}.dtype", "{}.dtype"
        near = value.shape == expected.shape and self.close(got, value, expected.detach())
        return None if near else ("", what, look, "{}")

    def _same_context(self, call: Call, got: Any) -> bool:
        names, context, _ = self.snapshot[self.wrapped(call)[0]]
        now, context_now = got.__tensor_flatten__()
        return list(now) == names and probes.same_metadata(context_now, context, type(got))

    def has_gaps(self, call: Call, got: Any) -> bool:
        """Does a value depend on elements that mean nothing?"""
        if self.subject.valid is None or isinstance(got, self.subject.cls):
            return False
        masks = (self.meaningful(self.operands.shared[n]) for n in self.wrapped(call))
        return any(mask is not None and not bool(mask.all()) for mask in masks)

    def _rule_of_value(self, call: Call) -> str:
        """Which rule a wrong value breaks: that of two contexts, if it is right with one."""
        try:
            self.one_context(call, True)
        except Found:
            return call.rule
        return "ST316" if self.operands.same_context and {"x", "y"} <= call.names else call.rule

    def one_context(self, call: Call, writes: bool) -> None:
        """Two operands of the same context give the value of the dense program as well."""
        ops = self.operands
        if ops.same_context is None or not {"x", "y"} <= call.names or call.drawn:
            return
        kept = ops.lines["y"]
        given = {**self.given(call, True), "y": ops.made(ops.same_context)}
        dense = ops.project(given["y"]) if ops.judged else ops.dense["y"].clone()
        values = {**ops.copies(self.used(call)), "y": dense}
        try:
            with torch.no_grad():
                ran, dense_ran = self.run(call, given), self.run(call, values)
        except Exception:  # it takes those of different contexts only
            return
        ops.lines["y"] = ops.same_context
        try:
            self.compare(call, ran, dense_ran, writes or not call.expression, call.rule)
        finally:
            ops.lines["y"] = kept

    # ---- modes and masks
    def in_inference(self, call: Call, ran: Ran, dense: Ran, writes: bool) -> None:
        """In inference mode it gives the same."""
        if "backward" in call.text:
            return
        inside = call.text.startswith(
            "torch.ops"
        )  # tensors of the mode itself: what the class returns counts
        with torch.inference_mode(inside):
            given = self.given(call, writes)
        lines = [*self.setup(call), *self.body(call, "got", "torch.inference_mode()")]
        if inside:
            lines = [
                "\n    ".join(
                    ["with torch.inference_mode():", *self.setup(call), *self.body(call, "got")]
                )
            ]
        try:
            with torch.inference_mode():
                other = self.run(call, given)
        except Exception as error:
            self._not_in_inference(call, error, lines)
            return
        if call.drawn:
            return
        for n in self.wrapped(call):
            if writes and dense.out is dense.after[n] and other.out is not other.after[n]:
                what = "the result is the tensor that was written"
                raise Found("ST323", what, False, True, [*lines, *shown(f"got is {n}", "True")])
        again = [] if self.subject.random or not writes else sorted(given)
        for n in ["", *again] if call.expression else [""]:
            got, expected = (other.after[n], ran.after[n]) if n else (other.out, ran.out)
            if not self.alike(got, expected, self.subject.tolerance):
                first = [
                    *self.setup(call),
                    *self.body(call, "expected"),
                    *lines[len(self.setup(call)) :],
                ]
                look = n or self.projected("got", got), n or self.projected("expected", expected)
                what = "the same result as without inference mode"
                raise Found("ST305", what, got, expected, [*first, *shown(*look)])

    def _not_in_inference(self, call: Call, error: Exception, lines: list[str]) -> None:
        try:
            with torch.inference_mode():
                self.run(call, self.operands.copies(self.used(call)))
        except Exception:  # nor can the dense program
            return
        if OUTSIDE in str(error):
            self.limited[f"{call.text} in inference mode"] = refusal_of(error)
            return
        said = f"{type(error).__name__}: {error}"
        what = "what works without inference mode works in it"
        raise Found("ST305", what, said, "no exception", lines) from error

    def missing_elements(self, call: Call, ran: Ran) -> None:
        """Results do not depend on elements that mean nothing."""
        given, steps = self.given(call, True), []
        for n in self.wrapped(call):
            mask = self.meaningful(given[n])
            if mask is None or bool(mask.all()):
                continue
            assert self.subject.valid is not None
            inside = (
                "torch.where(mask, t, t + 7) if t.shape == mask.shape and "
                "t.is_floating_point() else t"
            )
            steps += [
                f"mask = {self.subject.valid.format(n)}",
                f"{n} = rebuild({n}, lambda t: {inside})",
            ]
            names = {**self.operands.base, "rebuild": probes.rebuild, n: given[n], "mask": mask}
            exec(steps[-1], names)
            given[n] = names[n]
        if not steps:
            return
        with torch.no_grad():
            other = self.run(call, given)
        for a, b in zip(flat(other.out), flat(ran.out), strict=False):
            mask = self.meaningful(b)
            a, b = (self.value(t) if torch.is_tensor(t) else t for t in (a, b))
            if mask is not None and torch.is_tensor(b) and mask.shape == b.shape:
                a, b = (torch.where(mask, t, torch.zeros_like(t)) for t in (a, b))
            if not probes.same(a, b, *self.subject.tolerance):
                lines = [
                    *self.setup(call),
                    *self.body(call, "expected"),
                    *steps,
                    *self.body(call, "got"),
                ]
                lines += [
                    'print("got:     ", got)',
                    'print("expected:", expected)',
                    f"assert False, {MEANINGLESS!r}",
                ]
                raise Found("ST333", MEANINGLESS, a, b, lines)


def state(x: Any) -> tuple[list[str], Any, list[torch.Tensor]]:
    """Names, context and numbers of a wrapper, to compare with later."""
    names, context = x.__tensor_flatten__()
    copy = probes.copied(context)
    told = probes.same_metadata(
        context, copy, type(x)
    )  # else ST106 says that it is not equal to its copy
    return list(names), copy if told else context, [t.detach().clone() for t in probes.leaves(x)]
