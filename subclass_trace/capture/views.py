"""How views are made: the user's own calls, noted while the function runs.

Autograd knows how a view is made of its base as one function. That is not enough where the shape of a view is changed
in place, or where a part of the way was made without gradients; then the calls themselves are replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from .. import torch_api
from ..errors import UnsupportedError
from ..plan import StridedView, ViewStep, ViewSteps
from ..subclass.protocol import is_traceable

Tensor = torch.Tensor
_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.memory_format, type(Ellipsis))


@dataclass(frozen=True, eq=False)
class _Made:
    """``result`` is a view of ``source``, made as number ``time`` of all noted calls."""

    result: Tensor
    source: Tensor
    step: ViewStep
    time: int


class _Change(NamedTuple):
    """The shape of ``tensor`` was changed in place, as number ``time`` of all noted calls."""

    step: ViewStep
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

    def note(self, func: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> None:
        """Look at one call of the user's."""
        if not args or not isinstance(args[0], Tensor):
            return
        if out is args[0]:
            self._note_change(func, args, kwargs)
        elif isinstance(out, Tensor):
            self._note_view(func, args, kwargs, out, None)
        elif type(out) in (tuple, list):
            for k, value in enumerate(out):
                if isinstance(value, Tensor):
                    self._note_view(func, args, kwargs, value, k)

    def was_reshaped(self, t: Tensor) -> bool:
        """Was the shape of this tensor changed in place?"""
        return id(t) in self._changes

    def _note_view(self, func: Any, args: Any, kwargs: Mapping[str, Any], out: Tensor, item: int | None) -> None:
        if id(out) in self._made or not (Tensor._is_view(out) or getattr(func, "__name__", "") in _SHARING):
            return
        rest = tuple(args[1:])
        if getattr(func, "__name__", "") in _LIKE and isinstance(args[1], Tensor):
            func, rest = _LIKE[func.__name__], (tuple(args[1].shape),)
        step = ViewStep(func, rest, dict(kwargs), torch.is_grad_enabled(), item, False)
        self._time += 1
        self._made[id(out)] = _Made(out, args[0], step, self._time)

    def _note_change(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
        name = getattr(func, "__name__", "")
        if name not in CHANGES:
            return
        self._time += 1
        step = ViewStep(func, tuple(args[1:]), dict(kwargs), torch.is_grad_enabled(), None, True)
        version = 0 if args[0].is_inference() else args[0]._version
        self._changes.setdefault(id(args[0]), []).append(_Change(step, self._time, args[0], version))

    def forget(self, t: Tensor) -> None:
        """``t`` was given other memory."""
        self._made.pop(id(t), None)

    def steps(self, view: Tensor, base: Tensor) -> ViewSteps | None:
        """The calls that lead from ``base`` (with the shape that it had then) to ``view``; None where they are not known."""
        found = self._steps(view, base, self._time + 1)
        if found is None or not all(map(_is_plain, (a for s in found for a in (*s.args, *s.kwargs.values())))):
            return None
        return ViewSteps(tuple(found))

    def _steps(self, view: Tensor, base: Tensor, until: int) -> list[ViewStep] | None:
        if view is base:
            return []
        made = self._made.get(id(view))
        if made is None:
            return None
        before = self._steps(made.source, base, made.time)
        if before is None:
            return None
        changes = [c.step for c in self._changes.get(id(view), ()) if c.time < until]
        return [*before, made.step, *changes]

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
            if any(c.time < until and (c.version != view._version or not c.step.grad) for c in self._reshapes(at)):
                return True
            at, until, first = made.source, made.time, made.time
        return any(c.time > first for c in self._reshapes(base))

    def by_place(self, view: Tensor) -> StridedView | None:
        """How eager makes the history of a dense view anew, where the trace cannot; None where eager would refuse that."""
        base = view._base if view._is_view() else None
        if base is None or not view.requires_grad or not torch.is_grad_enabled() or not self.loses_history(view):
            return None
        found = self._steps(view, base, self._time + 1)
        if found is None or not all(s.grad and s.item is None for s in found):
            return None
        return place_in(base, view)

    def _reshapes(self, t: Tensor) -> list[_Change]:
        return [c for c in self._changes.get(id(t), ()) if c.step.function.__name__ in RESHAPES]


#: calls that change the shape of a tensor, or which memory it has
CHANGES: tuple[str, ...] = (
    "t_",
    "transpose_",
    "unsqueeze_",
    "squeeze_",
    "swapaxes_",
    "swapdims_",
    "as_strided_",
    "resize_",
    "detach_",
)
CHANGES += ("as_strided_", "resize_", "set_", "resize_as_", "__set__")
#: operations that change the shape of a tensor in place
RESHAPES = ("t_", "transpose_", "unsqueeze_", "squeeze_", "swapaxes_", "swapdims_", "as_strided_")
#: calls whose result may share memory and version counter with its source without being a view: of another dtype, here
_SHARING = ("detach", "view")
#: calls that take a shape from a tensor, as calls that take the shape
_LIKE = {"view_as": Tensor.view, "expand_as": Tensor.expand, "reshape_as": Tensor.reshape}


def place_in(base: Tensor, view: Tensor) -> StridedView | None:
    """What eager autograd falls back to for dense views: their place in the memory of the base."""
    if is_traceable(view) or is_traceable(base) or view.dtype != base.dtype:
        return None
    if (view.is_conj(), view.is_neg()) != (base.is_conj(), base.is_neg()):
        return None
    delta: Any = view.storage_offset() - base.storage_offset()
    if not all(type(n) is int for n in (*view.shape, *view.stride(), delta)):
        return None
    return StridedView(tuple(view.shape), tuple(view.stride()), delta)


def lost_history(view: Tensor, line: str | None) -> UnsupportedError:
    """What to say of a view of which `ViewLog.loses_history`."""
    return UnsupportedError(
        "the region uses a view that requires grad after the shape of its base, or its own, was changed in place",
        path=line,
        expected="views that are made after the change, or not used after it",
        got=f"a view of shape {tuple(view.shape)}",
        fix="change the shape out of place: y = x.t() instead of x.t_()",
    )


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    if isinstance(value, slice):
        return all(map(_is_plain, (value.start, value.stop, value.step)))
    return type(value) in _PLAIN
