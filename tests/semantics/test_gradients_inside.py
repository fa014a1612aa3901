"""``.grad`` and ``.backward()`` inside a region: what eager leaves in every call, with and without a gradient at first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.errors import UnsupportedError
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


def _dense() -> Tensor:
    return torch.randn(3)


def _two() -> Tensor:
    return TwoTensor(torch.randn(3), torch.randn(3))


def _leaf(kind: Callable[[], Tensor], gradient: bool) -> Tensor:
    x = kind().requires_grad_()
    if gradient:
        x.grad = kind()
    return x


def _loss(x: Tensor) -> Tensor:
    return (x * x).sum()


def _adds(x: Tensor) -> Any:
    _loss(x).backward()


def _adds_twice(x: Tensor) -> Any:
    _loss(x).backward()
    x.sin().sum().backward()
    return x.grad, x * 1


def _retains(x: Tensor) -> Any:
    loss = _loss(x)
    loss.backward(retain_graph=True)
    loss.backward()
    return loss.detach()


def _sets(x: Tensor) -> Any:
    gradient = x.detach() * 2
    x.grad = gradient
    return gradient, x.grad


def _changes(x: Tensor) -> Any:
    if x.grad is None:
        return x * 1
    x.grad.mul_(2)
    return x * 2 + x.grad


def _replaces(x: Tensor) -> Any:
    if x.grad is not None:
        x.grad = x.grad * 2
        x.grad.add_(1)
    return x.grad


def _drops(x: Tensor) -> Any:
    before, x.grad = x.grad, None
    return before


def _deletes(x: Tensor) -> Any:
    del x.grad


def _descends(x: Tensor) -> Any:
    _loss(x).backward()
    with torch.no_grad():
        x.sub_(x.grad, alpha=0.1)
    x.grad = None
    return x


def _several_roots(x: Tensor) -> Any:
    torch.autograd.backward([(x * 2).sum(), (x * 3).sum()])


def _inner_hook(x: Tensor) -> Any:
    h = x * 2
    h.register_hook(lambda g: g * 3)
    h.retain_grad()
    (h * h).sum().backward()
    return h.grad, x.grad


def _own_leaf(x: Tensor) -> Any:
    y = x.detach().clone().requires_grad_()
    y.register_hook(lambda g: g * 3)
    for _ in range(2):
        (y * y * x).sum().backward()
    torch.autograd.backward([y, y.cos()], [x.detach(), x.detach()])
    return y.grad * 1, y.grad is y.grad  # type: ignore[operator]


PROGRAMS = {
    f.__name__: f
    for f in (
        _adds,
        _adds_twice,
        _retains,
        _sets,
        _changes,
        _replaces,
        _drops,
        _deletes,
        _descends,
        _several_roots,
        _inner_hook,
        _own_leaf,
    )
}


def _parts(t: Any) -> Any:
    if isinstance(t, TwoTensor):
        return "two", t.a.detach().tolist(), t.b.detach().tolist(), t.requires_grad
    if isinstance(t, Tensor):
        return "dense", t.detach().tolist(), t.stride(), t.requires_grad
    return [_parts(v) for v in t] if isinstance(t, tuple) else t


def _after(x: Tensor, out: Any) -> Any:
    flat = out if isinstance(out, tuple) else (out,)
    same = [[a is b for b in (x, x.grad)] for a in flat if isinstance(a, Tensor)]
    shared = [isinstance(a, Tensor) and type(a) is Tensor and _shares(a, x.grad) for a in flat]
    return _parts(x.detach()), x._version, _parts(x.grad), _parts(out), same, shared


def _shares(a: Tensor, b: Any) -> bool:
    return type(b) is Tensor and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


@pytest.mark.parametrize("kind", [_dense, _two])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str, kind: Callable[[], Tensor]) -> None:
    region = st.compile(PROGRAMS[name])
    for call, gradient in enumerate((False, True, True, False, True)):
        seen = []
        for function in (PROGRAMS[name], region):
            torch.manual_seed(call)
            x = _leaf(kind, gradient)
            seen.append(_after(x, function(x)))
        assert seen[1] == seen[0]
    assert len(region.specializations) <= 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(2, 3),
        lambda: torch.randn(3, 2).t(),
        lambda: torch.randn(2, 2, 3)[:, 0],
        lambda: torch.randn(2, 1).expand(2, 3),
        lambda: torch.randn(1, 3).t().expand(3, 2).t(),
    ],
)
def test_the_layout_is_that_of_eager(make: Callable[[], Tensor]) -> None:
    def step(x: Tensor, w: Tensor) -> None:
        (x.t() * w).sum().backward()

    region, w, seen = st.compile(step), torch.randn(3, 2), []
    for function in (step, region):
        torch.manual_seed(0)
        x = make().detach().requires_grad_()
        function(x, w)
        assert x.grad is not None
        seen.append((x.grad.stride(), x.grad.tolist()))
    assert seen[1] == seen[0]


def test_one_gradient_for_two_leaves_is_two_tensors() -> None:
    def step(x: Tensor, y: Tensor) -> None:
        (x + y).backward(torch.ones(3))

    x, y = (torch.zeros(3, requires_grad=True) for _ in range(2))
    st.compile(step)(x, y)
    assert x.grad is not None and y.grad is not None
    x.grad.add_(1)
    assert (x.grad.tolist(), y.grad.tolist()) == ([2.0] * 3, [1.0] * 3)


def test_what_was_freed_stays_freed() -> None:
    def free(x: Tensor) -> Tensor:
        y = x * x
        y.sum().backward()
        return y

    def keep(x: Tensor) -> Tensor:
        y = x * x
        y.sum().backward(retain_graph=True)
        return y

    x = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="second time"):
        st.compile(free)(x).sum().backward()
    x.grad = None
    st.compile(keep)(x).sum().backward()
    assert x.grad.tolist() == [4.0] * 3


def test_what_eager_refuses_of_gradients() -> None:
    def shape(x: Tensor) -> None:
        x.grad = torch.ones(4)

    def kind(x: Tensor) -> None:
        x.grad = 3  # type: ignore[assignment]

    for function, error in ((shape, RuntimeError), (kind, TypeError)):
        x = torch.zeros(3, requires_grad=True)
        with pytest.raises(error, match="assign"):
            st.compile(function)(x)
        assert x.grad is None


def test_closed_over_leaves() -> None:
    weights = [torch.ones(2, requires_grad=True), torch.full((2,), 2.0, requires_grad=True)]

    def step(x: Tensor) -> Any:
        (weights[0] * weights[1] * x).sum().backward()
        return [w.grad.sum() for w in weights]

    region = st.compile(step)
    for function, factor in ((region, 1.0), (region, 2.0), (step, 3.0), (region, 4.0)):
        assert [float(g) for g in function(torch.ones(2))] == [4.0 * factor, 2.0 * factor]
    weights[1].grad = None
    assert [float(g) for g in region(torch.ones(2))] == [20.0, 2.0]
    assert len(region.specializations) == 3


@pytest.mark.parametrize("kind", [_dense, _two])
@pytest.mark.parametrize("create_graph", [False, True])
def test_the_rest_of_a_base_keeps_its_gradient(kind: Callable[[], Tensor], create_graph: bool) -> None:
    """A view is written in the region, which does not know its base."""

    def write(v: Tensor) -> Tensor:
        v.mul_(2)
        return v + 1

    seen = []
    for call in (write, st.compile(write)):
        torch.manual_seed(0)
        w = kind().requires_grad_()
        h = w * 1
        part = h[1:]
        out = call(part)
        tangents = [torch.ones_like(h) * 3, torch.ones_like(out)]
        (gradient,) = torch.autograd.grad([h * 1, out], w, tangents, create_graph=create_graph)
        seen.append(_parts(gradient.detach()))
    assert seen[1] == seen[0]


def test_a_later_backward_adds_to_a_gradient_that_was_handed_out() -> None:
    def f(x: Tensor) -> tuple[Tensor | None, Tensor]:
        w = torch.ones(3, requires_grad=True)
        y = w * x
        y.sum().backward(retain_graph=True)
        return w.grad, y

    with pytest.raises(UnsupportedError, match="whose gradient a backward of the region has set"):
        st.compile(f)(torch.ones(3, requires_grad=True))


# ---------------------------------------------------------------------------------------------- torch.autograd.grad
def _slope(x: Tensor) -> Tensor:
    (g,) = torch.autograd.grad(x.sin().sum(), x, create_graph=True)
    return g


def _add_hook(x: Tensor) -> Any:
    return x.register_hook(lambda g: g * 10)


@pytest.mark.parametrize("kind", [_dense, _two])
@pytest.mark.parametrize("is_leaf", [True, False])
@pytest.mark.parametrize("hook", [_add_hook, Tensor.retain_grad])
def test_hooks_of_the_caller_are_refused(kind: Any, is_leaf: bool, hook: Callable[[Tensor], Any]) -> None:
    """Eager hands them the gradients that are found inside."""
    region = st.compile(_slope)
    x = kind().requires_grad_()
    x = x if is_leaf else x * 1
    assert torch.equal(region(x), x.cos())
    hook(x)
    if is_leaf and hook is Tensor.retain_grad:  # does nothing
        assert torch.equal(region(x), x.cos())
        return
    for call in (region, st.compile(_slope)):
        with pytest.raises(UnsupportedError, match="hooks on its gradient"):
            call(x)
