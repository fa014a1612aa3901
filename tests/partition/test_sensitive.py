"""Activations in fewer bits: which values the backward must not get rounded, and that the error stays small."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

import subclass_trace as st

Tensor = torch.Tensor
FORMS = ("int8", "fp8")
#: relative error of a gradient, for numbers of one size and functions that are smooth on the scale of a step
BOUND = {"int8": 0.03, "fp8": 0.08}


def weights(seed: int = 0, n: int = 3, size: int = 32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, size, generator=generator) / size**0.5 for _ in range(n)]


def error(function: Callable[[Tensor], Tensor], form: str, seed: int = 1, size: int = 32) -> tuple[float, float]:
    """Relative error of the gradient for random tangents, and which share of the bytes is saved."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, size, generator=generator).requires_grad_()
    tangents = [torch.randn(function(x).shape, generator=generator)]
    regions = [st.compile(function, partitioner=st.MinCut(store=kind)) for kind in (None, form)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exact, stored = [torch.autograd.grad(region(x), x, tangents)[0] for region in regions]
    before, after = [sum(row.bytes for row in region.specializations[0].saved) for region in regions]
    difference, norm = float((exact - stored).double().norm()), float(exact.double().norm())
    return difference / norm if norm else float("inf") if difference else 0.0, after / max(before, 1)


A, B, C = weights()
#: what jumps where an argument is compared, and which share of the bytes it may take
JUMPS: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "relu": (lambda x: F.relu(F.relu(x @ A) @ B), 0.3),
    "leaky_relu": (lambda x: F.leaky_relu(F.leaky_relu(x @ A) @ B), 0.3),
    "prelu": (lambda x: F.prelu(x @ A, torch.full((1,), 0.2)), 0.3),
    "abs": (lambda x: (x @ A).abs() @ B, 0.3),
    "relu6": (lambda x: F.relu6(x @ A), 1),
    "hardswish": (lambda x: F.hardswish(3 * (x @ A)), 1),
    "threshold": (lambda x: F.threshold(x @ A, 0.3, 0.0), 1),
    "hardshrink": (lambda x: F.hardshrink(x @ A), 1),
    "maximum": (lambda x: torch.maximum(x @ A, x @ B), 1),
    "amax": (lambda x: (x @ A).amax(-1), 1),
    "infinity norm": (lambda x: (x @ A).norm(p=float("inf"), dim=-1), 1),
    "median": (lambda x: (x @ A).median(-1)[0], 1),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", JUMPS)
def test_what_is_compared_keeps_the_side_that_it_is_on(name: str, form: str) -> None:
    function, share = JUMPS[name]
    found, kept = error(function, form)
    assert found < (0.01 if form == "int8" else 0.03) and kept <= share


@pytest.mark.parametrize("form", FORMS)
def test_signs_and_zeros_survive_rounding(form: str) -> None:
    """Each row has numbers far below a step, of both signs, and zeros."""

    def f(x: Tensor) -> Tensor:
        y = x * 1.0
        return F.leaky_relu(y, 0.01) @ A

    x = torch.full((32, 32), 1e-9)
    x[:, 0], x[:, 1::3], x[:, 2::3] = 100.0, -1e-9, 0.0
    x.requires_grad_()
    want = torch.autograd.grad(f(x).sum(), x)[0]
    region = st.compile(f, partitioner=st.MinCut(store={"aten.leaky_relu.default": form, "aten.mul.Tensor": form}))
    got = torch.autograd.grad(region(x).sum(), x)[0]
    torch.testing.assert_close(got, want)


def test_products_of_many_are_of_exact_factors() -> None:
    for form in FORMS:
        found, _ = error(lambda x: (x @ A).prod(-1), form)
        assert found < 1e-5


def test_quotients_that_the_forward_could_compute_are_not_rounded() -> None:
    """Of ``atan2`` it is 1 / (x * x + y * y), whose numbers have no common size."""
    for form in FORMS:
        found, _ = error(lambda x: torch.atan2(x @ A, x @ B), form)
        assert found < BOUND[form]


# ---------------------------------------------------------------------------------------------- any numbers
SMOOTH: dict[str, Callable[[Tensor, float], Tensor]] = {
    "division": lambda h, c: (h @ A) / (h.abs() + c),
    "reciprocal": lambda h, c: (h.abs() + c).reciprocal(),
    "rsqrt": lambda h, c: (h.abs() + c).rsqrt(),
    "sqrt": lambda h, c: (h.square() + c).sqrt(),
    "log": lambda h, c: (h.abs() + c).log(),
    "log1p": lambda h, c: (h.square() * c).log1p(),
    "power": lambda h, c: (h.abs() + c).pow(-1.5),
    "layer_norm": lambda h, c: F.layer_norm(h, (h.shape[-1],), eps=c),
    "group_norm": lambda h, c: F.group_norm(h, 2, eps=c),
    "batch_norm": lambda h, c: F.batch_norm(h, None, None, training=True, eps=c),
    "rms_norm": lambda h, c: h * torch.rsqrt(h.square().mean(-1, keepdim=True) + c),
    "normalize": lambda h, c: F.normalize(h + c),
    "softmax": lambda h, c: (3 * h / h.detach().abs().amax()).softmax(-1),  # not saturated
}


def smooth(name: str, c: float, scale: float, seed: int, form: str) -> float:
    a, b, _ = weights(seed, size=32)
    return error(lambda x: SMOOTH[name](scale * (x @ a), scale * c if name != "log1p" else c) @ b, form, seed)[0]


FEW = settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
ANY: Any = given(
    some.sampled_from(sorted(SMOOTH)), some.sampled_from(FORMS), some.integers(0, 99), some.floats(-2, 2), some.data()
)


def check_error(name: str, form: str, seed: int, scale: float, data: Any) -> None:
    """Within the bound where the function is smooth; never NaN, however close to a pole."""
    well = data.draw(some.booleans())
    c = data.draw(some.floats(0.5, 2)) if well else 10 ** data.draw(some.floats(-9, -1))
    found = smooth(name, c, 10**scale, seed, form)
    assert found < (BOUND[form] if well else float("inf")), (c, 10**scale)


@FEW
@ANY
def test_the_error_stays_within_the_bound(name: str, form: str, seed: int, scale: float, data: Any) -> None:
    check_error(name, form, seed, scale, data)


@pytest.mark.slow
@MANY
@ANY
def test_the_error_stays_within_the_bound_for_many(name: str, form: str, seed: int, scale: float, data: Any) -> None:
    check_error(name, form, seed, scale, data)
