"""Layouts of tangents: the strides of a gradient follow those of the tangents, where eager's do.

``y.sum().backward()`` gives the region an expanded tangent, and ``(x * 2).sum()`` has a gradient that is contiguous where
the parameter is not. A backward was traced for one layout of its tangents. `follows` tells by the fake kernels of its
graph whether another layout would give the gradients other strides, mostly after one or two nodes: a matrix product is
laid out the same whatever it is made of. Where it would, or might, a backward for that layout is traced.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx as fx

from .. import _torch
from ..capture.inputs import symbolic_strides
from ..partition.half import Half
from ..subclass.spec import LeafSpec, OpaqueSpec, SizeExpr, Spec, WrapperSpec, leaf_count, spec_leaves
from .sizes import Env, hints
from .tangent_sizes import known_value

Tensor = torch.Tensor
_aten = torch.ops.aten
#: laid out the same whatever they are made of. Of others, fake kernels do not know the strides of dimensions of size 1.
_FIXED = frozenset(
    {
        _aten.mm.default,
        _aten.addmm.default,
        _aten.bmm.default,
        _aten.convolution_backward.default,
        _aten.native_layer_norm_backward.default,
        _aten.embedding_dense_backward.default,
    }
)
#: a backward is traced for at most so many layouts of its tangents; others are brought to that of the first
MOST_LAYOUTS = 16


def contiguous(spec: Spec) -> Spec:
    """The spec with leaves of overlapping or sparse strides contiguous."""
    if isinstance(spec, LeafSpec):
        return spec if is_dense(spec) else replace(spec, stride=_contiguous(spec.size), storage_offset=0)
    return replace(spec, inners=tuple(map(contiguous, spec.inners))) if isinstance(spec, WrapperSpec) else spec


def known_layout(spec: Spec, dynamic: bool) -> Spec:
    """The layout that a tangent counts as: its own; with dynamic sizes one that follows from the sizes."""
    if not dynamic or isinstance(spec, OpaqueSpec):
        return spec
    stride = spec.stride
    if spec.layout is not torch.jagged and not _follows_from_sizes(spec):
        stride = _contiguous(spec.size)
    if isinstance(spec, LeafSpec):
        return replace(spec, stride=stride)
    return replace(spec, stride=stride, inners=tuple(known_layout(s, dynamic) for s in spec.inners))


def layout_like(spec: Spec, known: Spec) -> Spec:
    """The layout of ``spec``, for any sizes that ``known`` stands for."""
    if isinstance(spec, WrapperSpec) and isinstance(known, WrapperSpec):
        inners = tuple(map(layout_like, spec.inners, known.inners))
        return replace(known, stride=_strides_for(spec, known), inners=inners)
    if isinstance(spec, LeafSpec) and isinstance(known, LeafSpec):
        return replace(known, stride=_strides_for(spec, known))
    return known


def _strides_for(spec: LeafSpec | WrapperSpec, known: LeafSpec | WrapperSpec) -> tuple[Any, ...]:
    if not any(isinstance(n, SizeExpr) for n in known.size):
        return spec.stride
    sizes = [n.expr if isinstance(n, SizeExpr) else n for n in known.size]
    found = symbolic_strides(spec.size, spec.stride, sizes)
    return tuple(n if type(n) is int else int(n) if n.is_number else SizeExpr(n) for n in found)


def is_dense(spec: LeafSpec) -> bool:
    """Does it fill its memory, each place once?"""
    return _is_chain(zip(spec.stride, spec.size, strict=True))


def _follows_from_sizes(spec: LeafSpec | WrapperSpec) -> bool:
    """Is it dense, but for dimensions that are expanded?"""
    return _is_chain((stride, size) for stride, size in zip(spec.stride, spec.size, strict=True) if stride != 0)


def _is_chain(rows: Any) -> bool:
    expected = 1
    for stride, size in sorted(rows):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _contiguous(size: Sequence[int]) -> tuple[int, ...]:
    out, step = [], 1
    for n in reversed(size):
        out.append(step)
        step *= max(n, 1)
    return tuple(reversed(out))


def same_layouts(known: Sequence[Spec | None], now: Sequence[Spec | None], env: Env) -> bool:
    """Have values of one structure the same strides? Those that nothing tells in this call count as the same."""
    return all(
        _same_strides(a, b, env)
        for k, n in zip(known, now, strict=True)
        for a, b in zip(_parts(k), _parts(n), strict=True)
    )


def _same_strides(a: Any, b: Any, env: Env) -> bool:
    values = (known_value(n, env) for n in a.stride)
    return all(v is None or v == known_value(n, env) for v, n in zip(values, b.stride, strict=True))


def _parts(spec: Spec | None) -> list[Any]:
    """A value and the values inside it, as far as they have strides; a jagged tensor's are those of its class."""
    if spec is None or getattr(spec, "layout", None) is torch.jagged:
        return []
    if isinstance(spec, WrapperSpec):
        return [spec, *(part for inner in spec.inners for part in _parts(inner))]
    return [spec] if isinstance(spec, LeafSpec) else []


