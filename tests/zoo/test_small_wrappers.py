"""OptionalBias, Constant, Masked, PackedInt4."""

from __future__ import annotations

import math

import pytest
import torch

import subclass_trace as st
from subclass_trace.errors import UnsupportedError
from subclass_trace.zoo import Constant, Masked, OptionalBias, PackedInt4


def rand(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


# ------------------------------------------------------------------------------------------------------ OptionalBias
@pytest.mark.parametrize("biases", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_optional_bias_sums(biases) -> None:
    def make(has_bias: int, seed: int) -> OptionalBias:
        return OptionalBias(rand(3, 2, seed=seed), rand(3, 2, seed=seed + 1) if has_bias else None)

    x, y = make(biases[0], 0), make(biases[1], 2)
    dense = [v.data_ if v.bias is None else v.data_ + v.bias for v in (x, y)]
    for got, want in (
        (x + y, dense[0] + dense[1]),
        (torch.sub(x, y, alpha=3), torch.sub(*dense, alpha=3)),
        (x.t() * 2, dense[0].t() * 2),
        (-x[1:], -dense[0][1:]),
        (x.split(2)[1], dense[0][2:]),
    ):
        assert type(got) is OptionalBias and (got.bias is not None) <= any(biases)
        torch.testing.assert_close(got + torch.zeros(()), want)
        assert got.stride() == want.stride()
    assert ((x + y).bias is not None) == any(biases)


@pytest.mark.parametrize("numbers", [(2, 3, 4), (2.0, 3.0, 4.0)], ids=["ints", "floats"])
def test_classes_of_the_zoo_ask_for_numbers_that_change(numbers) -> None:
    """Their ``isinstance(y, (int, float))`` is answered as a user's is: the results keep their class."""
    product = st.compile(lambda x, k: x * k)
    for k in numbers:
        for x in (OptionalBias(rand(3, 2)), Constant(0.5, (2, 3))):
            eager, compiled = x * k, product(x, k)
            assert type(compiled) is type(eager)
            torch.testing.assert_close(compiled + torch.zeros(()), eager + torch.zeros(()))
    by_size = st.compile(lambda x: x * x.shape[0])
    assert all(type(by_size(OptionalBias(rand(n)))) is OptionalBias for n in (2, 3, 4))


@pytest.mark.parametrize("has_bias", [False, True])
def test_optional_bias_writes_alias_and_keep_the_attributes(has_bias) -> None:
    x = OptionalBias(rand(3, 2), rand(3, 2, seed=1) if has_bias else None)
    want = (x + torch.zeros(())).clone()
    x[1:].mul_(3)
    want[1:].mul_(3)
    x.t()[0].copy_(torch.ones(3))
    want.t()[0].copy_(torch.ones(3))
    torch.testing.assert_close(x + torch.zeros(()), want)
    assert x.__tensor_flatten__()[0] == (["data_", "bias"] if has_bias else ["data_"])


def test_optional_bias_must_be_like_data() -> None:
    with pytest.raises(ValueError, match="bias must be like data"):
        OptionalBias(torch.ones(2, 3), torch.ones(3))
    with pytest.raises(ValueError, match="bias must be like data"):
        OptionalBias(torch.ones(2, 3), torch.ones(3, 2).t())


# ---------------------------------------------------------------------------------------------------------- Constant
def test_constant_folds_arithmetic_with_numbers() -> None:
    c = Constant(0.5, (2, 3))
    for got, want in ((c + 1, 1.5), (c * 3, 1.5), (c - 2, -1.5), (c / 4, 0.125), (-c, -0.5)):
        assert type(got) is Constant and got.value == want and got.shape == (2, 3)
    assert type(c + torch.zeros(2, 3)) is torch.Tensor
    assert type(c / 0) is torch.Tensor and bool((c / 0).isinf().all())


def test_constant_overflows_like_the_dense_tensor() -> None:
    c = Constant(1e38, (1,)) * 1e10
    assert c.value == math.inf and (c + torch.zeros(1)).item() == math.inf
    assert Constant(1e6, (1,)).to(torch.float16).value == math.inf


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x.permute(2, 0, 1),
        lambda x: x[1],
        lambda x: x[:, 1:, ::2],
        lambda x: x.view(6, 4),
        lambda x: x.reshape(-1),
        lambda x: x.unsqueeze(0).expand(5, 2, 3, 4),
        lambda x: x.split(2, dim=1)[1],
        lambda x: x.unbind(0)[1],
        lambda x: x[:0],
    ],
)
def test_constant_views(view) -> None:
    size = (2, 3) if "x.t()" in view.__code__.co_names or view.__code__.co_names == ("t",) else (2, 3, 4)
    dense = torch.full(size, 2.5)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            got, want = view(Constant(2.5, size)), view(dense)
        assert type(got) is Constant and got.value == 2.5
        assert (got.shape, got.stride(), got.dtype) == (want.shape, want.stride(), want.dtype)


