"""What instances know beside their tensors: it is their own, it comes back, and it counts."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import torch

from . import probes
from .evidence import call_of

EQUAL = "same_metadata(context, other, type(a))"
EQUALS = "torch.equal(a, c)", "False"


class Contexts:
    """The part of `sweep.Sweep` that compares contexts."""

    def contexts(self: Any) -> None:
        """Instances do not share what they know, and contexts that mean something else are not
        equal."""
        ops, x = self.operands, self.operands.shared["x"]
        for other in (ops.lines["y"], *(v.line for v in ops.variants)):
            ops.made(other)
            context = x.__tensor_flatten__()[1]
            if not ops.unchanged(x, *ops.first):
                look = "x.__tensor_flatten__()[1]"
                lines = [f"x = {ops.lines['x']}", f"before = copied({look})", f"y = {other}"]
                what = "making another instance leaves the first one alone"
                self._of_contexts("ST114", what, (context, ops.first[1]), lines, (look, "before"))
                ops.made(ops.lines["x"])
                return
        plain = ops.same_context or ops.lines["y"]
        others = [(plain, v.line, ops.made(plain), v.value) for v in (*ops.variants, *ops.unlike)]
        for pair in [*others, (ops.lines["x"], ops.lines["y"], x, ops.shared["y"])]:
            self.told_apart(*pair)
        for line, z in [(pair[1], pair[3]) for pair in others] + [(ops.lines["x"], x)]:
            self.rebuilt(line, z)

    def _of_contexts(
        self: Any, rule: str, what: str, sides: Any, lines: list[str], look: tuple[str, str]
    ) -> None:
        none = call_of("None", rule)
        found = self.judge.found(none, rule, what, sides, lines, look, setup=())
        self.note(replace(found, call=""))

    def rebuilt(self: Any, line: str, x: Any) -> None:
        """An instance whose context is not the usual one comes back from flatten and unflatten."""
        try:
            twin = probes.rebuild(x)
            for look, of in (
                ("meta({})", probes.meta),
                ("kept_arguments({})", probes.kept_arguments),
                (self.subject.dense or "", self.judge.value),
            ):
                if look and not probes.same(of(twin), of(x)):
                    looks = look.format("rebuild(x)"), look.format("x")
                    what = "a rebuilt one has the numbers, sizes and value of the first"
                    sides = twin.__dict__, x.__dict__
                    self._of_contexts("ST101", what, sides, [f"x = {line}"], looks)
                    return
        except Exception:  # that is ST101 as it is
            return

    def no_sizes(self: Any) -> None:
        """The dense value of an instance does not have its sizes."""
        line, x = self.operands.lines["x"], self.operands.shared["x"]
        look = f"{self.subject.dense}.shape".format("x"), "x.shape"
        try:
            sides = self.operands.project(x).shape, x.shape
        except Exception:  # it is made of nothing by chance
            return
        self._of_contexts("ST310", "its dense value has its sizes", sides, [f"x = {line}"], look)

    def told_apart(self: Any, line: str, other_line: str, a: Any, b: Any) -> None:
        """Contexts of two instances that give the same inner tensors another value."""
        context, other = a.__tensor_flatten__()[1], b.__tensor_flatten__()[1]
        kept, value = probes.kept_arguments, self.judge.value
        try:
            equal = probes.same_metadata(context, other, type(a))
            exchanged = type(a).__tensor_unflatten__(probes.inners(a), other, a.size(), a.stride())
            differ = self.operands.judged and not probes.near(value(exchanged), value(a))
            lost = kept(probes.rebuild(b)) != kept(b)  # that is ST101
            lost = lost or (differ and not probes.near(value(probes.rebuild(a)), value(a)))
        except Exception:  # other rules ask for this
            return
        self.result.passed["ST112"] += 1
        lines = [f"a = {line}", f"b = {other_line}"]
        lines.append("context, other = a.__tensor_flatten__()[1], b.__tensor_flatten__()[1]")
        lines.append("c = type(a).__tensor_unflatten__(inners(a), other, a.size(), a.stride())")
        with contextlib.suppress(Exception):  # torch.equal may be refused
            near = probes.near(value(exchanged), value(a), *self.subject.tolerance)
            if differ and not near and torch.equal(a, exchanged):
                what = "numbers that another context makes others are not equal"
                self._of_contexts("ST316", what, (True, False), lines, EQUALS)
        if lost or not equal or not (differ or kept(a) != kept(exchanged)):
            return
        look = "kept_arguments({})" if kept(a) != kept(exchanged) else self.subject.dense or "{}"
        lines.append(f'print({look.format("a")}, "is not", {look.format("c")})')
        what, looks = "contexts that mean something else are not equal", (EQUAL, "False")
        self._of_contexts("ST112", what, (True, False), lines, looks)
