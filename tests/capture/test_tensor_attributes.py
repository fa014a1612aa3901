"""Python attributes that a region sets on its arguments and results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.capture.facts import holds_traced
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


def _argument(x: Any) -> Tensor:
    x.num, x.aux, x.label = x.shape[0], x + 1, "x"
    return x * 1


def _result(x: Any) -> Tensor:
    y: Any = x * 2
    y.num, y.aux, y.label = x.shape[0] + 1, x * 3, "y"
    return y  # type: ignore[no-any-return]


def _view(x: Any) -> Tensor:
    y: Any = x.view(-1)
    y.num, y.aux = x.shape[0], x + 1
    return y  # type: ignore[no-any-return]


def _same(x: Any) -> Tensor:
    x.num = x.shape[0]
    return x  # type: ignore[no-any-return]


def _picture(value: Tensor) -> str:
    held = {k: v for k, v in sorted(vars(value).items()) if k in ("num", "aux", "label")}
    return repr((held, {k: v.grad_fn is None for k, v in held.items() if isinstance(v, Tensor)}, value))


@pytest.mark.parametrize("function", [_argument, _result, _view, _same])
@pytest.mark.parametrize("grad", [False, True])
def test_attributes_of_tensors(function: Callable[[Tensor], Tensor], grad: bool) -> None:
    region = st.compile(function)
    for size in (2, 3, 4):
        x, twin = (torch.ones(size, requires_grad=grad) for _ in range(2))
        got, expected = region(x), function(twin)
        assert str(vars(got).get("num")) == str(vars(expected).get("num"))
        assert not holds_traced(vars(got)) and not holds_traced(vars(x))
        if not grad:  # with it, the names of autograd nodes differ
            assert _picture(got) == _picture(expected) and _picture(x) == _picture(twin)
        elif "aux" in vars(expected):
            (a,), (b,) = (torch.autograd.grad(y.aux.sum() + y.sum(), t) for y, t in ((got, x), (expected, twin)))
            assert torch.equal(a, b)


def test_attributes_of_a_wrapper() -> None:
    region = st.compile(_result)
    for size in (2, 3, 4):
        x = TwoTensor(torch.ones(size), torch.zeros(size))
        got, expected = region(x), _result(x)
        assert got.num == expected.num and type(got.num) is int and torch.equal(got.aux.a, expected.aux.a)


def test_containers_of_tensors() -> None:
    """As an attribute of an argument; those of a result are refused."""

    def f(x: Any) -> Tensor:
        y: Any = x * 2
        x.pair = (1, {"deep": y + 1})
        return y  # type: ignore[no-any-return]

    def of_result(x: Any) -> Tensor:
        y: Any = x * 2
        y.pair = (1, {"deep": y + 1})
        return y  # type: ignore[no-any-return]

    region = st.compile(f)
    for k in (1.0, 2.0):
        x, twin = torch.full((2,), k), torch.full((2,), k)
        assert str((region(x), vars(x))) == str((f(twin), vars(twin))) and not holds_traced(vars(x))
    with pytest.raises(st.UnsupportedError, match="holds traced tensors") as caught:
        st.compile(of_result)(torch.ones(2))
    assert caught.value.path == "result[0].pair"


def test_what_a_fake_tensor_remembers_is_no_attribute() -> None:
    def f(n: Tensor, x: Tensor) -> Tensor:
        return x * n.item()

    n = torch.tensor(3)
    assert st.compile(f)(n, torch.ones(2)).tolist() == [3, 3] and vars(n) == {}


@pytest.mark.parametrize("wrapped", [False, True])
def test_attributes_of_a_view_that_its_base_stands_for(wrapped: bool) -> None:
    """What is written differentiably through a view makes its base the input; the attributes are still the view's."""

    def function(base: Tensor, view: Tensor) -> Tensor:
        count = getattr(view, "count", 0)
        view.count, view.total, view.rows = count + 1, base.sum().detach(), view.shape[0]
        view.mul_(3 if count > 2 else 2)
        return base.sum() + view.sum()

    region, found = st.compile(function), []
    for f in (function, region):
        x = torch.ones(4)
        x = (TwoTensor(x, x.clone()) if wrapped else x).requires_grad_()
        base = x * 1
        view = base[:2]
        for _ in range(5):
            result = f(base, view)
            total = view.total.a if wrapped else view.total
            found.append(((result.a if wrapped else result).item(), view.count, total.item(), view.rows))
        assert "count" not in vars(base)
    assert found[:5] == found[5:]


def test_an_attribute_of_such_a_view_is_deleted() -> None:
    def function(base: Tensor, view: Tensor) -> Tensor:
        view.count = 1
        del view.count, view.note
        view.mul_(2)
        return base * 2

    region, found = st.compile(function), []
    for f in (function, region, region):
        base = torch.ones(4, requires_grad=True) * 1
        view: Any = base[:2]
        view.note = "part"
        found.append((f(base, view).tolist(), base.tolist(), vars(view)))
    assert found[0] == found[1] == found[2]
