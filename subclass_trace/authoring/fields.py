"""What a class declares: its annotations as fields, each an inner tensor, an optional one, or context.

The rules are those of dataclasses: fields of base classes come first, a field with a default may not be followed by
one without, ``ClassVar`` is no field, and what follows ``_: dataclasses.KW_ONLY`` is keyword-only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import inspect
import sys
import types
import typing
from collections.abc import Iterator
from dataclasses import MISSING, dataclass
from typing import Any

import torch

from ..errors import ProtocolError

FIELDS = "_wrapper_fields"  # the class attribute that holds the fields


class FieldKind(enum.Enum):
    """What an annotation makes of an attribute."""

    TENSOR = "inner tensor"
    OPTIONAL = "inner tensor or None"
    CONTEXT = "context"


@dataclass(frozen=True, slots=True)
class Field:
    """One declared attribute of a wrapper class.

    Attributes:
        default: ``dataclasses.MISSING`` where the constructor needs a value.
        keyword: given by keyword only.
        loads: classes (enums, dataclasses) that the annotation names, whose values stand in checkpoints.
    """

    name: str
    kind: FieldKind
    default: Any = MISSING
    keyword: bool = False
    loads: tuple[type, ...] = ()

    @property
    def is_inner(self) -> bool:
        """Is it an inner tensor, perhaps an absent one?"""
        return self.kind is not FieldKind.CONTEXT


def fields_of(cls: type) -> tuple[Field, ...]:
    """The fields of a wrapper class, in the order of its constructor."""
    found: tuple[Field, ...] = getattr(cls, FIELDS, ())
    return found


def declared_fields(cls: type, reserved: frozenset[str]) -> tuple[Field, ...]:
    """Read the annotations of a class that is being made, after those of its bases.

    Args:
        reserved: names that a field may not have.

    Raises:
        ProtocolError: an annotation or a default that cannot be a field; the message has the fix.
    """
    fields: dict[str, Field] = {}
    for base in reversed(cls.__mro__[1:]):
        fields |= {f.name: f for f in vars(base).get(FIELDS, ()) if f.name not in fields or _own(base, f)}
    for own in _own_fields(cls, reserved):
        before = fields.get(own.name)
        if before is not None and before.is_inner != own.is_inner:
            raise _error(
                cls, own.name, f"is {own.kind.value} here and {before.kind.value} in a base class", "rename it"
            )
        fields[own.name] = own
    found = tuple(fields.values())
    _check_order(cls, found)
    return found


def _own(base: type, field: Field) -> bool:
    return field.name in inspect.get_annotations(base)


def _own_fields(cls: type, reserved: frozenset[str]) -> Iterator[Field]:
    scope = _scope(cls)
    keyword = False
    for name, text in inspect.get_annotations(cls).items():
        annotation = _evaluate(cls, name, text, scope)
        if annotation is dataclasses.KW_ONLY:
            keyword = True
        elif not (annotation is typing.ClassVar or typing.get_origin(annotation) is typing.ClassVar):
            yield _field(cls, name, annotation, keyword, reserved)


def _field(cls: type, name: str, annotation: Any, keyword: bool, reserved: frozenset[str]) -> Field:
    if name in reserved or (name.startswith("__") and name.endswith("__")):
        plain = name.strip("_")
        free = next(n for n in (f"{plain}_", f"inner_{plain}", f"{plain}_of_wrapper") if n not in reserved)
        raise _error(cls, name, "hides an attribute of torch.Tensor", f"rename it, for example {free}")
    default = vars(cls).get(name, MISSING)
    if isinstance(default, types.MemberDescriptorType):
        raise _error(cls, name, "is a slot", "remove __slots__: torch keeps attributes of tensors in __dict__")
    kind = _kind(cls, name, annotation)
    if kind is FieldKind.CONTEXT:
        if isinstance(default, torch.Tensor):
            raise _error(cls, name, "has a tensor as default, but is not annotated as Tensor", f"{name}: Tensor")
        if default is not MISSING and not _hashable(default):
            fix = "use an immutable default: a tuple, a frozenset, a frozen dataclass"
            raise _error(cls, name, f"has a mutable default, {default!r:.60}", fix)
    elif default is not MISSING and (kind is FieldKind.TENSOR or default is not None):
        fix = f"{name}: Tensor | None = None, and make the tensor in __new__ or where the wrapper is made"
        raise _error(cls, name, "is an inner tensor with a default, which all instances would share", fix)
    loads = (*_classes_in(annotation), *_classes_in(type(default)))
    return Field(name, kind, default, keyword, tuple(dict.fromkeys(loads)))


def _kind(cls: type, name: str, annotation: Any) -> FieldKind:
    if isinstance(annotation, str):  # not resolvable; what it says has to do
        if "Tensor" in annotation:
            raise _neither(cls, name, annotation)
        return FieldKind.CONTEXT
    if _is_tensor(annotation):
        return FieldKind.TENSOR
    if _is_union(annotation):
        choices = set(typing.get_args(annotation))
        tensors = {c for c in choices if _is_tensor(c)}
        if tensors and choices - tensors <= {type(None)}:
            return FieldKind.TENSOR if choices == tensors else FieldKind.OPTIONAL
    if any(map(_is_tensor, _parts(annotation))):
        raise _neither(cls, name, annotation)
    for part in [annotation, *(typing.get_args(annotation) if _is_union(annotation) else ())]:
        mutable = typing.get_origin(part) or part
        if isinstance(mutable, type) and mutable.__hash__ is None:
            fix = "context must stay as it is: use a tuple, a frozenset, or a frozen dataclass"
            raise _error(cls, name, f"is context of a mutable type, {_shown(annotation)}", fix)
    return FieldKind.CONTEXT


def _check_order(cls: type, fields: tuple[Field, ...]) -> None:
    optional: str | None = None
    for field in (f for f in fields if not f.keyword):
        if field.default is not MISSING:
            optional = field.name
        elif optional is not None:
            fix = f"give {field.name} a default, move it up, or put `_: dataclasses.KW_ONLY` before it"
            raise _error(cls, field.name, f"has no default but follows {optional}, which has one", fix)


# ------------------------------------------------------------------------------------------------------- annotations
def _scope(cls: type) -> tuple[dict[str, Any], dict[str, Any]]:
    """Global and local names where the class statement stands: the frame that called ``__init_subclass__``."""
    frame = sys._getframe(1)
    module = vars(sys.modules.get(cls.__module__, types.ModuleType("none")))
    while frame.f_back is not None and (
        frame.f_code.co_name == "__init_subclass__" or frame.f_globals.get("__name__") == __name__
    ):
        frame = frame.f_back
    return {**module, **frame.f_globals}, {**frame.f_locals, **vars(cls), cls.__name__: cls}


def _evaluate(cls: type, name: str, annotation: Any, scope: tuple[dict[str, Any], dict[str, Any]]) -> Any:
    """The annotation as an object; its text where a name in it is not defined (imported for type checkers only)."""
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
    """The enums and dataclasses that an annotation names, and those that the fields of the dataclasses name."""
    for part in _parts(annotation):
        if isinstance(part, type) and part not in seen and issubclass(part, enum.Enum):
            yield part
        elif isinstance(part, type) and part not in seen and dataclasses.is_dataclass(part):
            yield part
            with contextlib.suppress(NameError):  # a name for type checkers only
                for hint in typing.get_type_hints(part).values():
                    yield from _classes_in(hint, (*seen, part))


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


# ------------------------------------------------------------------------------------------------------------ errors
def _shown(annotation: Any) -> str:
    if isinstance(annotation, str):
        return annotation
    return annotation.__name__ if isinstance(annotation, type) and not typing.get_args(annotation) else str(annotation)


def _neither(cls: type, name: str, annotation: Any) -> ProtocolError:
    return ProtocolError(
        f"{cls.__name__}.{name} is neither an inner tensor nor context",
        path=f"{cls.__name__}.{name}",
        expected="Tensor, Tensor | None, or a type without tensors in it",
        got=_shown(annotation),
        fix="declare each inner tensor as a field of its own; tensors in containers or unions cannot be flattened",
    )


def _error(cls: type, name: str, what: str, fix: str) -> ProtocolError:
    path = f"{cls.__name__}.{name}"
    return ProtocolError(f"the field {path} {what}", path=path, fix=fix)
