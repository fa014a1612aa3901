"""The methods of a declared class, as generated source: what an author would write by hand, with nothing to look up.

For fields ``qdata: Tensor``, ``bias: Tensor | None = None``, ``out: torch.dtype = torch.float32`` the text is (shortened)::

    def __new__(cls, qdata, bias=None, out=D0):
        if not isinstance(qdata, Tensor): raise wrong(cls, 'qdata', qdata)
        ...
        return build(qdata, bias, out)

    def build(qdata, bias, out, outer_size=None, outer_stride=None):
        if qdata.requires_grad: qdata = qdata.detach()
        ...
        self = make(cls, qdata.shape if outer_size is None else outer_size, strides=..., dtype=qdata.dtype, ...)
        self.qdata = qdata
        ...
        return self

    def __tensor_flatten__(self):
        names = ['qdata']
        if self.bias is not None: names.append('bias')
        return names, (self.out,)

    def __tensor_unflatten__(inner, context, outer_size, outer_stride):
        return build(inner['qdata'], inner.get('bias'), context[0], outer_size, outer_stride)

    def like(self, tensors, outer_size=None, outer_stride=None):
        return build(tensors['qdata'], tensors.get('bias'), self.out, outer_size, outer_stride)

    def values(self):
        return {'qdata': self.qdata, 'bias': self.bias, 'out': self.out}
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING
from typing import Any, NamedTuple

import torch

from .. import torch_api
from ..errors import ProtocolError
from ..runtime.source import Source
from .fields import Field, FieldKind

BUILD = "_wrapper_build"  # the class attributes that hold `build`, `like` and `values`
LIKE = "_wrapper_like"
VALUES = "_wrapper_values"
_GLOBAL = "_st_"  # before the names that generated code uses, so that they are no fields
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


class FieldValues:
    """The values of the fields of a tensor that is about to be made, by name: what ``outer_metadata`` is given.

    Generated code adds the constructor, and the class that the tensor will have as ``owner``.
    """

    owner: type

    def __getattr__(self, name: str) -> Any:
        raise ProtocolError(
            f"{self.owner.__name__}.outer_metadata reads {name!r}, which is no field",
            path=f"{self.owner.__name__}.outer_metadata",
            expected=f"one of {sorted(vars(self))}",
            fix="use fields only: the tensor is made after outer_metadata has said what it looks like",
        )


def methods_for(cls: type, fields: tuple[Field, ...], metadata: Callable[[Any], Outer] | None) -> dict[str, Any]:
    """The generated methods of ``cls``, by name.

    Args:
        metadata: the author's ``outer_metadata``; None for that of the first field.
    """
    source = Source()
    used = {"cls": cls, "Tensor": torch.Tensor, "make": torch_api.make_wrapper_subclass, "wrong": _wrong_tensor}
    used |= {"PLAIN": _PLAIN, "check": _check_context, "metadata": metadata, "FieldValues": FieldValues}
    used |= {"Outer": Outer, "check_outer": _check_outer}
    for name, value in used.items():
        source.bind(_GLOBAL + name, value)
    _write_build(source, fields, metadata is not None)
    _write_new(source, fields)
    _write_flatten(source, fields)
    _write_unflatten(source, fields)
    source.build("build", f"methods of {cls.__name__}")
    made = source.globals
    for name in ("build", "like", "values", "__new__", "__tensor_flatten__", "__tensor_unflatten__"):
        made[name].__module__, made[name].__qualname__ = cls.__module__, f"{cls.__qualname__}.{name}"
    static = {BUILD: made["build"], "__tensor_unflatten__": made["__tensor_unflatten__"], "__new__": made["__new__"]}
    return {k: staticmethod(v) for k, v in static.items()} | {
        LIKE: made["like"],
        VALUES: made["values"],
        "__tensor_flatten__": made["__tensor_flatten__"],
    }


def _write_new(source: Source, fields: tuple[Field, ...]) -> None:
    parameters: list[str] = []
    keyword: list[str] = []
    for f in fields:
        default = "" if f.default is MISSING else f"={source.constant(f.default, 'D')}"
        (keyword if f.keyword else parameters).append(f"{f.name}{default}")
    star = ["*"] if keyword else []
    source.line(f"def __new__({', '.join(['cls', *parameters, *star, *keyword])}):")
    for f in fields:
        if f.kind is FieldKind.CONTEXT:
            source.line(f"    if type({f.name}) not in _st_PLAIN: _st_check(cls, {f.name!r}, {f.name})")
        else:
            absent = f"{f.name} is not None and " if f.kind is FieldKind.OPTIONAL else ""
            source.line(
                f"    if {absent}not isinstance({f.name}, _st_Tensor): raise _st_wrong(cls, {f.name!r}, {f.name})"
            )
    source.line(f"    self = cls.{BUILD}({', '.join(f.name for f in fields)})")
    source.line("    self.__post_init__()")
    source.line("    return self")


def _write_build(source: Source, fields: tuple[Field, ...], custom: bool) -> None:
    names = [f.name for f in fields]
    if custom:
        source.line("class Values(_st_FieldValues):")
        source.line("    owner = _st_cls")
        source.line(f"    def __init__({', '.join(['self', *names])}):")
        for n in names:
            source.line(f"        self.{n} = {n}")
        if not names:
            source.line("        pass")
    source.line(f"def build({', '.join([*names, 'outer_size=None', 'outer_stride=None'])}):")
    for f in fields:
        if f.is_inner:
            absent = f"{f.name} is not None and " if f.kind is FieldKind.OPTIONAL else ""
            source.line(f"    if {absent}{f.name}.requires_grad: {f.name} = {f.name}.detach()")
            source.line(f"    if {absent}({f.name}.is_conj() or {f.name}.is_neg()): _st_cls._wrapper_lazy_bits = True")
    if custom:
        first = next((f.name for f in fields if f.is_inner), "None")
        source.line(f"    o = _st_metadata(Values({', '.join(names)}))")
        source.line(f"    if type(o) is not _st_Outer or {first} is None: o = _st_check_outer(_st_cls, o, {first})")
        source.line(f"    self = _st_make(_st_cls, {', '.join(_outer_arguments(first))})")
    else:
        x = next(f.name for f in fields if f.kind is FieldKind.TENSOR)
        source.line(
            f"    self = _st_make(_st_cls, {x}.shape if outer_size is None else outer_size, "
            f"strides={x}.stride() if outer_stride is None else outer_stride, storage_offset={x}.storage_offset(), "
            f"dtype={x}.dtype, layout={x}.layout, device={x}.device)"
        )
    for n in names:
        source.line(f"    self.{n} = {n}")
    source.line("    return self")


def _outer_arguments(x: str) -> list[str]:
    """Arguments for the outer tensor: what unflatten was given, else what the author says (``o``), else those of ``x``."""
    size = f"outer_size if outer_size is not None else o.size if o.size is not None else {x}.shape"
    stride = "outer_stride if outer_stride is not None else o.stride"
    stride += f" if o.stride is not None or o.size is not None or outer_size is not None else {x}.stride()"
    offset = f"o.storage_offset if o.storage_offset is not None else {x}.storage_offset() if o.size is None else None"
    same = [f"{n}=o.{n} if o.{n} is not None else {x}.{n}" for n in ("dtype", "layout", "device")]
    return [size, f"strides={stride}", f"storage_offset={offset}", *same]


def _write_flatten(source: Source, fields: tuple[Field, ...]) -> None:
    inner = [f for f in fields if f.is_inner]
    context = "".join(f"self.{f.name}, " for f in fields if not f.is_inner)
    result = f"({context})" if context else "None"
    source.line("def __tensor_flatten__(self):")
    if all(f.kind is FieldKind.TENSOR for f in inner):
        source.line(f"    return {[f.name for f in inner]!r}, {result}")
        return
    source.line("    names = []")
    for f in inner:
        present = "" if f.kind is FieldKind.TENSOR else f"if self.{f.name} is not None: "
        source.line(f"    {present}names.append({f.name!r})")
    source.line(f"    return names, {result}")


def _write_unflatten(source: Source, fields: tuple[Field, ...]) -> None:
    def tensors(dictionary: str, context: Callable[[Field], str]) -> str:
        values = []
        for f in fields:
            get = {FieldKind.TENSOR: f"{dictionary}[{f.name!r}]", FieldKind.OPTIONAL: f"{dictionary}.get({f.name!r})"}
            values.append(get.get(f.kind) or context(f))
        return ", ".join([*values, "outer_size", "outer_stride"])

    positions = {f.name: k for k, f in enumerate(f for f in fields if not f.is_inner)}
    source.line("def __tensor_unflatten__(inner, context, outer_size, outer_stride):")
    source.line(f"    return build({tensors('inner', lambda f: f'context[{positions[f.name]}]')})")
    source.line("def like(self, tensors, outer_size=None, outer_stride=None):")
    source.line(f"    return build({tensors('tensors', lambda f: f'self.{f.name}')})")
    source.line("def values(self):")
    source.line(f"    return {{{', '.join(f'{f.name!r}: self.{f.name}' for f in fields)}}}")


# --------------------------------------------------------------------------------------- what generated code falls to
def _check_outer(cls: type, outer: Any, first: torch.Tensor | None) -> Outer:
    """Refuse what ``outer_metadata`` returned if it cannot be used; complete it if there is no inner tensor."""
    path = f"{cls.__name__}.outer_metadata"
    if not isinstance(outer, Outer):
        raise ProtocolError(
            f"{path} must return subclass_trace.authoring.Outer",
            path=path,
            got=type(outer).__qualname__,
            fix="return Outer(size=..., dtype=...), with what differs from the first inner tensor",
        )
    if first is None and (outer.size is None or outer.dtype is None):
        raise ProtocolError(
            f"{cls.__name__} has no inner tensor to take its size and dtype from",
            path=path,
            expected="Outer(size=..., dtype=...)",
            got=f"size {outer.size}, dtype {outer.dtype}",
            fix="return both",
        )
    if first is not None:
        return outer
    return outer._replace(layout=outer.layout or torch.strided, device=outer.device or torch.device("cpu"))


def _wrong_tensor(cls: type, name: str, value: Any) -> ProtocolError:
    return ProtocolError(
        f"{cls.__name__}.{name} must be a tensor",
        path=f"{cls.__name__}.{name}",
        expected="torch.Tensor",
        got=f"{type(value).__qualname__}: {value!r:.60}",
        fix=f"pass a tensor, or declare `{name}: Tensor | None` if it may be absent",
    )


def _check_context(cls: type, name: str, value: Any) -> None:
    """Refuse context that can change behind the back of a guard."""
    if isinstance(value, _MUTABLE):
        raise ProtocolError(
            f"{cls.__name__}.{name} is context and cannot be a {type(value).__qualname__}",
            path=f"{cls.__name__}.{name}",
            expected="a value that does not change: a number, str, dtype, tuple, enum, frozen dataclass",
            got=f"{value!r:.60}",
            fix="annotate it as Tensor" if isinstance(value, torch.Tensor) else "pass a tuple or a frozenset",
        )
