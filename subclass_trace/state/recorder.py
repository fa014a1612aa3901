"""What one run reads and writes of Python state that was there before it.

A `Recorder` is asked by instrumented code (`operations`, `calls`). It knows by its id where each object that was there before
was met first: a `Place`. A read of a place gives a `Row` once, and from then on what stands for the value in the trace: a
stand-in for a tensor, a symbol for a number that changes between calls, else itself. What the run has made has no place and
costs nothing. A write is noted before it happens: later reads of what it wrote are no reads of state, and all is put back.
"""

from __future__ import annotations

import collections
import enum
import gc
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from .. import torch_api
from ..errors import RuleError, SideEffectError, SubclassTraceError, UnsupportedError
from ..subclass.attributes import Memo, is_heap_type
from . import kinds
from .boundary import is_of_torch
from .kinds import (
    C_CALLABLES,
    CONTAINERS,
    DESCRIPTORS,
    ITERATORS,
    VALUES,
    VIEWS,
    WORLDLY,
    Builtin,
    Function,
    Method,
    is_immutable,
)
from .place import Place
from .rows import Row, base_value, members, raw
from .values import ATOMS, MISSING, factory_of, is_a, lookup, lookup_after, pairs_of
from .writes import MAPPING, NAMES, SEQUENCE, Table, Written, table_of

#: so many places, and no more; a LLaMA of 32 layers reads some 30,000
LIMIT = 400_000


