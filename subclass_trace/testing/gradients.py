"""Judges the gradients of one call, in each argument."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from . import probes
from .evidence import Call, Evidence, Ran, flat, item
from .refusals import refusal_of


class History(NamedTuple):
    """A call on operands that require grad; of each pair the second is the dense program's.

    Attributes:
        call: the call.
        wanted: names of the operands that require grad.
        ends: these operands.
        outs: the results that require grad.
        sources: how each result is written.
    """

    call: Call
    wanted: list[str]
    ends: tuple[list[Any], list[Any]]
    outs: tuple[list[Any], list[Any]]
    sources: list[tuple[str, str]]


class Gradients(Evidence):
    """The part of `judging.Judge` that needs autograd."""

    limited: dict[str, Any]

    def with_grad(self: Any, call: Call, ran: Ran, dense: Ran) -> None:
        """With gradients it gives the same, and the gradients are those of the dense program."""
        wanted = sorted(n for n in self.used(call) if self.operands.shared[n].is_floating_point())
        floating = any(torch.is_tensor(t) and t.is_floating_point() for t in flat(dense.out))
        if not floating or not wanted or "requires_grad_" in call.text:
            return
        given, values = self.given(call, True), self.operands.copies(self.used(call))
        try:
            given |= {n: given[n].detach().requires_grad_() for n in wanted}
            values |= {n: values[n].requires_grad_() for n in wanted}
            expected, other = self.run(call, values).out, self.run(call, given).out
        except Exception as error:
            self.limited[f"{call.text} with gradients"] = refusal_of(error)
            return
        steps = [*(f"{n}.requires_grad_()" for n in wanted), *self.body(call, "got")]
        if not self.alike(_detached(other), _detached(ran.out), self.subject.tolerance):
            first = self.body(call, "expected", "torch.no_grad()")
            look = self.projected("got", other), self.projected("expected", ran.out)
            what = "the same result as under no_grad"
            raise self.found(call, "ST306", what, (other, ran.out), [*first, *steps], look)
        self.passed["ST306"] += 1
        outs, dense_outs = flat(other), flat(expected)
        kept = [k for k, t in enumerate(dense_outs) if torch.is_tensor(t) and t.requires_grad]
        for k in kept:
            if not outs[k].requires_grad:
                look = f"{item('got', other, k)}.requires_grad", "True"
                what = "it requires grad, as the dense result does"
                raise self.found(call, "ST401", what, (False, True), steps, look)
        self.passed["ST401"] += len(kept)
        if not (kept and self.operands.judged):
            return
        pairs = [outs[k] for k in kept], [dense_outs[k] for k in kept]
        if self.subject.valid is not None and not all(
            self.close(a, self.value(a), b.detach()) for a, b in zip(*pairs, strict=True)
        ):  # what is missing counts in the dense program alone, and in its gradients
            return
        sources = [(item("z", other, k), item("dense_z", other, k)) for k in kept]
        ends = [given[n] for n in wanted], [values[n] for n in wanted]
        history = History(call, wanted, ends, pairs, sources)
        for plain in (False, True):
            self._backward(history, plain)
        if own_formulas(pairs[0]):
            for n in wanted:
                self._alone(call, n, "")
                self._alone(call, n, f"{n}.detach().mul_(3)")
            self._second(history)

    def _alone(self: Any, call: Call, n: str, write: str) -> None:
        """The gradient of one argument where no other gets one, and after a write to it: as on
        dense tensors, or an error."""
        sides: list[Any] = []
        for names in (self.given(call, True), self.operands.copies(self.used(call))):
            names[n] = names[n].detach().requires_grad_()
            try:
                out = next(t for t in flat(self.run(call, names).out) if torch.is_tensor(t))
                exec(write, {n: names[n]})
                sides += torch.autograd.grad(out.sum(), names[n], allow_unused=True)
            except Exception as error:
                sides.append(error)
        g, right = sides
        noticed = "modified by an inplace operation" in str(right)
        rule = "ST407" if write else "ST403"
        self.passed[rule] += 1
        if isinstance(g, Exception) or (isinstance(right, Exception) and not noticed):
            return
        if noticed or not self._near(g, right, (), 1e-4):
            what = "a write to what is saved is noticed" if write else f"{n} alone has its gradient"
            steps = [f"{n}.requires_grad_()", *self.body(call, "z"), *[write] * (write != "")]
            steps += [f"print(torch.autograd.grad(z.sum(), {n}))", f"assert False, {what!r}"]
            raise self.found(call, rule, what, (g, right), steps)

    def _backward(self: Any, h: History, plain: bool) -> None:
        """One backward, with tangents of the class of the results, or dense ones."""
        outs, dense_outs = h.outs
        if plain and not any(isinstance(t, self.subject.cls) for t in outs):
            return
        try:
            tangents = [t.detach().clone() for t in (dense_outs if plain else outs)]
            if plain:  # other numbers
                tangents = [t * 2 for t in tangents]
            versions = [t._version for t in tangents]
            dense = tangents if plain else [self.value(t) for t in tangents]
            with self.seen:
                rights = torch.autograd.grad(dense_outs, h.ends[1], dense, True, allow_unused=True)
        except Exception:  # a result that cannot be projected; an operation without a derivative
            return
        try:
            grads = torch.autograd.grad(outs, h.ends[0], tangents, True, allow_unused=True)
        except Exception as error:
            if not plain:
                self.limited[f"{h.call.text} with a backward"] = refusal_of(error)
            return
        if versions != [t._version for t in tangents]:
            one = h.sources[0][0]
            steps = [*self._with_history(h), f"t = {one}.detach().clone()"]
            steps.append(f"torch.autograd.grad([{one}], [{h.wanted[0]}], [t], allow_unused=True)")
            what, sides = "a backward leaves the gradient that it is given alone", (1, 0)
            raise self.found(h.call, "ST331", what, sides, steps, ("t._version", "0"))
        for n, g, right in zip(h.wanted, grads, rights, strict=True):
            self._gradient(h, n, g, right, plain)

    def _second(self: Any, h: History) -> None:
        """The gradients of the gradients are not lost, and are those of the dense program."""
        try:
            with self.seen:
                rights = probes.second_gradients(h.outs[1], h.ends[1])
            grads = probes.second_gradients(h.outs[0], h.ends[0])
            values = [None if g is None else self.value(g) for g in grads]
        except Exception:  # a second derivative may be refused
            return
        self.passed["ST405"] += 1
        rounds = self.subject.tolerance[0] > 1e-3  # (a second derivative multiplies that)
        for n, g, value, right in zip(h.wanted, grads, values, rights, strict=True):
            gaps = not torch.is_tensor(right) or (g is not None and self.has_gaps(h.call, g))
            if gaps or not right.numel() or float(right.abs().max()) < 1e-3:
                continue
            lost = value is None or not bool(value.count_nonzero())
            if lost or not (rounds or self._near(g, right, h.outs[0], 1e-4)):
                steps = self._with_history(h)
                for k, name in enumerate(("got", "expected")):
                    outs = ", ".join(pair[k] for pair in h.sources)
                    into = ", ".join(self._end(w, k) for w in h.wanted)
                    at = h.wanted.index(n)
                    steps.append(f"{name} = second_gradients([{outs}], [{into}])[{at}]")
                what, sides = (
                    f"the second derivative for {n} is the dense program's",
                    (value, right),
                )
                look, near = (self.projected("got", g), "expected"), self.subject.tolerance
                raise self.found(h.call, "ST405", what, sides, steps, look, tolerance=near)

    def _gradient(self: Any, h: History, n: str, g: Any, right: Any, plain: bool) -> None:
        """The gradient for one operand."""
        wrapper = n in self.operands.wrappers
        if (g is None and right is None) or (not wrapper and self.has_gaps(h.call, g)):
            return
        rule = "ST406" if plain else "ST402" if n == "x" else "ST403"
        what, look, value, near = f"the gradient for {n} is that of the dense program", "g", g, True
        if g is None or right is None:
            near = self._near(g, right, h.outs[0])
        elif wrapper and not isinstance(g, self.subject.cls) and type(g) is not torch.Tensor:
            rule, what, near = "ST404", "a gradient is of the class, or dense", False
            look, value, right = "type(g)", type(g), self.subject.cls
        else:
            look = self.projected("g", g)
            try:
                value, near = self.value(g), self._near(g, right, h.outs[0])
            except Exception as error:
                value, near = f"{type(error).__name__}: {error}", False
        self.passed.update([rule, "ST404"])
        if near:
            return
        steps = self._with_history(h)
        tangents = [f"{b}.detach() * 2" if plain else f"{a}.detach()" for a, b in h.sources]
        projected = zip(tangents, h.outs[0], strict=True)
        dense = tangents if plain else [self.projected(t, o) for t, o in projected]
        for k, (name, given) in enumerate((("g", tangents), ("dense_g", dense))):
            heads = ", ".join(pair[k] for pair in h.sources)
            steps.append(
                f"({name},) = torch.autograd.grad([{heads}], [{self._end(n, k)}], "
                f"[{', '.join(given)}], True, allow_unused=True)"
            )
        looks = look, "dense_g" if rule != "ST404" else f"type({n})"
        raise self.found(
            h.call, rule, what, (value, right), steps, looks, tolerance=self.subject.tolerance
        )

    def _near(self: Any, g: Any, right: Any, outs: Any, slack: float = 0.0) -> bool:
        """Is a gradient that of the dense program? None is zero."""
        if g is None or right is None:
            there = [t for t in (g, right) if t is not None]
            return not any(bool(probes.leaves(t)[0].count_nonzero()) for t in there)
        short = [t.dtype for t in outs if t.is_floating_point() and t.dtype.itemsize == 2]
        slack = max((4 * torch.finfo(d).eps for d in short), default=slack)  # tangents are rounded
        value, scale = self.value(g), max(1.0, largest(right))
        same = g.dtype == right.dtype and value.shape == right.shape
        return bool(same and self.close(g, value, right, slack, slack * scale, scale))

    def _with_history(self, h: History) -> list[str]:
        """Lines that make the call on both sides, on operands that require grad."""
        lines = self.against_dense(h.call, "z")
        at = len(lines) - len(self.body(h.call, "")) * 2
        ends = dict.fromkeys(self._end(w, k) for k in (0, 1) for w in h.wanted)
        lines.insert(at, f"for t in ({', '.join(ends)},): t.requires_grad_()")
        return lines

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
        own, floating = self.subject.tolerance, expected.is_floating_point()
        if isinstance(wrapper, self.subject.cls) and floating:  # it rounds to a part of the largest
            scale = max(scale, largest(expected) / 4)
        rtol, atol = max(rtol, own[0]), max(atol, own[1] * (scale if own[1] > 1e-4 else 1.0))
        short = self.operands.shared["x"].dtype
        if short.is_floating_point and short.itemsize == 2 and floating:
            slack = 8 * torch.finfo(short).eps
            rtol, atol = max(rtol, slack), max(atol, slack * largest(expected))
        mask = self.meaningful(wrapper)
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


def _detached(out: Any) -> Any:
    """The same without history."""
    if isinstance(out, (list, tuple)):
        return [_detached(v) for v in out]
    return out.detach() if torch.is_tensor(out) else out
