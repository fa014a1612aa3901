"""State that objects of C keep, of many classes of Python's library: replaced, or changed, between calls it is read anew,
or the trace is refused."""

from __future__ import annotations

import array
import collections
import configparser
import contextvars
import copy
import ctypes
import dataclasses
import datetime
import decimal
import functools
import gc
import io
import json
import logging
import mmap
import operator
import queue
import random
import re
import string
import struct
import threading
import types
import typing
import uuid
import weakref
import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import subclass_trace as st

Change = Callable[[Any], object]


class Reduced:
    value = 1

    def __reduce__(self) -> Any:
        return _again, (self.value + 1,)


class Told:
    value = 1

    def __getstate__(self) -> Any:
        return {"value": self.value + 1}


def _again(value: int) -> Reduced:
    made = Reduced()
    made.value = value
    return made


class Fields(ctypes.Structure):
    _fields_ = [("value", ctypes.c_double)]


class Shown:
    def __init__(self, of: list[int]) -> None:
        self.of = of

    def __repr__(self) -> str:
        return "x" * len(self.of)


class Asked:
    """Says of an instance, by an instance."""

    yes = True

    def __instancecheck__(self, other: Any) -> bool:
        return self.yes


class Slotted:
    __slots__ = ("a",)


def slotted(value: int) -> Slotted:
    made = Slotted()
    made.a = value
    return made


def told(value: int) -> Told:
    made = Told()
    made.value = value
    return made


class Named(NamedTuple):
    a: int
    b: int


class Hashed:
    def __init__(self, value: int) -> None:
        self.value = value

    def __hash__(self) -> int:
        return self.value


ARRAY = np.arange(6.0).reshape(2, 3)
TIME = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
ORDERED = collections.OrderedDict(a=1, b=2)


def _doubled(value: Any) -> Any:
    value.value = 2


