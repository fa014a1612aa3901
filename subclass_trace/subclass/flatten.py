"""The reference flatten, for any depth of nesting; `visit.rebuild` is its inverse.

>>> import torch
>>> from torch.testing._internal.two_tensor import TwoTensor
>>> leaves, spec = flatten(TwoTensor(torch.zeros(2), torch.ones(2)))
>>> len(leaves), spec.cls.__name__, spec.names
(2, 'TwoTensor', ('a', 'b'))
>>> rebuild(spec, iter(leaves)).b
tensor([1., 1.])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from .context import guarded
from .paths import Path
from .protocol import Kind, kind_of
from .spec import LeafSpec, OpaqueSpec, Spec, WrapperSpec
from .visit import VALUE, rebuild, visit


def _outer(t: torch.Tensor) -> tuple[Any, Any, Any, torch.dtype, torch.device, torch.layout, bool]:
    strided = t.layout is torch.strided or t.layout is torch.jagged
    stride = tuple(t.stride()) if strided else ()
    offset = t.storage_offset() if strided else 0
    return tuple(t.shape), stride, offset, t.dtype, t.device, t.layout, t.requires_grad


def flatten(value: Any, path: Path = VALUE) -> tuple[list[torch.Tensor], Spec]:
    """Dense leaves in flatten order, and the spec to rebuild ``value`` from them.

    A leaf stands as often as it occurs: ``TwoTensor(a, a)`` has two leaves that are one tensor.

    Raises:
        ProtocolError: the class breaks the protocol; the message names the path.
    """
    leaves: list[torch.Tensor] = []

    def leaf(t: torch.Tensor, _: Path) -> Spec:
        leaves.append(t)
        return LeafSpec(*_outer(t), (t.is_conj(), t.is_neg()))

    def wrapper(
        t: torch.Tensor, names: tuple[str, ...], inners: list[Spec], context: Any, _: Path
    ) -> Spec:
        return WrapperSpec(type(t), names, tuple(inners), context, *_outer(t))

    spec = visit(value, leaf=leaf, wrapper=wrapper, opaque=lambda v, _: OpaqueSpec(v), path=path)
    return leaves, spec


def guarded_spec(spec: Spec, path: Path = VALUE) -> Spec:
    """A spec with what guards keep of its contexts, and of its values that are no tensors.

    Raises:
        UnsupportedError: see `context.guarded`.
    """
    if isinstance(spec, LeafSpec):
        return spec
    if isinstance(spec, OpaqueSpec):
        return OpaqueSpec(guarded(spec.value, path))
    inners = tuple(
        guarded_spec(s, path.attr(n)) for n, s in zip(spec.names, spec.inners, strict=True)
    )
    return replace(spec, inners=inners, context=guarded(spec.context, path))


def _tensors(value: Any) -> list[tuple[Path, torch.Tensor, bool]]:
    """(path, tensor, is it dense) for a value and each tensor inside of it, in flatten order; inner
    ones first."""
    found: list[tuple[Path, torch.Tensor, bool]] = []
    visit(
        value,
        leaf=lambda t, p: found.append((p, t, True)),
        wrapper=lambda t, names, inners, context, p: found.append((p, t, False)),
        opaque=lambda v, _: None,
    )
    return found


def leaves_of(value: Any) -> list[torch.Tensor]:
    """The dense leaves of a value, in flatten order."""
    return [t for _, t, dense in _tensors(value) if dense]


def tensors_inside(value: Any) -> list[tuple[tuple[str, ...], torch.Tensor]]:
    """(attribute names from outside in, tensor) for each tensor inside ``value``, wrapper or dense;
    inner ones first."""
    return [(tuple(step[1:] for step in p.steps), t) for p, t, _ in _tensors(value) if p.steps]


def wrappers_inside(value: Any) -> list[tuple[tuple[str, ...], torch.Tensor]]:
    """Those of `tensors_inside` that are wrappers."""
    return [(names, t) for names, t in tensors_inside(value) if kind_of(type(t)) is Kind.WRAPPER]


def map_leaves(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """The same value with each leaf replaced by ``function(leaf)``; wrappers are rebuilt by
    ``__tensor_unflatten__``."""
    leaves, spec = flatten(value)
    return rebuild(spec, iter([function(t) for t in leaves]))
