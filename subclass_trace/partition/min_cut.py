"""`MinCut`: our partitioner and its options. ``partitioner="min_cut"`` is ``MinCut()``.

>>> import torch, subclass_trace as st
>>> region = st.compile(lambda x: x.sin().exp().sum(), partitioner=st.MinCut(budget=0.0))
>>> region(torch.zeros(3, requires_grad=True)).backward()
>>> [row.operation for row in region.specializations[0].saved]
['input']
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch.fx as fx

from ..capture.graphs import where
from ..errors import OptionError, UnsupportedError
from .budget import Hull
from .costs import FLOPS_PER_SECOND, work
from .flow import Infeasible, cut
from .offload import ONE_AHEAD, Offload
from .packing import Store, check_store, forms, packed_share, packing_edits, packings
from .rules import (
    AGAIN,
    INF,
    MUST_SAVE,
    Facts,
    absolute_views,
    bans,
    kept_results,
    never_again,
    recompute_tags,
    storage_weights,
)
from .split import backward_needs, halves, make_split
from .table import PRIMAL, Table, input_kind

_MODELS = ("storage", "seconds")
_OBJECTIVES = ("seconds", "flops")


@dataclass(frozen=True)
class MinCut:
    """Options of our partitioner. It is callable as the partitioners of ``functorch.compile`` are.

    Attributes:
        model: ``"storage"`` counts what memory really holds; ``"seconds"`` weighs that against the time to compute again,
            for eager execution, where nothing that is computed again is fused away.
        fusion: use the rules that suit a compiler which fuses kernels. None: where the back end is inductor.
        budget: a limit on what is saved. A whole number above 1: bytes (of unique storages, beyond inputs). A number
            from 0 to 1: share between the least possible and what the model saves without a limit.
        objective: what a budget minimises: ``"seconds"``, or ``"flops"`` as torch's solver does.
        price: for ``model="seconds"``, nanoseconds that a saved byte is worth.
        store: keep activations in another form, where the backward reads them directly: ``"int8"``, ``"fp8"`` (rounded
            by rows, so that gradients are not exact; what the backward divides by is not), or ``"cpu"``. One form for
            all, a form by operation (``{torch.ops.aten.gelu.default: "int8"}``, or by its name), or a function of the
            node that returns one or None.
        offload: how ``"cpu"`` overlaps with the computation.
    """

    model: Literal["storage", "seconds"] = "storage"
    fusion: bool | None = None
    budget: float | int | None = None
    objective: Literal["seconds", "flops"] = "seconds"
    price: float = 0.01
    store: Store | None = None
    offload: Offload = ONE_AHEAD

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            OptionError: a value out of range.
        """
        price = self.price
        self._check("model", self.model in _MODELS, f"one of {_MODELS}")
        self._check("objective", self.objective in _OBJECTIVES, f"one of {_OBJECTIVES}")
        self._check("fusion", self.fusion in (True, False, None), "True, False or None")
        self._check("offload", isinstance(self.offload, Offload), "an Offload")
        number = isinstance(price, (int, float)) and not isinstance(price, bool)
        self._check("price", number and price > 0, "a number above 0")
        check_budget(self.budget)
        check_store(self.store)

    def _check(self, name: str, right: bool, expected: str) -> None:
        if not right:
            raise OptionError(
                f"{name} is out of range", path=f"MinCut.{name}", expected=expected, got=repr(getattr(self, name))
            )

    def for_backend(self, fuses: bool) -> MinCut:
        """The same with ``fusion`` decided: by whether a back end fuses."""
        return self if self.fusion is not None else replace(self, fusion=fuses)

    def table(self, joint: fx.GraphModule, num_forward: int, apart: Collection[str] = ()) -> Table:
        """The joint graph as a table."""
        return Table(joint, num_forward, apart)

    def choose(self, table: Table, facts: Facts) -> list[int]:
        """The rows to save: `decide` without the forms."""
        return self.decide(table, facts)[0]

    def decide(self, table: Table, facts: Facts) -> tuple[list[int], dict[int, str]]:
        """The rows to save, and the form of those that are kept in another one.

        A row that may be kept in another form weighs what that takes. What the forward computed is computed again from exact
        values only, so that errors do not compound: where a partition would not, these rows stay exact, and it is cut anew.

        Raises:
            UnsupportedError: the tags of checkpointing contradict each other.
        """
        tags, weights = recompute_tags(table, facts), storage_weights(table, facts)
        allowed = forms(table, self.store, weights, self.offload) if self.store is not None else {}
        limit = None
        while True:
            lighter = list(weights)
            for i, form in allowed.items():
                lighter[i] = max(weights[i] * packed_share(table.val[i], form), 1.0)
            rounded = [i for i, form in allowed.items() if form != "cpu"]
            rows, limit = self._rows(table, facts, tags, lighter, rounded, limit)
            packed = {i: allowed[i] for i in rows if i in allowed}
            exactly = _read_exactly(table, rows, packed)
            if not exactly:
                return rows, packed
            allowed = {i: form for i, form in allowed.items() if i not in exactly}

    def _rows(
        self,
        table: Table,
        facts: Facts,
        tags: Sequence[Any],
        weights: Sequence[float],
        rounded: Collection[int],
        limit: int | None,
    ) -> tuple[list[int], int | None]:
        """The rows to save at these weights, when these ones are rounded if they are saved, and the limit in bytes.

        ``limit``: what a share came to when this was first asked.
        """
        if self.model == "storage" and self.budget in (None, 1):
            return self._unlimited(table, facts, tags, weights, rounded), None
        hull = self._hull(table, tags, weights)
        if self.budget is None or self.budget == 1:
            return list(hull.cut(1e-9 * self.price).saved), None
        least = hull.ends[1].bytes
        if limit is None or self.budget > 1:
            full = hull.bytes(self._unlimited(table, facts, tags, weights, rounded)) if self.budget < 1 else 0
            limit = self._limit(full, least)
        return list(hull.within(max(limit, least)).saved), limit

    def _unlimited(
        self, table: Table, facts: Facts, tags: Sequence[Any], weights: Sequence[float], rounded: Collection[int]
    ) -> list[int]:
        banned = bans(table, tags, bool(self.fusion))
        for i in absolute_views(table, facts):
            banned[i] = True
        if facts.kept is not None:
            for i in kept_results(table, facts):
                banned[i] |= tags[i] not in AGAIN
        near = set(rounded)
        for i in table.rows if rounded else ():  # saving both packed takes less than one of them exact
            if near.isdisjoint(table.ins[i]) or not table.early[i]:
                continue
            if table.view[i]:
                near.add(i)
            else:
                banned[i] |= tags[i] not in AGAIN
        return solve(table, tags, banned, weights)

    def _hull(self, table: Table, tags: Sequence[Any], weights: Sequence[float]) -> Hull:
        """Everything between saving most and saving least; costs in seconds, or in floating-point operations.

        Raises:
            UnsupportedError: the tags of checkpointing contradict each other.
        """
        try:
            hull = Hull(table, tags, weights, self.cost_of)
            assert len(hull.ends) == 2  # found now, so that what is wrong with the tags is explained
            return hull
        except Infeasible:
            banned = [never_again(table, i) or tags[i] is MUST_SAVE for i in range(len(table.nodes))]
            raise _infeasible(table, tags, banned, weights) from None

    def cost_of(self, table: Table, i: int) -> float:
        """What the objective says of computing a row again."""
        count, seconds = work(table, i)
        if self.objective == "seconds":
            return seconds
        return count + 1e-6 * seconds * FLOPS_PER_SECOND  # among equals the faster

    def _limit(self, full: int, least: int) -> int:
        """The budget in bytes, when so much is saved without one, and at least so much is necessary.

        Raises:
            OptionError: it cannot be kept.
        """
        assert self.budget is not None
        limit = int(self.budget) if self.budget > 1 else least + int(self.budget * max(full - least, 0))
        if limit < least:
            raise OptionError(
                "the memory budget cannot be kept",
                path="activation_memory_budget",
                expected=f"at least {least} bytes, which the backward cannot do without",
                got=f"{limit} bytes",
                fix="give a share from 0 to 1 instead; 0 saves the least possible",
            )
        return limit

    def __call__(
        self,
        joint: fx.GraphModule,
        joint_inputs: Sequence[Any] | None = None,
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: Sequence[int] | None = None,
        **_: Any,
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Partition as a function of ``functorch.compile`` does, for example ``aot_function(..., partition_fn=MinCut())``.

        Returns: forward and backward; the forward's outputs are ``(*outputs, *saved tensors, *saved sizes)``.
        """
        table = self.table(joint, num_fwd_outputs)
        static = frozenset(table.name(table.primals[k]) for k in static_lifetime_input_indices or ())
        chosen, packed = self.decide(table, Facts(static=static))
        split = make_split(table, chosen)
        packed = {i: form for i, form in packed.items() if i in split.saved}
        edits = packing_edits(packings(table, packed, self.offload))
        forward, backward = halves(split, num_fwd_outputs, edits.hand_over, edits.take, edits.finish)
        return forward.module, backward.module


def check_budget(budget: object) -> None:
    """Check a memory budget.

    Raises:
        OptionError: neither a share from 0 to 1 nor a whole number of bytes.
    """
    number = isinstance(budget, (int, float)) and not isinstance(budget, bool)
    if budget is None or (number and (0 <= budget <= 1 or (isinstance(budget, int) and budget > 1))):  # type: ignore[operator]
        return
    raise OptionError(
        "activation_memory_budget is out of range",
        expected="a number from 0 to 1 (a share), or a whole number of bytes",
        got=repr(budget),
    )


def solve(t: Table, tags: Sequence[Any], banned: Sequence[bool], weights: Sequence[float]) -> list[int]:
    """The rows to save: a minimum cut.

    Raises:
        UnsupportedError: there is none of finite weight; the message shows a path.
    """
    again, needed = _demands(t, tags)
    try:
        return cut(t.rows, t.ins, t.users, weights, banned, again, needed)
    except Infeasible:
        raise _infeasible(t, tags, banned, weights) from None


def _demands(t: Table, tags: Sequence[Any]) -> tuple[list[bool], list[bool]]:
    """Rows that the backward computes whatever the cut, and rows that it must have."""
    again = [late or tag in AGAIN for late, tag in zip(t.late, tags, strict=True)]
    return again, [wanted and not late for wanted, late in zip(t.needed_late, t.late, strict=True)]


def _read_exactly(t: Table, saved: Sequence[int], packed: Mapping[int, str]) -> set[int]:
    """Rounded rows that something of the forward is computed from again, perhaps through views, or that are gradients."""
    rounded = {i for i, form in packed.items() if form != "cpu"}
    if not rounded:
        return set()
    again, _ = backward_needs(t, saved)
    todo = [i for u in again if t.early[u] and not t.view[u] for i in t.ins[u]]
    todo += [o for o in t.backward_out if type(o) is int]
    found: set[int] = set()
    seen: set[int] = set()
    while todo:
        i = todo.pop()
        if i in rounded:
            found.add(i)
        elif i not in seen and t.view[i]:
            seen.add(i)
            todo.extend(t.ins[i])
    return found


# ---------------------------------------------------------------------------------------------- when there is no cut
def _infeasible(t: Table, tags: Sequence[Any], banned: Sequence[bool], weights: Sequence[float]) -> UnsupportedError:
    """Rows that can be saved by nobody, from one that must not be computed again to one that the backward computes."""
    path = _blocked_path(t, tags, banned, weights)
    lines = [f"{t.name(i)} ({_why(t, tags, banned, weights, i)}){_at(t, i)}" for i in path]
    last = path[-1] if path else None
    return UnsupportedError(
        "what the backward needs can be neither saved nor computed again",
        path=None if last is None else t.name(last) + _at(t, last),
        expected="on each way from a value that is computed once to the backward, one value that can be saved",
        got=" -> ".join(lines),
        fix="let the checkpoint policy save one of these (MUST_SAVE), or leave it out of the checkpointed part",
    )


def _blocked_path(t: Table, tags: Sequence[Any], banned: Sequence[bool], weights: Sequence[float]) -> list[int]:
    before: dict[int, int | None] = {}
    for i in t.rows:
        again = t.late[i] or tags[i] in AGAIN
        if banned[i] and not again and weights[i] == INF:
            before.setdefault(i, None)
        source = next((x for x in t.ins[i] if x in before), None)
        if source is None:
            continue
        if again or (weights[i] == INF and t.needed_late[i]):
            path = [i]
            step: int | None = source
            while step is not None:
                path.append(step)
                step = before[step]
            return path[::-1]
        if weights[i] == INF:
            before.setdefault(i, source)
    return []


def _why(t: Table, tags: Sequence[Any], banned: Sequence[bool], weights: Sequence[float], i: int) -> str:
    if t.late[i]:
        return "part of the backward"
    if tags[i] in AGAIN:
        return f"tagged {tags[i].name}"
    if banned[i]:
        kind = input_kind(str(t.nodes[i].target)) == PRIMAL if t.is_placeholder(i) else False
        reason = "an input" if kind else "tagged MUST_SAVE" if tags[i] is MUST_SAVE else "must not run twice"
        return reason + (", and no tensor that can be saved" if weights[i] == INF else "")
    return "cannot be saved"


def _at(t: Table, i: int) -> str:
    place = where(t.nodes[i])
    return f" at {place}" if place else ""
