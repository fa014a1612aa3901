"""Containers: what of them is read and written, and what C code is handed in their place."""

from __future__ import annotations

import collections
import gc
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..errors import SideEffectError, UnsupportedError
from ..subclass.values import ATOMS, is_a, same
from .kinds import VIEWS
from .place import Place
from .recorder import StateRecorder, instance_dict, is_made_by_torch
from .rows import members, put_raw, raw
from .special import is_python
from .values import MISSING, base_of, factory_of, items_of, pairs_of, size_of
from .writes import BAG, CELL, CLASS, MAPPING, NAMES, SEQUENCE, SLOTS, Table, Written, table_of

#: how what a table holds is read
_READ_BY: dict[Table, str] = {
    MAPPING: "item",
    SEQUENCE: "item",
    NAMES: "item",
    CELL: "contents",
    CLASS: "own",
    SLOTS: "getattr",
}


def contents_of(container: Any) -> list[Any]:
    """The items of a list; the keys and the values of a dict."""
    return [*container, *container.values()] if is_a(container, dict) else [*container]


class Containers(StateRecorder):
    """A recorder that knows lists, tuples, dicts, sets and deques, and the namespaces of
    objects."""

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
            self.row(thing, "keys", list(items_of(held)))
            for key, value in list(pairs_of(held)):
                self._item(thing, key, value)
                if type(key) not in ATOMS:
                    self._member(key)
            if is_a(thing, collections.defaultdict):
                self.step(thing, "getattr", "default_factory", factory_of(thing))
        elif is_a(thing, (list, tuple, collections.deque)):
            held = self.box(thing)
            self.sized(thing, "len", size_of(held))
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
        """``thing[key]`` was ``value`` (`MISSING`: there is none), of a built-in container. What
        stands for it in the trace."""
        if self.place_of(thing) is None:
            return self.give(value)
        is_list = is_a(thing, (list, tuple, collections.deque))
        if is_list and type(key) is not slice and key < 0:
            self.length(thing, "len", size_of(thing))
            key += size_of(thing)
        written = self.written.get(id(thing)) if self.written else None
        if written is not None and written.covers(key):
            if written.keys is None:
                self.touch(thing)
            elif is_list and key not in written.keys:  # added: which one hangs on the length
                self.sized(thing, "len", len(written.before))
            return self.give(value)
        if is_list:
            if type(key) is slice:
                self.touch(thing)
                items = [*self.each(thing)][key]
                same = all(a is b for a, b in zip(items, items_of(value), strict=True))
                return value if same else items if is_a(thing, list) else type(value)(items)
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
            self.sized(thing, kind, known)

    def sized(self, thing: Any, kind: str, known: Any) -> None:
        """A length is read. A guard asks no ``__len__`` of the user's."""
        own = is_python(type(thing), "__len__", "__bool__")
        if own:
            kind, known = "size", known if kind == "len" else size_of(thing)
        self.row(thing, kind, known)

    def write(
        self,
        thing: Any,
        key: Any = None,
        *,
        whole: bool = True,
        table: Table | None = None,
        removes: bool = False,
    ) -> None:
        """Something that was there before the run is about to be changed, at a key, which may be
        taken away, or as a whole."""
        self.changes += 1
        place = self.place_of(thing)
        if place is None:
            return
        written = self.written.get(id(thing))
        if (
            self.waits is not None
            and not whole
            and is_a(thing, dict)
            and not dict.__contains__(thing, key)
        ):
            self._wait_for_state(place)
        if written is None:
            written = self.written[id(thing)] = Written(thing, table or table_of(thing), place)
        if whole:
            if written.keys is not None:
                self.touch(thing) if written.table is BAG else self._substitute(thing)
            written.keys = None
        elif written.keys is not None:
            written.keys.add(key)
            if removes:
                written.moved.add(key)

    def _wait_for_state(self, place: Place) -> None:
        """A key is new in a dict at this place, which may be the state of an optimizer."""
        at: Place | None = place
        while at is not None and at.parent is not None:
            if at.kind in ("attr", "getattr") and at.key == "state":
                if is_a(at.parent.read(self.roots_of_call), torch.optim.Optimizer):
                    self.wait(at)
            at = at.parent

    def wait_for_tensor(self, owner: Any, name: str, value: Any) -> None:
        """An object of torch's own gets a tensor for good, as a GradScaler its scale."""
        kind = type(owner)
        if is_a(value, torch.Tensor) and is_made_by_torch(kind) and not is_a(owner, torch.Tensor):
            place = self.child(self.known[id(owner)][1], "attr", name)
            is_new = (instance_dict(owner) or {}).get(name) is None
            if is_new and str(place) not in (self.waits or ()):  # else each call makes it anew
                self.wait(place)

    def wait(self, place: Place) -> None:
        """Torch's own code makes what it keeps: this call runs eagerly, and a later one is traced,
        which finds it.

        Raises:
            UnsupportedError: for this one.
        """
        self.refuse(
            UnsupportedError(
                "the first call makes the state of an optimizer or a scaler",
                code="makes-state",
                path=str(place),
            )
        )

    def grow(self, thing: Any, items: Iterable[Any]) -> None:
        """Items are about to be added at the end of a list or a deque: those that are there stay
        where they are."""
        self.changes += 1
        place = self.place_of(thing)
        if place is None:
            return
        if id(thing) not in self.written:
            self.written[id(thing)] = Written(thing, SEQUENCE, place)
        if getattr(thing, "maxlen", None) is not None:
            self.write(thing)
        self.written[id(thing)].added += items

    def place_at(self, row: Written, key: Any) -> Place | None:
        """Where what stands at a key of something that is written is read; None: nowhere."""
        kind, of = _READ_BY.get(row.table), row.place
        if of.kind == "getattr" and of.key == "__dict__" and of.parent is not None:
            kind, of = "attr", of.parent
        return None if kind is None else self.child(of, kind, None if kind == "contents" else key)

    def keeps(self, row: Written, key: Any, value: Any) -> bool:
        """Does each call leave at a key what it finds there? Then it is no effect. What the run
        puts there may be the same in this call alone, unless that was read."""
        if row.keys is not None and key not in row.keys:
            return key in row.before
        place = self.place_at(row, key)
        if not self.is_as_before(row, key, value):
            return place in self.symbols and self.symbols[place] is value
        is_read = row.keys is None if place is None else place in self.noted
        return is_read and place not in self.symbols

    def is_as_before(self, row: Written, key: Any, value: Any) -> bool:
        """Is what stands at a key what stood there, in this call?"""
        was = row.before.get(key, MISSING)
        return value is was or self.real(value) is was or same(value, was)

    def differs(self, row: Written, same: Callable[..., bool]) -> bool:
        """Is any of it not the ``same``: `keeps`, or `is_as_before`?"""
        now = row.now
        gone = any(key not in now for key in row.before)
        return gone or not all(same(row, key, value) for key, value in now.items())

    def _substitute(self, thing: Any) -> None:
        """The items of what is changed in any way are read, and what stands for them takes their
        places."""
        self.touch(thing)
        if is_a(thing, dict):
            rows = [(k, self.given_item(thing, k, v), v) for k, v in list(pairs_of(thing))]
        else:
            rows = [
                (k, self.given_item(thing, k, v), v) for k, v in enumerate(list(items_of(thing)))
            ]
        for key, given, value in rows:
            if given is not value:
                base_of(thing).__setitem__(thing, key, given)

    def write_names(
        self, owner: Any, space: dict[str, Any], name: str, *, removes: bool = False
    ) -> None:
        """An attribute of an object is about to be written, in its dict."""
        place = self.place_of(owner)
        if place is None:
            return
        self.namespace(owner, space)
        self.shares(owner, space)
        self.write(space, name, whole=False, table=NAMES, removes=removes)

    def shares(self, owner: Any, space: dict[str, Any]) -> None:
        """Two objects have one dict, through one of which it is written: they still have."""
        place = self.place_of(owner)
        if place is not None and self.owners.get(id(space)) is not owner:
            self.at(self.child(place, "getattr", "__dict__"), space)

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
        for array, known in self.arrays.values():
            if raw(array) != known:
                put_raw(array, known)

    def mapped(self, value: Any) -> Any:
        """What C code is handed: containers that hold tensors, or numbers that are symbols, as
        copies that hold what stands for them."""
        kind = type(value)
        if kind in ATOMS:
            return value
        if is_a(value, torch.Tensor):
            return self.give(value)
        if kind in (list, tuple) or (is_a(value, tuple) and kind is not torch.Size):
            items = [self._mapped_item(value, k, v) for k, v in enumerate(items_of(value))]
            if all(a is b for a, b in zip(items, items_of(value), strict=True)):
                return value
            return self._copied(items) if kind is list else tuple.__new__(kind, items)
        if kind in (dict, collections.OrderedDict):
            pairs = [(self.give(k), self._mapped_item(value, k, v)) for k, v in value.items()]
            same = all(
                a is k and b is v for (a, b), (k, v) in zip(pairs, value.items(), strict=True)
            )
            return value if same else self._copied(kind(pairs))
        if kind in (set, frozenset) and any(is_a(v, torch.Tensor) for v in value):
            return kind(map(self.give, value))
        if self.symbols and is_a(value, (list, dict, collections.deque)):  # as it is
            for key, held in list(
                pairs_of(value) if is_a(value, dict) else enumerate(items_of(value))
            ):
                self.fix(self.given_item(value, key, held), held)
        return value

    def handed(self, value: Any) -> Any:
        """What code of the region's is handed by C code that passes it on as it is."""
        return self.give(value) if is_a(value, torch.Tensor) else value

    def _copied(self, copy: Any) -> Any:
        self.copies.append((copy, contents_of(copy)))
        return copy

    def check_copies(self) -> None:
        """What C code was handed holds what it held: arrays, which C code writes by many ways, and
        what is no more than a copy.

        Raises:
            SideEffectError: it does not.
        """
        for array, known in self.arrays.values():
            if raw(array) != known:
                raise SideEffectError(
                    "the region changes an array or a buffer",
                    code="object-changed",
                    path=str(self.place_of(array)),
                    got=f"a {type(array).__name__} that holds other values after it",
                    fix="make it inside of the region, or write to a tensor",
                )
        for copy, before in self.copies:
            now = contents_of(copy)
            if len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True)):
                raise SideEffectError(
                    "a list or dict is changed by code that C code calls with a copy of it",
                    code="c-code-given",
                    got=f"a {type(copy).__name__} of {len(now)} items",
                    fix="let the code that changes it find it as a global or in a closure",
                )

    def given_item(self, thing: Any, key: Any, value: Any) -> Any:
        """What stands for an item of a container that was read."""
        if self.symbols and type(value) in (int, float):
            written = self.written.get(id(thing)) if self.written else None
            place = self.place_of(thing)
            if place is not None and not (written is not None and written.covers(key)):
                return self.symbols.get(self._item_place(thing, place, key), value)
        return self.give(value)

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
        """A copy of a list, dict or set with what stands for its items; the thing itself where that
        is the same."""
        if is_a(thing, dict):
            pairs = [(self.give(k), self.given_item(thing, k, v)) for k, v in pairs_of(thing)]
            same = all(
                a is k and b is v for (a, b), (k, v) in zip(pairs, pairs_of(thing), strict=True)
            )
            return thing if same else dict(pairs)
        items = [self.given_item(thing, k, v) for k, v in enumerate(items_of(thing))]
        if all(a is b for a, b in zip(items, items_of(thing), strict=True)):
            return thing
        return items if is_a(thing, list) else set(items)

    def _mapped_item(self, thing: Any, key: Any, value: Any) -> Any:
        given = self.given_item(thing, key, value)
        return given if given is not value else self.mapped(value)
