"""Regions that run their own backward: checkpoints, budgets and partitioners hold there, and nothing else changes."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import subclass_trace as st
from benchmarks.harness import memory_events
from subclass_trace.errors import OptionError
from subclass_trace.passes import memory_policy
from tests.partition.whole_steps import ROWS, WIDTH, Program


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a, b) or bool(
        torch.equal(a.isnan(), b.isnan()) and torch.allclose(a, b, 1e-5, 1e-6, equal_nan=True)
    )


def check(seed: int, **options: Any) -> None:
    """Three steps of a random program give eager's losses, parameters, buffers and random state."""
    ours, eager = Program(seed), Program(seed)
    step = st.compile(ours.step, activation_memory_budget=ours.budget, **options)
    torch.manual_seed(seed)
    batches = [torch.randn(ROWS, WIDTH) for _ in range(3)]
    for number, x in enumerate(batches):
        torch.manual_seed(number)
        expected, state = eager.step(x), eager.state()
        torch.manual_seed(number)
        found = step(x)
        pairs = zip([expected, *state], [found, *ours.state()], strict=True)
        wrong = [k for k, (a, b) in enumerate(pairs) if not same(a, b)]
        assert not wrong, f"seed {seed}, step {number}: {wrong} differ; {ours.parts}"


@pytest.mark.sweep(every=10)
@pytest.mark.parametrize("seed", range(40))
def test_random_steps(seed: int) -> None:
    check(seed)


#: functional graphs, with and without passes; and graph modules, as other back ends get them
WAYS: dict[str, dict[str, Any]] = {
    "cleanup": {"passes": ["cleanup"]},
    "offload": {"passes": [memory_policy({"*": "offload"}), "cleanup"]},
    "recompute": {"passes": [memory_policy({"*": "prefer_recompute"})]},
    "graph modules": {"backend": lambda module, inputs: module},
}


@pytest.mark.sweep(every=10)
@pytest.mark.parametrize("seed", range(100, 106))
@pytest.mark.parametrize("way", WAYS)
def test_random_steps_as_functional_graphs(way: str, seed: int) -> None:
    check(seed, **WAYS[way])


@pytest.mark.fuzz
@pytest.mark.parametrize("way", WAYS)
def test_more_random_steps_as_functional_graphs(way: str) -> None:
    for seed in range(3000, 3100):
        check(seed, **WAYS[way])


@pytest.mark.fuzz
@pytest.mark.parametrize("start", range(1000, 3000, 100))
def test_more_random_steps(start: int) -> None:
    for seed in range(start, start + 100):
        check(seed)


# ---------------------------------------------------------------------------------------------- memory and operations
class Calls(TorchDispatchMode):
    """Counts operations."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[func._schema.name.removeprefix("aten::")] += 1
        return func(*args, **(kwargs or {}))


def peak(function: Callable[[], Any]) -> int:
    now = high = 0
    for change in memory_events(function):
        now += change
        high = max(high, now)
    return high


def blocks(count: int = 6) -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(count))


def a_step(checkpointed: bool, **options: Any) -> tuple[Callable[[torch.Tensor], torch.Tensor], Any]:
    """An eager step, and the same with other blocks, compiled."""

    def make() -> Callable[[torch.Tensor], torch.Tensor]:
        layers = blocks()
        optimizer = torch.optim.AdamW(layers.parameters())

        def step(x: torch.Tensor) -> torch.Tensor:
            for layer in layers:
                x = checkpoint(layer, x, use_reentrant=False) if checkpointed else layer(x)
            loss = x.square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step

    return make(), st.compile(make(), **options)


def measured(step: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> tuple[int, int]:
    """Peak of a warm step, and how many GELUs it runs."""
    for _ in range(3):
        step(x)
    with Calls() as calls:
        step(x)
    return peak(lambda: step(x)), calls.seen["gelu"]


def test_checkpoints_compute_again() -> None:
    x = torch.randn(512, 64)
    eager, ours = a_step(checkpointed=True)
    (most, gelus), (found, run) = measured(eager, x), measured(ours, x)
    assert run == gelus == 12
    assert found <= 1.0 * most


@pytest.mark.long
def test_budget() -> None:
    x = torch.randn(512, 64)
    eager, free = a_step(checkpointed=False)
    most = measured(eager, x)[0]
    assert measured(free, x)[0] <= 0.75 * most
    assert measured(a_step(False, activation_memory_budget=0.3)[1], x)[0] <= 0.6 * most


@pytest.mark.long
def test_the_default_partitioner_computes_nothing_again() -> None:
    x = torch.randn(512, 64)
    eager, ours = a_step(checkpointed=False, partitioner="default")
    (most, gelus), (found, run) = measured(eager, x), measured(ours, x)
    assert run == gelus == 6
    assert found <= 1.0 * most


@pytest.mark.long
def test_as_much_as_the_model_alone() -> None:
    x, layers = torch.randn(512, 64), blocks()
    optimizer = torch.optim.AdamW(layers.parameters())
    model = st.compile(lambda x: nn.Sequential(*layers)(x))

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    assert measured(a_step(checkpointed=False)[1], x)[0] <= measured(step, x)[0]


@pytest.mark.parametrize("partitioner", ["torch_min_cut", lambda joint, inputs, *, num_fwd_outputs: None])
@pytest.mark.sweep(every=4)
def test_a_partitioner_that_cannot_be_honoured(partitioner: Any) -> None:
    step = a_step(checkpointed=False, partitioner=partitioner)[1]
    step(torch.randn(4, 64))  # eagerly: it makes the optimizer's state
    with pytest.raises(OptionError, match="runs its own backward") as caught:
        step(torch.randn(4, 64))
    assert caught.value.path == "partitioner"


def test_what_is_computed_again_says_where_it_comes_from() -> None:
    layers = blocks(2)

    def step(x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=False)
        loss = x.square().mean()
        loss.backward()
        return loss.detach()

    graph = st.trace(step, torch.randn(512, 64)).forward.graph
    gelus = [n for n in graph.nodes if n.target is torch.ops.aten.gelu.default]
    assert [n.meta["phase"] for n in gelus] == ["forward", "forward", "backward", "backward"]
    modules = [[path for path, _ in n.meta["nn_module_stack"].values()] for n in gelus]
    assert modules == [["", "1"]] * 4
    places = [[*n.meta["nn_module_stack"]][0] for n in gelus]
    assert places == ["layers[0]", "layers[1]", "layers[1]", "layers[0]"]
