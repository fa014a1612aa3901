"""What is iterated: by code of the user's as clones, by C code over what stands for the items in
the trace."""

from __future__ import annotations

import collections
import operator
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ..errors import SideEffectError, UnsupportedError
from ..subclass.values import is_a
from .current import call_now
from .kinds import ITERATORS, VIEWS, Function, is_immutable
from .recorder import user_line
from .running import Running
from .special import is_python
from .values import MISSING, lookup, pairs_of

_WHOLE = (list, tuple, dict, set, frozenset, collections.deque, *VIEWS, types.MappingProxyType)


class Sized:
    """What C code iterates, and may ask before how much there is."""

    def __init__(self, o: Any, given: Any) -> None:
        self.o, self.given = o, given

    def __iter__(self) -> Iterator[Any]:
        return iter(self.given)

    def __length_hint__(self) -> int:
        return int(call_now(operator.length_hint, self.o))


def iterate(rec: Running, o: Any, *, in_order: bool = True) -> Any:
    """What C code may iterate over in place of ``o``: whatever yields is recorded, tensors are
    stand-ins. ``in_order``: the order is of consequence."""
    given, kind = _iterated(rec, o), type(o)
    if in_order and is_a(o, (set, frozenset)):
        read_order(rec, o)
    own = not is_immutable(kind) and is_python(kind, "__len__", "__length_hint__")
    return Sized(o, given) if own and not is_a(o, torch.Tensor) else given


def is_lazy(o: Any) -> bool:
    """Is its next item made when it is asked for, perhaps by code of the user's?"""
    return is_a(o, ITERATORS) or (
        not is_a(o, torch.Tensor) and is_python(type(o), "__iter__", "__getitem__")
    )


def read_order(rec: Running, o: Any) -> None:
    """The order of a set: of what was there before it is compared; of what the run makes it hangs
    on the hashes of texts, which are others in each process."""
    if rec.place_of(o) is not None:
        rec.row(o, "keys", list(rec.box(o)))
    else:
        read_hashes(rec, o)


def read_hashes(rec: Running, values: Iterable[Any]) -> None:
    """Hashes are asked: those of texts have a seed, those of classes and of most objects are
    addresses."""
    kinds = {type(value) for value in values}.difference(SAME_HASH)
    for probe in ("seed", object) if not kinds <= {str, bytes} else ("seed",) if kinds else ():
        if probe not in rec.hashed:
            rec.hashed |= {probe}
            rec.at(rec.child(rec.root(hash), "call", (probe,)), hash(probe))


#: classes whose hashes are the same in each process
SAME_HASH = (bool, int, float, complex)


def _iterated(rec: Running, o: Any) -> Any:
    kind = type(o)
    if kind in (range, str, bytes) or kind is torch.Size:
        return o
    if is_a(o, torch.Tensor):
        return rec.give(o)
    if is_a(o, ITERATORS):
        return _advanced(rec, o, kind)
    method = rec.special(kind, "__iter__")
    if is_a(o, type):
        return rec.call(method, o) if type(method) is Function else o
    if type(method) is Function:
        return _iterator(rec, rec.call(method, o))
    if is_a(o, _WHOLE):
        rec.touch(o)
        return _given(rec, o)
    if method is MISSING and type(getter := rec.special(kind, "__getitem__")) is Function:
        return _by_items(rec, getter, o)
    rec.deep(o, "iter")
    return o


def _advanced(rec: Running, o: Any, kind: type) -> Any:
    if rec.place_of(o) is not None:
        rec.refuse(
            SideEffectError(
                f"the region takes items from a {kind.__name__}, which cannot be put back",
                code="iterator-advanced",
                path=f"{rec.place_of(o)} at {user_line()}",
                fix="make it inside of the region, or pass what it gives as an argument",
            )
        )
    return o if kind is types.GeneratorType or not rec.stand_ins else map(rec.give, o)


def _iterator(rec: Running, made: Any) -> Any:
    step = rec.special(type(made), "__next__")
    if type(step) is Function:
        return _stepped(rec, step, made)
    return made if is_a(made, ITERATORS) and rec.place_of(made) is None else iterate(rec, made)


def _stepped(rec: Running, step: Any, made: Any) -> Iterator[Any]:
    while True:
        try:
            value = rec.call(step, made)
        except StopIteration:
            return
        yield value


def _by_items(rec: Running, getter: Any, o: Any) -> Iterator[Any]:
    k = 0
    while True:
        try:
            value = rec.call(getter, o, k)
        except IndexError:
            return
        yield value
        k += 1


def _given(rec: Running, o: Any) -> Any:
    """The items, as they stand in the trace; the live container where that is the same."""
    if not rec.stand_ins and not rec.symbols:
        return o
    if is_a(o, VIEWS):
        return _given_view(rec, o)
    if is_a(o, (list, tuple, collections.deque)):
        kinds = (torch.Tensor, int, float) if rec.place_of(o) is not None else torch.Tensor
        if not any(is_a(value, kinds) for value in o):
            return o
        return (rec.given_item(o, k, value) for k, value in enumerate(o))
    if is_a(o, (dict, set, frozenset)) and any(is_a(key, torch.Tensor) for key in o):
        return map(rec.give, o)
    return o


def _given_view(rec: Running, view: Any) -> Any:
    held = view.mapping
    if type(held) is types.MappingProxyType:
        held = next(iter(__import__("gc").get_referents(held)))
    if is_a(view, VIEWS[0]):
        return map(rec.give, view)
    if is_a(view, VIEWS[1]):
        return (rec.given_item(held, key, value) for key, value in pairs_of(held))
    return ((rec.give(key), rec.given_item(held, key, value)) for key, value in pairs_of(held))


def as_mapping(rec: Running, o: Any, into: type = dict) -> dict[Any, Any]:
    """``{**o}``: of a dict that is iterated as one its items, else by ``keys`` and items, as an
    OrderedDict is always filled."""
    kind = type(o)
    as_dict = lookup(kind, "__iter__") in (dict.__iter__, _ORDERED)
    as_dict = as_dict and not issubclass(into, collections.OrderedDict)
    if is_a(o, dict) and (as_dict or not is_python(kind, "keys", "__getitem__")):
        rec.touch(o)
        return {rec.give(key): rec.given_item(o, key, value) for key, value in pairs_of(o)}
    names = list(iterate(rec, rec.call(rec.attribute(o, "keys"))))
    found = {name: rec.item_of(o, name) for name in names}
    if len(found) < len(names):
        rec.refuse(UnsupportedError("a mapping has a key twice", code="unread-python-code"))
    return found


_ORDERED: Any = collections.OrderedDict.__iter__
