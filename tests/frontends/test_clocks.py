"""The time that a region reads would be that of its trace in each call: it may be shown, and nothing else."""

from __future__ import annotations

import datetime
import logging
import os
import random
import secrets
import time
import uuid
from collections.abc import Callable
from time import perf_counter
from typing import Any

import pytest
import torch

import subclass_trace as st

Tensor = torch.Tensor
LOG, TIMES = logging.getLogger("region"), [0.5]


class Timed(torch.nn.Module):
    def __init__(self, store: Callable[[Any, float], Any]) -> None:
        super().__init__()
        self.store, self.last_ms, self.total, self.times = store, 0.0, 0.0, [1.0]

    def forward(self, x: Tensor) -> Tensor:
        start = time.perf_counter()
        y = x * 2
        self.store(self, (time.perf_counter() - start) * 1000)
        return y


def last(m: Any, ms: float) -> None:
    m.last_ms = round(float(ms), 3)


def total(m: Any, ms: float) -> None:
    m.total += ms


def listed(m: Any, ms: float) -> None:
    m.times.append(ms)


def logged(m: Any, ms: float) -> None:
    LOG.info("%.3f ms", ms)
    print(f"{ms:.3f}", ms, int(ms))


def in_a_global(x: Tensor) -> Tensor:
    TIMES[0] = perf_counter()
    return x


def limited(x: Tensor) -> Tensor:
    deadline = time.monotonic() + 5
    return x if time.monotonic() < deadline else -x


REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "returned": (lambda x: (x, time.time()), "returns the time"),
    "a name": (lambda x: {"x": x, "seconds": perf_counter() / 2}, "returns the time"),
    "an integer": (lambda x: (x, int(time.time_ns() // 10)), "returns the time"),
    "a date": (lambda x: (x, datetime.datetime.now()), "returns the time"),
    "a date of UTC": (lambda x: (x, datetime.datetime.now(datetime.timezone.utc)), "returns the time"),
    "computed with": (lambda x: x * (time.time() % 1), "computes with the time"),
    "made into a tensor": (lambda x: torch.tensor([time.time()]), "computes with the time"),
    "compared": (limited, "compares the time"),
    "an attribute": (Timed(last), "stores the time"),
    "a sum": (Timed(total), "stores the time"),
    "a list": (Timed(listed), "stores the time"),
    "an item of a global": (in_a_global, "stores the time"),
    "uuid4": (lambda x: (x, uuid.uuid4().hex), r"os\.urandom"),
    "uuid1": (lambda x: (x, uuid.uuid1().hex), r"uuid\.uuid1"),
    "urandom": (lambda x: x * os.urandom(1)[0], r"os\.urandom"),
    "secrets": (lambda x: x * secrets.randbelow(5), r"os\.urandom"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    function, text = REFUSED[name]
    before = dict(vars(function)) if isinstance(function, Timed) else {}
    with pytest.raises(st.UnsupportedError, match=text) as refusal:
        st.compile(function)(torch.ones(2))
    assert refusal.value.path is not None and refusal.value.fix is not None
    assert "test_clocks.py" in f"{refusal.value.path} {refusal.value.got}" or "date" in name
    assert (vars(function) if before else {}) == before and TIMES == [0.5]


def test_a_log_is_fine(capsys: Any) -> None:
    region = st.compile(Timed(logged))
    assert region(torch.ones(2)).tolist() == [2.0, 2.0] and capsys.readouterr().out.count("\n") == 1
    assert region(torch.ones(2)).tolist() == [2.0, 2.0] and len(region.specializations) == 1


def test_everything_is_put_back() -> None:
    before = time.time, perf_counter, os.urandom, random._urandom, uuid.uuid1  # type: ignore[attr-defined]
    with pytest.raises(ZeroDivisionError):
        st.compile(lambda x: x * (perf_counter() // 0))(torch.ones(2))
    assert before == (time.time, perf_counter, os.urandom, random._urandom, uuid.uuid1)  # type: ignore[attr-defined]


def test_dates_that_are_not_the_time_are_constants() -> None:
    then = datetime.datetime(2020, 1, 1)
    assert st.compile(lambda x: (x, datetime.datetime(2020, 1, 1)))(torch.ones(2))[1] == then