class Recorder:
    """See the module's docstring.

    Attributes:
        rows: what was read, in order.
        known: id of an object that was there before -> it, and the place where it was met first.
        symbols: places of numbers -> their symbols; ``stand_ins``: id of a real tensor -> the traced one.
        reals: id of a traced tensor -> the place of the real one, and that.
        written: id of a thing -> what is known of it before it was written.
    """

    def __init__(self, make: Any = None) -> None:
        """``make``: makes stand-ins, ``tensors(rows)`` and ``number(place, value)`` (None: a constant). Without it tensors are
        what they are."""
        self.make = make
        self.rows: list[Row] = []
        self.known: dict[int, tuple[Any, Place]] = {}
        self.roots: dict[int, tuple[Any, Place]] = {}
        self.places: dict[tuple[Any, ...], Place] = {}
        self.noted: set[Place] = set()
        self.written: dict[int, Written] = {}
        self.owners: dict[int, Any] = {}  # id of the dict of an object -> the object
        self.lookups: dict[tuple[type, str], Any] = {}
        self.walked: set[int] = set()
        self.symbols: dict[Place, Any] = {}
        self.stand_ins: dict[int, torch.Tensor] = {}
        self.reals: dict[int, tuple[Place, torch.Tensor]] = {}
        self.own: dict[int, frozenset[str]] = {}  # id of a traced tensor -> attributes that its class sets by itself
        self.refusal: SubclassTraceError | None = None
        self.warned: Callable[[str], None] | None = None

    # ------------------------------------------------------------------------------------------ refusals
    def refuse(self, error: SubclassTraceError) -> None:
        """Raise a refusal, and remember it: no ``except Exception`` of the user's shall swallow it.

        Raises:
            SubclassTraceError: it.
        """
        raise self.refused(error) from None

    def refused(self, error: SubclassTraceError) -> SubclassTraceError:
        """Remember a refusal; a class's own is eager's, too."""
        if self.refusal is None and not isinstance(error, RuleError):
            self.refusal = error
        return error

    # ------------------------------------------------------------------------------------------ places
    def root(self, thing: Any, name: str | None = None) -> Place:
        """The place of a thing that is its own name: a class, the dict of a Python module, a function of C."""
        found = self.roots.get(id(thing))
        if found is None:
            self.roots[id(thing)] = found = (thing, Place(None, "const", thing, name))
        return found[1]

    def place_of(self, thing: Any) -> Place | None:
        """Where an object was met first; None of what the run has made."""
        found = self.known.get(id(thing))
        if found is None:
            found = self.roots.get(id(thing))
        return None if found is None else found[1]

    def child(self, place: Place, kind: str, key: Any, name: str | None = None) -> Place:
        """The place one step further, the same object each time."""
        known: tuple[Any, ...] = (id(place), kind, type(key), key)
        try:
            found = self.places.get(known)
        except TypeError:  # it has no hash: by identity, which the place keeps alive
            known = (id(place), kind, id(key), None)
            found = self.places.get(known)
        if found is None:
            if len(self.places) > LIMIT:
                self._too_many()
            self.places[known] = found = Place(place, kind, key, name)
        return found

    def _too_many(self) -> None:
        roots = collections.Counter(str(p.root) for p in self.places.values())
        self.refuse(
            UnsupportedError(
                f"the region reads more than {LIMIT:,} places of Python state",
                path=roots.most_common(1)[0][0],
                fix="compile a smaller function, or pass what it needs as arguments",
            )
        )

    # ------------------------------------------------------------------------------------------ reads
    def step(self, of: Any, kind: str, key: Any, value: Any, box: Any = None) -> Any:
        """``value`` was read from ``of``; ``box``: what a write would have changed. What stands for it in the trace."""
        place = self.place_of(of)
        if place is None:
            return self.give(value)
        if self.written:
            written = self.written.get(id(of if box is None else box))
            if written is not None and written.covers(key):
                return self.give(value)
        return self.at(self.child(place, kind, key), value)

    def at(self, place: Place, value: Any) -> Any:
        """``value`` stands at a place. What stands for it in the trace."""
        if place not in self.noted:
            self.noted.add(place)
            self.note(place, value)
        if self.symbols and place in self.symbols:
            return self.symbols[place]
        return self.give(value)

    def state_at(self, place: Place, value: Any) -> None:
        """A state of torch's or of Python's, of atoms or an enumeration: it is compared as a whole."""
        if place not in self.noted:
            self.noted.add(place)
            is_atom = type(value) in ATOMS or type(value) is tuple
            self.rows.append(Row("value" if is_atom else "exact", place, value))

    def give(self, value: Any) -> Any:
        """What stands for a value in the trace."""
        if self.stand_ins and is_a(value, torch.Tensor):
            return self.stand_ins.get(id(value), value)
        return value

    def row(self, of: Any, kind: str, known: Any) -> None:
        """A row of this kind about an object that was there before, once."""
        place = self.place_of(of)
        if place is not None:
            once = self.child(place, "row", kind)
            if once not in self.noted:
                self.noted.add(once)
                self.rows.append(Row(kind, place, known))

    def note(self, place: Place, value: Any) -> None:
        """The row of what stands at a place: the value of an atom, the kind of anything else."""
        kind = type(value)
        if kind in ATOMS or value is MISSING:
            return self._note_atom(place, value, kind)
        if (before := torch_api.before_replacement(value)) is not value:
            return self.note(place, before)
        if is_a(value, torch.Tensor):
            return self._note_tensor(place, value)
        if kind in VALUES or (is_a(value, kinds.VALUE_BASES) and is_immutable(kind)):
            self.rows.append(Row("exact", place, value))
        elif is_a(value, enum.Enum):
            self.rows.append(Row("is", place, value))
            self.known.setdefault(id(value), (value, place))
        elif kind not in (type, types.ModuleType) and (first := self._met_at(place, value)) is not None:
            self.rows.append(Row("alias", place, first))
        elif is_a(value, _NUMBERS_AND_TEXTS):
            self.known[id(value)] = (value, place)
            self.rows += (Row("type", place, kind), Row("based", place, base_value(value)))
        elif is_a(value, Memo):
            self.rows.append(Row("type", place, kind))
        elif _is_its_own_name(value, kind) or torch_api.is_opaque_class(kind):
            self.rows.append(Row("is", place, value))
            self.known.setdefault(id(value), (value, place))
        elif kind is Function:
            self.rows.append(Row("func", place, torch_api.code_before(value)))
            self.known[id(value)] = (value, place)
        else:
            self.known[id(value)] = (value, place)
            self.rows.append(Row("type", place, kind))
            if kind is Method:
                self.step(value, "inner", "__func__", value.__func__)
                self.step(value, "inner", "__self__", value.__self__)
            elif kind is Builtin or kind is types.MethodWrapperType:
                self.step(value, "inner", "__name__", value.__name__)
                self.step(value, "inner", "__self__", value.__self__)

    def _met_at(self, place: Place, value: Any) -> Place | None:
        """Another place where an object was met before."""
        found = self.known.get(id(value))
        return None if found is None or found[1] is place else found[1]

    def _note_atom(self, place: Place, value: Any, kind: type) -> None:
        if kind in (int, float) and self.make is not None:
            symbol = self.make.number(place, value)
            if symbol is not None:
                self.symbols[place] = symbol
                self.rows.append(Row("number", place, kind))
                return
        self.rows.append(Row("value", place, value))

    def _note_tensor(self, place: Place, value: torch.Tensor) -> None:
        if id(value) in self.reals:  # a stand-in, which the run has put there
            return
        if id(value) in self.known:
            first = self.known[id(value)][1]
            if first is not place:
                self.rows.append(Row("alias", place, first))
            return
        self.known[id(value)] = (value, place)
        if self.make is None:
            self.rows.append(Row("is", place, value))
            return
        self.rows.append(Row("tensor", place, torch.Tensor))
        traced = self.make.tensors([(place, value)])[0]
        self.stand_ins[id(value)] = traced
        self.adopt(traced, value, place)

    def adopt(self, traced: torch.Tensor, real: torch.Tensor, place: Place) -> None:
        """A traced tensor stands for a real one at a place."""
        self.reals[id(traced)] = place, real
        self.known[id(traced)] = traced, place
        self.prepare(traced, real)

    def prepare(self, traced: torch.Tensor, real: torch.Tensor) -> None:
        """What else a stand-in needs."""

    def real(self, value: Any) -> Any:
        """The real tensor for a stand-in; anything else itself."""
        found = self.reals.get(id(value))
        return value if found is None else found[1]

    def pin(self, thing: Any) -> None:
        """Its identity was asked: it is a key."""
        if is_a(thing, torch.Tensor):
            thing = self.real(thing)
        elif type(thing) in ATOMS or is_a(thing, (type, types.ModuleType, enum.Enum)):
            return
        self.row(thing, "is", thing)

    def distinguish(self, a: Any, b: Any) -> None:
        """It was asked whether two objects are one, and they are not. (That they are one is a row since they were met.)"""
        if is_a(a, torch.Tensor) or is_a(b, torch.Tensor) or type(a) in ATOMS or type(b) in ATOMS:
            return
        first, other = self.place_of(a), self.place_of(b)
        if first is None or other is None or type(a) is not type(b):
            return
        once = self.child(first, "other", other)
        if once not in self.noted:
            self.noted.add(once)
            self.rows.append(Row("other", first, other))

    # ------------------------------------------------------------------------------------------ classes
    def lookup(self, cls: type, name: str) -> Any:
        """The attribute of a class, by the order of its bases; that is read."""
        key = (cls, name)
        if key in self.lookups:
            return self.lookups[key]
        if self.written and (writer := self._written_class(cls, name)) is not None:
            return self._own_absent(cls, writer, name)
        value = lookup(cls, name)
        if not is_immutable(cls) and cls is not torch.Size:
            value = self.at(self.child(self.root(cls), "lookup", name), value)
        self.lookups[key] = value
        return value

    def _written_class(self, cls: type, name: str) -> type | None:
        """The first base that has the attribute or had it, if that is one in which the run has written it."""
        for base in cls.__mro__:
            written = self.written.get(id(base))
            if written is not None and written.covers(name):
                return base
            if name in type.__dict__["__dict__"].__get__(base):
                return None
        return None

    def _own_absent(self, cls: type, writer: type, name: str) -> Any:
        """What a class gives that the run has written: no base in front of it has the attribute."""
        for base in cls.__mro__[: cls.__mro__.index(writer)]:
            if not is_immutable(base):
                self.at(self.child(self.root(base), "own", name), MISSING)
        return lookup(cls, name)

    def lookup_after(self, key: tuple[type, type, str]) -> Any:
        """As ``super`` finds it."""
        return self.at(self.child(self.root(key[0]), "super", key), lookup_after(key))

    def class_dict(self, cls: type) -> None:
        """All that a class defines itself is read."""
        names = self.child(self.root(names_of), "call", (cls,))
        self.at(names, names_of(cls))
        written = self.written.get(id(cls))
        for name, value in list(type.__dict__["__dict__"].__get__(cls).items()):
            if written is not None and written.covers(name):
                continue
            if name not in ("__dict__", "__weakref__"):
                self.fix(self.at(self.child(self.root(cls), "own", name), value), value)

    # ------------------------------------------------------------------------------------------ containers
    def box(self, thing: Any) -> Any:
        """A container as it was before the run."""
        written = self.written.get(id(thing)) if self.written else None
        if written is None:
            return thing
        return written.before if is_a(thing, dict) else list(written.before.values())

    def touch(self, thing: Any) -> None:
        """The whole of a list, tuple, dict, set or deque is read, not what its items hold."""
        if self.place_of(thing) is None:
            return
        if is_a(thing, dict):
            held = self.box(thing)
            ordered: Any = collections.OrderedDict if is_a(held, collections.OrderedDict) else dict
            self.row(thing, "keys", list(ordered.keys(held)))
            for key, value in list(pairs_of(held)):
                self._item(thing, key, value)
                if type(key) not in ATOMS:
                    self._member(key)
        elif is_a(thing, (list, tuple, collections.deque)):
            held = self.box(thing)
            self.row(thing, "len", len(held))
            for k, value in enumerate(items_of(held)):
                self._item(thing, k, value)
        elif is_a(thing, (set, frozenset)):
            held = self.box(thing)
            self.row(thing, "set", members(held))
            for value in held:
                self._member(value)
        elif is_a(thing, VIEWS) or type(thing) is types.MappingProxyType:
            for k, value in enumerate(gc.get_referents(thing)):
                self.step(thing, "ref", k, value)
                self.touch(value)

    def _member(self, key: Any) -> None:
        """A key of a dict or a member of a set is the same object: known by itself."""
        if type(key) in (tuple, frozenset):
            for part in key:
                self._member(part)
        elif type(key) not in ATOMS and id(key) not in self.known and not is_a(key, type):
            self.note(self.root(key), key)

    def _item(self, thing: Any, key: Any, value: Any) -> Any:
        owner = self.owners.get(id(thing)) if self.owners else None
        if owner is not None and type(key) is str:
            return self.step(owner, "attr", key, value, thing)
        place = self.place_of(thing)
        if place is None:
            return self.give(value)
        return self.at(self.child(place, "item", key), value)

    def item(self, thing: Any, key: Any, value: Any) -> Any:
        """``thing[key]`` was ``value`` (`MISSING`: there is none), of a built-in container. What stands for it in the trace."""
        if self.place_of(thing) is None:
            return self.give(value)
        written = self.written.get(id(thing)) if self.written else None
        if written is not None and written.covers(key):
            if written.keys is None:
                self.touch(thing)
            return self.give(value)
        if is_a(thing, (list, tuple, collections.deque)):
            if type(key) is slice:
                self.touch(thing)
                items = [*self.each(thing)][key]
                same = all(a is b for a, b in zip(items, items_of(value), strict=True))
                return value if same else items if is_a(thing, list) else type(value)(items)
            if key < 0:
                self.length(thing, "len", len(thing))
                key += len(thing)
        else:
            self._pin_key(key)
        return self._item(thing, key, value)

    def _pin_key(self, key: Any) -> None:
        self.pin(key)
        if type(key) in (tuple, frozenset):
            for part in key:
                self._pin_key(part)

    def length(self, thing: Any, kind: str, known: Any) -> None:
        """The length, or whether there is anything, is read."""
        if self.written and id(thing) in self.written:
            self.touch(thing)
        else:
            self.row(thing, kind, known)

    # ------------------------------------------------------------------------------------------ writes
    def write(self, thing: Any, key: Any = None, *, whole: bool = True, table: Table | None = None) -> None:
        """Something that was there before the run is about to be changed, at a key or as a whole."""
        place = self.place_of(thing)
        if place is None:
            return
        written = self.written.get(id(thing))
        if written is None:
            written = self.written[id(thing)] = Written(thing, table or table_of(thing), place)
        if whole:
            if written.keys is not None and written.table in (MAPPING, NAMES, SEQUENCE):
                self._substitute(thing)
            written.keys = None
        elif written.keys is not None:
            written.keys.add(key)

    def grow(self, thing: Any) -> None:
        """Items are about to be added at the end of a list or a deque: those that are there stay where they are."""
        place = self.place_of(thing)
        if place is not None and id(thing) not in self.written:
            self.written[id(thing)] = Written(thing, SEQUENCE, place)
        if getattr(thing, "maxlen", None) is not None:
            self.write(thing)

    def _substitute(self, thing: Any) -> None:
        """The items of what is changed in any way are read, and what stands for them takes their places."""
        self.touch(thing)
        if is_a(thing, dict):
            rows = [(k, self.given_item(thing, k, v), v) for k, v in list(pairs_of(thing))]
        else:
            rows = [(k, self.given_item(thing, k, v), v) for k, v in enumerate(list(items_of(thing)))]
        base: Any = dict if is_a(thing, dict) else list if is_a(thing, list) else collections.deque
        for key, given, value in rows:
            if given is not value:
                base.__setitem__(thing, key, given)

    def write_names(self, owner: Any, space: dict[str, Any], name: str) -> None:
        """An attribute of an object is about to be written, in its dict."""
        place = self.place_of(owner)
        if place is None:
            return
        self.namespace(owner, space)
        self.write(space, name, whole=False, table=NAMES)

    def namespace(self, owner: Any, space: dict[str, Any]) -> Place | None:
        """The place of the dict of an object, whose items are read as attributes of that."""
        place = self.place_of(owner)
        if place is None:
            return None
        if id(space) not in self.known:
            self.known[id(space)] = (space, self.child(place, "getattr", "__dict__"))
            self.owners[id(space)] = owner
        return self.known[id(space)][1]

    def undo(self) -> None:
        """All that was written is as it was."""
        for written in reversed(self.written.values()):
            written.undo()

    # ------------------------------------------------------------------------------------------ what C code is handed
    def mapped(self, value: Any) -> Any:
        """What C code is handed: containers that hold tensors, or numbers that are symbols, as copies that hold what stands
        for them."""
        kind = type(value)
        if kind in ATOMS:
            return value
        if is_a(value, torch.Tensor):
            return self.give(value)
        if kind in (list, tuple) or (is_a(value, tuple) and kind is not torch.Size):
            items = [self._mapped_item(value, k, v) for k, v in enumerate(value)]
            if all(a is b for a, b in zip(items, value, strict=True)):
                return value
            return items if kind is list else tuple.__new__(kind, items)
        if kind in (dict, collections.OrderedDict):
            pairs = [(self.give(k), self._mapped_item(value, k, v)) for k, v in value.items()]
            same = all(a is k and b is v for (a, b), (k, v) in zip(pairs, value.items(), strict=True))
            return value if same else kind(pairs)
        if kind in (set, frozenset) and any(is_a(v, torch.Tensor) for v in value):
            return kind(map(self.give, value))
        return value

    def given_item(self, thing: Any, key: Any, value: Any) -> Any:
        """What stands for an item of a container that was read."""
        if self.symbols and type(value) in (int, float):
            written = self.written.get(id(thing)) if self.written else None
            place = self.place_of(thing)
            if place is not None and not (written is not None and written.covers(key)):
                return self.symbols.get(self._item_place(thing, place, key), value)
        return self.give(value)

    def symbol_at(self, place: Place, key: Any) -> Any:
        """The symbol of a number that stood at a key of something that was written, or None."""
        owner = place.parent if place.kind == "getattr" and place.key == "__dict__" else None
        at = self.child(place, "item", key) if owner is None else self.child(owner, "attr", key)
        return self.symbols.get(at)

    def _item_place(self, thing: Any, place: Place, key: Any) -> Place:
        owner = self.owners.get(id(thing)) if self.owners else None
        at = None if owner is None or type(key) is not str else self.place_of(owner)
        return self.child(place, "item", key) if at is None else self.child(at, "attr", key)

    def each(self, thing: Any) -> Iterable[Any]:
        """What stands for the items of a list, tuple, deque or set that was read."""
        if is_a(thing, (set, frozenset)):
            return map(self.give, items_of(thing))
        return (self.given_item(thing, k, value) for k, value in enumerate(items_of(thing)))

    def given(self, thing: Any) -> Any:
        """A copy of a list, dict or set with what stands for its items; the thing itself where that is the same."""
        if is_a(thing, dict):
            pairs = [(self.give(k), self.given_item(thing, k, v)) for k, v in pairs_of(thing)]
            same = all(a is k and b is v for (a, b), (k, v) in zip(pairs, pairs_of(thing), strict=True))
            return thing if same else dict(pairs)
        items = [self.given_item(thing, k, v) for k, v in enumerate(items_of(thing))]
        if all(a is b for a, b in zip(items, items_of(thing), strict=True)):
            return thing
        return items if is_a(thing, list) else set(items)

    def _mapped_item(self, thing: Any, key: Any, value: Any) -> Any:
        given = self.given_item(thing, key, value)
        return given if given is not value else self.mapped(value)

    # ------------------------------------------------------------------------------------------ all that can be reached
    def deep(self, value: Any, by: str, depth: int = 0) -> None:
        """Everything that C code of unknown meaning may read of an object is read."""
        kind = type(value)
        if kind in ATOMS or kind in VALUES or is_a(value, enum.Enum) or id(value) in self.walked:
            return
        if kind in torch_api.PYTHON_CLASSES or (self.place_of(value) is None and _is_made_by_torch(kind)):
            return
        if is_a(value, torch.Tensor):
            if self.place_of(value) is not None and getattr(value, "__dict__", None) and depth < 40:
                self.walked.add(id(value))
                real = self.real(value)
                for name, held in list(vars(real).items()):
                    self.step(value, "attr", name, held)
            return
        if is_a(value, types.ModuleType):
            if depth == 0 and not value.__name__.startswith("torch"):
                self._refuse_handed(by, "a Python module")
            return
        if is_a(value, type):
            for cls in (*value.__mro__, *type(value).__mro__) if depth == 0 else ():
                if not is_immutable(cls) and not cls.__module__.startswith("torch"):
                    self.class_dict(cls)
            return
        if is_a(value, C_CALLABLES) and self.place_of(value) is None:
            return
        self.walked.add(id(value))
        if depth > 40:
            self._refuse_handed(by, "an object of more than 40 levels")
        if is_a(value, ITERATORS) or kind in WORLDLY or is_a(value, weakref.ref):
            if self.place_of(value) is not None:
                self._refuse_handed(by, f"a {kind.__name__}, which cannot be compared")
            return
        self._deep_parts(value, kind, by, depth + 1)

    def _deep_parts(self, value: Any, kind: type, by: str, depth: int) -> None:
        if is_a(value, (list, tuple, dict, set, frozenset, collections.deque)):
            self.touch(value)
            items = pairs_of(value) if is_a(value, dict) else enumerate(items_of(value))
            for key, held in list(items):
                self._reached(self.given_item(value, key, held), held, by, depth)
            if is_a(value, collections.defaultdict):
                factory = factory_of(value)
                self._reached(self.step(value, "getattr", "default_factory", factory), factory, by, depth)
        elif is_a(value, VIEWS) or kind is types.MappingProxyType:
            self.touch(value)
            for held in gc.get_referents(value):
                self.deep(held, by, depth)
            return
        elif kind is Function:
            return self._deep_function(value, by, depth)
        elif kind is Method:
            for name in ("__func__", "__self__"):
                self.step(value, "inner", name, getattr(value, name))
                self.deep(getattr(value, name), by, depth)
            return
        elif is_a(value, kinds.ARRAYS):
            return self.row(value, "raw", raw(value))
        self._deep_attributes(value, kind, by, depth)

    def _reached(self, given: Any, held: Any, by: str, depth: int) -> None:
        """On from a part of an object, which C code sees as it is: a number is no symbol there."""
        if not self.fix(given, held):
            self.deep(given, by, depth)

    def fix(self, given: Any, held: Any) -> bool:
        """Code of C sees a number itself, for which a symbol stands in the trace: it is no symbol then."""
        if given is held or type(given) not in torch_api.PYTHON_CLASSES:
            return False
        torch_api.PYTHON_CLASSES[type(given)](given)
        return True

    def _deep_function(self, function: Any, by: str, depth: int) -> None:
        self.cells_of(function)
        defaults = (function.__defaults__, function.__kwdefaults__)
        for name, held in zip(("__defaults__", "__kwdefaults__"), defaults, strict=True):
            if held:
                self.step(function, "inner", name, held)
                self.deep(held, by, depth)
        for cell in function.__closure__ or ():
            for held in gc.get_referents(cell):
                self.step(cell, "contents", None, held)
                self.deep(held, by, depth)

    def _deep_attributes(self, value: Any, kind: type, by: str, depth: int) -> None:
        space = instance_dict(value)
        if space is not None:
            for name, held in list(space.items()):
                self._reached(self.step(value, "attr", name, held, space), held, by, depth)
            if self.namespace(value, space) is not None:
                self.row(space, "keys", list(self.box(space)))
        for cls in kind.__mro__:
            if not is_immutable(cls) and not is_of_torch(_file_of(cls)):
                for name, member in list(cls.__dict__.items()):
                    if name in ("__dict__", "__weakref__", "__doc__", "__module__"):
                        continue
                    self.lookup(kind, name)
                    if type(member) is types.MemberDescriptorType:
                        held = slot(member, value)
                        self._reached(self.step(value, "getattr", name, held), held, by, depth)
        base = next(cls for cls in kind.__mro__ if is_immutable(cls) or not is_heap_type(cls))
        if base is object or self.place_of(value) is None or is_a(value, CONTAINERS):
            return
        inner = [v for v in gc.get_referents(value) if v is not kind]
        if not inner and space is None and kind is base:
            self._refuse_handed(by, f"a {kind.__name__}, which cannot be compared")
        for k, held in enumerate(gc.get_referents(value)):
            if held is not kind and held is not space:
                self._reached(self.step(value, "ref", k, held), held, by, depth)

    def _refuse_handed(self, by: str, what: str) -> None:
        self.refuse(
            SideEffectError(
                f"C code ({by}) is given {what}",
                path=user_line(),
                fix="call it outside of the region, or pass what it gives as an argument",
            )
        )

    def cells_of(self, function: Any) -> None:
        """The cells of a function that was there before have places."""
        place = self.place_of(function)
        if place is None or not function.__closure__:
            return
        for k, (name, cell) in enumerate(zip(function.__code__.co_freevars, function.__closure__, strict=True)):
            if id(cell) not in self.known:
                self.known[id(cell)] = (cell, self.child(place, "cell", k, name))


