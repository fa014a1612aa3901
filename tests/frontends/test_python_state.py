"""What a region does to Python state: numbers are assigned in each call, tensors are not left anywhere."""

from __future__ import annotations

import collections
import contextlib
import functools
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import subclass_trace as st
from subclass_trace.frontends.python_state import holds_traced

Tensor = torch.Tensor


class ActNorm(nn.Module):
    """Initialises itself from the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        self.ready = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.ready:
            with torch.no_grad():
                self.scale.copy_(1 / x.std(0))
            self.ready = True
        return x * self.scale


class Warm(nn.Module):
    """Behaves in another way for the first calls."""

    def __init__(self) -> None:
        super().__init__()
        self.step = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.step < 2:
            self.step += 1
            return x * 0
        return x * self.step


class Lengths(nn.Module):
    """Keeps a size."""

    def __init__(self) -> None:
        super().__init__()
        self.length = 0

    def forward(self, x: Tensor) -> Tensor:
        self.length = x.shape[0]
        return x + 1


@pytest.mark.parametrize("make", [ActNorm, Warm, Lengths])
@pytest.mark.parametrize("dynamic", [False, True])
def test_modules_that_keep_numbers(make: Callable[[], nn.Module], dynamic: bool) -> None:
    eager, ours = make(), make()
    region = st.compile(ours, dynamic=dynamic)
    for k in range(5):
        x = torch.randn(k + 2, 2, generator=torch.Generator().manual_seed(k))
        torch.testing.assert_close(region(x), eager(x))
        state = [{n: v for n, v in vars(m).items() if type(v) in (int, bool)} for m in (ours, eager)]
        assert state[0] == state[1]


def test_objects_cells_and_globals() -> None:
    def make() -> tuple[Callable[[Tensor], Tensor], Callable[[], Any]]:
        held, n = SimpleNamespace(mode="a"), 0

        def f(x: Tensor) -> Tensor:
            nonlocal n
            global NUMBER
            n = n + 1 if n < 3 else 0
            held.mode = "b" if held.mode == "a" else "a"
            NUMBER = 0 if NUMBER else 1
            return x * n + (held.mode == "a") * 10 + NUMBER * 100

        return f, lambda: (n, held.mode, NUMBER)

    rows: list[list[Any]] = []
    for compile in (lambda f: f, st.compile):
        globals()["NUMBER"] = 0
        f, state = make()
        function = compile(f)
        rows.append([(function(torch.ones(1)).item(), state()) for _ in range(9)])
    assert rows[0] == rows[1]


NUMBER = 0


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_size_in_a_cell(dynamic: bool) -> None:
    n: Any = None

    def f(x: Tensor) -> Tensor:
        nonlocal n
        n = x.shape[0]
        return x + 1

    region = st.compile(f, dynamic=dynamic)
    for k in (3, 5, 4, 5):
        region(torch.ones(k))
        assert n == k and type(n) is int


def test_the_trace_itself_changes_nothing() -> None:
    m = ActNorm()
    region = st.compile(m)
    region.specialize(torch.randn(3, 2))
    assert not m.ready and m.scale.tolist() == [1, 1]


# ---------------------------------------------------------------------------------------------- tensors that escape
class Kept(nn.Module):
    """Has places for tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.rows: list[Any] = []
        self.table: dict[str, Any] = {"deep": {"w": torch.zeros(2)}}
        self.pair: Any = None
        self.cache = SimpleNamespace(layers=[SimpleNamespace(keys=torch.zeros(1, 2))])
        self.recent: deque[Any] = deque(maxlen=2)
        self.seen: set[Any] = set()
        self.keep: Any = None

    def forward(self, x: Tensor) -> Tensor:
        self.keep(self, x)
        return x * 2


def _grow(m: Kept, x: Tensor) -> None:
    layer = m.cache.layers[0]
    layer.keys = torch.cat([layer.keys, x])


@functools.lru_cache
def _table(n: int) -> Tensor:
    return torch.arange(n).float()


def _class_attribute(m: Kept, x: Tensor) -> None:
    type(m).last = x * 2  # type: ignore[attr-defined]


WAYS: dict[str, Callable[[Kept, Tensor], Any]] = {
    "self.rows": lambda m, x: m.rows.append(x.sum()),
    "self.table": lambda m, x: m.table.update(a=x * 2),
    "self.table[deep]": lambda m, x: m.table["deep"].update(w=x * 2),
    "self": lambda m, x: setattr(m, "pair", (x, x * 2)),
    "self.cache": _grow,
    "self.recent": lambda m, x: m.recent.append(x * 2),
    "self.seen": lambda m, x: m.seen.add(x * 2),
    "Kept": _class_attribute,
    "_table": lambda m, x: _table(x.shape[1]),
}


@pytest.mark.parametrize("way", WAYS)
def test_tensors_in_state_of_a_module(way: str) -> None:
    m = Kept()
    m.keep = WAYS[way]
    _table.cache_clear()
    before = _picture(m)
    with pytest.raises(st.UnsupportedError, match="escapes"):
        st.compile(m)(torch.ones(1, 2))
    assert _picture(m) == before and not hasattr(Kept, "last") and not holds_traced(_table(2))
    m(torch.ones(1, 2))  # and eager still works
    vars(Kept).get("last") is None or delattr(Kept, "last")


def _picture(m: Kept) -> str:
    return repr({k: v for k, v in vars(m).items() if k != "keep" and not k.startswith("_")})


