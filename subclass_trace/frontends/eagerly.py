"""Calls that run eagerly: because of what is active around them, or since they cannot be compiled
and eager mode has a result.

Each is counted by its reason, for ``explain()``. Kinds of calls that cannot be compiled are
remembered, so that only the first one is traced in vain; that one warns.
"""

from __future__ import annotations

import collections
import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .. import policy
from ..errors import SubclassTraceError, UnsupportedError
from ..report.events import ran_eagerly
from ..state.recorder import instance_dict
from ..subclass.values import is_a
from ..torch_api.lines import warn_user
from ..torch_api.modes import any_autocast, grad_enabled, no_overrides
from ..torch_api.owners import Owner, owner_of
from ..torch_api.trees import pytree


class EagerCalls:
    """How many calls of a region ran eagerly, and why.

    Attributes:
        counts: reason -> number of calls.
    """

    def __init__(self) -> None:
        self.counts, self._kinds = collections.Counter[str](), dict[Any, str]()
        self._all: str | None = None
        self._waited = 0  # calls that ran eagerly, so that the next one could be traced
        self._made: set[str] = set()  # the places of what they made

    @property
    def waited_for(self) -> frozenset[str] | None:
        """May another call run eagerly, because it makes what later ones find? Not for attributes
        at these places, which each call makes anew; None: for nothing."""
        return frozenset(self._made) if self._waited < policy.POLICY.waits else None

    def run(self, reason: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Count the call, and make it."""
        self.counts[reason] += 1
        if self.counts[reason] == 1:
            ran_eagerly(function, reason)
        return function(*args, **kwargs)

    def reason(self, args: Any, kwargs: Any) -> str | None:
        """Why a call like this one ran eagerly before."""
        return self._all or (self._kinds.get(_kind(args, kwargs)) if self._kinds else None)

    def first_reason(self, function: Any) -> str | None:
        """Why the first call of a region should run eagerly: it steps an optimizer that has no
        state yet, as it seems. (A trace would find that out, but only behind forward and backward;
        where it is not so, one call ran eagerly.)"""
        if self.counts or not any(map(_is_fresh, _named_by(function))):
            return None
        self._waited += 1
        return "the first call makes the state of an optimizer; the next one is traced"

    def refuse_all(self, reason: str) -> None:
        """All calls run eagerly from now on."""
        self._all = reason
        warn_user(f"all calls of a region run eagerly from now on: {reason}")

    def refused(self, error: SubclassTraceError, args: Any, kwargs: Any, *, once: bool) -> str:
        """Calls like this one run eagerly from now on, or this one does, ``once``; the reason."""
        reason = error.what if error.path is None else f"{error.what} ({error.path})"
        if isinstance(error, UnsupportedError):
            reason += f" [{error.code}]"
        if once:
            self._waited += 1
            self._made.add(str(error.path))
        else:
            self._kinds[_kind(args, kwargs)] = reason
            warn_user(f"a call of a region runs eagerly: {error}")
        return reason


def _named_by(function: Any) -> Iterator[Any]:
    """What a function, or the method of an object, can name at once. No code of the user's runs for
    that."""
    owner = function if is_a(function, torch.nn.Module) else None
    if type(function) is types.MethodType:
        owner, function = function.__self__, function.__func__
    if owner is not None and not is_a(owner, type):
        yield from (instance_dict(owner) or {}).values()
    if type(function) is types.FunctionType:
        yield from (function.__globals__.get(name) for name in function.__code__.co_names)
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # empty
                yield cell.cell_contents


def _is_fresh(value: Any) -> bool:
    """Is it an optimizer of torch's that will make state when it steps?"""
    kind = type(value)
    if not issubclass(kind, torch.optim.Optimizer) or owner_of(kind) is not Owner.TORCH:
        return False
    if value.state:
        return False
    return not is_a(value, torch.optim.SGD) or any(
        group["momentum"] for group in value.param_groups
    )


def _kind(args: Any, kwargs: Any) -> Any:
    """What is alike in calls that are refused alike: nothing hangs on it but how often one is
    tried."""
    modes = grad_enabled(), torch.is_inference_mode_enabled(), any_autocast()
    with no_overrides():  # classes may count what is asked of them
        return modes, torch.get_default_dtype(), _of_value(args), _of_value(kwargs)


def _of_value(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (
            type(value),
            value.dim() if value.is_nested else value.shape,
            value.dtype,
            value.requires_grad,
        )
    if isinstance(value, (list, tuple)):
        return type(value), *map(_of_value, value)
    if value is None or type(value) in (int, float, bool, str):
        return type(value)
    if type(value) is dict:
        return dict, *value, *map(_of_value, value.values())
    leaves, tree = pytree.tree_flatten(value)
    return (
        type(value)
        if leaves and leaves[0] is value
        else (type(value), tree, *map(_of_value, leaves))
    )
