"""Facts of a tensor that Python code may ask for, and that a traced stand-in for it does not share.

A fact has the name of the method or property that tells it. What a region asks for is answered for the real tensor
(`metadata`), and guarded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import torch_api
from ..subclass.context import same_context

Tensor = torch.Tensor
Fact = tuple[str, Any]


@dataclass(frozen=True)
class ReadsOf:
    """What was asked of one input."""

    is_leaf: bool = False
    gradient: bool = False
    facts: tuple[Fact, ...] = ()


_FACTS: Mapping[str, Callable[[Tensor], Any]] = {
    "gradient hooks": torch_api.gradient_hooks,
    "accumulation hooks": torch_api.accumulation_hooks,
    "is_inference": lambda t: t.is_inference(),
    "retains_grad": lambda t: t.retains_grad,
}


def fact_of(t: Tensor, name: str) -> Any:
    """A fact of a tensor."""
    return _FACTS[name](t)


def failed_fact(facts: Sequence[Fact], t: Tensor) -> str | None:
    """The first of these facts that does not hold for ``t``, as the end of a sentence."""
    for name, known in facts:
        now = fact_of(t, name)
        if not same_context(known, now):
            return f"{name}: expected {known!r}, got {now!r}"
    return None
