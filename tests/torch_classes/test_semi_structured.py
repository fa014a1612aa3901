"""2:4 sparse weights (SparseSemiStructuredTensorCUTLASS): on a CPU with reference kernels, on a GPU with the real ones.

The list of inner tensors depends on the value (``packed`` or its transposed twin may be missing) and changes under
``t()``. PyTorch has no CPU kernels for the two products; those registered here unpack and multiply densely.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from class_table import FRONT_ENDS
from torch.sparse import SparseSemiStructuredTensorCUTLASS as Sparse
from torch.sparse import to_sparse_semi_structured
from torch.sparse._semi_structured_conversions import (
    _sparse_semi_structured_tile,
    sparse_semi_structured_from_dense_cutlass,
    sparse_semi_structured_to_dense_cutlass,
)

import subclass_trace as st

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of SparseSemiStructuredTensor:UserWarning")
BF16 = torch.bfloat16


@pytest.fixture(scope="module", autouse=True)
def _reference_kernels():
    library = torch.library.Library("aten", "IMPL")

    def mm(packed, meta, dense, out_dtype=None):
        return sparse_semi_structured_to_dense_cutlass(packed, meta) @ dense

    def addmm(bias, packed, meta, dense, *, alpha=1, beta=1, out_dtype=None):
        return beta * bias.reshape(-1, 1) + alpha * mm(packed, meta, dense)

    library.impl("_sparse_semi_structured_mm", mm, "CPU")
    library.impl("_sparse_semi_structured_addmm", addmm, "CPU")
    yield
    library._destroy()


def pruned(rows: int = 64, columns: int = 64, seed: int = 0) -> torch.Tensor:
    """A dense matrix with two zeros in each group of four, along rows and along columns."""
    dense = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).to(BF16)
    return _sparse_semi_structured_tile(dense)


def sparse(dense: torch.Tensor, sides: int = 2, requires_grad: bool = False) -> torch.Tensor:
    packed, meta = sparse_semi_structured_from_dense_cutlass(dense)
    packed_t, meta_t = sparse_semi_structured_from_dense_cutlass(dense.t().contiguous()) if sides == 2 else (None, None)
    return Sparse(
        dense.shape,
        packed=packed,
        meta=meta,
        packed_t=packed_t,
        meta_t=meta_t,
        compressed_swizzled_bitmask=None,
        requires_grad=requires_grad,
    )


def x_and_bias():
    torch.manual_seed(1)
    return torch.randn(32, 64, dtype=BF16, requires_grad=True), torch.randn(64, dtype=BF16, requires_grad=True)


def step(f, weight: torch.Tensor) -> list[torch.Tensor | None]:
    x, bias = x_and_bias()
    out = f(x, weight, bias)
    out.backward(torch.ones_like(out))
    return [out.detach(), x.grad, bias.grad, weight.grad]


def layer(x, w, b):
    return F.linear(x, w, b).relu()


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_linear_layer(front_end: str, trains: bool) -> None:
    dense = pruned()
    compiled = FRONT_ENDS[front_end](layer)
    for _ in range(2):
        eager, got = (
            step(layer, sparse(dense, requires_grad=trains)),
            step(compiled, sparse(dense, requires_grad=trains)),
        )
        reference = step(layer, dense.clone().requires_grad_(trains))
        for e, g, r in zip(eager, got, reference, strict=True):
            assert type(e) is type(g)
            if g is not None:
                torch.testing.assert_close(g, e, rtol=0, atol=0)
                torch.testing.assert_close(g, r, rtol=0.05, atol=0.05)
    assert (got[3] is not None) == trains
    if front_end == "functional":
        assert len(compiled.specializations) == 1


def test_a_module_whose_weight_is_sparse() -> None:
    dense = pruned(32, 64)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32, bias=False, dtype=BF16), torch.nn.GELU())
    model[0].weight = torch.nn.Parameter(sparse(dense), requires_grad=True)
    compiled = st.compile(model)
    rows = []
    for call in (model, compiled):
        x = torch.randn(32, 64, generator=torch.Generator().manual_seed(2)).to(BF16).requires_grad_()
        call(x).float().square().sum().backward()
        rows.append((x.grad, model[0].weight.grad))
        model[0].weight.grad = None
    for e, g in zip(*rows, strict=True):
        assert type(e) is type(g)
        torch.testing.assert_close(g, e, rtol=0, atol=0)


# ---------------------------------------------------------------------------------------------- the attribute list
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_the_inner_tensors_change_under_t(front_end: str) -> None:
    one_sided = sparse(pruned(), sides=1)
    compiled = FRONT_ENDS[front_end](lambda w: w.t())
    got, eager = compiled(one_sided), one_sided.t()
    assert one_sided.__tensor_flatten__()[0] == ["packed", "meta"]
    assert eager.__tensor_flatten__()[0] == got.__tensor_flatten__()[0] == ["packed_t", "meta_t"]
    assert got.shape == eager.shape
    assert got.packed_t.untyped_storage().data_ptr() == one_sided.packed.untyped_storage().data_ptr()
    assert torch.equal(got.packed_t, eager.packed_t) and torch.equal(got.meta_t, eager.meta_t)


def test_each_list_of_inner_tensors_is_a_specialization() -> None:
    region = st.compile(F.linear)
    dense = pruned()
    x = x_and_bias()[0].detach()
    for sides in (1, 2, 1, 2):
        torch.testing.assert_close(region(x, sparse(dense, sides)), F.linear(x, sparse(dense, sides)), rtol=0, atol=0)
    assert len(region.specializations) == 2, region.explain()


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_backward_that_one_side_cannot_serve_fails_as_in_eager(front_end: str) -> None:
    dense = pruned()
    for f in (layer, FRONT_ENDS[front_end](layer)):
        x, bias = x_and_bias()
        with pytest.raises(
            NotImplementedError, match="`SparseSemiStructuredTensorCUTLASS` matmul: operation is not supported"
        ):
            f(x, sparse(dense, sides=1), bias).sum().backward()


def test_operations_that_the_class_does_not_have_fail_as_in_eager() -> None:
    weight = sparse(pruned())
    for f in (lambda w: w + w, lambda w: w.mul(2)):
        with pytest.raises(NotImplementedError) as eager:
            f(weight)
        with pytest.raises(NotImplementedError) as caught:
            st.compile(f)(weight)
        assert str(caught.value).splitlines()[0] == str(eager.value).splitlines()[0]


# ---------------------------------------------------------------------------------------------- on a GPU
@pytest.mark.cuda
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_the_real_kernels(front_end: str) -> None:
    dense = pruned(128, 128).to("cuda", torch.float16)
    weight = to_sparse_semi_structured(dense)
    x = torch.randn(64, 128, device="cuda", dtype=torch.float16)
    compiled = FRONT_ENDS[front_end](lambda x, w: F.linear(x, w).relu())
    for _ in range(2):
        torch.testing.assert_close(compiled(x, weight), F.linear(x, weight).relu(), rtol=0, atol=0)
        torch.testing.assert_close(compiled(x, weight), F.linear(x, dense).relu(), rtol=1e-2, atol=1e-2)
