"""What torch asks of a wrapper besides operations: pickling, ``torch.load(weights_only=True)``, cache keys, FSDP2.

A wrapper is saved as its class and the values of its fields, by name: after loading it is built again, so that it fits
inner tensors on another device (``map_location``), and a field that was added since then gets its default.

FSDP2 cuts a parameter into rows, one piece for each rank, and gathers the pieces before use. That can be derived when
each inner tensor has the rows of the wrapper: piece by piece, and inner tensor by inner tensor. A scale of a whole tensor
has no rows; what becomes of it is for the author to say.
"""

from __future__ import annotations

import hashlib
import pickle
from dataclasses import MISSING
from typing import Any

import torch

from ..errors import ProtocolError, UnsupportedError
from ..subclass.paths import Path
from ..subclass.visit import visit
from .build import builder_of, like
from .fields import FIELDS, Field, fields_of


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
    new: torch.Tensor = builder_of(cls).build(complete, torch.Size(size), tuple(stride))
    new.__dict__.update({k: v for k, v in extra.items() if k not in fields})
    return new.requires_grad_() if requires_grad else new


torch.serialization.add_safe_globals([rebuild])


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


def pre_all_gather(x: Any, ranks: int, outer_size: Any) -> tuple[tuple[torch.Tensor, ...], Any]:
    """What this rank sends: its inner tensors, with as many rows as the first rank has.

    Args:
        ranks: among how many the parameter is cut.
        outer_size: the shape of the whole parameter.

    Raises:
        UnsupportedError: an inner tensor does not have the rows of the wrapper.
    """
    names = list(x.__tensor_flatten__()[0])
    for name in names:
        t = getattr(x, name)
        if t.dim() == 0 or x.dim() == 0 or t.shape[0] != x.shape[0]:
            cls = type(x).__name__
            raise UnsupportedError(
                f"the all-gather of {cls} cannot be derived: {name} does not have one row for each row of the wrapper",
                path=f"{cls}.{name}",
                expected=f"{x.shape[0] if x.dim() else 'no'} rows",
                got=f"shape {tuple(t.shape)}",
                fix=f"define fsdp_pre_all_gather and fsdp_post_all_gather in {cls}; see docs/guide.md",
            )
    own = {n: getattr(x, n) for n in names}
    rows = -(-outer_size[0] // ranks)
    # A group of one rank gathers nothing, and torch 2.13 hands back the first tensor only.
    alone = own if ranks == 1 else None
    return tuple(_padded(t, rows) for t in own.values()), (names, tuple(outer_size), alone)


def _padded(t: torch.Tensor, rows: int) -> torch.Tensor:
    missing = rows - t.shape[0]
    return torch.cat([t, t.new_zeros(missing, *t.shape[1:])]) if missing else t.contiguous()


def post_all_gather(
    x: Any, gathered: tuple[torch.Tensor, ...], metadata: Any, out: Any
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]] | None:
    """The whole parameter, and the tensors that FSDP may free between uses; nothing when ``out`` is given.

    ``out`` already holds the gathered tensors as its inner ones: FSDP gathers into the memory of the first time.
    """
    names, size, alone = metadata
    if out is None:
        tensors = alone or {n: t[: size[0]] for n, t in zip(names, gathered, strict=True)}
        return like(x, tensors), ()
    for n, t in (alone or {}).items():
        target = getattr(out, n)
        if target.data_ptr() != t.data_ptr():  # the parameter of this rank has other tensors now
            target.copy_(t)
    return None
