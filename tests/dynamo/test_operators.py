"""Operators that Dynamo puts into its graphs: traced through, kept as nodes, or refused by name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import agree, check, dense, two
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.hints_wrap import hints_wrapper
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.strict_mode import strict_mode
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_functional, triton_kernel_wrapper_mutation
from torch._higher_order_ops.while_loop import while_loop
from torch._higher_order_ops.wrap import wrap
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from torch_features import dynamo_passes_wrappers_to_operators

import subclass_trace as st
from subclass_trace.errors import UnsupportedError
from subclass_trace.frontends import dynamo
from subclass_trace.torch_api import dynamo as _dynamo_door

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
    if (name, kind) == ("invoke_subgraph", "wrapper") and not dynamo_passes_wrappers_to_operators():
        pytest.skip("Dynamo of this torch asks for fake tensors where a nested region takes wrappers")
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
    "while_loop that trains": (
        lambda x, w: while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, (x @ w).sin()), (torch.tensor(0), x))[1] * 1.0,
        lambda: (dense(3, 3), dense(3, 3)),
    ),
    "scan": (lambda c, x: scan(lambda c, x: (c * x, (c + x).sin()), c, x), lambda: (dense(3), dense(5, 3))),
    "associative_scan": (
        lambda x: associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic"),
        lambda: (dense(5, 3, grad=False),),
    ),
    "associative_scan that trains": (
        lambda x: associative_scan(lambda a, b: a * b, x, 0, combine_mode="generic") * 1.0,
        lambda: (dense(5, 3),),
    ),
    "map": (lambda x, y: map_over(lambda a, y: a * y, x, y), lambda: (dense(5, 3), dense(3))),
}


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.sweep(every=4)
def test_kept_as_nodes(name: str) -> None:
    check(*KEPT[name])


def test_branches_use_sizes() -> None:
    def scaled(x, p):
        return torch.cond(p, lambda x: x.sin() * x.shape[0], lambda x: x.new_ones(x.shape[0], 4) * x, (x,))

    compiled = check(scaled, lambda: (dense(3, 4), torch.tensor(True)), dynamic=True)
    for n in (4, 5):
        for p in (torch.tensor(True), torch.tensor(False)):
            x = dense(n, 4)
            torch.testing.assert_close(compiled(x, p), scaled(x, p))


@pytest.mark.parametrize("kind", matrices)
@pytest.mark.parametrize("name", ["wrap", "hints_wrapper", "strict_mode"])
def test_operators_around_a_part_of_the_graph(name: str, kind: str) -> None:
    """Eager has no derivative of the last two, nor a rule for wrappers: the body by itself is the reference."""

    def body(x, w):
        return (x @ w).sin()

    around: dict[str, Callable[..., Any]] = {
        "wrap": lambda x, w: wrap(lambda x: body(x, w), x),
        "hints_wrapper": lambda x, w: hints_wrapper(body, (x, w), {}, hints={"a": 1}),
        "strict_mode": lambda x, w: strict_mode(body, (x, w)),
    }
    seen: list[str | None] = []

    def noting(graph: Any, example_inputs: Any) -> Any:
        seen.extend(_dynamo_door.higher_order_name(n.target) for n in graph.graph.nodes)
        return dynamo.subclass_trace(graph, example_inputs)

    compiled = torch.compile(lambda x, w: around[name](x, w) + x, backend=noting, fullgraph=True)
    agree(lambda x, w: body(x, w) + x, compiled, matrices[kind])
    assert name in seen


# ---------------------------------------------------------------------------------------------- flex attention
ATTENTION: dict[str, Callable[..., Any]] = {
    "score_mod": lambda q, k, v, b: flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + i - j),
    "score_mod that reads a tensor": lambda q, k, v, bias: flex_attention(
        q, k, v, score_mod=lambda score, b, h, i, j: score + bias[h]
    ),
    "block_mask": lambda q, k, v, b: flex_attention(q, k, v, block_mask=CAUSAL),
}


CAUSAL = create_block_mask(lambda b, h, i, j: i >= j, None, None, 16, 16, device="cpu")


def heads(grad: bool) -> Make:
    return lambda: (*(dense(1, 2, 16, 8, grad=grad) for _ in range(3)), dense(2, grad=grad))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.sweep(every=4)
def test_flex_attention(name: str, trains: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU PyTorch refuses gradients by a check alone, before its operators, which have reference code for them."""
    if trains:
        monkeypatch.setattr(torch.nn.attention.flex_attention, "_validate_device", lambda *args: None)
    check(ATTENTION[name], heads(trains))


@pytest.mark.inductor
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", ATTENTION)
def test_flex_attention_by_inductor(name: str) -> None:
    """What Dynamo makes of a mask calls Python's operators; inductor wants torch's, and their single result."""
    given = (*(dense(1, 2, 16, 16, grad=False) for _ in range(3)), dense(2, grad=False))
    with torch.no_grad():
        found = st.compile(ATTENTION[name], backend="inductor", frontend="trace")(*given)
        torch.testing.assert_close(found, ATTENTION[name](*given), rtol=1e-4, atol=1e-4)


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


@pytest.mark.parametrize("kernel", [triton_kernel_wrapper_mutation, triton_kernel_wrapper_functional])
def test_a_triton_kernel_is_refused_by_name(kernel: Any) -> None:
    """The graph is built as Dynamo would: a kernel of Triton's cannot be written where Triton is not installed."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    out = graph.call_function(torch.empty_like, (x,))
    call = graph.call_function(
        kernel, (), {"kernel_idx": 0, "constant_args_idx": 0, "grid": [(1,)], "kwargs": {"x": x}}
    )
    call.meta["stack_trace"] = '  File "kernels.py", line 7, in scale\n    kernel[grid](x, out)\n'
    graph.output((out,))
    with pytest.raises(UnsupportedError, match=f"the higher order operator '{kernel.name()}'") as caught:
        dynamo.subclass_trace(torch.fx.GraphModule({}, graph), [torch.ones(2)])
    assert caught.value.path == "kernels.py:7"
    assert "torch.library.custom_op" in str(caught.value.fix)
