"""Sizes of inputs as symbols, and the traced value of an input: a fake leaf, or a wrapper over such
leaves."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..errors import ProtocolError
from ..subclass.context import same_context, with_outer, without_outer
from ..subclass.paths import Path
from ..subclass.spec import (
    LeafSpec,
    OpaqueSpec,
    Spec,
    WrapperSpec,
    is_ragged,
    sizes_in,
    spec_leaves,
)
from ..subclass.visit import inner_values, rebuild
from ..torch_api.autograd import track
from ..torch_api.kinds import storage_key
from ..torch_api.modes import without_tracing
from ..torch_api.symbols import size_symbol
from .session import Dim, Session

Tensor = torch.Tensor


class DynamicDims:
    """What the sizes of the values of a call become, value by value (the outer ones of a wrapper,
    or those of a leaf).

    Here all are static; `frontends/dynamic.py` has the choice.
    """

    def sizes(self, path: Path, t: Tensor) -> Sequence[int]:
        """What each size of the value at a path becomes: see `Dim`."""
        return [Dim.STATIC] * (0 if t.is_nested else t.dim())


class SizeSymbols:
    """Gives the outer sizes of wrappers their symbols, and finds those that no leaf carries."""

    def __init__(self, session: Session, dynamic: DynamicDims) -> None:
        self.session, self.dynamic = session, dynamic

    def spec(self, value: Any, spec: Spec, path: Path, fakes: Iterator[Tensor]) -> Spec:
        """The spec of ``value`` with symbolic sizes."""
        if isinstance(spec, OpaqueSpec):
            return spec
        if isinstance(spec, LeafSpec):
            fake = next(fakes)
            place = fake.storage_offset()
            return replace(
                spec, size=tuple(fake.shape), stride=tuple(fake.stride()), storage_offset=place
            )
        inners = tuple(
            self.spec(getattr(value, n), s, path.attr(n), fakes)
            for n, s in zip(spec.names, spec.inners, strict=True)
        )
        size, stride = spec.size, spec.stride
        if spec.layout is torch.jagged:
            return self._jagged(replace(spec, inners=inners))
        dims = self.dynamic.sizes(path, value)
        if any(dims):
            size = self.session.outer_size(value, path, dims)
            stride = symbolic_strides(spec.size, spec.stride, size)
        return replace(spec, inners=inners, size=size, stride=stride)

    def _jagged(self, spec: WrapperSpec) -> Spec:
        """The outer sizes of a jagged tensor follow from its inner ones, and its ragged size from
        its offsets."""
        size = self.session.recorder.symbols.ragged_sizes(spec.size)
        with self.session.mode, without_tracing():
            made = rebuild(replace(spec, size=size), map(_like, spec_leaves(spec)))
        return replace(spec, size=tuple(made.shape), stride=tuple(made.stride()))

    def unbound(self, specs: Sequence[Spec], originals: Sequence[Tensor]) -> list[Any]:
        """Sizes, and arguments that are sizes, whose symbol is the size, stride or offset of no
        dense leaf.

        Leaves of one storage may become one graph input, which does not tell their sizes.
        """
        overlapping = _of_one_storage(originals) if self.session.dynamic else set()
        inside = (n for k in sorted(overlapping) for n in _numbers_of(originals[k]))
        found = {
            size_symbol(n): n
            for n in itertools.chain(inside, *map(sizes_in, specs))
            if type(n) is not int
        }
        if not found:
            return []
        known: set[Any] = {None}
        for k, fake in enumerate(originals):
            if k not in overlapping:
                known.update(map(size_symbol, _numbers_of(fake)))
        return [n for symbol, n in found.items() if symbol not in known]


def traced_value(
    session: Session,
    spec: Spec,
    leaves: list[Tensor],
    path: Path,
    inference: bool,
    grad_dtype: torch.dtype | None,
) -> Tensor:
    """An input as the user function sees it: made of traced leaves, and no autograd leaf, unless it
    asks for gradients of another dtype, as leaves alone do.

    Raises:
        ProtocolError: the class builds something else than an instance of itself.
    """
    if isinstance(spec, LeafSpec):
        # Two inputs never are one leaf (duplicates are removed before), but an inner leaf can be an
        # input as well: then autograd relates them no more than in eager, so each gets an alias of
        # its own.
        traced = leaves[0] if not spec.requires_grad else session.tracked(leaves[0])
    else:
        grad = torch.is_grad_enabled()
        with torch.inference_mode(inference), torch.set_grad_enabled(grad):
            traced = rebuild(spec, iter(leaves))
            sized = _sized_by_context(spec, traced)
            if sized is not spec:
                spec, traced = sized, rebuild(sized, iter(leaves))
        if isinstance(spec, WrapperSpec) and type(traced) is not spec.cls:
            raise ProtocolError(
                f"{spec.cls.__qualname__}.__tensor_unflatten__ built a {type(traced).__qualname__}",
                path=path,
                expected=f"an instance of {spec.cls.__qualname__}",
                got=f"an instance of {type(traced).__qualname__}",
                fix="make __tensor_unflatten__ a classmethod that builds `cls`",
            )
    if traced.requires_grad:  # some classes set it themselves
        traced.requires_grad_(False)
    if spec.requires_grad:  # type: ignore[union-attr]
        track(traced, grad_dtype)
    return traced


def _sized_by_context(spec: Spec, traced: Any) -> Spec:
    """With the symbols of the outer size in a context that repeats it: there, the class would find
    the numbers of this call.

    (But where it rebuilds its context from the outer size that it is given, as DTensor does.)
    """
    if not isinstance(spec, WrapperSpec) or not isinstance(traced, Tensor):
        return spec
    pairs = [
        (s, _sized_by_context(s, getattr(traced, n, None)))
        for n, s in zip(spec.names, spec.inners, strict=True)
    ]
    context = spec.context
    if any(isinstance(n, torch.SymInt) and not is_ragged(n) for n in spec.size):
        now = inner_values(traced, Path("value"))[2]
        size, stride = (
            tuple(n if type(n) is int else n.node.hint for n in ns)
            for ns in (spec.size, spec.stride)
        )
        if not same_context(now, without_outer(now, size, stride)):
            context = with_outer(without_outer(context, size, stride), spec.size, spec.stride)
    if context is spec.context and all(new is old for old, new in pairs):
        return spec
    return replace(spec, context=context, inners=tuple(new for _, new in pairs))


def _of_one_storage(leaves: Sequence[Tensor]) -> set[int]:
    storages: dict[int | None, list[int]] = {}
    for k, t in enumerate(leaves):
        storages.setdefault(storage_key(t), []).append(k)
    return {
        k
        for key, members in storages.items()
        if key is not None and len(members) > 1
        for k in members
    }


def _numbers_of(fake: Tensor) -> tuple[Any, ...]:
    """Sizes, strides and offset."""
    return (*fake.shape, *fake.stride(), fake.storage_offset())


def _like(spec: LeafSpec) -> Tensor:
    return torch.empty_strided(spec.size, spec.stride, dtype=spec.dtype, device=spec.device)


def symbolic_strides(
    size: Sequence[int], stride: Sequence[int], symbolic: Sequence[Any]
) -> tuple[Any, ...]:
    """Strides as products of symbolic sizes, where the numbers say so; other strides stay
    numbers."""
    out: list[Any] = list(stride)
    order = sorted(range(len(size)), key=lambda d: (stride[d], size[d] != 1, -d))
    expected, symbol = 1, 1
    for d in order:
        if stride[d] == expected:
            out[d] = symbol
            expected, symbol = size[d] * expected, symbolic[d] * symbol
    return tuple(out)
