"""How views are made: the user's own calls, noted while the function runs.

Autograd knows how a view is made of its base as one function. That is not enough where the shape of one of them is changed
in place.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from .. import torch_api
from ..errors import UnsupportedError

Tensor = torch.Tensor


class _Made(NamedTuple):
    """``result`` is a view of ``source``, made as number ``time`` of all noted calls."""

    result: Tensor
    source: Tensor
    time: int


class _Change(NamedTuple):
    """The shape of ``tensor`` was changed in place by the method ``name``, as number ``time`` of all noted calls."""

    name: str
    grad: bool
    time: int
    tensor: Tensor
    version: int  # of the tensor, after it


class ViewLog:
    """The calls by which views were made and changed."""

    def __init__(self) -> None:
        self._made: dict[int, _Made] = {}
        self._changes: dict[int, list[_Change]] = {}
        self._time = 0

    @property
    def reshaped(self) -> bool:
        """Was the shape of a tensor changed in place?"""
        return bool(self._changes)

    def note(self, func: Any, args: Any, out: Any) -> None:
        """Look at one call of the user's."""
        if not args or not isinstance(args[0], Tensor):
            return
        if out is args[0]:
            self._note_change(getattr(func, "__name__", ""), args[0])
            return
        for value in out if type(out) in (tuple, list) else (out,):
            if isinstance(value, Tensor) and id(value) not in self._made and Tensor._is_view(value):
                self._time += 1
                self._made[id(value)] = _Made(value, args[0], self._time)

    def _note_change(self, name: str, t: Tensor) -> None:
        if name in CHANGES:
            self._time += 1
            version = 0 if t.is_inference() else t._version
            self._changes.setdefault(id(t), []).append(_Change(name, torch.is_grad_enabled(), self._time, t, version))

    def forget(self, t: Tensor) -> None:
        """``t`` was given other memory."""
        self._made.pop(id(t), None)

    def loses_history(self, view: Tensor) -> bool:
        """Would autograd make the history of this dense view anew, and wrongly?

        It does so when anything has written to the memory, also when the shape of the base was changed in place. In eager
        it goes by the strides of the view. For a traced tensor (and for a wrapper in eager) it repeats the calls that made
        the view, on a base that has another shape now, or without the change of its own shape. A change under no_grad
        itself leaves the history to be made anew.
        """
        base = view._base if view._is_view() else None
        if base is None or not torch_api.is_fake(view) or view.is_inference() or id(view) not in self._made:
            return False
        at, until, first = view, self._time + 1, 0
        while at is not base:
            made = self._made.get(id(at))
            if made is None:
                return False
            if any(c.time < until and (c.version != view._version or not c.grad) for c in self._reshapes(at)):
                return True
            at, until, first = made.source, made.time, made.time
        return any(c.time > first for c in self._reshapes(base))

    def _reshapes(self, t: Tensor) -> list[_Change]:
        return [c for c in self._changes.get(id(t), ()) if c.name in RESHAPES]


#: operations that change the shape of a tensor in place
RESHAPES = ("t_", "transpose_", "unsqueeze_", "squeeze_", "swapaxes_", "swapdims_", "as_strided_")
#: calls that change the shape of a tensor, or which memory it has
CHANGES = (*RESHAPES, "resize_", "resize_as_", "detach_", "__set__")


def lost_history(view: Tensor, line: str | None) -> UnsupportedError:
    """What to say of a view of which `ViewLog.loses_history`."""
    return UnsupportedError(
        "the region uses a view that requires grad after the shape of its base, or its own, was changed in place",
        path=line,
        expected="views that are made after the change, or not used after it",
        got=f"a view of shape {tuple(view.shape)}",
        fix="change the shape out of place: y = x.t() instead of x.t_()",
    )
