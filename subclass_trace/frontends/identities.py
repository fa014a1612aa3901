"""``id(x)`` and ``hash(x)`` of inputs: code that keeps tables by them finds what the caller has put there.

The function is given a traced tensor for each input, with an ``id`` of its own. In code of the user's the two functions
answer what they would for the caller's tensor. What follows from that number holds in calls with that very tensor, which is
checked. Code that only asks which of its arguments are the same (``seen.add(id(x))``) is served for other tensors as well:
of an argument the answer is an `ArgumentId`, which tells when more than that is asked of it.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from .exchanged import Exchange, places
from .members import CONTAINERS
from .reached import Reached

Tensor = torch.Tensor
Pairs = Iterable[tuple[Tensor, Tensor]]
#: the names that code calls them by
_NAMES = ("id", "hash")
#: no object lies at a lower address, nor at one that is no multiple of 8
_LOWEST = 1 << 16
_DEEPEST = 9


@dataclass(frozen=True, eq=False)
class Asked:
    """What a trace knows of the ``id`` of arguments.

    Attributes:
        which: is told of an argument that the trace takes to be this very tensor; ``met``: other inputs of which it does.
        others: what no argument's ``id`` is, unless the trace takes it to be the tensor with this one.
        alive: how many numbers there are of an argument, by its id; and the argument.
    """

    which: Callable[[Tensor], None]
    met: list[Tensor]
    others: set[int]
    alive: Counter[int] = field(default_factory=Counter)
    tensors: dict[int, Tensor] = field(default_factory=dict)


class ArgumentId(int):
    """The ``id`` of an argument. Compared with others of its kind it is a number; more makes it that of one tensor."""

    asked: Asked

    @staticmethod
    def of(real: Tensor, asked: Asked) -> ArgumentId:
        number = ArgumentId(id(real))
        number.asked = asked
        asked.tensors[id(real)] = real
        asked.alive[id(real)] += 1
        return number

    def tell(self) -> int:
        """The number, which the trace depends on."""
        n = int.__int__(self)
        if n in self.asked.tensors:  # the trace is not over
            self.asked.which(self.asked.tensors[n])
        return n

    def __eq__(self, other: object) -> bool:
        same = int.__eq__(self, other)
        if isinstance(other, int) and not isinstance(other, ArgumentId):
            if same is True:
                self.tell()
            elif self.asked.tensors:
                self.asked.others.add(other)
        return same

    def __ne__(self, other: object) -> bool:
        same = self.__eq__(other)
        return same if same is NotImplemented else not same

    __hash__ = int.__hash__

    def __reduce_ex__(self, protocol: Any) -> Any:
        return int, (self.tell(),)

    def __del__(self) -> None:
        self.asked.alive[int.__int__(self)] -= 1


def _telling(name: str) -> Callable[..., Any]:
    plain = getattr(int, name)

    def method(self: ArgumentId, *args: Any) -> Any:
        return plain(self.tell(), *map(plain_number, args))

    return method


for _name, _held in vars(int).items():
    if callable(_held) and _name not in vars(object) and not isinstance(_held, (classmethod, staticmethod)):
        if _name != "__bool__":
            setattr(ArgumentId, _name, _telling(_name))
for _name in ("__lt__", "__le__", "__gt__", "__ge__", "__repr__", "__str__", "__format__"):
    setattr(ArgumentId, _name, _telling(_name))


def plain_number(value: Any) -> Any:
    """A number for an `ArgumentId` that code keeps; everything else as it is."""
    return value.tell() if isinstance(value, ArgumentId) else value


@contextlib.contextmanager
def ids_as_eager(reached: Reached, given: Any, arguments: Pairs, others: Pairs, asked: Asked) -> Iterator[None]:
    """Inside, ``id`` and ``hash`` in code that the function reaches answer as they do for the caller's tensors.

    ``given``: what the function is called with. ``arguments``, ``others``: inputs, with what stands for them.
    """
    tables = [(row.holder, row.key) for row in reached.unbound if row.key in _NAMES and type(row.holder) is dict]
    free = [(table, str(name)) for table, name in tables if name not in table]
    if not free:
        yield
        return
    real = {id(traced): (t, False) for t, traced in others} | {id(traced): (t, True) for t, traced in arguments}
    stand_ins = {name: _standing(getattr(builtins, name), real, asked) for name in _NAMES}
    for table, name in free:
        table[name] = stand_ins[name]
    try:
        yield
    finally:
        real.clear()
        for table, name in free:
            table.pop(name, None)
        if asked.tensors:
            inside = [*_containers_in(given)]
            containers = [*inside, *(value for value, _ in reached.held)]
            asked.others.update(_numbers(row.value for row in reached.slots), *map(_numbers, map(_items, containers)))
            for n in asked.others & asked.tensors.keys():
                asked.which(asked.tensors[n])
            _settle([*places(reached), *inside, *(vars(traced) for _, traced in arguments)], asked)


def _standing(plain: Any, real: Mapping[int, tuple[Tensor, bool]], asked: Asked) -> Callable[[Any], int]:
    """``id`` or ``hash`` in the thread that traces; what it was before in others, and for whoever keeps it."""
    thread = threading.get_ident()

    def number_of(value: Any, /) -> int:
        if is_dynamo_compiling() or threading.get_ident() != thread:
            return int(plain(value))
        row = real.get(id(value)) if isinstance(value, Tensor) else None
        if row is None or plain(value) != id(value):  # its class has a hash of its own
            return int(plain(value))
        tensor, is_argument = row
        if is_argument:
            return ArgumentId.of(tensor, asked)
        asked.met.append(tensor)
        return id(tensor)

    return number_of


def _settle(where: Iterable[Any], asked: Asked) -> None:
    """A number that has not gone with the function's own variables is kept somewhere: it is a plain one from now on."""
    if asked.alive.total():
        gc.collect(0)  # an inner function that calls itself keeps its variables
    if asked.alive.total():
        for n, count in asked.alive.items():
            if count:
                asked.which(asked.tensors[n])
        plain = _Plain(())
        for place in where:
            plain.at(place)
    asked.tensors.clear()


class _Plain(Exchange):
    """Puts plain numbers into the places of each `ArgumentId`."""

    def may(self, value: Any) -> bool:
        return isinstance(value, ArgumentId) or super().may(value)

    def of(self, value: Any) -> Any:
        return plain_number(super().of(value))


def _containers_in(value: Any, depth: int = 0) -> Iterator[Any]:
    if isinstance(value, CONTAINERS) and depth < _DEEPEST:
        if not isinstance(value, (tuple, frozenset)):
            yield value
        for item in list(dict.values(value) if isinstance(value, dict) else value):
            yield from _containers_in(item, depth + 1)


def _items(value: Any) -> list[Any]:
    """What a container holds, its keys too."""
    if isinstance(value, dict):
        return [*dict.keys(value), *dict.values(value)]
    base: Any = next((cls for cls in CONTAINERS if isinstance(value, cls)), None)
    return [] if base is None else [*base.__iter__(value)]


def _numbers(items: Iterable[Any]) -> Iterator[int]:
    """Those that could be an ``id``: code may look for one among them, or put them where it looks."""
    for item in items:
        if isinstance(item, int):
            if item >= _LOWEST and item % 8 == 0:
                yield plain_number(item)
        elif isinstance(item, (tuple, frozenset)):
            yield from _numbers(_items(item))
