"""CUDA graphs by other ways: any sequence of calls, modes and options, Dynamo, compiled autograd, threads."""

from __future__ import annotations

import copy
import threading
from typing import Any

import hypothesis.strategies as strategies
import pytest
import torch
from hypothesis import given
from in_graphs import ONE, events, graphed, mlp, randn, same

import subclass_trace as st
from subclass_trace.errors import BackendError, OptionError
from subclass_trace.testing import EmulatedRecorder
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


# -------------------------------------------------------------------------------------- any sequence of calls
class Model(torch.nn.Module):
    """Weights, a written buffer, random numbers, a written input, views, a list."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 4)
        self.wrapped = torch.nn.Parameter(TwoTensor(randn(4, 4), randn(4, 4, seed=1)))
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: Tensor, other: list[Tensor], writes: bool) -> tuple[Tensor, ...]:
        with torch.no_grad():
            self.count += x.sum(0)
            if writes:
                torch._foreach_mul_([x, *other], 0.5)
        h = torch.nn.functional.dropout(self.layer(x), 0.3).relu()
        y = h + (x @ self.wrapped).tanh().a + other[0].sum()
        return y, y[:1], h.exp(), x


class World:
    """One side: eager mode or a region, with what calls have left."""

    def __init__(self, model: torch.nn.Module, run: Any) -> None:
        self.model, self.run = model, run
        self.kept: list[Any] = []
        self.losses: list[Tensor] = []
        self.buffers = [randn(8, 4, seed=k) for k in range(2)]
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)

    def do(self, what: tuple[Any, ...]) -> Any:
        """One step; what can be compared of it."""
        torch.manual_seed(hash(what) % 1000)
        name, *rest = what
        if name == "call":
            size, aliased, writes, grad, keep = rest
            base = self.buffers[0]
            x = base[:size] if aliased else randn(size, 4, seed=size)
            x = self.kept[-1][2][:size].detach() if aliased == 2 and self.kept else x
            with torch.set_grad_enabled(grad):
                found = self.run(x, [self.buffers[1]], writes)
            if keep:
                self.kept.append(found)
            if grad:
                self.losses.append(found[0].square().mean() + found[2].mean())
            return found, self.buffers
        if name == "backward" and self.losses:
            self.losses.pop(0 if rest[0] else -1).backward(retain_graph=False)
        elif name == "step":
            self.losses.clear()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=rest[0])
        elif name == "move":
            self.model.layer.weight.data = self.model.layer.weight.data * 0.9
        elif name == "drop":
            self.kept.clear()
        gradients = [None if p.grad is None else p.grad.clone() for p in self.model.parameters()]
        return gradients, self.kept, [*self.model.parameters()], [*self.model.buffers()]


flags = strategies.booleans()
calls = strategies.tuples(
    strategies.just("call"), strategies.sampled_from([2, 3, 5]), strategies.sampled_from([0, 1, 2]), flags, flags, flags
)
rest = strategies.one_of(
    strategies.tuples(strategies.just("backward"), flags),
    strategies.tuples(strategies.just("step"), flags),
    strategies.sampled_from([("move",), ("drop",)]),
)
sequences = strategies.lists(strategies.one_of(calls, calls, rest), min_size=4, max_size=14)


@pytest.mark.filterwarnings("ignore:a region has recorded 2 sizes")
@pytest.mark.parametrize("outputs", ["clone", "weak"])
@given(sequence=sequences)
def test_any_sequence_of_calls_is_that_of_eager(outputs: str, sequence: list[tuple[Any, ...]]) -> None:
    reference, model = Model(), Model()
    region, recorder = graphed(model, outputs=outputs, limit=2)
    theirs, ours = World(reference, reference), World(model, region)
    for what in [*sequence, *sequence]:
        try:
            expected: Any = theirs.do(what)
        except RuntimeError as error:  # written since it was saved, or a part of a graph that is gone
            expected = str(error).partition(":")[0]
        try:
            found = ours.do(what)
        except RuntimeError as error:
            found = str(error).partition(":")[0]
        if isinstance(expected, str) or isinstance(found, str):
            assert isinstance(expected, str) and isinstance(found, str), (what, expected, found)
            return
        same(expected, found)
