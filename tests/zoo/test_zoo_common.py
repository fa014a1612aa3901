"""What every class of the zoo must do, whatever it is for."""

from __future__ import annotations

import doctest
import importlib

import pytest
import torch

from subclass_trace import zoo

torch.set_num_threads(1)


def randn(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


MAKERS = {
    "two": lambda: zoo.TwoTensor(randn(4, 4), randn(4, 4, seed=1)),
    "fp8": lambda: zoo.to_fp8(randn(4, 4)),
    "int4": lambda: zoo.PackedInt4.quantize(randn(4, 4)),
    "no_bias": lambda: zoo.OptionalBias(randn(4, 4)),
    "bias": lambda: zoo.OptionalBias(randn(4, 4), randn(4, 4, seed=1)),
    "constant": lambda: zoo.Constant(0.5, (4, 4)),
    "masked": lambda: zoo.Masked(randn(4, 4), randn(4, 4, seed=1) > 0),
    "nested": lambda: zoo.TwoTensor(*(zoo.TwoTensor(randn(4, 4, seed=i), randn(4, 4, seed=i + 1)) for i in (0, 2))),
    "two_of_fp8": lambda: zoo.TwoTensor(zoo.to_fp8(randn(4, 4)), zoo.to_fp8(randn(4, 4, seed=1))),
    "two_of_int4": lambda: zoo.TwoTensor(
        zoo.PackedInt4.quantize(randn(4, 4)), zoo.PackedInt4.quantize(randn(4, 4, seed=1))
    ),
}
every = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def value(x: torch.Tensor) -> list[torch.Tensor]:
    """The dense tensors that a wrapper stands for (two for a TwoTensor), as copies, without asking the wrapper."""
    if isinstance(x, zoo.TwoTensor):
        return value(x.a) + value(x.b)
    if isinstance(x, zoo.ScaledFP8):
        return [(x.qdata.to(torch.float32) * x.scale).to(x.dtype)]
    if isinstance(x, zoo.PackedInt4):
        low, high = (x.packed & 15).to(torch.int8), (x.packed >> 4).to(torch.int8)
        signed = torch.stack([low, high], -1).flatten(1).to(x.scale.dtype)
        dense = torch.where(signed > 7, signed - 16, signed) * x.scale
        return [dense.t() if x.transposed else dense]
    if isinstance(x, zoo.OptionalBias):
        return [x.data_.clone() if x.bias is None else x.data_ + x.bias]
    if isinstance(x, zoo.Constant):
        return [torch.full(x.shape, x.value, dtype=x.dtype)]
    if isinstance(x, zoo.Masked):
        return [torch.where(x.mask, x.data_, torch.zeros_like(x.data_))]
    assert type(x) in (torch.Tensor, torch.nn.Parameter), type(x)
    return [x.detach().clone()]


def assert_same(got: torch.Tensor, want: list[torch.Tensor]) -> None:
    for g, w in zip(value(got), want, strict=True):
        torch.testing.assert_close(g, w)


@pytest.mark.parametrize("name", ["constant", "int4", "masked", "optional_bias", "scaled_fp8", "two"])
def test_documentation_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"subclass_trace.zoo.{name}"))
    assert result.failed == 0 and result.attempted >= 4


@every
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_linear_against_dense(make, mode) -> None:
    w = make()
    if isinstance(w, zoo.Masked):
        pytest.skip("no one answer for missing elements")
    x, bias = randn(2, 3, 4, seed=5), randn(4, seed=6)
    want = [torch.nn.functional.linear(x, v, bias) for v in value(w)]
    with mode():
        got = torch.nn.functional.linear(x, w, bias)
    assert isinstance(got, zoo.TwoTensor) == isinstance(w, zoo.TwoTensor)
    assert_same(got, want)


@every
def test_gradient_against_dense(make) -> None:
    w, x = make(), randn(3, 4, seed=5)
    if isinstance(w, zoo.Masked):
        pytest.skip("no one answer for missing elements")
    want_w, want_x = [], []
    for v in value(w):
        dense_x, v = x.clone().requires_grad_(), v.requires_grad_()
        (dense_x @ (v * 2)).square().sum().backward()
        want_w.append(v.grad)
        want_x.append(dense_x.grad)
    w = w.requires_grad_()
    plain_x = zoo.TwoTensor(x, x.clone()) if len(want_x) == 2 else x.clone()
    if len(want_x) == 4:
        plain_x = zoo.TwoTensor(plain_x2 := zoo.TwoTensor(x, x.clone()), plain_x2.clone())
    plain_x.requires_grad_()
    (plain_x @ (w * 2)).square().sum().backward()
    assert_same(plain_x.grad, want_x)
    assert_same(w.grad, want_w)


@every
def test_a_view_of_the_bits_is_refused(make) -> None:
    if isinstance(make(), zoo.TwoTensor) and not isinstance(make().a, (zoo.ScaledFP8, zoo.PackedInt4)):
        pytest.skip("each half has bits of its own")
    with pytest.raises(RuntimeError, match="bits"):
        make().view(torch.int32)


def test_halves_must_agree() -> None:
    with pytest.raises(ValueError, match=r"the halves of a TwoTensor must agree .* got \(2,\), \(1,\)"):
        zoo.TwoTensor(torch.ones(2), torch.ones(3))
