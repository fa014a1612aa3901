"""What regions tell: reports, logs, structured traces, progress, warnings at the user's line, messages, pages."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import os
import pathlib
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import subclass_trace as st
from subclass_trace import stages
from subclass_trace.report import events, names
from subclass_trace.torch_api.texts import text_of
from subclass_trace.zoo import TwoTensor


# ------------------------------------------ the whole text of small reports, and the names of what graphs take and give
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
    assert [*map(str, plan.inputs.described)] == ["args[0].a and args[0].b and args[1]"]


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
    inputs = [n.meta["descriptor"] for n in found.forward.graph.nodes if n.op == "placeholder"]
    assert inputs == [*found.plan.inputs.described]
    assert len(found.results) == len(found.forward.graph.output_node().args[0])


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


# ------------------------------------------------------------------------------------------------------ while they work
def handed(function: Any, **options: Any) -> Any:
    return st.compile(function, frontend="auto", **options)


def double(x: Any, k: int = 2) -> Any:
    return (x * k).sin()


def test_logs(caplog: pytest.LogCaptureFixture) -> None:
    region = st.compile(double)
    with caplog.at_level(logging.DEBUG, "subclass_trace"):
        region(two(3).requires_grad_())
        region(two(3).requires_grad_(), k=5)
        torch.func.vmap(region)(torch.rand(2, 3))
    text = caplog.text
    assert re.search(r"captured double \(.*test_text.py:\d+\) \[0\] in 0\.\d+ s: trace 0\.\d+, backward trace", text)
    assert "[0] len(args) == 1 and [*kwargs] == []  # arguments:" in text and "a functorch transform" in text
    assert "aot_backward_graph of double [1]" in text and "def entry(args, kwargs):" in text


def test_nothing_is_formatted_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("trace_of", "seconds_text", "misses_text", "guards_of", "function_text"):
        monkeypatch.setattr(events, name, lambda *_: pytest.fail("formatted"))
    st.compile(double)(two(3))


PROGRAM = """
import torch, subclass_trace as st
from subclass_trace.zoo import TwoTensor
f = st.compile(lambda x: (x * 2).sin())
for n in (3, 4):
    f(TwoTensor(torch.rand(n), torch.rand(n)).requires_grad_())
"""


@pytest.mark.long
def test_torchs_own_switches(tmp_path: pathlib.Path) -> None:
    """`TORCH_LOGS` and `TORCH_TRACE` in a process that has not imported us."""
    env = {**os.environ, "TORCH_LOGS": "+subclass_trace", "TORCH_TRACE": str(tmp_path)}
    told = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True).stderr
    assert told.count("captured <lambda>") == 2 and "args[0].shape[0] == 3" in told and "def backward(" in told
    (file,) = tmp_path.iterdir()
    rows = [
        json.loads(row[row.index("{") :]) for row in file.read_text().splitlines() if re.match(r"V\d{4} .*\] {", row)
    ]
    ids: dict[str, set[Any]] = {}
    for row in rows:
        ids.setdefault(row.get("artifact", {}).get("name") or next(iter(row)), set()).add(row.get("frame_compile_id"))
    for name in ("aot_joint_graph", "aot_forward_graph", "aot_backward_graph", "entry", "guards", "dynamo_start"):
        assert ids[name] == {0, 1}, (name, ids)


def test_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := io.StringIO())
    terminal.isatty = lambda: True
    st.compile(double)(two(3))
    assert terminal.getvalue() == ""
    monkeypatch.setattr(stages, "PATIENCE", 0.01)
    with stages.working("capture of f"), stages.stage("trace"):
        time.sleep(0.3)
    assert "capture of f" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[1A\x1b[2K")  # nothing is left


def test_pages(tmp_path: pathlib.Path) -> None:
    region = st.compile(nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2)))
    for size in (2, 3):
        region(two(size, 4))
    page = region.to_html(tmp_path / "page.html")
    assert page == (tmp_path / "page.html").read_text(encoding="utf-8")
    for part in ("color-scheme: light dark", "<summary>backward graph</summary>", "args[0].shape[0] == 2", "self[0]"):
        assert part in page
    page = st.compile(lambda x: [x + 1][0]).specialize(two(3)).to_html()
    assert "<lambda>" not in page.replace("&lt;lambda&gt;", "") and "http" not in page


# ---------------------------------------------------------------------------------------------- warnings and messages
def branches(x: Any) -> Any:
    return x * 2 if x.sum() > 0 else x


def other_memory(x: Any) -> Any:
    y = x * 1
    y.data = x * 2
    return y


class Branching(nn.Module):
    def forward(self, x: Any) -> Any:
        return branches(x)

    static = staticmethod(st.compile()(other_memory))


CALLS: dict[str, Callable[[Any], Any]] = {
    "function": lambda x: handed(branches)(x),
    "module": lambda x: handed(Branching())(x),
    "module in a module": lambda x: nn.Sequential(handed(Branching()))(x),
    "under no_grad": lambda x: torch.no_grad()(handed(branches))(x),
    "eagerly": lambda x: st.compile(other_memory)(x),
    "decorated": lambda x: Branching.static(x),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_warning_names_the_line_of_the_call(name: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        CALLS[name](torch.ones(3))
    line = CALLS[name].__code__.co_firstlineno
    ours = [
        w
        for w in caught
        if "served" in str(w.message) or "serves" in str(w.message) or "runs eagerly" in str(w.message)
    ]
    assert [(w.filename, w.lineno) for w in ours] == [(__file__, line)]


@dataclasses.dataclass
class Holder:
    value: Any


SECRET = torch.full((2, 3), 7.25)


@pytest.mark.parametrize(
    "call",
    [
        lambda: st.compile(SECRET),
        lambda: st.compile(double, partitioner=SECRET),
        lambda: st.compile(double, activation_memory_budget=SECRET),
        lambda: st.compile(double, backend=[SECRET]),
        lambda: st.compile(double, mode=Holder(SECRET)),
        lambda: st.compile(double, decompositions=[SECRET]),
        lambda: st.compile(double, backend=lambda graph, inputs: SECRET)(torch.ones(3)),
        lambda: st.compile(lambda x: SECRET.numpy() if x.sum() > SECRET.sum() else x, frontend="trace")(SECRET),
    ],
)
def test_messages_show_no_contents(call: Callable[[], Any]) -> None:
    with pytest.raises(st.SubclassTraceError) as caught:
        call()
    assert "7.25" not in str(caught.value) and "7.25" not in str(caught.value.got)
    assert text_of(Holder({"k": [SECRET]})) == "Holder(value={'k': [Tensor float32[2, 3]]})"


def test_what_neither_front_end_takes() -> None:
    region = handed(branches, fullgraph=True)
    for _ in range(2):
        with warnings.catch_warnings(), pytest.raises(st.DataDependentError, match="branches on the value") as caught:
            warnings.simplefilter("ignore")
            region(torch.ones(3))
        assert "Data-dependent branching" in str(caught.value.__cause__)
