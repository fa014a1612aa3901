"""Backwards of regions under torch's own compiled autograd: pasted into torch's graph, or one call in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.compiled_autograd import _enable
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map

import subclass_trace as st
from benchmarks.compiled_autograd import peak
from subclass_trace.errors import TangentError
from subclass_trace.subclass.flatten import leaves_of
from subclass_trace.tape import compiled_autograd
from subclass_trace.torch_api import tape as door
from subclass_trace.zoo import TwoTensor

pytestmark = pytest.mark.skipif(not door.TORCH_CAN_INLINE, reason="torch 2.11 and 2.12 look for other attributes")
Tensor = torch.Tensor


class Captured:
    """Torch's compiled autograd with a compiler that runs the graph as it is, and keeps it."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self) -> Any:
        return _enable(self._compile, dynamic=False)

    def _compile(self, gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
        self.graphs.append(gm)
        return gm

    def calls(self) -> list[str]:
        """The names of what the last graph calls."""
        return [n.name for n in self.graphs[-1].graph.nodes if n.op == "call_function"]


def is_pasted(calls: list[str]) -> bool:
    return any(c.startswith("aot") and "tanh_backward" in c for c in calls) and "call_backward" not in calls


def layers(x: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(x @ w).sin() @ w


def leaf(wrapper: bool = False) -> Tensor:
    parts = [torch.randn(4, 4, generator=torch.Generator().manual_seed(k)) for k in range(2)]
    return (TwoTensor(*parts) if wrapper else parts[0]).requires_grad_()


def gradients(f: Callable[..., Any], w: Tensor, around: Callable[[], Any] = torch.enable_grad) -> list[Tensor]:
    x = torch.ones(3, 4, requires_grad=True)
    w.grad = None
    y = f(x, w)
    seed = TwoTensor(torch.ones(3, 4), torch.ones(3, 4) * 2) if isinstance(y, TwoTensor) else torch.ones(3, 4)
    with around():
        y.backward(seed)
    return [t for g in (x.grad, w.grad) for t in leaves_of(g)]


@pytest.mark.parametrize("wrapper", [False, True])
def test_from_the_second_step_on_the_graph_is_pasted(wrapper: bool) -> None:
    """In the first one the activations are where torch does not see them."""
    region, w, torchs = st.compile(layers), leaf(wrapper), Captured()
    expected = gradients(region, w)
    for step in range(4):
        assert all(map(torch.equal, gradients(region, w, torchs), expected))
        assert is_pasted(torchs.calls()) == (step > 0)
        assert ("call_backward" in torchs.calls()) == (step == 0)
    assert len(torchs.graphs) == 2
    assert all(map(torch.equal, gradients(region, w), expected)), "eager, with activations that autograd saved"


def test_at_once_where_torch_is_known_to_capture() -> None:
    torchs, w = Captured(), leaf()
    region = st.compile(layers)
    expected = gradients(layers, w)
    with torch._dynamo.config.patch(compiled_autograd=True):
        got = gradients(region, w, torchs)
    torch.testing.assert_close(got, expected)
    assert is_pasted(torchs.calls()) and len(torchs.graphs) == 1


def test_under_dynamo_as_one_graph() -> None:
    torch._dynamo.reset()
    region, w = st.compile(layers), leaf()
    expected = gradients(region, w)
    door.saves_for_torch.append(True)
    for _ in range(3):
        got = gradients(region, w, lambda: _enable(torch.compile(backend="aot_eager", fullgraph=True), dynamic=False))
        torch.testing.assert_close(got, expected)
    torch._dynamo.reset()


@pytest.mark.parametrize("ours_first", [False, True])
def test_ours_and_torchs_in_one_process(ours_first: bool) -> None:
    region, w, torchs = st.compile(layers), leaf(), Captured()
    expected = gradients(region, w)
    both = [compiled_autograd, torchs]
    for around in (both[::-1] if not ours_first else both) * 3:
        assert all(map(torch.equal, gradients(region, w, around), expected))
    assert is_pasted(torchs.calls())


def stretched(x: Tensor, w: Tensor) -> Tensor:
    """Its gradients need the number of rows, of dense and of wrapper inputs."""
    return (torch.tanh(x @ w) * x.shape[0]).sum(0, keepdim=True).expand(x.shape[0], 4) * 2


def stretched_gradients(region: Any, n: int, wrappers: tuple[bool, bool], around: Callable[[], Any]) -> list[Tensor]:
    x, w = torch.linspace(-1, 1, 4 * n).reshape(n, 4), torch.eye(4) + 0.5
    x, w = (
        (TwoTensor(t, t * 2) if wrapper else t).requires_grad_() for t, wrapper in zip((x, w), wrappers, strict=True)
    )
    y = region(x, w)
    with around():
        y.backward(TwoTensor(torch.ones(n, 4), torch.ones(n, 4) * 3) if any(wrappers) else torch.ones(n, 4))
    return [t for g in (x.grad, w.grad) for t in leaves_of(g)]


@pytest.mark.parametrize("wrappers", [(False, False), (False, True), (True, False), (True, True)])
def test_dynamic_sizes_are_pasted(wrappers: tuple[bool, bool]) -> None:
    """Torch hands them to the prologue and to the graph; of another size it makes a graph with symbols, once."""
    region, torchs = st.compile(stretched, dynamic=True), Captured()
    door.saves_for_torch.append(True)
    for n in (3, 5, 7, 5, 9, 3):
        expected = stretched_gradients(region, n, wrappers, torch.enable_grad)
        assert all(map(torch.equal, stretched_gradients(region, n, wrappers, torchs), expected))
        assert is_pasted(torchs.calls())
    assert len(torchs.graphs) == 2 and len(region.specializations) == 1


def test_dynamic_sizes_under_dynamo_as_one_graph() -> None:
    torch._dynamo.reset()
    region, wrappers = st.compile(stretched, dynamic=True), (False, True)
    door.saves_for_torch.append(True)
    around = lambda: _enable(torch.compile(backend="eager", fullgraph=True), dynamic=False)
    for n in (3, 5, 7):
        expected = stretched_gradients(region, n, wrappers, torch.enable_grad)
        torch.testing.assert_close(stretched_gradients(region, n, wrappers, around), expected)
    torch._dynamo.reset()


class Sized(torch.Tensor):
    """A wrapper that keeps its outer size and has it in its context, as DTensor does."""

    a: Tensor
    told: torch.Size

    @staticmethod
    def __new__(cls, a: Tensor, told: torch.Size) -> Sized:
        made = torch.Tensor._make_wrapper_subclass(cls, a.shape, strides=a.stride(), dtype=a.dtype)
        made.a, made.told = a, told
        return made

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["a"], (self.told,)

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], context: Any, size: Any, stride: Any) -> Sized:
        return Sized(inner["a"], context[0])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inner: Any = lambda t: t.a if isinstance(t, Sized) else t
        out = func(*tree_map(inner, args), **tree_map(inner, kwargs or {}))
        return return_and_correct_aliasing(func, args, kwargs or {}, tree_map(lambda t: Sized(t, t.shape), out))


