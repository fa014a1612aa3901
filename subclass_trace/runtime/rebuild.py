"""Views are replayed on their real base; what is saved or arrives has the strides that a graph was
traced for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..plan import ViewOutput
from ..torch_api.operators import raw_callable
from ..torch_api.trees import pytree
from .sizes import Env, evaluate

Tensor = torch.Tensor


#: an operation, the arguments behind the base, and which of several results
Step = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], int | None]


def steps_of(plan: ViewOutput) -> tuple[Step, ...]:
    """The steps of a view as they are called."""
    return tuple((raw_callable(s.operation), s.args, dict(s.kwargs), s.which) for s in plan.steps)


def replay_view(
    steps: Sequence[Step], requires_grad: bool, base: Tensor, env: Env | None = None
) -> Tensor:
    """Call the recorded view operations on ``base``. They are those that the user issued, never
    ``as_strided``.

    ``env``: the values of symbols, where some of the arguments are computed of them.
    """
    # Under no_grad of the caller too: the region may have enabled gradients itself.
    with torch.set_grad_enabled(requires_grad if base.requires_grad else torch.is_grad_enabled()):
        for operation, args, kwargs, which in steps:
            if env is not None:
                args, kwargs = pytree.tree_map(lambda n: evaluate(n, env), (args, kwargs))
            made = operation(base, *args, **kwargs)
            base = made if which is None else made[which]
        return base


def fit_strides(t: Tensor, stride: Sequence[int]) -> Tensor:
    """``t`` itself, or a copy with the strides that a graph was traced for."""
    if t.layout is not torch.strided or tuple(t.stride()) == tuple(stride):
        return t
    # of a batch: room for all of it, whichever dimension that is
    return t.new_empty_strided(t.shape, stride).copy_(t)
