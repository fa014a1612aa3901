"""Regions whose results depend on different inputs, on a tape of ours and of torch's."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.tape import compiled_autograd
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


def heads(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    h = (x * w).exp()
    return h * 2, (h * y).sin(), y * 3


def by_torch() -> Any:
    enable = pytest.importorskip("torch._dynamo.compiled_autograd")._enable
    return enable(torch.compile(backend="eager"))


def noting(log: list[int], k: int) -> Any:
    """A hook. Torch 2.11 forgets what a hook does to a default argument, so that it has none."""
    return lambda g: log.append(k)


CHOICES = [(0,), (2,), (0, 1), (0, 1, 2)]
#: on torch's tape, which compiles each of them for a second
SAMPLE = [(False, (0,)), (False, (0, 1, 2)), (True, (2,)), (True, (0, 1))]


@pytest.mark.parametrize(
    ("wrapper", "choice", "around"),
    [
        pytest.param(w, c, a, marks=pytest.mark.slow if a is by_torch and (w, c) not in SAMPLE else ())
        for w in (False, True)
        for c in CHOICES
        for a in (contextlib.nullcontext, compiled_autograd, by_torch)
    ],
)
def test_hooks_and_gradients(wrapper: bool, choice: tuple[int, ...], around: Any) -> None:
    runs = []
    for call in (heads, st.compile(heads)):
        for _ in range(3):
            torch.manual_seed(0)
            dense = [torch.randn(3) for _ in range(3)]
            leaves = [(TwoTensor(t, t.clone()) if wrapper else t).requires_grad_() for t in dense]
            log: list[int] = []
            for k, leaf in enumerate(leaves):
                leaf.register_hook(noting(log, k))
            results = call(*[t * 1 for t in leaves])
            loss = sum(results[k].sum() for k in choice)
            with around() if call is not heads else contextlib.nullcontext():
                loss.backward()
            runs.append((sorted(log), [1e6 if t.grad is None else t.grad.sum().item() for t in leaves]))
    for hooks, grads in runs:
        assert hooks == runs[0][0] and grads == pytest.approx(runs[0][1], rel=1e-4)
