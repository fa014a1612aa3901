"""Places: where a value of a call comes from, as a root and steps.

A place prints as code (``args[0]``, ``self.cfg.heads[2]``, ``module.CFG['lr']``) and is read again
in each call, given its root: an argument, the region's function, or a thing that has a name of its
own (a class, the dict of a Python module). A step is one read as the interpreter does it, by the
methods of the built-in base: no property, ``__getattr__`` or ``__eq__`` of the user's runs when a
place is read.

>>> settings = {"lr": 0.1}
>>> at = Place(None, "arg", 0).step("item", "lr")
>>> str(at), at.read(Roots((settings,), {}))
("args[0]['lr']", 0.1)
"""

from __future__ import annotations

import gc
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from ..subclass.values import ATOMS, is_a
from .values import MISSING, base_of, lookup, lookup_after, short


class Roots(NamedTuple):
    """The roots of one call of a region: its arguments, and the function itself."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    function: Any = None


#: the kinds of roots: an argument (number or keyword), the region's function, a thing that is its
#: own name
ROOTS = ("arg", "self", "const")


class Place:
    """A root (no parent), or a step of some kind from another place. Compared by identity: a
    recorder makes each once.

    Attributes:
        kind: of the root (`ROOTS`) or the step (`STEPS`).
        key: which argument, attribute, item; of a "const" root the thing itself.
        moves: is it among the arguments, which each call brings anew?
        late: does reading it call a cache, which is asked when all else holds, or a weak reference,
            of which nothing may keep what it leads to?
    """

    __slots__ = ("key", "kind", "late", "moves", "name", "parent")

    def __init__(self, parent: Place | None, kind: str, key: Any, name: str | None = None) -> None:
        self.parent, self.kind, self.key, self.name = parent, kind, key, name
        self.moves: bool = kind == "arg" if parent is None else parent.moves
        self.late: bool = kind in ("cached", "weak") or (parent is not None and parent.late)

    def step(self, kind: str, key: Any) -> Place:
        """The place one step further."""
        return Place(self, kind, key)

    @property
    def steps(self) -> tuple[tuple[str, Any], ...]:
        """(kind, key) of each step from the root."""
        return () if self.parent is None else (*self.parent.steps, (self.kind, self.key))

    @property
    def root(self) -> Place:
        """Where the steps begin."""
        return self if self.parent is None else self.parent.root

    def read(self, call: Roots) -> Any:
        """What stands there in a call; `MISSING` where nothing does.

        Raises:
            Exception: one of `GONE`: what the place leads through is not there.
        """
        if self.parent is not None:
            return STEPS[self.kind](self.parent.read(call), self.key)
        if self.kind == "self":
            return call.function
        if self.kind == "const":
            return self.key
        return call.args[self.key] if type(self.key) is int else call.kwargs[self.key]

    def __str__(self) -> str:
        if self.name is not None:
            return self.name
        return (
            _root_text(self.kind, self.key)
            if self.parent is None
            else _step_text(self.parent, self.kind, self.key)
        )

    __repr__ = __str__


#: what reading a place raises that is gone; an expression that has no value for some sizes (a
#: division by 0) holds for none
GONE = (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError)


# ---- steps
def of_instance(o: Any, name: str) -> Any:
    """In the ``__dict__`` of an object, past any property."""
    try:
        held = object.__getattribute__(o, "__dict__")
    except AttributeError:
        return MISSING
    return dict.get(held, name, MISSING) if is_a(held, dict) else MISSING


def by_class(o: Any, name: str) -> Any:
    """What C code of the class gives: a slot, ``__dict__``, an attribute of a thread-local."""
    base: Any = next((kind for kind in (type, threading.local) if is_a(o, kind)), object)
    try:
        return base.__getattribute__(o, name)
    except AttributeError:
        return MISSING


def item(o: Any, key: Any) -> Any:
    """Of a container, by the built-in base's own method."""
    if is_a(o, dict):
        return dict.get(o, key, MISSING)
    try:
        return base_of(o).__getitem__(o, key)
    except (IndexError, KeyError):
        return MISSING


