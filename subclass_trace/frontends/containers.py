"""Which containers among its arguments a traced function changed, and how."""

from __future__ import annotations

import functools
import operator
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import UnsupportedError
from ..plan import ContainerChange, ReturnedContainer, SameContainer, StatePlan
from ..plan import ContainerItem as Item
from ..runtime.containers import CHANGEABLE, containers_in, map_containers
from ..runtime.guards import OF_EVERY_MODULE
from ..runtime.held import ABSENT
from ..runtime.trees import unflatten_with_twins
from ..subclass.made import GIVEN, Elsewhere
from ..subclass.paths import Path
from .reach import Reached


@dataclass(frozen=True, eq=False)
class GivenContainers:
    """The containers among the arguments of a call that stand elsewhere too.

    Attributes:
        twins: the way to one -> the first way to the same container.
        lent: the way to one that the function reaches by name as well -> that itself. It is given no copy.
        nodes: the same of pytrees of classes that are no containers of Python's: `twins_in`; known once it is traced.
    """

    twins: Mapping[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)
    lent: Mapping[tuple[Any, ...], Any] = field(default_factory=dict)
    nodes: dict[int, int] = field(default_factory=dict)

    @staticmethod
    def of(args: Any, kwargs: Any, reached: Reached) -> GivenContainers:
        """Those of a call."""
        first: dict[int, tuple[Any, ...]] = {}
        twins, lent = {}, {}
        named = {id(value) for value, _ in reached.held if type(value) in CHANGEABLE}
        for keys, container in containers_in((args, kwargs)):
            if id(container) in named:
                lent[keys] = container
            elif first.setdefault(id(container), keys) != keys:
                twins[keys] = first[id(container)]
        return GivenContainers(twins, lent)

    def positions(self, tree: Any) -> set[int]:
        """The flat positions of what lies in those that are lent. ``tree``: the structure of the arguments."""
        ways = tree.paths() if self.lent else ()
        return {k for k, way in enumerate(ways) if any(way[: len(keys)] == keys for keys in self.lent)}

    def placed(self, tree: Any, leaves: Sequence[Any]) -> tuple[Any, Any]:
        """Copies of args and kwargs, with one container wherever the caller has one."""
        args, kwargs = unflatten_with_twins(tree, leaves, self.nodes)
        made: dict[tuple[Any, ...], Any] = {}

        def put(value: Any, keys: tuple[Any, ...]) -> Any:
            if keys in self.lent:
                return self.lent[keys]
            if keys in self.twins:
                return made[self.twins[keys]]
            if isinstance(value, tuple):
                items = [put(v, (*keys, k)) for k, v in enumerate(value)]
                if not any(map(operator.is_not, items, value)):
                    return value
                return tuple(items) if type(value) is tuple else type(value)(*items)
            if type(value) in CHANGEABLE:
                made[keys] = value
                for k, v in _pairs(value):
                    if (now := put(v, (*keys, k))) is not v:
                        value[k] = now
            return value

        return put((args, kwargs), ()) if self.twins or self.lent else (args, kwargs)


