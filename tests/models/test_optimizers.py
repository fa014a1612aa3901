"""The optimizers of torch: their functional forms in a region with forward and backward, and a step through Dynamo.

Each is run for dense and for `TwoTensor` parameters, over lists (``foreach``) and one tensor at a time.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.frontends.dynamo import register
from subclass_trace.zoo import TwoTensor

Tensors = list[torch.Tensor]
State = Callable[[Tensors], Tensors]
STEPS = 3


def filled(number: float) -> State:
    return lambda ps: [torch.full_like(p, number, requires_grad=False) for p in ps]


def counters(number: float = 0.0) -> State:
    return lambda ps: [torch.tensor(number) for _ in ps]


def nothing(ps: Tensors) -> Tensors:
    return []


@dataclasses.dataclass(frozen=True)
class Formula:
    """A function of ``torch.optim``, the lists of state after the gradients, and its numbers."""

    module: str
    states: tuple[State, ...]
    numbers: dict[str, Any]
    reads_counters: tuple[bool, ...] = ()  # for which `foreach` it needs ``capturable=True``

    @property
    def function(self) -> Callable[..., None]:
        return getattr(importlib.import_module(f"torch.optim.{self.module}"), self.module)


ZEROS, NUMBERS = filled(0.0), {"lr": 0.01, "weight_decay": 0.1, "eps": 1e-8}
BETAS, ADAM = {"beta1": 0.9, "beta2": 0.999}, {"amsgrad": False, "maximize": False}
MOMENTS = (ZEROS, ZEROS, nothing, counters())
FORMULAS = {
    "AdamW": Formula("adamw", MOMENTS, {**NUMBERS, **BETAS, **ADAM}),
    "Adam": Formula("adam", MOMENTS, {**NUMBERS, **BETAS, **ADAM}),
    "AMSGrad": Formula("adam", (ZEROS, ZEROS, ZEROS, counters()), {**NUMBERS, **BETAS, **ADAM, "amsgrad": True}),
    "SGD": Formula(
        "sgd",
        (ZEROS,),
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.1, "nesterov": True, "maximize": False},
    ),
    "RMSprop": Formula(
        "rmsprop", (ZEROS, nothing, ZEROS, counters()), {**NUMBERS, "alpha": 0.9, "momentum": 0.9, "centered": False}
    ),
    "Adagrad": Formula("adagrad", (ZEROS, counters()), {**NUMBERS, "lr_decay": 0.1, "maximize": False}),
    "NAdam": Formula("nadam", (ZEROS, ZEROS, counters(1.0), counters()), {**NUMBERS, **BETAS, "momentum_decay": 4e-3}),
    "RAdam": Formula("radam", (ZEROS, ZEROS, counters()), {**NUMBERS, **BETAS}, reads_counters=(True, False)),
    "Adamax": Formula("adamax", (ZEROS, ZEROS, counters()), {**NUMBERS, **BETAS}),
    "Adadelta": Formula("adadelta", (ZEROS, ZEROS, counters()), {**NUMBERS, "rho": 0.9, "maximize": False}),
    "ASGD": Formula(
        "asgd",
        (ZEROS, counters(1.0), counters(0.01), counters()),
        {"lr": 0.01, "lambd": 1e-4, "t0": 1e6, "alpha": 0.75, "weight_decay": 0.1},
        reads_counters=(True, False),
    ),
    "Rprop": Formula(
        "rprop",
        (ZEROS, filled(0.01), counters()),
        {"step_size_min": 1e-6, "step_size_max": 50.0, "etaminus": 0.5, "etaplus": 1.2},
    ),
}


def model(pairs: bool) -> torch.nn.Linear:
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 2)
    if pairs:
        for name, p in list(layer.named_parameters()):
            setattr(layer, name, torch.nn.Parameter(TwoTensor(p.detach(), p.detach() * 2)))
    return layer


def batch(number: int) -> torch.Tensor:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(number))


def dense(values: Tensors) -> Tensors:
    flat = (v.detach() for v in values)
    return [t for v in flat for t in ((v.a, v.b) if isinstance(v, TwoTensor) else (v,))]


def train(formula: Formula, pairs: bool, compile: bool, **how: bool) -> Tensors:
    """The losses, parameters and states after some steps; with ``compile`` each step is one call of a region."""
    layer = model(pairs)
    lists, function = [state(list(layer.parameters())) for state in formula.states], formula.function

    def step(x: torch.Tensor, lists: list[Tensors]) -> torch.Tensor:
        parameters = list(layer.parameters())
        loss = layer(x).square().mean()
        gradients = list(torch.autograd.grad(loss, parameters))
        with torch.no_grad():
            function(parameters, gradients, *lists, **formula.numbers, **how)
        return loss.detach()

    call: Any = st.compile(step) if compile else step
    losses = [call(batch(k), lists) for k in range(STEPS)]
    if compile:
        assert len(call.specializations) == 1
    return dense([*losses, *layer.parameters(), *(t for ts in lists for t in ts)])


@pytest.mark.parametrize(
    "pairs", [pytest.param(False, id="plain", marks=pytest.mark.slow), pytest.param(True, id="pairs")]
)
@pytest.mark.parametrize("name", FORMULAS)
def test_a_whole_step_is_one_region(name: str, pairs: bool) -> None:
    """Numbers that eager reads from the counters in double precision are float32 tensors in a graph."""
    formula = FORMULAS[name]
    for foreach in (True, False):
        how = {"capturable": True} if foreach in formula.reads_counters else {}
        expected = train(formula, pairs, compile=False, foreach=foreach)
        torch.testing.assert_close(train(formula, pairs, compile=True, foreach=foreach, **how), expected)


@pytest.mark.parametrize("name", [name for name, formula in FORMULAS.items() if formula.reads_counters])
def test_a_formula_that_reads_its_counters_is_refused(name: str) -> None:
    formula = FORMULAS[name]
    for foreach in formula.reads_counters:
        with pytest.raises(st.UnsupportedError):
            train(formula, pairs=False, compile=True, foreach=foreach)


def step_through_dynamo(name: str, pairs: bool, foreach: bool, compile: bool) -> Tensors:
    layer = model(pairs)
    optimizer = getattr(torch.optim, name)(layer.parameters(), lr=0.01, foreach=foreach)
    step = torch.compile(optimizer.step, backend="subclass_trace") if compile else optimizer.step
    for k in range(STEPS):
        optimizer.zero_grad()
        layer(batch(k)).square().mean().backward()
        step()
    return dense(list(layer.parameters()))


@pytest.mark.parametrize(
    ("name", "pairs"),
    [
        pytest.param(name, pairs, marks=[] if name == "AdamW" and pairs else [pytest.mark.slow])
        for name in FORMULAS
        for pairs in (False, True)
        if name != "AMSGrad"
    ],
)
def test_a_step_through_dynamo(name: str, pairs: bool) -> None:
    register()
    for foreach in (True, False):
        torch.compiler.reset()
        expected = step_through_dynamo(name, pairs, foreach, compile=False)
        torch.testing.assert_close(step_through_dynamo(name, pairs, foreach, compile=True), expected)


def test_a_step_that_no_graph_can_hold_says_what_to_do() -> None:
    layer, x = model(pairs=False), batch(0)
    before = dense(list(layer.parameters()))

    def refusal(optimizer: torch.optim.Optimizer) -> str:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = layer(x).square().mean()
            loss.backward()
            return loss

        with pytest.raises((st.UnsupportedError, st.DataDependentError)) as caught:
            st.compile(lambda: optimizer.step(closure))()
        return str(caught.value)

    parameters = list(layer.parameters())
    for optimizer in (torch.optim.LBFGS, torch.optim.RAdam, torch.optim.Adafactor):
        refusal(optimizer(parameters))
    assert "fused=False" in refusal(torch.optim.Adam(parameters, fused=True))
    assert all(torch.equal(a, b) for a, b in zip(dense(parameters), before, strict=True))
    assert all(p.grad is None for p in parameters)
