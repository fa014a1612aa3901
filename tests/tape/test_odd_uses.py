"""Odd uses of compiled autograd: errors as eager's, refusals by name, blocks that end out of order, Dynamo around it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.tape import compiled_autograd
from subclass_trace.zoo import TwoTensor

BACKENDS = [None, "eager"]


def leaf() -> torch.Tensor:
    return torch.linspace(0.5, 1.5, 3).requires_grad_()


class Says(torch.autograd.Function):
    """Its backward returns what it is told to."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, says: Callable[[torch.Tensor], Any]) -> torch.Tensor:
        ctx.says = says
        return x * 1

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return ctx.says(g)


ERRORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "no gradient asked for": lambda w: torch.ones(()),
    "no scalar": lambda w: w * 2,
    "too many gradients": lambda w: Says.apply(w, lambda g: (g, None, g)).sum(),
    "too few gradients": lambda w: Says.apply(w, lambda g: (g,)).sum(),
    "no tensor": lambda w: Says.apply(w, lambda g: (3, None)).sum(),
    "another size": lambda w: Says.apply(w, lambda g: (g[:2], None)).sum(),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_eagers(name: str, backend: Any) -> None:
    messages = []
    for around in (contextlib.nullcontext(), compiled_autograd(backend=backend)):
        with pytest.raises(RuntimeError) as caught, around:
            ERRORS[name](leaf()).backward()
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_torchscript_backward_is_refused_by_name() -> None:
    @torch.jit.script
    def scripted(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.sigmoid(x) + torch.tanh(x)
        return x

    w = leaf()
    for _ in range(3):  # TorchScript makes a node of its own when it has seen a few calls
        loss = scripted(w).sum()
    with compiled_autograd(), pytest.raises(st.UnsupportedError) as caught:
        loss.backward()
    assert "DifferentiableGraphBackward" in str(caught.value) and "disabled()" in str(caught.value)
    loss.backward()
    assert w.grad is not None


def test_what_is_traced_inside_a_block_is_no_tape() -> None:
    """Capturing a region differentiates fakes; only the backward of the user is a tape."""
    region, w = st.compile(lambda w: torch.autograd.grad((w * w).sum(), w, create_graph=True)[0].sin()), leaf()
    with compiled_autograd():
        loss = region(w).sum()
        assert compiled_autograd.stats.captures == 0
        loss.backward()
    assert compiled_autograd.stats.captures == 1
    torch.testing.assert_close(w.grad, (2 * w).cos().detach() * 2)


def test_a_backward_that_traces_and_a_region_that_is_traced_in_another_thread() -> None:
    """The one wants the lock of captures, the other that of backwards: they are one, so none waits for ever."""
    traced, reached = st.compile(lambda x: x.sin()), threading.Event()

    def wait(grad: torch.Tensor) -> torch.Tensor:
        threads[1].start()
        reached.wait(0.2)
        return TwoTensor(grad, grad)  # of another kind: the region's backward for it is traced now

    def differentiate() -> None:
        y = traced(leaf())
        z = y * 1
        z.register_hook(wait)
        with compiled_autograd():
            z.sum().backward()

    def compile_another() -> None:
        reached.set()
        st.compile(lambda x: x.cos())(leaf()).sum().backward()

    threads = [threading.Thread(target=f, daemon=True) for f in (differentiate, compile_another)]
    threads[0].start()
    for t in threads:
        t.join(30)
        assert not t.is_alive()


def test_inside_a_function_that_dynamo_compiles() -> None:
    """Dynamo leaves our capture alone: only the user's frames are compiled."""
    w, frames = leaf(), []

    def train(x: torch.Tensor) -> torch.Tensor:
        y = (x * w).sin()
        with compiled_autograd():
            y.sum().backward()
        return y * 2

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        frames.append(gm)
        return gm

    torch._dynamo.reset()
    x = torch.ones(3)
    compiled = torch.compile(train, backend=backend)
    for _ in range(3):
        w.grad = None
        torch.testing.assert_close(compiled(x), (x * w).sin() * 2)
        torch.testing.assert_close(w.grad, (x * w).cos().detach())
    assert compiled_autograd.stats.runs == 3 and len(frames) <= 4
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_change_their_class_from_step_to_step(backend: Any) -> None:
    for k in range(6):
        seed = torch.ones(3) if k % 2 else TwoTensor(torch.ones(3), torch.ones(3) * 2)
        grads = []
        for around in (contextlib.nullcontext(), compiled_autograd(backend=backend)):
            w = leaf()
            y = w.sin() * 2
            with around:
                y.backward(seed)
            grads.append(w.grad)
        assert type(grads[0]) is type(grads[1]) is type(seed)
        pairs = [grads] if k % 2 else [[g.a for g in grads], [g.b for g in grads]]
        assert all(torch.equal(*pair) for pair in pairs)
