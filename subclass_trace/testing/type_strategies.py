"""``hypothesis.strategies.from_type(MyTensor)`` for wrapper classes."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as s

from .known import KNOWN
from .resolve import load_target
from .strategies import dense_tensors, wrappers

_DONE: set[type] = set()


def register() -> None:
    """Register strategies for ``torch.Tensor``, ``WrapperTensor`` and the classes of the zoo. Can be called twice."""
    from ..authoring import WrapperTensor

    own = [load_target(n) for n in KNOWN if n.startswith("subclass_trace.")]
    for cls in (WrapperTensor, *own):
        _add(cls, _wrapper)
    _add(torch.Tensor, lambda _: dense_tensors())


def _add(cls: type, make: Any) -> None:
    if cls not in _DONE:
        _DONE.add(cls)
        s.register_type_strategy(cls, make)


def _wrapper(cls: type) -> s.SearchStrategy[Any]:
    return wrappers(cls)
