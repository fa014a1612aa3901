"""One program, in eager and through Dynamo and this package, compared by the oracle."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "differential"))
import oracle

from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
Make = Callable[[], tuple[Any, ...]]


def dense(*size: int, grad: bool = True) -> Tensor:
    return torch.randn(*size).requires_grad_(grad)


def two(*size: int, grad: bool = True) -> Tensor:
    return TwoTensor(torch.randn(*size), torch.randn(*size)).requires_grad_(grad)


def agree(function: Callable[..., Any], compiled: Callable[..., Any], make: Make, calls: int = 1) -> None:
    """Eager and compiled agree on fresh arguments of ``make``."""

    def inputs(call: int) -> oracle.Inputs:
        torch.manual_seed(3 + call)
        args = make()
        return oracle.Inputs(args, tuple(t for t in oracle.tensors(args) if t.is_leaf and t.requires_grad))

    oracle.check(function, inputs, backward=oracle.backward_of(range(8)), calls=calls, compiled=compiled)


def check(function: Callable[..., Any], make: Make, **options: Any) -> Callable[..., Any]:
    """Compare ``function`` with its compiled form on ``make()``; returns the compiled form."""
    compiled = torch.compile(function, backend="subclass_trace", **{"fullgraph": True, **options})
    agree(function, compiled, make)
    return compiled
