"""Two wrappers of torch's own that look unlike their inner tensors: ComplexTensor (another dtype), LocalTensor (attributes
that are made up, one for each rank)."""

from __future__ import annotations

import pytest
import torch
from class_table import FRONT_ENDS

import subclass_trace as st
from subclass_trace.subclass.flatten import leaves_of

complex_tensor = pytest.importorskip("torch._subclasses.complex_tensor", reason="this torch has no ComplexTensor")
local_tensor = pytest.importorskip("torch.distributed._local_tensor", reason="this torch has no LocalTensor")
ComplexTensor, LocalTensor = complex_tensor.ComplexTensor, local_tensor.LocalTensor


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def assert_same(expected: torch.Tensor | None, got: torch.Tensor | None) -> None:
    assert type(expected) is type(got)
    if expected is None or got is None:
        return
    assert expected.dtype == got.dtype and expected.shape == got.shape
    for e, g in zip(leaves_of(expected), leaves_of(got), strict=True):
        torch.testing.assert_close(g.detach(), e.detach())


# ---------------------------------------------------------------------------------------------- complex numbers
def cplx(*shape: int, seed: int = 0) -> torch.Tensor:
    return ComplexTensor(numbers(*shape, seed=seed), numbers(*shape, seed=seed + 1)).requires_grad_()


COMPLEX = {
    "product": lambda x, y: x @ y,
    "elementwise": lambda x, y: (x * y + x.exp()) / 2,
    "dense results": lambda x, y: ((x * y).abs().sin(), torch.view_as_real(x) * 2),
    "views": lambda x, y: (x.t()[1:], x.reshape(-1) * 2),
}


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("name", COMPLEX)
def test_complex_numbers(name: str, front_end: str) -> None:
    f = COMPLEX[name]
    compiled = FRONT_ENDS[front_end](f)
    for _ in range(2):
        rows = []
        for call in (f, compiled):
            x, y = cplx(4, 4), cplx(4, 4, seed=5)
            outs = call(x, y)
            outs = outs if isinstance(outs, tuple) else (outs,)
            torch.autograd.backward(outs, [o.detach() for o in outs])
            rows.append([*[o.detach() for o in outs], x.grad, y.grad])
        for e, g in zip(*rows, strict=True):
            assert_same(e, g)
    assert any(t is not None and t.dtype == torch.complex64 for t in rows[0][len(outs) :])


def test_inner_tensors_that_the_constructor_detaches_are_no_change_of_the_input() -> None:
    region = st.compile(lambda x: x * 2)
    x = cplx(3)
    before = x._re, x._im
    region(x)
    assert x._re is before[0] and x._im is before[1]
    assert region.specializations[0].plan.mutations.rows == ()


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_complex_numbers_changed_in_place(front_end: str) -> None:
    def change(x, y):
        x.mul_(y)
        return x + 1

    a, b = cplx(3).detach(), cplx(3).detach()
    y = cplx(3, seed=5).detach()
    assert_same(change(a, y), FRONT_ENDS[front_end](change)(b, y))
    assert_same(a, b)


# ---------------------------------------------------------------------------------------------- one tensor for each rank
def local(*shape: int, seed: int = 0) -> torch.Tensor:
    return LocalTensor({rank: numbers(*shape, seed=seed + rank) for rank in range(3)})


LOCAL = {
    "product": lambda x, w: torch.relu(x @ w),
    "reduction": lambda x, w: (x * 2).sum(0) + w[0],
    "views": lambda x, w: (x.t()[1:], w.reshape(-1) * 2),
}


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("name", LOCAL)
def test_local_tensors(name: str, front_end: str) -> None:
    f = LOCAL[name]
    compiled = FRONT_ENDS[front_end](f)
    for _ in range(2):
        rows = []
        for call in (f, compiled):
            x, w = local(4, 4).requires_grad_(), local(4, 4, seed=9).requires_grad_()
            outs = call(x, w)
            outs = outs if isinstance(outs, tuple) else (outs,)
            torch.autograd.backward(outs, [torch.ones_like(o) for o in outs])
            rows.append([*[o.detach() for o in outs], x.grad, w.grad])
        for e, g in zip(*rows, strict=True):
            assert_same(e, g)


def test_other_ranks_are_another_specialization() -> None:
    region = st.compile(lambda x: x * 2)
    for ranks in ((0, 1), (0, 1, 2), (0, 1)):
        x = LocalTensor({r: numbers(2, seed=r) for r in ranks})
        assert_same(x * 2, region(x))
    assert len(region.specializations) == 2, region.explain()
