"""One interface to every partitioner: a joint graph goes in, `Partitioned` comes out.

A partitioner is a function ``(joint, joint_inputs, *, num_fwd_outputs) -> (forward, backward)`` of
two graph modules, as in ``functorch.compile``. The forward's outputs are ``[*outputs, *saved]``;
saved values follow the user's outputs and are split off by count, never rewrapped (PyTorch PR
104483).
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import replace

from ..capture.graphs import trace_name
from ..capture.tape import TracedBackward
from ..errors import OptionError
from ..stages import stage
from ..torch_api.texts import text_of
from . import torch_partitioners
from .ancestry import also_saved, ancestry_of
from .half import Partitioned
from .min_cut import MinCut, check_budget
from .modules import Partitioner, by_modules, has_gradient
from .rules import Facts, written_storages
from .split import Split, halves, make_split
from .table import Table

__all__ = ["BY_NAME", "Partitioned", "Partitioner", "partition", "resolve_partitioner"]

BY_NAME: dict[str, Partitioner] = {
    "min_cut": MinCut(),
    "default": MinCut(recompute=False),
    "torch_min_cut": torch_partitioners.min_cut,
}


def resolve_partitioner(
    choice: str | Partitioner | None, budget: float | int | None
) -> Partitioner:
    """The partitioner for an option; None is "min_cut".

    Raises:
        OptionError: unknown name, or a budget out of range, or a budget with a partitioner that
            knows none.
    """
    check_budget(budget)
    choice = "min_cut" if choice is None else choice
    if callable(choice) and not isinstance(choice, type):
        found: Partitioner = choice
    elif isinstance(choice, str) and choice in BY_NAME:
        found = BY_NAME[choice]
    else:
        close = difflib.get_close_matches(str(choice), BY_NAME, 1)
        raise OptionError(
            f"unknown partitioner {text_of(choice)}",
            expected=f"one of {sorted(BY_NAME)}, a MinCut, or a callable",
            got=text_of(choice),
            fix=f"did you mean {close[0]!r}?" if close else None,
        )
    if budget is None:
        return found
    if isinstance(found, MinCut) and found.recompute:
        if found.budget is not None:
            raise OptionError(
                "there are two memory budgets",
                path="activation_memory_budget",
                expected="activation_memory_budget, or the budget of the MinCut",
                got=f"{text_of(budget)} and MinCut(budget={found.budget!r})",
                fix="leave one of them out",
            )
        return replace(found, budget=budget)
    raise OptionError(
        "activation_memory_budget needs the min_cut partitioner",
        expected="min_cut, or a MinCut",
        got=text_of(choice),
    )


@stage("partition")
def partition(
    traced: TracedBackward,
    *,
    partitioner: Partitioner,
    serve: Collection[str],
    written: Collection[str],
    static: Sequence[int],
    copied: Collection[str] = (),
    small: int = 0,
) -> Partitioned:
    """Split the joint graph of a traced backward (which other partitioners than ours consume).

    Args:
        serve: nodes that eager autograd would have saved. All of them must be computable from what
            is saved, so that a backward for other tangents is (docs/notes/tangents.md); values
            missing for it are saved too.
        written: graph inputs that the region writes. What is saved of their memory is cloned, since
            the write-back would change it (torch's own aot_function gets this wrong;
            docs/notes/flatten_first.md).
        static: numbers of graph inputs that are alive anyway (parameters and buffers).
        copied: results that are only copied into inputs.
        small: see `Facts`; where a budget is given it says what is saved.
    """
    serve = frozenset(serve)
    if not has_gradient(
        traced.joint, traced.num_forward
    ):  # every gradient is a constant: torch's partitioners expect a tangent
        partitioner = MinCut()
    if isinstance(partitioner, MinCut):
        fixed = frozenset(f"primals_{n + 1}" for n in static)
        small = small if partitioner.budget is None else 0
        facts = Facts(frozenset(written), fixed, serve, frozenset(copied), small)
        return _by_rows(traced, partitioner, facts)
    return by_modules(traced, partitioner, serve, written, static)


def _by_rows(traced: TracedBackward, partitioner: MinCut, facts: Facts) -> Partitioned:
    """Our own partitioner: everything is decided on a table, and the joint stays as it is."""
    joint, num_forward = traced.joint, traced.num_forward
    serve = facts.kept or frozenset()
    # A value that is wanted in a backward which is traced later keeps its own name where it may
    # have to be saved itself.
    apart = serve if facts.written else frozenset()
    # what a backward computes, it computes from what it reads: codes are saved as codes
    if not partitioner.recompute:
        apart |= {
            n.name for n in joint.graph.nodes if n.meta.get("partitioner_tag") == "is_backward"
        }
    table = Table(joint, num_forward, apart)
    split = make_split(table, partitioner.choose(table, facts))
    have = {table.name(i) for i in (*split.saved, *split.sizes)}
    ancestry = ancestry_of(joint.graph)
    extra = also_saved(ancestry, serve, have, facts.written, {n.name: n for n in table.nodes})
    if extra:
        rows = sorted({table.same[i] for i, n in enumerate(table.nodes) if n.name in extra})
        split = make_split(table, [*split.saved, *split.sizes, *rows], also=rows)
    forward, backward = halves(split, num_forward - traced.draws, _written_rows(split, facts))
    rows = [*split.saved, *split.sizes]
    names, taken = (
        [trace_name(n) for n in nodes]
        for nodes in ([table.nodes[i] for i in rows], backward.inputs)
    )
    more = frozenset(name for i, name in zip(rows, names, strict=True) if table.name(i) not in have)
    return Partitioned(forward, backward, tuple(names), tuple(taken), more)


def _written_rows(split: Split, facts: Facts) -> list[int]:
    """Saved rows in memory that a write-back changes."""
    if not facts.written:
        return []
    t, memory = split.table, written_storages(split.table, facts)
    return [i for i in split.saved if t.storage[i] in memory]
