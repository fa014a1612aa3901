"""Objects that are replaced between calls, of which each call looks at what the region reads; and what stays of a trace."""

from __future__ import annotations

import collections
import contextlib
import copy
import fractions
import io
import math
import pathlib
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
