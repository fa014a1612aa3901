"""Which classes round: those whose dense value moves in steps, not those whose dense value is another one by design."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from sound import Sound

from subclass_trace.testing import check
from subclass_trace.testing.building import rounding_of
from subclass_trace.testing.resolve import resolve

Tensor = torch.Tensor


def steps(bits: int, block: int = 0, shift: bool = False) -> Callable[[Tensor], Tensor]:
    """To ``bits`` bits, one scale for each ``block`` numbers of a row (0: one for all)."""

    def quantised(x: Tensor) -> Tensor:
        rows = x.reshape(-1, block) if block else x.reshape(1, -1)
        zero = rows.amin(-1, keepdim=True) if shift else 0.0
        scale = (rows - zero).abs().amax(-1, keepdim=True) / (2 ** (bits if shift else bits - 1) - 1)
        return (((rows - zero) / scale).round() * scale + zero).reshape(x.shape)

    return quantised


def low_rank(x: Tensor) -> Tensor:
    return torch.arange(x.numel(), dtype=x.dtype).reshape(x.shape) * 0.1 + x


ROUNDS = {
    "8 bits": steps(8),
    "8 bits, blocks": steps(8, 4),
    "8 bits, rows, a zero point": steps(8, 8, True),
    "4 bits": steps(4),
    "2 bits": steps(2),
    "12 bits": steps(12),
    "float8": lambda x: (x * 200).to(torch.float8_e4m3fn).to(x.dtype) / 200,
    "float16": lambda x: x.half().to(x.dtype),
    "4 bits and a product of low rank": lambda x: low_rank(steps(4)(x)),
    "4 bits, ten times as large": lambda x: steps(4)(x) * 10,
    "4 bits, the small ones masked": lambda x: torch.where(x.abs() > 0.5, steps(4)(x), 0.0),
    "at random": lambda x: (x * 20 + torch.rand_like(x)).floor() / 20,
}
EXACT = {
    "the same": lambda x: x,
    "masked by size": lambda x: torch.where(x.abs() > 0.5, x, 0.0),
    "nine of ten masked": lambda x: torch.where(x.abs() > 1.1, x, -7.0),
    "masked by place": lambda x: torch.where(torch.arange(x.numel()).reshape(x.shape) % 7 == 0, x, 0.0),
    "a product of low rank": low_rank,
    "ten times as large": lambda x: x * 10,
    "a bit larger": lambda x: x * 1.05,
    "a curve": lambda x: x.exp(),
    "constant": lambda x: torch.full_like(x, 2.0),
    "pruned": lambda x: torch.where(x.abs() >= x.abs().amax(), x, 0.0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(32, 32), (4, 8), (64,), (2, 3, 8)])
@pytest.mark.parametrize("name", ROUNDS)
def test_steps_are_rounding(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    assert rounding_of(lambda x: ROUNDS[name](x.to(dtype)).double(), shape, torch.finfo(dtype).eps) > 2e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(32, 32), (2, 3), (4, 4), (2,), ()])
@pytest.mark.parametrize("name", EXACT)
def test_another_value_by_design_is_no_rounding(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    assert rounding_of(lambda x: EXACT[name](x.to(dtype)).double(), shape, torch.finfo(dtype).eps) == 0.0


class Masked(Sound):
    """Its operations know nothing of the mask, which is the same after all of them."""

    @classmethod
    def from_dense(cls, x):
        return cls(torch.where(x.abs() > 0.5, x, 0.0))

    def dense(self):
        return self.data_.clone()


class WrongMasked(Masked):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if func is torch.ops.aten.mul.Tensor and isinstance(out, cls):
            out.data_.mul_(1.3)
        return out


def test_the_numbers_of_an_exact_class_are_compared_closely() -> None:
    assert (resolve(Masked).tolerance, resolve(Masked).notes) == ((1e-5, 1e-6), ())
    how = {"rules": ["ST310"], "dtypes": [torch.float32], "max_examples": 12}
    assert check(Masked, **how).ok
    assert not check(WrongMasked, **how).ok


def test_the_tolerance_is_in_proportion_to_the_rounding() -> None:
    class Twelve(Sound):
        @classmethod
        def quantize(cls, x):
            return cls(steps(12)(x))

        def dequantize(self):
            return self.data_.clone()

    found = resolve(Twelve)
    assert 0.005 < found.tolerance[0] < 0.05
    assert any("Twelve rounds (by 0.02%" in note for note in found.notes)
