"""What may be recomputed, and what it costs to save.

A *ban* says that a row is computed in the forward and never recomputed; torch's rules on the rows
of a table, but that whatever lies in another row's memory may be recomputed. A *weight* is the
price of saving a row; `INF` means that it cannot be saved. It is what memory really holds: a
storage costs its bytes once; a view is never saved, its owner is; inputs, and results that eager
autograd would keep as well, are alive anyway and cost nothing; a graph input that the region writes
back into is saved as a clone, which is paid for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy

from ..torch_api.kinds import SYM_TYPES, is_dense
from .table import (
    BUILTIN,
    CHEAP,
    COLLECTIVE,
    GETITEM,
    HIDDEN,
    LIFT,
    ONCE,
    RANDOM,
    SEEDED,
    VIEW,
    Table,
    is_unfinished,
    storage_bytes,
)

aten = torch.ops.aten
INF = math.inf
RECOMPUTE = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)
MUST_SAVE = CheckpointPolicy.MUST_SAVE
#: what a value costs that is alive anyway: results and inputs that eager autograd would keep, and
# other inputs. The caller may
#: write to these before the backward, where eager has a number and autograd would raise.
_RESULT, _INPUT, _OTHER_INPUT = 0.25, 0.5, 0.75
#: less than an input: one that is saved for a size alone may not be written before the backward
_NUMBER = 0.125
LAST_RESORT = 1e15


@dataclass(frozen=True, eq=False)
class Facts:
    """What the plan knows besides the joint graph.

    Attributes:
        written: names of graph inputs that the region writes back into.
        static: names of graph inputs that are alive anyway (parameters and buffers).
        kept: names of values that eager autograd would save. None: not known, every result counts
            as kept.
        copied: names of results that no caller gets, since they are copied into an input.
        small: what eager autograd keeps of at most so many bytes is not recomputed.
    """

    written: frozenset[str] = frozenset()
    static: frozenset[str] = frozenset()
    kept: frozenset[str] | None = None
    copied: frozenset[str] = frozenset()
    small: int = 0


# ---- tags
def recompute_tags(t: Table) -> list[Any]:
    """The tags of checkpointing, and those that follow from other rules: the column ``recompute``,
    completed.

    Torch's passes write these into ``node.meta``, which joint, forward and backward share; here it
    stays as it is.
    """
    tags = list(t.recompute)
    if any(tag in RECOMPUTE for tag in tags):
        _keep_boundaries(t, tags)
    for i in t.rows:
        if tags[i] in RECOMPUTE:
            # other numbers would come: the mask is saved
            if t.bits[i] & (SEEDED | RANDOM) or _is_drawn_part(t, i):
                tags[i] = MUST_SAVE
        elif t.bits[i] & COLLECTIVE:
            tags[i] = MUST_SAVE
            if is_unfinished(t.nodes[i].target):  # a policy need not name the wait for it
                for wait in t.users[i]:
                    tags[wait] = MUST_SAVE
    return tags


def _is_drawn_part(t: Table, i: int) -> bool:
    return bool(t.bits[i] & GETITEM and t.bits[t.ins[i][0]] & (SEEDED | RANDOM))


def _keep_boundaries(t: Table, tags: list[Any]) -> None:
    """What one checkpointed part hands to the next is saved: else the second would redo the
    first."""
    number = [n.meta.get("ac_graph_id") for n in t.nodes]
    for i in t.rows:
        if tags[i] not in RECOMPUTE:
            continue
        users = [u for u in t.users[i] if tags[u] in RECOMPUTE]
        mine = number[i]
        if mine is not None and any(number[u] is not None and number[u] > mine for u in users):
            tags[i] = MUST_SAVE


# ---- bans
def bans(t: Table, tags: Sequence[Any], cheap_too: bool) -> list[bool]:
    """Rows that are never recomputed; with ``cheap_too`` all but views."""
    banned = [False] * len(t.nodes)
    for i in t.rows:
        if not (t.in_backward[i] or tags[i] in RECOMPUTE or t.view[i] or t.bits[i] & VIEW):
            banned[i] = _is_banned(t, tags, i, cheap_too)
    return banned


def _is_banned(t: Table, tags: Sequence[Any], i: int, cheap_too: bool) -> bool:
    if t.is_placeholder(i):
        return t.allowed_in_forward[i]
    # Torch recomputes floats, from tensors that hold them.
    if t.nodes[i].op != "call_function" or isinstance(t.val[i], torch.SymFloat):
        return False
    early = t.in_forward[i] or (tags[i] is MUST_SAVE and t.allowed_in_forward[i])
    return early and not t.bits[i] & GETITEM and (cheap_too or _is_dear(t, tags, i))


def _is_dear(t: Table, tags: Sequence[Any], i: int) -> bool:
    bits = t.bits[i]
    if tags[i] is MUST_SAVE or bits & HIDDEN:
        return True
    if bits & LIFT:
        return False
    if not bits & CHEAP:
        return True
    # a reduction is much smaller than what it reads
    read = sum([t.size[t.same[t.row[a]]] for a in t.nodes[i].args if isinstance(a, torch.fx.Node)])
    return t.size[i] * 4 < read


# ---- weights
def storage_weights(t: Table, facts: Facts) -> list[float]:
    """The storage model: see the top of this file. Numbers cost a little, so few are saved; rows of
    the backward never are."""
    weights = [INF] * len(t.nodes)
    written = written_storages(t, facts)
    given = {t.storage[i] for i in t.primals} - {None}
    results = _kept_results(t, facts)
    kept = _kept_inputs(t, facts)
    for i in t.rows:
        if t.in_backward[i]:
            continue
        value, key = t.val[i], t.storage[i]
        if isinstance(value, SYM_TYPES):
            weights[i] = _NUMBER
        elif not isinstance(value, torch.Tensor):
            weights[i] = INF if value is None or isinstance(value, (list, tuple)) else 0.0
        elif key is None:
            weights[i] = float(max(t.size[i], 1))
        # saved as a clone, which must be laid out as the original for views to fit it
        elif key in written:
            weights[i] = float(max(t.size[i], 1)) if is_dense(value) else LAST_RESORT
        elif t.view[i] or (t.bits[i] & COLLECTIVE and is_unfinished(t.nodes[i].target)):
            weights[i] = INF
        elif key in given:
            weights[i] = _INPUT if key in kept else _OTHER_INPUT
        elif key in results:
            weights[i] = _RESULT
        else:
            weights[i] = float(storage_bytes(value))
    return weights


def written_storages(t: Table, facts: Facts) -> set[int | None]:
    """The memory of graph inputs that the region writes back into."""
    return {t.storage[i] for i in t.primals if t.name(i) in facts.written} - {None}


def _kept_results(t: Table, facts: Facts) -> set[int | None]:
    """The memory of results that eager autograd would keep too.

    Others would be as cheap to save, but when the caller writes into them, autograd would raise
    where eager does not.
    """
    rows = [o for o in t.forward_out if type(o) is int]
    copied = {t.storage[o] for o in rows if t.name(o) in facts.copied}
    out = {t.storage[o] for o in rows} - copied - {None}
    if facts.kept is None:
        return out
    return out & {t.storage[i] for i, n in enumerate(t.nodes) if n.name in facts.kept}


def _kept_inputs(t: Table, facts: Facts) -> set[int | None]:
    """The memory of inputs that eager autograd would keep."""
    if facts.kept is None:
        return {t.storage[i] for i in t.primals}
    return {t.storage[i] for i, n in enumerate(t.nodes) if n.name in facts.kept}


def kept_rows(t: Table, facts: Facts) -> list[int]:
    """What eager autograd would keep and is not recomputed: results, so that autograd sees where
    the caller writes to them; and what is small.
    """
    kept = [t.same[i] for i, n in enumerate(t.nodes) if n.name in (facts.kept or ())]
    memory = {t.storage[i] for i in kept if t.size[i] <= facts.small} | _kept_results(t, facts)
    memory -= {t.storage[i] for i in t.primals}
    return [i for i in t.rows if t.storage[i] in memory and not t.in_backward[i] and not t.view[i]]


def never_recomputed(t: Table, i: int) -> bool:
    """Rows that no budget recomputes: they draw, write, talk to other ranks, or nobody knows what
    they do."""
    unknown = t.nodes[i].op == "call_function" and not t.bits[i] & BUILTIN
    return bool(t.bits[i] & (ONCE | COLLECTIVE)) or unknown or _is_drawn_part(t, i)
