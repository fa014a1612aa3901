"""Modules that keep tensors in attributes and buffers: what is overwritten unread takes no part in the backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import subclass_trace as st

Tensor = torch.Tensor


class Aux(nn.Module):
    """Keeps a loss."""

    def __init__(self, buffer: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        if buffer:
            self.register_buffer("aux", torch.zeros(()), persistent=False)
        else:
            self.aux = None

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        self.aux = y.square().mean()
        return y


class Hidden(nn.Module):
    """Reads what it keeps: the steps are one history, as in eager."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.aux = torch.zeros(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.aux = (self.layer(x) + self.aux).tanh()
        return self.aux


MODULES: dict[str, Callable[[], nn.Module]] = {
    "attribute": Aux,
    "buffer": lambda: Aux(buffer=True),
    "weight norm": lambda: nn.utils.weight_norm(nn.Linear(4, 4)),
    "spectral norm": lambda: nn.utils.spectral_norm(nn.Linear(4, 4)),
    "pruned": lambda: prune.l1_unstructured(nn.Linear(4, 4), "weight", 0.5),
}


def _twice(make: Callable[[], nn.Module]) -> list[nn.Module]:
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        made.append(make())
    return made


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", MODULES)
def test_a_value_that_is_overwritten_unread_is_no_part_of_the_backward(name: str) -> None:
    eager, compiled = _twice(MODULES[name])
    for model, call in ((eager, eager), (compiled, st.compile(compiled))):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for k in range(3):
            loss = call(torch.ones(2, 4) * (k + 1)).sum() + (model.aux if isinstance(model, Aux) else 0)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    for a, b in zip(eager.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_value_that_is_read_is_part_of_the_backward() -> None:
    eager, compiled = _twice(Hidden)
    for call in (eager, st.compile(compiled)):
        outs = [call(torch.ones(2, 4) * k) for k in range(3)]
        sum(outs).sum().backward()
    for a, b in zip(eager.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_only_inputs_that_the_results_depend_on_are_differentiated() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return x * y.detach() + y.shape[0]

    x, y = (torch.randn(2, requires_grad=True).mul(1) for _ in range(2))
    assert st.compile(f).specialize(x, y).plan.differentiated == (0,)
