"""`compile_graph` against the graph's own forward: values, types, strides, aliases, memory."""

from __future__ import annotations

import math
import operator
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx as fx
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from subclass_trace.backends.eager.graph_code import compile_graph

aten = torch.ops.aten


def build(body: Callable[..., Any], *inputs: str, root: torch.nn.Module | None = None) -> fx.GraphModule:
    """A graph written by hand: ``body(call, *placeholders)`` returns the outputs; ``call(target, *args)`` is a node."""
    graph = fx.Graph()
    placeholders = [graph.placeholder(name) for name in inputs]

    def call(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        return graph.call_function(target, args, kwargs)

    graph.output(body(call, *placeholders))
    return fx.GraphModule(root or torch.nn.Module(), graph)


def lines(gm: fx.GraphModule) -> list[str]:
    return [line.strip() for line in compile_graph(gm).source.splitlines()][1:]


def same(a: Any, b: Any) -> None:
    assert type(a) is type(b), (a, b)
    if isinstance(a, torch.Tensor):
        assert (a.dtype, a.shape, a.stride(), a.device) == (b.dtype, b.shape, b.stride(), b.device)
        assert a.storage_offset() == b.storage_offset()
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    else:
        assert a == b or (a != a and b != b)


def check(gm: fx.GraphModule, *inputs: Any) -> tuple[Any, ...]:
    """Run both ways, on clones: outputs, mutated inputs, and which output is which input must agree."""
    runs = []
    for run in (compile_graph(gm), lambda values: gm.forward(*values)):
        copies = [x.clone(memory_format=torch.preserve_format) if isinstance(x, torch.Tensor) else x for x in inputs]
        torch.manual_seed(0)
        boxed = list(copies)
        with torch.no_grad():
            outs = run(boxed)
        outs = tuple(outs) if isinstance(outs, (tuple, list)) else (outs,)
        places = [[x is o for x in (*copies, *outs) if isinstance(x, torch.Tensor)] for o in outs]
        runs.append((outs, copies, places))
        assert boxed == [] or run is not runs[0]
    (outs, copies, places), *others = runs
    assert isinstance(outs, tuple)
    for other_outs, other_copies, other_places in others:
        assert len(outs) == len(other_outs) and places == other_places
        for a, b in zip((*outs, *copies), (*other_outs, *other_copies), strict=True):
            same(a, b)
    return outs


# ---------------------------------------------------------------------------------------------- the text
def test_a_small_graph_reads_well() -> None:
    gm = make_fx(lambda x, y: ((x @ y).relu() + 1).sum(0), tracing_mode="fake")(torch.ones(2, 3), torch.ones(3, 4))
    assert compile_graph(gm, name="forward").source.splitlines() == [
        "def forward(inputs):",
        "    (x_1, y_1) = inputs",
        "    inputs.clear()",
        "    mm = torch_mm(x_1, y_1)  # aten.mm.default",
        "    del x_1, y_1",
        "    relu = torch_relu(mm)  # aten.relu.default",
        "    del mm",
        "    add = torch_add(relu, 1)  # aten.add.Tensor",
        "    del relu",
        "    sum_1 = torch_sum(add, [0])  # aten.sum.dim_IntList",
        "    del add",
        "    return (sum_1,)",
    ]


def test_names_never_collide() -> None:
    # fx itself avoids keywords and builtins; renamed nodes need not
    gm = build(lambda call, a, b, c: [call(aten.add.Tensor, a, b), call(aten.neg.default, c)], "a", "b", "c")
    for node, name in zip(gm.graph.nodes, ["inputs", "graph", "slice", "torch_add", "aten_neg_default"], strict=False):
        node.name = name
    boxed = compile_graph(gm)
    assert boxed([torch.ones(1), torch.ones(1), torch.ones(1)]) == (torch.full((1,), 2.0), -torch.ones(1))


def test_outputs_may_be_inputs_repeated_none_and_numbers() -> None:
    gm = build(lambda call, a, n: [a, None, (r := call(aten.neg.default, a)), r, a, n, 3, 2.5, True], "a", "n")
    out = check(gm, torch.ones(2), 7)
    assert out[0] is out[4] and out[2] is out[3] and out[5:] == (7, 3, 2.5, True)


@pytest.mark.parametrize("given", [[], [1], [1, 2, 3]])
def test_a_wrong_number_of_inputs_is_an_error(given: list[Any]) -> None:
    with pytest.raises(ValueError, match="to unpack"):
        compile_graph(build(lambda call, a, b: [a, b], "a", "b"))(given)


# ---------------------------------------------------------------------------------------------- arguments
CONSTANTS = [
    0, -3, 1.5, -0.0, math.inf, -math.inf, math.nan, 1e300, True, None, "text 'quoted'", 1 + 2j, complex(math.nan, 1),
    -2j, torch.float32, torch.strided, torch.channels_last, torch.device("cpu"), torch.device("cuda", 1),
    [], (), (1,), [1, [2.0, (3, None)]], {"a": [1], 2: (3,)}, slice(1, None, 2), slice(None), torch.Size([2, 3]), {},
]  # fmt: skip


@pytest.mark.parametrize("value", CONSTANTS, ids=repr)
def test_constants_arrive_unchanged(value: Any) -> None:
    seen = []

    def sym_probe(*args: Any) -> int:
        seen.append(args)
        return 1

    gm = build(lambda call, a: [call(sym_probe, a, value, -1)], "a")
    compile_graph(gm)([0])
    torch.fx.Interpreter(gm).run(0)
    ours, theirs = seen
    assert repr(ours) == repr(theirs) and math.copysign(1, ours[2]) == -1
    assert [type(v) for v in _leaves(ours)] == [type(v) for v in _leaves(theirs)]


def _leaves(value: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(value)


def _get(node: fx.Node, target: str) -> fx.Node:
    return node.graph.get_attr(target)


def test_bodies_of_higher_order_operations() -> None:
    root = torch.nn.Module()
    root.true_body = build(lambda call, a: [call(aten.neg.default, a)], "a")
    root.false_body = build(lambda call, a: [call(aten.exp.default, a)], "a")

    def body(call: Any, p: Any, a: Any) -> Any:
        branches = _get(p, "true_body"), _get(p, "false_body")
        return [call(operator.getitem, call(torch.ops.higher_order.cond, p, *branches, (a,)), 0)]

    gm = build(body, "p", "a", root=root)
    assert "cond = cond_1(p, true_body, false_body, (a,))  # cond" in lines(gm)
    for flag in (True, False):
        check(gm, torch.tensor(flag), torch.ones(2))


def test_mutations_and_random_numbers_are_never_dead() -> None:
    def body(call: Any, a: Any) -> Any:
        call(aten.add_.Tensor, call(aten.view.default, a, [4]), 1.0)
        call(aten.rand_like.default, a)
        call(aten._assert_async.msg, call(aten.any.default, a), "all zero")
        return [a, call(aten.rand_like.default, a)]

    gm = build(body, "a")
    assert sum("(a)  # aten.rand_like" in line for line in lines(gm)) == 2
    out = check(gm, torch.ones(2, 2))
    assert out[0].tolist() == [[2, 2], [2, 2]]
    with pytest.raises(RuntimeError, match="all zero"):
        compile_graph(gm)([torch.full((2, 2), -1.0)])


# ---------------------------------------------------------------------------------------------- memory
def probing(log: list[Any]) -> Callable[..., Any]:
    """An operation that notes which of the watched tensors are alive, and returns a new tensor."""

    def probe(x: torch.Tensor, label: str) -> torch.Tensor:
        log.append((label, sorted(name for name, ref in watched.items() if ref() is not None)))
        result = x + 1
        watched[label] = weakref.ref(result)
        return result

    watched: dict[str, weakref.ref[Any]] = {}
    probe.watched = watched  # type: ignore[attr-defined]
    return probe


def test_every_value_is_dropped_after_its_last_use() -> None:
    log: list[Any] = []
    probe = probing(log)

    def body(call: Any, a: Any, b: Any, unused: Any) -> Any:
        c = call(probe, a, "c")
        d = call(probe, b, "d")
        call(probe, c, "unused result")
        return [call(probe, call(probe, d, "e"), "f")]

    inputs = [torch.ones(1), torch.ones(1), torch.ones(1)]
    for name, tensor in zip(("a", "b", "unused"), inputs, strict=True):
        probe.watched[name] = weakref.ref(tensor)  # type: ignore[attr-defined]
    del tensor
    out = compile_graph(build(body, "a", "b", "unused"))(inputs)
    assert log == [("c", ["a", "b"]), ("d", ["b", "c"]), ("unused result", ["c", "d"]), ("e", ["d"]), ("f", ["e"])]
    assert inputs == [] and len(out) == 1


# ---------------------------------------------------------------------------------------------- random programs
UNARY = ["relu", "neg", "exp", "sin", "clone", "detach", "contiguous", "t", "abs"]
BINARY = ["add", "sub", "mul", "maximum", "minimum"]
INPLACE = ["relu_", "neg_", "zero_", "mul_"]
STEPS = [
    *UNARY,
    *BINARY,
    *INPLACE,
    "split",
    "max",
    "topk",
    "cat",
    "where",
    "scalar",
    "to",
    "select",
    "rand",
    "view",
    "sort",
]


def step(name: str, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """One step of a random program, on 2-D float tensors of any 4-by-4 layout; results are 4-by-4 too."""
    if name in UNARY:
        return [getattr(torch.Tensor, name)(x)]
    if name in BINARY:
        return [getattr(torch, name)(x, y)]
    if name == "mul_":
        return [x.clone().mul_(y)]
    if name in INPLACE:
        return [getattr(x.clone().t(), name)()]
    steps: dict[str, Callable[[], list[torch.Tensor]]] = {
        "split": lambda: [torch.cat(list(reversed(x.split(2, 1))), 0).view(4, 4)],
        "max": lambda: [x - x.max(1, keepdim=True)[0], x * x.max(0)[1]],
        "topk": lambda: [x.topk(4)[0]],
        "cat": lambda: [torch.cat([x[:2], y[2:]])],
        "where": lambda: [torch.where(x > y, x, float("-inf")), x.masked_fill(y < 0, float("nan"))],
        "scalar": lambda: [x.mul(2.5).add(1).sub(y, alpha=3).clamp(min=-2)],
        "to": lambda: [x.to(torch.float64).to(torch.float32), x.to(torch.int32).to(torch.float32)],
        "select": lambda: [x.select(0, 1).expand(4, 4), x[:, 1:2].expand(-1, 4)],
        "rand": lambda: [torch.rand_like(x), x + torch.ones(4)],
        "view": lambda: [x.reshape(2, 8).reshape(8, 2).t().reshape(4, 4)],
        "sort": lambda: [x.sort(0)[0], x.gather(1, x.sort(1)[1])],
    }
    return steps[name]()


programs = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(program=programs, outputs=st.lists(st.integers(-1, 99), max_size=6), mutate=st.booleans())
def test_random_programs(program: list[tuple[str, int, int]], outputs: list[int], mutate: bool) -> None:
    def f(*inputs: torch.Tensor) -> list[Any]:
        pool = list(inputs)
        for name, i, j in program:
            pool += step(name, pool[i % len(pool)], pool[j % len(pool)])
        if mutate:
            inputs[0].add_(pool[-1].nan_to_num(0.0))
        return [None if k < 0 else pool[k % len(pool)] for k in outputs]

    torch.manual_seed(1)
    inputs = [torch.randn(4, 4), torch.randn(4, 4).t(), torch.randn(4, 1).expand(4, 4)]
    check(make_fx(f, tracing_mode="fake")(*[x.clone() for x in inputs]), *inputs)
