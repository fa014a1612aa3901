"""What guards keep of flatten contexts: snapshots, with the types of values, and the objects of the user's by what they hold.

A guard that held an object itself would compare it with itself, however it was changed in between. So it keeps, beside
the object, its attributes and those of its class. See docs/notes/contexts.md.

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

import functools
import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch

from .. import torch_api
from ..errors import UnsupportedError
from .arguments import (
    FOREIGN,
    NAMESPACES,
    ObjectIdentity,
    attributes_inside,
    has_attributes,
    has_own_equality,
)
from .context import (
    Kept,
    KeptPlain,
    equal,
    facts_of,
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
from .visit import VALUE

_DEEPEST = 60
#: what changes in place in ways that no attribute tells
_REFUSED = (
    *(list, dict, set, frozenset, types.MappingProxyType, types.MethodType, types.CellType),
    *(functools.partial, torch.nn.Module),
)


def kept(context: Any, path: Path = VALUE) -> Any:
    """What a guard keeps of the context of the wrapper at ``path``; `same_context` compares it with that of a call.

    Raises:
        UnsupportedError: it holds what cannot be compared, or itself.
    """
    return _keep(context, Path("context"), path, 0)


def kept_spec(spec: Spec, path: Path = VALUE, by_class: bool = False) -> Spec:
    """A spec with what guards keep of its contexts, and of its values that are no tensors.

    Args:
        by_class: a class may say itself which contexts are the same (``__metadata_guard__``).

    Raises:
        UnsupportedError: see `kept`.
    """
    if isinstance(spec, LeafSpec):
        return spec
    if isinstance(spec, OpaqueSpec):
        return OpaqueSpec(kept(spec.value, path))
    inners = tuple(kept_spec(s, path.attr(n), by_class) for n, s in zip(spec.names, spec.inners, strict=True))
    own = by_class and hasattr(spec.cls, "__metadata_guard__") and not is_foreign(spec.cls)
    by_class = own and not has_sizes(spec.context)
    context = KeptByClass(spec.cls, spec.context) if by_class else kept(spec.context, path)
    return replace(spec, inners=inners, context=context)


class KeptObject(Kept):
    """An object of the user's, by reference, and what it and its class held.

    Another one that holds the same may be in its place if its class says that they are equal. Of dataclasses with generated
    equality, of which wrappers have copies, any other one may.
    """

    def __init__(self, value: Any, state: dict[Any, Any]) -> None:
        self.copied = has_generated_equality(value)
        self.value, self.state = snapshot(value) if self.copied else value, state

    def holds(self, now: Any) -> bool:
        """Is ``now`` the same for a guard?"""
        if type(now) is not type(self.value):
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


class KeptByClass(Kept):
    """The context of a wrapper whose class says itself which contexts are the same (``__metadata_guard__``)."""

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


def _keep(value: Any, at: Path, path: Path, depth: int, inside: bool = False) -> Any:
    """What is kept of a value. ``inside``: of an object, of which wrappers are given no copies."""
    if isinstance(value, Kept) or is_atom(value):
        return value
    if depth > _DEEPEST:
        raise _refused(at, path, f"values that are more than {_DEEPEST} deep inside of others, or of themselves")
    if isinstance(value, torch.Tensor):
        return _keep_tensor(value, at, path, inside)
    if is_buffer(value):
        return snapshot(value)
    if type(value) in (list, dict) and (plain := KeptPlain.of(value)) is not None:
        return plain
    if isinstance(value, tuple):
        return map_parts(value, lambda v: _keep(v, at, path, depth + 1, inside))
    if type(value) is list:
        return [_keep(v, at.item(k), path, depth + 1, inside) for k, v in enumerate(value)]
    if type(value) is dict:
        return {k: _keep(v, at.item(k), path, depth + 1, inside) for k, v in value.items()}
    if type(value) in (set, frozenset) and all(map(is_atom, value)):
        return type(value)(value)
    closure = isinstance(value, types.FunctionType) and value.__closure__ is not None
    if closure or isinstance(value, (*_REFUSED, Iterator)) or _of_collections(type(value)):
        kind = "function with a closure" if closure else type(value).__qualname__
        raise _refused(at, path, f"a {kind}, which may change in place")
    if has_sizes(value) or not is_object(value):
        return value
    state = {
        k: _keep(v, at.attr(str(k)), path, depth + 1, not has_generated_equality(value)) for k, v in holdings(value)
    }
    rows = dict(holdings(value))
    if is_frozen(value) and rows.keys() == {f.name for f in fields(value) if f.compare}:
        if all(state[k] is v for k, v in rows.items()):
            return value  # nothing in it can be changed
    return KeptObject(value, state)


def _keep_tensor(value: torch.Tensor, at: Path, path: Path, inside: bool) -> Any:
    """A plain tensor by its numbers; one that the trace meets itself (in an object, or of a class) is an input of its own."""
    if inside or type(value) is not torch.Tensor or torch_api.is_fake(value) or torch_api.is_functorch_wrapped(value):
        return ObjectIdentity(value)
    if value.layout is not torch.strided or value.is_quantized or value.is_nested:
        raise _refused(at, path, f"a {'quantized' if value.is_quantized else value.layout} tensor")
    made = snapshot(value)
    if facts_of(made) != facts_of(value):
        raise _refused(at, path, f"a tensor of strides {value.stride()}, or with a conjugate bit")
    return made


def _refused(at: Path, path: Path, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"a flatten context holds {what}: guards cannot compare it",
        path=f"{at} of {path}",
        expected="numbers, strings, dense tensors, and objects with attributes that are made of such",
        got=what,
        fix="let __tensor_flatten__ return the values that the operations of the class read",
    )


def difference(known: Any, now: Any, at: str = "context") -> str:
    """Where a context differs from what a guard keeps of it, as a sentence."""
    plain = known.value if isinstance(known, KeptPlain) else known
    if isinstance(known, KeptObject) and type(now) is type(known.value):
        a, b = known.state, dict(holdings(now))
    elif type(plain) is dict and type(now) is dict and plain.keys() == now.keys():
        a, b = plain, now
    elif type(plain) in (list, tuple) and type(now) is type(plain) and len(now) == len(plain):
        a, b = dict(enumerate(plain)), dict(enumerate(now))
    else:
        a, b = {}, {}
    for key, value in a.items():
        if key not in b or not same_context(value, b[key]):
            step = f".{key}" if isinstance(known, KeptObject) and isinstance(key, str) else f"[{key!r}]"
            return difference(value, b.get(key, "nothing"), at + step)
    return f"{at}: expected {known!r:.200}, got {now!r:.200}"


def holdings(value: Any) -> Iterator[tuple[Any, Any]]:
    """The attributes of an object, and those of its class: pairs of a key and a value. What a class computes of others when
    it is first read is none."""
    cls: Any = type(value)
    if is_foreign(cls) and has_generated_equality(value):
        yield from ((f.name, getattr(value, f.name)) for f in fields(value) if f.compare)
        return
    derived = _derived(cls)
    yield from (row for row in attributes_inside(value) if row[0] not in derived)
    if isinstance(value, types.FunctionType):
        yield from (("__code__", value.__code__), ("__defaults__", value.__defaults__))
    names = {f.name for f in fields(cls)} if is_dataclass(cls) else ()
    for k in reversed([k for k in cls.__mro__ if not is_foreign(k)]):
        for name, held in vars(k).items():
            if not name.startswith("__") and not hasattr(type(held), "__get__") and name not in names:
                yield ("class", k.__qualname__, name), held


@functools.cache
def _derived(cls: type) -> frozenset[str]:
    """The attributes that a class computes of others when they are first read."""
    return frozenset(k for c in cls.__mro__ for k, v in vars(c).items() if isinstance(v, functools.cached_property))


def is_object(value: Any) -> bool:
    """Is it an object of the user's that is what its attributes are?"""
    cls = type(value)
    if isinstance(value, (types.FunctionType, type)):
        return isinstance(value, types.FunctionType) and not is_foreign(value)
    return cls in NAMESPACES or has_generated_equality(value) or (has_attributes(value) and not is_foreign(cls))


def is_foreign(value: Any) -> bool:
    """Is it a class or function of Python's, of torch or numpy?"""
    return str(value.__module__).partition(".")[0] in FOREIGN


def _of_collections(cls: type) -> bool:
    """Is it a container of the standard library, or made of one?"""
    return any(k.__module__ in ("collections", "weakref") for k in cls.__mro__)