def contents(cell: Any, _: Any) -> Any:
    """Of a closure cell."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def own(cls: type, name: str) -> Any:
    """What the class itself defines."""
    return type.__dict__["__dict__"].__get__(cls).get(name, MISSING)


def fact(t: torch.Tensor, question: tuple[Any, tuple[Any, ...]]) -> Any:
    """What a function of torch's answers of a tensor, which its metadata do not tell."""
    function = question[0]
    return (
        function(*question[1])
        if getattr(function, "__self__", None) is t
        else function(t, *question[1])
    )


STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "attr": of_instance,
    "getattr": by_class,
    "item": item,
    "cell": lambda function, k: function.__closure__[k],
    "contents": contents,
    "lookup": lookup,
    "own": own,
    "super": lambda _, key: lookup_after(key),
    "call": lambda function, args: function(*args),
    "weak": lambda ref, _: weakref.ref.__call__(ref),  # of nothing else
    "cached": lambda function, given: function(*given[0], **dict(given[1])),
    "ref": lambda o, k: gc.get_referents(o)[k],
    "fact": fact,
    "inner": getattr,
}


#: steps that an expression does, with what is before them and their key
EXPRESSIONS = {"cell": "{}.__closure__[{}]", "contents": "{}.cell_contents", "inner": "{}.{}"}


# ---- text
def argument_text(key: int | str) -> str:
    """An argument of a call, as an expression."""
    return f"args[{key}]" if type(key) is int else f"kwargs[{key!r}]"


def _root_text(kind: str, key: Any) -> str:
    if kind == "arg":
        return argument_text(key)
    if kind == "self":
        return "f"
    if is_a(key, dict) and type(key.get("__name__")) is str:
        return str(key["__name__"])
    if is_a(key, type) or type(key) in (types.FunctionType, types.BuiltinFunctionType):
        return str(key.__qualname__)
    return short(key)


def _step_text(parent: Place, kind: str, key: Any) -> str:
    before = str(parent)
    if kind in ("attr", "getattr", "inner", "own", "lookup"):
        if kind == "getattr" and key == "__dict__":
            return before
        return f"{before}.{key}"
    if kind == "item":
        return _item_text(parent, before, key)
    if kind == "cell":
        return EXPRESSIONS[kind].format(before, key)
    if kind == "contents":
        return before
    if kind == "weak":
        return f"{before}()"
    if kind == "super":
        return f"super({key[1].__qualname__}, {before}).{key[2]}"
    if kind == "cached":
        given = [*map(short, key[0]), *(f"{name}={short(value)}" for name, value in key[1])]
        return f"{before}({', '.join(given)})"
    if kind == "call":
        return f"{before}({', '.join(map(short, key))})"
    if kind == "fact":
        return f"{key[0].__name__}({before})"
    return f"referents({before})[{key}]"


def _item_text(parent: Place, before: str, key: Any) -> str:
    """An item; of the dict of a module or an object, and of the tables of a `torch.nn.Module`, as
    users write it."""
    of_names = parent.kind == "const" and is_a(parent.key, dict)
    if of_names or (parent.kind == "getattr" and parent.key == "__dict__"):
        return f"{before}.{key}" if before else str(key)
    if (
        parent.kind == "attr"
        and parent.key in ("_modules", "_parameters", "_buffers")
        and type(key) is str
    ):
        assert parent.parent is not None
        owner = str(parent.parent)
        return f"{owner}[{key}]" if key.isdigit() else f"{owner}.{key}"
    return f"{before}[{key!r}]" if type(key) in ATOMS else f"{before}[{short(key)}]"


def above(place: Place) -> Iterator[Place]:
    """The place itself, and those that it leads through."""
    at: Place | None = place
    while at is not None:
        yield at
        at = at.parent