#: name -> two values, which follow each other in one place, and what is read of them
REPLACED: dict[str, tuple[Any, Any, Callable[[Any], Any]]] = {
    "union": (int | float, int | str, lambda o: isinstance(2.0, o)),
    "union of classes": (int | float, int | str, lambda o: issubclass(float, o)),
    "typing.Union": (typing.Union[int, float], typing.Union[int, str], lambda o: isinstance(2.0, o)),  # noqa: UP007
    "Optional": (typing.Optional[float], typing.Optional[int], lambda o: isinstance(2.0, o)),  # noqa: UP045
    "arguments of a union": (int | float, int | str, lambda o: float in o.__args__),
    "alias": (list[int], list[str], lambda o: o.__args__[0] is int),
    "method of a pattern": (re.compile("a+").match, re.compile("a").match, lambda o: len(o("aab").group())),
    "another method of one": (re.compile("a").sub, re.compile("b").sub, lambda o: len(o("", "aab"))),
    "method of a text": ("ab".join, "c".join, lambda o: len(o("xyz"))),
    "method of a list": ([1, 1].count, [1].count, lambda o: o(1)),
    "method of a number": ((3).bit_length, (9).bit_length, lambda o: o()),
    "method of a dict": ({1: 2}.get, {1: 3}.get, lambda o: o(1)),
    "method of a class": (dict.fromkeys, collections.OrderedDict.fromkeys, lambda o: type(o([1])) is dict),
    "method of an array": (np.array([1.0, 2]).sum, np.array([1.0, 3]).sum, lambda o: float(o())),
    "NaN": (decimal.Decimal("1.5"), decimal.Decimal("NaN"), lambda o: float(o)),
    "digits": (decimal.Decimal("1.0"), decimal.Decimal("1.00"), lambda o: len(str(o))),
    "sign of zero": (np.float64(0.0), np.float64(-0.0), lambda o: np.copysign(1.0, o)),
    "number of numpy": (np.float32(1.5), np.float32(2.5), lambda o: float(o * 2)),
    "zone of a time": (TIME, TIME.astimezone(datetime.timezone(datetime.timedelta(hours=1))), lambda o: o.hour),
    "order of a union": (int | str, str | int, lambda o: o.__args__[0] is int),
    "equal in order": (ORDERED, collections.OrderedDict(reversed(ORDERED.items())), lambda o: o == ORDERED),
    "slot": (slotted(1), slotted(2), lambda o: Slotted.a.__get__(o)),
    "dict by its descriptor": (Told(), told(2), lambda o: Told.__dict__["__dict__"].__get__(o).get("value", 1)),
    "range": (range(0, 3, 2), range(0, 4, 2), lambda o: o.stop),
    "fold": (datetime.time(1), datetime.time(1, fold=1), lambda o: o.replace(hour=3).fold),
    "named tuple of a tuple": ((1, 2), (3, 2), lambda o: Named._make(o).a),
    "field by its descriptor": (Named(1, 2), Named(3, 2), lambda o: Named.a.__get__(o)),  # type: ignore[attr-defined]
    "behind super": (super(Told, Told()), super(Told, told(2)), lambda o: o.__self__.value),
    "layout of an array": (ARRAY, np.asfortranarray(ARRAY), lambda o: float(o.ravel("K")[1])),
    "copy of slots": (slotted(1), slotted(2), lambda o: copy.copy(o).a),
    "hash": (told(3), told(-1), lambda o: hash(Hashed(o.value))),
    "struct": (struct.Struct("i"), struct.Struct("q"), lambda o: o.size),
    "method of a struct": (struct.Struct("i").pack, struct.Struct("q").pack, lambda o: len(o(1))),
    "template": (string.Template("$a"), string.Template("$a$a"), lambda o: len(o.substitute(a="x"))),
    "zone": (
        datetime.timezone(datetime.timedelta(0)),
        datetime.timezone(datetime.timedelta(0, 60)),
        lambda o: o.utcoffset(None).seconds,
    ),
    "match": (re.match("a+", "aa"), re.match("a+", "a"), lambda o: o.end()),
    "proxy of a dict": (types.MappingProxyType({1: 2}), types.MappingProxyType({1: 3}), lambda o: o[1]),
    "itemgetter": (operator.itemgetter(0), operator.itemgetter(1), lambda o: o((2, 3))),
    "key of cmp_to_key": (
        functools.cmp_to_key(operator.sub),
        functools.cmp_to_key(lambda a, b: b - a),
        lambda o: sorted([2, 1], key=o)[0],
    ),
    "partial": (functools.partial(pow, 2), functools.partial(pow, 3), lambda o: o(2)),
    "decoder": (json.JSONDecoder(parse_int=float), json.JSONDecoder(parse_int=lambda v: 7), lambda o: o.decode("3")),
    "uuid": (uuid.UUID(int=1), uuid.UUID(int=2), lambda o: o.int),
    "order of a set": (set([0, 8, 16]), set([16, 8, 0]), lambda o: [*o][0] + 1),  # noqa: C405
    "first of a set": (set([8, 0]), set([0, 8]), lambda o: next(iter(o)) + 1),  # noqa: C405
    "size of a shape": (torch.Size([1, 2]).numel, torch.Size([1, 3]).numel, lambda o: o()),
}
#: name -> how it is made, how it is changed in place, what is read of it
CHANGED: dict[str, tuple[Callable[[], Any], Change, Callable[[Any], Any]]] = {
    "event": (threading.Event, lambda o: o.set(), lambda o: 2 if o.is_set() else 1),
    "queue": (queue.Queue, lambda o: o.put(1), lambda o: o.qsize() + 1),
    "queue of C": (queue.SimpleQueue, lambda o: o.put(1), lambda o: o.qsize() + 1),
    "lock": (threading.Lock, lambda o: o.acquire(blocking=False), lambda o: 2 if o.locked() else 1),
    "logger": (lambda: logging.Logger("state of C", 30), lambda o: o.setLevel(10), lambda o: o.level),
    "text in memory": (lambda: io.StringIO("ab"), lambda o: o.write("xyz"), lambda o: len(o.getvalue())),
    "number of C": (lambda: ctypes.c_int(1), lambda o: setattr(o, "value", 2), lambda o: o.value),
    "array of C": (lambda: (ctypes.c_int * 2)(1, 2), lambda o: o.__setitem__(0, 5), lambda o: o[0]),
    "attribute of an element": (
        lambda: ET.Element("a", {"n": "1"}),
        lambda o: o.set("n", "22"),
        lambda o: len(o.get("n")),
    ),
    "length of an element": (lambda: ET.Element("a"), lambda o: ET.SubElement(o, "b"), lambda o: len(o) + 1),
    "settings": (configparser.ConfigParser, lambda o: o.read_dict({"s": {}}), lambda o: len(o.sections()) + 1),
    "generator": (lambda: random.Random(1), lambda o: o.seed(5), lambda o: o.random()),
    "array of numpy": (lambda: np.array([1.0, 2]), lambda o: o.__setitem__(0, 5), lambda o: float(o[0])),
    "flags of numpy": (lambda: np.zeros(2), lambda o: o.setflags(write=False), lambda o: 2 if o.flags.writeable else 1),
    "view of bytes": (lambda: memoryview(bytearray(b"a")), lambda o: o.__setitem__(0, 98), lambda o: o[0]),
    "array": (lambda: array.array("i", [1]), lambda o: o.append(3), lambda o: len(o)),
    "map of memory": (lambda: mmap.mmap(-1, 4), lambda o: o.__setitem__(0, 3), lambda o: o[0] + 1),
    "order of a dict": (lambda: {"a": 1, "b": 2}, lambda o: o.update(a=o.pop("a")), lambda o: next(iter(o.values()))),
    "factory": (
        lambda: collections.defaultdict(lambda: 1),
        lambda o: setattr(o, "default_factory", lambda: 2),
        lambda o: o.copy()[3],
    ),
    "maps of a chain": (lambda: collections.ChainMap({}, {1: 1}), lambda o: o.maps[0].update({1: 2}), lambda o: o[1]),
    "turned": (lambda: collections.deque([1, 2], 3), lambda o: o.rotate(1), lambda o: o[0]),
    "partial": (
        lambda: functools.partial(operator.add, 1),
        lambda o: o.__setstate__((o.func, (5,), {}, None)),
        lambda o: o(1),
    ),
    "partial of a partial": (
        lambda: functools.partial(sum, [1, 2]),
        lambda o: o.args[0].append(3),
        lambda o: functools.partial(o, 5)(),
    ),
    "field of C": (Fields, lambda o: setattr(o, "value", 2), lambda o: Fields.value.__get__(o) + 1),
    "text of an error": (lambda: [3], lambda o: o.append(3), lambda o: len(str(ValueError(Shown(o))))),
    "context": (lambda: decimal.Context(prec=3), lambda o: setattr(o, "prec", 5), lambda o: len(str(o.divide(1, 3)))),
    "variable": (lambda: contextvars.ContextVar("c", default=1), lambda o: o.set(2), lambda o: o.get()),
    "of this thread": (threading.local, lambda o: setattr(o, "q", 2), lambda o: getattr(o, "q", 1)),
    "behind a proxy": (
        lambda: (lambda c: (c, weakref.proxy(c)))(Told()),
        lambda o: _doubled(o[0]),
        lambda o: o[1].value,
    ),
    "keys": (lambda: (lambda d: (d, d.keys()))({1: 1}), lambda o: o[0].update({2: 2}), lambda o: len(o[1])),
    "list in an array": (
        lambda: np.array([1, "ab", [1, 2]], dtype=object),
        lambda o: o[2].reverse(),
        lambda o: o[2][0],
    ),
    "names of a dtype": (
        lambda: np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
        lambda o: setattr(o.dtype, "names", o.dtype.names[::-1]),
        lambda o: float(o["b"][0]),
    ),
    "collector": (
        lambda: gc,
        lambda o: (o.disable if o.isenabled() else o.enable)(),
        lambda o: 2 if o.isenabled() else 3,
    ),
    "copied by __reduce__": (Reduced, _doubled, lambda o: copy.copy(o).value),
    "deeply copied by it": (Reduced, _doubled, lambda o: copy.deepcopy([o])[0].value),
    "copied by __getstate__": (Told, _doubled, lambda o: copy.copy(o).value),
    "asked of an instance": (Asked, lambda o: setattr(o, "yes", not o.yes), lambda o: 2 if isinstance(3, o) else 3),
    "set of a dict": (
        lambda: dict.fromkeys([8, 16, 0, 24, 32, 1]),
        lambda o: o.update({40 + 8 * len(o): 0}),
        lambda o: int("".join(map(str, set(o)))) % 9973,
    ),
    "replaced": (
        lambda: dataclasses.make_dataclass("D", ["a", "b"])(1, 2),
        lambda o: setattr(o, "a", 2),
        lambda o: dataclasses.replace(o, b=3).a,
    ),
}


