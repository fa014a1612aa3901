"""What C code takes the text of, or a number: made by code of the user's as clones."""

from __future__ import annotations

import operator
from typing import Any

import torch

from ..subclass.values import ATOMS, is_a
from ..torch_api.numbers import PYTHON_CLASSES
from .current import call_now
from .special import is_python


class Text:
    """What C code is handed that takes a text or a number of an object, and does not keep it."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __format__(self, spec: str) -> str:
        return str(call_now(format, self.value, spec))

    def __getattr__(self, name: str) -> Any:
        return text_of(call_now(getattr, self.value, name))

    def __getitem__(self, key: Any) -> Any:
        return text_of(call_now(operator.getitem, self.value, key))

    def __index__(self) -> Any:
        return call_now(operator.index, self.value)

    def __int__(self) -> Any:
        return call_now(int, self.value)

    def __float__(self) -> Any:
        return call_now(float, self.value)

    def __str__(self) -> str:
        return str(call_now(str, self.value))

    def __repr__(self) -> str:
        return str(call_now(repr, self.value))


def text_of(value: Any) -> Any:
    """What C code takes the text of a value of, or of an attribute of it."""
    return value if type(value) in ATOMS or is_a(value, torch.Tensor) else Text(value)


def number_of(value: Any) -> Any:
    """What C code takes a number of, with code of the user's."""
    own = is_python(type(value), "__index__", "__int__", "__float__")
    return Text(value) if own and type(value) not in PYTHON_CLASSES else value
