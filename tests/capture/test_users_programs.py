"""Programs of a user's that once gave something else than eager mode: each is run plainly, and compiled."""

from __future__ import annotations

import gc
import typing
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops.while_loop import while_loop
from torch.autograd.graph import register_multi_grad_hook

import subclass_trace as st

Tensor = torch.Tensor
Compile = Callable[[Any], Any]
library = torch.library.Library("users_programs", "FRAGMENT")
library.define("sine(Tensor x) -> Tensor")
library.impl("sine", lambda x: x.sin(), "CompositeExplicitAutograd")


def leaf(*values: float) -> Tensor:
    return torch.tensor(values or (1.0, 2.0, 3.0), requires_grad=True)


def hooks_of_several_leaves(compile: Compile, mode: Any = "all") -> Any:
    """The engine is asked which nodes it will run; one leaf is not behind the loss."""
    (a, b, unused), seen = (leaf(), leaf(), leaf()), list[int]()
    register_multi_grad_hook([a, unused, b], lambda grads: seen.append(len(grads)), mode=mode)
    step = compile(lambda x: (a * b * x).sum().backward())
    for _ in range(3):
        step(torch.ones(3))
    return seen, a.grad.tolist()


def hooks_of_the_first_leaf(compile: Compile) -> Any:
    return hooks_of_several_leaves(compile, "any")


def a_legacy_hook(compile: Compile) -> Any:
    """It is one on the last autograd node of a module."""
    model, x = nn.Sequential(nn.Tanh()), leaf()
    model[0].register_backward_hook(lambda module, grads, outputs: (grads[0] * 2,))
    compile(model)(x).sum().backward()
    return x.grad


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.mul_(3)


def a_backward_that_writes_its_tangent(compile: Compile) -> Any:
    x, w, tangent = leaf(), leaf(), torch.ones(3)
    compile(lambda x, w: Tripled.apply(x) + w)(x, w).backward(tangent)
    return x.grad, w.grad, tangent


def a_backward_that_writes_what_the_region_made(compile: Compile) -> Any:
    x, w, tangent = leaf(), leaf(), torch.ones(3)
    compile(lambda x, w: Tripled.apply(x) * w)(x, w).backward(tangent)
    return x.grad, w.grad, tangent


def a_kernel_without_a_derivative(compile: Compile) -> Any:
    x, call = leaf(), compile(lambda x: torch.ops.users_programs.sine(x * 2))
    call(x).sum().backward()
    with torch.no_grad():
        return x.grad, call(x)


def a_function_of_vjp_as_result(compile: Compile) -> Any:
    value, pull = compile(lambda x: torch.func.vjp(lambda y: y.sin() * y, x))(torch.ones(3))
    return value, pull(torch.ones(3))


def a_loop_that_counts(compile: Compile) -> Any:
    def loop(x: Tensor) -> Any:
        return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y + i), (0, x))

    return compile(loop)(torch.ones(2))


def branches_that_write_what_they_make(compile: Compile) -> Any:
    def branch(x: Tensor, p: Tensor) -> Tensor:
        return torch.cond(p, lambda x: F.dropout(x, 0.5) * 2, lambda x: x.clone().add_(1), (x,))

    call, found = compile(branch), []
    for p in (True, False):
        torch.manual_seed(0)
        found += [call(torch.ones(6), torch.tensor(p)), torch.rand(1)]
    return found


def a_quantized_tensor_inside(compile: Compile) -> Any:
    call = compile(lambda x: torch.quantize_per_tensor(x, 0.1, 3, torch.quint8).dequantize())
    return call(torch.ones(3)), call(torch.ones(3)).dtype


class Batch(typing.TypedDict):
    x: Tensor


def a_typed_dict(compile: Compile) -> Any:
    made = compile(lambda x: Batch(x=x * 2))(torch.ones(2))
    return type(made), made["x"]


class Held:
    number = 2


def an_object_behind_a_weak_reference(compile: Compile) -> Any:
    held = Held()
    reference, x = weakref.ref(held), leaf()
    call = compile(lambda x: x * (100 if reference() is None else reference().number))
    found = [call(x), call(x)]
    del held
    gc.collect()
    return [*found, call(x), reference()]


PROGRAMS = [f for f in vars().values() if callable(f) and getattr(f, "__annotations__", {}).get("compile") == "Compile"]


def plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return (value.dtype, value.tolist()) if isinstance(value, Tensor) else value


@pytest.mark.parametrize("frontend", ["trace", "auto"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("ignore")
def test_as_in_eager(program: Callable[[Compile], Any], frontend: Any) -> None:
    got = program(lambda f: st.compile(f, frontend=frontend, backend="eager"))
    assert plain(got) == plain(program(lambda f: f))


def test_they_are_all_there() -> None:
    assert len(PROGRAMS) > 10
