"""What guards keep of flatten contexts.

A guard that held an object itself would compare it with itself, however it was changed in between. So it keeps, beside
the object, what that held: attributes, items, the cells of a function. See docs/notes/contexts.md.

>>> import types
>>> from subclass_trace.subclass.context import same_context
>>> scale = types.SimpleNamespace(value=2)
>>> known = kept((scale, 1))
>>> same_context(known, (scale, 1))
True
>>> scale.value = 3
>>> same_context(known, (scale, 1))
False
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from .. import _torch
from ..errors import UnsupportedError
from .arguments import (
    ObjectIdentity,
    attribute_inside,
    has_attributes,
    is_iterator,
)
from .classes import Classes, KeptClass
from .components import parts_of
from .context import (
    KeptPlain,
    Sizes,
    StandIn,
    has_generated_equality,
    has_sizes,
    is_atom,
    is_buffer,
    map_fields,
    map_items,
    snapshot,
)
from .kept_objects import (
    HeldObject,
    KeptFields,
    KeptObject,
    KeptReference,
    KeptTensor,
    is_foreign,
    is_looked_inside,
)
from .noted_dict import ROWS
from .paths import Path
from .spec import LeafSpec, OpaqueSpec, Spec, WrapperSpec
from .tensors import parts_of_tensor, why_not_comparable
from .visit import VALUE

#: what is more, or deeper, inside of an object is compared by itself alone
_DEEPEST, _MOST_OBJECTS, _MOST_PARTS = 20, 200, 2000


def kept(context: Any, path: Path = VALUE) -> Any:
    """What a guard keeps of the context of the wrapper at ``path``; `same_context` compares it with that of a call.

    Raises:
        UnsupportedError: it holds what cannot be compared, or itself.
    """
    return Keeping().context(context, path)


def _checks_fields(value: Any) -> bool:
    """Has a dataclass code that runs where a field is set? So has ``DTensorSpec``, DTensor's context until torch 2.11."""
    own = any("__setattr__" in vars(k) for k in type(value).__mro__[:-1])
    return own and not type(value).__dataclass_params__.frozen


def _of_class(value: Any) -> Any:
    """What a guard keeps of what a class holds: itself, where that cannot be compared."""
    try:
        return kept(value)
    except UnsupportedError:
        return ObjectIdentity(value)


def kept_spec(spec: Spec, path: Path = VALUE, keeping: Keeping | None = None) -> Spec:
    """A spec with what guards keep of its contexts, and of its values that are no tensors.

    Raises:
        UnsupportedError: see `kept`.
    """
    if isinstance(spec, LeafSpec):
        return spec
    keeping = keeping or Keeping()
    if isinstance(spec, OpaqueSpec):
        return OpaqueSpec(keeping.context(spec.value, path))
    inners = tuple(kept_spec(s, path.attr(n), keeping) for n, s in zip(spec.names, spec.inners, strict=True))
    return replace(spec, inners=inners, context=keeping.context(spec.context, path))


def kept_fields(spec: Spec) -> Iterator[KeptFields]:
    """The dataclasses in a spec of which guards compare what was read."""

    def look(value: Any) -> Iterator[KeptFields]:
        if isinstance(value, KeptFields):
            yield value
            value = list(value.rows.values())
        for _, part in parts_of(value):
            yield from look(part)

    if isinstance(spec, WrapperSpec):
        for inner in spec.inners:
            yield from kept_fields(inner)
        yield from look(spec.context)


