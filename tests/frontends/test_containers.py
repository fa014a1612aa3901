"""Lists and dicts among the arguments that a region changes: the caller's own are changed in each call, as in eager."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import optree
import pytest
import torch

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
Make = Callable[[Tensor, Tensor], tuple[tuple[Any, ...], dict[str, Any]]]


def one(container: Callable[[Tensor, Tensor], Any]) -> Make:
    return lambda x, y: ((container(x, y),), {})


def pop(d: Any) -> Tensor:
    first: Tensor = d.pop("a")
    return first * 2


def swap(d: Any) -> None:
    d["a"], d["b"] = d["b"], d["a"]


def turn(d: Any) -> None:
    first = d.pop("a")
    d["a"] = first


def count(d: Any) -> Any:
    d["n"] += 1
    return d["a"] * d["n"]


def nested(d: Any) -> None:
    d["inner"]["z"] = d["inner"]["a"] * 2
    d["list"].append({"new": d["inner"]["z"] + 1})


CASES: dict[str, tuple[Callable[..., Any], Make]] = {
    "a new key": (lambda d: d.__setitem__("z", d["a"] * 2), one(lambda x, y: {"b": y, "a": x})),
    "a key that was there": (lambda d: d.__setitem__("a", d["a"] * 2), one(lambda x, y: {"b": y, "a": x})),
    "a key is removed": (pop, one(lambda x, y: {"b": y, "a": x})),
    "swap": (swap, one(lambda x, y: {"b": y, "a": x})),
    "another order": (turn, one(lambda x, y: {"a": x, "b": y})),
    "update": (lambda d: d.update(a=1, c=d["b"] + 1), one(lambda x, y: {"b": y, "a": x})),
    "a number": (count, one(lambda x, y: {"n": 2, "a": x})),
    "a list grows": (lambda xs: xs.append(xs[0] * 2), one(lambda x, y: [x, y])),
    "a list grows at its start": (lambda xs: xs.insert(0, xs[0] * 2), one(lambda x, y: [x, y])),
    "a list of results": (lambda xs: [xs.append(xs[-1] * 2) for _ in range(3)] and None, one(lambda x, y: [x])),
    "a list is emptied": (lambda xs: (xs[0] + xs[1], xs.clear())[0], one(lambda x, y: [x, y])),
    "a list is reversed": (lambda xs: xs.reverse(), one(lambda x, y: [x, y])),
    "an item is replaced and written": (
        lambda xs: (xs.__setitem__(0, xs[1]), xs[0].add_(1), None)[2],
        one(lambda x, y: [x, y]),
    ),
    "inside of containers": (nested, one(lambda x, y: {"inner": {"a": x}, "list": [y]})),
    "inside of a tuple": (lambda t: t[1].append(t[0] * 2), one(lambda x, y: (x, [y]))),
    "a view of an item": (lambda xs: xs.append(xs[0][1:]), one(lambda x, y: [x, y])),
    "None and constants": (lambda xs: xs.extend([None, 3, "text"]), one(lambda x, y: [x, y])),
    "OrderedDict": (lambda d: d.__setitem__("z", d["a"] * 2), one(lambda x, y: OrderedDict(b=y, a=x))),
    "deque": (lambda q: (q.popleft() * 2, q.append(q[0] + 1))[0], one(lambda x, y: deque([x, y], maxlen=3))),
    "a keyword argument": (lambda x, cache: cache.append(x * 2), lambda x, y: ((x,), {"cache": [y]})),
    "two of them": (lambda a, b: (a.append(b[0] * 2), b.append(a[0]), None)[2], lambda x, y: (([x], [y]), {})),
    "with a result": (lambda d: (d.__setitem__("z", d["a"] * 2), {"r": d["z"] + 1})[1], one(lambda x, y: {"a": x})),
}


def run(function: Callable[..., Any], make: Make, calls: int = 1) -> Any:
    out = []
    for k in range(calls):
        x, y = torch.arange(3.0) + k, torch.ones(3) * (k + 2)
        args, kwargs = make(x, y)
        before = args, kwargs
        result = function(*args, **kwargs)
        held = optree.tree_leaves((args, kwargs))
        same = [[t is x, t is y] for t in held]
        rows = optree.tree_map(lambda v: v.tolist() if isinstance(v, Tensor) else v, (*before, result))
        for t in held:  # who shares memory with whom
            if isinstance(t, Tensor):
                t.add_(10)
        order = [list(v) if isinstance(v, dict) else None for v in args]
        out.append((rows, same, order, x.tolist(), y.tolist()))
    return out


@pytest.mark.parametrize("name", CASES)
def test_as_in_eager(name: str) -> None:
    function, make = CASES[name]
    region = st.compile(function)
    assert run(region, make, calls=2) == run(function, make, calls=2)
    assert len(region.specializations) == 1


def test_gradients_and_wrappers() -> None:
    def f(d: Any) -> Any:
        d["loss"] = (d["x"] * d["w"]).sum()

    def gradients(function: Any) -> list[Any]:
        x, w = TwoTensor(torch.ones(2), torch.arange(2.0)), torch.full((2,), 3.0, requires_grad=True)
        d = {"x": x, "w": w}
        function(d)
        loss = d["loss"]
        assert d["w"] is w and isinstance(loss, TwoTensor)
        (loss.a + loss.b if not loss.requires_grad else loss).backward()
        assert w.grad is not None
        return [str(w.grad)]

    assert gradients(st.compile(f)) == gradients(f)


def test_a_list_that_grows_from_call_to_call() -> None:
    def f(x: Tensor, losses: list[Tensor]) -> Tensor:
        losses.append(x.sum())
        return x * 2

    region, losses = st.compile(f), [torch.zeros(())]
    for k in range(3):
        region(torch.full((2,), float(k)), losses)
    assert [t.item() for t in losses] == [0, 0, 2, 4]


def test_numbers_and_arguments_that_were_put_there_before_an_exception_stay() -> None:
    def f(x: Tensor, xs: list[Any], rows: dict[str, Any], k: int) -> Tensor:
        xs.append(k)
        rows["x"] = x
        rows["k"] = k * 2
        if k > 2:
            raise KeyError(k)
        return x * k

    region = st.compile(f)
    for k in (1, 2, 3, 1, 4, 2):
        x, xs, rows = torch.ones(2), list[Any](), dict[str, Any](k=0)
        if k > 2:
            with pytest.raises(KeyError):
                region(x, xs, rows, k)
        else:
            assert torch.equal(region(x, xs, rows, k), x * k)
        assert xs == [k] and list(rows) == ["k", "x"] and rows["k"] == 2 * k and rows["x"] is x and type(xs[0]) is int


def test_one_container_as_two_arguments() -> None:
    def f(a: list[Tensor], b: list[Tensor]) -> None:
        a.append(b[0] * 2)

    region, xs = st.compile(f), [torch.ones(2)]
    region([torch.ones(2)], [torch.ones(2)])
    region(xs, xs)
    assert len(xs) == 2 and xs[1].tolist() == [2, 2]


def test_an_argument_inside_of_another() -> None:
    def f(a: list[Any], b: list[Tensor]) -> None:
        a.append({"b": b})

    region = st.compile(f)
    for _ in range(2):
        a, b = [torch.ones(2)], [torch.ones(2)]
        region(a, b)
        assert a[1]["b"] is b


def _appends(x: Tensor, out: list[Any]) -> Any:
    out.append(x * 2)
    return out


def _removes(x: Tensor, d: dict[str, Any]) -> Any:
    d.pop("a")
    d["b"] = x
    return d, [d, x * 2], {"d": d}


def _inside(x: Tensor, d: dict[str, Any]) -> Any:
    d.setdefault("rows", [x]).append(x * 2)
    return d, d["list"]


RETURNED: dict[str, tuple[Any, Any]] = {
    "appended to": (_appends, lambda: [torch.zeros(1)]),
    "empty before": (_appends, list),
    "several times": (_removes, lambda: {"a": torch.ones(1)}),
    "one inside of another": (_inside, lambda: {"list": [torch.ones(1)]}),
    "not changed": (lambda x, out: (out, x * 2), lambda: [torch.zeros(1), 3]),
}


@pytest.mark.parametrize("name", RETURNED)
def test_a_container_that_came_in_is_returned_itself(name: str) -> None:
    f, make = RETURNED[name]

    def where(value: Any, mine: Any) -> Any:
        """The shape of a value, with the caller's containers by name."""
        if value is mine or any(value is v for v in (mine.values() if isinstance(mine, dict) else mine)):
            return "the caller's"
        if isinstance(value, dict):
            return {k: where(v, mine) for k, v in value.items()}
        return [where(v, mine) for v in value] if isinstance(value, (list, tuple)) else type(value)

    found = []
    for call in (lambda f: f, st.compile):
        region, rows = call(f), []
        for k in range(3):
            mine = make()
            out = region(torch.full((1,), float(k)), mine)
            rows.append((where(out, mine), repr(out), repr(mine)))
        found.append(rows)
    assert found[0] == found[1]


def test_a_container_is_returned_that_its_place_holds_no_longer() -> None:
    state: dict[str, Any] = {}
    last: Any = [0]

    def pops(x: Tensor, given: Any) -> Any:
        return x * 2, state.pop("list"), given.pop("list")

    def binds(x: Tensor) -> Any:
        nonlocal last
        old, last = last, [1]
        return x * 2, old

    region = st.compile(pops)
    for _ in range(3):
        mine, given = [1], [2]
        state["list"] = mine
        found = region(torch.ones(2), {"list": given})
        assert found[1] is mine and found[2] is given and not state
    assert st.compile(binds)(torch.ones(2))[1] == [0]