def test_a_wrapper_that_has_its_outer_size_in_its_context() -> None:
    """The context of a tangent is compared without it, and a gradient gets that of the run."""
    region, torchs = st.compile(lambda x: (x * x.shape[0]).sin(), dynamic=True), Captured()
    door.saves_for_torch.append(True)
    for n in (3, 5, 7):
        results = []
        for around in (torch.enable_grad, torchs):
            value = torch.linspace(0, 1, n)
            x = Sized(value, value.shape).requires_grad_()
            y = region(x)
            with around():
                y.backward(Sized(torch.ones(n), torch.Size([n])))
            assert x.grad.shape == x.grad.told == (n,)
            results.append(x.grad.a)
        assert torch.equal(*results)
    assert "call_backward" not in torchs.calls() and len(torchs.graphs) == 2


def test_a_size_that_depends_on_values_stays_a_call() -> None:
    region, torchs = st.compile(lambda x, w: torch.tanh(x[x > 0]) * w.sum()), Captured()
    door.saves_for_torch.append(True)
    for seed in range(3):
        results = []
        for around in (torch.enable_grad, torchs):
            w = leaf()
            x = torch.randn(6, 4, generator=torch.Generator().manual_seed(seed)).requires_grad_()
            loss = region(x, w).sum()
            with around():
                loss.backward()
            results.append([x.grad, w.grad])
        assert all(map(torch.equal, *results))
    assert "call_backward" in torchs.calls()