class Keeping:
    """A walk through contexts.

    Attributes:
        objects: those that were met, by id. What it makes of them compares their state, too.
        dataclasses: those of the user's with generated equality that were met, by id.
    """

    def __init__(self) -> None:
        self.objects: dict[int, KeptObject] = {}
        self.dataclasses: dict[int, Any] = {}
        self.whole = 0
        self._start(VALUE)

    def context(self, context: Any, path: Path) -> Any:
        """See `kept`."""
        if is_atom(context):
            return context
        self._start(path)
        return self.keep(context, Path("context"), ())

    def _start(self, path: Path) -> None:
        """One context more. What it holds may be so much, beside what was met in others."""
        self.path, self.parts, self._most = path, 0, len(self.objects) + _MOST_OBJECTS

    def names(self, value: Any) -> list[str] | None:
        """The attributes of an object that count; None: all that it holds."""
        return None

    def met(self, value: Any, inside: bool) -> Any:
        """What stands for an object that is among ``objects``; ``inside``: in the place of a part of one."""
        return ObjectIdentity(value) if inside else self.objects[id(value)]

    def keep(self, value: Any, at: Path, around: tuple[int, ...]) -> Any:
        """What is kept of a value at ``at``. ``around``: the ids of what it is inside of."""
        if is_atom(value) or isinstance(value, StandIn):
            return value
        if isinstance(value, torch.Tensor):
            return self._tensor(value, at, around)
        if is_iterator(value):
            return self._by_itself(
                value, around, at, f"an iterator, {type(value).__qualname__}, which gives each item once"
            )
        if is_buffer(value):
            return snapshot(value)
        if id(value) in self.objects:  # an object that leads back to itself is compared once
            return self.met(value, self._in_object(around))
        if id(value) in around:
            return self._by_itself(value, around, at, f"a {type(value).__qualname__} that contains itself")
        if len(around) > _DEEPEST:
            return self._by_itself(value, around, at, f"values that are more than {_DEEPEST} deep inside of others")
        inside = (*around, id(value))
        if type(value) in (list, dict) and self._in_object(around):
            self.parts += len(value)
            if self.parts > _MOST_PARTS:
                return ObjectIdentity(value)
        if type(value) in (tuple, torch.Size, Sizes) or (isinstance(value, tuple) and hasattr(value, "_fields")):
            return map_items(value, lambda v: self.keep(v, at, inside))
        if type(value) is list:
            return [self.keep(v, at.item(k), inside) for k, v in enumerate(value)]
        if type(value) in ROWS:
            return {k: self.keep(v, at.item(k), inside) for k, v in dict.items(value)}
        if type(value) in (set, frozenset) and all(map(is_atom, value)):
            return type(value)(value)
        if has_generated_equality(value):
            if not is_foreign(type(value)):
                self.dataclasses[id(value)] = value
            return self.fields(value, at, inside)
        return self._object(value, at, inside) if is_looked_inside(value) else value

    def fields(self, value: Any, at: Path, inside: tuple[int, ...]) -> Any:
        """What is kept of a dataclass with generated equality."""
        with self._as_they_are() if _checks_fields(value) else contextlib.nullcontext():
            return map_fields(value, lambda v: self._field(v, at, inside))

    def _tensor(self, value: torch.Tensor, at: Path, around: tuple[int, ...]) -> Any:
        if _torch.is_fake(value) or _torch.is_functorch_wrapped(value):
            return ObjectIdentity(value)
        reason = why_not_comparable(value)
        if reason is not None and not self._in_object(around):
            raise self._refused(at, reason)
        if type(value) is not torch.Tensor or self._in_object(around):
            return KeptReference(value)
        parts = parts_of_tensor(value)
        return KeptTensor(value, None if parts is None else self.keep(parts, at, around))

    @contextlib.contextmanager
    def _as_they_are(self) -> Iterator[None]:
        """Inside, plain containers stay containers: a class looks at what its fields are set to."""
        self.whole += 1
        try:
            yield
        finally:
            self.whole -= 1

    def _field(self, value: Any, at: Path, inside: tuple[int, ...]) -> Any:
        """A field of a dataclass. A copy of it has the very tensors too: see `snapshot`."""
        return KeptReference(value) if isinstance(value, torch.Tensor) else self.keep(value, at, inside)

    def _in_object(self, around: tuple[int, ...]) -> bool:
        """Is it inside of an object, of which a wrapper is given no copy?"""
        return not self.objects.keys().isdisjoint(around)

    def _object(self, value: Any, at: Path, inside: tuple[int, ...]) -> Any:
        """What is kept of an object. A region meets the very tensors that it holds."""
        made = KeptObject(value, f"{at} of {self.path}", self.names(value))
        rows = made.rows()
        self.parts += len(rows)
        if len(self.objects) >= self._most or self.parts > _MOST_PARTS:
            return ObjectIdentity(value)
        self.objects[id(value)] = made
        made.keys = tuple(k for k, _ in rows)
        made.parts = tuple(self.keep(v, at.attr(k) if isinstance(k, str) else at.item(k), inside) for k, v in rows)
        return made

    def _by_itself(self, value: Any, around: tuple[int, ...], at: Path, what: str) -> Any:
        """Inside of an object, one that cannot be looked into is compared by what it is."""
        if self._in_object(around):
            return ObjectIdentity(value)
        raise self._refused(at, what)

    def _refused(self, at: Path, what: str) -> UnsupportedError:
        return UnsupportedError(
            f"a flatten context holds {what}: guards cannot compare it",
            path=f"{at} of {self.path}",
            expected="numbers, strings, and objects that are made of such; dense and sparse tensors, and wrappers of them",
            got=what,
            fix="let __tensor_flatten__ return the values that the operations of the class read",
        )


