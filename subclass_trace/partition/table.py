"""The joint graph as a table: one pass over its nodes, and every later step works on integers.

Row *i* is node *i* of the joint graph. Equal nodes are merged, and dead ones dropped, by columns of
the table (``same``, ``rows``); the joint graph itself is never copied nor edited. One example: in
``a = x.sin(); b = x.sin(); y = a * b`` the row of ``b`` has ``same == row of a``, is in no list of
rows, and whoever reads ``b`` reads ``a``.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from ..capture.effects import has_effects
from ..capture.graphs import output_args
from ..torch_api import partition as _private
from ..torch_api.kinds import SYM_TYPES, storage_key
from ..torch_api.operators import OpOverload, op_schema

aten = torch.ops.aten

# ---- classes of operations
(
    VIEW,
    RANDOM,
    CHEAP,
    MUTABLE,
    IMPURE,
    COLLECTIVE,
    GETITEM,
    LIFT,
    SEEDED,
    HIDDEN,
    BUILTIN,
    MERGEABLE,
    LOUD,
) = (1 << k for k in range(13))
#: LOUD: called for what it does; BUILTIN: what the operation does is known; MERGEABLE: and two
# equal calls give equal results
#: rows that run although nobody reads them
EFFECTS = MUTABLE | IMPURE | SEEDED
#: rows that must not run twice: they would write twice, or draw other numbers
ONCE = EFFECTS | RANDOM | HIDDEN

#: these write running statistics, which their schemas do not say
_HIDDEN_STATE = (aten.native_batch_norm, aten.cudnn_batch_norm, aten.miopen_batch_norm)
_LIFTS = (aten.lift_fresh_copy, aten.lift_fresh)


@functools.cache
def _op_sets() -> tuple[tuple[int, frozenset[Any]], ...]:
    return tuple(zip((VIEW, RANDOM, CHEAP), _private.op_table(), strict=True))


@functools.cache
def effects_of(target: Any) -> int:
    """The classes of an operation that say how often it may run, as bits. (Torch's own table of
    operations, whose import takes long, is not asked.)"""
    packet = getattr(target, "overloadpacket", target)
    bits = (IMPURE | LOUD) * has_effects(target)
    bits |= IMPURE * _private.is_impure_target(target) | HIDDEN * (packet in _HIDDEN_STATE)
    if isinstance(target, OpOverload):
        bits |= MUTABLE * op_schema(target).is_mutable
        bits |= SEEDED * (torch.Tag.nondeterministic_seeded in target.tags)
    return bits


@functools.cache
def classify(target: Any) -> int:
    """The classes of an operation as bits. Cached per target."""
    packet = getattr(target, "overloadpacket", target)
    bits = sum(bit for bit, ops in _op_sets() if packet in ops) | effects_of(target)
    if isinstance(target, OpOverload):
        bits |= COLLECTIVE * (target.namespace == "_c10d_functional")
        bits |= (BUILTIN | MERGEABLE) * (target.namespace in ("aten", "prims"))
    else:
        bits |= (BUILTIN | MERGEABLE) * (
            getattr(target, "__module__", None) in ("_operator", "math", "torch")
        )
    bits |= GETITEM * (target is operator.getitem) | LIFT * (packet in _LIFTS)
    if bits & (MUTABLE | IMPURE | SEEDED | RANDOM) or target is aten.empty.memory_format:
        bits &= ~MERGEABLE
    if bits & (IMPURE | SEEDED):
        bits &= ~BUILTIN
    return bits


def is_unfinished(collective: Any) -> bool:
    """Must the result of this collective be waited for? Then the result of the wait is what can be
    saved."""
    return "wait_tensor" not in str(collective)


# ---- values
def hint(n: int | torch.SymInt) -> int:
    """The value in the traced call, or 4096 for a size that depends on data; reading it makes no
    guard."""
    if type(n) is int:
        return n
    found = n.node.hint  # type: ignore[union-attr]
    return 4096 if found is None else int(found)


def nbytes(value: Any) -> int:
    """Bytes that a value itself covers; 1 for a number, which is what torch's partitioner
    counts."""
    if isinstance(value, torch.Tensor):
        shape, count = value.shape, value.dtype.itemsize
        whole = math.prod(shape) * count
        if type(whole) is int:
            return whole
        for n in shape:
            count *= hint(n)
        return count
    if isinstance(value, SYM_TYPES):
        return 1
    if isinstance(value, (list, tuple)):
        return sum(nbytes(v) for v in value if isinstance(v, torch.Tensor))
    return 0


def storage_bytes(value: torch.Tensor) -> int:
    """Bytes of the whole storage, which is what keeping any view of it costs."""
    whole = value.untyped_storage().nbytes()
    return max(hint(whole), 1)


# ---- the table
@dataclass(frozen=True, eq=False)
class Constant:
    """An output of the joint graph that no node computes (``None``, a number)."""

    value: Any


Output = int | Constant


class Table:
    """A joint graph whose first ``num_forward`` outputs are the forward's, as columns;
    ``column[i]`` belongs to node ``i``.

    Attributes:
        joint: the graph module.
        nodes, row: node by number, and number by node.
        val: the example value.
        bits: classes of the operation.
        same: the row that stands for this one (itself, or an equal earlier row).
        ins, users: rows that it reads, and that read it; merged.
        size: bytes of the value.
        storage: key of its memory; ``view``: it lies in the memory of a row that it reads, and
            takes no time.
        tag, recompute: what ``meta`` says of the side it belongs to, and of checkpointing.
        rows: the live rows in order.
        forward_out, backward_out: the outputs; ``outputs``: the rows among them.
        primals, tangents: the placeholders by kind.
        in_backward: depends on a tangent, or has to run there.
        needed_in_backward: that, or an output of the backward.
        allowed_in_forward: may run in the forward; ``in_forward``: the forward's outputs need it.
    """

    def __init__(
        self,
        joint: fx.GraphModule,
        num_forward: int,
        apart: Collection[str] = (),
        *,
        outputs: Sequence[Any] | None = None,
        late: Collection[fx.Node] = (),
    ) -> None:
        """Read the graph.

        Args:
            apart: nodes with these names are not merged with equal ones.
            outputs: those of the graph, in another order.
            late: nodes that have to run in the backward.
        """
        self.joint = joint
        self.nodes: list[fx.Node] = list(joint.graph.nodes)
        self.row = {n: i for i, n in enumerate(self.nodes)}
        metas = [n.meta for n in self.nodes]
        self.val: list[Any] = [m.get("val") for m in metas]
        tags = [m.get("partitioner_tag") for m in metas]
        self.tag: list[str | None] = [
            "must_be_in_backward" if n in late else tag
            for n, tag in zip(self.nodes, tags, strict=True)
        ]
        self.recompute: list[Any] = [m.get("recompute") for m in metas]
        self.bits = [classify(n.target) if n.op == "call_function" else 0 for n in self.nodes]
        self.storage = [storage_key(v) for v in self.val]
        given = output_args(joint.graph) if outputs is None else outputs
        outs: list[Output] = [self.row[o] if isinstance(o, fx.Node) else Constant(o) for o in given]
        self.same = list(range(len(self.nodes)))
        self.ins: list[tuple[int, ...]] = [()] * len(self.nodes)
        self._merge(self._mergeable(outs, apart))
        outs = [self.same[o] if type(o) is int else o for o in outs]
        self.forward_out, self.backward_out = outs[:num_forward], outs[num_forward:]
        self.outputs = frozenset(o for o in outs if type(o) is int)
        self.rows = self._live()
        live = set(self.rows)
        self.size = [nbytes(v) if i in live else 0 for i, v in enumerate(self.val)]
        self.users: list[list[int]] = [[] for _ in self.nodes]
        for i in self.rows:
            for x in self.ins[i]:
                self.users[x].append(i)
        inputs = [i for i in self.rows if self.is_placeholder(i)]
        self.tangents = [i for i in inputs if "tangents" in str(self.nodes[i].target)]
        self.primals = [i for i in inputs if i not in self.tangents]
        self.in_backward, self.allowed_in_forward = self._sides()
        wanted = {o for o in self.backward_out if type(o) is int}
        self.needed_in_backward = [
            is_late or i in wanted for i, is_late in enumerate(self.in_backward)
        ]
        self.in_forward = self._in_forward()
        self.view = [False] * len(self.nodes)
        for i in self.rows:
            self.view[i] = self._is_view(i)

    def name(self, i: int) -> str:
        """The name of a row's node."""
        return self.nodes[i].name

    def is_placeholder(self, i: int) -> bool:
        """Is the row an input of the joint graph?"""
        return self.nodes[i].op == "placeholder"

    # ---- columns
    def _mergeable(self, outputs: Sequence[Output], apart: Collection[str]) -> list[bool]:
        """Rows that may be one with an equal row.

        What shares memory with an output is left alone, as by torch: two results would become one
        tensor. Torch also merges draws of random numbers that its list does not name
        (``randn_like(x) - randn_like(x)`` becomes 0); here the operation's tag decides.
        """
        held = {self.storage[o] for o in outputs if type(o) is int} - {None}
        kept: set[Any] = {n for n, k in zip(self.nodes, self.storage, strict=True) if k in held}
        # one of several results of an operation
        kept |= {n.args[0] for n in kept if n.target is operator.getitem}
        rows = zip(self.nodes, self.bits, strict=True)
        return [bool(b & MERGEABLE) and n not in kept and n.name not in apart for n, b in rows]

    def _merge(self, candidates: Sequence[bool]) -> None:
        """Fill ``same`` and ``ins``."""
        row, same, ins = self.row, self.same, self.ins
        seen: dict[Any, int] = {}
        # operation and rows that are read -> the first such row, or -1: it is in ``seen``
        alike: dict[Any, int] = {}
        region = 0

        def enter(i: int) -> None:
            node = self.nodes[i]
            try:
                key = (
                    node.target,
                    region,
                    key_of(node.args, row, same),
                    key_of(node.kwargs, row, same),
                )
                same[i] = seen.setdefault(key, i)
            except TypeError:  # an argument that cannot be hashed
                return

        for i, node in enumerate(self.nodes[:-1]):
            found = node.all_input_nodes
            ins[i] = tuple(dict.fromkeys([same[row[x]] for x in found])) if found else ()
            if self.bits[i] & MUTABLE:
                region += 1
            elif candidates[i]:
                short = (node.target, region, ins[i])
                first = alike.setdefault(short, i)
                if first != i:  # only now do the other arguments matter
                    if first >= 0:
                        enter(first)
                        alike[short] = -1
                    enter(i)

    def _live(self) -> list[int]:
        end = len(self.nodes) - 1
        live = [i in self.outputs for i in range(end)]
        for i in range(end - 1, -1, -1):
            if self.same[i] != i:
                live[i] = False
            elif live[i] or self.bits[i] & EFFECTS or self.is_placeholder(i):
                live[i] = True
                for x in self.ins[i]:
                    live[x] = True
        return [i for i in range(end) if live[i]]

    def _sides(self) -> tuple[list[bool], list[bool]]:
        """``in_backward`` and ``allowed_in_forward``."""
        late, allowed = [False] * len(self.nodes), [False] * len(self.nodes)
        for i in self.tangents:
            late[i] = True
        for i in self.primals:
            allowed[i] = True
        for i in self.rows:
            if self.is_placeholder(i):
                continue
            pinned = self.tag[i] == "must_be_in_backward" or (
                self.tag[i] == "is_backward" and self.bits[i] & (MUTABLE | SEEDED | LOUD) != 0
            )
            late[i] = pinned or any(late[x] for x in self.ins[i])
            allowed[i] = not pinned and all(allowed[x] for x in self.ins[i])
        return late, allowed

    def _in_forward(self) -> list[bool]:
        early = [False] * len(self.nodes)
        for o in self.forward_out:
            if type(o) is int:
                early[o] = True
        for i in reversed(self.rows):
            wanted = early[i] or self.is_placeholder(i) or self.bits[i] & EFFECTS
            early[i] = self.allowed_in_forward[i] and bool(wanted)
            if early[i]:
                for x in self.ins[i]:
                    early[x] = True
        return early

    def _is_view(self, i: int) -> bool:
        """Does it lie in the memory of what it reads? Recomputing it costs nothing, and keeping it
        keeps all of it."""
        bits, storage, source = self.bits, self.storage, self.ins[i]
        if not source or bits[i] & (MUTABLE | COLLECTIVE):
            return False
        if storage[i] is None:
            parts = self.val[i]
            memory = {storage[x] for x in source} - {None}
            several = isinstance(parts, (list, tuple)) and bool(parts)
            return several and all(storage_key(p) in memory for p in parts)
        if bits[i] & GETITEM:  # a part of split(), unbind(), ...
            if bits[source[0]] & (MUTABLE | COLLECTIVE):
                return False
            source = (*source, *self.ins[source[0]])
        return any(storage[x] == storage[i] for x in source)


def key_of(a: Any, row: dict[fx.Node, int], same: Sequence[int]) -> Any:
    """Equal for arguments that mean the same; 1, 1.0 and True do not, and 0.0 and -0.0 neither."""
    kind = type(a)
    if kind is fx.Node:
        return (fx.Node, same[row[a]])
    if isinstance(a, (list, tuple)):
        return (list, *[key_of(x, row, same) for x in a])
    if isinstance(a, dict):
        return tuple([(k, key_of(v, row, same)) for k, v in a.items()])
    if isinstance(a, SYM_TYPES):
        return (kind, id(a))
    return (kind, repr(a) if kind in (float, complex) else a)
