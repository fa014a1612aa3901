"""Sources: the places that hold the values of a call, as tables of key -> value.

A `Holder` is one mutable thing: a namespace (the dict of globals, of an instance, of a class), a container, a cell. A
`Source` is a holder and a key in it; it prints as code. A holder that a name reaches is *fixed*: the guard of its name is
identity, so that guards and delivery bind the thing itself. A holder inside of the arguments is looked up in each call, by its
parent and the key there.

Places are read and written by the methods of the built-in base (``dict``'s, ``OrderedDict``'s, ``object``'s), never through a
property, ``__getattr__``, ``isinstance`` or ``__setitem__`` of the user's: nothing here runs code of the user's.

>>> settings = {"lr": 0.1}
>>> place = Source(Mapping(settings, "settings"), "lr")
>>> place.path, place.read(((), {}))
("settings['lr']", 0.1)
"""

from __future__ import annotations

import collections
from collections.abc import Mapping as MappingType
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..errors import SideEffectError
from .values import ATOMS, MISSING, dict_of_class, is_a, short

#: the positional and keyword arguments of one call
Call: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


# ---------------------------------------------------------------------------------------------- holders
class Holder:
    """One mutable thing, as a table.

    Attributes:
        thing: what it is; of one inside of the arguments: in the call that is traced.
        path: for people.
        place: where each call finds it; ``fixed`` where that is None. ``origin``: where the walk met it, if that is a place.
        before: the table as it was when the walk came to it.
        guarded: the keys whose values are guarded; None where one comparison holds for all.
        live: what the trace sees in its place; of the attributes of a tensor those of its stand-in, else the thing.
        left_out: keys that are no sources.
    """

    #: what stands there is guarded by name, but not walked on from
    shallow = False
    owner: Any = None

    def __init__(self, thing: Any, path: str, place: Source | None = None) -> None:
        self.thing, self.path, self.place, self.fixed = thing, path, place, place is None
        self.origin: Source | None = None
        self.live: Any = thing
        self.left_out: frozenset[Any] = frozenset()
        self.before: dict[Any, Any] = {}
        self.guarded: dict[Any, None] | None = {}

    def text(self, key: Any) -> str:
        """The path of the value at a key; of the tables of a module as users write it."""
        owner, _, table = self.path.rpartition(".")
        if table in ("_modules", "_parameters", "_buffers") and type(key) is str:
            return f"{owner}[{key}]" if key.isdigit() else f"{owner}.{key}"
        return f"{self.path}[{key!r}]" if type(key) in ATOMS else f"{self.path}[{short(key)}]"

    def find(self, value: Any) -> Any:
        """The thing, from the value that stands in the parent's place."""
        return value

    def now(self, call: Call) -> Any:
        """The thing in a given call."""
        return self.thing if self.place is None else self.find(self.place.read(call))

    def table(self, thing: Any) -> dict[Any, Any]:
        """All that it holds."""
        raise NotImplementedError

    def get(self, thing: Any, key: Any) -> Any:
        """The value at a key, or `MISSING`."""
        return self.table(thing).get(key, MISSING)

    def put(self, thing: Any, key: Any, value: Any) -> None:
        """Write a value; `MISSING` takes it away."""
        raise NotImplementedError

    def fill(self, thing: Any, table: MappingType[Any, Any]) -> None:
        """Make it hold exactly this, in this order."""
        now = self.table(thing)
        for key in now.keys() - table.keys():
            self.put(thing, key, MISSING)
        for key, value in table.items():
            if now.get(key, MISSING) is not value:
                self.put(thing, key, value)


class Arguments(Holder):
    """The arguments themselves: a number is a positional one, a text a keyword."""

    def __init__(self) -> None:
        super().__init__(None, "args")
        self.fixed = False

    def now(self, call: Call) -> Any:
        """The call itself."""
        return call

    def table(self, thing: Call) -> dict[Any, Any]:
        """Positional ones, then keywords."""
        return {**dict(enumerate(thing[0])), **thing[1]}

    def text(self, key: Any) -> str:
        """``args[0]`` or ``kwargs['mask']``."""
        return f"args[{key}]" if type(key) is int else f"kwargs[{key!r}]"


class Mapping(Holder):
    """A dict of the user's, whatever its subclass: its contents in order."""

    def __init__(self, thing: Any, path: str, place: Source | None = None) -> None:
        super().__init__(thing, path, place)
        # The methods of dict leave the list of keys of an OrderedDict behind, and do not see its order.
        self.base: Any = collections.OrderedDict if is_a(thing, collections.OrderedDict) else dict

    def table(self, thing: Any) -> dict[Any, Any]:
        """A copy."""
        return dict(self.base.items(thing))

    def get(self, thing: Any, key: Any) -> Any:
        """The value of a key."""
        return dict.get(thing, key, MISSING)

    def put(self, thing: Any, key: Any, value: Any) -> None:
        """Set an item, or take it away."""
        if value is MISSING:
            self.base.pop(thing, key, None)
        elif dict.__contains__(thing, key):
            dict.__setitem__(thing, key, value)
        else:
            self.base.__setitem__(thing, key, value)

    def fill(self, thing: Any, table: MappingType[Any, Any]) -> None:
        """In this order."""
        self.base.clear(thing)
        for key, value in table.items():
            self.base.__setitem__(thing, key, value)