class Held(Keeping):
    """A walk in which each object is met once: a guard compares what it holds once in a call, however many hold it.

    Args:
        read: the attributes of an object that a trace has read; None: nobody knows.
    """

    def __init__(self, read: Callable[[Any], list[str] | None]) -> None:
        super().__init__()
        self._read = read
        self._classes = Classes()

    def context(self, context: Any, path: Path) -> Any:
        """See `kept`. A class may be a context itself."""
        if isinstance(context, type):
            self._classes.add(context, None, f"context of {path}")
        return super().context(context, path)

    def names(self, value: Any) -> list[str] | None:
        """What the trace has read of an object."""
        return self._read(value)

    def keep(self, value: Any, at: Path, around: tuple[int, ...]) -> Any:
        """What stands for a value: `HeldObject` for one of ``objects``."""
        plain = None if self.whole else KeptPlain.of(value)
        if plain is not None:
            self.parts += len(value)
            return ObjectIdentity(value) if self._in_object(around) and self.parts > _MOST_PARTS else plain
        if isinstance(value, type):
            self._classes.add(value, None, f"{at} of {self.path}")
        elif has_attributes(value) and not is_atom(value):
            self._classes.add(value, self.names(value), f"{at} of {self.path}")
        found = super().keep(value, at, around)
        return HeldObject(found) if isinstance(found, KeptObject) else found

    def met(self, value: Any, inside: bool) -> Any:
        """What stands for an object that was met."""
        return HeldObject(self.objects[id(value)])

    def fields(self, value: Any, at: Path, inside: tuple[int, ...]) -> Any:
        """`KeptFields` where the trace tells what it has read, and sizes decide none of it."""
        names = self.names(value)
        if names is None or has_sizes(value):
            return super().fields(value, at, inside)
        marks = {key: mark for (_, key), mark in parts_of(value) if isinstance(mark, StandIn)}
        rows = {n: marks.get(n) or self._field(attribute_inside(value, n), at.attr(n), inside) for n in names}
        return KeptFields(value, {**rows, **marks}, f"{at} of {self.path}")

    def rows(self, beside: Iterable[Any] = ()) -> tuple[KeptObject | KeptClass, ...]:
        """The objects, and those of ``beside`` of which attributes were read, as far as anything in them counts; and their
        classes."""
        for value in beside:
            if id(value) not in self.objects and self.names(value) != []:
                self.context(value, VALUE)
        return (*(row for row in self.objects.values() if row.names != []), *self._classes.rows(_of_class))
