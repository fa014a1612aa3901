"""Attributes of a module that are replaced, containers among them that change, and hooks that come later, are seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import subclass_trace as st


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.act: Any = F.relu
        self.layers: list[Any] = [nn.Tanh()]
        self.table = {"scale": 1.0}
        self.limits = (1, 2.0)
        self.buffers_of_mine = [torch.ones(2)]
        self.owner: Any = nn.Identity

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.linear(x)) * self.table["scale"] + sum(self.limits) + self.buffers_of_mine[0]
        for layer in self.layers:
            x = layer(x)
        return self.owner()(x)


CHANGES: dict[str, Callable[[Net], Any]] = {
    "function": lambda m: setattr(m, "act", F.gelu),
    "appended": lambda m: m.layers.append(nn.Sigmoid()),
    "item": lambda m: m.layers.__setitem__(0, nn.Sigmoid()),
    "value of a dict": lambda m: m.table.update(scale=3.0),
    "tuple": lambda m: setattr(m, "limits", (1, 3.0)),
    "tensor in a list": lambda m: m.buffers_of_mine.__setitem__(0, torch.zeros(2)),
    "class": lambda m: setattr(m, "owner", nn.Tanh),
    "forward of a child": lambda m: setattr(m.linear, "forward", lambda x: x * 9),
    "forward": lambda m: setattr(m, "forward", lambda x: x * 2),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name: str) -> None:
    module, x = Net(), torch.randn(3, 2)
    region = st.compile(module)
    for _ in range(2):
        torch.testing.assert_close(region(x), module(x))
    assert len(region.specializations) == 1
    CHANGES[name](module)
    for _ in range(2):
        torch.testing.assert_close(region(x), module(x))
    assert len(region.specializations) == (1 if name == "tensor in a list" else 2)


@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward"])
def test_hooks_of_all_modules_that_come_later(kind: str) -> None:
    module, x = nn.Linear(2, 2), torch.randn(3, 2, requires_grad=True)
    region = st.compile(module)
    hooks = {
        "forward": lambda _, args, out: out * 2,
        "forward_pre": lambda _, args: (args[0] * 2,),
        "full_backward": lambda _, grads, outs: (grads[0] * 2,),
    }

    def results(call: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        out = call(x)
        return [out, *torch.autograd.grad(out.sum(), x)]

    torch.testing.assert_close(results(region), results(module))
    handle = getattr(nn.modules.module, f"register_module_{kind}_hook")(hooks[kind])
    try:
        torch.testing.assert_close(results(region), results(module))
        torch.testing.assert_close(results(region), results(module))
    finally:
        handle.remove()
    torch.testing.assert_close(results(region), results(module))
    assert len(region.specializations) == 2


def test_objects_are_told_apart_by_identity() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise AssertionError("nobody should compare these")

        __hash__ = None  # type: ignore[assignment]

    module = nn.Linear(2, 2)
    module.odd = Odd()
    region, x = st.compile(module), torch.randn(1, 2)
    region(x)
    region(x)
    module.odd = Odd()
    region(x)
    assert len(region.specializations) == 2 and "odd" in region.specializations[1].reason
