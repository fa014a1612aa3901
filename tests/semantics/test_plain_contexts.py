"""Containers of numbers and strings in contexts: compared as a whole, and no other than item by item."""

from __future__ import annotations

import array
from typing import Any

import pytest
import torch

from subclass_trace.runtime.emit import plain_context, same_code
from subclass_trace.runtime.source import Source
from subclass_trace.subclass.context import same_context

_VALUES: list[Any] = [
    [1],
    [1.0],
    [True],
    [0.0],
    [-0.0],
    [float("nan")],
    [complex(0.0, -0.0)],
    [complex(0.0, 0.0)],
    ["1"],
    ["a" * 3],
    [None],
    (1,),
    (1.0,),
    {"a": 1, "b": 2},
    {"b": 2, "a": 1},
    {"a": 1.0, "b": 2},
    {1: 1},
    [[1], [1]],
    [(1,), (1,)],
    [1, [2, {"k": (3, None)}]],
    [2**70],
    [-(2**70)],
    [1] * 1000,
    ["\ud800"],
    [b"ab"],
    [bytearray(b"ab")],
    [array.array("b", b"ab")],
    [torch.Size([1])],
    [torch.float32],
    {"d": torch.float32, "b": [1, 64], "f": True, "n": None},
    {"d": torch.float32, "b": [1, 64], "f": 1, "n": None},
    {"d": torch.float32, "b": [1, 64.0], "f": True, "n": None},
    {"b": [1, 64], "d": torch.float32, "f": True, "n": None},
    {"d": torch.float32, "b": (1, 64), "f": True, "n": ()},
    (torch.device("cpu"), 2),
    (torch.float32, -0.0, [torch.strided, {1: "a"}]),
    (torch.float32, 0.0, [torch.strided, {1: "a"}]),
    (torch.float32, -0.0, [torch.strided, {"1": "a"}]),
    [],
    {},
    {"a": {}},
]


def _again(value: Any) -> Any:
    """An equal value of other objects."""
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(map(_again, value))
    if isinstance(value, dict):
        return {_again(k): _again(v) for k, v in value.items()}
    if isinstance(value, torch.device):
        return torch.device(str(value))
    return "".join([*value]) if type(value) is str else type(value)(value) if type(value) in (int, float) else value


@pytest.mark.parametrize("a", range(len(_VALUES)))
def test_bytes_tell_what_the_walk_tells(a: int) -> None:
    known = plain_context(_VALUES[a])
    for b, value in enumerate(_VALUES if known is not None else ()):
        now = _again(value)
        written = plain_context(now)
        assert (written == known or same_context(_VALUES[a], now)) is same_context(_VALUES[a], now) is (a == b)


@pytest.mark.parametrize("a", range(len(_VALUES)))
def test_generated_code_tells_what_the_walk_tells(a: int) -> None:
    source = Source("False")
    source.line(f"def same(now): return {same_code(source, 'now', _VALUES[a])}")
    same = source.build("same", "test")
    for b, value in enumerate(_VALUES):
        try:
            found = same(_again(value))
        except (TypeError, KeyError, IndexError, ValueError):  # where it is called, these are a miss
            found = False
        assert found is (a == b)


def test_a_list_that_contains_itself_is_no_plain_one() -> None:
    value: list[Any] = [1]
    value.append(value)
    assert plain_context(value) is None
