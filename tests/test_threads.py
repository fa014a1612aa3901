"""Calls and backwards from several threads at once; what another thread computes while a region is captured."""

from __future__ import annotations

import collections
import logging
import math
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.compiler import is_compiling

import subclass_trace as st
from subclass_trace.zoo import TwoTensor


def together(count: int, work) -> list:
    """Run ``work(k)`` on ``count`` threads that start together; results in order; the first error is raised."""
    barrier = threading.Barrier(count)
    results: list = [None] * count
    errors: list[BaseException] = []

    def run(k: int) -> None:
        try:
            barrier.wait(10)
            results[k] = work(k)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
        assert not t.is_alive(), "deadlock"
    if errors:
        raise errors[0]
    return results


def step(region, k: int):
    w = TwoTensor(torch.full((3,), 1.0 + k), torch.full((3,), 2.0 + k)).requires_grad_()
    out = region(w, torch.ones(3))
    out.sum().backward()
    return out.detach(), w.grad


def f(w, x):
    return (w * w).sin() + x


def test_concurrent_first_calls_make_one_specialization() -> None:
    region = st.compile(f)
    results = together(8, lambda k: step(region, k))
    assert len(region.specializations) == 1
    for k, (out, grad) in enumerate(results):
        want, want_grad = step(f, k)
        for got, expected in ((out, want), (grad, want_grad)):
            assert type(got) is TwoTensor
            torch.testing.assert_close(got.a, expected.a)
            torch.testing.assert_close(got.b, expected.b)


def test_concurrent_first_calls_of_different_regions() -> None:
    regions = [st.compile(lambda x, k=k: (x * k).sin()) for k in range(8)]
    out = together(8, lambda k: regions[k](torch.ones(3)))
    for k, o in enumerate(out):
        torch.testing.assert_close(o, torch.full((3,), float(k)).sin())


def test_a_module_is_never_seen_with_traced_parameters() -> None:
    """While one thread captures, the module's slots hold traced tensors: other threads must not see them."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
    region = st.compile(model)
    x = torch.randn(2, 4)
    want = model(x).detach()
    for out in together(8, lambda k: region(x)):
        torch.testing.assert_close(out.detach(), want)
    assert all(type(p) is torch.nn.Parameter for p in model.parameters())


def test_eager_calls_of_the_module_beside_the_capture() -> None:
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(12)])
    region = st.compile(model)
    x = torch.randn(2, 4)
    want = model(x).detach()

    def work(k: int):
        if k == 0:
            return region(x)
        return [model(x).detach() for _ in range(30)][-1]

    for out in together(4, work):
        torch.testing.assert_close(out.detach(), want)


@pytest.mark.parametrize("flag", ["grad", "autocast"])
def test_the_mode_of_one_thread_does_not_leak_into_another(flag: str) -> None:
    region = st.compile(lambda x: x @ x)
    x = torch.randn(4, 4, requires_grad=True)

    def work(k: int):
        if flag == "grad":
            with torch.set_grad_enabled(k % 2 == 0):
                return region(x).requires_grad == (k % 2 == 0)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=k % 2 == 0):
            return (region(x).dtype is torch.bfloat16) == (k % 2 == 0)

    assert all(together(8, work))
    assert len(region.specializations) == 2


# --------------------------------------------- another thread computes in eager mode what it would have computed anyway
Tensor = torch.Tensor


def elsewhere(work: Callable[[], Any]) -> Any:
    """What ``work`` gives in another thread; what it raises is raised here."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append((work(), None))
        except BaseException as error:
            found.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert found, "the other thread hangs"
    out, error = found[0]
    if error is not None:
        raise error
    return out


_WORK: list[Callable[[], Any]] = []


def _heard(event: str, args: tuple[Any, ...]) -> None:
    if event == "subclass_trace.tests.meanwhile":
        _WORK[0]()


sys.addaudithook(_heard)


def while_captured(work: Callable[[], Any]) -> Any:
    """The same, in the middle of the capture of a region, by code that is no part of it."""
    found: list[Any] = []
    _WORK[:] = [lambda: found.append(elsewhere(work))]

    def region(x: Tensor) -> Tensor:
        y = x.sin()
        sys.audit("subclass_trace.tests.meanwhile")
        return y * 2

    st.compile(region)(TwoTensor(torch.ones(3), torch.ones(3)))
    return found[0]


