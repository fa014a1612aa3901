"""Passes: what they are given, what is checked after each, what is told, and that later backwards go on."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx as fx
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy

import subclass_trace as st
from subclass_trace.errors import OptionError, PassError
from subclass_trace.passes import JointGraph, bucket_collectives, memory_policy, passes_of, register, registered
from subclass_trace.zoo import TwoTensor

aten = torch.ops.aten


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Sequential(nn.Linear(16, 16), nn.Tanh()), nn.Linear(16, 4))


def trains_as_eager(make: Callable[[], nn.Module], **options: Any) -> Any:
    """The region, after three steps in which it gives eager's numbers."""
    eager, ours = make(), make()
    region = st.compile(ours, **options)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(5, 8)
        expected, found = eager(x), region(x)
        torch.testing.assert_close(found, expected)
        expected.square().sum().backward()
        found.square().sum().backward()
        for a, b in zip(eager.parameters(), ours.parameters(), strict=True):
            torch.testing.assert_close(b.grad, a.grad)
    return region


# ---------------------------------------------------------------------------------------------- what a pass sees
def test_what_a_pass_is_given() -> None:
    seen: list[tuple[str, str]] = []
    texts: list[list[str]] = []

    def look(graph: JointGraph) -> None:
        seen.extend((str(n.target), n.meta["phase"]) for n in graph.find("2", "aten.*mm.default"))
        texts.append([str(d) for _, d in graph.inputs])
        texts.append([str(d) for _, d in graph.outputs])
        assert {d.kind for _, d in graph.inputs if hasattr(d, "kind")} == {"argument", "parameter"}
        assert "2.0" in graph.modules and "1" in graph.modules

    trains_as_eager(model, passes=[look])
    assert seen == [("aten.addmm.default", "forward"), ("aten.mm.default", "backward"), ("aten.mm.default", "backward")]
    inputs, outputs = texts
    assert inputs[0] == "args[0]" and "self[0].weight" in inputs and "tangent of result" in inputs
    assert outputs[0] == "result" and "gradient of self[2][0].bias" in outputs


def test_annotations_reach_the_backward() -> None:
    found: dict[str, list[Any]] = {}

    def look(graph: JointGraph) -> None:
        for node in graph.find():
            found.setdefault(node.meta["phase"], []).append(node.meta.get("custom"))

    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.fx.traceback.annotate({"stage": 1}):
            y = x.sin()
        return y * 2

    x = torch.ones(3, requires_grad=True)
    st.compile(f, passes=[look])(x).sum().backward()
    assert {"stage": 1} in found["forward"] and {"stage": 1} in found["backward"] and None in found["backward"]


# ---------------------------------------------------------------------------------------------- nodes may be renamed
def rename(graph: JointGraph) -> None:
    """Every operation gets another name, by way of new nodes."""
    for number, node in enumerate(list(graph.find())):
        with graph.graph.inserting_after(node):
            made = graph.graph.create_node(
                node.op, node.target, node.args, dict(node.kwargs), f"renamed_{len(graph.outputs)}_{number}"
            )
        made.meta = {k: v for k, v in node.meta.items() if k != "trace_name"}
        graph.replace(node, made)
        graph.graph.erase_node(node)


@pytest.mark.parametrize("partitioner", [None, "min_cut", "default", "torch_min_cut"])
def test_a_pass_may_rename_nodes(partitioner: str | None) -> None:
    """What was saved is found by what it is: backwards for other tangents, and of backwards, go on."""
    region = trains_as_eager(model, passes=[rename], partitioner=partitioner)
    assert all(
        "renamed" in n.name for n in region.specializations[0].graphs.forward.graph.nodes if n.op == "call_function"
    )

    def f(x: torch.Tensor, w: Any) -> tuple[torch.Tensor, torch.Tensor]:
        y = (x @ w).sin()
        return y, (y * x).exp()

    x, w = torch.rand(3, 3, requires_grad=True), TwoTensor(torch.rand(3, 3), torch.rand(3, 3)).requires_grad_()
    two = st.compile(f, passes=[rename], partitioner=partitioner)
    for pick in (0, 1):  # each has tangents of its own
        found = torch.autograd.grad(two(x, w)[pick].sum(), x, allow_unused=True)[0]
        expected = torch.autograd.grad(f(x, w)[pick].sum(), x, allow_unused=True)[0]
        torch.testing.assert_close(torch.as_tensor(found.a), torch.as_tensor(expected.a))


