"""What a function counts and appends without reading it is counted and appended in each call, as in eager."""

from __future__ import annotations

import collections
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import subclass_trace as st
from subclass_trace.frontends.reach import reach
from subclass_trace.runtime import codegen
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
CALLS = 0
LOG: list[Any] = []


class Model(nn.Module):
    """Counts in attributes of its own, of its class, in a dict and a list."""

    total = 0
    seen = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.elapsed = 0.3
        self.tally = {"calls": 0, "tokens": 10}
        self.kinds = collections.Counter[str]()
        self.sizes: list[int] = []
        self.names: set[str] = set()

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.elapsed += 0.1
        self.elapsed += 0.1
        self.seen += 0.5
        type(self).total += 2
        self.tally["calls"] += 1
        self.tally["tokens"] += x.shape[0]
        self.kinds["train"] += 1
        self.sizes.append(x.shape[0])
        self.names.add("forward")
        if x.dim() == 2:
            self.calls -= 3
        return x * 2


class Plain:
    """Counts in attributes of an object."""

    total = 0
    seen = 0.0

    def __init__(self) -> None:
        vars(self).update({k: v for k, v in vars(Model()).items() if not k.startswith("_") and k != "training"})

    def __call__(self, x: Tensor) -> Tensor:
        return Model.forward(self, x)  # type: ignore[arg-type]


def _picture(held: Any) -> dict[str, Any]:
    own = {k: v for k, v in vars(held).items() if not k.startswith("_") and k != "training"}
    return own | {"total": type(held).total, "seen in the class": type(held).seen}


def _calls(held: Any, compile: Callable[[Any], Any]) -> tuple[list[dict[str, Any]], Any]:
    type(held).total = 0
    call, rows = compile(held), []
    for shape in ((3,), (3,), (5,), (2, 2), (5,), (3,)):
        call(TwoTensor(torch.ones(shape), torch.ones(shape)))
        rows.append({k: v.copy() if isinstance(v, (dict, list, set)) else v for k, v in _picture(held).items()})
    return rows, call


