"""Places, rows and guards as data.

A place is written once, as (place before, kind of step, key), and named by its number. A key or a
known thing that has no name is written as "what stands at that place", so that a Parameter that is
a key of an optimizer's state is found again.

The id of a hook is a key in the tables of its module, and another number in each process: it is
written as the n-th key of such a table.

A row that tells an identity names the thing, or says what stood there: its class, and the code of
the functions that it is made of. What stands there when the description is bound is that thing from
then on: with what else it was compared, and what was looked up by it, is said by rows of their own.
"""

from __future__ import annotations

import contextvars
import functools
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch

from ..errors import DescriptionError, Reason, Unlike
from ..state.guards import StateGuards, others_of
from ..state.kinds import GETTERS, is_immutable
from ..state.place import GONE, ROOTS, STEPS, Place, Roots, above
from ..state.recorder import names_of
from ..state.rows import KINDS, Row, code_of, members
from ..state.values import MISSING
from ..state.warned import filters_that_raise
from ..subclass.values import ATOMS, is_atom
from ..torch_api.flags import FLAG_READ_BY
from ..torch_api.kinds import placement_types
from ..torch_api.owners import Owner, owner_of
from ..torch_api.ranks import group_named, groups_of, is_group, is_mesh, members_of, mesh_data
from ..torch_api.wrappers import CLASSES_OF_PYBIND
from .checks import is_name
from .objects import fingerprint, fingerprint_of_class, functions_in, name_of
from .vocabulary import Reader, Writer

#: what is known again by the code of its functions, or by rows of its own
_KNOWN_BY_CODE = (staticmethod, classmethod, property, functools.partial, *CLASSES_OF_PYBIND)
#: what rows of some kinds know
_KNOWN: dict[str, Any] = {
    "len": int,
    "size": int,
    "type": type,
    "number": type,
    "tensor": type,
    "truth": bool,
}
_OF_HOOKS = ("_forward_", "_backward_", "_global_", "_optimizer_", "_post_accumulate_")
#: kinds of rows that compare with another place
_WITH_PLACE = ("alias", "other")
#: Python functions that a guard may call; see `may_be_called`
_CALLED = (names_of, issubclass, filters_that_raise, hash)
_ASKING = ("get", "is", "has", "_get", "_is", "_has", "are", "_are", "size", "__hash__")
#: objects that tell what they hold
_TELLING = (weakref.ref, type(torch.ops.aten.add.default))


def _is_table_of_hooks(name: Any) -> bool:
    """Is it an attribute of torch's modules, tensors or optimizers in which ids are keys?"""
    return type(name) is str and name.startswith(_OF_HOOKS) and "_hooks" in name


def may_be_called(function: Any) -> bool:
    """May a guard of a description call it: does it only tell?"""
    if function in _CALLED or function in FLAG_READ_BY or type(function) in _TELLING:
        return True
    if type(getattr(function, "__self__", None)) is contextvars.ContextVar:
        return bool(function.__name__ == "get")
    name = getattr(function, "__name__", "")
    return owner_of(function) is Owner.TORCH and name.startswith(_ASKING)


