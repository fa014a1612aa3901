"""The optimizers of torch through Dynamo, for dense and for `TwoTensor` parameters, over lists (``foreach``) and one by one.

As a part of a region they are in tests/frontends/test_training_steps.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.frontends.dynamo import register
from subclass_trace.zoo import TwoTensor

Tensors = list[torch.Tensor]
STEPS = 3
NAMES = ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")


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
        for name in NAMES
        for pairs in (False, True)
    ],
)
def test_a_step_through_dynamo(name: str, pairs: bool) -> None:
    register()
    for foreach in (True, False):
        torch.compiler.reset()
        expected = step_through_dynamo(name, pairs, foreach, compile=False)
        torch.testing.assert_close(step_through_dynamo(name, pairs, foreach, compile=True), expected)


@pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_a_fused_step(cls: Any) -> None:
    def train(wrap: Any) -> list[torch.Tensor]:
        layer = model(pairs=False)
        optimizer = cls(layer.parameters(), lr=0.1, fused=True)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = layer(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = wrap(step)
        return [*(run(batch(k)) for k in range(3)), *dense(list(layer.parameters()))]

    assert all(torch.equal(a, b) for a, b in zip(train(st.compile), train(lambda f: f), strict=True))


def test_a_step_that_no_graph_can_hold_says_what_to_do() -> None:
    layer, x = model(pairs=False), batch(0)

    def refusal(optimizer: torch.optim.Optimizer) -> str:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = layer(x).square().mean()
            loss.backward()
            return loss

        with pytest.raises((st.UnsupportedError, st.DataDependentError)) as caught:
            region = st.compile(lambda: optimizer.step(closure))
            for _ in range(2):  # a first step that makes the state runs eagerly
                region()
        return str(caught.value)

    parameters = list(layer.parameters())
    for optimizer in (torch.optim.LBFGS, torch.optim.Adafactor):
        refusal(optimizer(parameters))
