"""``x.view(b * s, h)`` of a DTensor that is split by ``s``: a ``_StridedShard``, as value, result, input and gradient."""

from __future__ import annotations

import pytest
import torch
from spmd import COLUMNS, VERSION, check, difference, of_local, seen, whole
from torch.distributed.tensor import DTensor

import subclass_trace as st

#: eager mode itself refuses such views in torch 2.11, and two of these programs in 2.12
pytestmark = pytest.mark.skipif(VERSION < (2, 12), reason="torch 2.11 has no such views")
of_2_13 = pytest.mark.skipif(VERSION < (2, 13), reason="refused by torch 2.12 in eager mode")


def flat(x):
    return x.flatten(0, 1)


def there_and_back(x):
    return (flat(x) * 2).unflatten(0, x.shape[:2]).sin()


@of_2_13
def test_as_an_input(mesh) -> None:
    def make():
        x = flat(of_local(mesh, 8, 1, 6, placements=COLUMNS).detach()).requires_grad_()
        return (x,), (x,)

    region = check(torch.sin, make)
    other = make()[0][0].detach()
    decoded = DTensor.from_local(
        other.to_local(), mesh, other.placements, run_check=False
    )  # it says that it is an order
    for x in (other, decoded, other):
        want, got = (x.sin(), region(x))
        assert got._spec == want._spec and torch.equal(got.to_local(), want.to_local())


def test_a_changing_batch(mesh) -> None:
    region = st.compile(there_and_back)
    for batch in (8, 4, 6):
        found = []
        for f in (there_and_back, region):
            x = of_local(mesh, batch, 1, 6, placements=COLUMNS, seed=batch)
            out = f(x)
            out.sum().backward()
            found.append([seen(out), seen(x.grad)])
        assert difference(*found) is None, difference(*found)


@of_2_13
@pytest.mark.parametrize(
    ("f", "grad"),
    [
        (torch.Tensor.flatten, True),
        (lambda x: x.view(x.shape[0] * x.shape[1]), False),
        pytest.param(torch.Tensor.flatten, False, marks=pytest.mark.slow),
        pytest.param(lambda x: x.view(x.shape[0] * x.shape[1]), True, marks=pytest.mark.slow),
    ],
)
def test_a_view_as_the_result_with_symbolic_sizes(mesh, f, grad) -> None:
    """The view is made once more for the plan, where the split factor is the number that it was while tracing."""
    region = st.compile(f, dynamic=True)
    for rows, columns in ((8, 8), (16, 8), (12, 4), (4, 16), (8, 8)):
        found = []
        for run in (f, region):
            x = whole(mesh, rows, columns, placements=COLUMNS, grad=grad)
            out = run(x)
            if grad:
                (out * out).sum().backward()
            found.append([seen(out), out._is_view(), seen(x.grad)])
        assert difference(*found) is None, difference(*found)
