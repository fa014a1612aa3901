"""What the partitioner needs of torch's private API: torch's own table of operations, impurity,
size symbols."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch.fx as fx


def op_table() -> tuple[frozenset[Any], ...]:
    """Views, random and cheap operations (overload packets), as torch's partitioners sort them: our
    rules stay in step with torch's table.
    """
    from torch._functorch.partitioners import get_default_op_list

    t = get_default_op_list()
    return tuple(map(frozenset, (t.view_ops, t.random_ops, t.recomputable_ops)))


def config_text() -> str:
    """The settings that decide what torch's partitioners do."""
    from torch._functorch import config

    return repr(sorted(config.get_config_copy().items(), key=lambda item: item[0]))


def is_impure_target(target: Any) -> bool:
    """Must an operation run although nobody reads its result (random ones not counted)?"""
    from torch._library.utils import is_impure

    return bool(is_impure(target, impure_random=False))


def symbols_of(value: Any) -> list[Any]:
    """The free size symbols of a tensor or number, sorted by name."""
    from torch.fx.experimental.symbolic_shapes import free_symbols

    found: Iterable[Any] = free_symbols(value)
    return sorted(found, key=lambda s: s.name)


def bound_symbol(node: fx.Node) -> Any:
    """The size symbol that this node makes known to a graph, or None."""
    from torch.fx.experimental.symbolic_shapes import is_symbol_binding_fx_node

    return is_symbol_binding_fx_node(node)
