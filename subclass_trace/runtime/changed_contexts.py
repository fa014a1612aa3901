"""A backward has the contexts of its forward: one that is asked for after a change of them is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .. import torch_api
from ..errors import UnsupportedError
from ..plan import Plan
from ..subclass.context import Kept, KeptPlain, has_sizes, is_buffer, is_copied, parts_of, same_context
from ..subclass.kept import difference
from ..subclass.paths import Path
from ..subclass.spec import Spec, WrapperSpec
from ..subclass.visit import inner_values


def changeable(plan: Plan) -> tuple[int, ...]:
    """The inputs of a region that trains whose contexts hold what can be changed in place."""
    return tuple(k for k, row in enumerate(plan.inputs) if _has(row.spec)) if plan.trains else ()


def watch_contexts(
    plan: Plan, numbers: Sequence[int], inputs: Sequence[torch.Tensor], values: Sequence[torch.Tensor] | torch.Tensor
) -> None:
    """Let the backward of these values look whether contexts of inputs with these numbers are as they are now.

    The inputs themselves are not held: one that the region writes leads to the backward.
    """
    rows = [row for k in numbers for row in _contexts(inputs[k], plan.inputs[k].spec, plan.inputs[k].path)]

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

    every = [values] if isinstance(values, torch.Tensor) else [values[k] for k in plan.differentiable]
    for node in {t.grad_fn: None for t in every if t.grad_fn is not None}:
        node.register_prehook(check)


def _contexts(value: Any, spec: Spec, path: Path) -> Iterator[tuple[Path, Any, Any]]:
    if isinstance(spec, WrapperSpec):
        names, inners, context = inner_values(value, path)
        if _may_change(spec):
            yield path, spec.context, context
        for name, inner, own in zip(names, inners, spec.inners, strict=True):
            yield from _contexts(inner, own, path.attr(name))


def _has(spec: Spec) -> bool:
    return isinstance(spec, WrapperSpec) and (_may_change(spec) or any(map(_has, spec.inners)))


def _may_change(spec: WrapperSpec) -> bool:
    if torch_api.context_shortcut(spec.cls) is not None or has_sizes(spec.context) or spec.has_dynamic_size:
        return False
    todo = [spec.context]
    while todo:
        value = todo.pop()
        if isinstance(value, KeptPlain):
            value = value.value
        if isinstance(value, Kept) or is_copied(value) or is_buffer(value):
            return True
        todo += [part for _, part in parts_of(value)]
    return False
