"""What comes from outside while a region is traced: time limits, profilers, debuggers, the collector."""

from __future__ import annotations

import cProfile
import gc
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.frontends.hand_over import HandOverWarning

Wrap = Callable[[Any], Any]


@pytest.mark.skipif(not hasattr(signal, "SIGUSR2"), reason="POSIX")
@pytest.mark.parametrize("in_method", [False, True])
def test_an_error_of_a_signals_handler_reaches_the_caller(in_method: bool) -> None:
    class Limit:
        def handler(self, *_: Any) -> None:
            raise TimeoutError("too slow")

    def handler(*_: Any) -> None:
        raise TimeoutError("too slow")

    def sends(x: torch.Tensor) -> torch.Tensor:
        if armed:
            armed.pop()
            signal.raise_signal(signal.SIGUSR2)
        return torch.empty_like(x)

    # its fake kernel is where the signal arrives: in the midst of the trace
    library = torch.library.Library("interrupted", "FRAGMENT")
    name = f"twice{in_method}"
    library.define(f"{name}(Tensor x) -> Tensor")
    library.impl(name, lambda x: x * 2, "CPU")
    torch.library.register_fake(f"interrupted::{name}", sends, lib=library)
    before = signal.signal(signal.SIGUSR2, Limit().handler if in_method else handler)
    try:
        armed = [1]
        twice = getattr(torch.ops.interrupted, name)
        region = st.compile(lambda x: twice(x), frontend="auto")
        with pytest.raises(TimeoutError, match="too slow"):
            region(torch.ones(2))
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert "torch.compile" not in region.explain()
    assert torch.equal(region(torch.ones(2)), torch.full((2,), 2.0))


def test_a_step_is_traced_under_a_profiler_of_c(recwarn: Any) -> None:
    layer = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = layer(x).square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    region, profile = st.compile(step, frontend="trace"), cProfile.Profile()
    profile.enable()
    region(torch.ones(2, 3))
    assert sys.getprofile() is profile
    profile.disable()
    assert len(region.specializations) == 1 and not recwarn


def test_a_breakpoint_stops_once_in_each_call_and_in_the_users_frame(monkeypatch: Any) -> None:
    def stops(*_: Any) -> None:
        stopped.append(sys._getframe(1).f_code.co_name)

    def stopping(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        breakpoint()
        return y + 1

    stopped: list[str] = []
    monkeypatch.setattr(sys, "breakpointhook", stops)
    with pytest.warns(HandOverWarning):
        region = st.compile(stopping, frontend="auto")
        outs = [region(torch.ones(2)) for _ in range(3)]
    assert stopped == ["stopping"] * 3 and torch.equal(outs[-1], torch.full((2,), 3.0))


@pytest.mark.filterwarnings("ignore")
def test_the_world_is_read_and_written_in_each_call() -> None:
    def collecting(x: torch.Tensor) -> torch.Tensor:
        gc.collect()
        return x.sin()

    def limiting(x: torch.Tensor) -> torch.Tensor:
        sys.setrecursionlimit(sys.getrecursionlimit() + 1)
        return x.sin() * 2

    def naming(x: torch.Tensor) -> torch.Tensor:
        os.environ["SUBCLASS_TRACE_TEST"] = os.environ.get("SUBCLASS_TRACE_TEST", "") + "a"
        return x.sin() * 3

    before = sys.getrecursionlimit()
    try:
        for function in (collecting, limiting, naming):
            region = st.compile(function, frontend="auto")
            for _ in range(3):
                assert torch.equal(region(torch.ones(2)), function(torch.ones(2)))
        assert sys.getrecursionlimit() == before + 6 and os.environ["SUBCLASS_TRACE_TEST"] == "aaaaaa"
    finally:
        sys.setrecursionlimit(before)
        os.environ.pop("SUBCLASS_TRACE_TEST", None)


def test_what_a_trace_refuses_behind_a_hand_over_runs_eagerly() -> None:
    """Dynamo's graphs reach our back end, where nobody else is left to take them."""

    def refused(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if y.sum() > 0:  # breaks the graph
            y = y + 1
        y = y.clone()
        rows = y.as_strided((2, 2), (1, 1))  # overlapping memory that is written, in the graph that is left
        rows.add_(1)
        return y

    with pytest.warns(HandOverWarning):
        region = st.compile(refused, frontend="auto")
        for _ in range(3):
            assert torch.equal(region(torch.arange(6.0)), refused(torch.arange(6.0)))


def test_sparse_gradients_of_a_step_run_eagerly_with_a_short_reason() -> None:
    def step(bags: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = table(bags, torch.tensor([0, 2])).square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    table = torch.nn.EmbeddingBag(6, 3, sparse=True, mode="sum")
    optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)
    region = st.compile(step, frontend="auto")
    with pytest.warns(UserWarning, match="sparse") as warned:
        for _ in range(3):
            region(torch.tensor([1, 2, 3, 5]))
    assert all(str(w.message).count("\n") < 6 for w in warned)


def test_a_module_that_holds_a_region_can_be_scripted() -> None:
    class Holds(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner: Any = st.compile(torch.nn.Sequential(torch.nn.Linear(3, 2)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.inner(x)
            return out

    holds, x = Holds(), torch.ones(1, 3)
    assert torch.equal(torch.jit.script(holds)(x), holds(x))


def test_a_quotient_of_two_numbers_is_traced() -> None:
    def halves(x: torch.Tensor) -> torch.Tensor:
        return x * torch.div(x.shape[0], 2, rounding_mode="trunc")

    assert torch.equal(st.compile(halves, frontend="trace")(torch.ones(5)), halves(torch.ones(5)))
