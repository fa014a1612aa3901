"""Texts, dicts and Counters from outside that a region adds to, or updates."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st

Tensor = torch.Tensor

TALLY: collections.Counter[str] = collections.Counter()
TABLE: dict[str, Any] = {}
TEXT = types.SimpleNamespace(log="x")


def _updates(x: Tensor) -> Tensor:
    TABLE.update(steps=3, rows=x.shape[0])
    TALLY.update({"rows": x.shape[0]})
    TEXT.log += str(x.shape[0])
    return x * 2


@pytest.mark.parametrize("start", [{}, {"steps": 0, "rows": 0}])
def test_update_sets_in_a_dict_and_adds_in_a_counter(start: dict[str, Any]) -> None:
    """And a text that grows is read: it is another one afterwards."""

    def run(function: Callable[[Tensor], Tensor]) -> list[Any]:
        TABLE.clear()
        TABLE.update(start)
        TALLY.clear()
        TEXT.log = "x"
        rows = []
        for n in (4, 4, 5, 4):
            function(torch.ones(n))
            rows.append((dict(TABLE), dict(TALLY), TEXT.log))
        return rows

    assert run(st.compile(_updates)) == run(_updates)


def test_a_text_in_a_dict_that_grows() -> None:
    def make() -> tuple[Callable[[Tensor], Tensor], dict[str, Any]]:
        table: dict[str, Any] = {"log": "x", "n": 0}

        def region(x: Tensor) -> Tensor:
            table["log"] += "a"
            table["n"] += 1
            return x * 2

        return region, table

    (eager, expected), (region, found) = make(), make()
    compiled = st.compile(region)
    for _ in range(3):
        eager(torch.ones(2))
        compiled(torch.ones(2))
    assert found == expected
