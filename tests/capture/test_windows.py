"""Pooling with a window that is a size: one specialization for all sizes, and equal to eager."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from called_functions import names_called

import subclass_trace as st
from subclass_trace.capture.windows import WINDOWS
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
SIZES = (5, 6, 9, 3, 4)

#: of tensors with 2 images of 3 channels and two sizes
CALLS: dict[str, Callable[[Tensor], Any]] = {
    "average": lambda x: F.avg_pool2d(x, x.shape[2:]),
    "average of rows": lambda x: F.avg_pool2d(x, (1, x.shape[3])).flatten(1),
    "average by steps": lambda x: F.avg_pool2d(
        x, kernel_size=(x.shape[2], 2), stride=1, padding=(0, 1), ceil_mode=True
    ),
    "average without the border": lambda x: F.avg_pool2d(x[0], x.shape[2], 1, 1, False, False, divisor_override=3),
    "average of channels last": lambda x: F.avg_pool2d(
        x.contiguous(memory_format=torch.channels_last), (2, x.shape[3])
    ),
    "average of lines": lambda x: F.avg_pool1d(x[0], x.shape[3]),
    "average of half": lambda x: F.avg_pool1d(x[:, 0], (x.shape[3] // 2 + 1,), stride=1, padding=1),
    "most": lambda x: F.max_pool2d(x, x.shape[2:]),
    "most of rows": lambda x: F.max_pool2d(x[0], kernel_size=(2, x.shape[3]), stride=(1, 2)).squeeze(-1),
    "most, spread": lambda x: torch.max_pool2d(x, 2, 1, 0, (1, x.shape[3] - 1)),
    "most of channels last": lambda x: F.max_pool2d(
        x.contiguous(memory_format=torch.channels_last), (2, x.shape[3]), 1
    ),
    "most of lines": lambda x: F.max_pool1d(x[0], x.shape[3]),
    "most of lines, by steps": lambda x: F.max_pool1d(x[:, 1], (x.shape[3] // 2 + 1,), stride=x.shape[3], padding=1),
    "most and where": lambda x: F.max_pool2d(x, x.shape[2:], return_indices=True)[0],
    "average of a space": lambda x: F.avg_pool3d(x, x.shape[1:]),
    "average of a space by steps": lambda x: F.avg_pool3d(x[:, None], (1, 2, x.shape[3]), 1, (0, 1, 0)),
    "most of a space": lambda x: F.max_pool3d(x, (3, 1, x.shape[3])),
    "most of a space and where": lambda x: F.max_pool3d(x[None], (1, 2, x.shape[3]), 1, return_indices=True)[0],
    "grid": lambda x: F.affine_grid(x[:, 0, :2, :3], (2, 1, x.shape[3], 4), align_corners=False),
    "too wide": lambda x: F.avg_pool2d(x, x.shape[3] + 1),
    "too wide a border": lambda x: F.max_pool2d(x, x.shape[3], padding=x.shape[3]),
    "no step": lambda x: F.avg_pool2d(x, x.shape[3], stride=0),
    "too many": lambda x: F.avg_pool2d(x, (x.shape[3], 1, 1)),
}
#: these are left to torch
LEFT = ("too wide", "too wide a border", "no step", "too many")


def _made(columns: int, grad: bool, kind: str = "dense") -> Any:
    numbers = (torch.arange(2 * 3 * 4 * columns * 1.0) * 0.7).view(2, 3, 4, columns)
    x = TwoTensor(numbers.sin(), numbers.cos()) if kind == "wrapper" else numbers.sin()
    return x.requires_grad_(grad)


def _run(f: Callable[[Tensor], Any], columns: int, grad: bool, kind: str = "dense") -> Any:
    x = _made(columns, grad, kind)
    try:
        out = f(x)
        if grad:
            (out * out).sum().backward()
    except (RuntimeError, TypeError) as error:
        return type(error), str(error).partition("\n")[0]
    shown = str(out.detach()), out.shape, out.stride(), out.dtype, out.requires_grad, out._version, out._is_view()
    return shown, str(x.grad)


@pytest.mark.parametrize("dynamic", [pytest.param(False, marks=pytest.mark.slow), True])  # False: a sample is below
@pytest.mark.parametrize("name", CALLS)
def test_as_in_eager_for_all_sizes(name: str, dynamic: bool) -> None:
    """With and without gradients."""
    region = st.compile(CALLS[name], dynamic=dynamic)
    for columns in SIZES:
        for grad in (False, True):
            assert _run(region, columns, grad) == _run(CALLS[name], columns, grad)
    # Windows that are sizes of results have a specialization each for 1.
    assert name in LEFT or len(region.specializations) <= 6


@pytest.mark.parametrize("name", ["average", "average of lines", "most", "most of lines"])
def test_two_specializations(name: str) -> None:
    """One for the first size, one for all others."""
    region = st.compile(CALLS[name])
    for columns in SIZES:
        assert _run(region, columns, True) == _run(CALLS[name], columns, True)
    assert len(region.specializations) == 2


@pytest.mark.parametrize("name", ["average", "average of lines", "most", "most of lines", "most of a space"])
def test_wrapper(name: str) -> None:
    """Its class sees torch's operation, with symbols for numbers."""
    region = st.compile(CALLS[name])
    for columns in (4, 5, 6):
        assert _run(region, columns, True, "wrapper") == _run(CALLS[name], columns, True, "wrapper")
    assert len(region.specializations) == 2


@pytest.mark.parametrize(
    "name", ["average", "average by steps", "most", "most of rows", "most of lines", "most of a space"]
)
def test_differentiated_again(name: str) -> None:
    """A gradient penalty, in the region and outside of it."""

    def penalty(x: Tensor) -> Tensor:
        (grad,) = torch.autograd.grad(CALLS[name](x).pow(3).sum(), x, create_graph=True)
        return grad.pow(2).sum()

    region, inside = st.compile(CALLS[name]), st.compile(lambda x: penalty(x * 1))
    for columns in (4, 5, 6):
        results = []
        for f in (penalty, inside):
            x = _made(columns, True)
            f(x).backward()
            results.append(x.grad)
        x = _made(columns, True)
        (grad,) = torch.autograd.grad(region(x).pow(3).sum(), x, create_graph=True)
        grad.pow(2).sum().backward()
        assert torch.equal(results[0], results[1]) and torch.equal(results[0], x.grad)


def test_under_vmap() -> None:
    """A transform sees torch's operation."""
    f = torch.vmap(lambda x: F.avg_pool2d(x, x.shape[1:]))
    region = st.compile(f)
    for columns in (4, 5, 6):
        assert torch.equal(region(_made(columns, False)), f(_made(columns, False)))


def test_with_inductor() -> None:
    """As a call of the operation."""

    def f(x: Tensor) -> Tensor:
        return (F.max_pool1d(x[0], x.shape[3]) * 2 + F.avg_pool1d(x[1], x.shape[3])).relu()

    region = st.compile(f, backend="inductor")
    for columns in (4, 5, 6):
        a, b = _made(columns, True), _made(columns, True)
        f(a).sum().backward()
        region(b).sum().backward()
        torch.testing.assert_close(b.grad, a.grad)
    assert len(region.specializations) == 2


def test_all_operations_have_a_case() -> None:
    """`WINDOWS` has none that is not called above."""
    assert names_called(partial(_run, f, 5, False) for f in CALLS.values()) >= set(WINDOWS)
