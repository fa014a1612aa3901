"""Partitioners, budgets, tags of selective checkpointing, the table of what is saved, and partitioners that do not fit."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx as fx
from functorch.compile import default_partition
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

aten = torch.ops.aten
DENSE = (torch.Tensor, torch.nn.Parameter)


def two(*size: int) -> TwoTensor:
    return TwoTensor(torch.randn(size), torch.randn(size)).requires_grad_()


def chain(x):
    for _ in range(4):
        x = x.sin().exp().tanh()
    return x


def test_a_callable_partitioner_is_called_with_the_dense_joint() -> None:
    from functorch.compile import default_partition

    calls = []

    def mine(joint, inputs, *, num_fwd_outputs, **rest):
        calls.append((joint, len(inputs), num_fwd_outputs))
        names = [n.name for n in joint.graph.nodes if n.op == "placeholder"]
        assert names == ["primals_1", "primals_2", "tangents_1", "tangents_2"]
        return default_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs)

    region = st.compile(chain, partitioner=mine)
    x = two(3)
    out = region(x)
    out.backward(torch.ones_like(out).detach())
    assert [c[1:] for c in calls] == [(4, 2)]
    want = torch.autograd.grad(chain(y := x.b.clone().requires_grad_()).sum(), y)[0]
    torch.testing.assert_close(x.grad.b, want)


# ---------------------------------------------------------------------------------------------- what is saved
def test_the_table_of_saved_activations() -> None:
    def f(x, w):
        h = x @ w
        return h.exp().sum()

    region = st.compile(f, partitioner="default")
    region(torch.randn(4, 5, requires_grad=True), two(5, 6))
    (entry,) = region.specializations
    rows = {r.path or r.operation: r for r in entry.saved}
    assert rows["args[0]"].bytes == 0 and rows["args[0]"].operation == "input"
    assert rows["args[1].a"].bytes == 0 and rows["args[1].b"].bytes == 0
    exp = rows["aten.exp.default"]
    assert exp.bytes == 4 * 6 * 4 and exp.shape == (4, 6) and exp.dtype == "float32"
    assert exp.where is not None and exp.where.startswith(__file__)
    line = int(exp.where.rpartition(":")[2])
    assert "h.exp()" in pathlib.Path(__file__).read_text().splitlines()[line - 1]


@pytest.mark.parametrize(
    ("options", "size", "saved"),
    [({}, 100, ["aten.exp.default"]), ({}, 40_000, []), ({"activation_memory_budget": 1}, 100, [])],
)
@pytest.mark.usefixtures("own_backward")
def test_what_is_small_is_not_computed_again_call_by_call(options, size, saved) -> None:
    def compiled(gm, inputs):
        return gm.forward

    for backend, expected in (("eager", saved), (compiled, [])):
        region = st.compile(lambda x: x.sin().exp().tanh(), backend=backend, **options)
        region(torch.randn(size, requires_grad=True)).sum().backward()
        operations = [row.operation for row in region.specializations[0].saved]
        assert operations == ["input", *expected, "aten.tanh.default"], (backend, operations)


def test_a_saved_input_that_the_region_overwrites() -> None:
    """Min-cut likes to save the input; the write-back must not change what the backward reads."""

    def f(x):
        y = (x * 2).sin()  # eager saves x * 2; min-cut saves x
        x.copy_(torch.zeros_like(x))
        return y

    for make in (lambda: torch.full((3,), 0.7), lambda: TwoTensor(torch.full((3,), 0.7), torch.full((3,), 0.3))):
        grads = []
        for call in (f, st.compile(f)):
            w = make().requires_grad_()
            x = w * 1
            y = call(x)
            y.backward(torch.ones_like(y).detach())
            grads.append(w.grad)
        torch.testing.assert_close(*(g if type(g) is torch.Tensor else g.b for g in grads))


# ---------------------------------------------------------------------------------------------- checkpointing
def _policy(save: set, calls: list):
    def policy(ctx, op, *args, **kwargs):
        calls.append(op)
        return CheckpointPolicy.MUST_SAVE if op in save else CheckpointPolicy.PREFER_RECOMPUTE

    return policy


def test_selective_checkpoint_tags_reach_the_joint_graph() -> None:
    from functorch.compile import min_cut_rematerialization_partition

    tags: dict[str, object] = {}
    policy_calls: list = []

    def looking(joint, inputs, **kwargs):
        for n in joint.graph.nodes:
            if "recompute" in n.meta:
                tags[str(n.target)] = n.meta["recompute"]
        return min_cut_rematerialization_partition(joint, inputs, **kwargs)

    def block(x):
        return (x @ x).exp().sin()

    def f(x):
        context = lambda: create_selective_checkpoint_contexts(_policy({aten.mm.default}, policy_calls))
        return checkpoint(block, x, use_reentrant=False, context_fn=context).sum()

    region = st.compile(f, partitioner=looking)
    x = torch.randn(4, 4, requires_grad=True)
    region(x).backward()
    assert tags == {
        "aten.mm.default": CheckpointPolicy.MUST_SAVE,
        "aten.exp.default": CheckpointPolicy.PREFER_RECOMPUTE,
        "aten.sin.default": CheckpointPolicy.PREFER_RECOMPUTE,
    }
    y = x.detach().clone().requires_grad_()
    block(y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize(
    "make", [lambda: torch.randn(4, 4, requires_grad=True), lambda: two(4, 4)], ids=["dense", "wrapper"]
)
def test_plain_checkpoint_in_the_region_saves_only_its_input(make) -> None:
    region = st.compile(lambda x: checkpoint(lambda x: x.exp().sin().exp(), x, use_reentrant=False))
    x = make()
    out = region(x)
    out.backward(torch.ones_like(out).detach())
    assert {r.operation for r in region.specializations[0].saved} == {"input"}


def test_saved_tensor_hooks_around_the_region() -> None:
    region = st.compile(chain)
    unpacked = []
    x = torch.rand(4, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: t.numpy(force=True), lambda a: unpacked.append(a) or torch.from_numpy(a)
    ):
        out = region(x)
    out.sum().backward()
    want = torch.autograd.grad(chain(y := x.detach().clone().requires_grad_()).sum(), y)[0]
    torch.testing.assert_close(x.grad, want)
    assert unpacked


def test_reentrant_checkpoint_in_the_region() -> None:
    w = torch.randn(4, 4, requires_grad=True)
    f = lambda x: checkpoint(lambda x: (x @ w).exp().sin(), x, use_reentrant=True)
    region = st.compile(f)
    x = torch.rand(4, 4, requires_grad=True)
    want = torch.autograd.grad((x @ w).exp().sin().sum(), (x, w))
    out = region(x)
    torch.testing.assert_close(torch.autograd.grad(out.sum(), (x, w)), want)
    assert {r.operation for r in region.specializations[0].saved} == {"input"}
    assert torch.utils.checkpoint.CheckpointFunction.__name__ == "CheckpointFunction"
    with pytest.warns(UserWarning, match="requires_grad"):
        eager = f(x.detach())
    assert not eager.requires_grad and not st.compile(f)(x.detach()).requires_grad


# --------------------- partitioners that return graphs which do not fit: typed errors with the node and its source line
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