def test_a_hook_that_keeps_features() -> None:
    m, features = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), dict[str, Any]()
    m[0].register_forward_hook(lambda module, args, out: features.__setitem__("x", out.detach()))
    with pytest.raises(st.UnsupportedError, match="escapes"):
        st.compile(m)(torch.ones(1, 2))
    assert features == {}


def test_objects_and_lists_among_the_arguments() -> None:
    layers = [SimpleNamespace(keys=torch.zeros(1, 2))]

    def f(x: Tensor, held: Any) -> Tensor:
        held.layers[0].keys = torch.cat([held.layers[0].keys, x])
        return held.layers[0].keys.sum(0)

    class Cache:
        def __init__(self) -> None:
            self.layers = layers

    with pytest.raises(st.UnsupportedError, match=r"args\[1\].layers\[0\]"):
        st.compile(f)(torch.ones(1, 2), Cache())
    assert layers[0].keys.shape == (1, 2) and not holds_traced(layers)


def test_sizes_in_a_list() -> None:
    log = list[Any]()

    def f(x: Tensor) -> Tensor:
        log.append(x.shape[0])
        return x + 1

    region = st.compile(f, dynamic=True)
    for k in (3, 4):
        region(torch.ones(k, 2))
    assert log == [3, 4] and type(log[0]) is int and len(region.specializations) == 1
    rows, lists = list[Any](), list[Any]()

    def g(x: Tensor) -> Tensor:
        rows.append((x.shape[0], 1))
        lists.append([x.shape[0]])
        return x + 1

    region = st.compile(g, dynamic=True)
    for k in (3, 3, 4, 4):
        region(torch.ones(k, 2))
    assert rows == [(3, 1), (3, 1), (4, 1), (4, 1)] and lists == [[3], [3], [4], [4]]
    assert len({id(v) for v in lists}) == 4


def test_one_container_at_two_places() -> None:
    """It is one in each call, and each call has its own."""
    state: dict[str, Any] = {"all": [[0]], "last": [0]}

    def f(x: Tensor) -> Tensor:
        state["last"] = new = [1]
        state["all"].append(new)
        return x + 1

    region = st.compile(f)
    for k in range(3):
        region(torch.ones(2))
        assert state == {"all": [[0], *[[1]] * (k + 1)], "last": [1]} and state["last"] is state["all"][-1]
    assert len(set(map(id, state["all"]))) == 4


def test_a_container_that_comes_to_be_in_a_dict() -> None:
    """Where the key was not there, each call gets a container of its own; where it was, what is there is changed."""

    def programs() -> list[tuple[Any, Any]]:
        rows: Any = collections.defaultdict(list)
        plain: dict[str, Any] = {}

        def f(x, k):
            rows[k].append(7)
            return x * len(rows[k])

        def g(x, k):
            plain.setdefault(k, {"n": []})["n"].append(x.shape[0])
            return x * len(plain[k]["n"])

        return [(f, rows), (g, plain)]

    found = []
    for call in (lambda f: f, st.compile):
        out: list[Any] = []
        for function, state in programs():
            region = call(function)
            out += [region(torch.ones(1), k).item() for k in "aabcab"]
            out.append({k: repr(v) for k, v in state.items()})
        found.append(out)
    assert found[0] == found[1]


def test_what_was_done_before_an_exception_is_done_once() -> None:
    """A number that changed is tried as a symbol first, and that run raises the exception too."""
    seen: list[int] = []

    def step(x: torch.Tensor, n: int) -> torch.Tensor:
        seen.append(n)
        if n == 3:
            raise ValueError("three")
        return x * n

    region = st.compile(step)
    for n in (1, 2, 3, 4, 3):
        with contextlib.suppress(ValueError):
            region(torch.ones(2), n)
    assert seen == [1, 2, 3, 4, 3]


def _append(table: dict[str, Any], held: SimpleNamespace) -> int:
    table["log"].append(1)
    return len(table["log"])


def _append_attribute(table: dict[str, Any], held: SimpleNamespace) -> int:
    held.log.append(1)
    return len(held.log)


def _count(table: dict[str, Any], held: SimpleNamespace) -> int:
    table["counts"]["n"] += 1
    return int(table["counts"]["n"])


def _add(table: dict[str, Any], held: SimpleNamespace) -> int:
    held.kinds.add(2)
    return len(held.kinds)


def _store(table: dict[str, Any], held: SimpleNamespace) -> int:
    table["rows"][0]["k"] = 3
    return len(table["rows"])


@pytest.mark.parametrize("change", [_append, _append_attribute, _count, _add, _store])
def test_a_container_that_was_replaced_by_an_equal_one_is_the_one_that_changes(change: Callable[..., int]) -> None:
    table: dict[str, Any] = {}
    held = SimpleNamespace()

    def step(x: Tensor) -> Tensor:
        return x * change(table, held)

    found = []
    for call in (step, step, st.compile(step)):
        for _ in range(2):
            table.update(log=[0], counts={"n": 0}, rows=[{}])
            held.log, held.kinds = [0], {1}
            found.append(f"{call(torch.ones(1))} {table} {held}")
    assert len(set(found)) == 1


def test_the_three_ways_to_keep_a_tensor_are_named() -> None:
    kept = []
    with pytest.raises(st.UnsupportedError, match="hand over the list or dict as an argument"):
        st.compile(lambda x: kept.append(x * 2))(torch.ones(2))
    assert not kept
    st.compile(lambda x, held: held.append(x * 2))(torch.ones(2), kept)
    assert kept[0].equal(torch.full((2,), 2.0))
