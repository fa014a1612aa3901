"""Views that are spared: the same numbers in the same places."""

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
from subclass_trace.backends.eager.graph_code import compile_graph

aten = torch.ops.aten


def traced(function: Callable[..., Any], *inputs: torch.Tensor) -> torch.fx.GraphModule:
    with torch.no_grad():
        return make_fx(function, tracing_mode="fake")(*inputs)


def lines(module: torch.fx.GraphModule) -> list[str]:
    return [line.split("  # ")[1] for line in compile_graph(module).source.splitlines() if "  # " in line]


def compared(module: torch.fx.GraphModule, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    found = torch.fx.Interpreter(module).run(*inputs)
    return (found,) if isinstance(found, torch.Tensor) else tuple(found)


def same(module: torch.fx.GraphModule, *inputs: torch.Tensor) -> None:
    """Generated code and reference give the same bits in the same layout."""
    with torch.no_grad():
        got, expected = compile_graph(module)(list(inputs)), compared(module, *inputs)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        strides = [[s for n, s in zip(t.shape, t.stride(), strict=True) if n > 1] for t in (a, b)]
        assert strides[0] == strides[1]  # of one element torch's fake ``view`` tells another stride than the real one
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


# ---------------------------------------------------------------------------------------------- round trips
CASES: dict[str, tuple[Callable[..., Any], int]] = {  # function of a 3 x 4 tensor -> number of views left
    "t of t": (lambda x: x.t().t() + 1, 0),
    "transpose there and back": (lambda x: x.transpose(0, 1).transpose(-1, -2) * 2, 0),
    "expand to itself": (lambda x: x.expand(3, 4) + 1, 0),
    "view to itself": (lambda x: x.view(3, 4) + 1, 0),
    "unsqueeze and squeeze": (lambda x: x.unsqueeze(1).squeeze(1) + 1, 0),
    "a whole slice": (lambda x: x[0:3] + 1, 0),
    "view there and back, also used in the middle": (lambda x: ((v := x.view(12)) * 2, v.view(3, 4) + 1), 1),
    "t alone": (lambda x: x.t() + 1, 1),
    "another place": (lambda x: x[1:] + x[:2], 2),
    "a result stays a tensor of its own": (lambda x: x.t().t(), 2),
    "a result in the middle": (lambda x: (x.t(), x.t().t() + 1), 1),
    "a result that is computed here": (lambda x: x.sin().t().t(), 0),
    "two results of one value": (lambda x: ((y := x.sin()).t().t(), y.t().t()), 2),
    "a result beside its value": (lambda x: ((y := x.sin()), y.t().t()), 2),
    "merged with one that is left out": (
        lambda x: ((a := x.sin()), (b := a.t().t()), (c := a.t().t()), c.view(3, 4) * b.exp()),
        4,
    ),
    "a sum and the view that drops its dimension": (
        lambda x: (x.sum([-1], True).view(3), x.sum([0, 1], True).view([])),
        0,
    ),
    "a sum that is returned as well": (lambda x: ((y := x.sum([0], True)), y.view(4)), 1),
    "a sum that is viewed in another way": (lambda x: (x.sum([0], True).view(2, 2), x.sum([0]).view(1, 4)), 2),
    "through a computed value": (lambda x: x.sin().t().t() @ x.t().t().t().clone(), 1),
}


@pytest.mark.parametrize("name", CASES)
def test_round_trips(name: str) -> None:
    function, left = CASES[name]
    x = torch.randn(3, 4)
    graph = make_fx(function, tracing_mode="fake")(x)
    compiled = compile_graph(graph)
    views = [line for line in compiled.source.splitlines() if any(f"aten.{v}." in line for v in VIEWS)]
    assert len(views) == left, compiled.source
    got, expected = compiled([x]), compared(graph, x)
    assert len({id(t) for t in got}) == len(got)
    for a, b in zip(got, expected, strict=True):
        assert a is not x
        torch.testing.assert_close(a, b, rtol=0, atol=0)
        assert a.stride() == b.stride()
        assert (a.untyped_storage()._cdata == x.untyped_storage()._cdata) is (
            b.untyped_storage()._cdata == x.untyped_storage()._cdata
        )


VIEWS = ("t", "transpose", "expand", "view", "unsqueeze", "squeeze", "slice", "alias", "detach")


def test_a_write_through_a_round_trip_reaches_the_base() -> None:
    def write(x: torch.Tensor) -> torch.Tensor:
        x.t().t().add_(1)
        return x * 2

    x = torch.randn(3, 4)
    graph = make_fx(write, tracing_mode="fake")(x)
    a, b = x.clone(), x.clone()
    torch.testing.assert_close(compile_graph(graph)([a]), compared(graph, b), rtol=0, atol=0)
    torch.testing.assert_close(a, x + 1)
    torch.testing.assert_close(a, b)


def test_sizes_that_are_computed_are_read() -> None:
    region = st.compile(lambda x: x.view(-1).view(2, x.shape[0] * 2) + 1, backend="eager", dynamic=True)
    for n in (3, 5, 7):
        x = torch.randn(n, 4)
        torch.testing.assert_close(region(x), x.view(2, -1) + 1)