def test_retain_graph_and_a_second_backward_on_either_engine() -> None:
    region, w, torchs = st.compile(layers), leaf(), Captured()
    door.saves_for_torch.append(True)
    loss = region(torch.ones(3, 4), w).sum()
    with torchs():
        loss.backward(retain_graph=True)
    first = w.grad.clone()
    loss.backward(retain_graph=True)
    with torchs():
        loss.backward()
    torch.testing.assert_close(w.grad, first * 3)
    assert is_pasted(torchs.calls())
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_create_graph_stays_a_call() -> None:
    region, w = st.compile(layers), leaf()
    door.saves_for_torch.append(True)
    results = []
    for around in (torch.enable_grad, Captured()):
        x = torch.ones(3, 4, requires_grad=True)
        with around():
            (g,) = torch.autograd.grad(region(x, w).sum(), x, create_graph=True)
        (h,) = torch.autograd.grad((g * g).sum(), x)
        results.append((g.detach(), h))
    torch.testing.assert_close(*results)


def test_a_saved_tensor_that_was_written_is_noticed() -> None:
    region, w = st.compile(layers), leaf()
    door.saves_for_torch.append(True)
    loss = region(torch.ones(3, 4), w).sum()
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"), Captured()():
        loss.backward()


class Twisted(torch.autograd.Function):
    """Gives a wrapper a gradient that is none."""

    @staticmethod
    def forward(ctx: Any, x: TwoTensor) -> Tensor:
        return x.a + x.b

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.clone()


def test_gradients_of_another_kind_are_refused() -> None:
    region, w = st.compile(lambda x, w: layers(x, w)), leaf(True)
    door.saves_for_torch.append(True)
    y = region(torch.ones(3, 4), w)
    with pytest.raises(TangentError, match="of another kind"), Captured()():
        Twisted.apply(y).sum().backward()


def test_a_result_that_nobody_uses_gets_zeros() -> None:
    region, w, torchs = st.compile(lambda x, w: (layers(x, w), x.sin())), leaf(), Captured()
    door.saves_for_torch.append(True)
    f: Any = lambda x, w: region(x, w)[0]
    expected = gradients(f, w)
    torch.testing.assert_close(gradients(f, w, torchs), expected)
    assert is_pasted(torchs.calls())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch looks at it
def test_activations_die_as_early_as_without_it() -> None:
    """Peak of a backward through 12 layers of a region: inlined by torch, against the eager engine."""

    def deep(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(12):
            x = torch.tanh(x @ w)
        return x

    region, peaks = st.compile(deep, partitioner="default"), {}
    w, x = (torch.eye(64) * 0.5).requires_grad_(), torch.ones(512, 64)
    torchs = Captured()
    door.saves_for_torch.append(True)
    for name, around in (("eager", torch.enable_grad), ("torch", torchs)):
        for k in range(3):
            w.grad = None
            loss = region(x, w).sum()
            with around():
                if k == 2:
                    peaks[name] = peak(loss.backward)
                else:
                    loss.backward()
    assert is_pasted(torchs.calls())
    assert peaks["torch"] <= peaks["eager"] * 1.02, peaks
