"""Reports: the whole text of small ones, and the names of what graphs take and give."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import subclass_trace as st
from subclass_trace.report import names
from subclass_trace.zoo import TwoTensor


def two(*size: int) -> TwoTensor:
    return TwoTensor(torch.rand(size), torch.rand(size))


def report_of(function: Any, *args: Any, **options: Any) -> str:
    return st.compile(function, **options).specialize(*args).report()


class Layers(nn.Module):
    """Linear layers with TwoTensor weights and dense biases."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(count))
        for layer in self.layers:
            layer.weight = nn.Parameter(two(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.linear(x, layer.weight, layer.bias).relu()
        return x


def test_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(os.path.dirname(__file__))  # lines of files are shown relative to it
    line = Layers.forward.__code__.co_firstlineno + 2
    expected = f"""\
inputs: 3, dense leaves: 5
  args[0]                  TwoTensor  float32[2, 4]
  args[0].a                primals_1  float32[2, 4]
  args[0].b                primals_2  float32[2, 4]
  self.layers[0].weight    TwoTensor  float32[4, 4], requires grad
  self.layers[0].weight.a  primals_3  float32[4, 4]
  self.layers[0].weight.b  primals_4  float32[4, 4]
  self.layers[0].bias      primals_5  float32[4], requires grad
results: 1
  result  value  TwoTensor float32[2, 4], differentiable
saved for the backward: 4, 0 B beyond the inputs
  args[0].a        input  float32[2, 4]  -  partition
  args[0].b        input  float32[2, 4]  -  partition
  test_text.py:{line}  relu   float32[2, 4]  -  partition
  test_text.py:{line}  relu   float32[2, 4]  -  partition
backward: from result to self.layers[0].weight, self.layers[0].bias"""
    assert report_of(Layers(1), two(2, 4)) == expected


def test_long_tables_are_cut_with_a_count() -> None:
    text = report_of(lambda *x: [t + k for k, t in enumerate(x)], *[torch.rand(k + 1) for k in range(50)])
    assert text.count("  ... and 10 more") == 2 and "result[49]" not in text


def test_changed_inputs_and_kinds_of_results() -> None:
    def f(x: torch.Tensor, w: torch.Tensor, z: torch.Tensor) -> Any:
        y = x * w
        z.mul_(2)
        x.a.add_(1)
        return {"y": y, "v": y.view(-1), "x": x, "row": x[0], "n": 3, "size": x.shape[0], "name": "text"}

    args = two(2, 3), two(2, 3).requires_grad_(), torch.rand(3, requires_grad=True) * 1
    rows = [" ".join(row.split()) for row in report_of(f, *args, dynamic=True).splitlines()]
    for expected in (
        "args[2] data, autograd history",
        "args[0] data",
        "result['x'] input args[0]",
        "result['size'] size number 0",
    ):
        assert expected in rows
    assert any(row.startswith("result['v'] view of result['y'] TwoTensor float32[") for row in rows)
    assert any(row.startswith("result['row'] view of args[0]") for row in rows)
    assert any(row.endswith(" args[0].a.shape[0]") for row in rows)


def test_shared_leaf_is_one_graph_input() -> None:
    a = torch.rand(3)
    plan = st.compile(lambda x, y: x + y).specialize(TwoTensor(a, a), a).plan
    assert names.input_names(plan) == {"primals_1": "args[0].a and args[0].b and args[1]"}


CLOSED_OVER = torch.rand(3)
SUBJECTS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "plain": (lambda x, y: x * y, (two(3), torch.rand(3)), {}),
    "dynamic": (lambda x: x.sin() * x.shape[0], (TwoTensor(two(3, 2), two(3, 2)),), {"dynamic": True}),
    "dynamic, closed over": (lambda x: x[:3] * CLOSED_OVER, (two(4),), {"dynamic": True}),
}


@pytest.mark.parametrize("name", SUBJECTS)
def test_names_are_those_of_the_graph(name: str) -> None:
    function, args, options = SUBJECTS[name]
    found = st.Tracer(**options)(function, *args)
    inputs = [str(n.target) for n in found.forward.graph.nodes if n.op == "placeholder"]
    assert inputs == list(names.input_names(found.plan))
    assert len(names.output_names(found.plan)) == len(found.forward.graph.output_node().args[0])


def test_explain() -> None:
    f = st.compile(lambda x, k: (x * k).sum())
    assert f.explain() == "0 specializations\n\nserved by our trace"
    f(two(3), 2)
    f(two(3).requires_grad_(), 2)
    torch.func.vmap(f, in_dims=(0, None))(torch.rand(2, 3), 2)
    expected = f"""\
2 specializations

[0]
  made for:  first call
  seconds:   {names.seconds_text(f.specializations[0].seconds)}
  inputs:    1, dense leaves: 2
  grad mode: on
  backward:  none

[1]
  made for:  {f.specializations[1].reason}
  guard:     [0] args[0].requires_grad == 0
  seconds:   {names.seconds_text(f.specializations[1].seconds)}
  inputs:    1, dense leaves: 2
  grad mode: on
  backward:  1 saved, 0 B

calls that ran eagerly
  1 call: a functorch transform (vmap, grad, jvp) is active around the call

served by our trace"""
    assert f.explain() == expected.replace("1 saved", f"{len(f.specializations[1].saved)} saved")
