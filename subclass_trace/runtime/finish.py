"""What generated code calls for what is rare: mutations of every kind, values in other memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import torch_api
from ..capture.aliasing import byte_range
from ..errors import UnsupportedError
from ..plan import (
    BasePrimal,
    MutationPlan,
    Plan,
)
from ..subclass.context import has_sizes, may_change
from ..subclass.flatten import flatten, leaves_of
from ..subclass.protocol import REAL
from ..subclass.spec import Spec, WrapperSpec, same_contexts
from .backward import Backwards
from .function import Protected
from .rebuild import share
from .writeback import deliver, set_version

Tensor = torch.Tensor
Boxed = Callable[[list[Any]], Sequence[Any]]


@dataclass(eq=False)
class Call:
    """The state of one call: inputs, their dense leaves, values of symbols; the forward fills in sizes."""

    inputs: list[Tensor]
    leaves: list[Tensor]
    env: dict[Any, Any]
    sizes: Sequence[Any] = ()


@dataclass(frozen=True, eq=False)
class Program:
    """A plan with its compiled graphs."""

    plan: Plan
    forward: Boxed
    backwards: Backwards | None


def base_value(primal: BasePrimal, leaves: Sequence[Tensor], numel: int) -> Tensor:
    """A flat view over the memory that the members share; no copy. Its storage starts where it does: a graph makes the
    members of it by their places."""
    width = primal.dtype.itemsize
    start = min(byte_range(leaves[k]).start for k in primal.members)
    leaf = leaves[primal.members[0]]
    storage = leaf.untyped_storage()
    with torch.no_grad():
        flat = torch.empty(0, dtype=primal.dtype, device=leaf.device)
        return flat.set_(storage[start : start + numel * width] if start else storage, 0, (numel,), (1,))


def deliver_all(plan: Plan, call: Call, values: Sequence[Tensor]) -> None:
    """Deliver the mutations."""
    old = {m.input: leaves_of(call.inputs[m.input]) for m in plan.mutations.rows if not _is_done(m, call)}
    for m in plan.mutations.rows:
        new, x = None if m.value is None else values[m.value], call.inputs[m.input]
        # From where it stands now: an input may share its counter with one that was delivered before (x, x.detach()).
        version = None if x.is_inference() else x._version
        if m.input in old:
            deliver(m, plan.inputs.rows[m.input], x, new, old[m.input], call.env)
        if version is not None:
            set_version(x, version + m.version_bumps - m.moved)


def _is_done(m: MutationPlan, call: Call) -> bool:
    """Has the program written all there is, so that only the version is left? Of dense inputs alone."""
    x = call.inputs[m.input]
    if not m.in_program or m.copied or m.metadata is not None or m.attributes:
        return False
    plain = not m.differentiable and type(x) in REAL
    return plain and (torch.is_inference_mode_enabled() or not x.is_inference())


def share_values(plan: Plan, call: Call, values: list[Tensor], within: bool) -> None:
    """Put what lies in other memory there: values with a history inside the autograd function, others outside of it."""
    for row in plan.results.aliases:
        if row.within is within:
            values[row.value] = share(row, values[row.value], values, call.leaves, call.env)


def watched_contexts(plan: Plan) -> tuple[int, ...]:
    """The inputs of a region that trains whose contexts hold what can be changed in place."""

    def look(spec: Spec) -> bool:
        if not isinstance(spec, WrapperSpec):
            return False
        told = spec.has_dynamic_size or has_sizes(spec.context) or torch_api.context_shortcut(spec.cls) is not None
        return (not told and may_change(spec.context)) or any(map(look, spec.inners))

    return tuple(k for k, row in enumerate(plan.inputs.rows if plan.trains else ()) if look(row.spec))


def watch_contexts(plan: Plan, numbers: Sequence[int], inputs: Sequence[Tensor], values: Any) -> None:
    """A backward has the contexts of its forward: one of these values that is asked for after a change of them is refused.

    The inputs themselves are not held: one that the region writes leads to the backward.
    """
    rows = [(plan.inputs.rows[k], flatten(inputs[k])[1]) for k in numbers]

    def check(_: Any) -> None:
        for row, now in rows:
            if not same_contexts(row.spec, now):
                raise UnsupportedError(
                    "a flatten context was changed between forward and backward",
                    path=row.path,
                    expected="contexts that stay as they are until the backward is done",
                    fix="change it after the backward, or give the wrapper a new one",
                )

    every = [values] if isinstance(values, Tensor) else [t for t in values if isinstance(t, Tensor)]
    for node in {t.grad_fn: None for t in every if t.grad_fn is not None}:
        node.register_prehook(check)


def protected(value: Tensor) -> Tensor:
    """The value, which nobody may write to under autograd."""
    return torch_api.apply_function(Protected, value) if value.requires_grad else value
