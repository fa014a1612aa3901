"""Views whose place is a number in C++: one specialization for all sizes, and views as in eager."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from called_functions import names_called

import subclass_trace as st
from subclass_trace.capture.parts import PARTS
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
SIZES = (4, 6, 8, 10, 14)

#: of a matrix with 17 columns and an even number of rows
CALLS: dict[str, Callable[[Tensor], Any]] = {
    "diagonal": lambda x: x.diagonal(x.shape[0] // 2) * 2,
    "diagonal itself": lambda x: torch.diagonal(x, offset=x.shape[0] - 1),
    "diagonal below": lambda x: x.diagonal(2 - x.shape[0]),
    "diagonal of the transposed": lambda x: x.t()[None].diagonal(x.shape[0] // 2, dim1=-1, dim2=1),
    "linalg": lambda x: torch.linalg.diagonal(x[None], offset=x.shape[0] - 2),
    "diag": lambda x: torch.diag(x, x.shape[0] - 2) * 3,
    "diag below": lambda x: x.diag(diagonal=-(x.shape[0] // 2)).exp(),
    "matrix of a diagonal": lambda x: torch.diag(x[:, 0], x.shape[0] - 2) + 1,
    "matrices of diagonals": lambda x: torch.diag_embed(x[:2], x.shape[0] - 3, dim1=0, dim2=-1),
    "matrices of diagonals below": lambda x: x.diag_embed(-x.shape[0]),
    "flat": lambda x: torch.diagflat(x[:, :2], x.shape[0]).cos(),
    "pairs of a batch": lambda x: torch.cat([(x @ x.t()).diag(k) for k in (x.shape[0] // 2, -(x.shape[0] // 2))]),
    "patches": lambda x: x.unfold(0, x.shape[0] // 2, x.shape[0] // 2) * 2,
    "patches themselves": lambda x: x.unfold(0, x.shape[0] // 2, x.shape[0] // 2),
    "patches with gaps": lambda x: x.t().unfold(-1, x.shape[0] // 2 - 1, x.shape[0] // 2).sum(-1),
}
#: their backward in C++ takes a size for a number
OVERLAPPING: dict[str, Callable[[Tensor], Any]] = {
    "windows": lambda x: x.unfold(0, x.shape[0] // 2, 1).exp(),
    "windows themselves": lambda x: x.unfold(0, x.shape[0] - 1, 1),
    "windows by steps": lambda x: x.unfold(1, 16, x.shape[0] // 2).mean(-1),
}
#: these are left to torch
LEFT: dict[str, Callable[[Tensor], Any]] = {
    "no diagonal": lambda x: x.diagonal(17 + x.shape[0]),
    "no plane": lambda x: x.diagonal(x.shape[0] // 2, 1, 1),
    "no window": lambda x: x.unfold(0, x.shape[0] + 1, 1),
    "no step": lambda x: x.unfold(0, 2, 4 - x.shape[0]),
    "no diagonal matrix": lambda x: torch.diag(x[None], x.shape[0] // 2),
}


def _made(rows: int, grad: bool, kind: str) -> Any:
    numbers = (torch.arange(rows * 17.0) * 0.7).view(rows, 17)
    x = TwoTensor(numbers.sin(), numbers.cos()) if kind == "wrapper" else numbers.sin()
    return x.requires_grad_(grad)


def _shown(t: Tensor, x: Tensor) -> Any:
    place = t.shape, t.stride(), t.storage_offset(), t._is_view(), t._base is x
    return type(t), str(t.detach()), place, t.dtype, t.requires_grad, t._version


def _run(f: Callable[[Tensor], Any], rows: int, grad: bool, kind: str) -> Any:
    """With a write to what is a view, after the call."""
    x = _made(rows, grad, kind)
    try:
        out = f(x)
        shown = _shown(out, x)
        if grad:
            (out * out.detach().cos()).sum().backward()
        elif out._is_view():
            out[0].add_(1)
    except (RuntimeError, IndexError) as error:
        return type(error), str(error).partition("\n")[0]
    return shown, str(x.detach()), x._version, str(x.grad)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_two_specializations(name: str, grad: bool) -> None:
    """One for the first size, one for all others."""
    region = st.compile(CALLS[name])
    for rows in SIZES:
        assert _run(region, rows, grad, "dense") == _run(CALLS[name], rows, grad, "dense")
    assert len(region.specializations) == 2


@pytest.mark.parametrize("name", OVERLAPPING)
def test_windows_that_overlap(name: str) -> None:
    """Two without gradients; with them each size has one."""
    region = st.compile(OVERLAPPING[name])
    for rows in SIZES:
        assert _run(region, rows, False, "dense") == _run(OVERLAPPING[name], rows, False, "dense")
    assert len(region.specializations) == 2
    for rows in SIZES[:3]:
        assert _run(region, rows, True, "dense") == _run(OVERLAPPING[name], rows, True, "dense")


MATRICES: dict[str, Callable[[Tensor], Tensor]] = {
    "above": lambda x: torch.diag_embed(x, x.shape[0] - 1),
    "below": lambda x: torch.diag_embed(x, 1 - x.shape[0]),
    "of a batch": lambda x: torch.diag_embed(x.expand(3, -1), x.shape[0], 0, 2),
    "diag": lambda x: torch.diag(x, x.shape[0] - 2),
    "flat": lambda x: torch.diagflat(x, x.shape[0] - 1),
}


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("name", MATRICES)
def test_gradients_of_diagonal_matrices(name: str, twice: bool) -> None:
    """They are views of the matrix's gradient, with its strides."""
    region = st.compile(MATRICES[name])
    for size in SIZES:
        found = []
        for f in (MATRICES[name], region):
            x = torch.arange(1.0, size + 1).requires_grad_() * 1
            y = f(x)
            tangent = torch.arange(float(y.numel())).view_as(y).requires_grad_(twice)
            (grad,) = torch.autograd.grad(y, x, tangent, create_graph=twice)
            again = torch.autograd.grad(grad.sin().sum(), tangent)[0] if twice else None
            found.append((str(y.detach()), y.stride(), str(grad.detach()), grad.stride(), str(again)))
        assert found[0] == found[1]
    assert len(region.specializations) == 2