@dataclass(frozen=True, eq=False)
class HandedContainers:
    """The containers that a traced function gets for the caller's, and what they held before it ran."""

    rows: tuple[tuple[tuple[Any, ...], Any, Any], ...]  # (way to it, container, copy of it)

    @staticmethod
    def of(args: Any, kwargs: Any) -> HandedContainers:
        """Those of one run, each once. The tuple of arguments and the dict of keywords are not the caller's."""
        found: dict[int, tuple[tuple[Any, ...], Any]] = {}
        for keys, c in containers_in((args, kwargs)):
            if len(keys) > 1:
                found.setdefault(id(c), (keys, c))
        return HandedContainers(tuple((keys, c, c.copy()) for keys, c in found.values()))

    def changes(self) -> tuple[list[ContainerChange], list[Any], list[Path]]:
        """What was done to them, the new values, and the path of each; they hold what they held before again.

        Raises:
            UnsupportedError: a container was put into another place.
        """
        changes: list[ContainerChange] = []
        new: list[Any] = []
        paths: list[Path] = []
        for keys, container, was in self.rows:
            before, after = _pairs(was), _pairs(container)
            if [(k, id(v)) for k, v in before] == [(k, id(v)) for k, v in after]:
                continue
            place = {id(v): k for k, v in before}
            items: list[tuple[Any, Item]] = []
            for key, value in after:
                if id(value) in place:
                    items.append((key, Item(before=place[id(value)])))
                    continue
                path = path_of(keys).item(key)
                self._check_new(value, path)
                items.append((key, Item(new=len(new))))
                new.append(value)
                paths.append(path)
            changes.append(_change(keys, before, after, tuple(items)))
        for _, container, was in self.rows:
            container.clear()
            container.update(was) if isinstance(container, dict) else container.extend(was)
        return changes, new, paths

    def unfinished(self, real: Callable[[Any], Any]) -> list[tuple[ContainerChange, list[Any]]]:
        """What was done to them before the function raised an exception, each change with the new values of the call.

        ``real``: the caller's value for one of the trace, `ABSENT` where there is none; then nothing is told.
        """
        try:
            changes, new, _ = self.changes()
        except UnsupportedError:
            return []
        values = [real(v) for v in new]
        return [] if any(v is ABSENT for v in values) else [(change, values) for change in changes]

    def marked(self, result: Any, others: Callable[[], Mapping[int, ReturnedContainer]]) -> tuple[Any, list[Any]]:
        """The result, and what stands in it for containers that the function did not make.

        ``others``: what stands for those that it reaches by name, by their ids.
        """
        mine = {id(container): keys for keys, container, _ in self.rows}
        named: Mapping[int, ReturnedContainer] | None = None
        rows: list[ReturnedContainer] = []

        def mark(value: Any) -> Any:
            nonlocal named
            if type(value) not in CHANGEABLE:
                return value
            if named is None:
                named = others()
            if id(value) not in mine and id(value) not in named:
                return value
            rows.append(named[id(value)] if id(value) in named else ReturnedContainer(mine[id(value)]))
            return rows[-1]

        return map_containers(result, mark), rows

    def found(self, objects: Iterable[Any], number: int) -> list[tuple[Any, Elsewhere]]:
        """Those among the objects, with the marks of their places. ``number``: how many marks there are besides."""
        wanted = set(map(id, objects))
        rows = [(keys, c) for keys, c, _ in self.rows if id(c) in wanted]
        return [(c, Elsewhere(number + k, c, GIVEN, None, keys)) for k, (keys, c) in enumerate(rows)]

    def _check_new(self, value: Any, path: Path) -> None:
        for inner in inside_of(value):
            if any(inner is container for _, container, _ in self.rows):
                raise UnsupportedError(
                    "the region puts a container among its arguments into another one",
                    path=path,
                    expected="tensors, numbers and new containers as items",
                    got=f"a {type(inner).__name__} that came in as an argument",
                    fix="make a copy of it, or return the new value instead",
                )


def twins_marked(results: Any, others: Callable[[], Collection[int]]) -> tuple[Any, list[SameContainer]]:
    """Results in which marks stand for containers that stand at another place of them as well.

    ``others``: ids of those that the function did not make, which are marked otherwise.
    """
    met = Counter(id(c) for c in inside_of(results) if type(c) in CHANGEABLE)
    if max(met.values(), default=0) < 2:
        return results, []
    known = others()
    first: dict[int, tuple[Any, tuple[Any, ...]]] = {}
    rows: list[SameContainer] = []

    def put(value: Any, keys: tuple[Any, ...]) -> Any:
        if (type(value) not in CHANGEABLE and not isinstance(value, tuple)) or id(value) in known:
            return value
        if type(value) in CHANGEABLE:
            if id(value) in first:
                rows.append(SameContainer(first[id(value)][1]))
                return rows[-1]
            first[id(value)] = value, keys
        if len(keys) > _DEEPEST:
            return value
        items = {k: put(v, (*keys, k)) for k, v in _pairs(value)}
        changed = {k: now for (k, v) in _pairs(value) if (now := items[k]) is not v}
        if not changed:
            return value
        if isinstance(value, tuple):
            return tuple(items.values()) if type(value) is tuple else type(value)(*items.values())
        copy = value.copy()
        for k, now in changed.items():
            copy[k] = now
        return copy

    return put(results, ()), rows


