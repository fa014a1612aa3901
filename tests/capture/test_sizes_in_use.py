"""Sizes as an index: one specialization for all sizes. Where a size has to be a number, `explain()` names the line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
SIZES = (5, 6, 8)


def _written(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, x.shape[1] - 1] = 7
    y[x.shape[0] - 1, 1:] = x[0, 1:]
    return y


def _input_written(x: Tensor) -> Tensor:
    x.detach()[:, x.shape[1] - 1] = 3
    return x * 2


INDEXED: dict[str, Callable[[Tensor], Any]] = {
    "last row": lambda x: x[x.shape[0] - 1],
    "after an ellipsis": lambda x: x[..., x.shape[-1] - 2],
    "new dimensions": lambda x: x[None, :, x.shape[1] - 1, None],
    "with a slice": lambda x: x[1:3, x.shape[1] - 1],
    "before a slice": lambda x: x[x.shape[0] - 1, 1 : x.shape[1] - 1 : 2],
    "with places": lambda x: x[torch.tensor([0, 2]), x.shape[1] - 1],
    "with a number from inside": lambda x: x[torch.tensor(1), x.shape[1] - 1],
    "half": lambda x: x[:, : x.shape[1] // 2],
    "a chain of views": lambda x: x.unsqueeze(0).narrow(2, 1, x.shape[1] - 2).transpose(0, 2),
    "expanded": lambda x: x[:1, :1].expand(2, x.shape[1] + 1),
    "written": _written,
    "an input written": _input_written,
    "out of bounds": lambda x: x[:, x.shape[1]],
    "below the bounds": lambda x: x[:, -x.shape[1] - 1],
    "too many": lambda x: x[0, 0, x.shape[1] - 1],
}


def _made(columns: int, kind: str, grad: bool) -> Tensor:
    numbers = torch.arange(4.0 * columns).view(4, columns)
    x = TwoTensor(numbers.sin(), numbers.cos()) if kind == "wrapper" else numbers.sin()
    return x.requires_grad_(grad)


def _shown(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_shown(v) for v in value]
    if not isinstance(value, Tensor):
        return type(value), value
    base = value._base
    aliased = value._is_view(), None if base is None else (type(base), base.shape)
    return type(value), str(value.detach()), value.stride(), value.storage_offset(), value.requires_grad, aliased


def _run(f: Callable[[Tensor], Any], columns: int, kind: str, grad: bool) -> Any:
    x = _made(columns, kind, grad)
    try:
        out = f(x)
    except (IndexError, RuntimeError, TypeError) as error:
        return type(error), str(error).partition("\n")[0]
    first = out[0] if isinstance(out, tuple) else out
    shown = _shown(out)
    if grad:
        (first * first).sum().backward()
    return shown, str(x.detach()), str(x.grad)


@pytest.mark.parametrize(("kind", "dynamic"), [("wrapper", False), ("dense", True)])
@pytest.mark.parametrize("f", [pytest.param(f, id=name) for name, f in INDEXED.items()])
def test_as_in_eager_for_all_sizes(f: Callable[[Tensor], Any], kind: str, dynamic: bool) -> None:
    """With and without gradients: at most two specializations each."""
    region = st.compile(f, dynamic=dynamic or None)
    for columns in SIZES:
        for grad in (False, True):
            assert _run(region, columns, kind, grad) == _run(f, columns, kind, grad)
    assert len(region.specializations) <= (2 if dynamic else 4)


def test_length_of_a_class_of_its_own() -> None:
    """``len`` is what the class says."""

    class Long(TwoTensor):
        def __len__(self) -> int:
            return 17

    region = st.compile(lambda x: x * len(x), dynamic=True)
    for n in SIZES:
        assert str(region(Long(torch.ones(n), torch.zeros(n)))) == str(Long(torch.ones(n), torch.zeros(n)) * 17)
