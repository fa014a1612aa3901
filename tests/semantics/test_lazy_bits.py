"""Inputs with a conjugate or negative bit, and without one, in one region: the bit is a part of what is guarded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
COMPLEX: dict[str, Callable[[Tensor], Any]] = {
    "real": lambda z: z.real,
    "imag, computed with": lambda z: z.imag + 1,
    "of the conjugate": lambda z: z.conj().imag,
    "row of a part": lambda z: z.t().real[0],
    "the bit": lambda z: (z.is_conj(), z.resolve_conj() is z, z * 2),
    "part written": lambda z: (z.real.mul_(2), z * 1)[1],
}


def _value(z: Any) -> Any:
    return [_value(x) for x in z] if isinstance(z, tuple) else z.tolist() if isinstance(z, Tensor) else z


@pytest.mark.parametrize("f", COMPLEX.values(), ids=COMPLEX)
@pytest.mark.parametrize("first", [True, False], ids=["conjugate first", "conjugate second"])
@pytest.mark.parametrize("wrap", [False, True], ids=["dense", "inner"])
def test_conjugates(f: Callable[[Tensor], Any], first: bool, wrap: bool) -> None:
    region = (lambda w: f(w.a)) if wrap else f
    compiled = st.compile(region)
    for conjugate in (first, not first, first):
        found = []
        for fn in (region, compiled):
            z = torch.complex(torch.ones(2, 2), torch.full((2, 2), 2.0))
            z = z.conj() if conjugate else z
            out = fn(TwoTensor(z, z.clone()) if wrap else z)
            found.append([_value(out), z.tolist(), z.is_conj()])
        assert found[0] == found[1]
    assert len(compiled.specializations) == 2


@pytest.mark.parametrize("first", [True, False], ids=["negative first", "negative second"])
def test_negatives(first: bool) -> None:
    def f(x: Tensor) -> Any:
        return x.is_neg(), x.resolve_neg() is x, x[0], x * 2

    compiled = st.compile(f)
    for negative in (first, not first, first):
        z = torch.complex(torch.ones(2, 2), torch.full((2, 2), 2.0))
        x = z.conj().imag if negative else z.imag
        assert x.is_neg() is negative
        assert _value(compiled(x)) == _value(f(x))
