"""Operators that Dynamo puts into its graphs: traced through, kept as nodes, or refused by name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import check, dense, two
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

#: Dynamo makes an instance of it
pytestmark = pytest.mark.filterwarnings("ignore:<class 'torch.autograd.function.Function'>:DeprecationWarning")
Make = Callable[[], tuple[Any, ...]]


def gate(x, w):
    return torch.sigmoid(torch.sin(x @ w)) * x.relu()


def dropped(x, w):
    return torch.nn.functional.dropout(gate(x, w), 0.5)


def under_no_grad(x, w):
    with torch.no_grad():
        y = (x @ w).sin()
    return x * y


def under_autocast(x, w):
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ w
    return y.float() * x


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        ctx.factor = 3
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.t() * ctx.factor, x.t() @ g


@torch.compiler.nested_compile_region
def layer(x, w):
    return (x @ w).relu()


def hooked(x, w):
    y = x @ w
    y.register_hook(lambda g: g * 10)
    return y.sin()


matrices = {"dense": lambda: (dense(4, 4), dense(4, 4)), "wrapper": lambda: (two(4, 4), two(4, 4))}
keep_products = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
THROUGH = {
    "tag_activation_checkpoint": lambda x, w: checkpoint(gate, x, w, use_reentrant=False) + x,
    "checkpoint of a random part": lambda x, w: checkpoint(dropped, x, w, use_reentrant=False).sin(),
    "selective checkpoint": lambda x, w: checkpoint(gate, x, w, use_reentrant=False, context_fn=keep_products) + x,
    "no_grad": under_no_grad,
    "autocast": under_autocast,
    "autograd_function_apply": lambda x, w: Tripled.apply(x, w).sin(),
    "invoke_subgraph": lambda x, w: layer(layer(x, w), w),
    "register_hook": hooked,
}


@pytest.mark.parametrize("kind", matrices)
@pytest.mark.parametrize("name", THROUGH)
def test_traced_through(name: str, kind: str) -> None:
    check(THROUGH[name], matrices[kind])


KEPT: dict[str, tuple[Callable[..., Any], Make]] = {
    "cond": (
        lambda x, p: torch.cond(p, lambda x: x.sin(), lambda x: x.cos() * 2, (x,)),
        lambda: (dense(4), torch.tensor(True)),
    ),
    "cond that closes over a tensor": (
        lambda x, w, p: torch.cond(p, lambda x: x @ w, lambda x: x.cos() * 2, (x,)),
        lambda: (dense(4, 4), dense(4, 4), torch.tensor(False)),
    ),
    "while_loop": (
        lambda x: while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x))[1] * 1.0,
        lambda: (dense(3, grad=False),),
    ),
    "scan": (lambda c, x: scan(lambda c, x: (c * x, (c + x).sin()), c, x), lambda: (dense(3), dense(5, 3))),
    "associative_scan": (
        lambda x: associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic"),
        lambda: (dense(5, 3, grad=False),),
    ),
    "map": (lambda x, y: map_over(lambda a, y: a * y, x, y), lambda: (dense(5, 3), dense(3))),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept_as_nodes(name: str) -> None:
    check(*KEPT[name])


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention() -> None:
    def attend(q, k, v):
        return flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + i - j)

    check(attend, lambda: tuple(dense(1, 2, 16, 8, grad=False) for _ in range(3)), {"atol": 1e-5, "rtol": 1e-5})


def test_a_checkpoint_saves_only_its_inputs() -> None:
    from subclass_trace.frontends import dynamo

    plans = []
    build = dynamo.build_program

    def noting(*args: Any, **kwargs: Any) -> Any:
        program, graphs = build(*args, **kwargs)
        plans.append(program.plan)
        return program, graphs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamo, "build_program", noting)
        check(lambda x, w: checkpoint(gate, x, w, use_reentrant=False), matrices["dense"])
    assert [(row.path, row.operation) for row in plans[0].saved] == [("x", "input"), ("w", "input")]


def test_functorch_transforms_inside() -> None:
    check(lambda x, w: torch.vmap(lambda row: (row @ w).sin())(x), lambda: (dense(3, 4), dense(4, 4)))
    check(lambda x, w: torch.func.grad(lambda a: (a @ w).sin().sum())(x) * x, lambda: (dense(3, 4), dense(4, 4)))


def test_an_unsupported_operator_is_refused_by_name() -> None:
    def printing(x):
        torch._higher_order_ops.print("{x}", x=3)
        return x * 2

    with pytest.raises(Exception, match="the higher order operator 'print' is not supported") as caught:
        torch.compile(printing, backend="subclass_trace", fullgraph=True)(torch.ones(2))
    assert "UnsupportedError" in str(caught.value)
    assert f"where:    {__file__}:" in str(caught.value)
    assert "torch.compiler.disable" in str(caught.value)
