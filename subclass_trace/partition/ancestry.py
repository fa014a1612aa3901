"""What has to be saved besides, so that values which eager autograd keeps can be computed in a
later backward."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
import torch.fx as fx

from ..capture.graphs import is_drawn
from ..torch_api.kinds import is_dense, storage_key
from .table import storage_bytes

#: name -> (it cannot be recomputed, names of its inputs)
Ancestry = Mapping[str, tuple[bool, tuple[str, ...]]]


def ancestry_of(graph: fx.Graph) -> Ancestry:
    """The table of a joint graph; taken before a partitioner changes it."""
    table = {}
    for n in graph.nodes:
        fixed = n.op == "placeholder" or is_drawn(n)
        table[n.name] = (fixed, tuple(i.name for i in n.all_input_nodes))
    return table


def missing_for(table: Ancestry, want: Collection[str], have: Collection[str]) -> set[str]:
    """What is not given among ``have``, cannot be recomputed, and is needed for ``want``."""
    todo = [n for n in want if n in table]
    seen: set[str] = set()
    missing: set[str] = set()
    while todo:
        name = todo.pop()
        if name in seen or name in have:
            continue
        seen.add(name)
        fixed, inputs = table[name]
        if fixed:
            missing.add(name)
        else:
            todo.extend(inputs)
    return missing


def also_saved(
    table: Ancestry,
    serve: Collection[str],
    have: Collection[str],
    written: Collection[str],
    nodes: Mapping[str, fx.Node],
) -> set[str]:
    """What is saved besides ``have``, so that all of ``serve`` can be computed.

    Where that takes the old contents of an input that the region writes, either a clone of the
    input is saved (a history of scales, a counter) or the values that would be computed from it,
    whichever is smaller.

    Args:
        nodes: those that can be saved, by name.
    """
    extra = missing_for(table, serve, have)
    overwritten = extra & set(written)
    if not overwritten:
        return extra
    instead = missing_without(table, serve, set(have), set(written), nodes)
    if not all(n in nodes and is_dense(nodes[n].meta["val"]) for n in overwritten):
        return instead  # views of the old contents would not fit a clone
    unchanged = [
        n.meta.get("val") for n in nodes.values() if n.op == "placeholder" and n.name not in written
    ]
    given = {*map(storage_key, unchanged)}

    def size(names: Collection[str]) -> int:
        values = [v for n in names if isinstance(v := nodes[n].meta.get("val"), torch.Tensor)]
        memory = {storage_key(v): storage_bytes(v) for v in values}
        return sum([count for key, count in memory.items() if key not in given])

    return extra if size(extra) < size(instead) else instead


def missing_without(
    table: Ancestry,
    want: Collection[str],
    have: set[str],
    written: set[str],
    available: Collection[str],
) -> set[str]:
    """Like `missing_for`, but a wanted value is saved itself where it would need the old contents
    of a written input."""
    extra: set[str] = set()
    for name in sorted(want):
        missing = missing_for(table, [name], have | extra)
        extra |= {name} if missing & written and name in available else missing
    return extra
