"""Arguments whose state is not in attributes and items: another one never gets the code that was traced for the first."""

from __future__ import annotations

import collections
import cProfile
import dataclasses
import datetime
import decimal
import enum
import functools
import operator
import re
import types
from typing import Any

import pytest
import torch

import subclass_trace as st


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Number(int):
    pass


class Pair:
    def first(self) -> int:
        return 2

    def second(self) -> int:
        return 3


@dataclasses.dataclass
class Held:
    value: Any


PAIR = Pair()
CASES: dict[str, tuple[Any, Any, Any]] = {
    "Decimal": (float, decimal.Decimal(2), decimal.Decimal(3)),
    "date": (lambda d: d.year, datetime.date(2000, 1, 1), datetime.date(2001, 1, 1)),
    "pattern": (lambda p: 2 if p.match("a") else 3, re.compile("a"), re.compile("b")),
    "partial": (lambda f: f(), functools.partial(max, 1, 2), functools.partial(max, 1, 3)),
    "itemgetter": (lambda f: f((1, 2)), operator.itemgetter(0), operator.itemgetter(1)),
    "built-in method": (lambda f: f(), [1, 2].__len__, [1].__len__),
    "method": (lambda f: f(), PAIR.first, PAIR.second),
    "view of keys": (len, {1: 2}.keys(), {1: 2, 2: 3}.keys()),
    "iinfo": (lambda i: i.bits, torch.iinfo(torch.int8), torch.iinfo(torch.int16)),
    "member": (lambda m: m.value, Colour.RED, Colour.BLUE),
    "int": (lambda n: n, Number(2), Number(3)),
    "proxy": (lambda d: d["a"], types.MappingProxyType({"a": 2}), types.MappingProxyType({"a": 3})),
    "defaultdict": (lambda d: d["a"], collections.defaultdict(lambda: 2), collections.defaultdict(lambda: 3)),
}


@pytest.mark.parametrize("place", ["argument", "list", "tuple", "dict", "dataclass"])
@pytest.mark.parametrize("name", CASES)
def test_another_value(name: str, place: str) -> None:
    of, *values = CASES[name]
    put, get = {
        "argument": (lambda v: v, lambda v: v),
        "list": (lambda v: [v], lambda v: v[0]),
        "tuple": (lambda v: (v,), lambda v: v[0]),
        "dict": (lambda v: {"k": v}, lambda v: v["k"]),
        "dataclass": (Held, lambda v: v.value),
    }[place]
    region = st.compile(lambda x, v: x * of(get(v)))
    for value in (*values, values[0]):
        assert region(torch.ones(1), put(value)).item() == of(value)


def test_a_profiler_in_c_goes_on() -> None:
    profile = cProfile.Profile()
    profile.enable()
    out = st.compile(torch.sin)(torch.zeros(1))
    (lambda: out)()
    profile.disable()
    assert any(
        entry.code is test_a_profiler_in_c_goes_on.__code__ or "lambda" in str(entry.code)
        for entry in profile.getstats()
    )


#: arguments rebuilt in each call, of one number; and what they hold
TUPLES: dict[str, tuple[Any, Any]] = {
    "number": (lambda n: (n, "a"), lambda t: t[0]),
    "list": (lambda n: ([n], 3), lambda t: t[0][0]),
    "dict": (lambda n: ({"a": n}, 3), lambda t: t[0]["a"]),
    "object": (lambda n: (Held(n), 3), lambda t: t[0].value),
    "tensor": (lambda n: (torch.tensor([n]), 3), lambda t: t[0]),
    "in a list": (lambda n: [(n, 1), 3], lambda t: t[0][0]),
    "of a list in a list": (lambda n: [([n],), 3], lambda t: t[0][0][0]),
    "slice": (lambda n: (slice(0, n), [n]), lambda t: t[1][0]),
}


@pytest.mark.parametrize("name", TUPLES)
def test_tuples_count_by_what_is_in_them(name: str) -> None:
    make, get = TUPLES[name]
    region = st.compile(lambda x, t: x * get(t), dynamic=False)
    for n in (2, 2, 5, 2):
        assert region(torch.ones(1), make(n)).item() == n
    assert len(region.specializations) == (1 if name == "tensor" else 2)


def test_a_number_in_a_tuple_becomes_a_symbol() -> None:
    region = st.compile(lambda x, shape: x.reshape(shape))
    for n in (3, 5, 7, 9):
        assert region(torch.ones(n, 4), (4, n)).shape == (4, n)
    assert len(region.specializations) == 2
