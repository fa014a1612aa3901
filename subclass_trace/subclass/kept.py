"""What guards keep of flatten contexts: snapshots, with the types of values, and the objects of the user's by what they hold.

A guard that held an object itself would compare it with itself, however it was changed in between. So it keeps, beside
the object, what that held: attributes, items, the cells of a function, what its class holds. See docs/notes/contexts.md.

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

import enum
import functools
import types
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import torch

from .. import _torch
from ..errors import UnsupportedError
from .arguments import (
    FOREIGN,
    NAMESPACES,
    ObjectIdentity,
    attributes_inside,
    has_attributes,
    has_own_equality,
    is_iterator,
)
from .context import (
    PLAIN,
    Kept,
    KeptPlain,
    Sizes,
    StandIn,
    equal,
    has_generated_equality,
    has_sizes,
    is_atom,
    is_buffer,
    is_copied,
    is_frozen,
    map_items,
    same_context,
    snapshot,
)
from .paths import Path
from .spec import LeafSpec, OpaqueSpec, Spec
from .tensors import facts_of, why_not_comparable
from .visit import VALUE

_DEEPEST, _MOST_PARTS = 20, 2000
_HOLDERS = (
    *(list, tuple, deque, dict, set, frozenset, types.MappingProxyType),
    *(UserDict, UserList, ChainMap),
    *(types.MethodType, types.CellType, functools.partial, torch.nn.Module),
)


def kept(context: Any, path: Path = VALUE) -> Any:
    """What a guard keeps of the context of the wrapper at ``path``; `same_context` compares it with that of a call.

    Raises:
        UnsupportedError: it holds what cannot be compared, itself, or more than a guard looks at.
    """
    return context if is_atom(context) and not isinstance(context, type) else _Walk(path).keep(context, Path("context"))


def kept_spec(spec: Spec, path: Path = VALUE) -> Spec:
    """A spec with what guards keep of its contexts, and of its values that are no tensors.

    Raises:
        UnsupportedError: see `kept`.
    """
    if isinstance(spec, LeafSpec):
        return spec
    if isinstance(spec, OpaqueSpec):
        return OpaqueSpec(kept(spec.value, path))
    inners = tuple(kept_spec(s, path.attr(n)) for n, s in zip(spec.names, spec.inners, strict=True))
    return replace(spec, inners=inners, context=kept(spec.context, path))


class KeptObject(Kept):
    """An object of the user's, by reference, and what it and its class held.

    Another one may be in its place if its class says that they are equal: then the class decides, and what it is asked
    to compare with is a twin that holds what the object held. A dataclass with generated equality is its fields.
    """

    __slots__ = ("copied", "state", "twin")

    def __init__(self, value: Any, copied: bool) -> None:
        """``copied``: wrappers have copies of it, so that no call meets this one."""
        self.value, self.copied, self.twin = value, copied, None
        self.state: dict[Any, Any] = {}

    def holds(self, now: Any) -> bool:
        """Is ``now`` the same for a guard?"""
        if type(now) is not type(self.value):
            return False
        if self.twin is not None:
            return equal(self.twin, now) and same_context(self.state, dict(class_data(type(now))))
        alike = self.copied or now is self.value or (has_own_equality(type(now)) and equal(self.value, now))
        return alike and same_context(self.state, dict(holdings(now)))

    def fresh(self) -> Any:
        """The object, or a copy where it is one of those that are copied."""
        return snapshot(self.value) if self.copied else self.value

    def __repr__(self) -> str:
        return f"{self.value!r}"


class KeptReference(Kept):
    """A tensor that a region takes as an input of its own: what it holds may change, its metadata may not."""

    __slots__ = ("facts",)

    def __init__(self, value: torch.Tensor) -> None:
        self.value, self.facts = value, facts_of(value)

    def holds(self, now: Any) -> bool:
        """Is ``now`` that tensor, or one that is the same as it is now?"""
        if now is not self.value:
            return same_context(self.value, now)
        try:
            return facts_of(now) == self.facts
        except Exception:  # a class's own code
            return False

    def __repr__(self) -> str:
        return repr(self.value)


class _Walk:
    """A walk through one context."""

    def __init__(self, path: Path) -> None:
        self.path, self.met, self.parts = path, set[int](), 0

    def keep(self, value: Any, at: Path, around: tuple[int, ...] = (), inside: bool = False) -> Any:
        """What is kept of a value. ``around``: the ids of what it is in; ``inside``: that is an object, of which wrappers
        are given no copies."""
        self.parts += 1
        if self.parts > _MOST_PARTS:
            raise self._refused(at, f"more than {_MOST_PARTS} values")
        if isinstance(value, StandIn) or (is_atom(value) and not isinstance(value, type)):
            return value
        if isinstance(value, torch.Tensor):
            return self._tensor(value, at, inside)
        if is_buffer(value):
            return snapshot(value)
        if id(value) in self.met:  # an object that leads back to itself is compared once
            return ObjectIdentity(value)
        if not inside and (is_iterator(value) or id(value) in around):
            raise self._refused(at, "an iterator, which gives each item once" if is_iterator(value) else "itself")
        if is_iterator(value) or id(value) in around:
            return ObjectIdentity(value)
        if len(around) > _DEEPEST:
            raise self._refused(at, f"values that are more than {_DEEPEST} deep inside of others")
        if type(value) in (list, tuple, dict) and (plain := KeptPlain.of(value)) is not None:
            self.parts += len(value)
            return plain if is_copied(value) else value
        around = (*around, id(value))
        if type(value) in (tuple, torch.Size, Sizes) or (isinstance(value, tuple) and hasattr(value, "_fields")):
            return map_items(value, lambda v: self.keep(v, at, around, inside))
        if type(value) is list:
            return [self.keep(v, at.item(k), around, inside) for k, v in enumerate(value)]
        if type(value) is dict:
            return {k: self.keep(v, at.item(k), around, inside) for k, v in value.items()}
        if type(value) in (set, frozenset) and all(map(is_atom, value)):
            return type(value)(value)
        if has_sizes(value) or not is_looked_inside(value):
            return value
        return self._object(value, at, around)

    def _object(self, value: Any, at: Path, around: tuple[int, ...]) -> Any:
        by_fields = has_generated_equality(value)
        made = KeptObject(snapshot(value) if by_fields else value, by_fields)
        if not by_fields:
            self.met.add(id(value))
            made.twin = _twin(value)
        rows = class_data(type(value)) if made.twin is not None else holdings(value)
        made.state = {k: self.keep(v, at.attr(str(k)), around, not by_fields) for k, v in rows}
        simple = is_frozen(value) and made.value is value and not any(class_data(type(value)))
        return value if simple and all(made.state[k] is v for k, v in holdings(value)) else made

    def _tensor(self, value: torch.Tensor, at: Path, inside: bool) -> Any:
        if _torch.is_fake(value) or _torch.is_functorch_wrapped(value):
            return ObjectIdentity(value)
        reason = why_not_comparable(value)
        if reason is not None and not inside:
            raise self._refused(at, reason)
        if inside or type(value) is not torch.Tensor:
            return KeptReference(value)
        return snapshot(value)

    def _refused(self, at: Path, what: str) -> UnsupportedError:
        return UnsupportedError(
            f"a flatten context holds {what}: guards cannot compare it",
            path=f"{at} of {self.path}",
            expected="numbers, strings, and objects that are made of such; dense and sparse tensors, and wrappers of them",
            got=what,
            fix="let __tensor_flatten__ return the values that the operations of the class read",
        )


def holdings(value: Any) -> Iterator[tuple[Any, Any]]:
    """What an object holds that can be exchanged in place, and what its class holds: pairs of a key and a value."""
    cls: Any = type(value)
    if isinstance(value, type):
        yield from class_data(value)
        return
    if has_generated_equality(value):
        yield from ((f.name, getattr(value, f.name)) for f in fields(value) if f.compare)
    else:
        derived = _derived(cls)
        yield from (row for row in attributes_inside(value) if row[0] not in derived)
    if isinstance(value, types.FunctionType):
        code = value.__code__
        yield from (("__code__", code), ("__defaults__", value.__defaults__), ("__kwdefaults__", value.__kwdefaults__))
        yield from zip(code.co_freevars, value.__closure__ or (), strict=True)
        found = ((n, value.__globals__.get(n)) for n in code.co_names)
        yield from ((("global", n), v) for n, v in found if type(v) in PLAIN or KeptPlain.of(v) is not None)
    elif isinstance(value, types.MethodType):
        yield "__self__", value.__self__
        yield "__func__", value.__func__
    elif isinstance(value, types.BuiltinMethodType):
        yield "__self__", value.__self__
    elif isinstance(value, types.CellType):
        yield "cell_contents", _content(value)
    elif isinstance(value, functools.partial):
        yield from (("func", value.func), ("args", value.args), ("keywords", value.keywords))
    elif isinstance(value, (dict, types.MappingProxyType)):
        yield from ((("item", k), v) for k, v in value.items())
    elif isinstance(value, (set, frozenset)):
        yield from ((("item", id(v)), v) for v in sorted(value, key=id))
    elif isinstance(value, (list, tuple, deque)):
        yield from ((("item", k), v) for k, v in enumerate(value))
    yield from class_data(cls)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "empty"


def class_data(cls: type) -> Iterator[tuple[Any, Any]]:
    """The attributes of a class of the user's and its bases that are no methods and no properties."""
    if issubclass(cls, (torch.Tensor, enum.Enum, torch.nn.Module)):  # others look at these
        return
    own = [k for k in cls.__mro__ if not is_foreign(k)]
    for k in reversed(own):
        fields = getattr(k, "__dataclass_fields__", ())
        for name, value in vars(k).items():
            if not name.startswith("__") and not hasattr(type(value), "__get__") and name not in fields:
                yield ("class", k.__qualname__, name), value


