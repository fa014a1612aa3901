"""Emitters for what a call writes to its inputs: new contents, histories, version counters.

Nothing here issues an operation on a wrapper: data goes leaf by leaf. What the program has written
itself needs nothing but the version counter of a wrapper, which an operation on its inner tensors
does not move.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..plan import MutationPlan, Plan
from ..subclass import flatten
from ..subclass.flatten import leaves_of, map_leaves
from ..subclass.spec import LeafSpec, WrapperSpec, leaf_spans, spec_leaves
from ..torch_api.autograd import apply_function, move_versions
from ..torch_api.autograd import set_versions as torch_set_versions
from ..torch_api.operators import copy_all
from .emit import gradients_off, tuple_code
from .source import Code

Tensor = torch.Tensor


class WriteBack(torch.autograd.Function):
    """``x`` gets the contents and the history of ``new``, leaf by leaf; for views autograd relates
    it to the base."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, new: Tensor, places: tuple[int, ...]) -> Tensor:
        """Copy the leaves; autograd moves the version counter."""
        leaves, fresh = leaves_of(x), leaves_of(new)
        for k in places:
            leaves[k].copy_(fresh[k])
        ctx.is_view = x._is_view()
        ctx.mark_dirty(x)
        # zeros would run the backward of what no gradient comes from
        ctx.set_materialize_grads(False)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        """The gradient belongs to the new contents. The base of a view gets zeros where it was
        written: for no gradient at all, autograd (``CopySlices``) would drop that of the rest of
        the base as well."""
        return (
            map_leaves(torch.zeros_like, grad) if ctx.is_view and grad is not None else None,
            grad,
            None,
        )


def write_back(x: Tensor, new: Tensor, places: tuple[int, ...]) -> None:
    """Let ``x`` have the contents and the history of ``new``; gradients may be off around the
    region."""
    with torch.enable_grad():
        apply_function(WriteBack, x, new, places)


def wrappers_inside(x: Tensor) -> list[Tensor]:
    """The wrappers inside of a wrapper, of which some inner tensor may have been written."""
    return [t for _, t in flatten.wrappers_inside(x) if not t.is_inference()]


class Delivery:
    """Emits the mutations of a plan.

    ``inputs``, ``leaves``: local names, as the plan counts them.
    """

    def __init__(
        self, source: Code, plan: Plan, inputs: Sequence[str], leaves: Sequence[str]
    ) -> None:
        self.source, self.plan, self.inputs, self.leaves = source, plan, inputs, leaves

    def _leaves(self, m: MutationPlan) -> list[str]:
        return [self.leaves[k] for k in self.plan.inputs.rows[m.input].leaves]

    def keep_versions(self) -> None:
        """Emit noting the version counters that what is written does not move as eager does."""
        for m in self.plan.mutations.rows:
            if self._is_set(m):
                self.source.line(f"version{m.input} = {self.inputs[m.input]}._version")

    def write(self, values: Sequence[str], *, grad: bool, inference: bool) -> None:
        """Emit the mutations. ``grad``: gradients are on; ``inference``: inference mode is."""
        s, mutations = self.source, self.plan.mutations
        if not mutations.in_program:
            self._copy([m for m in mutations.rows if not m.differentiable], values, grad)
            for m in [m for m in mutations.rows if m.differentiable]:
                known = f"{self.inputs[m.input]}, {values[m.value]}, {m.leaves!r}"
                s.line(f"{s.bind('write_back', write_back)}({known})")
        moved = [
            self.inputs[m.input]
            for m in mutations.rows
            if not (self._is_dense(m) or m.differentiable or m.moved == 0)
        ]
        for m in mutations.rows:
            inners = getattr(self.plan.inputs.rows[m.input].spec, "inners", ())
            if any(isinstance(inner, WrapperSpec) for inner in inners):
                moved.append(
                    f"*{s.bind('wrappers_inside', wrappers_inside)}({self.inputs[m.input]})"
                )
        if moved:
            known = f"[{', '.join(moved)}]"
            known = f"[t for t in {known} if not t.is_inference()]" if inference else known
            s.line(f"{s.bind('move_versions', move_versions)}({known})")
        if rows := [m for m in mutations.rows if self._is_set(m)]:
            counted = tuple_code([f"version{m.input} + {m.moved}" for m in rows])
            tensors, set_versions = (
                tuple_code([self.inputs[m.input] for m in rows]),
                torch_set_versions,
            )
            s.line(f"{s.bind('set_versions', set_versions)}(({tensors}), ({counted}))")

    def _is_set(self, m: MutationPlan) -> bool:
        """Does the counter move otherwise by itself: by 1 for a copy, by each write of a
        program?"""
        if m.moved is None or m.differentiable:
            return m.moved is not None
        if not self._is_dense(m):
            return m.moved > 1
        return m.moved != (m.writes if self.plan.mutations.in_program else 1)

    def _copy(self, copies: Sequence[MutationPlan], values: Sequence[str], grad: bool) -> None:
        s = self.source
        with gradients_off(s, grad and any(map(self._is_watched, copies))):
            rows = [(m, *pair) for m in copies for pair in self._pairs(m, values)]
            own = [(to, new) for m, to, new in rows if self._is_apart(m)]
            together = own if len(own) > 1 else []
            for _, to, new in rows:  # those first that may read what others overwrite
                if (to, new) not in together:
                    s.line(f"{to}.copy_({new})")
            if together:
                s.bind("copy_all", copy_all)
                s.line(
                    f"copy_all([{', '.join(to for to, _ in together)}], "
                    f"[{', '.join(new for _, new in together)}])"
                )

    def _is_dense(self, m: MutationPlan) -> bool:
        return isinstance(self.plan.inputs.rows[m.input].spec, LeafSpec)

    def _is_watched(self, m: MutationPlan) -> bool:
        """Would autograd notice the copy?"""
        spec = self.plan.inputs.rows[m.input].spec
        return m.value in self.plan.gradients.differentiable or any(
            leaf.requires_grad for leaf in spec_leaves(spec)
        )

    def _is_apart(self, m: MutationPlan) -> bool:
        """Does the program make the new contents in memory of their own? One call may copy such in
        any order."""
        span = leaf_spans(self.plan.results.values)[m.value]
        specs = [
            *spec_leaves(self.plan.results.values[m.value]),
            *spec_leaves(self.plan.inputs.rows[m.input].spec),
        ]
        plain = not any(leaf.dtype.is_complex for leaf in specs)
        return plain and self.plan.results.detach_values.isdisjoint(range(span.start, span.stop))

    def _pairs(self, m: MutationPlan, values: Sequence[str]) -> list[tuple[str, str]]:
        """Names of what is to be written, each with the name of its new contents."""
        s, leaves, fresh = self.source, self._leaves(m), [values[m.value]]
        if not self._is_dense(m):
            fresh = [s.name("n") for _ in leaves]
            s.line(
                f"{''.join(f'{n}, ' for n in fresh)}= "
                f"{s.bind('leaves_of', leaves_of)}({values[m.value]})"
            )
        return [(leaves[k], fresh[k]) for k in m.leaves]
