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


#: change of right graphs -> what the error says
FAULTS: dict[str, tuple[Change, str]] = {
    "no outputs": (lambda f, b, k: set_outputs(f, []), "forward lacks outputs"),
    "two gradients": (lambda f, b, k: set_outputs(b, outputs(b) * 2), "backward lacks gradients"),
    "a saved number": (lambda f, b, k: set_outputs(f, [*outputs(f), 3]), "forward saves or takes what it cannot"),
    "an unknown input": (lambda f, b, k: add_input(f), "forward saves or takes what it cannot"),
    "an unknown value": (lambda f, b, k: add_input(b), "backward takes inputs that are neither"),
    "one output and no list": (lambda f, b, k: set_outputs(f, outputs(f)[0]), "graphs do not return lists"),
}


def returning(change: Change) -> Callable[..., Any]:
    def partitioner(joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **rest: Any) -> Any:
        forward, backward = default_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs)
        return change(forward, backward, num_fwd_outputs) or (forward, backward)

    return partitioner


@pytest.mark.parametrize("name", FAULTS)
def test_graphs_that_do_not_fit(name: str) -> None:
    change, what = FAULTS[name]
    with pytest.raises(st.VerificationError, match=f"the partitioner's {what}") as caught:
        st.compile(function, partitioner=returning(change))(torch.ones(2, requires_grad=True))
    assert caught.value.fix and caught.value.expected


@pytest.mark.parametrize("result", [None, (1, 2), "graphs"])
def test_something_else_than_two_graphs(result: Any) -> None:
    with pytest.raises(st.BackendError, match="two graph modules"):
        st.compile(function, partitioner=lambda *_, **__: result)(torch.ones(2, requires_grad=True))


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
