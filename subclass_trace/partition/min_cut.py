"""`MinCut`: our partitioner and its options. ``partitioner="min_cut"`` is ``MinCut()``.

>>> import torch, subclass_trace as st
>>> region = st.compile(lambda x: x.sin().exp().sum(), partitioner=st.MinCut(model="torch"))
>>> region(torch.zeros(3, requires_grad=True)).backward()
>>> [row.operation for row in region.specializations[0].saved]
['input']
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any, Literal

import torch.fx as fx

from ..capture.graphs import where
from ..errors import OptionError, UnsupportedError
from .budget import Hull
from .costs import TYPICAL, Costs
from .draws import STATE, draw_of
from .flow import Infeasible, cut
from .labels import PackedHull, labelled_cut
from .packing import Store, check_store, forms, packed_share, packing_edits, packings
from .rules import (
    AGAIN,
    INF,
    MUST_SAVE,
    BanRules,
    Facts,
    absolute_views,
    bans,
    kept_results,
    never_again,
    recompute_tags,
    storage_weights,
    torch_weights,
)
from .split import halves, make_split
from .table import PRIMAL, RANDOM, SEEDED, Table, input_kind, make_table
from .transfers import ONE_AHEAD, Offload

Model = Literal["storage", "torch", "seconds"]
_MODELS = ("storage", "torch", "seconds")
_OBJECTIVES = ("seconds", "flops")
#: a tensor on the CPU takes no memory of the device, but its way there is not free
_TRANSFER = 0.05


@dataclass(frozen=True)
class MinCut:
    """Options of our partitioner. It is callable as the partitioners of ``functorch.compile`` are.

    Attributes:
        model: ``"storage"`` counts what memory really holds; ``"torch"`` saves the very values that torch's
            ``min_cut_rematerialization_partition`` saves, in the same order; ``"seconds"`` weighs storages against the
            time to compute again, for eager execution, where nothing that is computed again is fused away.
        fusion: use the rules that suit a compiler which fuses kernels. None: for ``model="torch"``, and where the back
            end is inductor.
        aggressive: also compute again what is not known as cheap, unless it is heavy, random or unknown
            (``torch._functorch.config.aggressive_recomputation``).
        budget: a limit on what is saved. A whole number above 1: bytes (of unique storages, beyond inputs). A number
            from 0 to 1: share between the least possible and what the model saves without a limit.
        objective: what a budget minimises: ``"seconds"``, or ``"flops"`` as torch's solver does.
        costs: the machine, for seconds. The default is fixed, so that all ranks decide alike.
        price: for ``model="seconds"``, nanoseconds that a saved byte is worth.
        store: keep activations in another form, where the backward reads them directly: ``"int8"``, ``"fp8"`` (rounded
            by rows, so that gradients are not exact; what the backward divides by is not), or ``"cpu"``. One form for
            all, a form by operation (``{torch.ops.aten.gelu.default: "int8"}``, or by its name), or a function of the
            node that returns one or None.
        offload: how ``"cpu"`` overlaps with the computation.
        draw_again: where a checkpoint or a budget asks for it, save the state of the generator instead of random
            numbers, and draw them again in the backward. None: where the back end is eager, which draws as the graph
            says. Numbers that are drawn on other devices than the CPU are saved.
    """

    model: Model = "storage"
    fusion: bool | None = None
    aggressive: bool = False
    budget: float | int | None = None
    objective: Literal["seconds", "flops"] = "seconds"
    costs: Costs = TYPICAL
    price: float = 0.01
    store: Store | None = None
    offload: Offload = ONE_AHEAD
    draw_again: bool | None = None

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            OptionError: a value out of range.
        """
        for name, known in (("model", _MODELS), ("objective", _OBJECTIVES)):
            value = getattr(self, name)
            if value not in known:
                raise OptionError(f"unknown {name}", path=f"MinCut.{name}", expected=f"one of {known}", got=repr(value))
        check_budget(self.budget)
        check_store(self.store)
        for name, kind, wanted in (
            ("fusion", (bool, NoneType), "True, False or None"),
            ("draw_again", (bool, NoneType), "True, False or None"),
            ("aggressive", bool, "True or False"),
            ("costs", Costs, "a Costs"),
            ("offload", Offload, "an Offload"),
        ):
            if not isinstance(value := getattr(self, name), kind):
                raise OptionError(f"{name} is of another type", path=f"MinCut.{name}", expected=wanted, got=repr(value))
        number = isinstance(self.price, (int, float)) and not isinstance(self.price, bool)
        if not (number and self.price > 0):
            raise OptionError(
                "the price is out of range", path="MinCut.price", expected="a number above 0", got=repr(self.price)
            )
        if self.store is not None and self.model != "storage":
            raise OptionError(
                "another form of activations goes with the storage model",
                path="MinCut.store",
                expected='model="storage"',
                got=f"model={self.model!r}",
            )
        if self.model == "torch" and self.budget is not None:
            raise OptionError(
                'a budget needs a model of real bytes, which model="torch" is not',
                path="MinCut.model",
                expected='"storage" or "seconds"',
                got='"torch"',
                fix='leave the model out, or use partitioner="torch_min_cut", which has torch\'s own meaning of a budget',
            )

    def for_backend(self, fuses: bool, draws_as_written: bool) -> MinCut:
        """The same with ``fusion`` and ``draw_again`` decided: by whether a back end fuses, and draws as graphs say."""
        fusion = fuses or self.model == "torch" if self.fusion is None else self.fusion
        again = draws_as_written if self.draw_again is None else self.draw_again
        return replace(self, fusion=fusion, draw_again=again)

    def table(self, joint: fx.GraphModule, num_forward: int, apart: Collection[str] = ()) -> Table:
        """The joint graph as a table; see `make_table`."""
        return make_table(joint, num_forward, apart, as_torch=self.model == "torch")

    def choose(self, table: Table, facts: Facts) -> list[int]:
        """The rows to save: `decide` without the forms."""
        return self.decide(table, facts)[0]

    def decide(self, table: Table, facts: Facts) -> tuple[list[int], dict[int, str]]:
        """The rows to save, and the form of those that are kept in another one.

        Raises:
            UnsupportedError: the tags of checkpointing contradict each other.
        """
        limited = self.budget is not None and self.budget != 1
        draws = self._draws(table) if self.draw_again else {}
        if self.store is None and not (limited and draws):
            rows, packed = self._exact(table, facts), dict[int, str]()
        else:
            rows, packed = self._packed(table, facts, draws if limited else {})
        saved = {i: form for i, form in draws.items() if i in rows and table.recompute[i] in AGAIN}
        return rows, packed | saved

    def _draws(self, table: Table) -> dict[int, str]:
        return {i: STATE for i in table.rows if table.bits[i] & (SEEDED | RANDOM) and draw_of(table, i) is not None}

    def _packed(self, table: Table, facts: Facts, draws: Mapping[int, str]) -> tuple[list[int], dict[int, str]]:
        """`decide` where rows may be kept in other forms, or (``draws``) drawn again."""
        tags, weights = recompute_tags(table, facts), storage_weights(table, facts)
        banned = self._bans(table, tags, facts)
        again, needed = _demands(table, tags)
        allowed = forms(table, self.store, weights, self.offload) if self.store is not None else {}
        share = {i: packed_share(table.val[i], form) for i, form in (*allowed.items(), *draws.items())}
        moving = {i: weights[i] * _TRANSFER for i, form in allowed.items() if form == "cpu"}
        try:
            rows, packed = labelled_cut(table, weights, banned, again, needed, allowed, share, moving)
        except Infeasible:
            raise _infeasible(table, tags, banned, weights) from None
        if self.budget is None or self.budget == 1:
            return rows, packed
        second = self.costs.flops_per_second * 1e-6 if self.objective == "flops" else 1.0
        seconds = {i: weights[i] / self.costs.bytes_per_second * second for i in moving}
        seconds |= {i: self.cost_of(table, i) for i in draws}
        hull = PackedHull(self._hull(table, tags, weights), {**allowed, **draws}, share, seconds)
        found = hull.within(self._limit(hull.bytes(rows, packed), hull.least()))
        return list(found.saved), dict(found.packed)

    def _exact(self, table: Table, facts: Facts) -> list[int]:
        tags = recompute_tags(table, facts)
        if self.model == "seconds" or (self.budget is not None and self.budget != 1):
            return self._limited(table, tags, storage_weights(table, facts), facts)
        return self._unlimited(table, tags, facts)

    def _unlimited(self, table: Table, tags: Sequence[Any], facts: Facts) -> list[int]:
        weights = torch_weights(table, facts) if self.model == "torch" else storage_weights(table, facts)
        return solve(table, tags, self._bans(table, tags, facts), weights)

    def _bans(self, table: Table, tags: Sequence[Any], facts: Facts) -> list[bool]:
        fusion = self.model == "torch" if self.fusion is None else self.fusion
        views = self.model != "torch"
        banned = bans(table, tags, BanRules(fusion and not self.aggressive, views, self.aggressive))
        for i in absolute_views(table, facts):
            banned[i] = True
        if views and facts.kept is not None:
            for i in kept_results(table, facts):
                banned[i] |= tags[i] not in AGAIN
        return banned

    def hull(self, table: Table, facts: Facts) -> Hull:
        """Everything between saving most and saving least; costs in seconds, or in floating-point operations.

        Raises:
            UnsupportedError: the tags of checkpointing contradict each other.
        """
        return self._hull(table, recompute_tags(table, facts), storage_weights(table, facts))

    def _hull(self, table: Table, tags: Sequence[Any], weights: Sequence[float]) -> Hull:
        try:
            hull = Hull(table, tags, weights, self.cost_of)
            assert len(hull.ends) == 2  # found now, so that what is wrong with the tags is explained
            return hull
        except Infeasible:
            banned = [never_again(table, i) or tags[i] is MUST_SAVE for i in range(len(table.nodes))]
            raise _infeasible(table, tags, banned, weights) from None

    def cost_of(self, table: Table, i: int) -> float:
        """What the objective says of computing a row again."""
        count, seconds = self.costs.work(table, i)
        if self.objective == "seconds":
            return seconds
        return count + 1e-6 * seconds * self.costs.flops_per_second  # among equals the faster

    def _limited(self, table: Table, tags: Sequence[Any], weights: Sequence[float], facts: Facts) -> list[int]:
        hull = self._hull(table, tags, weights)
        if self.budget is None or self.budget == 1:
            return list(hull.cut(1e-9 * self.price).saved)
        full = hull.bytes(self._unlimited(table, tags, facts)) if self.budget < 1 else 0
        return list(hull.within(self._limit(full, hull.ends[1].bytes)).saved)

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
