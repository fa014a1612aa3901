"""Pickle and ``torch.load(weights_only=True)`` for declared wrappers.

A wrapper is saved as its class and the values of its fields, by name: after loading it is built again, so that it fits
inner tensors on another device (``map_location``), and a field that was added since then gets its default.
"""

from __future__ import annotations

from dataclasses import MISSING
from typing import Any

import torch

from ..errors import ProtocolError
from .fields import FIELDS, Field, fields_of
from .generate import BUILD


def allow_loading(cls: type, fields: tuple[Field, ...]) -> None:
    """Let ``torch.load(weights_only=True)`` make instances of the class, and of the enums and dataclasses it names.

    A class inside of a function cannot be found when loading, so it is left out.
    """
    if "<locals>" not in cls.__qualname__:
        torch.serialization.add_safe_globals([cls, *(c for f in fields for c in f.loads)])


def rebuild(
    cls: type, values: dict[str, Any], size: Any, stride: Any, requires_grad: bool, extra: dict[str, Any]
) -> torch.Tensor:
    """An instance from what ``__reduce_ex__`` gave.

    Args:
        extra: attributes that are no fields.

    Raises:
        ProtocolError: the class is not a declared wrapper, or its fields do not fit any more.
    """
    if not (isinstance(cls, type) and issubclass(cls, torch.Tensor) and hasattr(cls, FIELDS)):
        raise ProtocolError("the file asks for a wrapper of a class that is none", got=repr(cls)[:100])
    fields = {f.name: f for f in fields_of(cls)}
    defaults = {n: f.default for n, f in fields.items() if f.default is not MISSING}
    complete = {**defaults, **values}
    if complete.keys() != fields.keys():
        raise ProtocolError(
            f"{cls.__name__} was saved with other fields",
            path=cls.__name__,
            expected=f"{sorted(fields)}",
            got=f"{sorted(values)}",
            fix="give a new field a default; keep a field that is gone until the files are converted",
        )
    new: torch.Tensor = getattr(cls, BUILD)(**complete, outer_size=torch.Size(size), outer_stride=tuple(stride))
    new.__dict__.update({k: v for k, v in extra.items() if k not in fields})
    return new.requires_grad_() if requires_grad else new


torch.serialization.add_safe_globals([rebuild])