class PlaceWriter(Writer):
    """Writes places, and all that names one. ``call``: the roots, for what is found by its place
    alone."""

    def __init__(self, call: Roots) -> None:
        super().__init__()
        self.call = call
        self.places: list[Any] = []
        self._numbers: dict[Place, int] = {}
        self._hooks: dict[int, tuple[Place, int]] = {}
        self._found: dict[int, tuple[Any, Place]] | None = None
        self._open = set[Place]()  # those that are being written, of which none leads to another

    # ---- places
    def place(self, place: Place) -> int:
        """The number of a place."""
        known = self._numbers.get(place)
        if known is not None:
            return known
        before = None if place.parent is None else self.place(place.parent)
        self._open.add(place)
        key: Any = place.key
        if place.kind == "const":
            key = self.thing(key, str(place))
        elif place.kind == "call" and before is not None and not self._is_told(place):
            key = self.gap(str(place), "what code of C tells when it is called")
        else:
            key = self._hook(place, key) or self.key(key, str(place))
        self._open.discard(place)
        self._numbers[place] = number = len(self.places)
        self.places.append([before, place.kind, key, *([] if place.name is None else [place.name])])
        return number

    def _is_told(self, place: Place) -> bool:
        assert place.parent is not None
        try:
            return may_be_called(place.parent.read(self.call))
        except GONE:
            return False

    def _hook(self, place: Place, key: Any) -> Any:
        """The id of a hook that stands in a table of hooks, or is looked up in one."""
        table = None if place.parent is None else place.parent.key
        if place.kind != "item" or type(key) is not int or not _is_table_of_hooks(table):
            return None
        found = self._hooks.get(key)
        return None if found is None else ["hook", self.place(found[0]), found[1]]

    def key(self, key: Any, path: str) -> Any:
        """What a step is told: a name, a number, or a thing."""
        if type(key) is tuple:
            return ["tuple", *(self.key(k, path) for k in key)]
        return self.value(key, path) if is_atom(key) else self.thing(key, path)

    def thing(self, thing: Any, path: str) -> Any:
        """A thing by its name, or by its place."""
        if (name := name_of(thing)) is not None:
            return ["named", *name]
        place = self._place_of(thing)
        if place is not None:
            return ["at", place]
        if (of := self._part_of_thing(thing)) is not None:
            return of
        return self.gap(path, f"a {type(thing).__qualname__} that no name and no place leads to")

    def _part_of_thing(self, thing: Any) -> Any:
        """The class of what stands at a place, or the globals of a function there."""
        self._place_of(thing)
        assert self._found is not None
        for value, place in [*self._found.values()]:
            if isinstance(thing, type) and type(value) is thing:
                return ["class of", self.place(place), fingerprint_of_class(thing)]
            for k, function in enumerate(functions_in(value) if type(thing) is dict else ()):
                if function.__globals__ is thing:
                    return ["globals of", self.place(place), k]
        return None

    def _place_of(self, thing: Any) -> int | None:
        """The number of a place at which the thing stands."""
        if self._found is None:
            self._found = {}
            for place in [*self._numbers, *self._waiting]:
                if place.kind == "const":  # which leads to what it names
                    continue
                try:
                    value = place.read(self.call)
                except GONE:
                    continue
                if type(value) not in ATOMS and value is not MISSING:
                    self._found.setdefault(id(value), (value, place))
        found = self._found.get(id(thing))
        if found is None or not self._open.isdisjoint(above(found[1])):
            return None
        return self.place(found[1])

    #: places that are not written yet, at which things may stand
    _waiting: tuple[Place, ...] = ()

    # ---- rows
    def guards(self, guards: StateGuards) -> Any:
        """The guards of a specialization, or of a backward."""
        for row in guards.rows:
            if row.kind == "keys" and _is_table_of_hooks(row.place.key):
                self._hooks.update(
                    (key, (row.place, k)) for k, key in enumerate(row.known) if type(key) is int
                )
        fixed = (p for row in guards.rows for p in (row.place, *others_of(row)) if not p.late)
        self._waiting, self._found = (*self._waiting, *guards.tensors, *fixed), None
        rows = [self.row(row) for row in guards.rows]
        flat, tensors = ([*map(self.place, places)] for places in (guards.flat, guards.tensors))
        return {
            "rows": rows,
            "flat": flat,
            "tensors": tensors,
            "positional": guards.positional,
            "keywords": [*guards.keywords],
        }

    def row(self, row: Row) -> Any:
        """One row."""
        path, known = str(row.place), row.known
        data: Any
        if row.kind in _WITH_PLACE:
            data = self.place(known)
        elif row.kind == "distinct":
            data = [*map(self.place, known)]
        elif row.kind == "func":
            data = None if known is None else fingerprint(known)
        elif type(known) is types.CodeType:
            data = ["code", fingerprint(known)]
        elif row.kind == "is":
            data = self.there(known, path)
        elif row.kind == "set":
            data = self.members(row, path)
        elif row.kind == "keys":
            data = [
                self._hook(row.place.step("item", key), key) or self.key(key, path) for key in known
            ]
        else:
            self._by_value = True  # what stands there would be equal to itself
            data = self.value(known, path)
            self._by_value = False
        return [row.kind, self.place(row.place), data]

    def there(self, thing: Any, path: str) -> Any:
        """What stood at a place, as it is known again."""
        if (name := name_of(thing)) is not None:
            return ["named", *name]
        cls = name_of(type(thing))
        if is_immutable(type(thing)) and type(thing) not in (*_KNOWN_BY_CODE, *GETTERS):
            return self.gap(path, f"a {type(thing).__qualname__}, whose state C code keeps")
        if cls is None:
            return self.gap(path, f"a {type(thing).__qualname__}, whose class has no name")
        if type(thing) in GETTERS and not all(map(is_atom, thing.__reduce__()[1])):
            return self.gap(path, "a getter by an object")
        codes = [fingerprint(f.__code__) for f in functions_in(thing)]
        return ["there", cls, codes, self.like(thing)]

    def like(self, thing: Any) -> list[Any]:
        """What tells one mesh, one group, or one getter of `operator` from another."""
        if type(thing) in GETTERS:
            return [["made", repr(thing)]]
        if is_group(thing):
            return [self.group(thing)]
        known = mesh_data(thing)
        return [] if known is None else [["mesh", *known]]

    def group(self, group: Any) -> Any:
        """A group of ranks: of this rank along a dimension of a mesh, or by its members."""
        for mesh, data in self.meshes():
            for dim, found in enumerate(groups_of(mesh)):
                if found is not None and found.group_name == group.group_name:
                    return ["group along", data, dim]
        return ["group", group.group_name, members_of(group)]

    def meshes(self) -> Iterator[tuple[Any, Any]]:
        """Meshes that a description can name."""
        self._place_of(None)
        for value, place in [*(self._found or {}).values()]:
            if is_mesh(value):
                yield value, ["at", self.place(place)]

    def members(self, row: Row, path: str) -> Any:
        """Of a set: atoms, and things."""
        try:
            return [self.key(member, path) for member in row.place.read(self.call)]
        except GONE:
            return self.gap(path, "a set that is not there now")

    _by_value = False

    def other(self, value: Any, path: str) -> Any:
        """As any value; a place, and a thing that stands at one."""
        if type(value) is Place:
            return ["place", self.place(value)]
        if self._by_value and not isinstance(value, type):
            return super().other(value, path)
        made = len(self.gaps)
        data = super().other(value, path)
        if data == ["gap"] and (place := self._place_of(value)) is not None:
            del self.gaps[made:]
            return ["at", place]
        if (
            data == ["gap"]
            and isinstance(value, type)
            and (of := self._part_of_thing(value)) is not None
        ):
            del self.gaps[made:]
            return of
        return data