def inside_of(value: Any, depth: int = 8) -> Iterator[Any]:
    """A container and those inside of it; tuples are among them."""
    if type(value) in CHANGEABLE or isinstance(value, tuple):
        yield value
        if depth:
            for inner in value.values() if isinstance(value, dict) else value:
                yield from inside_of(inner, depth - 1)


def _pairs(container: Any) -> list[tuple[Any, Any]]:
    return list(container.items()) if isinstance(container, dict) else list(enumerate(container))


def _change(keys: Any, before: Any, after: Any, items: tuple[tuple[Any, Item], ...]) -> ContainerChange:
    was, now = dict(before), dict(after)
    replaced = frozenset(k for k, v in after if k not in was or was[k] is not v)
    stay = [k for k, _ in before if k in now]
    reordered = [k for k, _ in after] != [*stay, *[k for k, _ in after if k not in was]]
    return ContainerChange(keys, items, replaced, reordered)


def path_of(keys: Any) -> Path:
    first, *rest = keys
    path = Path("args" if first == 0 else "kwargs")
    for key in rest:
        path = path.item(key)
    return path


#: what a function may write to
_WRITABLE = (*CHANGEABLE, set, Counter)
#: no deeper than guards look at what a name holds, and no more items
_DEEPEST, _MOST_ITEMS = 9, 2000


def named_containers(reached: Reached) -> dict[int, ReturnedContainer]:
    """The lists and dicts that names and attributes of modules hold, inside of others too: id -> what stands for it."""
    starts = [(row.value, row.read) for row in reached.slots if row.read() is row.value]  # else the trace bound it anew
    for root, _ in reached.modules:
        for module in root.modules():
            names = vars(module).keys() - OF_EVERY_MODULE
            starts += [(vars(module)[name], functools.partial(getattr, module, name)) for name in sorted(names)]
    return _containers_behind((value, ReturnedContainer((), read)) for value, read in starts)


def made_containers(rows: Iterable[tuple[Any, Callable[[], Any]]]) -> dict[int, ReturnedContainer]:
    """The same for containers that the function has made and bound to a name: what they were, and what reads them."""
    return _containers_behind((value, ReturnedContainer((), read, after=True)) for value, read in rows)


def found_anew(plans: Sequence[StatePlan], reached: Reached) -> list[StatePlan]:
    """The same changes of containers that names hold: each call finds them there. It may be another one by then, which holds
    the same items: that is all that is guarded."""
    if not any(type(plan.owner) in _WRITABLE for plan in plans):
        return list(plans)
    ways: Mapping[int, Any] = named_containers(reached)
    return [replace(plan, owner=ways.get(id(plan.owner), plan.owner)) for plan in plans]


def _containers_behind(starts: Iterable[tuple[Any, ReturnedContainer]]) -> dict[int, ReturnedContainer]:
    found: dict[int, ReturnedContainer] = {}
    todo = deque(starts)
    left = _MOST_ITEMS
    while todo:  # the shortest way to each
        value, row = todo.popleft()
        if type(value) in _WRITABLE and id(value) not in found:
            found[id(value)] = row
        elif not isinstance(value, tuple):
            continue
        if isinstance(value, set):  # what can be hashed holds no container
            continue
        left -= len(value)
        if left >= 0 and len(row.keys) < _DEEPEST:
            todo.extend((v, replace(row, keys=(*row.keys, k))) for k, v in _pairs(value))
    return found