# ---------------------------------------------------------------------------------------------- helpers
_NUMBERS_AND_TEXTS = (int, float, complex, str, bytes)


def _is_its_own_name(value: Any, kind: type) -> bool:
    """Is it the same thing in each call, and without state that its class would not tell?"""
    if is_a(value, (type, types.ModuleType, *DESCRIPTORS)):
        return True
    if kind is Builtin:
        return value.__self__ is None or is_a(value.__self__, (type, types.ModuleType))
    return False


def _is_made_by_torch(kind: type) -> bool:
    """Is it of a class of torch's own, but for what the user's code fills?"""
    return kind.__module__.startswith("torch") and not issubclass(kind, (torch.nn.Module, dict, list))


def items_of(thing: Any) -> Iterable[Any]:
    """The items of a list, a tuple, a deque or a set, past an ``__iter__`` of the user's."""
    kinds = (list, tuple, collections.deque, set, frozenset)
    base: Any = next((kind for kind in kinds if is_a(thing, kind)), type(thing))
    return base.__iter__(thing)  # type: ignore[no-any-return]


def instance_dict(value: Any) -> dict[str, Any] | None:
    """The dict of an object, past any property; None where it has none."""
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return held if type(held) is dict else None


def slot(member: Any, value: Any) -> Any:
    """What stands in a slot, or `MISSING`."""
    try:
        return member.__get__(value, type(value))
    except AttributeError:
        return MISSING


def names_of(cls: type) -> str:
    """The names that a class defines itself, in order."""
    left_out = ("__abstractmethods__", "__annotations_cache__", "__doc__", "__slotnames__", "_abc_impl")
    return " ".join(n for n in type.__dict__["__dict__"].__get__(cls) if n not in left_out)


def _file_of(cls: type) -> str:
    """Of torch's classes a file that is torch's, of others the empty text."""
    return torch.__file__ if (cls.__module__ or "").startswith("torch.") else ""


def user_line() -> str | None:
    """``file:line`` of the innermost frame of the user's code that runs."""
    from .frames import user_frame

    frame = user_frame()
    return None if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"
