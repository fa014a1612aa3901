"""What regions tell while they work: logs, structured traces, progress, warnings at the user's line, messages, pages."""

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
from torch import nn

import subclass_trace as st
from subclass_trace import stages
from subclass_trace.report import events
from subclass_trace.torch_api import text_of
from subclass_trace.zoo import TwoTensor


def two(*size: int) -> TwoTensor:
    return TwoTensor(torch.rand(size), torch.rand(size))


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
    assert re.search(r"captured double \(.*test_telling.py:\d+\) \[0\] in 0\.\d+ s: trace 0\.\d+, backward trace", text)
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
