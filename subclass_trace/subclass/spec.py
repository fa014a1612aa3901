"""Specs: frozen recursive records of how to rebuild a value from dense leaves.

``TwoTensor(a, b)`` of shape (2, 3) becomes::

    WrapperSpec(TwoTensor, names=("a", "b"), inners=(LeafSpec((2, 3), ...), LeafSpec((2, 3), ...)),
    context=None, ...)

Sizes are Python ints, or ``torch.SymInt`` while a region with dynamic sizes is captured, or
`SizeExpr` (`RaggedSize` for a jagged tensor) in what the run time keeps of such a region.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from .context import SizeValue, same_context, without_outer


@dataclass(frozen=True, slots=True)
class SizeExpr(SizeValue):
    """A size that is computed from the sizes of the call: a sympy expression over the region's
    symbols."""

    expr: Any

    def evaluate(self, env: Mapping[Any, int]) -> int:
        """The size under ``env``, which maps each symbol to its value in this call.

        Raises:
            ArithmeticError: there is none, as for a division by 0.
        """
        if self.expr in env:  # a number of the call may be a float
            return env[self.expr]
        value = self.expr.xreplace(env)
        try:
            return int(value)
        except (TypeError, ValueError) as error:  # an infinity of sympy's, or its NaN
            raise ArithmeticError(f"{self.expr} is {value} for {env}") from error

    def __str__(self) -> str:
        return str(self.expr)


@dataclass(frozen=True, slots=True)
class RaggedSize:
    """A ragged size or stride of a jagged tensor: ``coefficient`` times the nested int of its
    offsets.

    ``symbol`` stands for the nested int; it is None where the offsets belong to no input. The class
    takes it from the offsets that a value is made of, so nothing but a replayed view asks for it.
    """

    symbol: Any
    coefficient: int | SizeExpr = 1

    def evaluate(self, env: Mapping[Any, Any]) -> Any:
        """The nested int in this call; -1 where no input has it."""
        nested = env.get(self.symbol)
        if nested is None:
            return -1
        factor = self.coefficient
        return nested * (factor.evaluate(env) if isinstance(factor, SizeExpr) else factor)

    def __str__(self) -> str:
        return "ragged"


Size: TypeAlias = "int | torch.SymInt | SizeExpr | RaggedSize"


@dataclass(frozen=True, eq=False, slots=True)
class LeafSpec:
    """A dense tensor. ``stride`` and ``storage_offset`` are empty and 0 for layouts that have
    none."""

    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    storage_offset: Any
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    requires_grad: bool
    lazy: tuple[bool, bool] = (False, False)  # its conjugate and its negative bit


@dataclass(frozen=True, eq=False, slots=True)
class OpaqueSpec:
    """An attribute named by ``__tensor_flatten__`` that is no tensor, such as a DeviceMesh: a
    guarded constant."""

    value: Any


@dataclass(frozen=True, eq=False, slots=True)
class WrapperSpec:
    """A wrapper: its class, the names of its inner values in flatten order, their specs, the
    context, outer metadata."""

    cls: type[torch.Tensor]
    names: tuple[str, ...]
    inners: tuple[Spec, ...]
    context: Any
    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    storage_offset: Any
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    requires_grad: bool

    @property
    def has_dynamic_size(self) -> bool:
        """Is an outer size or stride computed from the sizes of the call?"""
        return any(isinstance(n, SizeExpr) for n in (*self.size, *self.stride))


Spec: TypeAlias = "LeafSpec | WrapperSpec | OpaqueSpec"


def spec_leaves(spec: Spec) -> Iterator[LeafSpec]:
    """The leaf specs of ``spec`` in flatten order."""
    if isinstance(spec, LeafSpec):
        yield spec
    elif isinstance(spec, WrapperSpec):
        for inner in spec.inners:
            yield from spec_leaves(inner)


def leaf_spans(specs: Iterable[Spec]) -> list[slice]:
    """Where the leaves of each are among those of all."""
    return [
        slice(a, b)
        for a, b in itertools.pairwise(itertools.accumulate(map(leaf_count, specs), initial=0))
    ]


def leaf_ways(spec: Spec) -> list[tuple[str, ...]]:
    """The names of the inner tensors on the way to each leaf of a value, in flatten order."""
    if isinstance(spec, WrapperSpec):
        return [
            (n, *way) for n, s in zip(spec.names, spec.inners, strict=True) for way in leaf_ways(s)
        ]
    return [()] if isinstance(spec, LeafSpec) else []


def leaf_paths(spec: Spec, path: str) -> list[str]:
    """The path of each leaf of a value, in flatten order."""
    return [".".join((path, *way)) for way in leaf_ways(spec)]


def sizes_in(spec: Spec) -> Iterator[Any]:
    """Sizes and strides of a value and of all values inside it."""
    if isinstance(spec, WrapperSpec):
        for inner in spec.inners:
            yield from sizes_in(inner)
    if not isinstance(spec, OpaqueSpec):
        yield from spec.size
        yield from spec.stride


def leaf_count(spec: Spec) -> int:
    """How many dense leaves a value of this spec has."""
    return sum(1 for _ in spec_leaves(spec))


def _comparable(size: tuple[Any, ...]) -> tuple[Any, ...]:
    # Sizes with a nested int (jagged tensors) differ in each value; which ones agree is carried by
    # the offsets leaf.
    return tuple("nested" if is_ragged(s) or isinstance(s, RaggedSize) else s for s in size)


def is_ragged(size: object) -> bool:
    """Is a live size a nested int: the ragged size of a jagged tensor?"""
    return isinstance(size, torch.SymInt) and size.node.is_nested_int()


def same_contexts(a: Spec, b: Spec) -> bool:
    """Are the contexts of two specs of one structure the same, at every level?"""
    if not isinstance(a, WrapperSpec) or not isinstance(b, WrapperSpec):
        return True
    return _same_context(a, b) and all(map(same_contexts, a.inners, b.inners))


def _same_context(a: WrapperSpec, b: WrapperSpec) -> bool:
    """(One of them may have markers in place of its outer size, because that is dynamic.)"""
    if same_context(a.context, b.context):
        return True
    return same_context(*[without_outer(s.context, s.size, s.stride) for s in (a, b)])


def moved(spec: Spec, source: torch.device, target: torch.device) -> Spec:
    """The spec of the same value on another device, for what of it is on ``source``."""
    if isinstance(spec, OpaqueSpec):
        return spec
    device = target if spec.device == source else spec.device
    if isinstance(spec, LeafSpec):
        return replace(spec, device=device)
    inners = tuple(moved(s, source, target) for s in spec.inners)
    return replace(spec, device=device, inners=inners)


def same_spec(a: Spec, b: Spec, *, strides: bool = True) -> bool:
    """Do two specs describe values of one type, structure, context, size, dtype and device (and
    stride)?

    requires_grad is not compared: a primal and its gradient differ in it by nature.
    """
    if type(a) is not type(b):
        return False
    if isinstance(a, OpaqueSpec) and isinstance(b, OpaqueSpec):
        return same_context(a.value, b.value)
    assert not isinstance(a, OpaqueSpec) and not isinstance(b, OpaqueSpec)
    if (a.dtype, a.device, a.layout) != (b.dtype, b.device, b.layout) or _comparable(
        a.size
    ) != _comparable(b.size):
        return False
    if isinstance(a, WrapperSpec) and isinstance(b, WrapperSpec):
        return (
            a.cls is b.cls
            and a.names == b.names
            and _same_context(a, b)
            and all(
                same_spec(x, y, strides=strides) for x, y in zip(a.inners, b.inners, strict=True)
            )
        )
    return not strides or a.stride == b.stride
