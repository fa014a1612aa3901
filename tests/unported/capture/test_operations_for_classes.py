"""A class is handed the operations that eager hands it, at each size: with symbolic sizes torch has other forms of some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
import torch.autograd.forward_ad as fwAD
import torch.nn.functional as F

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
aten = torch.ops.aten
#: how a dense tensor is made a view, or a copy, of another one is torch's matter
_PASSING = {"aten.detach.default", "aten.alias.default"}


class Logged(TwoTensor):
    """Notes what it is asked to do."""

    rows: ClassVar[tuple[list[str], ...]] = ()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func) not in _PASSING:
            for rows in cls.rows:
                rows.append(str(func))
        return TwoTensor.__torch_dispatch__.__func__(cls, func, types, args, kwargs)  # type: ignore[attr-defined]


def _labels(x: Tensor) -> Tensor:
    return torch.arange(x.shape[0]) % x.shape[1]


def _statistics(x: Any) -> Any:
    return F.batch_norm(x, torch.zeros(x.shape[1]), torch.ones(x.shape[1]), training=True)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "dropout by 1": lambda x: F.dropout(x, 1.0),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "batch_norm with plain statistics": _statistics,
    "instance_norm": lambda x: F.instance_norm(x.view(1, *x.shape)),
    "multi_margin_loss": lambda x: F.multi_margin_loss(x, _labels(x)),
    "multi_dot": lambda x: torch.linalg.multi_dot([x, x.t(), x]),
    "block_diag": lambda x: torch.block_diag(x, x),
    "take_along_dim": lambda x: x.take_along_dim(_labels(x)[:, None], 1),
    "matmul of batches": lambda x: x[None] @ x.t()[None],
    "matmul of a batch and a matrix": lambda x: x[:, None, :] @ x.t(),
    "matmul of a batch and a vector": lambda x: x[:, None, :] @ x[0],
}


def _seen(f: Callable[[Any], Any], x: Any) -> tuple[Any, list[str]]:
    rows: list[str] = []
    Logged.rows = (rows,)
    torch.manual_seed(0)
    try:
        return f(x), rows
    finally:
        Logged.rows = ()


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
def test_operations_that_a_class_sees(name: str, trains: bool, dynamic: bool | None) -> None:
    f = FUNCTIONS[name]
    region = st.compile(f) if dynamic is None else st.compile(f, dynamic=dynamic)
    for n in (4, 6, 7):
        torch.manual_seed(n)
        a, b = torch.rand(n, 5), torch.rand(n, 5)
        known = len(region.specializations)
        (e, wanted), (o, found) = (_seen(g, Logged(a, b).requires_grad_(trains)) for g in (f, region))
        if len(region.specializations) > known:  # it was traced
            assert found[: len(wanted)] == wanted
        assert torch.equal(e.a, o.a) and torch.equal(e.b, o.b)
        assert (e.stride(), e._version, e._is_view()) == (o.stride(), o._version, o._is_view())


DUALS: dict[str, Callable[..., Any]] = {
    "of a value": lambda x, v: fwAD.unpack_dual((fwAD.make_dual(x, v) * 2).sin()),
    "of an argument": lambda x, v: fwAD.unpack_dual(fwAD.make_dual(x, v)),
    "of a part": lambda x, v: fwAD.unpack_dual(fwAD.make_dual(x, v).sin()[1:]),
}


@pytest.mark.parametrize("name", DUALS)
@pytest.mark.parametrize("trains", [False, True])
def test_duals_that_are_returned(name: str, trains: bool) -> None:
    def f(x: Tensor, v: Tensor) -> Any:
        with fwAD.dual_level():
            return DUALS[name](x, v)

    region = st.compile(f)
    for n in (2, 3, 4):
        x, v = torch.rand(n, 3, requires_grad=trains), torch.rand(n, 3)
        for a, b in zip(f(x, v), region(x, v), strict=True):
            assert torch.equal(a, b)
            assert (a._base is x, a.requires_grad) == (b._base is x, b.requires_grad)
