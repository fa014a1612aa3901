"""Objects of C whose state is not in attributes and items; objects that are replaced between calls; and what stays of a trace."""

from __future__ import annotations

import collections
import contextlib
import copy
import cProfile
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import io
import math
import operator
import pathlib
import re
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st

Tensor = torch.Tensor


class Holder:
    held: Any = None


HOLDER, OUT, COUNT = Holder(), io.StringIO(), [0]
#: what the n-th call has, and what is read of it
KINDS: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any]]] = {
    "a path": (lambda n: pathlib.Path("a" * n), lambda p: len(p.name)),
    "a fraction": (lambda n: fractions.Fraction(n, 7), lambda p: p.numerator),
    "a deque of a length": (lambda n: collections.deque([1], maxlen=n), lambda p: p.maxlen),
    "a path in a dict": (lambda n: {"p": pathlib.Path("a" * n)}, lambda p: len(p["p"].name)),
}


@pytest.mark.parametrize("as_argument", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_one_that_stands_there(kind: str, as_argument: bool) -> None:
    make, read = KINDS[kind]
    by_name = st.compile(lambda x: x * read(HOLDER.held), frontend="auto")
    passed = st.compile(lambda x, p: x * read(p), frontend="auto")
    for n in (1, 2, 3, 4, 2):
        HOLDER.held = make(n)
        result = passed(torch.ones(1), HOLDER.held) if as_argument else by_name(torch.ones(1))
        assert result.item() == n


def test_module_math_is_what_it_was() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        COUNT[0] += 1
        return x * math.cos(COUNT[0] * 0.1)

    cos, region = math.cos, st.compile(f)
    COUNT[0] = 0
    for n in range(1, 5):
        assert abs(region(torch.ones(1)).item() - cos(n * 0.1)) < 1e-6
    assert math.cos is cos and len(region.specializations) == 2


@pytest.mark.filterwarnings("ignore::subclass_trace.HandOverWarning")
def test_print_goes_where_it_would() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with contextlib.redirect_stdout(OUT):
            print("here")
        return x + 1

    region = st.compile(f, frontend="auto")
    for _ in range(2):
        region(torch.ones(1))
    assert OUT.getvalue() == "here\n" * 2


LOG_OF_SUMS: list[Any] = []


def test_lists_that_code_reads_by_names_it_computes() -> None:
    name = "LOG_OF_SUMS"

    def by_globals(x: Tensor) -> Tensor:
        LOG_OF_SUMS.append(x.sum())
        space = getattr(by_globals, "__globals__")  # noqa: B009
        return x * len(space[name])

    log: list[Any] = []

    def peek() -> Any:
        return log

    def by_cell(x: Tensor) -> Tensor:
        log.append(x.sum())
        return x * len(getattr(peek, "__closure__")[0].cell_contents)  # noqa: B009

    for f, kept in ((by_globals, LOG_OF_SUMS), (by_cell, log)):
        region = st.compile(f)
        kept.clear()
        assert [region(torch.ones(1)).item() for _ in range(4)] == [1.0, 2.0, 3.0, 4.0]


def test_calls_that_differ_inside_of_containers() -> None:
    """What made one call run eagerly says nothing of calls with other sizes."""

    def f(d: Any) -> Tensor:
        x = d["x"]
        if x.dim() == 2:
            x.data = x.data * 2
        return x * 2

    region = st.compile(f)
    for shape in ((2, 2), (3,), (3,)):
        x = torch.ones(shape)
        assert torch.equal(region(collections.OrderedDict(x=x)), torch.ones(shape) * (4 if len(shape) == 2 else 2))
    assert len(region.specializations) == 1


@pytest.mark.parametrize(
    ("d", "body", "specializations"),
    [
        ({"a": [], "b": 3}, "d['a'].append(x.mean()); d['b'] += 1; return x * d['b']", 2),
        ({"a": [], "b": 3}, "d['a'].append(x.mean()); y = d['b']; return x * y", 1),
        ({"a": [], "b": 3}, "d['a'].append(x.mean()); d['b'] += len(d['a']); return x * d['b']", 5),
        ({"a": [], "b": []}, "d['a'].append(x.mean()); d['b'].append(2); return x * len(d['b'])", 5),
        ({"a": [], "b": 3}, "d['a'].append(x.mean()); d['b'] = d['a']; return x * len(d['b'])", 5),
        ({"a": []}, "d['a'].append(x.mean()); return x * sum(map(len, d.values()))", 5),
        ({1: []}, "d[1].append(x.mean()); return x * len(d[True])", 5),
        ([[]], "d[0].append(x.mean()); return x * len(d[-1])", 5),
    ],
)
def test_other_items_of_the_dict_of_a_list(d: Any, body: str, specializations: int) -> None:
    """A counter beside a list that code only appends to makes no specialization of each length."""

    def run(compile_it: Callable[..., Any]) -> tuple[list[float], Any]:
        space = {"d": copy.deepcopy(d)}
        exec(f"def f(x):\n    {body}\n", space)
        call = compile_it(space["f"])
        return [call(torch.ones(1) * k).item() for k in range(5)], call

    found, region = run(st.compile)
    assert found == run(lambda f: f)[0] and len(region.specializations) == specializations


# ------------------------------------------------ another object of C never gets the code that was traced for the first
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
