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
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch

from .. import torch_api
from ..errors import UnsupportedError
from .arguments import (
    ABSENT,
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
    is_frozen,
    map_parts,
    same_context,
    snapshot,
)
from .paths import Path
from .spec import LeafSpec, OpaqueSpec, Spec
from .tensors import facts_of, why_not_comparable
from .visit import VALUE

_DEEPEST, _MOST_PARTS = 60, 10_000
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


def kept_spec(spec: Spec, path: Path = VALUE, by_class: bool = False) -> Spec:
    """A spec with what guards keep of its contexts, and of its values that are no tensors.

    Args:
        by_class: a class may say itself which contexts are the same.

    Raises:
        UnsupportedError: see `kept`.
    """
    if isinstance(spec, LeafSpec):
        return spec
    if isinstance(spec, OpaqueSpec):
        return OpaqueSpec(kept(spec.value, path))
    inners = tuple(kept_spec(s, path.attr(n), by_class) for n, s in zip(spec.names, spec.inners, strict=True))
    own = (
        by_class
        and hasattr(spec.cls, "__metadata_guard__")
        and not is_foreign(spec.cls)
        and not has_sizes(spec.context)
    )
    context = KeptByClass(spec.cls, spec.context) if own else kept(spec.context, path)
    return replace(spec, inners=inners, context=context)


class KeptObject(Kept):
    """An object of the user's, by reference, and what it and its class held.

    Another one that holds the same may be in its place if its class says that they are equal. Of dataclasses with generated
    equality any other one may.
    """

    __slots__ = ("cls", "state")

    def __init__(self, value: Any, copied: bool) -> None:
        """``copied``: wrappers have copies of it, so that no call meets this one."""
        self.value, self.cls, self.copied = value, type(value), copied
        self.state: dict[Any, Any] = {}

    def holds(self, now: Any) -> bool:
        """Is ``now`` the same for a guard?"""
        if type(now) is not self.cls:
            return False
        try:
            held = dict(holdings(now))
        except Exception:  # a class's own code
            return False
        another = self.copied or now is self.value or (has_own_equality(type(now)) and equal(self.value, now))
        return another and same_context(self.state, held)

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


class KeptByClass(Kept):
    """The context of a wrapper whose class says itself which contexts are the same (``__metadata_guard__``)."""

    __slots__ = ("guard",)

    def __init__(self, cls: Any, context: Any) -> None:
        self.guard, self.value = cls.__metadata_guard__, snapshot(context)

    def holds(self, now: Any) -> bool:
        """Does the class say so?"""
        try:
            return self.guard(self.value, now) is True
        except Exception:  # a class's own code
            return False

    def fresh(self) -> Any:
        """A copy of the one that was traced."""
        return snapshot(self.value)

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
        kind = type(value).__qualname__
        if is_iterator(value) or id(value) in around:
            if inside:
                return ObjectIdentity(value)
            once = f"an iterator, {kind}, which gives each item once"
            raise self._refused(at, once if is_iterator(value) else f"a {kind} that contains itself")
        if len(around) > _DEEPEST:
            raise self._refused(at, f"values that are more than {_DEEPEST} deep inside of others")
        if type(value) in (list, dict) and (plain := KeptPlain.of(value)) is not None:
            return plain
        around = (*around, id(value))
        if type(value) in (tuple, torch.Size, Sizes) or (isinstance(value, tuple) and hasattr(value, "_fields")):
            return map_parts(value, lambda v: self.keep(v, at, around, inside))
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
        made.state = {k: self.keep(v, at.attr(str(k)), around, not by_fields) for k, v in holdings(value)}
        simple = is_frozen(value) and made.state.keys() == {f.name for f in fields(value) if f.compare}
        return value if simple and all(made.state[k] is v for k, v in holdings(value)) else made

    def _tensor(self, value: torch.Tensor, at: Path, inside: bool) -> Any:
        if torch_api.is_fake(value) or torch_api.is_functorch_wrapped(value):
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


def difference(known: Any, now: Any, at: str = "context") -> str:
    """Where a context differs from what a guard keeps of it, as a sentence."""
    plain = known.value if isinstance(known, KeptPlain) else known
    if isinstance(known, KeptObject) and type(now) is known.cls:
        a, b = known.state, dict(holdings(now))
    elif type(plain) is dict and type(now) is dict and plain.keys() == now.keys():
        a, b = plain, now
    elif type(plain) in (list, tuple) and type(now) is type(plain) and len(now) == len(plain):
        a, b = dict(enumerate(plain)), dict(enumerate(now))
    else:
        a, b = {}, {}
    for key, value in a.items():
        other = b.get(key, ABSENT)
        if not same_context(value, other):
            step = f".{key}" if isinstance(known, KeptObject) and isinstance(key, str) else f"[{key!r}]"
            return difference(value, other, at + step)
    return f"{at}: expected {known!r:.200}, got {now!r:.200}"


def holdings(value: Any) -> Iterator[tuple[Any, Any]]:
    """What an object holds that can be exchanged in place, and what its class holds: pairs of a key and a value."""
    cls: Any = type(value)
    if isinstance(value, type):
        yield from class_data(value)
        return
    if has_generated_equality(value) and is_foreign(cls):
        yield from ((f.name, getattr(value, f.name)) for f in fields(value) if f.compare)
    else:
        derived = _derived(cls)
        yield from (row for row in attributes_inside(value) if row[0] not in derived)
    if isinstance(value, types.FunctionType):
        code = value.__code__
        yield from (("__code__", code), ("__defaults__", value.__defaults__), ("__kwdefaults__", value.__kwdefaults__))
        yield from zip(code.co_freevars, value.__closure__ or (), strict=True)
        found = ((n, value.__globals__.get(n)) for n in _names_in(code))
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


def _names_in(code: types.CodeType) -> set[str]:
    """The names in a function's code, and in that of the functions inside of it."""
    inside = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return {*code.co_names, *(name for c in inside for name in _names_in(c))}


def remembers_more(known: Any, now: Any, inside: bool = False) -> bool:
    """Is a context as it was, but for what objects in it remember: in attributes that are new or were None, in dicts?

    That is computed once, while a region is traced, as in the first call in eager.
    """
    if same_context(known, now) or (inside and known is None):
        return True
    if isinstance(known, KeptObject) and known.value is now and not isinstance(now, (list, tuple, deque, set)):
        rows = dict(holdings(now))
        return all(k in rows and remembers_more(v, rows[k], True) for k, v in known.state.items())
    known = known.value if isinstance(known, KeptPlain) else known
    if inside and type(known) is dict and type(now) is dict:
        return all(k in now and remembers_more(v, now[k], True) for k, v in known.items())
    if type(known) in (tuple, list) and type(now) is type(known) and len(now) == len(known):
        return all(remembers_more(a, b, inside) for a, b in zip(known, now, strict=True))
    return False


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
    names = {f.name for f in fields(cls)} if is_dataclass(cls) else ()
    for k in reversed(own):
        for name, value in vars(k).items():
            if not name.startswith("__") and not hasattr(type(value), "__get__") and name not in names:
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