def test_constant_dtypes() -> None:
    assert type(Constant(3, (2,), dtype=torch.int64) * 2) is torch.Tensor
    assert Constant(0.5, (2,)).double().dtype == torch.float64
    assert Constant(0.5, (2,)).to(torch.int32).tolist() == [0, 0]


# ------------------------------------------------------------------------------------------------------------ Masked
def masked(*size: int, seed: int = 0) -> Masked:
    return Masked(rand(*size, seed=seed), rand(*size, seed=seed + 10) > 0)


POINTWISE = {
    "unary": lambda x, y: x.sin().exp(),
    "binary": lambda x, y: x * y + 1,
    "dense": lambda x, y: x - torch.ones(3),
    "broadcast": lambda x, y: x.unsqueeze(0) * y[:, None],
    "compare": lambda x, y: x > y,
    "where": lambda x, y: torch.where(x > 0, x, y),
    "gelu": lambda x, y: torch.nn.functional.gelu(x, approximate="tanh"),
    "to": lambda x, y: (x / y).double().t(),
}


@pytest.mark.parametrize("program", POINTWISE.values(), ids=POINTWISE)
def test_masked_pointwise_is_the_dense_program_where_present(program) -> None:
    x, y = masked(4, 3), masked(4, 3, seed=1)
    got, want = program(x, y), program(x.data_, y.data_)
    assert type(got) is Masked and got.dtype == want.dtype and got.stride() == want.stride()
    torch.testing.assert_close(got.data_[got.mask], want[got.mask])
    nan_x, nan_y = (v.data_.masked_fill(~v.mask, math.nan) for v in (x, y))
    if want.dtype.is_floating_point and program is not POINTWISE["where"]:
        assert torch.equal(got.mask, ~program(nan_x, nan_y).isnan())  # present where no operand is missing


def test_masked_views_and_writes() -> None:
    x = masked(4, 3)
    x[1:3].t().copy_(torch.ones(3, 2))
    assert x.mask[1:3].all() and x.filled(0)[1:3].eq(1).all()
    assert x.add_(1) is x and x.filled(0)[1:3].eq(2).all()
    x.zero_()
    assert x.mask.all() and not x.data_.any()


def test_masked_sum_and_gradient() -> None:
    x = masked(4, 3)
    dense = torch.where(x.mask, x.data_, 0.0)
    torch.testing.assert_close((x.sum(), x.sum(0)), (dense.sum(), dense.sum(0)))
    x.requires_grad_()
    (x * 3).filled(5.0).sum().backward()
    torch.testing.assert_close(x.grad, x.mask * 3.0)  # dense, and zero at missing elements


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x @ x.t(),
        lambda x: x.softmax(0),
        lambda x: x.mean(),
        lambda x: torch.ones(2, 2).add_(x),
        lambda x: torch.cat([x, x]),
    ],
)
def test_masked_refuses_what_has_no_one_answer(program) -> None:
    with pytest.raises(UnsupportedError, match=r"x\.filled"):
        program(masked(2, 2))


# --------------------------------------------------- PackedInt4: outer and inner sizes differ; rows are quantised apart
@pytest.fixture
def dense() -> torch.Tensor:
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 7).unsqueeze(1)


def half_step(x: torch.Tensor) -> torch.Tensor:
    return x.abs().amax(1, keepdim=True) / 7 / 2 * 1.0001


def test_quantise_is_within_half_a_step_of_each_row(dense) -> None:
    w = PackedInt4.quantize(dense)
    assert w.packed.shape == (6, 4) and w.packed.dtype == torch.uint8 and w.scale.shape == (6, 1)
    error = (w.dequantize() - dense).abs()
    assert bool((error <= half_step(dense)).all()) and float(error.max()) > 0


