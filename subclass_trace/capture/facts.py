"""Facts of a tensor that Python code may ask for, and that a traced stand-in for it does not share.

A fact has the name of the method or property that tells it; ``".name"`` is a Python attribute that somebody has set.
What a region asks for is answered for the real tensor (`metadata`), and guarded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..subclass.context import same_context

Tensor = torch.Tensor
Fact = tuple[str, Any]

ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "no such attribute"})()
_FACTS: Mapping[str, Callable[[Tensor], Any]] = {
    "grad_fn": lambda t: None if t.grad_fn is None else (type(t.grad_fn).__name__, t.grad_fn.name()),
    "_is_view": lambda t: t._is_view(),
    "is_inference": lambda t: t.is_inference(),
    "is_shared": lambda t: t.is_shared(),  # type: ignore[no-untyped-call]
    "output_nr": lambda t: t.output_nr,
    "retains_grad": lambda t: t.retains_grad,
    "untyped_storage": lambda t: t.untyped_storage().nbytes() if t.layout is torch.strided else None,
    "storage_offset": lambda t: t.storage_offset() if t.layout is torch.strided else None,
}
#: the methods and properties
NAMES = frozenset(_FACTS)


def fact_of(t: Tensor, name: str) -> Any:
    """A fact of a tensor; `ABSENT` for an attribute that it does not have."""
    return vars(t).get(name[1:], ABSENT) if name.startswith(".") else _FACTS[name](t)


def failed_fact(facts: Sequence[Fact], t: Tensor) -> str | None:
    """The first of these facts that does not hold for ``t``, as the end of a sentence."""
    for name, known in facts:
        now = fact_of(t, name)
        if not same_context(known, now):
            return f"{name.lstrip('.')}: expected {known!r}, got {now!r}"
    return None
