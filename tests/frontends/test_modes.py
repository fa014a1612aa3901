"""Random numbers, autocast, grad modes, functorch transforms around and in a region."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import subclass_trace as st


def test_an_unused_random_operation_still_draws() -> None:
    def f(x):
        F.dropout(x, 0.5)
        return torch.rand_like(x)

    x = torch.ones(20)
    torch.manual_seed(0)
    want = f(x)
    torch.manual_seed(0)
    assert st.compile(f)(x).equal(want)


@pytest.mark.parametrize("inside", [False, True])
def test_autocast(inside: bool) -> None:
    def f(x, w):
        if inside:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return x @ w
        return x @ w

    region = st.compile(f)
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    for enabled in (False, True, False, True):
        grads = []
        for call in (f, region):
            x.grad = w.grad = None
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                out = call(x, w)
            out.float().sum().backward()
            grads.append((out.dtype, out.detach(), x.grad, w.grad))
        assert grads[0][0] is grads[1][0]
        for a, b in zip(grads[0][1:], grads[1][1:], strict=True):
            torch.testing.assert_close(a, b)
    assert len(region.specializations) == 2


def test_a_region_that_changes_grad_mode() -> None:
    region = st.compile(lambda x: (x * 2, torch.set_grad_enabled(False), x * 3)[::2])
    x = torch.ones(1, requires_grad=True)
    try:
        for _ in range(2):
            a, b = region(x)
            assert (a.requires_grad, b.requires_grad, torch.is_grad_enabled()) == (True, False, False)
            torch.set_grad_enabled(True)
    finally:
        torch.set_grad_enabled(True)


def test_enable_grad_inside_no_grad() -> None:
    def f(x):
        with torch.enable_grad():
            return x * 2

    x = torch.ones(1, requires_grad=True)
    with torch.no_grad():
        want, got = f(x), st.compile(f)(x)
    assert want.requires_grad
    assert got.requires_grad
    got.backward()
    assert x.grad.item() == 2


def test_deterministic_and_anomaly_mode() -> None:
    region, x = st.compile(lambda x: x * x), torch.ones(2, requires_grad=True)
    torch.use_deterministic_algorithms(True)
    try:
        region(x).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    with torch.autograd.set_detect_anomaly(True):
        region(x).sum().backward()
    assert x.grad.tolist() == [4, 4]


@pytest.mark.parametrize("transform", ["function mode", "dispatch mode"])
def test_around_the_region(transform: str) -> None:
    region = st.compile(lambda x: (x * x).sum(-1))
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    if transform == "function mode":
        with torch.overrides.BaseTorchFunctionMode():
            assert region(x[0]).item() == 5
    else:
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            st.compile(lambda x: x @ x)(x)
        assert counter.get_total_flops() == 16
    assert len(region.specializations) == 0


def test_default_device_is_guarded_and_compiled() -> None:
    region = st.compile(lambda x: x + torch.ones(2, device=None))
    with torch.device("cpu"):
        assert region(torch.zeros(2)).tolist() == [1, 1]
    assert len(region.specializations) == 1
    assert region(torch.zeros(2)).tolist() == [1, 1]
    assert len(region.specializations) == 2
    with torch.device("cpu"):
        assert region(torch.zeros(2)).tolist() == [1, 1]
    assert len(region.specializations) == 2


def test_a_generator_draws_for_other_sizes_too() -> None:
    g = torch.Generator()

    def f(x):
        rows = [torch.randn(x.shape, generator=g), torch.randint(2, 5, x.shape, generator=g) * 2]
        return (*rows, torch.rand(x.shape, generator=g))

    region = st.compile(f)
    for n in (3, 4, 5):
        x = torch.ones(n)
        g.manual_seed(n)
        want = f(x)
        g.manual_seed(n)
        for a, b in zip(region(x), want, strict=True):
            assert a.equal(b) and a.dtype is b.dtype
    assert len(region.specializations) == 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*torch.jit.trace.*")
@pytest.mark.parametrize("called_before", [False, True])
def test_a_region_that_torch_records(called_before: bool) -> None:
    """``torch.jit.trace`` has a tracer of its own in C++, under which nothing can be captured."""
    region = st.compile(lambda x: x.sin() * 2)
    x = torch.arange(3.0)
    if called_before:
        region(x)
    recorded = torch.jit.trace(region, (torch.ones(3),), check_trace=False)
    assert recorded(x).equal(x.sin() * 2)
    assert called_before or "torch.jit.trace" in region.explain()


@pytest.mark.parametrize("called_before", [False, True])
@pytest.mark.parametrize("around", [lambda region: region, torch.nn.Sequential], ids=["itself", "a child"])
def test_a_region_of_a_module_that_fx_records(called_before: bool, around: Any) -> None:
    """``torch.fx.symbolic_trace`` names modules by where they are in the root, and meets the module there."""
    region = st.compile(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU()))
    x = torch.ones(2, 3)
    if called_before:
        region(x)
    graph = torch.fx.symbolic_trace(around(region))
    assert graph(x).equal(region(x)) and [n.op for n in graph.graph.nodes].count("call_module") >= 1


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (lambda: torch.autocast("cpu", torch.bfloat16), "autocast: expected (), got (('cpu', torch.bfloat16), True)"),
        (torch.no_grad, "grad: expected True, got False"),
        (torch.inference_mode, "grad: expected True, got False, inference: expected False, got True"),
    ],
)
def test_a_miss_names_what_differs_of_the_threads_state_and_nothing_else(state: Any, text: str) -> None:
    region, x = st.compile(lambda x: x.sin()), torch.ones(2)
    region(x)
    with state():
        region(x)
    line = next(row for row in region.explain().splitlines() if "made for:  [0]" in row)
    assert line.split("[0] ")[1] == f"the state of the thread: {text}"


def _attention(q: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, q, q)


def test_kernels_of_attention_around_a_call() -> None:
    """The mathematical one has a second derivative, the one that is taken by itself has none."""
    region = st.compile(_attention)
    for allowed in (None, SDPBackend.MATH, None, SDPBackend.MATH):
        seen = []
        for f in (_attention, region):
            q = torch.linspace(-1, 1, 640).reshape(1, 2, 40, 8).requires_grad_()
            with contextlib.nullcontext() if allowed is None else sdpa_kernel(allowed):
                y = f(q)
                (gradient,) = torch.autograd.grad(y.sum(), q, create_graph=True)
                row = [y.detach().sum(), gradient.detach().sum()]
                if allowed is not None:
                    gradient.pow(2).sum().backward()
                    assert q.grad is not None
                    row.append(q.grad.sum())
            seen.append(row)
        for a, b in zip(*seen, strict=True):
            torch.testing.assert_close(a, b)
    assert len(region.specializations) == 2
    assert "attention: expected" in region.explain()


ATTENTION: dict[str, Any] = {
    "the function": lambda x: F.scaled_dot_product_attention(x, x, x),
    "the operation": lambda x: torch.ops.aten.scaled_dot_product_attention.default(x[None], x[None], x[None]),
    "a module": torch.nn.MultiheadAttention(8, 2, batch_first=True),
    "a layer": torch.nn.TransformerEncoderLayer(8, 2, batch_first=True, dropout=0.0),
    "a layer that is evaluated": torch.nn.TransformerEncoderLayer(8, 2, batch_first=True).eval(),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_where_kernels_of_attention_count(name: str) -> None:
    module = ATTENTION[name]
    f = (lambda x: module(x, x, x, need_weights=False)[0]) if name == "a module" else module
    region, x = st.compile(f), torch.linspace(-1, 1, 64).reshape(2, 4, 8)
    with torch.no_grad():
        for count, kernels in ((1, SDPBackend.FLASH_ATTENTION), (2, SDPBackend.MATH), (2, SDPBackend.FLASH_ATTENTION)):
            with sdpa_kernel([kernels, SDPBackend.MATH] if kernels is not SDPBackend.MATH else kernels):
                assert torch.equal(region(x), f(x))
            assert len(region.specializations) == count


def test_kernels_of_attention_that_nothing_needs() -> None:
    region = st.compile(lambda x: x * 2)
    for kernel in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(kernel):
            region(torch.ones(2))
    assert len(region.specializations) == 1


# ---------------------------------------------------------------------------------------------- flags of kernels
def _denormal(x: torch.Tensor) -> torch.Tensor:
    torch.set_flush_denormal(True)
    y = x * 1e-40
    torch.set_flush_denormal(False)
    return y * 1e38


def _without_mkldnn(x: torch.Tensor) -> torch.Tensor:
    with torch.backends.mkldnn.flags(enabled=False):
        return torch.nn.functional.conv2d(x, x)


def _filled(x: torch.Tensor) -> torch.Tensor:
    torch.use_deterministic_algorithms(True)
    y = torch.empty(3)
    torch.use_deterministic_algorithms(False)
    return y


def _rounded(x: torch.Tensor) -> torch.Tensor:
    torch.set_float32_matmul_precision("medium")
    y = x[0, 0] @ x[0, 1]
    torch.set_float32_matmul_precision("highest")
    return y


@pytest.mark.filterwarnings("ignore:TF32")
@pytest.mark.parametrize("function", [_denormal, _without_mkldnn, _filled, _rounded])
def test_a_flag_that_holds_for_some_operations(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Kernels read it as they run, when the region is long over."""
    torch.manual_seed(0)
    x = torch.randn(3, 3, 9, 9)
    region = st.compile(function)
    with pytest.warns(UserWarning, match="runs eagerly: the region sets a flag of kernels"):
        first = region(x)
    for got in (first, region(x)):
        assert torch.equal(got.nan_to_num(7), function(x).nan_to_num(7))


def test_a_flag_that_no_operation_reads_is_set_by_each_call() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        torch.set_float32_matmul_precision("high")
        return x.sin() * 2

    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        region = st.compile(f, frontend="trace")
        for _ in range(2):
            assert torch.equal(region(torch.ones(2)), torch.ones(2).sin() * 2)
            assert torch.get_float32_matmul_precision() == "high"
            torch.set_float32_matmul_precision("highest")
    finally:
        torch.set_float32_matmul_precision(before)
