"""Results that share the memory of their source or not, depending on sizes from inside tensors.

``x[:, :n].contiguous()`` is ``x`` where ``n`` is its width, and else a copy; so it is with ``reshape`` and its siblings. A
trace always copies. That gives the same values unless one of the two is written while the other one is still read, which
is refused here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from .. import _torch
from ..errors import DataDependentError
from .places import view_chain, written_nodes

Tensor = torch.Tensor
#: methods and functions, by name, that copy only where they have to
MAY_COPY = frozenset(("contiguous", "reshape", "reshape_as", "flatten", "ravel"))


@dataclass(frozen=True, eq=False)
class _Row:
    made: fx.Node
    source: Any  # its storage
    shape: str
    line: str | None


class PerhapsViews:
    """Those of one recorder."""

    def __init__(self) -> None:
        self._rows: dict[Any, _Row] = {}  # by the storages of the copies

    def note(self, recorder: Any, name: str, args: Sequence[Any], out: Any) -> None:
        """``out`` is what the function of this name gave for ``args``."""
        source: Any = args[0] if args else None
        if not (_torch.is_fake(source) and _torch.is_fake(out)) or not recorder.knows(out):
            return
        storages = _torch.storage_ref(out), _torch.storage_ref(source)
        sizes = (*source.shape, *source.stride(), *out.shape)
        if storages[0] != storages[1] and any(isinstance(n, torch.SymInt) and not _torch.is_known(n) for n in sizes):
            root, _ = view_chain(recorder.node_of(out))
            self._rows[storages[0]] = _Row(
                root, storages[1], f"{name}() of a tensor of shape {tuple(source.shape)}", recorder.user_line()
            )

    def check(self, graph: fx.Graph, results: Sequence[Any]) -> None:
        """Neither of the two may be written before the other one is read for the last time.

        Args:
            results: nodes that the caller gets. What the region is given, the caller has anyway.

        Raises:
            DataDependentError: one is.
        """
        if not self._rows:
            return
        order = {node: k for k, node in enumerate(graph.nodes)}
        given = {*results, *(node for node in order if node.op == "placeholder")}
        last = _last_reads(order, given)
        for node, target in written_nodes(graph):
            written = _torch.storage_ref(target.meta["val"])
            for copy, row in self._rows.items():
                other = row.source if written == copy else copy if written == row.source else None
                if other is not None and order[row.made] < order[node] < last.get(other, -1):
                    raise _refusal(row, row.line)


def _last_reads(order: dict[fx.Node, int], given: set[Any]) -> dict[Any, int]:
    """The place in the graph where memory is read for the last time."""
    last: dict[Any, int] = {}
    for node in order:
        value = node.meta.get("val")
        if isinstance(value, Tensor) and value.layout is torch.strided:
            used = [order[user] for user in node.users]
            place = len(order) if node in given else max(used, default=-1)
            storage = _torch.storage_ref(value)
            last[storage] = max(last.get(storage, -1), place)
    return last


def _refusal(row: _Row, line: str | None) -> DataDependentError:
    return DataDependentError(
        "the region writes to memory that two tensors share or not, depending on the values inside a tensor",
        path=line,
        expected="tensors of which the sizes tell whether they are views",
        got=row.shape,
        fix="make a copy in any case, with .clone(), or write to it before",
    )