def steps_of(make: Callable[..., torch.optim.Optimizer], **options: Any) -> Callable[[], Tensor]:
    def run() -> Tensor:
        weight = nn.Parameter(torch.linspace(-1, 1, 7))
        optimizer = make([weight], **options)
        for k in range(3):
            weight.grad = torch.linspace(0.1, 0.7, 7) * (k + 1)
            optimizer.step()
        return weight.detach()

    return run


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", ["Adam", "AdamW", "NAdam", "RAdam", "Adagrad"])
def test_optimizers(name: str, foreach: bool) -> None:
    work = steps_of(getattr(torch.optim, name), lr=0.1, foreach=foreach)
    torch.testing.assert_close(while_captured(work), work(), rtol=0, atol=0)


def test_a_step_meets_no_hooks_of_a_capture() -> None:
    """It walks over a table of hooks: one that changes meanwhile would be an error."""
    from torch.optim import optimizer

    tables = (optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks)
    assert while_captured(lambda: list(map(len, tables))) == list(map(len, tables))


def test_who_asks_is_told_of_its_own_thread() -> None:
    """By whatever name: this module holds the function itself."""
    seen: list[Any] = []
    others: list[Any] = []
    _WORK[:] = [lambda: others.append(elsewhere(lambda: (is_compiling(), torch.compiler.is_compiling())))]

    def region(x: Tensor) -> Tensor:
        seen.extend([is_compiling(), torch.compiler.is_compiling(), torch._dynamo.is_compiling()])
        sys.audit("subclass_trace.tests.meanwhile")
        return x * 2

    st.compile(region)(torch.ones(2))
    assert seen == [True, True, True] and others == [(False, False)]
    assert not is_compiling()


SHARED: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], None]]] = {
    "list": (list, lambda held, v: held.append(v)),
    "list, extended": (list, lambda held, v: held.extend([v])),
    "deque": (collections.deque, lambda held, v: held.append(v)),
    "dict": (dict, lambda held, v: held.__setitem__(v, v)),
    "OrderedDict": (collections.OrderedDict, lambda held, v: held.__setitem__(v, v)),
    "Counter": (collections.Counter, lambda held, v: held.__setitem__(v, 1)),
    "set": (set, lambda held, v: held.add(v)),
    "attributes": (SimpleNamespace, lambda held, v: setattr(held, v, v)),
}


@pytest.mark.parametrize("kind", SHARED)
def test_what_another_thread_writes_to_the_same_thing_stays_and_is_no_effect(kind: str) -> None:
    make, put = SHARED[kind]
    held = make()
    put(held, "before")
    _WORK[:] = [lambda: elsewhere(lambda: put(held, "other"))]

    def region(x: Tensor) -> Tensor:
        put(held, "step")
        sys.audit("subclass_trace.tests.meanwhile")
        put(held, "more")
        return x * 2

    def seen() -> list[Any]:
        return sorted(vars(held) if kind == "attributes" else held)

    compiled = st.compile(region)
    compiled(torch.ones(2))
    once = ["before", "more", "other", "step"]
    assert seen() == once
    compiled(torch.ones(2))
    assert len(compiled.specializations) == 1
    assert seen() == (sorted([*once, "more", "step"]) if kind.startswith(("list", "deque")) else once)
    held.__dict__.clear() if kind == "attributes" else held.clear()
    compiled(torch.ones(2))
    assert seen() == ["more", "step"]


def test_items_of_one_list() -> None:
    held = [1, 2]
    _WORK[:] = [lambda: elsewhere(lambda: (held.__setitem__(1, 5), held.append(6)))]

    def region(x: Tensor) -> Tensor:
        held[0] = 7
        sys.audit("subclass_trace.tests.meanwhile")
        held.append(8)
        return x * 2

    compiled = st.compile(region)
    compiled(torch.ones(2))
    assert held == [7, 5, 6, 8]
    held[:] = [0, 0]
    compiled(torch.ones(2))
    assert held == [7, 0, 8]