@pytest.fixture(autouse=True)
def collector() -> Any:
    yield
    gc.enable()


def results(
    frontend: str | None, first: Any, changes: list[Callable[[Any], Any]], read: Callable[[Any], Any]
) -> list[Any]:
    """Of three calls."""
    held = [first]
    gc.enable()

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * read(held[0])

    call = f if frontend is None else st.compile(f, frontend=frontend, backend="eager")  # type: ignore[arg-type]
    found = [repr(call(torch.ones(2)).tolist())]
    for change in changes:
        held[0] = change(held[0])
        found.append(repr(call(torch.ones(2)).tolist()))
    return found


def check(make: Callable[[], Any], changes: list[Callable[[Any], Any]], read: Callable[[Any], Any]) -> None:
    expected = results(None, make(), changes, read)
    assert expected[0] != expected[1]
    assert results("auto", make(), changes, read) == expected
    try:
        found = results("trace", make(), changes, read)
    except st.SubclassTraceError as error:
        assert not isinstance(error, st.GuardError), error
    else:
        assert found == expected


@pytest.mark.parametrize("name", REPLACED)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.sweep(every=2)
def test_replaced(name: str) -> None:
    first, second, read = REPLACED[name]
    check(lambda: first, [lambda _: second, lambda _: first], read)


@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.sweep(every=2)
def test_changed(name: str) -> None:
    make, change, read = CHANGED[name]
    check(make, [lambda o: (change(o), o)[1]] * 2, read)
