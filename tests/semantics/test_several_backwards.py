"""Backwards from several results of one region, one after the other: which of them eager mode allows, and what they give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


def _of_one(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    h = (x * w).exp()
    return h.sin(), h.cos(), w.tanh()


def _of_a_sum(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    h = x + w
    return h.sin(), h.cos()


PROGRAMS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, ...]]] = {
    "disjoint": lambda x, w: ((x * w).sin(), (x @ w).pow(2)),
    "of saved results": lambda x, w: ((x * w).sigmoid(), (x @ w).exp()),
    "of one": _of_one,
    "of a sum": _of_a_sum,
    "without activations": lambda x, w: (x + 1, w + x),
}


def _dense() -> Tensor:
    return torch.randn(3, 3)


def _two() -> Tensor:
    return TwoTensor(_dense(), _dense())  # type: ignore[return-value]


def _run(function: Any, base: Sequence[Tensor], order: Sequence[int]) -> tuple[list[bool], list[Tensor | None]]:
    x, w = (t.detach().clone().requires_grad_() for t in base)
    results, allowed = function(x, w), []
    for k in order:
        try:
            results[k].sum().backward()
            allowed.append(True)
        except RuntimeError as error:
            assert "second time" in str(error)
            allowed.append(False)
    return allowed, [None if t.grad is None else getattr(t.grad, "a", t.grad) for t in (x, w)]


def _hooked(function: Any, *args: Any) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t.clone()):
        return function(*args)


def _checkpointed(function: Any, *args: Any) -> Any:
    return checkpoint(function, *args, use_reentrant=False)


@pytest.mark.parametrize("middle", [torch.nn.SiLU(), torch.nn.LayerNorm(4)], ids=["silu", "layer_norm"])
def test_gradient_penalty_whose_backward_writes_in_place(middle: torch.nn.Module) -> None:
    """The first trace has no operation in place, a later one of the same region has: saved values keep their names."""
    found = []
    for call in (lambda m: m, st.compile):
        torch.manual_seed(0)
        layers = torch.nn.Sequential(torch.nn.Linear(3, 4), middle, torch.nn.Linear(4, 1))
        x = torch.rand(5, 3).requires_grad_()
        out = call(layers)(x)
        (grad,) = torch.autograd.grad(out, x, torch.ones_like(out), create_graph=True)
        loss = out.mean() + ((grad.norm(2, 1) - 1) ** 2).mean()
        found.append(torch.autograd.grad(loss, [x, *layers.parameters()]))
    for eager, ours in zip(*found, strict=True):
        assert torch.allclose(eager, ours, atol=1e-6)
