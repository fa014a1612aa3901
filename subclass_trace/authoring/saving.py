"""Pickle, ``torch.load(weights_only=True)``, and the key of torch's caches, for declared wrappers.

A wrapper is saved as its class and the values of its fields, by name: after loading it is built
again, so that it fits inner tensors on another device (``map_location``), and a field that was
added since then gets its default.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
from typing import Any

import torch

from ..errors import ProtocolError
from ..subclass.paths import Path
from ..subclass.visit import visit
from .fields import DECLARED, Declaration, build


def allow_loading(cls: type, declared: Declaration) -> None:
    """Let ``torch.load(weights_only=True)`` make instances of the class, and of the enums and
    dataclasses it names.

    A class inside of a function cannot be found when loading, so it is left out.
    """
    if "<locals>" not in cls.__qualname__:
        torch.serialization.add_safe_globals([cls, *declared.loads])


def rebuild(
    cls: Any,
    values: dict[str, Any],
    size: Any,
    stride: Any,
    requires_grad: bool,
    extra: dict[str, Any],
) -> torch.Tensor:
    """An instance from what ``__reduce_ex__`` gave.

    Args:
        extra: attributes that are no fields.

    Raises:
        ProtocolError: the class is not a declared wrapper, or its fields do not fit any more.
    """
    if not (isinstance(cls, type) and issubclass(cls, torch.Tensor) and hasattr(cls, DECLARED)):
        raise ProtocolError(
            "the file asks for a wrapper of a class that is none", got=repr(cls)[:100]
        )
    fields = dataclasses.fields(getattr(cls, DECLARED).values)
    complete = {f.name: f.default for f in fields if f.default is not dataclasses.MISSING} | values
    if complete.keys() != {f.name for f in fields}:
        raise ProtocolError(
            f"{cls.__name__} was saved with other fields",
            path=cls.__name__,
            expected=f"{sorted(f.name for f in fields)}",
            got=f"{sorted(values)}",
            fix="give a new field a default; keep a field that is gone until the files are "
            "converted",
        )
    new: torch.Tensor = build(cls, complete, torch.Size(size), tuple(stride))
    new.__dict__.update({k: v for k, v in extra.items() if k not in complete})
    return new.requires_grad_() if requires_grad else new


torch.serialization.add_safe_globals([rebuild])


def stable_hash(x: torch.Tensor) -> str:
    """A hash of all metadata, to any depth: classes, names, contexts, sizes, strides, dtypes,
    devices, requires_grad.

    The string that AOTAutograd's cache takes for a wrapper among the inputs: equal in every
    process.
    """
    facts = visit(
        x, leaf=lambda t, _: _common(t), wrapper=_wrapper, opaque=lambda v, _: type(v).__qualname__
    )
    return hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()


def _wrapper(
    t: torch.Tensor, names: tuple[str, ...], inners: list[Any], context: Any, _: Path
) -> Any:
    name = f"{type(t).__module__}.{type(t).__qualname__}"
    return name, names, tuple(inners), pickle.dumps(context, protocol=4), _common(t)


def _common(t: torch.Tensor) -> tuple[str, ...]:
    facts = (
        tuple(t.shape),
        t.stride(),
        t.storage_offset(),
        t.dtype,
        t.device,
        t.layout,
        t.requires_grad,
    )
    return tuple(map(str, facts))
