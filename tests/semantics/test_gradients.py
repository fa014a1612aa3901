"""Gradients as objects, and what custom autograd Functions make of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.subclass.flatten import leaves_of
from subclass_trace.zoo import TwoTensor

# ----------------------------------- which require grad with ``create_graph``, and which are the very tangent that came
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


# --------------------------- custom Functions whose results are views, and whose backwards write to what they are given
class Reverse(torch.autograd.Function):
    """The input itself; its gradient is turned round."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * -5


class Flat(torch.autograd.Function):
    """A view."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.size = x.shape
        return x.view(-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.view(ctx.size) * 3


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.mul_(-2)


class Clamped(InPlace):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad.clamp_(-0.5, 0.5)
        return grad


FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "the input": Reverse.apply,
    "a row": lambda x: Reverse.apply(x)[0],
    "transposed": lambda x: Reverse.apply(x).t(),
    "a view of a value": lambda x: Reverse.apply(x * 2).view(-1),
    "flat, and a part": lambda x: Flat.apply(x)[1:],
    "of a view": lambda x: Flat.apply(x[:1]).view(2, 1).t(),
    "two": lambda x: (Reverse.apply(x).t(), x[1], Flat.apply(x)[:2]),
    "writes": InPlace.apply,
    "writes, twice": lambda x: InPlace.apply(Clamped.apply(x)),
    "writes, two results": lambda x: (Clamped.apply(x), InPlace.apply(x)),
}


@pytest.mark.parametrize(
    ("kind", "dynamic"),
    [
        *((kind, False) for kind in ("dense", "leaf", "wrapper", "nested")),
        *((kind, True) for kind in ("dense", "wrapper")),
        *(pytest.param(kind, True, marks=pytest.mark.slow) for kind in ("leaf", "nested")),
    ],
)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.sweep(every=4)
def test_gradients(name: str, kind: str, dynamic: bool) -> None:
    seen = []
    for call in (FUNCTIONS[name], st.compile(FUNCTIONS[name], dynamic=dynamic or None)):
        for _ in range(2):
            x = torch.arange(4.0).view(2, 2)
            if kind in ("wrapper", "nested"):
                x = TwoTensor(x, x + 1)
            if kind == "nested":
                x = TwoTensor(x, x * 2)
            leaf = x.requires_grad_()
            given = leaf if kind == "leaf" else leaf * 1
            results = call(given)
            results = results if isinstance(results, tuple) else (results,)
            tangents = [torch.ones_like(r.detach()) for r in results]
            (grad,) = torch.autograd.grad(results, leaf, tangents)
            seen.append([t.tolist() for r in (grad, *results) for t in leaves_of(r.detach())])
    assert all(row == seen[0] for row in seen)


@pytest.mark.parametrize("kind", ["dense", "leaf", "wrapper"])
@pytest.mark.parametrize("name", [n for n in FUNCTIONS if not n.startswith("writes")])
def test_views_that_custom_functions_make(name: str, kind: str) -> None:
    """Nobody may write them."""
    seen = []
    for call in (FUNCTIONS[name], st.compile(FUNCTIONS[name])):
        x = torch.arange(4.0).view(2, 2)
        leaf = (TwoTensor(x, x + 1) if kind == "wrapper" else x).requires_grad_()
        given = leaf if kind == "leaf" else leaf * 1
        results = call(given)
        rows: list[Any] = []
        for r in results if isinstance(results, tuple) else (results,):
            try:
                r.add_(1)
                written = "written"
            except RuntimeError as error:
                written = "custom Function" if "custom Function" in str(error) else "a leaf" * ("leaf" in str(error))
            rows.append((r._is_view(), written))
        seen.append(rows)
    assert seen[0] == seen[1]
