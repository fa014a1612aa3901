"""Values of the user's in messages: never what is inside of a tensor."""

from __future__ import annotations

import dataclasses
import reprlib
from typing import Any

import torch

_ITEMS = 6


class _Text(reprlib.Repr):
    """As ``reprlib``, with tensors and arrays by their types, and dataclasses by their fields."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxlong = 200
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxdeque = self.maxarray = _ITEMS

    def repr1(self, x: Any, level: int) -> str:
        """One value; ``level``: how deep to look."""
        if isinstance(x, torch.Tensor) or type(x).__module__ == "numpy":
            size, dtype = getattr(x, "shape", ()), str(getattr(x, "dtype", "")).removeprefix("torch.")
            return f"{type(x).__qualname__} {dtype}[{', '.join(map(str, size))}]"
        if level > 0 and dataclasses.is_dataclass(x) and not isinstance(x, type):
            rows = [
                f"{f.name}={self.repr1(getattr(x, f.name, None), level - 1)}" for f in dataclasses.fields(x) if f.repr
            ]
            return f"{type(x).__qualname__}({', '.join(rows)})"
        return self.repr_dict(x, level) if isinstance(x, dict) else super().repr1(x, level)

    def repr_instance(self, x: Any, level: int) -> str:
        """Any other object: as it says itself, where that shows no tensor."""
        try:
            text = " ".join(repr(x).split())
        except Exception:  # an author's __repr__ may raise anything
            text = ""
        return text if text and not any(word in text for word in ("tensor(", "array(")) else f"a {type(x).__qualname__}"


_TEXT = _Text()


def text_of(value: Any, limit: int = 200) -> str:
    """A value as text for messages: tensors by dtype and shape, wherever they stand in it.

    >>> text_of({"x": [torch.zeros(2, 3)], "k": (1, "text", torch.float32)})
    "{'k': (1, 'text', torch.float32), 'x': [Tensor float32[2, 3]]}"
    """
    text = _TEXT.repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