def test_all_sixteen_patterns_but_minus_eight_survive() -> None:
    x = torch.tensor([[float(i) for i in range(-7, 7)]])
    x = torch.cat([x, torch.tensor([[7.0, 0.0]])], 1)
    torch.testing.assert_close(PackedInt4.quantize(x).dequantize(), x)


def test_row_slices_alias_and_write_their_rows_only(dense) -> None:
    w = PackedInt4.quantize(dense)
    before = w.dequantize()
    part = w[1:4]
    assert type(part) is PackedInt4 and part.shape == (3, 8) and part.storage_offset() == 8
    part.copy_(torch.full((3, 8), 5.0))
    after = w.dequantize()
    torch.testing.assert_close(after[1:4], torch.full((3, 8), 5.0))
    assert torch.equal(after[:1], before[:1]) and torch.equal(after[4:], before[4:])


def test_steps_and_transposed_slices(dense) -> None:
    w = PackedInt4.quantize(dense)
    assert w[::2].stride() == (16, 1) == dense[::2].stride()
    torch.testing.assert_close(w[::2].dequantize(), w.dequantize()[::2])
    part = w.t()[:, 2:5]
    assert type(part) is PackedInt4 and part.shape == (8, 3)
    torch.testing.assert_close(part.dequantize(), w.dequantize().t()[:, 2:5])
    assert w.transpose(0, 1).transpose(-1, -2).transposed is False and w.transpose(1, 1).transposed is False


@pytest.mark.parametrize("view", [lambda w: w[:, 2:], lambda w: w[0], lambda w: w.view(-1), lambda w: w.unsqueeze(0)])
def test_other_views_are_refused(dense, view) -> None:
    with pytest.raises(UnsupportedError, match="PackedInt4 has no rule for aten"):
        view(PackedInt4.quantize(dense))


def test_copy(dense) -> None:
    w, v = PackedInt4.quantize(dense), PackedInt4.quantize(-dense * 3)
    assert w.copy_(v) is w
    assert torch.equal(w.packed, v.packed) and torch.equal(w.scale, v.scale)
    w.copy_(v.t().contiguous().t()[:1])  # broadcast, and from a dense source
    torch.testing.assert_close(w.dequantize(), v.dequantize()[:1].expand(6, 8))
    square = PackedInt4.quantize(dense[:, :6])
    square.copy_(square.clone().t())
    torch.testing.assert_close(square.dequantize(), PackedInt4.quantize(dense[:, :6]).dequantize().t(), atol=1, rtol=0)
    plain = torch.empty(6, 8)
    assert plain.copy_(w) is plain
    torch.testing.assert_close(plain, w.dequantize())


@pytest.mark.parametrize(
    "part",
    [lambda x: x, lambda x: x[1:], lambda x: x[::2], lambda x: x.t(), lambda x: x[::2].t(), lambda x: x.t()[:, ::3]],
)
@pytest.mark.parametrize(
    "copy", [torch.clone, torch.Tensor.contiguous, lambda x: x.to(x.dtype, copy=True), lambda x: x.double()]
)
def test_copies_lie_like_dense_ones(dense, part, copy) -> None:
    w = PackedInt4.quantize(dense)
    got, want = copy(part(w)), copy(part(w.dequantize()))
    assert (got.stride(), got.storage_offset()) == (want.stride(), want.storage_offset())
    torch.testing.assert_close(got + 0, want)


def test_in_place_quantises_again(dense) -> None:
    w = PackedInt4.quantize(dense)
    want = w.dequantize() * 2 + 1
    inner = w.packed
    assert w.mul_(2).add_(1) is w and w.packed is inner
    assert bool(((w.dequantize() - want).abs() <= half_step(want)).all())
    w.add_(w)  # both operands are the old value
    assert bool(((w.dequantize() - 2 * want).abs() <= 3 * half_step(want)).all())


def test_converting_the_dtype_keeps_it_packed(dense) -> None:
    w = PackedInt4.quantize(dense).to(torch.bfloat16)
    assert type(w) is PackedInt4 and w.dtype == torch.bfloat16 and w.packed.dtype == torch.uint8
    assert torch.nn.functional.linear(torch.ones(1, 8, dtype=torch.bfloat16), w).dtype == torch.bfloat16
    assert type(PackedInt4.quantize(dense).to(torch.int64)) is torch.Tensor
