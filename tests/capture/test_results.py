"""Operations that come again in a capture get their results without the fake kernel, and the same ones."""

from __future__ import annotations

import pytest
import torch

import subclass_trace as st
from subclass_trace import verify


def test_a_view_has_the_storage_of_its_own_argument():
    def f(x, y):
        a, b = x.t(), y.t()
        b.add_(1)
        return a * b, a, b

    x, y = torch.ones(2, 3), torch.ones(2, 3)
    expected = f(x.clone(), y.clone())
    got = st.compile(f, backend="eager")(x, y)
    for a, b in zip(expected, got, strict=True):
        assert torch.equal(a, b)
    assert got[1]._base is x
    assert got[2]._base is y


def test_numbers_of_another_type_are_other_operations():
    x = torch.arange(3)
    got = st.compile(lambda x: (x + 1, x + 1.0, x + True), backend="eager")(x)
    assert [t.dtype for t in got] == [torch.int64, torch.float32, torch.int64]


@pytest.mark.parametrize("stride", [(3, 1), (7, 1), (1, 1), (2, 2)])
@pytest.mark.parametrize("shape", [(1, 3), (3, 1), (1, 1, 3), (3,)])
def test_views_have_the_strides_of_eager(shape, stride):
    """Those of dimensions of size 1, too: a graph that asks for them goes on with these."""
    asked = []

    def f(x):
        y = x.view(shape)
        asked.append(
            (y.stride(), y.unsqueeze(0).stride(), y.t().stride() if y.dim() < 3 else y.transpose(0, 2).stride())
        )
        return y + 1

    x = torch.empty_strided((1, 3), stride).fill_(1)
    assert torch.equal(f(x), st.compile(f, backend="eager")(x))
    assert asked[0] == asked[1]


def test_strides_of_single_elements_are_nobodys() -> None:
    """The copy of a column has other ones than a fake kernel gives the column itself."""

    def f(x: torch.Tensor) -> torch.Tensor:
        column = x[[0, 1]][1:].t().relu()
        return column.copy_(column)

    x = torch.randn(3, 3)
    with verify.enabled():
        out = st.compile(f)(x)
    assert torch.equal(out, f(x)) and out.stride() == f(x).stride()
