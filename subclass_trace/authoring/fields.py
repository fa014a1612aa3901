"""What a class declares: its annotations as fields, each an inner tensor, an optional one, or
context.

The rules are those of dataclasses, since a dataclass of the fields takes the arguments of the
constructor. How a wrapper is made of its fields, taken apart and made again stands here too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import inspect
import sys
import types
import typing
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from ..errors import ProtocolError, UnsupportedError
from ..state.current import call_method
from ..torch_api.wrappers import make_wrapper_subclass

DECLARED = "_wrapper_declared"  # the class attribute that holds the declaration
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


@dataclasses.dataclass(frozen=True, slots=True)
class Declaration:
    """The fields of a wrapper class.

    Attributes:
        values: a dataclass of them.
        names: of all fields, in the order of the constructor.
        inner: names of the inner tensors; ``optional`` of those that may be None.
        context: names of all others.
        loads: enums and dataclasses that annotations name, whose values stand in checkpoints.
    """

    values: Any
    names: tuple[str, ...]
    inner: tuple[str, ...]
    optional: frozenset[str]
    context: tuple[str, ...]
    loads: tuple[type, ...]


def declaration(cls: type, reserved: frozenset[str]) -> Declaration:
    """Read the annotations of a class that is being made, after those of its bases.

    Args:
        reserved: names that a field may not have.

    Raises:
        ProtocolError: an annotation or a default that cannot be a field; the message has the fix.
    """
    own, bodies = inspect.get_annotations(cls), vars(cls)
    bases = [vars(b)[DECLARED] for b in reversed(cls.__mro__[1:]) if DECLARED in vars(b)]
    parents = tuple(vars(b)[DECLARED].values for b in cls.__bases__ if DECLARED in vars(b))
    scope = _scope(cls)
    # Evaluated: from Python 3.12 on, dataclasses look for "KW_ONLY" and "ClassVar" in the module
    # that asks for the class.
    types = {n: _evaluate(a, scope) for n, a in own.items()}
    fields = [(n, t, bodies[n]) if n in bodies else (n, t) for n, t in types.items()]
    where = {"__module__": cls.__module__}
    try:
        values = dataclasses.make_dataclass(
            "Values", fields, bases=parents, namespace=where, eq=False, repr=False
        )
    except (TypeError, ValueError) as error:  # what dataclasses refuse: order, mutable defaults
        raise _error(cls, str(error), "fields are those of a dataclass") from error
    names = tuple(f.name for f in dataclasses.fields(values))
    inner = {n: n in d.optional for d in bases for n in d.inner}
    loads = [c for d in bases for c in d.loads]
    for name in (n for n in own if n in names):
        _check_name(cls, name, reserved)
        annotation = types[name]
        inner.pop(name, None)
        kind = _tensor_or_none(cls, name, annotation)
        if kind is not None:
            inner[name] = kind
        loads += [*_classes_in(annotation), *_classes_in(type(bodies.get(name)))]
    tensors = tuple(n for n in names if n in inner)
    optional = frozenset(n for n in tensors if inner[n])
    context = tuple(n for n in names if n not in inner)
    return Declaration(values, names, tensors, optional, context, tuple(dict.fromkeys(loads)))


def _tensor_or_none(cls: type, name: str, annotation: Any) -> bool | None:
    """Is it an inner tensor, and may it be None? None for context."""
    choices = set(typing.get_args(annotation)) if _is_union(annotation) else {annotation}
    tensors = {c for c in choices if _is_tensor(c)}
    if tensors and choices - tensors <= {type(None)}:
        return choices != tensors
    if any(map(_is_tensor, _parts(annotation))) or (
        isinstance(annotation, str) and "Tensor" in annotation
    ):
        raise ProtocolError(
            f"{cls.__name__}.{name} is neither an inner tensor nor context",
            path=f"{cls.__name__}.{name}",
            expected="Tensor, Tensor | None, or a type without tensors in it",
            got=annotation,
            fix="declare each inner tensor as a field of its own; tensors in containers or "
            "unions cannot be flattened",
        )
    return None


def _check_name(cls: type, name: str, reserved: frozenset[str]) -> None:
    if name in reserved or (name.startswith("__") and name.endswith("__")):
        plain = name.strip("_")
        free = next(
            n for n in (f"{plain}_", f"inner_{plain}", f"{plain}_of_wrapper") if n not in reserved
        )
        what = f"the field {cls.__name__}.{name} hides an attribute of torch.Tensor"
        raise ProtocolError(
            what, path=f"{cls.__name__}.{name}", fix=f"rename it, for example {free}"
        )


def _error(cls: type, what: str, fix: str) -> ProtocolError:
    return ProtocolError(f"{cls.__name__}: {what}", path=cls.__name__, fix=fix)


# ---- annotations
def _scope(cls: type) -> tuple[dict[str, Any], dict[str, Any]]:
    """Global and local names where the class statement stands: the frame that called
    ``__init_subclass__``."""
    frame = sys._getframe(1)
    module = vars(sys.modules.get(cls.__module__, types.ModuleType("none")))
    while frame.f_back is not None and (
        frame.f_code.co_name == "__init_subclass__" or frame.f_globals.get("__name__") == __name__
    ):
        frame = frame.f_back
    return {**module, **frame.f_globals}, {**frame.f_locals, **vars(cls), cls.__name__: cls}


def _evaluate(annotation: Any, scope: tuple[dict[str, Any], dict[str, Any]]) -> Any:
    """The annotation as an object; its text where a name in it is not defined (imported for type
    checkers only)."""
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, *scope)
        except (NameError, AttributeError, TypeError):
            return annotation
    while typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    return annotation


def _is_tensor(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, torch.Tensor)


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _parts(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in typing.get_args(annotation):
        yield from _parts(part)


def _classes_in(annotation: Any, seen: tuple[type, ...] = ()) -> Iterator[type]:
    """The enums and dataclasses that an annotation names, and those that the fields of the
    dataclasses name."""
    for part in _parts(annotation):
        if not isinstance(part, type) or part in seen:
            continue
        if issubclass(part, enum.Enum) or dataclasses.is_dataclass(part):
            yield part
        if dataclasses.is_dataclass(part):
            with contextlib.suppress(NameError):  # a name for type checkers only
                for hint in typing.get_type_hints(part).values():
                    yield from _classes_in(hint, (*seen, part))


# ---- making a wrapper
def construct(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """What ``cls(...)`` does: the arguments checked, the wrapper built, ``__post_init__``."""
    declared: Declaration = getattr(cls, DECLARED)
    values = vars(declared.values(*args, **kwargs))
    for name in declared.inner:
        value = values[name]
        if not isinstance(value, torch.Tensor) and not (
            value is None and name in declared.optional
        ):
            raise ProtocolError(
                f"{cls.__name__}.{name} must be a tensor",
                path=f"{cls.__name__}.{name}",
                expected="torch.Tensor",
                got=f"{type(value).__qualname__}: {value!r:.60}",
                fix=f"pass a tensor, or declare `{name}: Tensor | None` if it may be absent",
            )
    for name in declared.context:
        if isinstance(values[name], _MUTABLE):  # it could change behind the back of a guard
            raise ProtocolError(
                f"{cls.__name__}.{name} is context and cannot be a "
                f"{type(values[name]).__qualname__}",
                path=f"{cls.__name__}.{name}",
                expected="a value that does not change: a number, str, dtype, tuple, enum, "
                "frozen dataclass",
                fix="annotate it as Tensor, or pass a tuple or a frozenset",
            )
    self = build(cls, values)
    call_method(self, "__post_init__")
    return self


def build(
    cls: Any, values: dict[str, Any], outer_size: Any = None, outer_stride: Any = None
) -> Any:
    """A wrapper of these values of fields, which it keeps; what is given of the outside has
    precedence."""
    declared: Declaration = getattr(cls, DECLARED)
    first = None
    for name in declared.inner:
        t = values[name]
        if t is not None:
            if t.requires_grad:
                values[name] = t = t.detach()
            # inside of dispatch torch does not look at the bits of inner tensors
            if t.is_conj() or t.is_neg():
                raise UnsupportedError(
                    f"the inner tensor {name} has a conjugate or negative bit",
                    code="wrapper-form",
                    path=f"{cls.__name__}.{name}",
                    fix="use x.resolve_conj().resolve_neg(), or x.conj_physical()",
                )
            first = t if first is None else first
    has = cls._wrapper_has_metadata
    o = call_method(cls, "outer_metadata", SimpleNamespace(**values)) if has else _AS_FIRST
    if first is None:
        first = _NOTHING
    derived = o.size is not None
    size = outer_size if outer_size is not None else o.size if derived else first.shape
    stride = outer_stride if outer_stride is not None else o.stride
    offset = o.storage_offset
    if stride is None and not derived and outer_size is None:
        stride = first.stride()
    if offset is None and not derived:
        offset = first.storage_offset()
    self = make_wrapper_subclass(
        cls,
        size,
        strides=stride,
        storage_offset=None if stride is None else offset,
        dtype=o.dtype or first.dtype,
        layout=o.layout or first.layout,
        device=o.device or first.device,
    )
    self.__dict__.update(values)
    return self


_AS_FIRST = Outer()
_NOTHING = torch.empty(0)  # instead of a first inner tensor, where there is none


def values_of(x: Any) -> dict[str, Any]:
    """The values of the fields, by name: a new dictionary."""
    return {n: getattr(x, n) for n in getattr(x, DECLARED).names}


def like(x: Any, tensors: dict[str, Any], outer_size: Any = None, outer_stride: Any = None) -> Any:
    """A wrapper with the context of ``x`` over other inner tensors; optional ones that are not
    given are absent."""
    declared: Declaration = getattr(x, DECLARED)
    context = {n: getattr(x, n) for n in declared.context}
    return build(
        type(x), {**dict.fromkeys(declared.inner), **tensors, **context}, outer_size, outer_stride
    )


def flatten(self: Any) -> tuple[list[str], Any]:
    """``__tensor_flatten__``: the names of the inner tensors that are there, and the context as a
    tuple."""
    declared: Declaration = getattr(self, DECLARED)
    names = [
        n for n in declared.inner if n not in declared.optional or getattr(self, n) is not None
    ]
    return names, tuple([getattr(self, n) for n in declared.context]) if declared.context else None


def flatten_for(declared: Declaration) -> Any:
    """`flatten`, or where nothing differs between instances a function that is marked so: guards
    need not call it."""
    if declared.optional or declared.context:
        return flatten

    def always(self: Any) -> tuple[list[str], None]:
        return [*declared.inner], None

    always.is_constant = True  # type: ignore[attr-defined]
    return always


def unflatten_for(cls: Any) -> Any:
    """``__tensor_unflatten__`` of a class."""
    declared: Declaration = getattr(cls, DECLARED)

    def unflatten(inner: dict[str, Any], context: Any, outer_size: Any, outer_stride: Any) -> Any:
        values = {
            n: inner[n] if n not in declared.optional else inner.get(n) for n in declared.inner
        }
        return build(
            cls,
            {**values, **dict(zip(declared.context, context or (), strict=True))},
            outer_size,
            outer_stride,
        )

    return unflatten
