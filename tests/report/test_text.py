"""Reports: the whole text of small ones, and each kind of row."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import subclass_trace as st
from subclass_trace.plan import Plan
from subclass_trace.report import tables
from subclass_trace.report.text import describe, render
from subclass_trace.subclass.spec import OpaqueSpec, WrapperSpec
from subclass_trace.zoo import TwoTensor


def two(*size: int) -> TwoTensor:
    return TwoTensor(torch.rand(size), torch.rand(size))


def plan_of(function: Any, *args: Any, **options: Any) -> Plan:
    return st.compile(function, **options).specialize(*args).plan


def column(table: tables.Table, name: str) -> list[str]:
    return [row[table.columns.index(name)] for row in table.rows]


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


# ---------------------------------------------------------------------------------------------- whole reports
def test_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(os.path.dirname(__file__))  # lines of files are shown relative to it
    found = st.compile(Layers(2)).specialize(two(2, 4)).report()
    line = Layers.forward.__code__.co_firstlineno + 2
    assert (
        found
        == f"""\
5 inputs, 8 dense leaves
  input                  class      shape   dtype    grad  graph input
  args[0]                TwoTensor  [2, 4]  float32
    .a                   Tensor     [2, 4]  float32        primals_1
    .b                   Tensor     [2, 4]  float32        primals_2
  self.layers[0].weight  TwoTensor  [4, 4]  float32  yes
    .a                   Tensor     [4, 4]  float32        primals_3
    .b                   Tensor     [4, 4]  float32        primals_4
  self.layers[0].bias    Tensor     [4]     float32  yes   primals_5
  self.layers[1].weight  TwoTensor  [4, 4]  float32  yes
    .a                   Tensor     [4, 4]  float32        primals_6
    .b                   Tensor     [4, 4]  float32        primals_7
  self.layers[1].bias    Tensor     [4]     float32  yes   primals_8

1 result
  result  kind   class      shape   dtype    grad  made of
  result  value  TwoTensor  [2, 4]  float32  yes   TwoTensor(a=out[0], b=out[1])

saved for the backward: 8 values, 64 B beyond the inputs
  origin                   operation  shape   dtype    bytes  reason
  args[0].a                input      [2, 4]  float32      -  partition
  args[0].b                input      [2, 4]  float32      -  partition
  self.layers[1].weight.a  input      [4, 4]  float32      -  partition
  self.layers[1].weight.b  input      [4, 4]  float32      -  partition
  test_text.py:{line}          relu       [2, 4]  float32   32 B  partition
  test_text.py:{line}          relu       [2, 4]  float32   32 B  partition
  test_text.py:{line}          relu       [2, 4]  float32      -  partition
  test_text.py:{line}          relu       [2, 4]  float32      -  partition

