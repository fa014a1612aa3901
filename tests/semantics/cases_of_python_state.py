"""Cases: Python state that a region reads and writes."""

from __future__ import annotations

import array
import csv
import functools
import sys
import threading
from typing import Any

import torch
from case_kit import cases
from torch.utils.checkpoint import checkpoint
from wrappers import dense, two

import subclass_trace as st

Tensor = torch.Tensor


_, fact = cases("Python state")


@fact("what is counted, appended and assigned", torch="supported (graph break where needed)")
def _side_effects(call: Any) -> Any:
    log: list[int] = []
    f = call(lambda x, log=log: (log.append(1), x * 2)[1])
    f(two(2, seed=0)), f(two(2, seed=1))
    return len(log)


class _Record:
    def __init__(self, n: int) -> None:
        self.n = n


@fact(
    "objects that the function makes, in attributes, lists and dicts: each call puts its own there",
    torch="not in the survey",
)
def _kept_objects(call: Any) -> Any:
    state: dict[str, Any] = {"last": _Record(0), "log": []}

    def f(x: Tensor, state: dict[str, Any] = state) -> Tensor:
        state["last"] = made = _Record(state["last"].n + x.shape[0])
        state["log"].insert(0, made)
        return x * 2

    region = call(f)
    for n in (2, 2, 3):
        region(two(n, seed=0))
    assert state["last"] is state["log"][0] and len(set(map(id, state["log"]))) == 3
    return [made.n for made in state["log"]]


@fact(
    "a module that has two names, one of which is given to another module",
    torch="not in the survey",
)
def _names_of_modules() -> None:
    net = torch.nn.Module()
    net.first, net.second = torch.nn.ReLU(), torch.nn.Sigmoid()
    net.active = net.first
    region, x = st.compile(lambda x: net.active(x)), dense(2, seed=0)
    for active in (net.first, net.second, net.first):
        net.active = active
        assert torch.equal(region(x), active(x))
    assert len(region.specializations) == 2


@fact(
    "a write to an array or a buffer from outside (numpy's, `bytearray`, `array.array`)",
    refused="SideEffectError",
    torch="not in the survey",
)
def _written_array() -> None:
    numbers = array.array("i", [0])

    def f(x: Tensor) -> Tensor:
        numbers[0] += 1
        return x * 2

    try:
        st.compile(f)(two(2, seed=0))
    except st.SubclassTraceError:
        assert numbers[0] == 0
        raise
    assert numbers[0] == 1


@fact(
    "`id()` of a tensor, as in `names[id(p)]`",
    torch="not in the survey",
    refused="SideEffectError",
)
def _tables_by_tensor() -> None:
    layer, other = torch.nn.Linear(2, 2), two(2, seed=0)
    names = {id(p): n for n, p in layer.named_parameters()} | {id(other): "other"}
    lengths = {p: p.numel() for p in layer.parameters()}

    def f(x: Tensor) -> Any:
        return x * 2, names.get(id(x)), [(names[id(p)], lengths[p]) for p in layer.parameters()]

    region = st.compile(f)
    for x in (two(2, seed=1), other, two(2, seed=2), other):
        assert region(x)[1:] == f(x)[1:]


@fact(
    "a method of a list that is called through another object",
    torch="supported (graph break where needed)",
)
def _calls_for_effect(call: Any) -> Any:
    log: list[int] = []
    note = functools.partial(log.insert, 0)
    f = call(lambda x, note=note: (note(1), x * 2)[1])
    f(two(2, seed=0)), f(two(2, seed=1))
    return len(log)


class _Slotted:
    __slots__ = ("n", "t")


@fact(
    "a tensor as the default of an argument, a number and a tensor in `__slots__`",
    torch="not in the survey",
)
def _defaults_and_slots(call: Any) -> Any:
    held, ones = _Slotted(), torch.ones(2)
    held.n, held.t = 1, dense(2, seed=3)

    def f(x: Tensor, weight: Tensor = ones) -> Tensor:
        held.n += 1
        return x * weight * held.n + held.t

    region = call(f)
    found = []
    for k in range(3):
        held.t = dense(2, seed=5 + k)
        found.append(region(dense(2, seed=k)))
    return torch.stack([*found, torch.tensor([held.n, 0.0])])


class _Closing:
    closed: list[int] = []
    n = 2

    def __del__(self) -> None:
        self.closed.append(1)