def copies_into(tangents: Sequence[Spec | None], env: Env) -> bool:
    """Can tangents of any layout be copied into these (has each place of memory one element)?"""
    return not any(
        known_value(stride, env) == 0 and known_value(n, env) != 1
        for spec in tangents
        if spec is not None
        for leaf in spec_leaves(spec)
        for stride, n in zip(leaf.stride, leaf.size, strict=True)
    )


def comparable(grads: Sequence[Spec | None]) -> bool:
    """Do fake kernels tell the strides of these gradients? Not those of dimensions of size 1, which kernels choose."""
    return not any(n == 1 for g in grads if g is not None for leaf in spec_leaves(g) for n in leaf.size)


def follows(half: Half, inputs: Sequence[tuple[str, Any]], tangents: Sequence[Spec | None], grads: Any) -> bool:
    """May gradients have other strides when the tangents have these? False only where the fake kernels say no.

    Args:
        half: the backward; ``inputs`` says what its placeholders are (`CompiledBackward.inputs`).
        grads: (spec, is it handed on as it is) for each gradient.
    """
    if not half.is_plain:
        return True
    leaves = [leaf for t in tangents if t is not None for leaf in spec_leaves(t)]
    try:  # a view may not exist for this layout: autograd takes another way there
        changed = _changed(half, [leaves[key] if kind == "tangent" else None for kind, key in inputs])
    except Exception:
        return True
    results, rows = iter(half.outputs), list[bool]()
    for spec, handed_on in grads:
        own = [next(results) for _ in range(0 if spec is None else leaf_count(spec))]
        rows.append(not handed_on and any(half.merged.get(o, o) in changed for o in own))
    return any(rows) or not changed  # none: the difference is in a wrapper's own strides, which its class computes


def _changed(half: Half, given: Sequence[LeafSpec | None]) -> dict[fx.Node, Any]:
    """The nodes whose results are laid out in another way, at the sizes that the graph was traced with."""
    mode = _torch.fake_mode(_torch.ShapeEnv())
    changed: dict[fx.Node, Any] = {}

    def here(value: Any) -> Any:
        """Of the sizes of the trace."""
        if isinstance(value, (list, tuple)):
            return type(value)(map(here, value))
        if not isinstance(value, Tensor):
            return hints((value,))[0]
        return torch.empty_strided(hints(value.shape), hints(value.stride()), dtype=value.dtype, device=value.device)

    def value(node: fx.Node) -> Any:
        found = half.merged.get(node, node)
        return changed[found] if found in changed else here(found.meta["val"])

    with mode, torch.no_grad(), _torch.quiet_fake_errors():
        for node, leaf in zip(half.inputs, given, strict=True):
            was = node.meta.get("val")
            if leaf is not None and isinstance(was, Tensor):
                sizes = hints(was.shape)
                strides = symbolic_strides(leaf.size, leaf.stride, sizes)
                if strides != hints(was.stride()):
                    changed[node] = torch.empty_strided(sizes, strides, dtype=was.dtype, device=was.device)
        for node in half.body:
            if not any(half.merged.get(n, n) in changed for n in node.all_input_nodes):
                continue
            target = node.target
            if not isinstance(target, _torch.OpOverload) and target is not operator.getitem:
                raise NotImplementedError(f"{target}")
            call: Any = target
            args, kwargs = fx.map_arg((node.args, node.kwargs), value)
            made = call(*args, **kwargs)
            tensors = _tensors(made)
            unsure = target not in _FIXED and any(1 in t.shape for t in tensors)
            if unsure or [t.stride() for t in tensors] != [hints(t.stride()) for t in _tensors(node.meta["val"])]:
                changed[node] = made
    return changed


def _tensors(value: Any) -> list[Any]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [v for v in values if isinstance(v, Tensor)]
