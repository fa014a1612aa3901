"""Double backward, and indices that are numbers in tensors: on a fake process group of four."""

from __future__ import annotations

import pytest
import torch
from spmd import COLUMNS, REPLICATE, ROWS, difference, seen, whole
from torch.distributed.tensor import DTensor, _redistribute, distribute_tensor

import subclass_trace as st

#: what the first backward may save of its own, sizes that the trace found equal, a local tensor taken out
AGAIN = {
    "exchanged": (lambda x, w, mesh: (x.redistribute(mesh, COLUMNS).pow(3) * w).sum(), {}),
    "local": (lambda x, w, mesh: (x * x).redistribute(mesh, REPLICATE).to_local().sin(), {"dynamic": True}),
    "both": (lambda x, w, mesh: x.redistribute(mesh, COLUMNS).pow(3).redistribute(mesh, ROWS), {"dynamic": True}),
}


def second(f, x, w):
    """First and second gradients."""
    out = f(x, w)
    first = torch.autograd.grad((out * out).sum(), (x, w), create_graph=True, allow_unused=True)
    loss = sum((g * g).sum() for g in first if g is not None)
    return [g for g in (*first, *torch.autograd.grad(loss, (x, w), allow_unused=True)) if g is not None]


@pytest.mark.parametrize("name", ["exchanged", "local", pytest.param("both", marks=pytest.mark.slow)])
def test_differentiated_twice(mesh, name) -> None:
    function, options = AGAIN[name]
    if name != "local" and not hasattr(_redistribute, "NestedRedistribute"):
        pytest.skip("the gradient of this torch's redistribute is a leaf: second derivatives miss a term in eager mode")

    region = st.compile(lambda x, w: function(x, w, mesh), **options)
    x, w = (whole(mesh, 8, 8, placements=ROWS, seed=k, grad=True) for k in range(2))
    pairs = zip(second(lambda x, w: function(x, w, mesh), x, w), second(region, x, w), strict=True)
    assert [d for a, b in pairs if (d := difference(seen(a), seen(b), 1e-4))] == []


def test_tangents_split_in_another_way_than_results_of_dynamic_sizes(mesh) -> None:
    """A local size of such a tangent is no size of the result: the symbol that the result's size is a multiple of."""

    def f(x, w):
        local = (x * w).to_local().sin()
        return DTensor.from_local(local, mesh, COLUMNS).redistribute(mesh, ROWS).pow(2)

    region = st.compile(f, dynamic=True)
    for rows, columns in ((12, 8), (8, 4)):
        x, w = (whole(mesh, rows, columns, placements=ROWS, seed=k, grad=True) for k in range(2))
        pairs = zip(second(f, x, w), second(region, x, w), strict=True)
        assert [d for a, b in pairs if (d := difference(seen(a), seen(b), 1e-4))] == []


@pytest.mark.parametrize("placements", [REPLICATE, ROWS, COLUMNS], ids=str)
def test_index_by_a_number_in_a_tensor(mesh, placements) -> None:
    def f(x, i):
        return x[i] * 1, x[:, i] * 1, x.narrow(0, i, 2) * 1

    region = st.compile(f)
    for k in (2, -3, 0):
        x, i = whole(mesh, 8, 8, placements=placements), torch.tensor(k)
        assert [d for a, b in zip(f(x, i), region(x, i), strict=True) if (d := difference(seen(a), seen(b)))] == []
    assert len(region.specializations) == 1
    with pytest.raises(IndexError):
        region(x, torch.tensor(8))


def test_index_by_a_dtensor_is_refused(mesh) -> None:
    with pytest.raises(st.DataDependentError):
        st.compile(lambda x, i: x[i])(whole(mesh, 8, 4), distribute_tensor(torch.tensor(2), mesh, REPLICATE))
