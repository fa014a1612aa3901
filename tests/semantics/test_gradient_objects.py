"""Gradients as objects: which require grad with ``create_graph``, and which are the very tangent that came."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


def _dense() -> Tensor:
    return torch.randn(3, 3)


def _two() -> Tensor:
    return TwoTensor(_dense(), _dense())


PROGRAMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "linear": lambda x, w: x * 2 + w,
    "product": lambda x, w: x * w,
    "passed on": lambda x, w: (x.clone(), w.sin()),
    "of the other": lambda x, w: x.detach().sin() * w,
}


def _kinds(gradients: Any) -> list[Any]:
    return [None if g is None else (type(g), g.requires_grad, g.is_leaf) for g in gradients]


@pytest.mark.parametrize("make", [_dense, _two])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_requires_grad_with_create_graph(name: str, make: Callable[[], Tensor]) -> None:
    region = st.compile(PROGRAMS[name])
    for weight in (True, False):
        for tracked in ((True, False), (False, True), (False, False)):
            seen = []
            for call in (PROGRAMS[name], region, region):
                torch.manual_seed(0)
                x, w = make().requires_grad_(), make().requires_grad_(weight)
                out = call(x, w)
                outs = [o for o in (out if isinstance(out, tuple) else (out,)) if o.requires_grad]
                tangents = [make().requires_grad_(t) for t in tracked[: len(outs)]]
                inputs = [t for t in (x, w, *tangents) if t.requires_grad]
                first = torch.autograd.grad(outs, inputs[: 1 + weight], tangents, create_graph=True, allow_unused=True)
                live = [g for g in first if g is not None and g.requires_grad]
                ones = [torch.ones_like(g) for g in live]
                second = torch.autograd.grad(live, inputs, ones, allow_unused=True) if live else ()
                values = [g if g is None or make is _dense else torch.stack([g.a, g.b]) for g in second]
                seen.append((_kinds(first), _kinds(second), values))
            for kinds, kinds_of_second, values in seen[1:]:
                assert (kinds, kinds_of_second) == seen[0][:2]
                for a, b in zip(values, seen[0][2], strict=True):
                    assert (a is None and b is None) or torch.equal(a, b)


@pytest.mark.parametrize("make", [_dense, _two])
def test_a_tangent_that_is_handed_on_is_handed_on_itself(make: Callable[[], Tensor]) -> None:
    region = st.compile(lambda x, w: x + w)
    for _ in range(2):
        x, w, tangent = make().requires_grad_(), make().requires_grad_(), make()
        y = region(x, w)
        assert all(g is tangent for g in torch.autograd.grad(y, [x, w], tangent, retain_graph=True))
        y.backward(tangent)
        parts = [t.a if make is _two else t for t in (x.grad, w.grad, tangent)]
        assert len({t.untyped_storage().data_ptr() for t in parts}) == 3  # as eager: nobody's .grad is another's


def test_gradients_that_are_one_object_stay_one_object() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return (x + w).view(-1)

    region = st.compile(function)
    for call in (function, region, region):
        x, w = _two().requires_grad_(), _two().requires_grad_()
        first, second = torch.autograd.grad(call(x, w), [x, w], TwoTensor(torch.ones(9), torch.ones(9)))
        assert first is second


# ---------------------------------------------------------------------------------------------- strides


@pytest.mark.usefixtures("own_backward")
def test_tangents_of_ever_other_strides_trace_so_many_backwards_and_no_more() -> None:
    region, buffer = st.compile(lambda x: x * 2), torch.ones(3, 64)
    for n in range(20):
        x = torch.randn(3, 2, requires_grad=True)
        gradient = torch.autograd.grad(region(x), x, buffer.as_strided((3, 2), (2 + n, 1)))[0]
        assert torch.equal(gradient, torch.full((3, 2), 2.0))
    backwards = region.specializations[0].program.backwards
    assert backwards is not None and len(backwards.compiled) <= 16
