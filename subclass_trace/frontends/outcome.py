"""What a run of a function gave, as the capture wants it: flat results, what stands in them for objects of the call, and
what the function has done to Python state."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import optree
import torch

from .. import _torch
from ..capture.objects_made import looked_at, objects_made
from ..errors import UnsupportedError
from ..plan import AppendPlan, AssignmentPlan, ContainerChange, ContainerRow, StatePlan
from ..subclass.made import Elsewhere
from ..subclass.paths import Path
from .containers import HandedContainers, inside_of, made_containers, named_containers, twins_marked
from .identities import plain_number
from .python_state import Effect
from .reached import Reached
from .refused_results import check_kept, check_keys, check_memory, check_result
from .ways import found_elsewhere


def flatten_results(tree: Any, is_whole: Callable[[Any], bool] = lambda _: False) -> tuple[list[Any], Any]:
    """Flat leaves and structure of results; a torch.Size of plain numbers is a leaf, and what ``is_whole`` says."""

    def is_leaf(value: Any) -> bool:
        return is_whole(value) or (isinstance(value, torch.Size) and all(type(n) is int for n in value))

    return optree.tree_flatten(tree, is_leaf=is_leaf, namespace=_torch.pytree_namespace())


def with_kept(
    results: list[Any], rows: Sequence[Any], made: list[tuple[Any, bool]], others: list[Any]
) -> tuple[list[tuple[Any, bool]], list[Any]]:
    """The objects that a function has made, and others: those in its results, and those that it has put into Python state,
    which is as it was by now."""
    beside = [*(id(row.value) for row in rows), *(id(v) for v, _ in made), *map(id, others)]
    now, elsewhere = objects_made([*results, *(row.value for row in rows)], beside)
    known = {id(v) for v, _ in now}
    return [*(row for row in made if id(row[0]) not in known), *now], elsewhere


@dataclass(eq=False)
class Outcome:
    """Of one run.

    Attributes:
        arguments: the flat ones of the call; ``containers``: those that the function got for the caller's.
        lends: tells of an object if an input has it.
        made: the objects that the function has made: see `objects_made`; ``others``: those that it has from elsewhere.
        rows: what it did to Python state.
        found: where a call finds the others, as far as a way leads to them.
    """

    reached: Reached
    arguments: Sequence[Any]
    containers: HandedContainers
    lends: Callable[[Any], bool]
    made: list[tuple[Any, bool]]
    others: list[Any]
    rows: Sequence[Any]
    found: list[tuple[Any, Elsewhere]] = field(init=False)

    def __post_init__(self) -> None:
        others = [*self.others, *looked_at(row.value for row in self.rows)]
        self.found = found_elsewhere(others, self.arguments, self.reached)
        self._whole = {id(v) for v, alone in self.made if not alone} | {id(v) for v, _ in self.found}
        self.found += self.containers.found(others, len(self.found))
        self._known = {id(v) for v, _ in self.found}

    def is_whole(self, value: Any) -> bool:
        """Is it an object that a call has already, or makes as a whole?"""
        return self.lends(value) or id(value) in self._whole

    def results(
        self, result: Any, changes: Sequence[ContainerChange], new: Sequence[Any], places: Sequence[Path]
    ) -> tuple[list[Any], Any, tuple[ContainerRow, ...]]:
        """Flat results, their structure, and what stands in them for containers.

        Args:
            changes: of the containers; ``new``: what these got, ``places``: where.

        Raises:
            UnsupportedError: something that no call could return.
        """
        anew = made_containers((e.value, e.read) for e in self.rows if isinstance(e, Effect) and e.anew)
        named = functools.cache(lambda: named_containers(self.reached) | anew)
        given = {id(c) for _, c, _ in self.containers.rows}
        (result, new), same = twins_marked((result, list(new)), lambda: {*named(), *given})
        result, returned = self.containers.marked(result, named)
        for added, path in zip(new, places, strict=True):
            for value in flatten_results(added)[0]:
                check_result(value, path)
        check_keys(result)
        check_memory(result, self.arguments)
        both = (result, new) if changes or returned or same else result
        flat, tree = flatten_results(both, self.is_whole)
        flat = [plain_number(value) for value in flat]
        for k, value in enumerate(flat):
            if not self.is_whole(value):
                check_result(value, Path("result").item(k))
        return flat, tree, (*changes, *returned, *same)

    def plans(self, first: int) -> list[StatePlan]:
        """What a call does to Python state, with results from number ``first`` on."""
        plans: list[StatePlan] = []
        copied: list[Any] = []
        known = self._known | {id(v) for v, _ in self.made}
        check_kept(row.value for row in self.rows)
        for k, row in enumerate(self.rows):
            plan = row.plan(first + k)
            if isinstance(plan, (AssignmentPlan, AppendPlan)) and plan.anew:
                if self.lends(row.value) or id(row.value) in known:
                    plan = replace(plan, anew=False)
                else:
                    copied.append(row.value)
            plans.append(plan)
        _refuse_one_at_two_places(copied)
        return plans


def _refuse_one_at_two_places(copied: Sequence[Any]) -> None:
    """Each call would put another container at each of the places."""
    kept = [id(v) for value in copied for v in inside_of(value) if not isinstance(v, tuple)]
    if len(set(kept)) < len(kept):
        raise UnsupportedError(
            "the region keeps one container that it made at two places",
            expected="a container of its own at each place of Python state",
            got=", ".join(map(repr, copied))[:200],
            fix="put a copy at one of them, or make the container outside of the region",
        )