SETTINGS: dict[str, tuple[Callable[[bool], Any], Callable[[], bool]]] = {
    "determinism": (torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled),
    "anomaly mode": (torch.autograd.set_detect_anomaly, torch.is_anomaly_enabled),
    "matmul precision": (
        lambda on: torch.set_float32_matmul_precision("high" if on else "highest"),
        lambda: torch.get_float32_matmul_precision() == "high",
    ),
    "attention": (
        lambda on: torch.backends.cuda.enable_flash_sdp(not on),
        lambda: not torch.backends.cuda.flash_sdp_enabled(),
    ),
    "mkldnn": (
        lambda on: setattr(torch.backends.mkldnn, "enabled", not on),
        lambda: not torch.backends.mkldnn.enabled,
    ),
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("name", SETTINGS)
def test_what_another_thread_sets_stays_and_is_no_effect(name: str) -> None:
    put, is_on = SETTINGS[name]
    _WORK[:] = [lambda: elsewhere(lambda: put(True))]

    def region(x: Tensor) -> Tensor:
        sys.audit("subclass_trace.tests.meanwhile")
        return x * 2

    compiled = st.compile(region)
    try:
        compiled(torch.ones(2))
        assert is_on()
        put(False)
        compiled(torch.ones(2))
        assert not is_on()
    finally:
        put(False)


@pytest.mark.filterwarnings("ignore::subclass_trace.HandOverWarning")
def test_first_hand_overs_at_the_same_moment() -> None:
    """Torch finds a back end by its name, and takes it twice for an error."""

    def handed_over(k: int) -> Tensor:
        def branches(x: Tensor) -> Tensor:
            return x * 2 if x.sum() > 0 else x - 1

        return st.compile(branches, frontend="auto")(torch.ones(k + 1))

    assert [int(out.sum()) for out in together(6, handed_over)] == [2, 4, 6, 8, 10, 12]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_in_the_middle_of_a_trace() -> None:
    """The child traces, too: no lock is left with a thread that it has not."""
    inside = threading.Event()
    _WORK[:] = [lambda: (inside.set(), threading.Event().wait(0.3))]

    def slow(x: Tensor) -> Tensor:
        sys.audit("subclass_trace.tests.meanwhile")
        return x * 2

    tracer = threading.Thread(target=lambda: st.compile(slow)(torch.ones(2)))
    tracer.start()
    assert inside.wait(60)
    child = os.fork()
    if not child:
        signal.alarm(60)
        os._exit(0 if st.compile(lambda x: x + 1)(torch.ones(2)).tolist() == [2, 2] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    tracer.join(60)
    assert not tracer.is_alive()


def test_kernels_and_settings() -> None:
    def look() -> list[Any]:
        return [
            torch._C._get_mkldnn_enabled(),
            torch.is_anomaly_enabled(),
            torch.is_anomaly_check_nan_enabled(),
            logging.getLogger("torch._subclasses.fake_tensor").disabled,
        ]

    assert while_captured(look) == look()


def _said_of_attribute(t: Tensor) -> str:
    with pytest.raises(AttributeError) as caught:
        _ = t.odd  # type: ignore[attr-defined]
    return str(caught.value)


WORK: dict[str, Callable[[], Any]] = {
    "numbers": lambda: (math.sqrt(torch.tensor([2.0])), math.floor(torch.tensor(2.5)), float(torch.tensor(True))),
    "types": lambda: type(torch._subclasses.FakeTensorMode().from_tensor(torch.ones(2))).__name__,
    "text": lambda: repr(torch._subclasses.FakeTensorMode().from_tensor(torch.ones(2))),
    "attribute": lambda: _said_of_attribute(TwoTensor(torch.ones(2), torch.ones(2))),
    "address": lambda: torch.empty(2, device="meta").untyped_storage().data_ptr(),
    "batch norm": lambda: nn.BatchNorm1d(3, momentum=None)(torch.arange(6.0).view(2, 3)).detach(),
    "generator": lambda: torch.manual_seed(0).initial_seed(),
}


@pytest.mark.parametrize("name", WORK)
def test_python_and_torch(name: str) -> None:
    got, expected = while_captured(WORK[name]), WORK[name]()
    assert repr(got) == repr(expected)
