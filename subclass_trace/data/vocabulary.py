"""Values as data: literals, containers, records of this package, expressions over symbols, and
things that have names.

What JSON has stands for itself; all else is a list that begins with a tag. One line of `_CODECS`
says of each kind how it is written and read. A float is written in hexadecimal: every bit of it.

>>> Writer().value((1, 0.5, {"k": torch.float32}))
['tuple', 1, ['float', '0x1.0000000000000p-1'], ['dict', ['k', ['dtype', 'float32']]]]
>>> Reader().value(Writer().value((1, [2], slice(3))))
(1, [2], slice(None, 3, None))
>>> writer = Writer()
>>> writer.value({"f": lambda: 0}, "config"), [str(gap) for gap in writer.gaps]
(['dict', ['f', ['gap']]], ["config['f']: a function that no name leads to"])
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import fractions
import functools
import hashlib
import pathlib
import re
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch

from .. import plan
from ..errors import DescriptionError, Unlike
from ..plan import descriptors
from ..plan import values as recipes
from ..state.values import MISSING, short, solid_base
from ..subclass import context, spec
from ..subclass.paths import Path
from ..subclass.template import Template
from ..torch_api.attention import AttentionKernels
from ..torch_api.dtensor_modes import DTensorModes
from ..torch_api.expressions import (
    bytes_of,
    expression_data,
    expression_of_data,
    is_expression,
    tensor_of,
)
from ..torch_api.kinds import is_dense, is_lazy
from ..torch_api.wrappers import (
    enumeration_data,
    enumeration_of,
    is_numpy_scalar,
    placement_data,
    placement_of,
)
from .checks import check
from .objects import find, name_of

#: records of this package, which are written by name and fields
RECORDS: dict[str, Any] = {
    cls.__name__: cls
    for module in (plan, descriptors, recipes, spec)
    for cls in vars(module).values()
    if dataclasses.is_dataclass(cls) and isinstance(cls, type)
}
RECORDS |= {cls.__name__: cls for cls in (Path, Template, DTensorModes, AttentionKernels)}
_FIELDS: dict[type, tuple[str, ...]] = {
    cls: tuple(cls._fields)
    if hasattr(cls, "_fields")
    else tuple(f.name for f in dataclasses.fields(cls))
    for cls in RECORDS.values()
}
_PLAIN = (bool, int, str, type(None))


class Gap(NamedTuple):
    """Something that cannot be written, and where it stands."""

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


class Writer:
    """Writes values.

    Attributes:
        gaps: what could not be.
        constants: the bytes of tensors, in base64, by the name under which the tensors ask for
            them.
    """

    def __init__(self) -> None:
        self.gaps: list[Gap] = []
        self.constants: dict[str, str] = {}

    def gap(self, path: str, what: str) -> Any:
        """Something cannot be written."""
        self.gaps.append(Gap(path, what))
        return ["gap"]

    def value(self, value: Any, path: str = "value") -> Any:
        """A value as data; ``path``: where it stands, for people."""
        if type(value) in _PLAIN:
            return value
        found = _BY_CLASS.get(type(value))
        if found is not None:
            return [found.tag, *found.write(self, value, path)]
        return self.other(value, path)

    def other(self, value: Any, path: str) -> Any:
        """What is of no kind that is known by its class."""
        if value is MISSING:
            return ["missing"]
        if (name := name_of(value)) is not None:
            return ["named", *name]
        if (
            isinstance(value, tuple)
            and hasattr(value, "_fields")
            and (name := name_of(type(value))) is not None
        ):
            return [
                "named tuple",
                name,
                *(self.value(v, f"{path}.{n}") for n, v in zip(value._fields, value, strict=True)),
            ]
        plain = context.has_generated_equality(value) and solid_base(type(value)) is object
        if plain and (name := name_of(type(value))) is not None:
            held = {f: getattr(value, f) for f in context.fields_of(value)}
            return ["object", name, *([n, self.value(v, f"{path}.{n}")] for n, v in held.items())]
        if (known := enumeration_data(value)) is not None:
            return ["enumeration", *known]
        if (known := placement_data(value)) is not None:
            return ["placement", *known]
        if type(value) in _BY_TEXT:
            return ["of text", type(value).__name__, *_BY_TEXT[type(value)][0](value)]
        if is_numpy_scalar(value):
            return ["number of numpy", value.dtype.str, base64.b64encode(value.tobytes()).decode()]
        if (
            type(value).__module__ == "numpy"
            and type(value).__name__ == "ndarray"
            and not value.dtype.hasobject
        ):
            text = base64.b64encode(value.tobytes()).decode()
            return ["array", value.dtype.str, [*value.shape], text]
        if is_expression(value):
            return ["expression", expression_data(value)]
        if isinstance(value, torch.Tensor) and type(value) in (torch.Tensor, torch.nn.Parameter):
            return self.tensor(value, path)
        return self.gap(path, f"a {type(value).__qualname__} that no name leads to")

    def tensor(self, value: torch.Tensor, path: str) -> Any:
        """A constant of the trace, whole."""
        plain = is_dense(value) and not is_lazy(value) and value.device.type == "cpu"
        if not plain or value.requires_grad or value.storage_offset():
            return self.gap(path, "a tensor that is no plain constant")
        held = bytes_of(value)
        name = hashlib.sha256(held).hexdigest()[:24]
        if name not in self.constants:
            self.constants[name] = base64.b64encode(held).decode()
        return [
            "tensor",
            str(value.dtype).removeprefix("torch."),
            [*value.shape],
            [*value.stride()],
            name,
        ]


class Reader:
    """Reads what `Writer` has written.

    Attributes:
        constants: what the writer's are; the bytes themselves will do.

    Raises:
        DescriptionError: by each method: it is broken, or names something that is not loaded.
    """

    #: tag -> how it is read
    kinds: ClassVar[dict[str, Callable[..., Any]]]

    def __init__(self, constants: Mapping[str, str | bytes] | None = None) -> None:
        self.constants = constants or {}

    def value(self, data: Any) -> Any:
        """A value of its data."""
        if type(data) in _PLAIN:
            return data
        try:
            read = self.kinds[data[0]]
        except (TypeError, IndexError, KeyError):
            raise DescriptionError("no such kind of value", got=short(data)) from None
        try:
            return read(self, *data[1:])
        except (DescriptionError, Unlike):
            raise
        except (
            ArithmeticError,
            AttributeError,
            IndexError,
            KeyError,
            TypeError,
            ValueError,
        ) as error:
            raise DescriptionError(
                "a broken value", path=data[0], got=f"{type(error).__name__}: {error}"
            ) from error


class _Codec(NamedTuple):
    """How values of a class are written behind a tag, and read."""

    tag: str
    write: Callable[[Writer, Any, str], list[Any]]
    read: Callable[..., Any]


def _items(w: Writer, value: Any, path: str) -> list[Any]:
    return [w.value(v, f"{path}[{k}]") for k, v in enumerate(value)]


def _pairs(w: Writer, value: dict[Any, Any], path: str) -> list[Any]:
    return [
        [w.value(k, f"a key of {path}"), w.value(v, f"{path}[{short(k)}]")]
        for k, v in value.items()
    ]


def _set(w: Writer, value: Any, path: str) -> list[Any]:
    return sorted((w.value(v, path) for v in value), key=repr)


def _record(w: Writer, value: Any, path: str) -> list[Any]:
    cls = type(value)
    return [
        cls.__name__,
        *(w.value(getattr(value, name), f"{path}.{name}") for name in _FIELDS[cls]),
    ]


def _read_record(r: Reader, name: str, *fields: Any) -> Any:
    cls = RECORDS[name]
    return check(cls(**dict(zip(_FIELDS[cls], map(r.value, fields), strict=True))))


def _read_object(r: Reader, name: Any, *fields: Any) -> Any:
    """An instance of a dataclass, past its own ``__init__``."""
    cls = find(name)
    made = object.__new__(cls)
    if not context.has_generated_equality(made):
        raise TypeError(f"{cls.__qualname__} is no dataclass")
    for field, data in fields:
        object.__setattr__(made, field, r.value(data))
    return made


def _of_torch(kind: type) -> Callable[[Reader, str], Any]:
    def read(_: Reader, name: str) -> Any:
        found = getattr(torch, name)
        if type(found) is not kind:
            raise TypeError(f"{name} is no {kind.__name__}")
        return found

    return read


def _name(_: Writer, value: Any, path: str) -> list[Any]:
    return [str(value).removeprefix("torch.")]


def _tensor(r: Reader, dtype: str, size: Any, stride: Any, name: str) -> torch.Tensor:
    held = r.constants[name]
    held = base64.b64decode(held) if isinstance(held, str) else held
    return tensor_of(held, _of_torch(torch.dtype)(r, dtype), size, stride)


def _array(_: Reader, dtype: str, shape: Any, text: str) -> Any:
    numpy: Any = sys.modules["numpy"]
    return numpy.frombuffer(bytearray(base64.b64decode(text)), numpy.dtype(dtype)).reshape(shape)


#: immutable values of Python's library: how they are written, and read
_BY_TEXT: dict[type, tuple[Callable[[Any], list[Any]], Callable[..., Any]]] = {
    decimal.Decimal: (lambda v: [str(v)], decimal.Decimal),
    fractions.Fraction: (lambda v: [v.numerator, v.denominator], fractions.Fraction),
    datetime.timedelta: (lambda v: [v.days, v.seconds, v.microseconds], datetime.timedelta),
    **{
        kind: (lambda v: [v.isoformat()], kind.fromisoformat)
        for kind in (datetime.date, datetime.datetime, datetime.time)
    },
    **{kind: (lambda v: [str(v)], kind) for kind in (pathlib.PurePosixPath, pathlib.PosixPath)},
    re.Pattern: (lambda v: [v.pattern if type(v.pattern) is str else None, v.flags], re.compile),
}
_OF_TEXT = {kind.__name__: read for kind, (_, read) in _BY_TEXT.items()}


def _union(reader: Reader, *parts: Any) -> Any:
    first, *rest = map(reader.value, parts)
    if not rest or not all(isinstance(cls, type) for cls in (first, *rest)):
        raise DescriptionError("no union of classes", path="union")
    return functools.reduce(types.UnionType.__or__, rest, type.__or__(first, rest[0]))


def _floats(text: str) -> float:
    return float(text) if text in ("nan", "inf", "-inf") else float.fromhex(text)


def _hex(value: float) -> str:
    return value.hex()


_BY_CLASS: dict[type, _Codec] = {
    float: _Codec("float", lambda w, v, p: [_hex(v)], lambda r, t: _floats(t)),
    complex: _Codec(
        "complex",
        lambda w, v, p: [_hex(v.real), _hex(v.imag)],
        lambda r, a, b: complex(_floats(a), _floats(b)),
    ),
    bytes: _Codec(
        "bytes", lambda w, v, p: [base64.b64encode(v).decode()], lambda r, t: base64.b64decode(t)
    ),
    tuple: _Codec("tuple", _items, lambda r, *items: tuple(map(r.value, items))),
    list: _Codec("list", _items, lambda r, *items: [*map(r.value, items)]),
    set: _Codec("set", _set, lambda r, *items: {*map(r.value, items)}),
    frozenset: _Codec("frozenset", _set, lambda r, *items: frozenset(map(r.value, items))),
    dict: _Codec("dict", _pairs, lambda r, *pairs: {r.value(k): r.value(v) for k, v in pairs}),
    torch.Size: _Codec("Size", _items, lambda r, *items: torch.Size(map(r.value, items))),
    context.Sizes: _Codec("Sizes", _items, lambda r, *items: context.Sizes(map(r.value, items))),
    slice: _Codec(
        "slice",
        lambda w, v, p: _items(w, (v.start, v.stop, v.step), p),
        lambda r, *items: slice(*map(r.value, items)),
    ),
    types.UnionType: _Codec("union", lambda w, v, p: _items(w, v.__args__, p), _union),
    range: _Codec("range", lambda w, v, p: [v.start, v.stop, v.step], lambda r, *n: range(*n)),
    type(...): _Codec("...", lambda w, v, p: [], lambda r: ...),
    type(NotImplemented): _Codec("NotImplemented", lambda w, v, p: [], lambda r: NotImplemented),
    torch.dtype: _Codec("dtype", _name, _of_torch(torch.dtype)),
    torch.layout: _Codec("layout", _name, _of_torch(torch.layout)),
    torch.memory_format: _Codec("memory format", _name, _of_torch(torch.memory_format)),
    torch.device: _Codec("device", lambda w, v, p: [str(v)], lambda r, t: torch.device(t)),
    context.Outer: _Codec("outer", lambda w, v, p: [v.name], lambda r, t: context.Outer[t]),
    **dict.fromkeys(RECORDS.values(), _Codec("record", _record, _read_record)),
}
Reader.kinds = {
    **{codec.tag: codec.read for codec in _BY_CLASS.values()},
    "missing": lambda r: MISSING,
    "named": lambda r, *name: find([*name]),
    "named tuple": lambda r, name, *items: tuple.__new__(find(name), [*map(r.value, items)]),
    "object": _read_object,
    "enumeration": lambda r, *data: enumeration_of(*data),
    "placement": lambda r, *data: placement_of(*data),
    "expression": lambda r, tree: expression_of_data(tree),
    "tensor": _tensor,
    "array": _array,
    "of text": lambda r, name, *parts: _OF_TEXT[name](*parts),
    "number of numpy": lambda r, dtype, text: _array(r, dtype, [1], text)[0],
}
