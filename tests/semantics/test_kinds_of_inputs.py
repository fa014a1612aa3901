"""One region, called with inputs of another kind in turn: inference tensors, and such with a conjugate or negative bit."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

# ---------------------------------------------------------------------------------------------- inference tensors
Tensor = torch.Tensor
W = torch.ones(2, 2, requires_grad=True)
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "write": lambda x: (x.add_(1), x * 2)[1],
    "shape": lambda x: x.t_(),
    "save": lambda x: x * W,
    "view": lambda x: x[0:1],
    "itself": lambda x: x,
    "detach": lambda x: x.detach(),
    "requires grad": lambda x: x.requires_grad_() * 1,
}
MAKE: dict[str, Callable[[], Any]] = {
    "dense": lambda: torch.ones(2, 2),
    "wrapper": lambda: TwoTensor(torch.ones(2, 2), torch.ones(2, 2)),
}


def _input(kind: str, inference: bool) -> Any:
    with torch.inference_mode(inference):
        return MAKE[kind]()


def _call(function: Callable[[Any], Any], x: Any) -> Any:
    """What a caller can see of a call."""
    W.grad = None
    try:
        y = function(x)
        if y.requires_grad:
            y.sum().backward()
        seen = None if x.is_inference() else x._version
        return (
            type(y),
            y.is_inference(),
            y.requires_grad,
            y._is_view(),
            x.requires_grad,
            seen,
            str(y.detach()),
            str(W.grad),
        )
    except RuntimeError as error:
        return str(error).splitlines()[0]


@pytest.mark.filterwarnings("ignore:a call of a region runs eagerly")
@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_then_the_other(name: str, kind: str) -> None:
    for mode in (False, True):
        for first in (False, True):
            region = st.compile(FUNCTIONS[name])
            for inference in (first, not first, first):
                x, y = _input(kind, inference), _input(kind, inference)
                with torch.inference_mode(mode):
                    assert _call(region, x) == _call(FUNCTIONS[name], y)


@pytest.mark.parametrize("function", [lambda x: x.mul_(2), lambda x: (x.a.add_(1), x)[1], lambda x: x.detach().add_(1)])
def test_a_normal_wrapper_around_inference_tensors(function: Callable[[Any], Any]) -> None:
    """Its class may write to them; other code may not, outside of inference mode."""
    for first in (False, True):
        region = st.compile(function)
        for inference in (first, not first, first):
            found = []
            for f in (function, region):
                with torch.inference_mode(inference):
                    a, b = torch.ones(2), torch.ones(2)
                x = TwoTensor(a, b)
                seen = _call(f, x)
                # Eager mode writes before it refuses; a region that fails leaves its inputs as they were.
                found.append(seen if isinstance(seen, str) else (seen, x.a.tolist(), x.a.is_inference(), x.b.tolist()))
            assert found[0] == found[1]


def test_normal_tensors_pay_nothing() -> None:
    region = st.compile(lambda x: (x.add_(1), x[0:1])[1])
    region(torch.ones(2))
    assert "is_inference" not in (region.specializations[0].source or "is_inference")


# ------------------------------------------------------------------------------------------ a conjugate or negative bit
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
def test_conjugates(f: Callable[[Tensor], Any], first: bool) -> None:
    compiled = st.compile(f)
    for conjugate in (first, not first, first):
        found = []
        for fn in (f, compiled):
            z = torch.complex(torch.ones(2, 2), torch.full((2, 2), 2.0))
            z = z.conj() if conjugate else z
            out = fn(z)
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


def test_arguments_of_one_memory_one_of_which_is_conjugated() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(2)
        return x * 1, y * 1

    seen = []
    for call in (lambda f: f, st.compile):
        region: Any = call(f)
        for make in (lambda x: x.view(-1), lambda x: x.conj(), lambda x: x.clone().conj()):
            x = torch.complex(torch.ones(2), torch.ones(2))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # one of them runs eagerly
                results = region(x, make(x))
            seen.append([t.tolist() for t in (*results, x)])
    assert seen[:3] == seen[3:]


@pytest.mark.parametrize("f", [lambda x, w: torch.complex(x, w), lambda x, w: torch.complex(x, w).conj()])
def test_tangents_that_are_still_to_be_conjugated(f: Callable[..., Tensor]) -> None:
    seen = []
    for call in (lambda f: f, st.compile, lambda f: st.compile(f, dynamic=True)):
        x, w = (torch.ones(3, requires_grad=True) for _ in range(2))
        region, rows = call(f), []
        for tangent in (torch.full((3,), 1 + 2j), torch.full((3,), 1 + 2j).conj(), torch.full((3,), 1 + 2j)):
            grads = torch.autograd.grad(region(x, w), (x, w), tangent)
            rows.append([g.tolist() for g in grads])
        seen.append(rows)
    assert all(row == seen[0] for row in seen)