@functools.cache
def _derived(cls: type) -> frozenset[str]:
    """The attributes that a class computes of others when they are first read."""
    return frozenset(k for c in cls.__mro__ for k, v in vars(c).items() if isinstance(v, functools.cached_property))


def is_looked_inside(value: Any) -> bool:
    """Is it an object whose `holdings` are all that can change in it, as far as Python tells?"""
    cls = type(value)
    if isinstance(value, types.BuiltinMethodType):
        return not isinstance(value.__self__, (types.ModuleType, type, type(None)))
    if isinstance(value, types.FunctionType):
        return not is_foreign(value)
    if isinstance(value, type):
        return any(True for _ in class_data(value))
    if isinstance(value, _HOLDERS) or cls in NAMESPACES or has_generated_equality(value):
        return True
    return has_attributes(value) and not is_foreign(cls)


def is_foreign(value: Any) -> bool:
    """Is it a class or function of Python's, of torch or numpy?"""
    return str(value.__module__).partition(".")[0] in FOREIGN


def _twin(value: Any) -> Any:
    """Another object with the attributes that ``value`` has now, where its class has an equality of its own."""
    cls = type(value)
    plain = all(k is object or ("__slots__" not in vars(k) and k.__module__ != "builtins") for k in cls.__mro__)
    if not plain or any("__new__" in vars(k) for k in cls.__mro__[:-1]) or not has_own_equality(cls):
        return None
    twin = object.__new__(cls)
    twin.__dict__.update((k, _as_it_is(v)) for k, v in attributes_inside(value))
    return twin


def _as_it_is(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value
    found = snapshot(value)
    return (_twin(value) or value) if found is value and is_looked_inside(value) else found
