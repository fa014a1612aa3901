"""Operations of ``torch.library``: Python of the user's that runs while a region is traced, and in its backwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import subclass_trace as st

Tensor = torch.Tensor
FACTOR = [1.0]


@torch.library.custom_op("subclass_trace_tests::scaled", mutates_args=())
def scaled(x: Tensor) -> Tensor:
    return x * FACTOR[0]


@scaled.register_fake
def _scaled_fake(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.factor = FACTOR[0]


def _backward(ctx: Any, g: Tensor) -> Tensor:
    return g * FACTOR[0] * ctx.factor


scaled.register_autograd(_backward, setup_context=_setup)


@torch.library.custom_op("subclass_trace_tests::pieces", mutates_args=())
def pieces(xs: list[Tensor]) -> list[Tensor]:
    return [x * FACTOR[0] for x in xs]


@pieces.register_fake
def _pieces_fake(xs: list[Tensor]) -> list[Tensor]:
    return [torch.empty_like(x) for x in xs]


def _pieces_backward(ctx: Any, grads: list[Tensor]) -> list[Tensor]:
    return [g * FACTOR[0] for g in grads]


pieces.register_autograd(_pieces_backward)


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    yield
    FACTOR[0] = 1.0


def test_numbers_of_each_call() -> None:
    seen = []
    for f in (scaled, st.compile(lambda x: scaled(x))):
        rows = []
        for FACTOR[0] in (1.0, 1.5, 2.0, 1.0):
            x = torch.ones(2, requires_grad=True)
            y = f(x)
            y.sum().backward()
            assert x.grad is not None
            rows.append((y.tolist(), x.grad.tolist()))
        seen.append(rows)
    assert seen[0] == seen[1]


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "a tensor": lambda x: scaled(x),
    "lists": lambda x: sum(pieces([x, x * 2])),  # type: ignore[arg-type, return-value]
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_number_that_changes_before_the_backward(name: str) -> None:
    seen = []
    for f in (FUNCTIONS[name], st.compile(FUNCTIONS[name])):
        rows = []
        for later in (1.0, 3.0, 1.0):
            FACTOR[0] = 1.0
            x = torch.ones(2, requires_grad=True)
            y = f(x)
            FACTOR[0] = later
            y.sum().backward()
            assert x.grad is not None
            rows.append(x.grad.tolist())
        seen.append(rows)
    assert seen[0] == seen[1]
