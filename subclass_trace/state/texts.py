"""What C code takes the text of: made by code of the user's as clones."""

from __future__ import annotations

import operator
from typing import Any

import torch

from ..subclass.values import ATOMS, is_a
from .current import call_now


class Text:
    """What an f-string takes the text of, made by code of the user's as a clone."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __format__(self, spec: str) -> str:
        return str(call_now(format, self.value, spec))

    def __getattr__(self, name: str) -> Any:
        return text_of(call_now(getattr, self.value, name))

    def __getitem__(self, key: Any) -> Any:
        return text_of(call_now(operator.getitem, self.value, key))

    def __str__(self) -> str:
        return str(call_now(str, self.value))

    def __repr__(self) -> str:
        return str(call_now(repr, self.value))


def text_of(value: Any) -> Any:
    """What C code takes the text of a value of, or of an attribute of it."""
    return value if type(value) in ATOMS or is_a(value, torch.Tensor) else Text(value)
