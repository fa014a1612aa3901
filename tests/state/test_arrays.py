"""Arrays of Python state that the region writes, by any of the many ways: put back, refused, and handed over."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import subclass_trace as st


def _augmented(m: Any) -> None:
    m.v *= 2


def _slice(m: Any) -> None:
    part = m.v[1:]
    part += 1


WRITES: dict[str, Callable[[Any], Any]] = {
    "augmented": _augmented,
    "a view, augmented": _slice,
    "out=": lambda m: np.add(m.v, 1, out=m.v),
    "out by position": lambda m: np.add(m.v, 1, m.v),
    "out of a method": lambda m: m.v.cumsum(out=m.v),
    "copyto": lambda m: np.copyto(m.v, m.v * 2),
    "put": lambda m: np.put(m.v, [0], m.v[0] + 1),
    "place": lambda m: np.place(m.v, m.v > 1, m.v + 1),
    "at": lambda m: np.add.at(m.v, [0], 1),
    "item": lambda m: m.v.__setitem__(0, m.v[0] + 1),
    "sort": lambda m: m.v.sort(),
    "fill": lambda m: m.v.fill(m.v[0] + 1),
    "shuffle": lambda m: np.random.shuffle(m.v),
    "bytes": lambda m: m.b.__imul__(1) and m.b.__setitem__(0, m.b[0] + 1),
}


@pytest.mark.filterwarnings(
    "ignore::subclass_trace.HandOverWarning", "ignore:torch.compile fails to compile:UserWarning"
)
@pytest.mark.parametrize("name", WRITES)
def test_as_in_eager(name: str) -> None:
    def run(compile: Callable[[Any], Any]) -> list[Any]:
        m = SimpleNamespace(v=np.array([3.0, 1.0, 2.0]), b=bytearray(b"ab"))
        seen: list[Any] = []

        def region(x: Tensor) -> Tensor:
            WRITES[name](m)
            return x * float(m.v[0])

        call = compile(region)
        np.random.seed(0)
        for _ in range(3):
            seen += [call(torch.ones(1)).item(), m.v.tolist(), bytes(m.b)]
        return seen

    assert run(lambda f: st.compile(f, frontend="auto")) == run(lambda f: f)


def test_what_a_refused_trace_has_written_is_put_back() -> None:
    m = SimpleNamespace(v=np.array([3.0, 1.0, 2.0]))

    def region(x: Tensor) -> Tensor:
        m.v *= 2
        return x + 1

    with pytest.raises(st.SideEffectError, match=r"(?s)an array or a buffer.*where: +m\.v"):
        st.compile(region)(torch.ones(1))
    assert m.v.tolist() == [3.0, 1.0, 2.0]


def test_an_array_that_is_made_inside_is_written_freely() -> None:
    def region(x: Tensor) -> Tensor:
        v = np.arange(3.0)
        v *= 2
        return x * float(v[2])

    compiled = st.compile(region)
    assert compiled(torch.ones(1)).item() == 4.0 and len(compiled.specializations) == 1
