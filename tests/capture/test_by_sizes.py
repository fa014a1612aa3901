"""Composite operations that take sizes for numbers in C++: one specialization for all sizes, and equal to eager."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from called_functions import names_called

import subclass_trace as st
from subclass_trace.capture.by_sizes import BY_SIZES
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
SIZES = (5, 6, 9, 3)


def _contrasted(x: Tensor) -> Tensor:
    return (x @ x.t()).fill_diagonal_(-1).exp()


def _written(x: Tensor) -> Tensor:
    x = x * 2
    x.fill_diagonal_(0.5)
    return x * x


CALLS: dict[str, Callable[[Tensor], Any]] = {
    "kron": lambda x: torch.kron(x, torch.eye(2)),
    "kron of others": lambda x: torch.kron(torch.ones(2, 1, 3), x),
    "kron of a row": lambda x: x[0].kron(x),
    "cov": lambda x: torch.cov(x),
    "cov of a row": lambda x: x[1].cov(correction=0),
    "cov of integers": lambda x: torch.cov(torch.ones_like(x, dtype=torch.int64)),
    "corrcoef": lambda x: torch.corrcoef(x),
    "corrcoef of a row": lambda x: torch.corrcoef(x[0]),
    "slopes": lambda x: sum(torch.gradient(x)) * torch.gradient(x, dim=-1, spacing=0.3)[0],
    "slope of integers": lambda x: torch.gradient(torch.arange(x.shape[0]) ** 2, spacing=2)[0],
    "diagonal": _contrasted,
    "diagonal of a rectangle": _written,
    "diagonal of a cube": lambda x: torch.zeros(3, 3, 3).fill_diagonal_(x.shape[0]),
    "no diagonal": lambda x: x[0].clone().fill_diagonal_(1),
    "no cube": lambda x: torch.zeros(3, 3, x.shape[0] + 1).fill_diagonal_(1),
    "no such option": lambda x: torch.kron(x, x, upper=True),  # type: ignore[call-overload]
    "sorted": lambda x: torch.take_along_dim(x, x.argsort(0), 0),
    "the largest": lambda x: x.take_along_dim(x.argmax(-1, keepdim=True), dim=-1).squeeze(-1),
    "of a row, for each": lambda x: torch.take_along_dim(x[:1], x.argsort(1)[:, :2], 1),
    "along what does not fit": lambda x: torch.take_along_dim(x, x.flatten().argsort(0), 0),
    "means of parts": lambda x: F.adaptive_avg_pool1d(x, 2 + x.shape[0]) * 2,
    "means of parts of a batch": lambda x: F.adaptive_avg_pool1d(x.t()[None], [x.shape[0] // 2 + 1]),
    "means of no parts": lambda x: F.adaptive_avg_pool1d(x, (x.shape[0], 2)),
    "bounds": lambda x: x.clamp_min(1 / x.shape[0]) + x.clamp(max=x.shape[0] / 9),
    "factors": lambda x: torch.add(x, x, alpha=x.shape[0]) + F.softplus(x, x.shape[0]) + F.elu(x, x.shape[0]),
}
#: these are left to torch: each size has a specialization
LEFT: dict[str, Callable[[Tensor], Any]] = {
    "weighted": lambda x: torch.cov(x, fweights=torch.ones(6, dtype=torch.int64)),
    "slopes at the edges": lambda x: torch.gradient(x, dim=0, edge_order=2)[0],
    "slope by itself": lambda x: torch.gradient(x, dim=(0, 0))[0],
    "few observations": lambda x: torch.cov(x[:, :1]),
    "corrcoef of complex numbers": lambda x: torch.corrcoef(torch.complex(x, x.cos())).abs(),
    "selected by numbers": lambda x: x.masked_select((x > 0).byte()),
    "wrapped": lambda x: torch.zeros(3 * x.shape[0], 2).fill_diagonal_(1, wrap=True),
}
DENSE: dict[str, Callable[[Tensor], Any]] = {
    "vander": lambda x: torch.vander(x.detach()[:, 0]),
    "vander of so many": lambda x: torch.vander(x.detach()[:3, 0], x.shape[0] + 1, increasing=True),
    "vander of a matrix": lambda x: torch.vander(x),
    "selected": lambda x: x.masked_select(x > 0) * 2,
    "selected by a row": lambda x: x.masked_select(torch.arange(6) > 3).sum(),
    "pairs": lambda x: torch.combinations(x[:, 0]).prod(1),
    "of three": lambda x: torch.combinations(x[:, 0] * 2, 3, with_replacement=True),
    "of four": lambda x: torch.combinations(torch.cat([x[:, 0], x[:, 1]]), 4).reshape(-1),
    "of none": lambda x: torch.combinations(x[:, 0], 0),
    "of a matrix": lambda x: torch.combinations(x),
}


def _leaves(t: Tensor) -> list[Tensor]:
    return [t.a, t.b] if isinstance(t, TwoTensor) else [t]


def _run(f: Callable[[Tensor], Any], rows: int, kind: str, grad: bool) -> Any:
    numbers = (torch.arange(rows * 6.0) * 0.7).view(rows, 6)
    x = TwoTensor(numbers.sin(), numbers.cos()) if kind == "wrapper" else numbers.sin()
    x.requires_grad_(grad)
    try:
        out = f(x)
        if out.requires_grad:
            (out * out).sum().backward()
    except (RuntimeError, TypeError) as error:
        return type(error), str(error).partition("\n")[0]
    shown = [str(t.tolist()) for t in _leaves(out.detach())], out.shape, out.stride(), out.dtype, out.requires_grad
    return shown, out._version, out._is_view(), None if x.grad is None else [str(t.tolist()) for t in _leaves(x.grad)]


def _check(f: Callable[[Tensor], Any], kind: str, dynamic: bool, count: int) -> None:
    region = st.compile(f, dynamic=dynamic)
    for rows in SIZES:
        for grad in (False, True):
            assert _run(region, rows, kind, grad) == _run(f, rows, kind, grad)
    assert len(region.specializations) <= (count if dynamic else 2 * count)


@pytest.mark.parametrize(
    ("kind", "dynamic"),
    # The second specialization of a wrapper is that of its dense inner tensors.
    [("wrapper", False), ("dense", True), pytest.param("dense", False, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("name", CALLS)
def test_as_in_eager_for_all_sizes(name: str, kind: str, dynamic: bool) -> None:
    """With and without gradients."""
    # Torch asks which side of a rectangle is longer, and whether they are equal; and what is between two edges may be 1.
    more = 2 if name in ("diagonal of a rectangle", "slopes", "slope of integers") else 0
    _check(CALLS[name], kind, dynamic, 2 + more)


@pytest.mark.parametrize("dynamic", [pytest.param(False, marks=pytest.mark.slow), True])  # False: as with CALLS
@pytest.mark.parametrize("name", DENSE)
def test_dense_as_in_eager_for_all_sizes(name: str, dynamic: bool) -> None:
    """What makes dense tensors of its own, and what has a size that depends on values."""
    _check(DENSE[name], "dense", dynamic, 2)


@pytest.mark.parametrize("kind", ["dense", "wrapper"])
@pytest.mark.parametrize("dim", [0, -2, 1])
def test_pieces(dim: int, kind: str) -> None:
    """``tensor_split``: views of the input, the first of which have what remains."""

    def f(x: Tensor) -> Any:
        return torch.tensor_split(x, 3, dim) if dim else x.tensor_split(3, dim=dim)

    def run(f: Callable[[Tensor], Any], rows: int) -> Any:
        numbers = torch.arange(rows * 6.0).view(rows, 6)
        x: Tensor = TwoTensor(numbers, -numbers) if kind == "wrapper" else numbers
        parts = f(x)
        parts[1].mul_(2)
        return type(parts), [(str(p), p.shape, p.storage_offset(), p._base is x) for p in parts], str(x), x._version

    region = st.compile(f)
    for rows in (6, 7, 8, 9, 13):
        assert run(region, rows) == run(f, rows)
    assert len(region.specializations) == 2


def test_cpp_asks_for_the_sizes_of_a_wrapper() -> None:
    """Each size has a specialization then."""

    def f(x: Tensor) -> Tensor:
        return F.embedding_bag(torch.arange(4)[None], x, padding_idx=x.shape[0] - 1) * 2

    region = st.compile(f)
    for rows in (4, 5, 6):
        for grad in (False, True):
            assert _run(region, rows, "wrapper", grad) == _run(f, rows, "wrapper", grad)
    assert len(region.specializations) == 6


@pytest.mark.parametrize("kind", ["dense", "wrapper"])
def test_backward_of_a_view_by_its_place(kind: str) -> None:
    """It writes into memory of its own; the sizes of the view are read from the input, and not from the tangent."""

    def f(x: Tensor) -> Tensor:
        return x.as_strided((x.shape[0] // 2, 3), (6, 1), x.shape[0]) * 2

    region = st.compile(f)
    for rows in (4, 6, 8, 11):
        assert _run(region, rows, kind, True) == _run(f, rows, kind, True)
    assert len(region.specializations) == 2


@pytest.mark.filterwarnings("ignore:cov():UserWarning")
@pytest.mark.parametrize("name", LEFT)
def test_left_to_torch(name: str) -> None:
    """Right, too."""
    _check(LEFT[name], "dense", True, 2 * len(SIZES))


def test_all_operations_have_a_case() -> None:
    """`BY_SIZES` has none that is not called above."""
    called = names_called(partial(_run, f, 5, "dense", False) for f in {**CALLS, **DENSE}.values())
    assert called >= set(BY_SIZES)


@pytest.mark.parametrize("name", ["pairs", "cov"])
def test_with_inductor(name: str) -> None:
    """The same within what a compiler rounds otherwise."""
    f = {**CALLS, **DENSE}[name]
    region = st.compile(f, backend="inductor")
    for rows in (4, 5, 6):
        results = []
        for g in (f, region):
            x = (torch.arange(rows * 6.0) * 0.7).sin().view(rows, 6).requires_grad_()
            out = g(x)
            out.sum().backward()
            results.append((out.detach(), x.grad))
        torch.testing.assert_close(results[1], results[0])
    assert len(region.specializations) == 2