class PlaceReader(Reader):
    """Reads places and what names them, for the roots of a call.

    Raises:
        DescriptionError: it is broken.
        Unlike: something else is here.
    """

    def __init__(self, data: Any, call: Roots, constants: Any = None) -> None:
        super().__init__(constants)
        ATOMS.update(placement_types())  # no trace has done so
        self.call = call
        self.places: list[Place] = []
        for entry in data:
            self.places.append(self._place(*entry))

    def _place(self, before: Any, kind: str, key: Any, name: str | None = None) -> Place:
        parent = None if before is None else self.at(before)
        if kind not in (ROOTS if parent is None else STEPS):
            raise DescriptionError("no such kind of place", path="places", got=kind)
        told = self.value(key)
        if (kind == "cell" and type(told) is not int) or (kind == "inner" and not is_name(told)):
            raise DescriptionError("no such step", path="places", got=repr(told)[:40])
        if kind == "call" and not (parent is not None and may_be_called(self.read(parent))):
            raise DescriptionError(
                "a guard calls what may do something", path="places", got=str(parent)
            )
        return Place(parent, kind, told, name)

    def at(self, number: Any) -> Place:
        """The place of this number."""
        if type(number) is not int or not 0 <= number < len(self.places):
            raise DescriptionError("no such place", path="places", got=repr(number)[:40])
        return self.places[number]

    def _class_of(self, number: Any, expected: str) -> Any:
        cls = type(self.read(self.at(number)))
        if fingerprint_of_class(cls) != expected:
            raise Unlike(Reason(f"the class {cls.__qualname__} has other methods"))
        return cls

    def _hook_of(self, number: Any, k: int) -> Any:
        place = self.at(number)
        try:
            return [*self.read(place)][k]
        except (IndexError, TypeError):
            raise Unlike(Reason(f"{place} has fewer hooks")) from None

    kinds: ClassVar[dict[str, Callable[..., Any]]] = {
        **Reader.kinds,
        "hook": _hook_of,
        "place": lambda r, number: r.at(number),
        "at": lambda r, number: r.read(r.at(number)),
        "class of": _class_of,
        "group": lambda r, name, members: r._group(name, members),
        "group along": lambda r, mesh, dim: r._group_along(mesh, dim),
        "globals of": lambda r, number, k: functions_in(r.read(r.at(number)))[k].__globals__,
    }

    def read(self, place: Place) -> Any:
        """What stands there now."""
        try:
            found = place.read(self.call)
        except GONE as error:
            raise Unlike(Reason(f"{place} is not there ({error!r})")) from None
        if found is MISSING:
            raise Unlike(Reason(f"{place} is not there"))
        return found

    def guards(self, data: Any) -> StateGuards:
        """The guards."""
        if type(data["positional"]) is not int or not all(
            type(name) is str for name in data["keywords"]
        ):
            raise DescriptionError("no arguments of a call", path="guards.positional")
        rows = tuple(self.row(*row) for row in data["rows"])
        flat, tensors = (tuple(map(self.at, data[name])) for name in ("flat", "tensors"))
        return StateGuards.of(
            rows, flat, tensors, data["positional"], tuple(data["keywords"]), self.call.function
        )

    def row(self, kind: str, number: int, data: Any) -> Row:
        """One row."""
        place = self.at(number)
        if kind not in KINDS:
            raise DescriptionError("no such kind of row", path="rows", got=kind)
        if kind in _WITH_PLACE:
            return Row(kind, place, self.at(data))
        if kind == "distinct":
            return Row(kind, place, tuple(map(self.at, data)))
        if kind == "func":
            return Row(kind, place, self._code(place, data))
        if type(data) is list and data[:1] == ["code"]:
            return Row(kind, place, self._code_object(place, data[1]))
        if kind == "is" and data[0] == "there":
            return Row(kind, place, self._there(place, *data[1:]))
        if kind == "set":
            return Row(kind, place, members([*map(self.value, data)]))
        if kind == "keys":
            return Row(kind, place, [*map(self.value, data)])
        known = self.value(data)
        if not isinstance(known, _KNOWN.get(kind, object)):
            raise DescriptionError("a row that no guard has", path="rows", got=kind)
        return Row(kind, place, known)

    def _code(self, place: Place, expected: str | None) -> Any:
        """The code of the function that stands there, if it does the same."""
        code = code_of(self.read(place))
        if (None if code is None else fingerprint(code)) != expected:
            raise Unlike(Reason(f"{place} has other code", f"{place} has the same code"))
        return code

    def _code_object(self, place: Place, expected: str) -> Any:
        """What stands there, if that is such code."""
        found = self.read(place)
        if type(found) is not types.CodeType or fingerprint(found) != expected:
            raise Unlike(Reason(f"{place} is other code", f"{place} is the same code"))
        return found

    def _there(self, place: Place, cls: Any, codes: list[str], like: list[Any]) -> Any:
        found = self.read(place)
        now = [fingerprint(f.__code__) for f in functions_in(found)]
        same = type(found) is self.value(["named", *cls]) and now == codes
        if not same or not all(self._is_like(found, known) for known in like):
            raise Unlike(Reason(f"{place} is another one", f"{place} is the same"))
        return found

    def _is_like(self, found: Any, known: Any) -> bool:
        if is_group(found):
            return bool(self.value(known).group_name == found.group_name)
        if type(found) in GETTERS:
            return bool(known == ["made", repr(found)])
        return bool(known == ["mesh", *(mesh_data(found) or ())])

    def _group_along(self, mesh: Any, dim: int) -> Any:
        found = self.value(mesh)
        groups = [*groups_of(found)] if is_mesh(found) else []
        if not 0 <= dim < len(groups) or groups[dim] is None:
            raise Unlike(Reason("a mesh of devices has no group along a dimension"))
        return groups[dim]

    def _group(self, name: str, members: list[int]) -> Any:
        found = group_named(name)
        if found is None or members_of(found) != members:
            raise Unlike(Reason(f"the group {name} has other ranks, or is not there"))
        return found
