"""What has to be saved besides, so that values which eager autograd keeps can be computed in a later backward."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch.fx as fx

from ..capture.graphs import is_drawn

#: name -> (it cannot be computed again, names of its inputs)
Ancestry = Mapping[str, tuple[bool, tuple[str, ...]]]


def ancestry_of(graph: fx.Graph) -> Ancestry:
    """The table of a joint graph; taken before a partitioner changes it."""
    table = {}
    for n in graph.nodes:
        fixed = n.op == "placeholder" or is_drawn(n)
        table[n.name] = (fixed, tuple(i.name for i in n.all_input_nodes))
    return table


def missing_for(table: Ancestry, want: Collection[str], have: Collection[str]) -> set[str]:
    """What is not given among ``have``, cannot be computed again, and is needed for ``want``."""
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


def missing_without(
    table: Ancestry,
    want: Collection[str],
    have: set[str],
    written: set[str],
    available: Collection[str],
) -> set[str]:
    """Like `missing_for`, but a wanted value is saved itself where it would need the old contents of a written input."""
    extra: set[str] = set()
    for name in sorted(want):
        missing = missing_for(table, [name], have | extra)
        extra |= {name} if missing & written and name in available else missing
    return extra
