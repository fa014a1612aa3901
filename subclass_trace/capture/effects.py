"""Operations that are called for what they do: they are kept though nobody reads a result, in
order, and run once.

An operation is known to be pure when it has a tensor result, a schema that writes nothing, and no
registered effect. What it writes is a result once the graph is functional, so a mutable schema is
no effect here.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx as fx

from ..torch_api.operators import HigherOrderOperator, OpOverload, is_effectful, op_schema

_aten = torch.ops.aten
#: operations that only raise
CHECKS = (
    _aten._linalg_check_errors.default,
    _aten._assert_async.default,
    _aten._assert_async.msg,
    _aten._assert_scalar.default,
)
#: these have no result and tell only a compiler something
_TELL = (_aten.sym_constrain_range.default, _aten.sym_constrain_range_for_size.default)
#: the profiler's marks are not part of a graph: they would stand around the capture
_MARKS = ("profiler", "record_function")


def has_effects(target: Any) -> bool:
    """Must a call of ``target`` run once, in order, though nobody reads its result? Random draws
    are not counted."""
    if isinstance(target, HigherOrderOperator):
        return is_effectful(target)
    if not isinstance(target, OpOverload) or target in _TELL or target.namespace in _MARKS:
        return False
    schema, of_torch = op_schema(target), target.namespace in ("aten", "prims")
    return not schema.is_mutable and (not schema.returns or (not of_torch and is_effectful(target)))


def is_collective(node: fx.Node) -> bool:
    """Does it talk to other ranks? They wait for it, also where this one does not read what it
    gets. It may be done again, by all of them."""
    return node.op == "call_function" and getattr(node.target, "namespace", "") == (
        "_c10d_functional"
    )


def is_kept(node: fx.Node) -> bool:
    """`has_effects` for a node."""
    return node.op == "call_function" and has_effects(node.target)