@pytest.mark.parametrize("make", [Model, Plain])
@pytest.mark.parametrize("generated", [True, False])
def test_as_often_as_in_eager(make: Callable[[], Any], generated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not generated:
        monkeypatch.setattr(codegen._EntryEmitter, "emit", _refuse)
    expected, _ = _calls(make(), lambda f: f)
    found, region = _calls(make(), st.compile)
    assert found == expected
    assert [type(v) for v in found[-1].values()] == [type(v) for v in expected[-1].values()]
    assert len(region.specializations) == 3  # (3,), any (n,), (2, 2)


def _refuse(self: Any) -> Any:
    raise codegen.NotGenerated("for the reference")


def test_globals_cells_and_a_deque() -> None:
    global CALLS
    recent, n = collections.deque[int](), 0

    def f(x: Tensor) -> Tensor:
        nonlocal n
        global CALLS
        CALLS += 1
        n += len(x)
        LOG.append("f")
        recent.append(x.dim())
        return x + 1

    CALLS, LOG[:] = 0, []
    region = st.compile(f)
    for k in range(1, 4):
        region(torch.ones(2))
        assert (CALLS, n, LOG, list(recent)) == (k, 2 * k, ["f"] * k, [1] * k)
        assert type(CALLS) is int and type(n) is int
    assert len(region.specializations) == 1
    region.specialize(torch.ones(2, 2))  # which calls nothing
    assert (CALLS, n) == (3, 6)


def test_bounded_deques_and_sets() -> None:
    recent, shown, seen = collections.deque[int](maxlen=3), collections.deque[int](maxlen=2), set[Any]()

    def f(x: Tensor) -> Tensor:
        recent.append(x.shape[0])
        seen.add(4)
        seen.add("b")
        shown.append(shown[0] + 1)
        return x + shown[-1]

    rows = []
    for call in (f, st.compile(f)):
        recent.extend([7, 8, 8]), shown.extend([0, 1]), seen.clear(), seen.update({4, "a"})
        for k in range(4):
            out = call(torch.ones(8))
            rows.append((out[0].item(), list(recent), set(seen), list(shown)))
            if k == 2:
                seen.clear()
    assert rows[:4] == rows[4:] and recent.maxlen == 3 and rows[3][2] == {4, "b"} and rows[0][2] == {4, "a", "b"}


def test_objects_in_a_set_happen_once() -> None:
    class Named:
        def __init__(self) -> None:
            self.kinds: set[Any] = set()

        def __call__(self, x: Tensor) -> Tensor:
            self.kinds.add(Model)
            return x * 2

    held = Named()
    region = st.compile(held)
    region(torch.ones(2)), region(torch.ones(2))
    assert held.kinds == {Model}


def test_what_is_read_is_guarded() -> None:
    log, held = list[int](), SimpleNamespace(n=0, table={"n": 0})

    def f(x: Tensor) -> Tensor:
        log.append(1)
        held.n += 1
        held.table["n"] = held.table["n"] + 1
        return x * len(log) * held.n * held.table["n"]

    region = st.compile(f)
    assert [region(torch.ones(())).item() for _ in range(4)] == [1, 8, 27, 64]


def test_an_exception_of_the_function() -> None:
    held = SimpleNamespace(calls=0, started=False)
    log = list[int]()

    def f(x: Tensor) -> Tensor:
        held.calls += 1
        held.started = True
        log.append(len(x))
        if len(x) == 3:
            raise KeyError("three")
        return x[torch.ones(1, dtype=torch.long) * 7 if len(x) == 5 else 0]

    region = st.compile(f, dynamic=False)
    for n, calls in ((3, 1), (2, 2), (3, 3), (2, 4)):
        try:
            region(torch.ones(n))
        except KeyError:
            assert n == 3
        assert held.calls == calls == len(log) and held.started
    with pytest.raises(IndexError):  # of a kernel: a call that fails does nothing
        region(torch.ones(5))
    assert held.calls == 4


def test_a_refused_region_counts_nothing() -> None:
    held = SimpleNamespace(calls=0)

    def f(x: Tensor) -> Tensor:
        held.calls += 1
        return x * 2 if x.sum() > 0 else x

    with pytest.raises(st.DataDependentError):
        st.compile(f)(torch.ones(2))
    assert held.calls == 0


def test_an_assigned_counter() -> None:
    class Restarts:
        n = 7

        def __call__(self, x: Tensor) -> Tensor:
            if x.dim() == 2:
                self.n = 0
            self.n += 1
            return x * 2

    held = Restarts()
    region = st.compile(held)
    for dims, n in ((1, 8), (1, 9), (2, 1), (2, 1), (1, 2)):
        region(torch.ones([2] * dims))
        assert held.n == n


def test_which_names_are_counters() -> None:
    a: Any = None
    b: Any = None

    def f(x: Tensor, k: int) -> Any:
        a.up += x.shape[0] * 2
        a.down -= len(x)
        a.table[k] += 1
        a.both += 1
        a.used += a.both
        a.own += a.own
        a.scaled *= 2
        a.chosen += 1 if k else 2
        a.shown, b.rows[a.index] = 0, 0
        b.log.append(a.index)
        b.kept.append(1)
        return b.kept

    assert reach(f).counters == {"up", "down", "table", "used", "log"}


def test_a_tensor_in_a_list_that_is_only_appended_to() -> None:
    class Keeps:
        def __init__(self) -> None:
            self.losses: list[Tensor] = []

        def __call__(self, x: Tensor) -> Tensor:
            self.losses.append(x.sum())
            return x * 2

    held = Keeps()
    with pytest.raises(st.UnsupportedError, match="escapes"):
        st.compile(held)(torch.ones(2))
    assert held.losses == []
