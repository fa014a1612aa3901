"""One trace of a training step: what its first call makes, and what may stand in the old places, is no reason for another."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_training_steps import KINDS, Step, _in_parts, _model, _train, _whole
from torch import nn, optim

import subclass_trace as st

Tensor = torch.Tensor


def test_a_trace_alone_makes_the_state_in_the_graph() -> None:
    """Nothing runs then, eagerly or not."""
    model = _model()
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    text = st.compile(_whole(model, optimizer)).specialize(torch.randn(2, 3)).report()
    assert "['momentum_buffer']" in text and not optimizer.state


_PLACES: dict[str, Callable[[Any, Any], None]] = {
    "state dict": lambda m, o: o.load_state_dict(copy.deepcopy(o.state_dict())),
    "weights": lambda m, o: m.load_state_dict(copy.deepcopy(m.state_dict())),
    "gradients dropped": lambda m, o: o.zero_grad(set_to_none=True),
    "gradients zeroed": lambda m, o: o.zero_grad(set_to_none=False),
    "some gradients": lambda m, o: setattr(m[0].weight, "grad", torch.ones_like(m[0].weight)),
    "state": lambda m, o: o.state.update({p: dict(row) for p, row in o.state.items()}),
}


@pytest.mark.parametrize("name", _PLACES)
@pytest.mark.parametrize("build", [_whole, _in_parts])
@pytest.mark.sweep(every=4)
def test_fresh_objects_in_the_old_places(name: str, build: Callable[[Any, Any], Step]) -> None:
    """What a step drops unread is no matter to it."""
    between = lambda k, model, optimizer: k > 1 and _PLACES[name](model, optimizer)
    region = _train(_model, KINDS["Adam"], build, between=between, steps=6)
    adds = name == "some gradients" and build is _in_parts  # which drops them at its end alone
    assert len(region.specializations) == 1 + adds


@pytest.mark.parametrize("drop", [lambda m, o: m.zero_grad(), lambda m, o: o.zero_grad(True), None])
def test_gradients_that_are_dropped_by(drop: Any) -> None:
    """By a module, an optimizer, or one by one; a step that keeps them adds to them."""

    def build(model: Any, optimizer: Any) -> Step:
        def step(x: Tensor) -> Any:
            if drop is None:
                for p in model.parameters():
                    p.grad = None
            else:
                drop(model, optimizer)
            model(x).square().sum().backward()
            optimizer.step()
            return model[2].bias.grad * 1

        return step

    between = lambda k, m, o: setattr(m[2].bias, "grad", None if k % 2 else torch.ones(2))
    assert len(_train(_model, KINDS["SGD"], build, between=between, steps=6).specializations) == 1


class _Lion(optim.Optimizer):
    """An optimizer of the user's, which makes its state where it needs it."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                row = self.state[p]
                if "average" not in row:
                    row["average"] = torch.zeros_like(p)
                p.sub_(row["average"].lerp(p.grad, 0.1).sign(), alpha=group["lr"])
                row["average"].lerp_(p.grad, 0.01)


def test_an_optimizer_of_ones_own() -> None:
    region = _train(_model, _Lion)
    assert len(region.specializations) == 1
    assert "the first call makes the state" in region.explain()


@pytest.mark.long
def test_layers_that_are_thawed() -> None:
    """Each new group of parameters costs one eager step."""

    def kind(parameters: Any) -> Any:
        first, *rest = parameters
        optimizer = optim.Adam([first], lr=0.1)
        optimizer.rest = [[p] for p in rest]  # type: ignore[attr-defined]
        return optimizer

    def between(k: int, model: Any, optimizer: Any) -> None:
        if k % 2 and optimizer.rest:
            optimizer.add_param_group({"params": optimizer.rest.pop()})

    region = _train(_model, kind, between=between, steps=8)
    assert len(region.specializations) == 4


def test_what_makes_something_new_in_each_call_is_traced_at_last() -> None:
    class Growing(_Lion):
        @torch.no_grad()
        def step(self) -> None:  # type: ignore[override]
            super().step()
            self.state[len(self.state)] = {}

    p = nn.Parameter(torch.ones(2))
    optimizer = Growing([p])

    def step() -> None:
        p.grad = torch.ones(2)
        optimizer.step()

    region = st.compile(step, frontend="trace")
    for _ in range(10):
        region()
    assert region.specializations and len(optimizer.state) == 11


def test_a_scaler_that_is_new_to_an_optimizer_with_state() -> None:
    """As where a run is resumed: its scale is made by the first call."""

    def build(model: Any, optimizer: Any) -> Step:
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        optimizer.state.update({p: {"momentum_buffer": torch.ones_like(p)} for p in model.parameters()})

        def step(x: Tensor) -> Tensor:
            loss: Tensor = model(x).square().sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            return loss

        return step

    region = _train(_model, KINDS["SGD with momentum"], build, versions=False)
    assert len(region.specializations) == 1