class Names(Mapping):
    """The namespace of an instance, a function, a tensor (``owner``) or of a Python module or globals (no owner).

    ``opened``: its attributes are walked: all of them, or those that code names.
    """

    def table(self, thing: Any) -> dict[Any, Any]:
        """A copy, without what is no source."""
        if not self.left_out:
            return dict(thing)
        return {key: value for key, value in thing.items() if key not in self.left_out}

    def __init__(self, thing: Any, path: str, place: Source | None = None, owner: Any = None) -> None:
        super().__init__(thing, path, place)
        self.owner = owner
        self.opened = False

    def find(self, value: Any) -> Any:
        """The dict of the object at the parent's place."""
        return object.__getattribute__(value, "__dict__")

    def text(self, key: Any) -> str:
        """``module.name``."""
        return f"{self.path}.{key}" if self.path else str(key)


class OfClass(Names):
    """The attributes of a class, written through ``type``."""

    def __init__(self, cls: type, path: str) -> None:
        super().__init__(dict_of_class(cls), path, owner=cls)
        self.left_out = frozenset(["__slotnames__"])  # which copy.copy remembers

    def put(self, thing: Any, key: Any, value: Any) -> None:
        """By ``type``'s own methods, which the caches of methods know of."""
        if value is not MISSING:
            type.__setattr__(self.owner, key, value)
        elif key in thing:
            type.__delattr__(self.owner, key)

    fill = Holder.fill  # only what differs is written


class Sequence(Holder):
    """A list or a deque."""

    def __init__(self, thing: Any, path: str, place: Source | None = None) -> None:
        super().__init__(thing, path, place)
        self.base: Any = list if is_a(thing, list) else collections.deque

    def table(self, thing: Any) -> dict[Any, Any]:
        """Numbers -> items."""
        return dict(enumerate(self.base.__iter__(thing)))

    def get(self, thing: Any, key: Any) -> Any:
        """One item."""
        return self.base.__getitem__(thing, key) if key < self.base.__len__(thing) else MISSING

    def put(self, thing: Any, key: Any, value: Any) -> None:
        """Set an item that is there."""
        self.base.__setitem__(thing, key, value)

    def extend(self, thing: Any, values: Any) -> None:
        """Add items at the end."""
        self.base.extend(thing, values)

    def fill(self, thing: Any, table: MappingType[Any, Any]) -> None:
        """All items, set afresh."""
        self.base.clear(thing)
        self.base.extend(thing, table.values())


class Bag(Holder):
    """A set: each item is its own key."""

    def table(self, thing: Any) -> dict[Any, Any]:
        """Items -> themselves."""
        return {item: item for item in set.__iter__(thing)}

    def put(self, thing: Any, key: Any, value: Any) -> None:
        """Add or discard."""
        set.discard(thing, key) if value is MISSING else set.add(thing, value)


#: the one key of a cell or of a context variable
CONTENTS = "cell_contents"


class Cell(Holder):
    """A closure cell."""

    def table(self, thing: Any) -> dict[Any, Any]:
        """One row."""
        try:
            return {CONTENTS: thing.cell_contents}
        except ValueError:
            return {CONTENTS: MISSING}

    def put(self, thing: Any, key: Any, value: Any) -> None:
        """Bind it, or empty it."""
        if value is MISSING:
            del thing.cell_contents
        else:
            thing.cell_contents = value

    def text(self, key: Any) -> str:
        """The name of the variable."""
        return self.path


class Variable(Cell):
    """A ``ContextVar``, which is read alone."""

    def table(self, thing: Any) -> dict[Any, Any]:
        """Its value in this context."""
        return {CONTENTS: thing.get(MISSING)}

    def put(self, thing: Any, key: Any, value: Any) -> None:
        """What differs between calls is no content of one."""
        raise SideEffectError("a ContextVar holds a tensor, or a number that changes", path=self.path, fix="pass it")


class Printed(Holder):
    """What ``print`` writes to, with its options (``thing``): each call adds to it."""

    def extend(self, thing: Any, values: Any) -> None:
        """Print it."""
        print(*values, **thing)


@dataclass(frozen=True)
class Source:
    """A place that holds a value: ``key`` in ``holder``, and from there the numbers of items of tuples."""

    holder: Holder
    key: Any
    items: tuple[int, ...] = ()

    def read(self, call: Call) -> Any:
        """What stands there in a call; `MISSING` where nothing does."""
        value = self.holder.get(self.holder.now(call), self.key)
        for k in self.items:
            if value is MISSING:
                break
            value = value[k]
        return value

    @property
    def path(self) -> str:
        """As code."""
        return self.holder.text(self.key) + "".join(f"[{k}]" for k in self.items)

    def __str__(self) -> str:
        return self.path
