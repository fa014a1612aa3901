"""Judges the gradients of one call, in each argument."""

from __future__ import annotations

from typing import Any

import torch

from . import probes
from .evidence import Call, Evidence, Found, Ran, flat, item, shown
from .refusals import refusal_of


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
        steps = [f"{n}.requires_grad_()" for n in wanted]
        if not self.alike(_detached(other), _detached(ran.out), self.subject.tolerance):
            first = self.body(call, "expected", "torch.no_grad()")
            lines = [*self.setup(call), *first, *steps, *self.body(call, "got")]
            lines += shown(self.projected("got", other), self.projected("expected", ran.out))
            raise Found("ST306", "the same result as under no_grad", other, ran.out, lines)
        self.passed["ST306"] += 1
        outs, dense_outs = flat(other), flat(expected)
        kept = [k for k, t in enumerate(dense_outs) if torch.is_tensor(t) and t.requires_grad]
        for k in kept:
            if not outs[k].requires_grad:
                look = f"{item('got', other, k)}.requires_grad"
                lines = [*self.setup(call), *steps, *self.body(call, "got"), *shown(look, "True")]
                raise Found(
                    "ST401", "it requires grad, as the dense result does", False, True, lines
                )
        self.passed["ST401"] += len(kept)
        if kept and self.operands.judged:
            pairs = [outs[k] for k in kept], [dense_outs[k] for k in kept]
            sources = [(item("z", other, k), item("dense_z", other, k)) for k in kept]
            ends = [given[n] for n in wanted], [values[n] for n in wanted]
            for plain in (False, True):
                self._backward(call, wanted, ends, pairs, sources, plain)
            for n in wanted if own_formulas(pairs[0]) else ():
                self._alone(call, n, "")
                self._alone(call, n, f"{n}.detach().mul_(3)")
            self._second(call, wanted, ends, pairs, sources)

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
        self.passed["ST407" if write else "ST403"] += 1
        if isinstance(g, Exception) or (isinstance(right, Exception) and not noticed):
            return
        if noticed or not self._near(g, right, (), 1e-4):
            what = "a write to what is saved is noticed" if write else f"{n} alone has its gradient"
            lines = [*self.setup(call), f"{n}.requires_grad_()", *self.body(call, "z")]
            lines += [write] * (write != "") + [f"got = torch.autograd.grad(z.sum(), {n})"]
            lines += ['print("got:     ", got)', f"assert False, {what!r}"]
            raise Found("ST407" if write else "ST403", what, g, right, lines)

    def _backward(
        self: Any, call: Call, wanted: list[str], ends: Any, pairs: Any, sources: Any, plain: bool
    ) -> None:
        """One backward, with tangents of the class of the results, or dense ones."""
        outs, dense_outs = pairs
        if plain and not any(isinstance(t, self.subject.cls) for t in outs):
            return
        try:
            tangents = [t.detach().clone() for t in (dense_outs if plain else outs)]
            if plain:  # other numbers
                tangents = [t * 2 for t in tangents]
            versions = [t._version for t in tangents]
            dense = tangents if plain else [self.value(t) for t in tangents]
            with self.seen:
                expected = torch.autograd.grad(dense_outs, ends[1], dense, True, allow_unused=True)
        except Exception:  # a result that cannot be projected; an operation without a derivative
            return
        try:
            grads = torch.autograd.grad(outs, ends[0], tangents, True, allow_unused=True)
        except Exception as error:
            if not plain:
                self.limited[f"{call.text} with a backward"] = refusal_of(error)
            return
        if versions != [t._version for t in tangents]:
            lines = [*self._with_history(call, wanted), f"t = {sources[0][0]}.detach().clone()"]
            lines.append(
                f"torch.autograd.grad([{sources[0][0]}], [{wanted[0]}], [t], allow_unused=True)"
            )
            what = "a backward leaves the gradient that it is given alone"
            raise Found("ST331", what, "written", "as it was", [*lines, *shown("t._version", "0")])
        for n, g, dense_g in zip(wanted, grads, expected, strict=True):
            self._gradient(call, n, g, dense_g, wanted, sources, outs, plain)

    def _second(
        self: Any, call: Call, wanted: list[str], ends: Any, pairs: Any, sources: Any
    ) -> None:
        """The gradients of the gradients are not lost, and are those of the dense program."""
        try:
            with self.seen:
                expected = probes.second_gradients(pairs[1], ends[1])
            grads = probes.second_gradients(pairs[0], ends[0])
            values = [None if g is None else self.value(g) for g in grads]
        except Exception:  # a second derivative may be refused
            return
        self.passed["ST405"] += 1
        rounds = self.subject.tolerance[0] > 1e-3  # (a second derivative multiplies that)
        for n, g, value, right in zip(wanted, grads, values, expected, strict=True):
            gaps = not torch.is_tensor(right) or (g is not None and self.has_gaps(call, g))
            if gaps or not right.numel() or float(right.abs().max()) < 1e-3:
                continue
            lost = value is None or not bool(value.count_nonzero())
            if lost or not (rounds or self._near(g, right, pairs[0], 1e-4)):
                lines = self._with_history(call, wanted)
                for name, k, at in (("got", 0, ""), ("expected", 1, "d")):
                    outs = ", ".join(pair[k] for pair in sources)
                    into = ", ".join(at * (w in self.operands.wrappers) + w for w in wanted)
                    lines.append(
                        f"{name} = second_gradients([{outs}], [{into}])[{wanted.index(n)}]"
                    )
                look = self.projected("got", g) if g is not None else "got"
                lines += shown(look, "expected", self.subject.tolerance)
                raise Found(
                    "ST405",
                    f"the second derivative for {n} is that of the dense program",
                    value,
                    right,
                    lines,
                )

    def _gradient(
        self: Any,
        call: Call,
        n: str,
        g: Any,
        dense_g: Any,
        wanted: Any,
        sources: Any,
        outs: Any,
        plain: bool,
    ) -> None:
        wrapper = n in self.operands.wrappers
        if (g is None and dense_g is None) or (not wrapper and self.has_gaps(call, g)):
            return
        rule = "ST406" if plain else "ST402" if n == "x" else "ST403"
        what, look, value, near = (
            f"the gradient for {n} is that of the dense program",
            "g",
            g,
            False,
        )
        if g is None or dense_g is None:
            near = self._near(g, dense_g, outs)
        elif wrapper and not isinstance(g, self.subject.cls) and type(g) is not torch.Tensor:
            rule, what, value, dense_g = (
                "ST404",
                "a gradient is of the class, or dense",
                type(g),
                self.subject.cls,
            )
            look = "type(g)"
        else:
            look = self.projected("g", g)
            try:
                value, near = self.value(g), self._near(g, dense_g, outs)
            except Exception as error:
                value = f"{type(error).__name__}: {error}"
        self.passed.update([rule, "ST404"])
        if not near:
            lines = self._grad_lines(call, n, wanted, sources, outs, plain)
            right = "dense_g" if rule != "ST404" else f"type({n})"
            raise Found(
                rule, what, value, dense_g, [*lines, *shown(look, right, self.subject.tolerance)]
            )

    def _grad_lines(
        self: Any, call: Call, n: str, wanted: list[str], sources: Any, outs: Any, plain: bool
    ) -> list[str]:
        """Lines that compute one gradient on both sides."""
        lines: list[str] = self._with_history(call, wanted)
        tangents = [f"{b}.detach() * 2" if plain else f"{a}.detach()" for a, b in sources]
        dense = [t if plain else self.projected(t, o) for t, o in zip(tangents, outs, strict=True)]
        end = f"d{n}" if n in self.operands.wrappers else n
        for name, out, source, given in (("g", 0, n, tangents), ("dense_g", 1, end, dense)):
            heads = ", ".join(pair[out] for pair in sources)
            lines.append(
                f"({name},) = torch.autograd.grad([{heads}], [{source}], [{', '.join(given)}], "
                "True, allow_unused=True)"
            )
        return lines

    def _near(self: Any, g: Any, right: Any, outs: Any, slack: float = 0.0) -> bool:
        """Is a gradient that of the dense program? None is zero."""
        if g is None or right is None:
            there = [t for t in (g, right) if t is not None]
            return not any(bool(probes.leaves(t)[0].count_nonzero()) for t in there)
        value, slack = self.value(g), max(slack, self._slack(outs))
        finite = right[right.isfinite()].abs()
        scale = max(1.0, float(finite.max())) if finite.numel() else 1.0
        same = g.dtype == right.dtype and value.shape == right.shape
        return bool(same and self.close(g, value, right, slack, slack * scale, scale))

    def _with_history(self, call: Call, wanted: list[str]) -> list[str]:
        """Lines that make the call on both sides, on operands that require grad."""
        lines = [*self.setup(call), *self.against_dense(call, "z")]
        at = len(lines) - len(self.body(call, "")) * 2
        names = [*wanted, *(f"d{w}" for w in wanted if w in self.operands.wrappers)]
        lines.insert(at, f"for t in ({', '.join(names)},): t.requires_grad_()")
        return lines

    def _slack(self, outs: Any) -> float:
        """The rounding of tangents in a short dtype."""
        dtypes = [t.dtype for t in outs if t.is_floating_point() and t.dtype.itemsize == 2]
        return max((4 * torch.finfo(d).eps for d in dtypes), default=0.0)

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
        own = self.subject.tolerance
        if (
            isinstance(wrapper, self.subject.cls) and expected.is_floating_point()
        ):  # it rounds to a part of the largest
            finite = expected[expected.isfinite()].abs()
            scale = max(scale, float(finite.max()) / 4 if finite.numel() else 1.0)
        rtol, atol = max(rtol, own[0]), max(atol, own[1] * (scale if own[1] > 1e-4 else 1.0))
        short = self.operands.shared["x"].dtype
        if short.is_floating_point and short.itemsize == 2 and expected.is_floating_point():
            finite = expected[expected.isfinite()]
            slack = 8 * torch.finfo(short).eps
            rtol, atol = (
                max(rtol, slack),
                max(atol, slack * float(finite.abs().max()) if finite.numel() else 0.0),
            )
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
