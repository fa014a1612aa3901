"""Judges the gradients of one call, in each argument."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from . import probes
from .calls import section
from .evidence import Call, Evidence, Failure, Ran, call_of, flat, item
from .refusals import refusal_of
from .script import Script

#: calls of two operands, of which a model may train the dense one alone
PRODUCTS, CORE = frozenset(section("layers")), frozenset(section("core"))


class History(NamedTuple):
    """A call on operands that require grad; of each pair the second is the dense program's.

    Attributes:
        call: the call.
        script: the lines that made it.
        wanted: names of the operands that require grad.
        ends: these operands, as source.
        heads: the results that require grad, as source.
        outs: these results of the class.
    """

    call: Call
    script: Script
    wanted: list[str]
    ends: list[str]
    heads: list[str]
    outs: list[Any]


class Gradients(Evidence):
    """The part of `judging.Judge` that needs autograd."""

    limited: dict[str, Any]

    def script(self: Any, call: Call | None = None) -> Script:
        """Lines to be run, after those that make the operands of a call."""
        t = Script(self.subject, self.operands)
        if call:
            t.names |= self.given(call, True)
            t.lines += self.setup(call)
        return t

    def of_lines(
        self,
        call: Call,
        rule: str,
        what: str,
        sides: tuple[Any, Any],
        lines: list[str],
        look: tuple[str, str] | None = None,
    ) -> Failure:
        """What lines that have run show."""
        near = self.tolerance
        return self.found(call, rule, what, sides, lines, look, setup=(), tolerance=near)

    def with_grad(self: Any, call: Call, ran: Ran, dense: Ran) -> None:
        """With gradients it gives the same, and the gradients are those of the dense program."""
        wanted = sorted(n for n in self.used(call) if _differentiable(self.operands.shared[n]))
        if (
            not any(map(_differentiable, flat(dense.out)))
            or not wanted
            or "requires_grad_" in call.text
        ):
            return
        ends = [[self._end(n, k) for n in wanted] for k in (0, 1)]
        t, copies = self.script(call), self.operands.copies(self.used(call))
        t.names |= {f"d{n}": copies[n] for n in self.wrapped(call)}
        t.lines += self.dense_lines(call)
        try:
            t.do(f"for t in ({', '.join(dict.fromkeys(ends[0] + ends[1]))},): t.requires_grad_()")
            t.do(*self.on_dense(call, "dense_z"), *self.body(call, "z"))
        except Exception as error:
            self.limited[f"{call.text} with gradients"] = refusal_of(error)
            return
        got, expected = t.names["z"], t.names["dense_z"]
        before = [f"{n}.requires_grad_()" for n in wanted]
        steps = [*before, *self.body(call, "got")]
        self.as_without(call, got, ran, before)
        self.passed["ST306"] += 1
        if call.text in CORE:
            self._without_history(call, wanted)
        pairs = [
            (k, a, b)
            for k, (a, b) in enumerate(zip(flat(got), flat(expected), strict=False))
            if torch.is_tensor(b) and b.requires_grad
        ]
        for k, a, _ in pairs:
            if not a.requires_grad:
                look = f"{item('got', got, k)}.requires_grad", "True"
                what = "it requires grad, as the dense result does"
                raise self.found(call, "ST401", what, (False, True), steps, look)
        self.passed["ST401"] += len(pairs)
        if not (pairs and self.operands.judged) or (
            # what is missing counts in the dense program alone, and in its gradients
            self.subject.valid is not None
            and not all(self.close(a, self.value(a), b.detach()) for _, a, b in pairs)
        ):
            return
        heads = [", ".join(item(z, got, k) for k, *_ in pairs) for z in ("z", "dense_z")]
        outs = [a for _, a, _ in pairs]
        h = History(call, t, wanted, [", ".join(side) for side in ends], heads, outs)
        for plain in (False, True):
            self._backward(h, plain)
        dense_ones = [n for n in wanted if n not in self.operands.wrappers]
        for n in dense_ones if len(wanted) > 1 and call.text in PRODUCTS else ():
            self._one(call, [n], "", item("z", got, pairs[0][0]))  # the other is an input
        if own_formulas(outs):
            heads = [item("z", got, k) for k, *_ in pairs]
            for n in wanted:
                self._one(call, [n], "", heads[0])
                self._one(call, wanted, f"{n}.detach().mul_(3)", heads[0])
            for head in heads[1:] and heads:
                self._one(call, wanted, "", head)
            self._second(h)

    def _without_history(self: Any, call: Call, wanted: list[str]) -> None:
        """Under ``no_grad`` nothing is differentiated, whatever the operands require."""
        outs = []
        for names in (self.given(call, True), self.operands.copies(self.used(call))):
            names |= {n: names[n].detach().requires_grad_() for n in wanted}
            try:
                with torch.no_grad():
                    outs.append(flat(self.run(call, names).out))
            except Exception:  # as with gradients
                return
        for k, (t, right) in enumerate(zip(*outs, strict=False)):
            # (torch asks a view for what its base requires)
            told = torch.is_tensor(t) and torch.is_tensor(right) and not t._is_view()
            if told and t.requires_grad and not right.requires_grad:
                steps = [f"{n}.requires_grad_()" for n in wanted]
                steps += self.body(call, "got", "torch.no_grad()")
                look = f"{item('got', outs[0], k)}.requires_grad", "False"
                what = "it does not require grad under no_grad"
                raise self.found(call, "ST306", what, (True, False), steps, look)

    def as_without(self: Any, call: Call, got: Any, ran: Ran, before: list[str]) -> None:
        """With gradients it gives what it gives without.

        Raises:
            Failure: it does not.
        """
        if not self.alike(_detached(got), _detached(ran.out), self.tolerance):
            steps = [*self.body(call, "expected", "torch.no_grad()"), *before]
            look = self.projected("got", got), self.projected("expected", ran.out)
            what, steps = "the same result as under no_grad", [*steps, *self.body(call, "got")]
            raise self.found(call, "ST306", what, (got, ran.out), steps, look)

    def projection(self: Any) -> None:
        """The gradient goes through the projection to dense as it is, where it is differentiable.

        Raises:
            Failure: it does not.
        """
        call = call_of("x", "ST402")
        t = self.script(call)
        try:
            t.do("x.requires_grad_()", f"v = {self.subject.dense.format('x')}")
            t.do("g, = torch.autograd.grad(v, x, v.detach().clone())")
            g, right = t.names["g"], t.names["v"].detach()
            near = self._near(g, right, ())
        except Exception:  # it is detached, or the gradient is refused
            return
        self.passed["ST402"] += 1
        if not near:
            what, look = "the gradient of the projection is that of the dense value", "v.detach()"
            looks, sides = (self.projected("g", g), look), (self.value(g), right)
            raise self.of_lines(call, "ST402", what, sides, t.lines, looks)

    def _one(self: Any, call: Call, wanted: list[str], write: str, head: str) -> None:
        """The gradient of one argument where no other gets one, or through one of several results;
        those of all after a write to one, as without it, or an error."""
        sides: list[Any] = []
        ends, rule = ", ".join(wanted), "ST407" if write else "ST403"
        lines = [f"{n}.requires_grad_()" for n in wanted]
        grad = f"torch.autograd.grad({head}.sum(), [{ends}], allow_unused=True)"
        for names in (self.given(call, True), self.operands.copies(self.used(call))):
            try:
                names |= {n: names[n].detach() for n in wanted}
                exec("\n".join(lines), names)
                names["z"] = self.run(call, names).out
                exec(write if not sides else "", names)
                sides.append(eval(grad, {**names, "torch": torch}))
            except Exception as error:  # it may be refused, and a write noticed
                self.passed[rule] += "modified by an inplace operation" in str(error)
                if not (sides or write) and refusal_of(error).blunder:
                    what, steps = "the gradient of a part of it", [*lines, *self.body(call, "z")]
                    said = f"{type(error).__name__}: {error}", "no exception"
                    raise self.found(call, rule, what, said, [*steps, grad]) from error
                return
        self.passed[rule] += 1
        for n, g, right in zip(wanted, *sides, strict=True):
            if not self._near(g, right, (), 1e-4):
                what = "a write to what is saved is noticed" if write else f"{n} has its gradient"
                steps = [*lines, *self.body(call, "z"), *[write] * (write != "")]
                steps += [f"print({grad})", f"assert False, {what!r}"]
                raise self.found(call, rule, what, (g, right), steps)

    def _backward(self: Any, h: History, plain: bool) -> None:
        """One backward, with tangents of the class of the results, or dense ones of other
        numbers."""
        if plain and not any(isinstance(t, self.subject.cls) for t in h.outs):
            return
        t, start = h.script, len(h.script.lines)
        given = f"[t.detach(){' * 2' if plain else '.clone()'} for t in ({h.heads[plain]},)]"
        dense = [self.projected(f"v[{k}]", out) for k, out in enumerate(h.outs)]
        grad, more = "{} = torch.autograd.grad([{}], [{}], {}, True, allow_unused=True)", ""
        try:
            t.do(f"v = {given}")
            more = "v" if plain else f"[{', '.join(dense)}]"
            with self.seen:
                t.do(grad.format("dense_g", h.heads[1], h.ends[1], more))
        except Exception:  # a result that cannot be projected; an operation without a derivative
            del t.lines[start:]
            return
        try:
            t.do(grad.format("g", h.heads[0], h.ends[0], "v"))
        except Exception as error:
            if not plain:
                self.limited[f"{h.call.text} with a backward"] = refusal_of(error)
            del t.lines[start:]
            return
        if any(v._version for v in t.names["v"]) or not self._as_given(h, given):
            rule = "ST410" if h.call.rule == "ST410" else "ST331"
            sides, look = ("written", "as it was"), ("v", given)
            raise self.of_lines(h.call, rule, GIVEN, sides, t.lines, look)
        for k, n in enumerate(h.wanted):
            self._gradient(h, k, n, plain)
        del t.lines[start:]

    def _as_given(self: Any, h: History, given: str) -> bool:
        """Are the tangents as they were, also where no version tells of a write?"""
        return h.call.rule != "ST410" or self.alike(h.script.names["v"], h.script.value(given))

    def _second(self: Any, h: History) -> None:
        """The gradients of the gradients are not lost, and are those of the dense program."""
        t = h.script
        try:
            with self.seen:
                t.do(f"dense_g = second_gradients([{h.heads[1]}], [{h.ends[1]}])")
            t.do(f"g = second_gradients([{h.heads[0]}], [{h.ends[0]}])")
            values = [None if g is None else self.value(g) for g in t.names["g"]]
        except Exception:  # a second derivative may be refused
            return
        self.passed["ST405"] += 1
        rounds = self.subject.tolerance[0] > 1e-3  # (a second derivative multiplies that)
        for k, (n, value) in enumerate(zip(h.wanted, values, strict=True)):
            g, right = t.names["g"][k], t.names["dense_g"][k]
            gaps = not torch.is_tensor(right) or (g is not None and self.has_gaps(h.call, g))
            if gaps or not right.numel() or float(right.abs().max()) < 1e-3:
                continue
            lost = value is None or not bool(value.count_nonzero())
            if lost or not (rounds or self._near(g, right, h.outs, 1e-4)):
                look = self.projected(f"g[{k}]", g), f"dense_g[{k}]"
                what = f"the second derivative for {n} is that of the dense program"
                raise self.of_lines(h.call, "ST405", what, (value, right), t.lines, look)

    def _gradient(self: Any, h: History, k: int, n: str, plain: bool) -> None:
        """The gradient for one operand."""
        g, right = h.script.names["g"][k], h.script.names["dense_g"][k]
        wrapper = n in self.operands.wrappers
        if (g is None and right is None) or (not wrapper and self.has_gaps(h.call, g)):
            return
        rule = "ST406" if plain else "ST402" if n == "x" else "ST403"
        what, sides = f"the gradient for {n} is that of the dense program", (g, right)
        look, near = (self.projected(f"g[{k}]", g), f"dense_g[{k}]"), False
        both = g is not None and right is not None
        if both and wrapper and not isinstance(g, self.subject.cls) and type(g) is not torch.Tensor:
            rule, what = "ST404", "a gradient is of the class, or dense"
            look, sides = (f"type(g[{k}])", f"type({n})"), (type(g), self.subject.cls)
        else:
            try:
                sides = None if g is None else self.value(g), right
                near = self._near(g, right, h.outs)
            except Exception as error:
                sides = f"{type(error).__name__}: {error}", right
        self.passed.update([rule, "ST404"])
        if not near:
            raise self.of_lines(h.call, rule, what, sides, h.script.lines, look)

    def _near(self: Any, g: Any, right: Any, outs: Any, slack: float = 0.0) -> bool:
        """Is a gradient that of the dense program? None is zero."""
        if g is None or right is None:
            there = [t for t in (g, right) if t is not None]
            return not any(bool(probes.leaves(t)[0].count_nonzero()) for t in there)
        size = right.dtype.itemsize
        floats = [t.dtype for t in outs if t.is_floating_point()]
        short = [d for d in floats if d.itemsize == 2 or d.itemsize < size]
        slack = max((4 * torch.finfo(d).eps for d in short), default=slack)  # tangents are rounded
        value = self.value(g)
        if g.dtype != right.dtype or value.shape != right.shape:
            return False
        if torch.equal(value, right):
            return True
        scale = max(1.0, largest(right))
        return bool(self.close(g, value, right, slack, slack * scale, scale))

    def _end(self, n: str, dense: int) -> str:
        """The name of an operand, or of the dense one."""
        return f"d{n}" if dense and n in self.operands.wrappers else n

    # ---- values
    def close(
        self,
        wrapper: Any,
        got: torch.Tensor,
        expected: torch.Tensor,
        rtol: float = 0.0,
        atol: float = 0.0,
        scale: float = 1.0,
    ) -> bool:
        """Are the values near, where they mean something?

        Args:
            rtol, atol: at least so much is allowed.
            scale: the size of the numbers, for classes that round.
        """
        if got.dtype == expected.dtype and got.dtype.itemsize > 1 and torch.equal(got, expected):
            return True
        own, floating = self.tolerance, expected.is_floating_point()
        if isinstance(wrapper, self.subject.cls) and floating:  # it rounds to a part of the largest
            scale = max(scale, largest(expected) / 4)
        rtol, atol = max(rtol, own[0]), max(atol, own[1] * (scale if own[1] > 1e-4 else 1.0))
        short = self.operands.shared["x"].dtype
        if short.is_floating_point and short.itemsize == 2 and floating:
            slack = 8 * torch.finfo(short).eps
            rtol, atol = max(rtol, slack), max(atol, slack * largest(expected))
        mask = self.meaningful(wrapper)
        if self.operands.infinite:  # what is no number hangs on the order
            finite = expected.isfinite()
            mask = mask & finite if mask is not None and mask.shape == finite.shape else finite
        if mask is not None and mask.shape == got.shape:
            got, expected = (torch.where(mask, t, torch.zeros_like(t)) for t in (got, expected))
        return probes.near(got.detach(), expected.to(got.dtype), rtol, atol)

    def meaningful(self, x: Any) -> torch.Tensor | None:
        """Which elements of a wrapper mean something, if the author has said so."""
        if self.subject.valid is None or not isinstance(x, self.subject.cls):
            return None
        mask: torch.Tensor = eval(self.subject.valid.format("_x"), {**self.operands.base, "_x": x})
        return mask

    def value(self, x: Any) -> torch.Tensor:
        """The dense value of a result."""
        return self.operands.project(x) if isinstance(x, self.subject.cls) else x


GIVEN = "a backward leaves the gradient that it is given alone"


def largest(x: torch.Tensor) -> float:
    """The largest of the finite numbers; 0 where there is none."""
    finite = x[x.isfinite()].abs()
    return float(finite.max()) if finite.numel() else 0.0


def own_formulas(outs: Any) -> bool:
    """Is there an ``autograd.Function`` of somebody in the history of these results?"""
    nodes, seen = [t.grad_fn for t in outs], set[Any]()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return True
        seen.add(node)
        nodes += [before for before, _ in node.next_functions]
    return False


def _differentiable(x: Any) -> bool:
    return torch.is_tensor(x) and (x.is_floating_point() or x.is_complex())


def _detached(out: Any) -> Any:
    """The same without history."""
    if isinstance(out, (list, tuple)):
        return [_detached(v) for v in out]
    return out.detach() if torch.is_tensor(out) else out
