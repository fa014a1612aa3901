"""Composite operations that read values: one_hot, tensor_split, a cumulative batch norm; the same answers and errors as eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

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
def test_sizes_that_are_numbers_inside_tensors(name: str, dynamic: bool) -> None:
    def f(x: Tensor, n: Tensor) -> Tensor:
        return SIZES[name](x, n.item())  # type: ignore[no-any-return]

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
