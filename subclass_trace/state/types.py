"""``type(x)`` of a dense traced tensor is what the caller has, ``torch.Tensor`` or ``nn.Parameter``; of a symbol, ``int``.

No class can answer for ``type``, so in the globals of entered code that names it stands another one, which answers otherwise
in the thread that traces, until the function has returned.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from typing import Any

from .. import torch_api
from .values import is_walked


class _Active(threading.local):
    """What tells the class of a traced tensor, for each trace that is running in this thread."""

    def __init__(self) -> None:
        self.answers: list[Callable[[Any], type]] = []


_active = _Active()


class _TypeOfTypes(type):
    """The class of what stands for ``type``, and does what ``type`` does."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is not _TYPE:  # a metaclass that was made of it
            return super().__call__(*args, **kwargs)
        found = type(*args, **kwargs)
        if found in torch_api.FAKE_TYPES and _active.answers:
            return _active.answers[-1](args[0])
        if len(args) == 1 and found in torch_api.PYTHON_CLASSES and _active.answers:
            return torch_api.PYTHON_CLASSES[found]
        return cls if found is type else found

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, type) if cls is _TYPE else super().__instancecheck__(value)

    def __subclasscheck__(cls, other: Any) -> bool:
        return issubclass(other, type) if cls is _TYPE else super().__subclasscheck__(other)


_TYPE: Any = None
_TYPE = _TypeOfTypes("type", (type,), {})


class TypesAsEager:
    """The exchange of ``type`` for one run.

    Args:
        class_of: the class of the tensor that a traced one stands for.
    """

    def __init__(self, class_of: Callable[[Any], type]) -> None:
        self.class_of = class_of
        self._tables: list[dict[str, Any]] = []

    def enter(self, code: types.CodeType, space: dict[str, Any]) -> None:
        """Code runs for the first time."""
        if "type" not in code.co_names or "type" in space or not is_walked(space.get("__name__")):
            return
        if not self._tables:
            _active.answers.append(self.class_of)
        self._tables.append(space)
        space["type"] = _TYPE

    def restore(self) -> None:
        """The run is over."""
        if self._tables:
            _active.answers.remove(self.class_of)
        for space in self._tables:
            space.pop("type", None)
        self._tables = []
