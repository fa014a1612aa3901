"""Backwards of autograd.Functions are called: of our regions, of torch.compile and aot_function."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from functorch.compile import aot_function, nop

import subclass_trace as st
from subclass_trace.subclass.flatten import leaves_of
from subclass_trace.tape import compiled_autograd
from subclass_trace.zoo import TwoTensor


def layers(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ w).sin() @ w


def leaf(wrapper: bool, seed: int = 1) -> torch.Tensor:
    parts = [torch.randn(4, 4, generator=torch.Generator().manual_seed(seed + k)) for k in range(2)]
    return (TwoTensor(*parts) if wrapper else parts[0]).requires_grad_()


def gradients(f: Callable[..., Any], w: torch.Tensor, **call: Any) -> list[torch.Tensor]:
    x = torch.ones(3, 4, requires_grad=True)
    w.grad = None
    loss = f(x, w)
    loss = (loss.a + loss.b).sum() if isinstance(loss, TwoTensor) else loss.sum()
    loss.backward(**call)
    return [t for g in (x.grad, w.grad) for t in leaves_of(g)]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


BACKENDS = [None, "eager"]


# ---------------------------------------------------------------------------------------------- our regions
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_region(backend: Any) -> None:
    region, w = st.compile(layers), leaf(False)
    expected = gradients(region, w)
    for _ in range(3):
        with compiled_autograd(backend=backend):
            got = gradients(region, w)
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=0 if backend is None else 1e-6, atol=0 if backend is None else 1e-6)
    assert compiled_autograd.stats.captures == 1


class Dense(torch.autograd.Function):
    """The sum of the inner tensors, dense."""

    @staticmethod
    def forward(ctx: Any, x: TwoTensor) -> torch.Tensor:
        return x.a + x.b

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> TwoTensor:
        return TwoTensor(g.clone(), g.clone())


def dense(x: TwoTensor) -> torch.Tensor:
    return Dense.apply(x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_region_whose_results_are_wrappers_is_called(backend: Any) -> None:
    region, w = st.compile(lambda x, w: layers(x, w)), leaf(True)

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return dense(region(x, w))

    expected = gradients(f, w)
    for _ in range(4):
        with compiled_autograd(backend=backend):
            got = gradients(f, w)
        for a, b in zip(got, expected, strict=True):
            assert torch.equal(a, b) if backend is None else torch.allclose(a, b)
    assert compiled_autograd.stats.captures == 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wrapper", [False, True])
def test_a_region_with_dynamic_sizes_is_called(wrapper: bool, backend: Any) -> None:
    """One capture serves all of them."""
    inner: Any = lambda x, w: (torch.tanh(x @ w) * x.shape[0]).sum(0, keepdim=True).expand(x.shape[0], 4) * 2
    region, w = st.compile(inner, dynamic=True), leaf(wrapper)

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = region(x, w)
        return dense(y) if wrapper else y

    for n in (3, 5, 5, 7, 5, 3, 3, 9):
        results = []
        for on in (False, True):
            x = torch.linspace(-1, 1, 4 * n).reshape(n, 4).requires_grad_()
            w.grad = None
            with compiled_autograd(backend=backend, dynamic=True) if on else torch.enable_grad():
                f(x, w).sum().backward()
            results.append([t for g in (x.grad, w.grad) for t in leaves_of(g)])
        for a, b in zip(*results, strict=True):
            assert torch.equal(a, b) if backend is None else torch.allclose(a, b)
    assert len(region.specializations) == 1 and compiled_autograd.stats.captures <= 2


@pytest.mark.parametrize("wrapper", [False, True])
def test_a_region_whose_sizes_depend_on_values_is_called(wrapper: bool) -> None:
    region, w = st.compile(lambda x, w: (torch.tanh(x[x > 0]) * w.sum(), (x > 0).nonzero().shape[0])), leaf(wrapper)
    other = st.compile(lambda x, w: (torch.tanh(x[x < 0]) * w.sum() * 3, (x > 0).nonzero().shape[0]))
    for seed in range(4):
        for chosen in (region, other):
            results = []
            for on in (False, True):
                x = torch.randn(6, 4, generator=torch.Generator().manual_seed(seed)).requires_grad_()
                w.grad, y = None, chosen(x, w)[0]
                with compiled_autograd() if on else torch.enable_grad():
                    (dense(y) if wrapper else y).sum().backward()
                results.append([t for g in (x.grad, w.grad) for t in leaves_of(g)])
            assert all(map(torch.equal, *results))


class Chosen(torch.autograd.Function):
    """Dense from a wrapper; its gradient is a wrapper, or dense, or there is none, as `kind` says in the backward."""

    kind = "wrapper"

    @staticmethod
    def forward(ctx: Any, x: TwoTensor) -> torch.Tensor:
        return x.a + x.b

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return {"wrapper": TwoTensor(g.clone(), g.clone()), "dense": g.clone(), "none": None}[Chosen.kind]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("hooks", [False, True])
def test_tangents_of_another_kind_take_the_call(hooks: bool, backend: Any) -> None:
    """They are known in the run alone. No hook runs twice."""
    region, w = st.compile(lambda x, w: ((s := x.sin()), layers(s, w))[::-1]), leaf(True)

    def f(x: torch.Tensor, w: torch.Tensor, log: list[int]) -> torch.Tensor:
        numbers = itertools.count()
        logged = torch.autograd.graph.saved_tensors_hooks(
            lambda t: (next(numbers), t.detach().clone()), lambda packed: log.append(packed[0]) or packed[1]
        )
        with logged if hooks else torch.enable_grad():
            y, z = region(x, w)
        return Chosen.apply(y).sum() + z.sum()

    for kind in ("wrapper", "dense", "none", "wrapper", "none", "dense"):
        Chosen.kind, results, logs = kind, [], []
        for on in (False, True):
            x, w.grad = torch.linspace(0, 1, 12).reshape(3, 4).requires_grad_(), None
            logs.append([])
            with compiled_autograd(backend=backend) if on else torch.enable_grad():
                f(x, w, logs[-1]).backward()
            results.append([x.grad, w.grad])
        assert bool(logs[0]) == hooks
        assert logs[1] == logs[0]
        for a, b in zip(*results, strict=True):
            assert (a is None) == (b is None) and type(a) is type(b)
            for s, t in zip(*([] if g is None else leaves_of(g) for g in (a, b)), strict=True):
                torch.testing.assert_close(s, t)
    assert compiled_autograd.stats.captures == 1


@pytest.mark.parametrize("create_first", [False, True])
def test_a_tape_serves_both_with_create_graph_and_without(create_first: bool) -> None:
    """Torch's key of a tape does not hold it."""
    region, w = st.compile(layers), leaf(False)
    x = torch.linspace(0, 1, 12).reshape(3, 4).requires_grad_()
    expected = torch.autograd.grad(layers(x, w).sum(), x, create_graph=True)[0]
    (second,) = torch.autograd.grad(expected.square().sum(), w)
    for create in (create_first, not create_first) * 2:
        y = region(x, w)
        with compiled_autograd():
            (g,) = torch.autograd.grad(y.sum(), x, create_graph=create)
            torch.testing.assert_close(g, expected)
            assert g.requires_grad == create
            if create:
                torch.testing.assert_close(torch.autograd.grad(g.square().sum(), w)[0], second)


def test_a_saved_tensor_that_was_written_is_noticed() -> None:
    region, w = st.compile(layers), leaf(False)
    for on in (False, True):
        x = torch.ones(3, 4, requires_grad=True)
        loss = region(x, w).sum()
        with torch.no_grad():
            w.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            with compiled_autograd() if on else torch.enable_grad():
                loss.backward()


# ---------------------------------------------------------------------------------------------- torch's
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wrapper", [False, True])
@pytest.mark.parametrize("how", ["aot_eager", "dynamic", "aot_function"])
@pytest.mark.sweep(every=4)
def test_forwards_that_torch_compiled(how: str, wrapper: bool, backend: Any) -> None:
    torch._dynamo.reset()
    inner = layers if not wrapper else (lambda x, w: layers(x, w) * 2.0)
    f = (
        aot_function(inner, nop, nop)
        if how == "aot_function"
        else torch.compile(inner, backend="aot_eager", dynamic=how == "dynamic")
    )
    g = (lambda x, w: dense(f(x, w))) if wrapper else f
    w = leaf(wrapper)
    expected = gradients(g, w)
    for _ in range(2):
        with compiled_autograd(backend=backend):
            got = gradients(g, w)
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(a, b)
    torch._dynamo.reset()