backward: from result to self.layers[0].weight, self.layers[0].bias, self.layers[1].weight, self.layers[1].bias"""
    )


def test_long_tables_are_cut_with_a_count() -> None:
    plan = plan_of(lambda *x: [t + k for k, t in enumerate(x)], *[torch.rand(k + 1) for k in range(50)])
    assert describe(plan).count("  ... and 10 more rows (full=True shows all)") == 2
    assert "result[49]" in describe(plan, full=True) and "result[49]" not in describe(plan)


# ---------------------------------------------------------------------------------------------- inputs
def test_nested_wrappers_opaque_attributes_and_contexts() -> None:
    plan = plan_of(lambda x: x + 1, TwoTensor(two(3), two(3)))
    table = tables.input_table(plan)
    assert column(table, "input") == ["args[0]", "  .a", "    .a", "    .b", "  .b", "    .a", "    .b"]
    assert column(table, "graph input") == ["", "", "primals_1", "primals_2", "", "primals_3", "primals_4"]

    spec = plan.inputs.rows[0].spec
    assert isinstance(spec, WrapperSpec)
    spec = replace(
        spec, names=(*spec.names, "mesh"), inners=(*spec.inners, OpaqueSpec("a mesh")), context={"scale": torch.ones(2)}
    )
    block = tables.input_table(
        replace(plan, inputs=replace(plan.inputs, rows=(replace(plan.inputs.rows[0], spec=spec),)))
    )
    assert ("  .mesh", "opaque", "'a mesh'", "", "", "") in block.rows
    assert ("  context", "", "{'scale': tensor([1., 1.])}", "", "", "") in block.rows


def test_shared_leaf_is_one_graph_input() -> None:
    a = torch.rand(3)
    plan = plan_of(lambda x, y: x + y, TwoTensor(a, a), a)
    assert column(tables.input_table(plan), "graph input") == ["", "primals_1", "primals_1", "primals_1"]
    assert tables.input_names(plan) == {"primals_1": "args[0].a and args[0].b and args[1]"}


CLOSED_OVER = torch.rand(3)
SUBJECTS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "plain": (lambda x, y: x * y, (two(3), torch.rand(3)), {}),
    "closed over": (lambda x: x * CLOSED_OVER, (two(3),), {}),
    "dynamic": (lambda x: x.sin() * x.shape[0], (TwoTensor(two(3, 2), two(3, 2)),), {"dynamic": True}),
    "dynamic, closed over": (lambda x: x[:3] * CLOSED_OVER, (two(4),), {"dynamic": True}),
    "overlap": (lambda x: x.b.add_(1), (TwoTensor(*torch.zeros(2, 4).view(8)[:6].split(3)),), {}),
}


@pytest.mark.parametrize("name", SUBJECTS)
def test_names_are_those_of_the_graph(name: str) -> None:
    function, args, options = SUBJECTS[name]
    found = st.Tracer(**options)(function, *args)
    inputs = [str(n.target) for n in found.forward.graph.nodes if n.op == "placeholder"]
    assert tables.primal_names(found.plan) == inputs == list(tables.input_names(found.plan))
    assert len(tables.output_names(found.plan)) == len(found.forward.graph.output_node().args[0])


def test_dynamic_sizes() -> None:
    plan = plan_of(lambda x: x + x.shape[0], two(5, 3), dynamic=True)
    text = describe(plan)
    symbol = str(plan.inputs.symbols[0].symbol)
    assert f"{symbol}   args[0].a.size(0)" in text or f"{symbol}  args[0].a.size(0)" in text
    assert f"[{symbol}, " in text


# ---------------------------------------------------------------------------------------------- mutations and results
def test_mutations() -> None:
    def f(x: torch.Tensor, z: torch.Tensor) -> None:
        x.a.add_(1)
        z.mul_(2)

    table = tables.mutation_table(plan_of(f, two(2), torch.rand(3, requires_grad=True) * 1))
    assert table.title == "2 inputs changed"
    assert table.rows == (
        ("args[0]", "data of .a", "TwoTensor(a=out[0], b=out[1])"),
        ("args[1]", "data; new autograd history", "out[2]"),
    )


def test_kinds_of_results() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = x * w
        return {"y": y, "v": y.view(-1), "x": x, "row": x[0], "n": 3, "size": x.shape[0], "name": "text"}

    x, w = two(2, 3), two(2, 3).requires_grad_()
    table = tables.result_table(plan_of(f, x, w, dynamic=True))
    by_path = {row[0]: row[1:] for row in table.rows}
    assert by_path["result['y']"][0] == "value" and by_path["result['y']"][-1] == "TwoTensor(a=out[0], b=out[1])"
    assert by_path["result['v']"][0] == "view" and by_path["result['v']"][-1] == "view operations on result['y']"
    assert by_path["result['x']"][0] == "input itself" and by_path["result['x']"][-1] == "args[0]"
    assert by_path["result['row']"][0] == "view" and by_path["result['row']"][-1] == "view operations on args[0]"
    assert by_path["result['size']"] == ("size", "int", "", "", "", "out[2]")
    assert "result['n']" not in by_path and "result['name']" not in by_path  # the same in each call


def test_recipe_of_nested_wrappers() -> None:
    plan = plan_of(lambda x: x + 1, TwoTensor(two(3), two(3)))
    expected = "TwoTensor(a=TwoTensor(a=out[0], b=out[1]), b=TwoTensor(a=out[2], b=out[3]))"
    assert column(tables.result_table(plan), "made of") == [expected]


# ---------------------------------------------------------------------------------------------- all specializations
def test_explain() -> None:
    f = st.compile(lambda x, k: (x * k).sum())
    f(two(3), 2)
    f(two(4), 2)
    f(two(3).requires_grad_(), 3)
    torch.func.vmap(f, in_dims=(0, None))(torch.rand(2, 3), 2)
    text = f.explain()
    assert (
        text
        == f"""\
3 specializations

[0]
  made for:  first call
  inputs:    1 tensor (1 wrapper), 2 dense leaves
  guards:    grad mode on; default dtype float32; 1 argument by value (2)
  backward:  none

[1]
  made for:  {f.specializations[1].reason}
  inputs:    1 tensor (1 wrapper), 2 dense leaves
  guards:    grad mode on; default dtype float32; 1 argument by value (2)
{_dynamic_rows(f.specializations[1].plan)}\
  backward:  none

[2]
  made for:  {f.specializations[2].reason}
  inputs:    1 tensor (1 wrapper), 2 dense leaves
  guards:    grad mode on; default dtype float32
{_dynamic_rows(f.specializations[2].plan)}\
  backward:  2 values saved, 0 B beyond the inputs; 1 backward compiled

calls that ran eagerly
  1 call: a functorch transform (vmap, grad, jvp) is active around the call"""
    )


def _dynamic_rows(plan: Plan) -> str:
    sizes = ", ".join(f"{a} = {b}" for a, b in tables.symbol_table(plan).rows)
    conditions = "; ".join(map(str, plan.inputs.conditions))
    return f"  sizes:     {sizes} (0 and 1 get specializations of their own)\n  where:     {conditions}\n"


def test_explain_before_the_first_call() -> None:
    assert st.compile(lambda x: x).explain() == "0 specializations"


# ---------------------------------------------------------------------------------------------- words
class Rude:
    def __repr__(self) -> str:
        raise RuntimeError


def test_constants_never_raise_and_are_short() -> None:
    assert tables.constant_text(Rude()) == "<Rude>"
    assert tables.constant_text(["a\nb"] * 100).endswith("...") and len(tables.constant_text("x" * 100)) == 60
    assert tables.constant_text({"a": 1}) == "{'a': 1}"


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB")])
def test_bytes(count: int, text: str) -> None:
    assert tables.bytes_text(count) == text


def test_long_cells_keep_the_telling_end() -> None:
    text = render(tables.Table("t", ("a", "b"), (("/long" * 30 + "/model.py:7", "value" * 30),)))
    assert "/model.py:7  value" in text and "...g/" in text.replace("/lon", "...") and text.endswith("...")
