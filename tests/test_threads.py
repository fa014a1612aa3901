"""First calls, later calls and backwards from several threads at once."""

from __future__ import annotations

import threading

import pytest
import torch

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