def test_backwards_of_backwards_after_renaming() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * x.exp()).sum()

    x = torch.rand(4, requires_grad=True)
    found, expected = st.compile(f, passes=[rename]), f
    grads = []
    for function in (found, expected):
        (g,) = torch.autograd.grad(function(x), x, create_graph=True)
        grads.append(torch.autograd.grad(g.square().sum(), x)[0])
    torch.testing.assert_close(*grads)


# ---------------------------------------------------------------------------------------------- what is checked
def raises(graph: JointGraph) -> None:
    raise KeyError("no such node")


def other_type(graph: JointGraph) -> None:
    node, _ = graph.outputs[0]
    made = graph.insert(node, aten._to_copy.default, node, dtype=torch.float64)
    end = graph.graph.output_node()
    end.args = ([made, *end.args[0][1:]],)


def other_operation(graph: JointGraph) -> None:
    node = next(graph.find(operation="aten.gelu.default"))
    node.target = aten.mm.default
    node.args = (node.args[0], node.args[0])


def fewer_outputs(graph: JointGraph) -> None:
    end = graph.graph.output_node()
    end.args = (list(end.args[0])[:-1],)


def drops_a_draw(graph: JointGraph) -> None:
    node = next(graph.find(operation="aten.*dropout*")) if any(graph.find(operation="aten.*dropout*")) else None
    node = node or next(n for n in graph.find() if torch.Tag.nondeterministic_seeded in n.target.tags)
    value = node.meta["val"]
    value = value[0] if isinstance(value, tuple) else value
    with graph.graph.inserting_before(node):
        made = graph.graph.call_function(aten.full.default, ([*value.shape], True), {"dtype": value.dtype})
    for user in list(node.users):
        user.replace_all_uses_with(made) if user.target.__name__ == "getitem" else user.replace_input_with(node, made)
        if not user.users and user.op == "call_function":
            graph.graph.erase_node(user)
    if not node.users:
        graph.graph.erase_node(node)


def shares_memory(graph: JointGraph) -> None:
    node, _ = graph.outputs[0]
    first = next(n for n, _ in graph.inputs)
    made = graph.insert(first, aten.alias.default, first)
    end = graph.graph.output_node()
    end.args = ([made, *end.args[0][1:]],)


def uses_before_it_is_there(graph: JointGraph) -> None:
    first, *_, last = graph.find(phase="forward")
    first.args = (last, *first.args[1:])


def writes(graph: JointGraph) -> None:
    node = next(graph.find(phase="forward"))
    graph.insert(node, aten.mul_.Tensor, node, 2)


def prints(graph: JointGraph) -> None:
    node = next(graph.find(phase="forward"))
    graph.insert(node, print, node)


def holds_a_tensor(graph: JointGraph) -> None:
    node = next(graph.find(phase="forward"))
    graph.insert(node, aten.add.Tensor, node, torch.zeros(3))


def another_graph(graph: JointGraph) -> None:
    graph.module.graph = fx.Graph()


def gives_back(graph: JointGraph) -> Any:
    return graph.module


