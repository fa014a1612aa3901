"""``type(x)`` of a dense traced tensor is what the caller has, ``torch.Tensor`` or ``nn.Parameter``; of a symbol, ``int``.

No class can answer for ``type``, so in the globals of user code that names it stands another one, which answers otherwise in
the thread that traces.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from .. import _torch
from ..subclass.noted_dict import NotedDict
from ..subclass.spec import Spec, WrapperSpec
from .inputs import TracedInput

Tensor = torch.Tensor


class _Active(threading.local):
    """What tells the class of a traced tensor, for each trace that is running in this thread."""

    def __init__(self) -> None:
        self.answers: list[Callable[[Tensor], type]] = []


_active = _Active()


class _AskedForTypes(type):
    """The class of what stands for ``type``, and does what ``type`` does."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is not _TYPE:  # a metaclass that was made of it
            return super().__call__(*args, **kwargs)
        found = type(*args, **kwargs)
        if found in _torch.FAKE_TYPES and _active.answers:
            return _active.answers[-1](args[0])
        if found is NotedDict:
            return dict
        if len(args) == 1 and found in _torch.PYTHON_CLASSES and _active.answers:
            return _torch.PYTHON_CLASSES[found]
        return cls if found is type else found

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, type) if cls is _TYPE else super().__instancecheck__(value)

    def __subclasscheck__(cls, other: Any) -> bool:
        return issubclass(other, type) if cls is _TYPE else super().__subclasscheck__(other)


_TYPE: Any = None
_TYPE = _AskedForTypes("type", (type,), {})


@contextlib.contextmanager
def types_as_eager(tables: Iterable[dict[str, Any]]) -> Iterator[None]:
    """Inside, code with these globals, which have none of their own, finds such a ``type``."""
    free = [table for table in tables if "type" not in table]
    for table in free:
        table["type"] = _TYPE
    try:
        yield
    finally:
        for table in free:
            table.pop("type", None)


@contextlib.contextmanager
def traced_types(inputs: Sequence[TracedInput], met: Iterable[type]) -> Iterator[None]:
    """Inside, a trace runs on these inputs; ``met``: classes of wrappers that it came upon before, whose code may ask, too."""

    def class_of(traced: Tensor) -> type:
        row = next((i for i in inputs if i.traced is traced), None)
        if row is not None and row.spec.cls is not Tensor:  # type: ignore[union-attr]
            return row.spec.cls  # type: ignore[union-attr]
        return torch.nn.Parameter if isinstance(traced, torch.nn.Parameter) else Tensor

    _active.answers.append(class_of)
    try:
        with types_as_eager(_tables_of([*met], [i.spec for i in inputs])):
            yield
    finally:
        _active.answers.remove(class_of)


def _tables_of(classes: list[type], todo: list[Spec]) -> list[dict[str, Any]]:
    """The globals of the code of wrapper classes."""
    for spec in todo:
        if isinstance(spec, WrapperSpec):
            classes.append(spec.cls)
            todo.extend(spec.inners)
    names = {cls.__module__ for cls in classes}
    return [vars(sys.modules[n]) for n in names if n in sys.modules and n.partition(".")[0] != "torch"]
