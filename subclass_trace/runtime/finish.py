"""What generated code calls with: the state of one call, and a plan with its compiled graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..plan import Plan
from .backward import Backwards

Boxed = Callable[[list[Any]], Sequence[Any]]


@dataclass(eq=False)
class Call:
    """The state of one call: inputs, their dense leaves, values of symbols; the forward fills in sizes."""

    inputs: list[torch.Tensor]
    leaves: list[torch.Tensor]
    env: dict[Any, Any]
    sizes: Sequence[Any] = ()


@dataclass(frozen=True, eq=False)
class Program:
    """A plan with its compiled graphs."""

    plan: Plan
    forward: Boxed
    backwards: Backwards | None
