"""``type(x)`` of a dense traced tensor is what the caller has, ``torch.Tensor`` or ``nn.Parameter``; of a symbol, ``int``.

No class can answer for ``type``, so in the globals of entered code that names it stands another one, which answers otherwise
in the thread that traces, until the function has returned.
"""

from __future__ import annotations

import threading
import types
from typing import Any

import torch

from .. import torch_api
from .values import is_walked


class _Active(threading.local):
    """How many traces are running in this thread."""

    count = 0


_active = _Active()


class _TypeOfTypes(type):
    """The class of what stands for ``type``, and does what ``type`` does."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is not _TYPE:  # a metaclass that was made of it
            return super().__call__(*args, **kwargs)
        found = type(*args, **kwargs)
        if _active.count and len(args) == 1:
            if found in torch_api.FAKE_TYPES:
                return torch.nn.Parameter if isinstance(args[0], torch.nn.Parameter) else torch.Tensor
            found = torch_api.PYTHON_CLASSES.get(found, found)
        return cls if found is type else found

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, type) if cls is _TYPE else super().__instancecheck__(value)

    def __subclasscheck__(cls, other: Any) -> bool:
        return issubclass(other, type) if cls is _TYPE else super().__subclasscheck__(other)


_TYPE: Any = None
_TYPE = _TypeOfTypes("type", (type,), {})


class TypesAsEager:
    """The exchange of ``type`` for one run."""

    def __init__(self) -> None:
        self._tables: list[dict[str, Any]] = []

    def enter(self, code: types.CodeType, space: dict[str, Any]) -> None:
        """Code runs for the first time."""
        if "type" in code.co_names and "type" not in space and is_walked(space.get("__name__")):
            _active.count += not self._tables
            self._tables.append(space)
            space["type"] = _TYPE

    def restore(self) -> None:
        """The run is over."""
        _active.count -= bool(self._tables)
        for space in self._tables:
            space.pop("type", None)
        self._tables = []
