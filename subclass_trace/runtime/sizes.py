"""Symbols and sizes at run time: where a symbol's value comes from, and specs with the sizes of one
call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..errors import UnsupportedError
from ..subclass.context import map_sizes, without_outer
from ..subclass.spec import RaggedSize, SizeExpr, Spec, WrapperSpec, is_ragged
from ..subclass.visit import map_spec
from ..torch_api.symbols import is_known, ragged_parts

Env = Mapping[Any, Any]


def to_expr(size: Any) -> Any:
    """A size of a captured spec as the run time keeps it.

    A SymInt becomes a `SizeExpr` (or an int, if it is constant), a nested int a `RaggedSize`.
    """
    if isinstance(size, torch.SymFloat):
        return _float(size)
    if not isinstance(size, torch.SymInt):
        return size
    if is_ragged(size):
        symbol, factor = ragged_parts(size) or (None, 1)
        return RaggedSize(symbol) if symbol is None else RaggedSize(symbol, _number(factor))
    expr = (
        size.node.shape_env.simplify(size.node.expr)
        if size.node.shape_env is not None
        else size.node.expr
    )
    return _number(expr)


def _float(number: torch.SymFloat) -> Any:
    expr = number.node.expr
    bound = expr.is_number or (expr.is_Symbol and is_known(number))
    if not bound:
        fix = "compute it outside of the region, or keep it in an inner tensor"
        raise UnsupportedError(
            "a wrapper keeps a number that is computed of others",
            code="number-of-numbers",
            got=number,
            fix=fix,
        )
    return float(expr) if expr.is_number else SizeExpr(expr)


def _number(expr: Any) -> Any:
    return int(expr) if expr.is_number else SizeExpr(expr)


def freeze(spec: Spec) -> Spec:
    """A captured spec as the run time keeps it."""
    return map_spec(
        _mark_outer(spec),
        lambda sizes: [to_expr(s) for s in sizes],
        lambda c: map_sizes(c, to_expr),
    )


def _mark_outer(spec: Spec) -> Spec:
    """Where the outer size is dynamic, a context that repeats it (as DTensor's does) holds a marker
    instead."""
    if not isinstance(spec, WrapperSpec):
        return spec
    context = spec.context
    # none that became a constant
    if any(isinstance(to_expr(n), SizeExpr) for n in (*spec.size, *spec.stride)):
        context = without_outer(context, spec.size, spec.stride)
        context = without_outer(context, hints(spec.size), hints(spec.stride))
    return replace(spec, context=context, inners=tuple(map(_mark_outer, spec.inners)))


def hints(sizes: Sequence[Any]) -> tuple[Any, ...]:
    """The sizes of the call that was traced."""
    return tuple(
        n.node.hint if isinstance(n, torch.SymInt) and not is_ragged(n) else n for n in sizes
    )


def hint_of(size: Any) -> int:
    """A number to try a size with: its own value, or 8 for a dynamic one."""
    return 8 if isinstance(size, (SizeExpr, RaggedSize, torch.SymInt)) else int(size)


def evaluate(size: Any, env: Env) -> Any:
    """The value of a size in this call."""
    return size.evaluate(env) if isinstance(size, (SizeExpr, RaggedSize)) else size


def holds(condition: Any, env: Env) -> bool:
    """Is a condition on sizes true in this call? One that has no value there, as a division by 0
    has none, is not."""
    try:
        return bool(condition.xreplace(dict(env)))
    # sympy also computes with its infinities, which it cannot compare
    except (ArithmeticError, TypeError):
        return False


def evaluator(env: Env) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function that maps recorded sizes to those of this call."""
    return lambda sizes: tuple(evaluate(s, env) for s in sizes)


def concrete(spec: Spec, env: Env) -> Spec:
    """The spec with the sizes of this call."""
    # has a size that no symbol stands for, perhaps
    jagged = getattr(spec, "layout", None) is torch.jagged
    if not env and not jagged:
        return spec
    return map_spec(spec, evaluator(env), lambda c: map_sizes(c, lambda n: evaluate(n, env)))
