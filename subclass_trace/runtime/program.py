"""What generated code calls with: the state of one call, and a plan with its compiled graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import torch_api
from ..errors import UnsupportedError
from ..plan import Plan
from ..subclass.context import has_sizes, may_change
from ..subclass.flatten import flatten
from ..subclass.spec import Spec, WrapperSpec, same_contexts
from .backward import Backwards

Tensor = torch.Tensor
Boxed = Callable[[list[Any]], Sequence[Any]]


@dataclass(eq=False)
class Call:
    """The state of one call: inputs, their dense leaves, values of symbols; the forward fills in sizes."""

    inputs: list[torch.Tensor]
    leaves: list[torch.Tensor]
    env: dict[Any, Any]
    sizes: Sequence[Any] = ()


@dataclass(frozen=True, eq=False)
class Program:
    """A plan with its compiled graphs."""

    plan: Plan
    forward: Boxed
    backwards: Backwards | None


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
