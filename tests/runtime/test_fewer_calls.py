"""Fewer calls from Python, the same numbers in the same places."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as draws
from torch.fx.experimental.proxy_tensor import make_fx

import subclass_trace as st
from subclass_trace.backends.eager.graph_code import compile_graph, interpret_graph

aten = torch.ops.aten


def traced(function: Callable[..., Any], *inputs: torch.Tensor) -> torch.fx.GraphModule:
    with torch.no_grad():
        return make_fx(function, tracing_mode="fake")(*inputs)


def lines(module: torch.fx.GraphModule) -> list[str]:
    return [line.split("  # ")[1] for line in compile_graph(module).source.splitlines() if "  # " in line]


def same(module: torch.fx.GraphModule, *inputs: torch.Tensor) -> None:
    """Generated code and reference give the same bits in the same layout."""
    with torch.no_grad():
        got, expected = compile_graph(module)(list(inputs)), interpret_graph(module)(list(inputs))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        assert a.stride() == b.stride()
        assert a.storage_offset() == b.storage_offset()


# ---------------------------------------------------------------------------------------------- views of views
def heads(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).view(2, 3, 2, 4).transpose(1, 2).reshape(4, 3, 4) + 1


def test_views_of_a_product_are_one_call() -> None:
    x, w = torch.randn(6, 5), torch.randn(5, 8)
    module = traced(lambda x, w: (x @ w).view(2, 3, 2, 4).transpose(1, 2)[1:] + 1, x, w)
    assert lines(module) == ["aten.mm.default", "aten.as_strided.default", "aten.add.Tensor"]
    assert " if " not in compile_graph(module).source
    same(module, x, w)
    same(traced(heads, x, w), x, w)


def heads_of(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    n = x.shape[0]
    y = F.linear(x, w).view(n, 3, 2, 4).transpose(1, 2)
    return (y @ y.transpose(-1, -2)).softmax(-1) @ y


@pytest.mark.parametrize("unpack", [lambda t: t, lambda t: t.t().contiguous().t() if t.dim() == 2 else t.clone()])
def test_saved_activations_in_another_layout(unpack: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A hook on saved activations may give back the same numbers in another order in memory."""
    x, w = torch.randn(2, 3, 5, requires_grad=True), torch.randn(8, 5, requires_grad=True)
    region = st.compile(heads_of, backend="eager")
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
        results = [torch.autograd.grad(f(x, w).square().sum(), (x, w)) for f in (region, region, heads_of)]
    for got in results[:2]:
        torch.testing.assert_close(got, results[2])


@draws.composite
def chains(draw: draws.DrawFn) -> Callable[[torch.Tensor], torch.Tensor]:
    """Up to five views of a tensor of 24 elements."""
    steps: list[tuple[str, tuple[Any, ...]]] = []
    shape = torch.empty(4, 6)
    for _ in range(draw(draws.integers(1, 5))):
        kind = draw(
            draws.sampled_from(["view", "transpose", "unsqueeze", "squeeze", "narrow", "select", "expand", "flip"])
        )
        step = _step(draw, kind, shape)
        if step is not None:
            shape = getattr(shape, kind)(*step)
            steps.append((kind, step))

    def run(x: torch.Tensor) -> torch.Tensor:
        for kind, step in steps:
            x = getattr(x, kind)(*step)
        return x

    return run


def _step(draw: draws.DrawFn, kind: str, x: torch.Tensor) -> tuple[Any, ...] | None:
    dim = draw(draws.integers(0, x.dim() - 1)) if x.dim() else 0
    if kind == "view":
        size = draw(draws.sampled_from([(x.numel(),), (2, x.numel() // 2), (x.numel() // 3, 3), (1, *x.shape)]))
        return size if math.prod(size) == x.numel() and x.is_contiguous() else None
    if kind == "unsqueeze":
        return (dim,)
    if x.dim() == 0:
        return None
    choices: dict[str, tuple[Any, ...]] = {
        "transpose": (dim, draw(draws.integers(0, x.dim() - 1))),
        "squeeze": (dim,),
        "narrow": (dim, min(1, x.shape[dim] - 1), max(1, x.shape[dim] - 1)),
        "select": (dim, x.shape[dim] - 1),
        "expand": (2, *x.shape),
        "flip": (dim,),
    }
    return choices[kind] if x.numel() else None


@given(chains(), draws.booleans())
@settings(max_examples=40)
def test_any_chain(chain: Callable[[torch.Tensor], torch.Tensor], product: bool) -> None:
    x, w = torch.randn(4, 5), torch.randn(5, 6)
    if product:
        same(traced(lambda x, w: (chain(x @ w) + 1, chain(x @ w)), x, w), x, w)
    else:
        y = torch.randn(4, 6)
        module = traced(lambda y: (chain(y) + 1, chain(y)), y)
        for value in (y, torch.randn(4, 12)[:, ::2].contiguous(), torch.randn(30)[6:].view(4, 6)):
            same(module, value)


# ---------------------------------------------------------------------------------------------- linear layers
SHAPES = [(4, 5), (2, 4, 5), (2, 3, 4, 5), (1, 4, 5), (2, 1, 5)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_linear_is_called_and_does_the_same(shape: tuple[int, ...], bias: bool, dtype: torch.dtype) -> None:
    x, w, b = torch.randn(*shape, dtype=dtype), torch.randn(3, 5, dtype=dtype), torch.randn(3, dtype=dtype)
    module = traced(lambda x, w, b: F.linear(x, w, b if bias else None) * 2, x, w, b)
    assert lines(module) == ["linear", "aten.mul.Tensor"]
    same(module, x, w, b)


def test_a_write_between_product_and_view() -> None:
    """The product is of the weight before the write."""

    def write(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x.view(4, 5) @ w.t()
        w.add_(1)
        return y.view(2, 2, 3) * 2

    x, w = torch.randn(2, 2, 5), torch.randn(3, 5)
    module = traced(write, x, w)
    with torch.no_grad():
        (got,), expected = compile_graph(module)([x, w.clone()]), write(x, w.clone())
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


@pytest.mark.parametrize("function", [
    lambda x, w, b: torch.addmm(b, x, w.t(), beta=2) * 2,
    lambda x, w, b: torch.addmm(b.expand(4, 3), x, w.t()) * 2,
    lambda x, w, b: (x @ w.t()[:, :2]) * 2,
])  # fmt: skip
def test_products_that_are_no_linear_layer(function: Callable[..., Any]) -> None:
    x, w, b = torch.randn(4, 5), torch.randn(3, 5), torch.randn(3)
    module = traced(function, x, w, b)
    assert "linear" not in lines(module)
    same(module, x, w, b)
