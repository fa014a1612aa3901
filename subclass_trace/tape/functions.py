"""Python autograd.Functions on a tape: one call of ``backward``."""

from __future__ import annotations

from typing import Any

from ..torch_api import tape as _door
from . import operations
from .steps import Step


def call_function_backward(
    capture: Any, ctx: Any, ctx_step: Step, saved: list[Step], grads: list[Step | None], count: int
) -> list[Step | None]:
    """Write the backward of a Python Function; returns the step of each gradient."""
    cls = _door.forward_class(ctx)
    plain: list[Step | None] = []
    packed: list[tuple[Any, ...]] = []
    deferred: list[Step] = []
    for place, step in enumerate(saved):
        if step is not None and step.kind == "unpack":
            packed.append((place, *step.args))  # `BackwardContext` unpacks it, when the backward asks for it
            deferred.append(step)
            plain.append(None)
        else:
            plain.append(step)
    fill = all(g is not None for g in grads) and _materializes(cls)
    args = (ctx_step, plain, packed, count, fill, *grads)
    step = capture.write("backward", operations.run_backward, args, note=cls.__name__, meta={"deferred": deferred})
    return [capture.part(step, i) for i in range(count)]


def _materializes(cls: Any) -> bool:
    """Does the engine hand zeros to this Function where a gradient is undefined?

    It does when the capture knows of it; that another Function returned None is known in the run only. There is no way
    to ask a ctx: the forward's code is looked at.
    """
    return not any(
        "set_materialize_grads" in code.co_names
        for f in (cls.forward, getattr(cls, "setup_context", None))
        if (code := getattr(f, "__code__", None)) is not None
    )
