"""Control flow operators whose branches call modules, or read their tensors: those are inputs of the region like others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import subclass_trace as st
from subclass_trace import verify

Tensor = torch.Tensor


class Branches(nn.Module):
    def __init__(self, program: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.program = nn.Linear(4, 4), nn.Linear(4, 4), program
        self.register_buffer("count", torch.ones(4))
        self.scale = torch.tensor(3.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.program(self, x)


def modules_as_branches(m: Any, x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, m.first, m.second, (x,))


def modules_read_in_branches(m: Any, x: Tensor) -> Tensor:
    m.count.add_(1)
    return (
        torch.cond(x.sum() > 0, lambda x: m.first(x) * m.scale, lambda x: x @ m.second.weight + m.count, (x,)) * m.scale
    )


def scanned(m: Any, x: Tensor) -> Tensor:
    return scan(lambda h, x: ((m.first(h) + x).tanh(), x * 2), x[0], x, dim=0)[0]


def mapped(m: Any, x: Tensor) -> Tensor:
    return map_rows(lambda row: m.first(row) * m.scale, x)


def looped(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, m.first(x)), (torch.tensor(0), x))[1] + m.first(x)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(f, id=f.__name__, marks=[] if "read" in f.__name__ else pytest.mark.slow)
        for f in (modules_as_branches, modules_read_in_branches, scanned, mapped, looped)
    ],
)
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute"
)  # Dynamo asks, and hides the warning, but not where it is an error
def test_modules_in_branches(program: Any) -> None:
    torch._dynamo.reset()
    model, found = Branches(program), []
    region = st.compile(model)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    for run in (model, region):
        model.load_state_dict(state)
        rows: list[Any] = []
        for sign in (1, -1):
            model.zero_grad()
            x = (torch.arange(16.0).reshape(4, 4) * sign / 9).requires_grad_(program is not looped)
            with verify.enabled():
                out = run(x)
            if out.requires_grad:
                out.square().sum().backward()
            rows += [out.detach(), x.grad, model.count.clone(), *[p.grad for p in model.parameters()]]
        found.append(rows)
    for want, got in zip(*found, strict=True):
        assert (want is None) == (got is None)
        if want is not None:
            torch.testing.assert_close(got, want)
    assert len(region.specializations) == 1


def test_a_constant_in_a_branch() -> None:
    def f(x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda a: torch.where(a > 1, a, torch.tensor(0.5)), lambda a: a - 1, (x,))

    region = st.compile(f)
    for x in (torch.arange(4.0), -torch.arange(4.0)):
        assert torch.equal(region(x), f(x))
