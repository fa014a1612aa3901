"""Sizes of tangents: which backward serves them, and which of their sizes are symbols when a backward is traced.

A size that depends on values inside tensors (``nonzero``) has a symbol that no input of the call tells. It is read off
the tangent, which has the sizes of the result that it belongs to.
"""

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
    OpaqueSpec,
    RaggedSize,
    SizeExpr,
    Spec,
    WrapperSpec,
    is_ragged,
    same_spec,
    sizes_in,
    spec_leaves,
)
from ..subclass.visit import map_spec
from .sizes import Env, evaluate, to_expr


def known_value(size: Any, env: Env) -> Any:
    """The value of a size in this call; None where ``env`` does not tell."""
    if isinstance(size, SizeExpr) and not size.expr.free_symbols <= env.keys():
        return None
    return evaluate(size, env)


def with_unbacked(values: Sequence[Any], shapes: Sequence[Sequence[int]], env: Env) -> Env:
    """``env`` with the symbols that it does not know but that are a size of a value: ``shapes`` are those of the call.

    ``values`` are specs, of leaves or of wrappers.
    """
    found: dict[Any, int] = {}
    for value, shape in zip(values, shapes, strict=True):
        for known, n in zip(value.size, shape, strict=True):
            if isinstance(known, SizeExpr) and known.expr.is_Symbol and known.expr not in env:
                found.setdefault(known.expr, n)
    return {**env, **found} if found else env


def matches(known: Spec | None, now: Spec | None, env: Env) -> bool:
    """Is this tangent one that a backward was compiled for?"""
    if known is None or now is None:
        return known is now
    pairs = list(zip(spec_leaves(known), spec_leaves(now), strict=False))
    if all(len(a.size) == len(b.size) for a, b in pairs):
        env = with_unbacked([a for a, _ in pairs], [b.size for _, b in pairs], env)
    return same_spec(_at(known, now, env), now, strides=False)


def _at(known: Spec, now: Spec, env: Env) -> Spec:
    """The known tangent with the sizes of this call; what nothing tells is as it came."""
    if isinstance(known, OpaqueSpec):
        return known
    size = getattr(now, "size", ())
    given = size if len(size) == len(known.size) else (None,) * len(known.size)
    values = [None if isinstance(s, RaggedSize) else known_value(s, env) for s in known.size]
    sizes = tuple(n if v is None else v for v, n in zip(values, given, strict=True))
    if isinstance(known, LeafSpec):
        return replace(known, size=sizes)
    theirs = getattr(now, "inners", ())
    inners = [_at(i, theirs[k] if k < len(theirs) else now, env) for k, i in enumerate(known.inners)]
    context = map_sizes(known.context, lambda n: known_value(n, env))
    return replace(known, size=sizes, inners=tuple(inners), context=context)


def symbolic(spec: Spec, like: Spec, env: Env) -> Spec:
    """The sizes of a real tangent as symbols, where those of the traced output have the same value in this call.

    A size stands for the one at its own place, if the two values are built alike; else for any of the same value.

    Args:
        spec: of the tangent.
        like: of the live output that it belongs to.
    """

    def value(n: Any) -> Any:
        return known_value(to_expr(n), env)

    anywhere: dict[int, Any] = {}
    for n in sizes_in(like):
        if isinstance(to_expr(n), SizeExpr) and value(n) is not None:
            anywhere.setdefault(value(n), n)
    for n in sizes_in(like):  # of a dimension that is split otherwise: 4 * s over four ranks has local size s
        expr = to_expr(n)
        for symbol in sorted(expr.expr.free_symbols, key=str) if isinstance(expr, SizeExpr) else ():
            if symbol in env and env[symbol] not in anywhere:
                anywhere[env[symbol]] = symint(n.node.shape_env, symbol)

    def elsewhere(n: Any) -> Any:
        return n if is_ragged(n) else anywhere.get(n, n)

    def sizes(now: Sequence[Any], then: Sequence[Any]) -> tuple[Any, ...]:
        if len(now) != len(then):
            return tuple(map(elsewhere, now))
        pairs = zip(now, then, strict=True)
        return tuple(n if is_ragged(n) else t if value(t) in (n, None) else elsewhere(n) for n, t in pairs)

    def strides(s: Any, size: tuple[Any, ...], t: Any) -> tuple[Any, ...]:
        found = sizes(s.stride, t.stride)
        if s.layout is torch.jagged:
            return found
        products = symbolic_strides(s.size, s.stride, size)  # of a layout that is not that of the output
        return tuple(p if type(n) is int else n for n, p in zip(found, products, strict=True))

    def walk(s: Spec, t: Spec) -> Spec:
        if isinstance(s, LeafSpec) and isinstance(t, LeafSpec):
            return replace(s, size=sizes(s.size, t.size), stride=strides(s, sizes(s.size, t.size), t))
        if isinstance(s, WrapperSpec) and isinstance(t, WrapperSpec):
            theirs = dict(zip(t.names, t.inners, strict=True))
            inners = tuple(walk(i, theirs.get(n, t)) for n, i in zip(s.names, s.inners, strict=True))
            same = has_sizes(t.context) and same_context(map_sizes(t.context, value), s.context)
            rest = {"inners": inners, "context": t.context if same else s.context}
            size = sizes(s.size, t.size)
            return replace(s, size=size, stride=strides(s, size, t), **rest)
        return map_spec(s, lambda row: [elsewhere(n) for n in row])

    return walk(spec, like)
