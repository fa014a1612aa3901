"""Families: many operations in one line, each run on the inner tensors of the wrapper."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

import torch

from .. import torch_api
from ..torch_api import authors as _authors
from .effects import BIT_VIEWS, aten, effects_of, is_view


@dataclass(frozen=True, eq=False)
class Group:
    """A named set of operations, decided by a question: `views`, `elementwise`, and so on.

    ``@Cls.implements(elementwise)`` gives all of them one rule.
    """

    name: str
    holds: Callable[[Any], bool]

    def __contains__(self, func: object) -> bool:
        return self.holds(func)

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Family:
    """Operations of a class that are served together.

    Attributes:
        operations: which ones.
        rule: the author's function; None to run each operation on the named inner tensors.
        inner: names of the inner tensors that take part; None for all.
    """

    operations: Container[Any]
    rule: Callable[..., Any] | None = None
    inner: tuple[str, ...] | None = None


def _is_views(func: Any) -> bool:
    return (is_view(func) and func not in BIT_VIEWS and not effects_of(func).metadata) or func in _COPYING_VIEWS


def _is_elementwise(func: Any) -> bool:
    return torch.Tag.pointwise in func.tags and not effects_of(func).writes


def _is_in_place(func: Any) -> bool:
    effects = effects_of(func)
    if len(effects.writes) != 1 or effects.writes[0].position != 0 or effects.metadata:
        return False
    return torch.Tag.pointwise in func.tags or func in _WRITES


def _is_factories(func: Any) -> bool:
    return func in _FACTORIES


def _is_collectives(func: Any) -> bool:
    return _authors.is_functional_collective(func) or _authors.is_c10d(func)


_COPYING_VIEWS = frozenset({aten._unsafe_view.default})
_WRITES = frozenset({aten.copy_.default, aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default})
_FACTORIES = frozenset(
    op
    for name in ("empty", "zeros", "ones", "full", "rand", "randn")
    for packet in (f"{name}_like", f"new_{name}")
    if hasattr(aten, packet)
    for op in [getattr(getattr(aten, packet), "default", None)]
    if isinstance(op, torch_api.OpOverload)
) | {aten.new_empty_strided.default}

#: views of values (not of bits), and the copies that torch makes where it would like a view
views = Group("views", _is_views)
#: pointwise operations that make new tensors, as torch tags them
elementwise = Group("elementwise", _is_elementwise)
#: pointwise operations that write to their first argument, and copy_, fill_, zero_
in_place = Group("in_place", _is_in_place)
#: operations that make a tensor like another one: ``*_like`` and ``new_*``
factories = Group("factories", _is_factories)
#: collectives: functional ones, as DTensor issues them, and those in place of ``torch.distributed``
collectives = Group("collectives", _is_collectives)
