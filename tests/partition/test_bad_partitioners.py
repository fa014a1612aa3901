"""Partitioners that return graphs which do not fit: typed errors with the node and its source line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx as fx
from functorch.compile import default_partition
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import subclass_trace as st

aten = torch.ops.aten
Change = Callable[[fx.GraphModule, fx.GraphModule, int], Any]


def function(x: torch.Tensor) -> torch.Tensor:
    return x.sin().exp()


def outputs(module: fx.GraphModule) -> list[Any]:
    return list(module.graph.output_node().args[0])


def set_outputs(module: fx.GraphModule, values: Any) -> None:
    module.graph.output_node().args = (values,)


def add_input(module: fx.GraphModule) -> None:
    with module.graph.inserting_before(next(iter(module.graph.nodes))):
        module.graph.placeholder("nowhere")


def summed(forward: fx.GraphModule, backward: fx.GraphModule, count: int) -> None:
    (gradient,) = outputs(backward)
    with backward.graph.inserting_before(backward.graph.output_node()):
        total = backward.graph.call_function(aten.sum.default, (gradient,))
    total.meta["val"] = gradient.meta["val"].sum()
    set_outputs(backward, [total])


def method(forward: fx.GraphModule, backward: fx.GraphModule, count: int) -> None:
    first, *rest = outputs(forward)
    with forward.graph.inserting_before(forward.graph.output_node()):
        changed = forward.graph.call_method("sin", (first,))
    changed.meta.update(first.meta)
    set_outputs(forward, [changed, *rest])


def forget_values(forward: fx.GraphModule, backward: fx.GraphModule, count: int) -> None:
    for node in forward.graph.nodes:
        node.meta.clear()


HERE = f"{__file__}:{function.__code__.co_firstlineno + 1}"
#: change of right graphs -> (what, path, expected, got) of the error
FAULTS: dict[str, tuple[Change, tuple[str, str, str, str]]] = {
    "no outputs": (
        lambda f, b, k: set_outputs(f, []),
        ("forward lacks outputs", f"exp_default at {HERE}", "1 or more", "0"),
    ),
    "no gradients": (lambda f, b, k: set_outputs(b, []), ("backward lacks gradients", "backward", "1", "0")),
    "two gradients": (
        lambda f, b, k: set_outputs(b, outputs(b) * 2),
        ("backward lacks gradients", "backward", "1", "2"),
    ),
    "no gradient for an input": (
        lambda f, b, k: set_outputs(b, [None]),
        ("gradient 0 is not the joint graph's", HERE, "float32[2] on cpu", "None"),
    ),
    "a gradient of another shape": (
        summed,
        ("gradient 0 is not the joint graph's", HERE, "float32[2] on cpu", "float32[] on cpu"),
    ),
    "a saved number": (
        lambda f, b, k: set_outputs(f, [*outputs(f), 3]),
        ("forward saves what is no node", "forward", "nodes of the graph", "[3]"),
    ),
    "an unknown input": (
        lambda f, b, k: add_input(f),
        ("forward takes unknown inputs", "nowhere", "some of ['primals_1']", "['nowhere']"),
    ),
    "an unknown value": (
        lambda f, b, k: add_input(b),
        ("backward takes inputs that are neither saved values nor tangents", "nowhere", "tangents_1", "nowhere"),
    ),
    "nothing saved": (
        lambda f, b, k: set_outputs(f, outputs(f)[:k]),
        ("backward takes inputs that are neither saved values nor tangents", "primals_1", "tangents_1", "primals_1"),
    ),
    "a node of another graph": (
        lambda f, b, k: set_outputs(f, [*outputs(f), next(iter(b.graph.nodes))]),
        ("forward returns a node of another graph", "primals_1", "a node of the forward", "primals_1"),
    ),
    "no example values": (
        forget_values,
        ("forward returns a node without an example value in meta", "exp_default", "a node of the forward", "exp"),
    ),
    "no output node": (
        lambda f, b, k: f.graph.erase_node(f.graph.output_node()),
        ("forward does not return a list", "forward", "an output node with a list", "None"),
    ),
    "one output and no list": (
        lambda f, b, k: set_outputs(f, outputs(f)[0]),
        ("forward does not return a list", "forward", "an output node with a list", "exp_default"),
    ),
}


def returning(change: Change) -> Callable[..., Any]:
    def partitioner(joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **rest: Any) -> Any:
        forward, backward = default_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs)
        return change(forward, backward, num_fwd_outputs) or (forward, backward)

    return partitioner


@pytest.mark.parametrize("name", FAULTS)
def test_graphs_that_do_not_fit(name: str) -> None:
    change, (what, path, expected, got) = FAULTS[name]
    with pytest.raises(st.VerificationError) as caught:
        st.compile(function, partitioner=returning(change))(torch.ones(2, requires_grad=True))
    error = caught.value
    assert error.what == f"the partitioner's {what}" and error.fix
    for part, text in ((path, error.path), (expected, error.expected), (got, error.got)):
        assert text is not None and part in text


def test_graphs_with_methods_are_refused_by_the_eager_back_end() -> None:
    with pytest.raises(st.UnsupportedError, match="call_method") as caught:
        st.compile(function, partitioner=returning(method), frontend="trace")(torch.ones(2, requires_grad=True))
    assert caught.value.path == "sin"


@pytest.mark.parametrize("result", [None, (1, 2), "graphs"])
def test_something_else_than_two_graphs(result: Any) -> None:
    with pytest.raises(st.BackendError, match="two graph modules"):
        st.compile(function, partitioner=lambda *_, **__: result)(torch.ones(2, requires_grad=True))


@pytest.mark.parametrize("partitioner", [lambda: None, fx.Graph, lambda joint, inputs: (joint, joint)])
def test_a_callable_of_another_form(partitioner: Any) -> None:
    with pytest.raises(st.OptionError, match="cannot be called") as caught:
        st.compile(function, partitioner=partitioner)(torch.ones(2, requires_grad=True))
    assert caught.value.path == "partitioner" and "num_fwd_outputs" in str(caught.value.expected)


@pytest.mark.parametrize(
    ("answer", "saved"),
    [
        (True, {"aten.mm.default"}),
        (False, {"input"}),
        (CheckpointPolicy.MUST_SAVE, {"aten.mm.default"}),
        ("?", {"input"}),
    ],
)
def test_policies_that_answer_with_something_else_mean_what_they_mean_to_torch(answer: Any, saved: set[str]) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        policy = lambda context, op, *args, **kwargs: answer if op is aten.mm.default else False
        contexts = lambda: create_selective_checkpoint_contexts(policy)
        return checkpoint(lambda x: (x @ x).exp(), x, use_reentrant=False, context_fn=contexts).sum()

    region = st.compile(f, partitioner=st.MinCut())
    region(torch.rand(4, 4, requires_grad=True)).backward()
    assert {r.operation for r in region.specializations[0].saved} >= saved
    assert ("aten.mm.default" in {r.operation for r in region.specializations[0].saved}) == (saved != {"input"})
