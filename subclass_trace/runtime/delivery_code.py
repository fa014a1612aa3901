"""Emitters for what a call leaves behind: new contents of inputs, version counters, assigned attributes.

`finish.deliver_all` does the same for every plan. Here is the usual one, straight down: data changed without autograd's
notice, in memory that nobody replaced. What the program has written itself needs no more than its version counter, and all
counters that move forwards move in one call.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .. import torch_api
from ..capture.aliasing import repeats
from ..plan import MutationPlan, Plan
from ..subclass.flatten import leaves_of
from ..subclass.spec import LeafSpec, leaf_count, spec_leaves
from .source import Source

Tensor = torch.Tensor


def is_plain(plan: Plan, values: Sequence[Tensor], *, inference: bool) -> bool:
    """Is all that the plan delivers of this kind? ``values``: the real inputs.

    Inference tensors have no version counter, so that theirs are left to `deliver_all`.
    """
    return all(not inference and _is_plain_mutation(m, plan, values[m.input]) for m in plan.mutations.rows)


def _is_plain_mutation(m: MutationPlan, plan: Plan, value: Tensor) -> bool:
    other = m.attributes or m.inner_bumps or m.metadata is not None
    if m.value is None or other or m.differentiable or m.starts_grad:
        return False
    leaves = leaves_of(value)
    return not any(t.is_inference() for t in (value, *leaves)) and not any(repeats(t) or t.is_neg() for t in leaves)


class Delivery:
    """Emits the mutations and assignments of a plan for which `is_plain` holds.

    ``inputs``, ``leaves``: local names, as the plan counts them.
    """

    def __init__(self, source: Source, plan: Plan, inputs: Sequence[str], leaves: Sequence[str]) -> None:
        self.source, self.plan, self.inputs, self.leaves = source, plan, inputs, leaves

    def conditions(self) -> list[str]:
        """What is still to be checked where no C++ guard does: none of what is written is an inference tensor."""
        written = [n for m in self.plan.mutations.rows for n in (self.inputs[m.input], *self._leaves(m))]
        return [f"not {name}.is_inference()" for name in dict.fromkeys(written)]

    def _leaves(self, m: MutationPlan) -> list[str]:
        return [self.leaves[k] for k in self.plan.inputs.rows[m.input].leaves]

    def write(self, values: Sequence[str], *, grad: bool) -> None:
        """Emit the mutations. ``grad``: gradients are on."""
        s, copies = self.source, [m for m in self.plan.mutations.rows if m.copied]
        guarded = grad and any(map(self._is_watched, copies))
        if guarded:
            s.bind("set_grad", torch_api.set_grad)
            s.line("set_grad(False)")
            s.line("try:")
            s.depth += 1
        rows = [(m, *pair) for m in copies for pair in self._pairs(m, values)]
        own = [(to, new) for m, to, new in rows if self._is_apart(m)]
        together = own if len(own) > 1 else []
        for _, to, new in rows:  # those first that may read what others overwrite
            if (to, new) not in together:
                s.line(f"{to}.copy_({new})")
        if together:
            s.bind("copy_all", torch_api.copy_all)
            s.line(f"copy_all([{', '.join(to for to, _ in together)}], [{', '.join(new for _, new in together)}])")
        if guarded:
            s.depth -= 1
            s.line("finally: set_grad(True)")
        self._move_versions()

    def _is_watched(self, m: MutationPlan) -> bool:
        """Would autograd notice the copy?"""
        spec = self.plan.inputs.rows[m.input].spec
        return m.value in self.plan.gradients.differentiable or any(leaf.requires_grad for leaf in spec_leaves(spec))

    def _is_apart(self, m: MutationPlan) -> bool:
        """Does the program make the new contents in memory of their own? One call may copy such in any order."""
        assert m.value is not None
        start = sum(map(leaf_count, self.plan.results.values[: m.value]))
        specs = [*spec_leaves(self.plan.results.values[m.value]), *spec_leaves(self.plan.inputs.rows[m.input].spec)]
        plain = all(leaf.layout is torch.strided and not leaf.dtype.is_complex for leaf in specs)
        return plain and self.plan.results.detach_values.isdisjoint(
            range(start, start + leaf_count(self.plan.results.values[m.value]))
        )

    def _pairs(self, m: MutationPlan, values: Sequence[str]) -> list[tuple[str, str]]:
        """Names of what is to be written, each with the name of its new contents."""
        s, leaves = self.source, self._leaves(m)
        assert m.value is not None
        fresh = [values[m.value]]
        if not isinstance(self.plan.inputs.rows[m.input].spec, LeafSpec):
            fresh = [s.name("n") for _ in leaves]
            s.line(f"{''.join(f'{n}, ' for n in fresh)}= {s.bind('leaves_of', leaves_of)}({values[m.value]})")
        return [(leaves[k], fresh[k]) for k in m.copied]

    def _move_versions(self) -> None:
        """By what eager moves them, less what the copies and the program have."""
        moves: list[tuple[str, int]] = []
        for m in self.plan.mutations.rows:
            dense = isinstance(self.plan.inputs.rows[m.input].spec, LeafSpec)
            moves.append((self.inputs[m.input], m.version_bumps - m.moved - (dense and len(m.copied))))
            if m.leaf_bumps is not None:
                rows = dict(m.leaf_bumps)
                for k in m.copied:
                    rows[k] = rows.get(k, 0) - 1
                leaves = self._leaves(m)
                moves += [(leaves[k], n) for k, n in rows.items()]
        s = self.source
        for name, moved in moves:  # one after the other: two of them may share a counter
            if moved < 0:
                s.bind("set_versions", torch_api.set_versions)
                s.line(f"set_versions(({name},), ({name}._version - {-moved},))")
        for n in range(max((moved for _, moved in moves), default=0)):
            s.bind("move_versions", torch_api.move_versions)
            s.line(f"move_versions([{', '.join(name for name, moved in moves if moved > n)}])")
