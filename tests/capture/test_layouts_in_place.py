"""Operations in place on transposed tensors: the tensor stays laid out as it is, though functional forms are contiguous."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import subclass_trace as st

Tensor = torch.Tensor
PLACES = torch.tensor([0, 1])
MASK = torch.arange(12).view(3, 4) % 3 == 0
ROW = torch.zeros(1, 4, dtype=torch.long)
#: writes to a tensor of shape (3, 4)
WRITES: dict[str, Callable[[Tensor], Tensor]] = {
    "masked_fill_": lambda y: y.masked_fill_(MASK, 0),
    "masked_scatter_": lambda y: y.masked_scatter_(MASK, torch.arange(12.0)),
    "index_add_": lambda y: y.index_add_(0, PLACES, torch.ones(2, 4)),
    "scatter_add_": lambda y: y.scatter_add_(0, ROW, torch.ones(1, 4)),
    "cumsum_": lambda y: y.cumsum_(0),
    "addmm_": lambda y: y.addmm_(torch.ones(3, 2), torch.ones(2, 4)),
    "a column": lambda y: (y[:, 0].cumsum_(0), y)[1],
}


def everywhere(write: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """Writes to a new value, to the transposed of one, and to the argument, with what is computed of each."""
    made, contiguous = write(x * 2), x.t().contiguous()
    write(contiguous.t())
    write(x)
    return [made, made + 0, contiguous, contiguous * 1, x * 1]


@pytest.mark.parametrize(
    ("name", "dynamic"), [*((n, False) for n in WRITES), ("masked_fill_", True), ("cumsum_", True)]
)
def test_as_in_eager(name: str, dynamic: bool) -> None:
    found = []
    for call in (everywhere, st.compile(everywhere, dynamic=dynamic or None)):
        x = torch.arange(12.0).view(4, 3).t()
        found.append([(t.stride(), t.tolist(), t._version) for t in (*call(WRITES[name], x), x)])
    assert found[0] == found[1]


@pytest.mark.parametrize("f", [lambda x: x.norm(dim=0), lambda x: x.flip(0).sin() + x.norm(dim=0)])
def test_strides_of_a_gradient(f: Callable[[Tensor], Tensor]) -> None:
    found = []
    for call in (f, st.compile(f)):
        x = torch.ones(4, 3).t().requires_grad_()
        out = call(x)
        found += torch.autograd.grad(out, x, torch.ones_like(out))
    assert found[0].stride() == found[1].stride() and torch.allclose(*found)