BROKEN: list[tuple[Callable[[JointGraph], None], Callable[[torch.Tensor], torch.Tensor], str]] = [
    (raises, torch.exp, "a pass raises an error"),
    (other_type, lambda x: x.exp(), "a pass has changed the type of a value that the graph returns"),
    (other_operation, lambda x: nn.functional.gelu(x).sum(), "a pass has made an operation that cannot be"),
    (fewer_outputs, lambda x: x.exp(), "a pass has changed how many values the graph returns"),
    (drops_a_draw, lambda x: nn.functional.dropout(x, 0.5), "a pass has changed what is called for its effect"),
    (shares_memory, lambda x: x + 1, "a pass has changed which values of the graph share memory"),
    (writes, torch.exp, "a pass has made an operation that writes"),
    (prints, torch.exp, "a pass calls what is no operation"),
    (holds_a_tensor, torch.exp, "a tensor among the arguments"),
    (another_graph, torch.exp, "a pass has left a broken graph"),
    (gives_back, torch.exp, "a pass gives something back"),
    (uses_before_it_is_there, lambda x: x.sin().cos(), "a pass has left a broken graph"),
]


@pytest.mark.parametrize(("broken", "function", "what"), BROKEN, ids=[b.__name__ for b, _, _ in BROKEN])
@pytest.mark.parametrize("trains", [False, True])
def test_a_broken_pass_is_named(broken: Any, function: Any, what: str, trains: bool) -> None:
    x = torch.rand(3, requires_grad=trains)
    with pytest.raises(PassError) as caught:
        st.compile(function, passes=[broken])(x)
    assert caught.value.what.startswith(what)
    assert broken.__name__ in str(caught.value.path) or broken is holds_a_tensor
    assert caught.value.got is not None


def test_a_constant_of_a_pass() -> None:
    def shifts(graph: JointGraph) -> None:
        node = next(graph.find(operation="aten.gelu.default"))
        one = graph.constant("one", torch.ones(16))
        half = node.meta["val"].new_full((), 0.5)  # what it computes for itself is no part of the trace
        assert half.dim() == 0
        graph.replace(node, graph.insert(node, aten.add.Tensor, node, one))

    module, x = model(), torch.randn(5, 8)
    region = st.compile(module, passes=[shifts])
    for seed in range(2):
        found = region(x * (seed + 1))
        torch.testing.assert_close(found, module[3](module[2](module[1](module[0](x * (seed + 1))) + 1)))
        found.sum().backward()


def test_skipped_only_if_asked() -> None:
    region = st.compile(lambda x: x.exp(), passes=["cleanup", fewer_outputs], on_error="skip")
    x = torch.ones(2, requires_grad=True)
    with pytest.warns(UserWarning, match="compiled without its passes"):
        region(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.ones(2).exp())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(region(x), x.exp())


# ---------------------------------------------------------------------------------------------- names, options, reports
def test_names() -> None:
    assert {"cleanup", "bucket_collectives", "overlap_collectives"} <= registered().keys()
    register("rename", rename, replace=True)
    trains_as_eager(model, passes=["rename", "cleanup"])
    with pytest.raises(OptionError, match="already"):
        register("cleanup", rename)
    with pytest.raises(OptionError) as caught:
        st.compile(torch.sin, passes=["clenup"])
    assert caught.value.fix == "did you mean 'cleanup'?"
    for wrong in ("cleanup", 3):
        with pytest.raises(OptionError, match="passes is no list"):
            st.compile(torch.sin, passes=wrong)
    with pytest.raises(OptionError, match="on_error"):
        st.compile(torch.sin, on_error="ignore")
    for call in (lambda: bucket_collectives(0), lambda: memory_policy(None), lambda: memory_policy({3: "save"})):  # type: ignore
        with pytest.raises(OptionError):
            call()
    with pytest.raises(OptionError, match="unknown partitioner"):
        st.compile(torch.sin, partitioner=st.MinCut)


def test_what_a_pass_did_is_told() -> None:
    def doubles(graph: JointGraph) -> None:
        node = next(graph.find(operation="aten.gelu.default"))
        graph.insert(node, aten.neg.default, node)

    region = trains_as_eager(model, passes=[doubles])
    assert "test_what_a_pass_did_is_told.<locals>.doubles: +1 aten.neg.default" in region.explain()
    (record,) = region.specializations[0].passes
    assert record.operations == {"aten.neg.default": 1} and any(
        "aten.neg" in line and line[0] == "+" for line in record.diff
    )
    assert "aten.neg" in region.to_html()


