"""Judges one call: on wrappers, twice, in inference mode and with gradients, against the dense
program.

`Judge.judge` has the order of the checks; the first difference is raised as `Failure`, by the rule
that it breaks.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from . import probes
from .ambient import Operations
from .calls import section
from .evidence import Call, Failure, Ran, call_of, flat
from .gradients import Gradients
from .memory import WRITTEN, Memory, pointers
from .operands import SPREAD
from .refusals import Refusal, refusal_of

#: rules about calls whose result is the operand again: of the class, with its context
KEEPS = frozenset({"ST501", "ST502", "ST506", "ST507", "ST510", "ST511", "ST515"})
#: of these, with the same numbers in all inner tensors
EXACT = frozenset({"ST501", "ST506", "ST507", "ST510"})
VALUE = "the value of the dense program"
OF_EQUALS = section("of_equals")
KEYWORD = re.compile(r"(, *|(?<=\())\w+=[^,()]*")
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
            torch.default_generator.manual_seed(SPREAD)
        if call.expression:
            return Ran(eval(call.code, names), given)
        with torch.enable_grad() if "backward" in call.text else contextlib.nullcontext():
            exec(call.code, names)
        return Ran(names.get("out"), {n: names[n] for n in given})

    def dense(self, call: Call, inference: bool = False) -> Ran | None:
        """What the dense program gives, or None where there is no such program."""
        given, seen = self.operands.copies(self.used(call)), Operations()
        # also because torch counts writes of lists otherwise where Python is asked
        with contextlib.suppress(Exception), torch.inference_mode(inference), seen:
            out, after, _, _ = self.run(call, given)
            return Ran(out, after, seen.names, seen.pointwise)
        return None

    def given(self, call: Call, fresh: bool) -> dict[str, Any]:
        """The operands of a call: new ones where it writes."""
        used = self.used(call)
        return self.operands.fresh(used) if fresh else {n: self.operands.shared[n] for n in used}

    # ---- judging
    def judge(self, call: Call, dense: Ran, deep: bool) -> Ran:
        """What a right call gives.

        Raises:
            Failure: it is wrong.
            Refused: the class does not do it.
        """
        # (in inference mode torch runs dropout_ where it is given back in eager mode)
        writes = not call.expression or self._written(dense) or "inplace=True" in call.text
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
        try:
            self.compare(call, ran, dense, writes)
        except Failure:  # that of the mode, if gradients being off makes it
            again = None
            with contextlib.suppress(Exception), torch.enable_grad():
                again = self.run(call, self.given(call, True))
            if again is not None and not call.drawn:
                self.as_without(call, again.out, ran, [])
            raise
        if call.expression:
            self.writes(call, ran, dense, lies) if writes else self.aliases(call, ran, dense)
        if deep:
            self.one_context(call, writes)
            if self.subject.valid is not None and not writes and not call.drawn:
                self.of_equal_numbers(call)
                self.missing_elements(call, ran)
            self.in_inference(call, ran, dense, writes)
            grows = call.rule == "ST410"  # it writes to what it has made itself
            if grows or (call.expression and not writes and not call.drawn):
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
            if self.operands.unchanged(x, names, context):
                if all(map(probes.near, probes.leaves(x), values)):
                    continue
                rule, what, look = "ST331", "numbers", "[v.clone() for v in leaves({})]"
                got, expected = probes.leaves(x), values
            other = "other" if writes else n
            rule = "ST114" if writes else rule
            setup = [*[f"other = {self.operands.lines[n]}"] * writes, *self.setup(call)]
            steps = [f"before = copied({look.format(other)})", *self.body(call, "")]
            self.operands.shared |= self.operands.fresh(frozenset({n}))
            self.snapshot[n] = state(self.operands.shared[n])
            what = f"{'another instance' if writes else 'an operand'} keeps its {what}"
            looks = look.format(other), "before"
            raise self.found(call, rule, what, (got, expected), steps, looks, setup=setup)

    def twice(self, call: Call, ran: Ran, writes: bool) -> None:
        """The same call on the same operands gives the same."""
        steps = [*self.body(call, "expected"), *self.body(call, "got")]
        try:
            with torch.no_grad():
                again = self.run(call, self.given(call, writes))
        except Exception as error:
            what, said = "the same call works twice", (error, "no exception")
            raise self.found(call, "ST311", what, said, steps) from error
        if not writes:
            self.apart(call, ran.out, again.out)
        if not self.alike(ran.out, again.out):
            both = self.projected("got", again.out), self.projected("expected", ran.out)
            what, sides = "the same call twice gives the same", (again.out, ran.out)
            raise self.found(call, "ST311", what, sides, steps, both)

    def alike(self, a: Any, b: Any, tolerance: tuple[float, float] = (0.0, 0.0)) -> bool:
        """Are two results the same: types, metadata, and numbers up to the tolerance?

        What is inside may differ where numbers are compared: the dense value counts.
        """
        xs, ys = flat(a), flat(b)
        if len(xs) != len(ys) or list(map(type, xs)) != list(map(type, ys)):
            return False
        if all(probes.same(x, y, *tolerance) for x, y in zip(xs, ys, strict=True)):
            return True
        if not (any(tolerance) and self.operands.judged):
            return False
        pairs = zip(map(self.value, xs), map(self.value, ys), strict=True)
        return all(probes.same(x, y, *tolerance) for x, y in pairs)

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
        if what == VALUE and self._within_leeway(call, name, step, got, expected):
            return
        also = sorted(self.used(call) - self.operands.wrappers) if writes else ()
        names = (name, f"d{name}") if name else ("got", "expected")
        steps = self.against_dense(call, "" if name else "got", also)
        looks = look.format(names[0] + step), dense_look.format(names[1] + step)
        tolerance = self.tolerance if not kind else None
        values: list[Any] = []
        for source, value in ((look, got), (dense_look, expected)):
            try:
                known = {**self.operands.base, **self.operands.shared, "leaves": probes.leaves}
                values.append(eval(source.format("_v"), {**known, "_v": value}))
            except Exception as error:
                values.append(f"{type(error).__name__}: {error}")
        rule = kind or rule or self._rule_of_value(call)
        sides = values[0], values[1]
        raise self.found(call, rule, what, sides, steps, looks, tolerance=tolerance)

    def _difference(self, call: Call, got: Any, expected: Any) -> tuple[str, str, str, str] | None:
        """The rule ("" where the call says it), what should hold, and what to look at on both
        sides."""
        if isinstance(expected, (list, tuple)):
            short = not isinstance(got, (list, tuple)) or len(got) != len(expected)
            return ("ST313", "as many tensors", "len({})", "len({})") if short else None
        if not isinstance(expected, torch.Tensor):
            judged = self.operands.judged and not call.drawn
            same = probes.same(got, expected, *self.tolerance)
            return ("", VALUE, "{}", "{}") if judged and not same else None
        kind = call.rule if call.rule in ("ST503", "ST514") else "ST313"
        free = "nonzero" in call.text and not self.operands.judged
        for look, of, what in OUTSIDES:
            if of(got) != of(expected) and not (free and "shape" in look):
                told = "is" in look or "requires_grad" in look
                kind = call.rule if told and call.rule in KEEPS else kind
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
            if kept := self._kept(call, got):
                return call.rule, *kept
        if call.drawn or not self.operands.judged:
            return None
        look = self.subject.dense or "{}" if wrapped else "{}"
        try:
            value = self.value(got)
        except Exception:
            return "", "its result has a dense value", look, "{}"
        if wrapped and value.dtype != got.dtype and self.operands.agree:
            return "ST313", "the dense value of a result has its dtype", f"{look}.dtype", "{}.dtype"
        near = value.shape == expected.shape and self.close(got, value, expected.detach())
        return None if near else ("", VALUE, look, "{}")

    def _within_leeway(self, call: Call, name: str, step: str, got: Any, expected: Any) -> bool:
        """Is a difference what the dense program itself makes of operands that are rounded
        otherwise, or of other numbers where nothing is meant?
        """
        value, right = (torch.as_tensor(v).detach() for v in (self.value(got), expected))
        if value.shape != right.shape:
            return False
        slack = torch.zeros(right.shape, dtype=torch.float64)
        with Operations() as seen:
            self.run(call, self.operands.copies(self.used(call)))
        for number in range(3 if self.subject.valid is None else 5):
            given = self.operands.copies(self.used(call))
            for n in given:
                given[n] = self._disturbed(n, given[n], number, seen.eps)
            try:
                ran = self.run(call, given)
                other = eval(f"_v{step}", {"_v": ran.after[name] if name else ran.out})
                moved = _apart(torch.as_tensor(other).detach(), right)
            except Exception:  # the dense program cannot do that, or gives other sizes
                return number > 2
            slack = torch.maximum(slack, moved if number < 3 else moved / 0)
        near = _apart(value, right) <= 4 * slack.nan_to_num(0.0, torch.inf)
        return self.close(got, torch.where(near, right, value), right)

    def _disturbed(self, n: str, t: torch.Tensor, number: int, eps: float) -> torch.Tensor:
        """An operand in units of its last place, at first, and a dense one as the class rounds;
        then where it means nothing."""
        if number < 3:
            if not (t.is_floating_point() or t.is_complex()):
                return t
            coarse = self.subject.tolerance[0] > 1e-3 and n not in self.operands.wrappers
            eps = max(eps, self.subject.tolerance[0] / 8 if coarse else 0.0)
            generator = torch.Generator().manual_seed(ord(n) + 256 * number)  # each for itself
            signs = torch.randint(-2, 3, t.shape, generator=generator)
            return t * (1 + signs * max(eps, torch.finfo(t.dtype).eps)).to(t.dtype)
        mask = self.meaningful(self.operands.shared[n])
        # no constant: a softmax forgets it; nor the same for two: a difference does
        far = torch.arange(7, 7 + t.numel()).reshape(t.shape) * (1 + ord(n) % 5)
        return t if mask is None else torch.where(mask, t, t + far if number == 3 else t - far)

    def _kept(self, call: Call, got: Any) -> tuple[str, str, str] | None:
        """What a result that is the operand again has lost: what should hold, and both sides.

        Another context with other tensors inside may be another form of the same value.
        """
        used = self.wrapped(call)
        if len(used) != 1 or ".t()" in call.text or "[1:]" in call.text:
            return None
        inside, values = probes.leaves(got), self.snapshot[used[0]][2]
        same = len(inside) == len(values) and all(map(probes.near, inside, values))
        there = any(v.numel() for v in inside)  # of no numbers all are the same
        look, context = "{}.__tensor_flatten__()", self._same_context(call, got)
        if not context and ((same and there) or not self.operands.judged):
            return "it keeps names and context", look, look.format(used[0])
        if context and not same and call.rule in EXACT:
            return "it keeps all numbers inside", "leaves({})", f"leaves({used[0]})"
        return None

    def _same_context(self, call: Call, got: Any) -> bool:
        names, context, _ = self.snapshot[self.wrapped(call)[0]]
        return bool(self.operands.unchanged(got, names, context))

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
            plain = call_of(KEYWORD.sub("", call.text), "ST310")
            if call.rule == "ST314" and plain.text != call.text and (dense := self.dense(plain)):
                with torch.no_grad():
                    ran = self.run(plain, self.given(plain, True))
                self.compare(plain, ran, dense, False, "ST310")
        except Failure as found:  # without keywords, or with one context, as well
            return found.rule
        except Exception:  # it refuses that
            return call.rule
        return "ST316" if self.operands.same_context and {"x", "y"} <= call.names else call.rule

    def one_context(self, call: Call, writes: bool) -> None:
        """Two operands of the same context give the value of the dense program as well."""
        ops = self.operands
        if ops.same_context is None or not {"x", "y"} <= call.names or call.drawn:
            return
        with contextlib.ExitStack() as exits:
            try:
                exits.enter_context(ops.instead("y", ops.same_context))
                with torch.no_grad():
                    ran = self.run(call, self.given(call, True))
                    dense = self.run(call, ops.copies(self.used(call)))
            except Exception:  # it takes those of different contexts only
                return
            self.compare(call, ran, dense, writes or not call.expression, call.rule)

    # ---- modes and masks
    def in_inference(self, call: Call, ran: Ran, dense: Ran, writes: bool) -> None:
        """In inference mode it gives the same."""
        if "backward" in call.text:
            return
        mode, setup = "torch.inference_mode()", self.setup(call)
        steps = self.body(call, "got", mode)
        inside = call.text.startswith("torch.ops")  # what the class returns counts: of the mode
        if inside:
            whole = [*setup, *self.body(call, "got")]
            setup, steps = [], ["\n    ".join([f"with {mode}:", *whole])]
        with torch.inference_mode(inside):
            given = self.given(call, writes)
        try:
            with torch.inference_mode():
                other = self.run(call, given)
        except Exception as error:
            if self.dense(call, inference=True) is None:  # nor can the dense program
                return
            if OUTSIDE in str(error):
                self.limited[f"{call.text} in inference mode"] = refusal_of(error)
                return
            what = "what works without inference mode works in it"
            said = f"{type(error).__name__}: {error}", "no exception"
            raise self.found(call, "ST305", what, said, steps, setup=setup) from error
        if call.drawn:
            return
        for n in self.wrapped(call):
            if writes and dense.out is dense.after[n] and other.out is not other.after[n]:
                look = f"got is {n}", "True"
                raise self.found(call, "ST323", WRITTEN, (False, True), steps, look, setup=setup)
        again = [] if self.subject.random or not writes else sorted(given)
        for n in ["", *again] if call.expression else [""]:
            got, expected = (other.after[n], ran.after[n]) if n else (other.out, ran.out)
            if not self.alike(got, expected, self.tolerance):
                look = n or self.projected("got", got), n or self.projected("expected", expected)
                what = "the same result as without inference mode"
                steps = [*self.body(call, "expected"), *setup * inside, *steps]
                raise self.found(call, "ST305", what, (got, expected), steps, look)

    def of_equal_numbers(self, call: Call) -> None:
        """The mean and the largest of equal numbers are that number, whatever is missing."""
        for number in (2.0, -2.0) if call.text in OF_EQUALS and self.operands.shape else ():
            t, gap = self.script(), f"torch.full({self.operands.shape}, {number})"
            try:
                t.do(f"x = {self.subject.make.format(*[gap] * self.subject.arity)}")
                t.do(*self.body(call, "got"))
                mask, out = self.meaningful(t.names["x"]), t.names["got"]
                value = self.value(out)
            except Exception:  # it is made of other numbers, or refuses that
                continue
            if mask is None or not all(bool(mask.any(d).all()) for d in range(mask.dim())):
                continue
            right = torch.full(value.shape, number, dtype=value.dtype)
            if not self.close(out, value, right):
                look = self.projected("got", out), f"torch.full(got.shape, {number})"
                what = "of equal numbers it is that number, whatever is missing"
                raise self.of_lines(call, "ST333", what, (value, right), t.lines, look)

    def missing_elements(self, call: Call, ran: Ran) -> None:
        """Results do not depend on elements that mean nothing."""
        t = self.script(call)
        t.lines += self.body(call, "expected")
        start = len(t.lines)
        inside = "torch.where(mask, t, t + 1000) if t.shape == mask.shape and t.is_floating_point()"
        for n in self.wrapped(call):
            mask = self.meaningful(t.names[n])
            if mask is not None and not bool(mask.all()):
                t.do(f"mask = {str(self.subject.valid).format(n)}")
                t.do(f"{n} = rebuild({n}, lambda t: {inside} else t)")
        if len(t.lines) == start:
            return
        try:
            with torch.no_grad():
                t.do(*self.body(call, "got"))
        except Exception:  # what is rebuilt may have other strides
            return
        for a, b in zip(flat(t.names["got"]), flat(ran.out), strict=False):
            mask = self.meaningful(b)
            a, b = (self.value(v) if torch.is_tensor(v) else v for v in (a, b))
            if mask is not None and torch.is_tensor(b) and mask.shape == b.shape:
                a, b = (torch.where(mask, v, torch.zeros_like(v)) for v in (a, b))
            if not probes.same(a, b, *self.subject.tolerance):
                t.lines += ["print(got, expected)", f"assert False, {MEANINGLESS!r}"]
                raise self.of_lines(call, "ST333", MEANINGLESS, (a, b), t.lines)


def _apart(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    wide = torch.complex128 if a.is_complex() else torch.float64
    return (a.to(wide) - b.to(wide)).abs()


def state(x: Any) -> tuple[list[str], Any, list[torch.Tensor]]:
    """Names, context and numbers of a wrapper, to compare with later."""
    names, context = x.__tensor_flatten__()
    return list(names), probes.copied(context), [t.detach().clone() for t in probes.leaves(x)]