@fact(
    "an object with a `__del__` that the region makes",
    torch="runs `__del__` in few of the calls",
    refused="eager",
)
def _makes_what_is_deleted(call: Any) -> Any:
    region = call(lambda x: (_Closing(), x * 2)[1])
    _Closing.closed.clear()
    for k in range(6):
        region(dense(2, seed=k))
    return len(_Closing.closed)


@fact(
    "an object that the region reads, or drops, and that nothing else holds any more: when it dies",
    torch="not in the survey",
    differs="at the next call of the region, which holds what it has found until then",
)
def _kept_until_the_next_call(call: Any) -> Any:
    box = [_Closing()]
    region = call(lambda x: x * box[0].n)
    region(dense(2, seed=0))
    _Closing.closed.clear()
    box[0] = _Closing()
    return len(_Closing.closed)


class _Registered:
    names: list[str] = []

    def __init_subclass__(cls) -> None:
        cls.names.append(cls.__name__)


@fact(
    "`__init_subclass__` and `__set_name__` of yours, for a class that the region makes",
    torch="not in the survey",
    refused="eager",
)
def _makes_a_class(call: Any) -> Any:
    _Registered.names.clear()

    def f(x: Tensor) -> Tensor:
        class Made(_Registered):
            pass

        return x * len(Made.__name__)

    region = call(f)
    for k in range(2):
        region(dense(2, seed=k))
    return len(_Registered.names)


@fact(
    "C code of unknown meaning (`csv`, `sqlite3`)",
    torch="not in the survey",
    refused="UnsupportedError",
)
def _unknown_c_code(call: Any) -> Any:
    region = call(lambda x: x * len(next(csv.reader(["a,b,c"]))))
    return torch.stack([region(dense(2, seed=k)) for k in range(2)])


@fact(
    "frames (`sys._getframe`, `inspect.stack`)",
    torch="not in the survey",
    refused="UnsupportedError",
)
def _frames(call: Any) -> Any:
    region = call(lambda x: x * len(sys._getframe().f_code.co_name))
    return torch.stack([region(dense(2, seed=k)) for k in range(2)])


def _run(coroutine: Any) -> Any:
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value


@fact("a coroutine, awaited by another one", torch="not in the survey")
def _coroutines(call: Any) -> Any:
    async def inner(x: Tensor) -> Tensor:
        return x + 1

    async def outer(x: Tensor) -> Tensor:
        return await inner(x) * 2

    region = call(lambda x: _run(outer(x)))
    return torch.stack([region(dense(2, seed=k)) for k in range(2)])


class _Awaited:
    def __await__(self) -> Any:
        return 3
        yield


@fact(
    "`__await__`, `__aenter__`, `__anext__` of a class of yours, which C code calls",
    torch="not in the survey",
    refused="eager",
)
def _awaited(call: Any) -> Any:
    async def f(x: Tensor) -> Tensor:
        return x * await _Awaited()

    region = call(lambda x: _run(f(x)))
    return torch.stack([region(dense(2, seed=k)) for k in range(2)])


@fact(
    "a lock that a `with` takes",
    torch="not in the survey",
    differs="it is taken while the region is traced, and not by later calls",
)
def _locked(call: Any) -> Any:
    lock = threading.Lock()

    def f(x: Tensor) -> Tensor:
        with lock:
            return x * 2

    region = call(f)
    region(dense(2, seed=0))
    with lock:
        try:
            blocked = threading.Thread(target=region, args=(dense(2, seed=1),), daemon=True)
            blocked.start()
            blocked.join(0.2)
        finally:
            waits = blocked.is_alive()
    blocked.join()
    return waits


@fact(
    "a checkpoint inside the region reads Python state that changes before the backward",
    torch="not in the survey",
    differs="its backward has what the forward read; eager reads again",
)
def _read_again(call: Any) -> Any:
    box = [2.0]

    def f(x: Tensor) -> Tensor:
        return checkpoint(lambda y: (y * box[0]).sin(), x, use_reentrant=False)

    x = dense(2, seed=0).requires_grad_()
    y = call(f)(x)
    box[0] = 3.0
    y.sum().backward()
    return x.grad


@fact("another thread looks at lists, attributes and globals while the region is traced")
def _watched_by_a_thread() -> None:
    layer, box, seen, done = (
        torch.nn.Linear(2, 2),
        [dense(2, seed=1)],
        set[type](),
        threading.Event(),
    )

    def watch() -> None:
        while not done.is_set():
            seen.update((type(layer.weight), type(box[0])))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        st.compile(lambda x: layer(x) + box[0])(dense(2, seed=0))
    finally:
        done.set()
        thread.join()
    assert seen == {torch.nn.Parameter, Tensor}