# ---------------------------------------------------------------------------------------------- built in
def test_cleanup() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.view(x.shape).sin().clone()
        y = y.expand(y.shape)[:, :]
        _ = y.exp()
        return (y.to(torch.float32).clone() * 2).contiguous()

    x = torch.rand(3, 3, requires_grad=True)
    region = st.compile(f, passes=["cleanup"])
    found = region(x)
    assert torch.equal(found, f(x)) and found is not x
    found.sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().cos())
    targets = [str(n.target) for n in region.specializations[0].graphs.forward.graph.nodes if n.op == "call_function"]
    assert targets == ["aten.sin.default", "aten.mul.Tensor"]


def test_cleanup_keeps_copies_that_users_get() -> None:
    region = st.compile(lambda x: (x.clone(), x.sin().clone()), passes=["cleanup"])
    x = torch.rand(3)
    first, second = region(x)
    first.add_(1)
    assert not torch.equal(first, x) and torch.equal(second, x.sin())


def saved(region: Any) -> list[str]:
    return [row.short_operation for row in region.specializations[0].saved if row.operation != "input"]


def test_memory_policy() -> None:
    everything = saved(trains_as_eager(model, partitioner="default"))
    assert "tanh" in everything
    fewer = saved(trains_as_eager(model, partitioner="default", passes=[memory_policy({"2": "recompute"})]))
    assert "tanh" not in fewer
    both = memory_policy({"*": "recompute", "2::aten.tanh.default": "save"})
    assert saved(trains_as_eager(model, passes=[both])) == ["tanh"]


def test_memory_policy_offloads() -> None:
    region = trains_as_eager(model, partitioner="default", passes=[memory_policy({"2.1": "offload"})])
    kept = saved(region)
    assert "_to_copy" in kept and "tanh" not in kept


@pytest.mark.parametrize("rule", ["layers.*", "2.1::aten.tan.default", "O"])
def test_a_rule_that_matches_nothing(rule: str) -> None:
    with pytest.raises(PassError, match="matches nothing") as caught:
        st.compile(model(), passes=[memory_policy({rule: "save"})])(torch.randn(5, 8))
    if rule.startswith("2.1"):
        assert "aten.tanh.default" in str(caught.value.fix)


def test_memory_policy_knows_its_words() -> None:
    with pytest.raises(OptionError) as caught:
        memory_policy({"*": "recompte"})
    assert caught.value.fix is not None and "'recompute'" in caught.value.fix


def test_in_a_whole_step() -> None:
    """Tags of a pass hold where the region runs its own backward, too."""

    def make() -> tuple[nn.Module, Callable[[torch.Tensor], torch.Tensor]]:
        layers = model()
        optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)

        def step(x: torch.Tensor) -> torch.Tensor:
            loss = layers(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return layers, step

    (eager, theirs), (ours, step) = make(), make()
    region = st.compile(step, passes=[memory_policy({"2": "recompute"}), rename])
    for _ in range(3):
        x = torch.randn(5, 8)
        torch.testing.assert_close(region(x), theirs(x))
    for a, b in zip(eager.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    graph = region.specializations[-1].graphs.forward.graph
    assert sum(n.target is aten.tanh.default for n in graph.nodes) == 2


def test_tags_are_policies() -> None:
    tags: set[Any] = set()

    def look(graph: JointGraph) -> None:
        tags.update(n.meta.get("recompute") for n in graph.find("2"))

    trains_as_eager(model, passes=[memory_policy({"2": "prefer_recompute"}), look])
    assert CheckpointPolicy.PREFER_RECOMPUTE in tags


def test_no_passes_no_cost() -> None:
    assert passes_of((), "raise") is None
    graph = fx.Graph()
    graph.output([])
    assert not passes_of(["cleanup"], "raise").records
