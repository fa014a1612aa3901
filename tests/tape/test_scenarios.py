"""Every scenario: gradients bitwise, and hook logs, as the eager engine gives them; captured once per kind of backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from scenarios import NOT_CAPTURED, NOT_TRACED, SCENARIOS, Log, close

from subclass_trace.subclass.flatten import leaves_of
from subclass_trace.tape import compiled_autograd
from subclass_trace.tape.segments import Segment

SIZES = [3, 3, 3, 4, 4, 4, 3, 4]


def run(make: Callable[[Log], Any], sizes: list[int] = SIZES) -> tuple[list[list[Any]], Log]:
    """What a scenario gives in each step, and its log; always from the same start."""
    torch.manual_seed(0)
    log: Log = []
    step = make(log)
    rows = []
    for n in sizes:
        rows.append([None if t is None else t.detach().clone() for t in step(n)])
        log.append("end of step")
    return rows, log


def same(got: Any, expected: Any, exact: bool = True) -> None:
    assert type(got) is type(expected)
    if got is None:
        return
    for a, b in zip(leaves_of(got), leaves_of(expected), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype and a.stride() == b.stride()
        torch.testing.assert_close(a, b, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6)


@pytest.mark.parametrize("name", SCENARIOS)
def test_as_a_tape(name: str) -> None:
    expected, expected_log = run(SCENARIOS[name])
    with compiled_autograd():
        got, log = run(SCENARIOS[name])
    assert log == expected_log
    for a, b in zip(got, expected, strict=True):
        for x, y in zip(a, b, strict=True):
            same(x, y)
    assert bool(compiled_autograd.stats.captures) == (name not in NOT_CAPTURED)
    first = compiled_autograd.stats.captures
    with compiled_autograd():
        again, log = run(SCENARIOS[name])
    assert log == expected_log and compiled_autograd.stats.captures == first, "captured again"


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.sweep(every=6)
def test_in_segments(name: str) -> None:
    sizes = [3, 3, 4, 5]
    expected, expected_log = run(SCENARIOS[name], sizes)
    with compiled_autograd(backend="eager"):
        got, log = run(SCENARIOS[name], sizes)
    assert len(log) == len(expected_log) and all(map(close, log, expected_log)), (log, expected_log)
    for a, b in zip(got, expected, strict=True):
        for x, y in zip(a, b, strict=True):
            same(x, y, exact=False)

    segments = [n.target for t in compiled_autograd.tapes for g in t.lowered.values() for n in g.graph.nodes]
    refused = [s.refused for s in segments if isinstance(s, Segment) and s.refused is not None]
    assert not refused or name in NOT_TRACED, refused
