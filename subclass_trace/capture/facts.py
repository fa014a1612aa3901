"""Facts of a tensor that Python code may ask for, and that a traced stand-in for it does not share.

A fact has the name of the method or property that tells it. What a region asks for is answered for the real tensor
(`metadata`), and guarded.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import torch_api
from ..errors import UnsupportedError
from ..subclass.attributes import attributes_inside
from ..subclass.context import same_context
from ..subclass.flatten import leaves_of
from ..subclass.paths import Path
from ..subclass.protocol import Kind, kind_of

Tensor = torch.Tensor
Fact = tuple[str, Any]


@dataclass(frozen=True)
class AskedOf:
    """What was asked of one input."""

    is_leaf: bool = False
    gradient: bool = False
    facts: tuple[Fact, ...] = ()


_FACTS: Mapping[str, Callable[[Tensor], Any]] = {
    "gradient hooks": torch_api.gradient_hooks,
    "accumulation hooks": torch_api.accumulation_hooks,
    "_is_view": lambda t: t._is_view(),
    "is_inference": lambda t: t.is_inference(),
    "is_shared": lambda t: t.is_shared(),  # type: ignore[no-untyped-call]
    "output_nr": lambda t: t.output_nr,
    "retains_grad": lambda t: t.retains_grad,
}
#: what an attribute may hold to be compared
SIMPLE = (bool, int, float, complex, str, bytes, type(None))
#: the methods and properties
NAMES = frozenset(_FACTS)


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


def holds_traced(value: Any, depth: int = 4) -> bool:
    """Is it a traced tensor or a symbolic number, or a container or an object with one inside?"""
    if isinstance(value, Tensor):
        if kind_of(type(value)) is Kind.REFUSED:  # its tensors are among its attributes, if anywhere
            return any(map(torch_api.is_fake, vars(value).values()))
        return any(map(torch_api.is_fake, leaves_of(value)))
    if isinstance(value, torch_api.SYM_TYPES):
        return True
    if depth == 0 or isinstance(value, (type, types.ModuleType, types.FunctionType, torch.nn.Module)):
        return False
    if isinstance(value, (list, tuple, set, deque, dict)):
        items = list(dict.values(value)) if isinstance(value, dict) else list(value)
    else:
        items = [v for _, v in attributes_inside(value)]
    return any(holds_traced(v, depth - 1) for v in items[:1000])


def refuse_traced(attributes: Mapping[str, Any], path: Path) -> None:
    """Refuse attributes that the region has set on the value at ``path`` to what only the trace knows.

    Raises:
        UnsupportedError: there is one.
    """
    for name, value in attributes.items():
        if holds_traced(value):
            raise UnsupportedError(
                "the region sets an attribute to an object that holds traced tensors, or numbers that differ between calls",
                path=path.attr(name),
                expected="a number or a string, or an object without tensors of the region",
                got=f"an instance of {type(value).__qualname__}",
                fix="return the tensors, and set the attribute outside of the region",
            )
