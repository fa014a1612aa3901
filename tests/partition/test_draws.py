"""Random numbers of recomputed regions: the backward has the forward's, draws them again where memory asks for it, and
leaves every generator as eager mode does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx as fx
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import subclass_trace as st
from subclass_trace.partition.draws import STATE_BYTES
from subclass_trace.zoo import TwoTensor

N = 64

DRAWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout": lambda x: F.dropout(torch.ones_like(x), 0.3),
    "bernoulli": lambda x: torch.empty_like(x).bernoulli_(0.25),
    "rand": lambda x: torch.rand(N, N),
    "rand_like": torch.rand_like,
    "randn": lambda x: torch.randn(N, N),
    "randn_like": torch.randn_like,
    "uniform": lambda x: torch.empty_like(x).uniform_(-2, 3),
    "normal": lambda x: torch.empty_like(x).normal_(1, 2),
    "exponential": lambda x: torch.empty_like(x).exponential_(),
    "geometric": lambda x: torch.empty_like(x).geometric_(0.4),
    "cauchy": lambda x: torch.empty_like(x).cauchy_(1, 2),
    "log_normal": lambda x: torch.empty_like(x).log_normal_(0, 0.5),
    "bfloat16": lambda x: torch.rand(2 * N, N, dtype=torch.bfloat16).float()[:N],
    "double": lambda x: torch.randn(N, N, dtype=torch.float64).float(),
}


def checkpointed(draw: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: checkpoint(lambda x: (x.sin() * draw(x)).tanh() * draw(x), x, use_reentrant=False)


def step(call: Callable[..., Any]) -> list[torch.Tensor]:
    """Result, gradient, and the next random numbers after the forward and after the backward."""
    x = torch.linspace(-1, 1, N * N).view(N, N).requires_grad_()
    torch.manual_seed(3)
    out = call(x)
    after = torch.rand(4)
    torch.manual_seed(4)
    (grad,) = torch.autograd.grad(out.sum(), x)
    return [out.detach(), after, grad, torch.rand(4)]


def saved_draws(region: Any) -> list[tuple[str, int]]:
    return [(r.reason, r.bytes) for r in region.specializations[0].saved if r.operation != "input"]


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_checkpoint_saves_the_state_of_the_generator(draw: Callable[[torch.Tensor], torch.Tensor]) -> None:
    function = checkpointed(draw)
    region = st.compile(function)
    torch.testing.assert_close(step(region), step(function), rtol=0, atol=0)
    assert saved_draws(region) == [("partition, as generator state", STATE_BYTES)] * 2
    assert torch.default_generator.get_state().nbytes == STATE_BYTES


def test_a_budget_may_draw_again_and_counts_the_state() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (F.dropout(x @ x, 0.5) @ x).exp() * torch.rand_like(x)

    plain = st.compile(f)
    for budget in (0.0, 0.4, 2 * STATE_BYTES, 30_000):
        region = st.compile(f, activation_memory_budget=budget)
        torch.testing.assert_close(step(region), step(f))
        size = sum(r.bytes for r in region.specializations[0].saved)
        assert size <= budget if budget > 1 else size < 0.5 * sum(r.bytes for r in plain.specialize(x()).saved)
        assert ("partition, as generator state", STATE_BYTES) in saved_draws(region)
    with pytest.raises(st.OptionError) as caught:
        st.compile(f, activation_memory_budget=2 * STATE_BYTES - 1)(x())
    assert caught.value.expected is not None and caught.value.expected.startswith(f"at least {2 * STATE_BYTES} bytes")
    plain(x())
    assert all("state" not in reason for reason, _ in saved_draws(plain))


def x() -> torch.Tensor:
    return torch.linspace(-1, 1, N * N).view(N, N).requires_grad_()


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.rand(8, 8).repeat(8, 8),  # smaller than a state
        lambda x: torch.bernoulli(x.detach().sigmoid()),  # reads other values
        lambda x: torch.rand(N, N, generator=GENERATOR),  # of a generator of the user
        lambda x: torch.randperm(N * N).view(N, N).to(x.dtype),
    ],
    ids=["small", "of values", "explicit generator", "permutation"],
)
def test_other_draws_are_saved(draw: Callable[[torch.Tensor], torch.Tensor]) -> None:
    function = checkpointed(draw)
    region = st.compile(function)
    results = []
    for call in (region, function):
        GENERATOR.manual_seed(0)
        value = x()
        torch.manual_seed(3)
        out = call(value)
        results.append((out.detach(), torch.rand(4)))
        if call is region:  # eager mode's checkpoint draws other numbers from an explicit generator
            torch.manual_seed(4)
            (grad,) = torch.autograd.grad(out.sum(), value)
            assert grad.isfinite().all()
    torch.testing.assert_close(*results)
    assert all("state" not in reason for reason, _ in saved_draws(region))


GENERATOR = torch.Generator()


def test_a_drawn_result_is_saved_as_it_is() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        def inner(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            noise = torch.rand_like(x)
            return (x.sin() * noise).exp(), noise

        return checkpoint(inner, x, use_reentrant=False)

    region = st.compile(f)
    value = x()
    out, noise = region(value)
    (grad,) = torch.autograd.grad(out.sum(), value)
    torch.testing.assert_close(grad, (value.sin() * noise).exp() * noise * value.cos())


def test_threads_that_draw_meanwhile_change_no_mask() -> None:
    region = st.compile(lambda x: checkpoint(lambda x: F.dropout(x.sin(), 0.5), x, use_reentrant=False))
    region(x())
    stop = threading.Event()

    def others() -> None:
        while not stop.is_set():
            torch.rand(7)

    threads = [threading.Thread(target=others) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(60):
            value = x()
            out = region(value)
            (grad,) = torch.autograd.grad(out.sum(), value)
            torch.testing.assert_close(grad, (out.detach() != 0) * 2 * value.detach().cos())
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_two_threads_of_one_region_draw_different_numbers() -> None:
    region = st.compile(checkpointed(torch.rand_like))
    region(x())
    found: list[torch.Tensor] = []

    def work() -> None:
        for _ in range(20):
            found.append(region(x()).detach())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({float(f.sum()) for f in found}) == 60


def test_inside_fork_rng() -> None:
    function = checkpointed(DRAWS["dropout"])

    def forked(call: Callable[..., Any]) -> list[torch.Tensor]:
        torch.manual_seed(1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(2)
            value = x()
            out = call(value)
            inside = torch.rand(2)
        (grad,) = torch.autograd.grad(out.sum(), value)
        return [out.detach(), inside, grad, torch.rand(2)]

    torch.testing.assert_close(forked(st.compile(function)), forked(function))


def test_tangents_of_another_kind_and_second_derivatives() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        def inner(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = F.dropout(x.sin(), 0.5)
            return y.exp(), y * x

        return checkpoint(inner, x, use_reentrant=False)

    region = st.compile(f)
    plain = lambda x: (lambda y: (y.exp(), y * x))(F.dropout(x.sin(), 0.5))
    for use in (lambda a, b: a + b, lambda a, b: b, lambda a, b: a * b):
        rows = []
        for call in (region, plain):
            value = x()
            torch.manual_seed(3)
            outs = call(value)
            torch.manual_seed(5)
            (first,) = torch.autograd.grad(use(*outs).sum(), value, create_graph=True)
            (second,) = torch.autograd.grad(first.pow(2).sum(), value)
            rows.append((first.detach(), second))
        torch.testing.assert_close(*rows)
    assert ("partition, as generator state", STATE_BYTES) in saved_draws(region)


def test_inner_tensors_are_drawn_again() -> None:
    function = checkpointed(lambda x: F.dropout(x, 0.5))
    region = st.compile(function)
    rows = []
    for call in (region, function):
        a, b = torch.linspace(0.1, 1, N * N).view(N, N), torch.linspace(1, 2, N * N).view(N, N)
        value = TwoTensor(a, b).requires_grad_()
        torch.manual_seed(3)
        out = call(value)
        torch.manual_seed(4)
        out.backward(torch.ones_like(out).detach())
        rows.append((out.a.detach(), out.b.detach(), value.grad.a, value.grad.b))
    torch.testing.assert_close(*rows)
    assert saved_draws(region) == [("partition, as generator state", STATE_BYTES)] * 4


# ---------------------------------------------------------------------------------------------- other back ends
def test_other_back_ends_get_the_numbers_unless_asked() -> None:
    function = checkpointed(torch.rand_like)
    seen: list[list[str]] = []

    def compiler(module: fx.GraphModule, inputs: Any) -> Any:
        seen.append([str(n.target) for n in module.graph.nodes if n.op == "call_function"])
        return module.forward

    for again in (None, False, True):
        region = st.compile(function, backend=compiler, partitioner=st.MinCut(draw_again=again))
        torch.testing.assert_close(step(region), step(function))
        forward, backward = seen[-2:]
        drawn = [any(o.startswith("subclass_trace.draw") for o in graph) for graph in (forward, backward)]
        assert drawn == [again is True] * 2
    assert [st.MinCut(draw_again=a).for_backend(True, False).draw_again for a in (None, False, True)] == [0, 0, 1]


@pytest.mark.parametrize("name", ["torch_min_cut", "default"])
def test_torchs_partitioners_save_the_numbers(name: str) -> None:
    function = checkpointed(DRAWS["dropout"])
    region = st.compile(function, partitioner=name)
    torch.testing.assert_close(step(region), step(function))
    assert all("state" not in reason for reason, _ in saved_draws(region))


def test_a_trace_shows_what_is_saved_for_the_back_end() -> None:
    function = checkpointed(torch.rand_like)
    for backend, reason in (("eager", "partition, as generator state"), ("inductor", "partition")):
        found = st.Tracer(backend=backend)(function, x())
        assert [r.reason for r in found.saved if r.path is None] == [reason] * 2
    assert "subclass_trace.draw_again" in str(st.trace(function, x()))
