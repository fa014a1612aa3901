"""Composite operations that read values: one_hot, tensor_split, a cumulative batch norm; the same answers and errors as eager."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import subclass_trace as st

Tensor = torch.Tensor
X = torch.tensor([0, 1, 2])
HOT: dict[str, tuple[Tensor, int]] = {
    "right": (X, 3),
    "too large": (X, 2),
    "negative": (-X, 3),
    "no classes": (X, 0),
    "fewer": (X, -3),
    "empty": (X[:0], 3),
    "empty, of no classes": (X[:0], 0),
    "empty, of any number": (X[:0], -1),
    "any number": (X.view(3, 1), -1),
    "any number, negative": (-X, -1),
    "floats": (X.float(), 3),
    "int32": (X.int(), 3),
    "a number": (X[1], 3),
}


@pytest.mark.parametrize("name", HOT)
@pytest.mark.parametrize("dynamic", [False, True])
def test_one_hot(name: str, dynamic: bool) -> None:
    x, classes = HOT[name]
    try:
        expected: Any = F.one_hot(x, classes)
    except RuntimeError as error:
        expected = str(error)
    region = st.compile(lambda x: F.one_hot(x, classes), dynamic=dynamic)
    if isinstance(expected, str):
        with pytest.raises(RuntimeError) as caught:
            region(x)
        assert str(caught.value).splitlines()[0] == expected
    else:
        found = region(x)
        assert torch.equal(found, expected) and found.dtype is expected.dtype


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_one_hot_checks_each_call(backend: str) -> None:
    region = st.compile(lambda x: F.one_hot(x, num_classes=3).float() * 2, backend=backend)
    assert torch.equal(region(X), torch.eye(3) * 2)
    with pytest.raises(RuntimeError, match=r"Class values must be smaller than num_classes\."):
        region(X + 1)
    with pytest.raises(RuntimeError, match=r"Class values must be non-negative\."):
        region(X - 1)
    assert len(region.specializations) == 1


PLACES = torch.tensor([2, 5])


@pytest.mark.parametrize("dynamic", [False, True])
def test_tensor_split(dynamic: bool) -> None:
    def known(x: Tensor) -> Any:
        parts = x.tensor_split(torch.tensor([2, 5]), dim=0), torch.tensor_split(x, torch.tensor(4)), x.tensor_split(3)
        return tuple(p * 2 for row in parts for p in row)

    x = torch.arange(20.0).view(10, 2)
    for found, expected in zip(st.compile(known, dynamic=dynamic)(x), known(x), strict=True):
        assert torch.equal(found, expected)
    for call in (lambda: _split(x, PLACES, dynamic), lambda: st.compile(lambda x: x.tensor_split(PLACES)[0])(x)):
        with pytest.raises(st.DataDependentError, match="tensor_split") as caught:
            call()
        assert "test_value_checks.py:" in str(caught.value.path)
    with pytest.raises(RuntimeError, match="dtype of long"):
        st.compile(lambda x: x.tensor_split(torch.tensor([1.0])))(x)


def _split(x: Tensor, places: Tensor, dynamic: bool) -> Any:
    return st.compile(lambda x, n: torch.tensor_split(x, n)[0], dynamic=dynamic)(x, places)


@pytest.mark.parametrize("affine", [False, True])
def test_a_cumulative_batch_norm(affine: bool) -> None:
    models = [nn.BatchNorm1d(3, momentum=None, affine=affine)]
    models.append(copy.deepcopy(models[0]))
    calls = [models[0], st.compile(models[1])]
    for step in range(5):
        if step == 4:
            [m.eval() for m in models]
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))
        rows = []
        for call in calls:
            mine = x.clone().requires_grad_()
            out = call(mine)
            out.sin().sum().backward()
            rows.append((out, mine.grad))
        for found, expected in zip(rows[1], rows[0], strict=True):
            torch.testing.assert_close(found, expected)
        for found, expected in zip(models[1].buffers(), models[0].buffers(), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-7, atol=0)  # float32 resolves 6e-8
            assert found._version == expected._version
    assert len(calls[1].specializations) == 2


SIZES: dict[str, Any] = {
    "reshape": lambda x, n: x.reshape(n, 2),
    "pieces": lambda x, n: x.split([n, 3])[1],
    "pad": lambda x, n: F.pad(x, (n, 1)),
    "interpolate": lambda x, n: F.interpolate(x.view(1, 1, 6), size=(n,)),
    "zeros": lambda x, n: torch.zeros(n, 2) + x[0],
    "new": lambda x, n: x.new_ones((n, 2)).sum(),
}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("number", [False, True])
def test_sizes_that_are_tensors(name: str, dynamic: bool, number: bool) -> None:
    def f(x: Tensor, n: Tensor) -> Tensor:
        return SIZES[name](x, n.item() if number else n)  # type: ignore[no-any-return]

    region, x = st.compile(f, dynamic=dynamic), torch.arange(6.0)
    for k in (3, 4):
        try:
            expected: Any = f(x, torch.tensor(k))
        except RuntimeError:
            with pytest.raises(RuntimeError):
                region(x, torch.tensor(k))
        else:
            assert torch.equal(region(x, torch.tensor(k)), expected)
    assert len(region.specializations) == 1
