"""Values of the user's in messages: never what is inside of a tensor."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

_ITEMS, _DEPTH = 6, 4


def text_of(value: Any, limit: int = 200) -> str:
    """A value as text for messages: tensors by dtype and shape, wherever they stand in it.

    >>> text_of({"x": [torch.zeros(2, 3)], "k": (1, "text", torch.float32)})
    "{'x': [Tensor float32[2, 3]], 'k': (1, 'text', torch.float32)}"
    """
    try:
        text = _text(value, _DEPTH)
    except Exception:  # an author's __repr__ may raise anything
        text = f"a {type(value).__qualname__}"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _text(x: Any, depth: int) -> str:
    kind = type(x)
    if isinstance(x, torch.Tensor) or kind.__module__ == "numpy":
        dtype = str(getattr(x, "dtype", "")).removeprefix("torch.")
        return f"{kind.__qualname__} {dtype}[{', '.join(map(str, getattr(x, 'shape', ())))}]"
    items: list[str] | None = None
    if depth and kind in (list, tuple):
        items = [_text(v, depth - 1) for v in x[:_ITEMS]]
    elif depth and isinstance(x, dict):
        items = [f"{_text(k, 0)}: {_text(v, depth - 1)}" for k, v in list(x.items())[:_ITEMS]]
    elif depth and dataclasses.is_dataclass(x) and not isinstance(x, type):
        rows = [(f.name, getattr(x, f.name, None)) for f in dataclasses.fields(x) if f.repr]
        return (
            f"{kind.__qualname__}({', '.join(f'{name}={_text(v, depth - 1)}' for name, v in rows)})"
        )
    if items is not None:
        text = ", ".join([*items, *["..."] * (len(x) > _ITEMS)])
        return (
            f"[{text}]"
            if kind is list
            else f"{{{text}}}"
            if isinstance(x, dict)
            else f"({text}{',' * (len(x) == 1)})"
        )
    text = " ".join(repr(x).split())
    return f"a {kind.__qualname__}" if "tensor(" in text or "array(" in text else text
