"""What a backward is traced for: the sizes of tangents as symbols, their layouts, and which
backward serves which tangents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ..capture.input_sizes import symbolic_strides
from ..capture.symbols import symint
from ..subclass.context import has_sizes, map_sizes, same_context
from ..subclass.spec import (
    LeafSpec,
    SizeExpr,
    Spec,
    WrapperSpec,
    is_ragged,
    same_spec,
    sizes_in,
    spec_leaves,
)
from ..subclass.visit import map_spec
from ..torch_api.kinds import contiguous_strides
from .sizes import Env, concrete, evaluate, to_expr


def matches(known: Spec | None, now: Spec | None, env: Env) -> bool:
    """Is this tangent one that a backward was compiled for?"""
    if known is None or now is None:
        return known is now
    rows = [*zip(spec_leaves(known), spec_leaves(now), strict=False)]
    env = with_unbacked([a for a, _ in rows], [b.size for _, b in rows], env)
    return same_spec(concrete(known, env), now, strides=False)


def with_unbacked(leaves: Sequence[LeafSpec], shapes: Sequence[Sequence[int]], env: Env) -> Env:
    """``env`` with the symbols that it does not know but that are a size of a leaf: they depend on
    values (``nonzero``), no input tells them, and the tangents have the sizes of their results."""
    found: dict[Any, int] = {}
    for leaf, shape in zip(leaves, shapes, strict=True):
        for known, n in zip(leaf.size, shape, strict=False):
            if isinstance(known, SizeExpr) and known.expr.is_Symbol and known.expr not in env:
                found.setdefault(known.expr, n)
    return {**env, **found} if found else env


def traced_as(spec: Spec, like: Spec, create_graph: bool, env: Env) -> Spec:
    """What a backward is traced for when this tangent comes.

    Its layout is its own, if it is dense, else contiguous. What requires grad counts where it is
    differentiated twice. Sizes are symbols where those of the traced output have the same value in
    this call: at their own place, or at any.

    Args:
        like: of the live output that it belongs to.
    """
    return _Symbolic(like, env).spec(_grad_alone(_dense(spec), create_graph), like)


class _Symbolic:
    def __init__(self, like: Spec, env: Env) -> None:
        self.env = env
        self.anywhere: dict[int, Any] = {}
        exprs = [(n, e) for n in sizes_in(like) if isinstance(e := to_expr(n), SizeExpr)]
        for n, _ in exprs:
            if (value := self.value(n)) is not None:
                self.anywhere.setdefault(value, n)
        # of a dimension that is split otherwise: 4 * s over four ranks has local size s
        for n, e in exprs:
            for s in sorted(e.expr.free_symbols, key=str):
                if s in env:
                    self.anywhere.setdefault(env[s], symint(n.node.shape_env, s))

    def value(self, size: Any) -> Any:
        """In this call; None where that is not known."""
        expr = to_expr(size)
        unknown = isinstance(expr, SizeExpr) and not expr.expr.free_symbols <= self.env.keys()
        return None if unknown else evaluate(expr, self.env)

    def elsewhere(self, n: Any) -> Any:
        return n if is_ragged(n) else self.anywhere.get(n, n)

    def sizes(self, now: Sequence[Any], then: Sequence[Any]) -> tuple[Any, ...]:
        if len(now) != len(then):
            return tuple(map(self.elsewhere, now))
        pairs = zip(now, then, strict=True)
        return tuple(
            n if is_ragged(n) else t if self.value(t) in (n, None) else self.elsewhere(n)
            for n, t in pairs
        )

    def strides(self, s: Any, size: tuple[Any, ...], t: Any) -> tuple[Any, ...]:
        found = self.sizes(s.stride, t.stride)
        if s.layout is torch.jagged:
            return found
        # of a layout that is not that of the output
        products = symbolic_strides(s.size, s.stride, size)
        return tuple(p if type(n) is int else n for n, p in zip(found, products, strict=True))

    def spec(self, s: Spec, t: Spec) -> Spec:
        if isinstance(s, LeafSpec) and isinstance(t, LeafSpec):
            size = self.sizes(s.size, t.size)
            return replace(s, size=size, stride=self.strides(s, size, t))
        if isinstance(s, WrapperSpec) and isinstance(t, WrapperSpec):
            theirs = dict(zip(t.names, t.inners, strict=True))
            inners = tuple(
                self.spec(i, theirs.get(n, t)) for n, i in zip(s.names, s.inners, strict=True)
            )
            same = has_sizes(t.context) and same_context(
                map_sizes(t.context, self.value), s.context
            )
            size = self.sizes(s.size, t.size)
            context = t.context if same else s.context
            return replace(
                s, size=size, stride=self.strides(s, size, t), inners=inners, context=context
            )
        return map_spec(s, lambda row: [self.elsewhere(n) for n in row])


def _grad_alone(spec: Spec, create_graph: bool) -> Spec:
    grad = create_graph and bool(getattr(spec, "requires_grad", False))
    if isinstance(spec, LeafSpec):
        return replace(spec, storage_offset=0, requires_grad=grad)
    if isinstance(spec, WrapperSpec):
        return replace(
            spec,
            inners=tuple(_grad_alone(s, create_graph) for s in spec.inners),
            requires_grad=grad,
        )
    return spec


def _dense(spec: Spec) -> Spec:
    """With leaves of overlapping or sparse strides contiguous."""
    if isinstance(spec, WrapperSpec):
        return replace(spec, inners=tuple(map(_dense, spec.inners)))
    if not isinstance(spec, LeafSpec):
        return spec
    expected = 1
    for stride, size in sorted(zip(spec.stride, spec.size, strict=True)):
        if size != 1 and stride != expected:
            return replace(spec, stride=contiguous_strides(spec.size))
        expected *= size
    return spec
