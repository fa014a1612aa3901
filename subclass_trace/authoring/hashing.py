"""The string that AOTAutograd's cache takes for a wrapper among the inputs: equal in every process."""

from __future__ import annotations

import hashlib
import pickle
from typing import Any

import torch

from ..subclass.paths import Path
from ..subclass.visit import visit


def stable_hash(x: torch.Tensor) -> str:
    """A hash of all metadata, to any depth: classes, names, contexts, sizes, strides, dtypes, devices, requires_grad."""
    facts = visit(x, leaf=_leaf, wrapper=_wrapper, opaque=lambda value, _: type(value).__qualname__)
    return hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()


def _leaf(t: torch.Tensor, _: Path) -> Any:
    return tuple(map(str, t.shape)), tuple(map(str, t.stride())), str(t.storage_offset()), *_common(t)


def _wrapper(t: torch.Tensor, names: tuple[str, ...], inners: list[Any], context: Any, _: Path) -> Any:
    cls = type(t)
    sizes = tuple(map(str, t.shape)), tuple(map(str, t.stride()))
    return (
        f"{cls.__module__}.{cls.__qualname__}",
        names,
        tuple(inners),
        pickle.dumps(context, protocol=4),
        sizes,
        _common(t),
    )


def _common(t: torch.Tensor) -> tuple[str, ...]:
    return str(t.dtype), str(t.device), str(t.layout), str(t.requires_grad)