@pytest.mark.parametrize("name", LEFT)
def test_left_to_torch(name: str) -> None:
    """Errors are those of torch."""
    region = st.compile(LEFT[name])
    for rows in (4, 6, 8):
        assert _run(region, rows, True, "dense") == _run(LEFT[name], rows, True, "dense")


@pytest.mark.parametrize("name", ["diagonal itself", "diag", "matrix of a diagonal", "patches", "flat"])
def test_wrapper(name: str) -> None:
    """Its class sees torch's operation: each size has a specialization."""
    region = st.compile(CALLS[name])
    for rows in (4, 6, 8):
        for grad in (False, True):
            assert _run(region, rows, grad, "wrapper") == _run(CALLS[name], rows, grad, "wrapper")


def test_written_inside() -> None:
    """Views of results, and of an input, that the region writes to."""

    def of_result(x: Tensor) -> Tensor:
        y = x * 2
        y.diagonal(x.shape[0] // 2).fill_(1)
        y.unfold(0, x.shape[0] // 2, x.shape[0] // 2)[0].mul_(3)
        return y * y

    def of_input(x: Tensor) -> Tensor:
        x.diagonal(1 - x.shape[0]).add_(1)
        return x.diagonal(x.shape[0] // 2)

    for f, grad in ((of_result, False), (of_result, True), (of_input, False)):
        region = st.compile(f)
        for rows in SIZES:
            assert _run(region, rows, grad, "dense") == _run(f, rows, grad, "dense")
        assert len(region.specializations) == 2


def test_contrastive_loss() -> None:
    """The pairs of a batch stand on two diagonals of the similarities; the batch is a symbol."""

    def loss(z: Tensor) -> Tensor:
        n = z.shape[0] // 2
        similar = z @ z.t()
        pairs = torch.cat([torch.diag(similar, n), torch.diag(similar, -n)])
        others = similar.fill_diagonal_(float("-inf")).logsumexp(1)
        return (others - pairs).mean()

    region = st.compile(loss)
    for rows in SIZES:
        a, b = (_made(rows, True, "dense") for _ in range(2))
        expected, found = loss(a), region(b)
        expected.backward()
        found.backward()
        assert torch.equal(found, expected) and torch.equal(a.grad, b.grad)
    assert len(region.specializations) == 2


def test_all_functions_have_a_case() -> None:
    """`PARTS` has none that is not called above."""
    assert names_called(partial(_run, f, 4, False, "dense") for f in CALLS.values()) >= set(PARTS)
