"""Views that lead back are left out, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import subclass_trace as st
from subclass_trace.backends.eager.graph_code import compile_graph, interpret_graph
from subclass_trace.backends.eager.round_trips import without_round_trips

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
    got, expected = compiled([x]), interpret_graph(graph)([x])
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
    torch.testing.assert_close(compile_graph(graph)([a]), interpret_graph(graph)([b]), rtol=0, atol=0)
    torch.testing.assert_close(a, x + 1)
    torch.testing.assert_close(a, b)


def test_symbolic_sizes_are_left_alone() -> None:
    region = st.compile(lambda x: x.view(x.shape[0], 4).t().t() + 1, backend="eager", dynamic=True)
    for n in (3, 5, 7):
        x = torch.randn(n, 4)
        torch.testing.assert_close(region(x), x + 1)
    assert len(region.specializations) == 1


def test_a_node_that_was_merged_with_one_that_is_left_out() -> None:
    graph = make_fx(
        lambda x: ((a := x.sin()), (b := a.t().t()), (c := a.t().t()), c.view(3, 4) * b.exp()), tracing_mode="fake"
    )
    module = graph(torch.randn(3, 4))
    nodes = {n.name: n for n in module.graph.nodes}
    calls = [n for n in module.graph.nodes if n.op == "call_function"]
    sin, first, second = nodes["sin"], nodes["t_1"], nodes["t_3"]
    view = next(n for n in calls if "view" in str(n.target))
    body = [n for n in calls if n not in (nodes["t_2"], second)]
    _, known = without_round_trips(body, [calls[-1]], {nodes["t_2"]: nodes["t"], second: first})
    assert known[first] is known[second] is known[view] is sin
