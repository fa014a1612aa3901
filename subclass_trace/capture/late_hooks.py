"""Hooks that a region registers on tensors from outside: each call registers them anew on the real tensors, as in eager.

Such a hook sees the gradient of all uses of the tensor, and stays. Traced stand-ins get one that works for gradients
inside the region alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..errors import UnsupportedError
from ..plan import HookPlan
from .kept_calls import is_traced
from .late_code import place_of

if TYPE_CHECKING:
    from .inputs import TracedInput
    from .recorder import Recorder

Tensor = torch.Tensor
HOOK_METHODS = ("register_hook", "register_post_accumulate_grad_hook")


@dataclass(eq=False)
class Registration:
    """What a region gets for a hook on a tensor from outside.

    Attributes:
        owner: the number of an input, or a real tensor.
        traced: its stand-in, and the ``history`` that it had; ``inside``: the handle of the hook for gradients inside.
    """

    recorder: Recorder
    owner: Any
    method: str
    hook: Callable[..., Any]
    traced: Tensor
    history: Any
    inside: Any

    def remove(self) -> None:
        """Take the hook away again, while the region runs.

        Raises:
            UnsupportedError: it ran, and each call has registered a hook of its own.
        """
        if self.recorder.sealed:
            raise UnsupportedError(
                "the handle of a hook that a region has registered is used outside of it",
                path=place_of(self.hook),
                expected="handles that are used inside of the region",
                got="remove()",
                fix="register the hook outside of the region",
            )
        if self in self.recorder.late.registrations:
            self.recorder.late.registrations.remove(self)
        if self.inside is not None:
            self.inside.remove()

    def __enter__(self) -> Registration:
        """As torch's handles: the hook is there until the block is left."""
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def plan(self, result: int) -> HookPlan:
        """The same in each call.

        Raises:
            UnsupportedError: the region has changed the tensor in place since, or the hook holds traced tensors.
        """
        if self.traced.grad_fn is not self.history:
            raise self._refused("a tensor that is written in place after that")
        if is_traced(self.hook):
            raise self._refused("a hook that holds tensors of the region")
        return HookPlan(self.owner, self.method, self.hook, result)

    def _refused(self, got: str) -> UnsupportedError:
        return UnsupportedError(
            "the region registers a hook on a tensor from outside, and no call could do the same",
            path=place_of(self.hook),
            expected="a hook that holds tensors from outside only, on a tensor that is not written afterwards",
            got=got,
            fix="register it outside of the region",
        )


def registered(
    recorder: Recorder, func: Callable[..., Any], traced: Tensor, hook: Any, owner: Any, row: TracedInput | None
) -> Any:
    """What ``func(tensor, hook)`` returns for a tensor from outside, of which ``traced`` is the stand-in."""
    post = func.__name__ == HOOK_METHODS[1]
    is_leaf = row.is_leaf if row is not None else not isinstance(owner, Tensor) or owner.is_leaf
    if not traced.requires_grad or (post and not is_leaf):
        return func(traced, hook)  # autograd refuses

    def inside(gradient: Tensor) -> Any:
        return hook(gradient) if recorder.tag == "is_forward" else None

    handle = None if post else traced.register_hook(inside)  # type: ignore[no-untyped-call]
    made = Registration(recorder, owner, func.__name__, hook, traced, traced.grad_fn, handle)
    recorder.late.registrations.append(made)
    return made
