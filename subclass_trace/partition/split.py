"""From a set of saved rows to two programs: which rows each runs, in which order, and what is
handed over in which order."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch.fx as fx

from ..torch_api import partition as _private
from ..torch_api.kinds import SYM_TYPES
from .half import Half
from .table import EFFECTS, GETITEM, Constant, Output, Table


@dataclass(frozen=True, eq=False)
class Split:
    """Rows of the two programs.

    Attributes:
        saved: tensors that are handed over; ``sizes``: symbolic numbers, which follow them.
        forward, backward: rows in the order in which they run.
    """

    table: Table
    saved: list[int]
    sizes: list[int]
    forward: list[int]
    backward: list[int]

    @property
    def recomputed(self) -> list[int]:
        """Rows that both programs run."""
        early = set(self.forward)
        return [i for i in self.backward if i in early]


def backward_needs(t: Table, saved: Collection[int]) -> tuple[set[int], set[int]]:
    """The rows that a backward has to run when ``saved`` are given, and the inputs that it
    takes."""
    stop, run, taken = set(saved), set(), set()
    todo = [o for o in t.backward_out if type(o) is int]
    todo += [i for i in t.rows if t.in_backward[i] and t.bits[i] & EFFECTS]
    while todo:
        i = todo.pop()
        if i in stop or t.is_placeholder(i):
            taken.add(i)
        elif i not in run:
            run.add(i)
            todo.extend(t.ins[i])
    return run, taken


def make_split(t: Table, chosen: Sequence[int], also: Sequence[int] = ()) -> Split:
    """Split after the rows ``chosen`` (those that the backward does not need are dropped).

    Args:
        also: rows that are saved whether this backward needs them or not.
    """
    run, taken = backward_needs(t, chosen)
    keep = sorted({i for i in chosen if i in taken} | set(also))
    tensors = [i for i in keep if not isinstance(t.val[i], SYM_TYPES)]
    sizes = [i for i in keep if isinstance(t.val[i], SYM_TYPES)]
    sizes = _with_bindings(t, sizes, tensors)
    return Split(t, tensors, sizes, _forward_rows(t, [*tensors, *sizes]), _backward_rows(t, run))


def _with_bindings(t: Table, sizes: Sequence[int], tensors: Sequence[int]) -> list[int]:
    """Compilers want each symbol in the shapes of a backward's inputs as an input of its own:
    bindings first."""
    values = [*sizes, *tensors, *t.tangents]
    if not any(_has_symbols(t.val[i]) for i in values):
        return list(sizes)
    known: set[object] = set()
    bound: list[int] = []
    derived: list[int] = []
    for i in sizes:
        symbol = _private.bound_symbol(t.nodes[i])
        if symbol is not None:
            known.add(symbol)
        (derived if symbol is None else bound).append(i)
    makers: dict[object, int] = {}
    for i in t.rows:
        symbol = None if t.in_backward[i] else _private.bound_symbol(t.nodes[i])
        if symbol is not None:
            makers.setdefault(symbol, i)
    for i in [*derived, *tensors, *t.tangents]:
        for symbol in _private.symbols_of(t.val[i]):
            if symbol not in known and symbol in makers and makers[symbol] not in derived:
                bound.append(makers[symbol])
            known.add(symbol)
    return [*bound, *derived]


def _has_symbols(value: object) -> bool:
    if isinstance(value, SYM_TYPES):
        return True
    return any(type(n) is not int for n in getattr(value, "shape", ()))


def _forward_rows(t: Table, saved: Sequence[int]) -> list[int]:
    run: set[int] = set()
    todo = [o for o in t.forward_out if type(o) is int] + list(saved)
    todo += [i for i in t.rows if t.in_forward[i] and t.bits[i] & EFFECTS]
    while todo:
        i = todo.pop()
        if i not in run and not t.is_placeholder(i):
            run.add(i)
            todo.extend(t.ins[i])
    return _parts_first(t, sorted(run))


def _backward_rows(t: Table, run: set[int]) -> list[int]:
    """As the autograd engine would: in the order of its own rows, what is recomputed right before
    its first use."""
    out: list[int] = []
    done: set[int] = set()
    ends = {o for o in t.backward_out if type(o) is int}
    for i in sorted(run):
        if not (t.in_backward[i] or i in ends):
            continue
        cone, todo = set(), [i]
        while todo:
            x = todo.pop()
            if x in run and x not in done and x not in cone:
                cone.add(x)
                todo.extend(t.ins[x])
        out += sorted(cone)
        done |= cone
    return _parts_first(t, out)


def _parts_first(t: Table, rows: Sequence[int]) -> list[int]:
    """Parts of a tuple are taken right after it: else it would keep all of them alive until the
    last is taken."""
    parts: dict[int, list[int]] = {}
    here = set(rows)
    for i in rows:
        if t.bits[i] & GETITEM and t.ins[i] and t.ins[i][0] in here:
            parts.setdefault(t.ins[i][0], []).append(i)
    if not parts:
        return list(rows)
    out: list[int] = []
    for i in rows:
        if t.bits[i] & GETITEM and t.ins[i] and t.ins[i][0] in here:
            continue
        stack = [i]
        while stack:
            x = stack.pop()
            out.append(x)
            stack.extend(reversed(parts.get(x, ())))
    return out


# ---- as programs
def halves(split: Split, results: int, cloned: Collection[int] = ()) -> tuple[Half, Half]:
    """The two programs; the forward returns its first ``results`` outputs, then what is saved, of
    ``cloned`` rows a clone."""
    t = split.table
    merged = {n: t.nodes[t.same[i]] for i, n in enumerate(t.nodes) if t.same[i] != i}

    def nodes(rows: Sequence[Output]) -> list[object]:
        return [o.value if isinstance(o, Constant) else t.nodes[o] for o in rows]

    def pick(rows: Sequence[int]) -> list[fx.Node]:
        return [t.nodes[i] for i in rows]

    saved = [*split.saved, *split.sizes]
    places = frozenset(results + k for k, i in enumerate(saved) if i in cloned)
    outputs = nodes([*t.forward_out[:results], *saved])
    forward = Half(t.joint, pick(t.primals), pick(split.forward), outputs, merged, places)
    taken = [*split.sizes, *split.saved, *t.tangents]
    return forward, Half(t.joint, pick(taken), pick(split.backward), nodes(t.backward_out), merged)
