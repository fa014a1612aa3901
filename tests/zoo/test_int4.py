"""PackedInt4: outer and inner sizes differ; rows are quantised apart."""

from __future__ import annotations

import pytest
import torch

from subclass_trace.errors import UnsupportedError
from subclass_trace.zoo import PackedInt4


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
