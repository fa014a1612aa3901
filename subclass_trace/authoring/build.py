"""The methods that a declaration gives a class: constructor, flatten and unflatten, what an author would write by hand."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING
from typing import Any, NamedTuple

import torch

from .. import _torch
from ..errors import ProtocolError
from .fields import Field, FieldKind, fields_of

_PLAIN = frozenset({int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.layout})
_MUTABLE = (torch.Tensor, list, dict, set, bytearray)


class Outer(NamedTuple):
    """What the outer tensor shows, where it is not what the first inner tensor shows (None).

    Attributes:
        size: the outer shape.
        stride: in elements; contiguous when only ``size`` is given.
        dtype, device, layout, storage_offset: as for any tensor.
    """

    size: Sequence[Any] | None = None
    stride: Sequence[Any] | None = None
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    layout: torch.layout | None = None
    storage_offset: Any = None


_AS_INSIDE = Outer()


class FieldValues:
    """The values of the fields of a tensor that is about to be made, by name: what ``outer_metadata`` is given."""

    def __getattr__(self, name: str) -> Any:
        owner = type(self).__name__
        raise ProtocolError(
            f"{owner}.outer_metadata reads {name!r}, which is no field",
            path=f"{owner}.outer_metadata",
            expected=f"one of {sorted(vars(self))}",
            fix="use fields only: the tensor is made after outer_metadata has said what it looks like",
        )


class Builder:
    """Makes instances of a class of its fields.

    Attributes:
        record: a dataclass with the fields of the class, whose constructor takes what that of the class takes.
        inner, context: names of the fields.
        absent: None for each inner tensor that may be absent.
        metadata: the author's ``outer_metadata``, if there is one.
    """

    def __init__(self, cls: type, fields: Sequence[Field], metadata: Callable[[Any], Outer] | None) -> None:
        self.cls, self.metadata = cls, metadata
        rows = [
            (f.name, Any, dataclasses.field(default=f.default, kw_only=f.keyword))
            if f.default is not MISSING
            else (f.name, Any, dataclasses.field(kw_only=f.keyword))
            for f in fields
        ]
        self.record = dataclasses.make_dataclass(cls.__name__, rows, bases=(FieldValues,), eq=False, repr=False)
        self.inner = [f.name for f in fields if f.is_inner]
        self.context = [f.name for f in fields if not f.is_inner]
        self.absent: dict[str, Any] = {f.name: None for f in fields if f.kind is FieldKind.OPTIONAL}

    def build(self, values: dict[str, Any], outer_size: Any = None, outer_stride: Any = None) -> Any:
        """An instance with these values of its fields, none of which is checked."""
        cls: Any = self.cls
        for name in self.inner:
            t = values[name]
            if t is not None:
                if t.requires_grad:
                    values[name] = t.detach()
                if t.is_conj() or t.is_neg():
                    cls._wrapper_lazy_bits = True
        first = values[self.inner[0]] if self.inner else None
        outer = _AS_INSIDE
        if self.metadata is not None:
            outer = _checked(cls, self.metadata(self.record(**values)), first)
        new = _torch.make_wrapper_subclass(cls, **_look(outer, first, outer_size, outer_stride))
        new.__dict__.update(values)
        return new

    def unflatten(self, inner: dict[str, Any], context: Any, outer_size: Any, outer_stride: Any) -> Any:
        """``__tensor_unflatten__``."""
        values = {**self.absent, **inner, **dict(zip(self.context, context or (), strict=True))}
        return self.build(values, outer_size, outer_stride)

    def methods(self) -> dict[str, Any]:
        """The methods of the class, by name."""

        def __new__(cls: Any, *args: Any, **kwargs: Any) -> Any:
            values = vars(self.record(*args, **kwargs))
            _check_values(cls, values)
            made = cls._wrapper_builder.build(values)
            made.__post_init__()
            return made

        def __tensor_unflatten__(inner: Any, context: Any, outer_size: Any, outer_stride: Any) -> Any:
            return self.unflatten(inner, context, outer_size, outer_stride)

        taken = [p.replace(annotation=p.empty) for p in inspect.signature(self.record).parameters.values()]
        first = inspect.Parameter("cls", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        __new__.__signature__ = inspect.Signature([first, *taken])  # type: ignore[attr-defined]
        return {
            "__new__": staticmethod(__new__),
            "__tensor_flatten__": _flatten,
            "__tensor_unflatten__": staticmethod(__tensor_unflatten__),
        }


def builder_of(cls: Any) -> Builder:
    """What makes instances of a wrapper class."""
    found: Builder = cls._wrapper_builder
    return found


def values_of(x: Any) -> dict[str, Any]:
    """The values of the fields of a wrapper, by name."""
    return {f.name: getattr(x, f.name) for f in fields_of(type(x))}


def like(x: Any, tensors: dict[str, Any], outer_size: Any = None, outer_stride: Any = None) -> Any:
    """A wrapper of the class and with the context of ``x`` over other inner tensors."""
    builder = builder_of(type(x))
    context = {name: getattr(x, name) for name in builder.context}
    return builder.build({**builder.absent, **context, **tensors}, outer_size, outer_stride)


def _flatten(self: Any) -> tuple[list[str], Any]:
    """``__tensor_flatten__``."""
    builder = builder_of(type(self))
    context = tuple([getattr(self, name) for name in builder.context])
    return [name for name in builder.inner if getattr(self, name) is not None], context or None


def _look(outer: Outer, first: Any, size: Any, stride: Any) -> dict[str, Any]:
    """What the outer tensor is made with: what unflatten was given, else what the author says, else as ``first``."""
    of_first = outer.size is None and size is None
    stride = outer.stride if stride is None else stride
    offset = outer.storage_offset
    return {
        "size": size if size is not None else first.shape if outer.size is None else outer.size,
        "strides": first.stride() if stride is None and of_first else stride,
        "storage_offset": first.storage_offset() if offset is None and outer.size is None else offset,
        "dtype": outer.dtype or first.dtype,
        "layout": outer.layout or first.layout,
        "device": outer.device or first.device,
    }


# ------------------------------------------------------------------------------------------------------------- checks
def _checked(cls: type, outer: Any, first: torch.Tensor | None) -> Outer:
    """Refuse what ``outer_metadata`` returned if it cannot be used; complete it if there is no inner tensor."""
    path = f"{cls.__name__}.outer_metadata"
    if not isinstance(outer, Outer):
        raise ProtocolError(
            f"{path} must return subclass_trace.authoring.Outer",
            path=path,
            got=type(outer).__qualname__,
            fix="return Outer(size=..., dtype=...), with what differs from the first inner tensor",
        )
    if first is not None:
        return outer
    if outer.size is None or outer.dtype is None:
        raise ProtocolError(
            f"{cls.__name__} has no inner tensor to take its size and dtype from",
            path=path,
            expected="Outer(size=..., dtype=...)",
            got=f"size {outer.size}, dtype {outer.dtype}",
            fix="return both",
        )
    return outer._replace(layout=outer.layout or torch.strided, device=outer.device or torch.device("cpu"))


def _check_values(cls: type, values: dict[str, Any]) -> None:
    """Refuse what is no tensor where one is declared, and context that can change behind the back of a guard."""
    for f in fields_of(cls):
        value, path = values[f.name], f"{cls.__name__}.{f.name}"
        if not f.is_inner:
            if type(value) not in _PLAIN and isinstance(value, _MUTABLE):
                raise ProtocolError(
                    f"{path} is context and cannot be a {type(value).__qualname__}",
                    path=path,
                    expected="a value that does not change: a number, str, dtype, tuple, enum, frozen dataclass",
                    got=f"{value!r:.60}",
                    fix="annotate it as Tensor" if isinstance(value, torch.Tensor) else "pass a tuple or a frozenset",
                )
        elif not isinstance(value, torch.Tensor) and not (value is None and f.kind is FieldKind.OPTIONAL):
            raise ProtocolError(
                f"{path} must be a tensor",
                path=path,
                expected="torch.Tensor",
                got=f"{type(value).__qualname__}: {value!r:.60}",
                fix=f"pass a tensor, or declare `{f.name}: Tensor | None` if it may be absent",
            )
