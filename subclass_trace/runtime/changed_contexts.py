"""A backward has the contexts of its forward: one that is asked for after a change of them is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .. import torch_api
from ..errors import UnsupportedError
from ..plan import Plan
from ..subclass.context import Kept, has_sizes, is_buffer, is_copied, parts_of, same_context
from ..subclass.flatten import flatten
from ..subclass.kept import difference
from ..subclass.spec import Spec, WrapperSpec


def changeable(plan: Plan) -> tuple[int, ...]:
    """The inputs of a region that trains whose contexts hold what can be changed in place."""
    rows = enumerate(plan.inputs.rows if plan.trains else ())
    return tuple(k for k, row in rows if any(map(_may_change, _contexts(row.spec))))


def watch_contexts(
    plan: Plan, numbers: Sequence[int], inputs: Sequence[torch.Tensor], values: Sequence[torch.Tensor] | torch.Tensor
) -> None:
    """Let the backward of these values look whether contexts of inputs with these numbers are as they are now.

    The inputs themselves are not held: one that the region writes leads to the backward.
    """
    rows = []
    for k in numbers:
        known = plan.inputs.rows[k]
        contexts = zip(_contexts(known.spec), _contexts(flatten(inputs[k])[1]), strict=True)
        rows += [(known.path, a, b) for a, b in contexts if _may_change(a)]

    def check(_: Any) -> None:
        for path, known, context in rows:
            if not same_context(known, context):
                raise UnsupportedError(
                    "a flatten context was changed between forward and backward",
                    path=path,
                    expected="contexts that stay as they are until the backward is done",
                    got=difference(known, context),
                    fix="change it after the backward, or give the wrapper a new one",
                )

    every = [values] if isinstance(values, torch.Tensor) else [values[k] for k in plan.gradients.differentiable]
    for node in {t.grad_fn: None for t in every if t.grad_fn is not None}:
        node.register_prehook(check)


def _contexts(spec: Spec) -> Iterator[Any]:
    if isinstance(spec, WrapperSpec):
        sized = spec.has_dynamic_size or has_sizes(spec.context)
        yield None if sized or torch_api.context_shortcut(spec.cls) is not None else spec.context
        for inner in spec.inners:
            yield from _contexts(inner)


def _may_change(context: Any) -> bool:
    """Does what a guard keeps stand for something that can be changed in place?"""
    if isinstance(context, Kept) or is_copied(context) or is_buffer(context):
        return True
    return any(_may_change(part) for _, part in parts_of(context))
