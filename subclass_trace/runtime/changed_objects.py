"""Are the objects that a region changes no parts of the flatten contexts of its inputs?

A traced wrapper has copies of what can be changed in its context. So a region that changes such an object by another name
is refused when it is traced, and a call in which it is one for the first time has to be traced.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..plan import ContainerChange, Plan, ReturnedContainer
from ..subclass.changeable import copied_in, own_contexts
from ..subclass.context import is_buffer, is_copied
from ..subclass.visit import inner_values
from .containers import container_now, value_at_way


@dataclass(frozen=True, eq=False)
class ChangedObjects:
    """Those of a specialization.

    Attributes:
        ways: from ``(args, kwargs)`` to containers.
        owners: of changes of Python state: objects, or `ReturnedContainer` for what a name leads to.
    """

    ways: tuple[tuple[Hashable, ...], ...]
    owners: tuple[Any, ...]

    @staticmethod
    def of(plan: Plan) -> ChangedObjects | None:
        """None where it changes none that a context may hold."""
        ways = tuple(row.keys for row in plan.containers if isinstance(row, ContainerChange))
        owners = tuple(row.owner for row in plan.assignments if _may_be_in_a_context(row.owner))
        return ChangedObjects(ways, owners) if ways or owners else None

    def are_apart(self, inputs: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Does no context of these inputs hold any of them?"""
        changed = [value_at_way((args, kwargs), way) for way in self.ways]
        changed += [container_now(o) if type(o) is ReturnedContainer else o for o in self.owners]
        return copied_among(changed, inputs) is None


def holds_copied(value: Any) -> bool:
    """Has a traced wrapper in the place of this input copies of anything in its contexts?"""
    return next(_parts(value), None) is not None


def copied_among(objects: Sequence[Any], values: Sequence[Any]) -> Any:
    """The first of the objects that a context of the values holds and of which traced wrappers have copies, or None."""
    known = {id(o): o for o in objects}
    return next((known[id(part)] for value in values for part in _parts(value) if id(part) in known), None)


def _parts(value: Any) -> Iterator[Any]:
    for _, wrapper in own_contexts(value):
        for part in copied_in(inner_values(wrapper)[2]):
            yield part
            yield getattr(part, "__dict__", part)  # a plan may have the attributes of an object as its owner


def _may_be_in_a_context(owner: Any) -> bool:
    if type(owner) is dict and "__builtins__" in owner:
        return False  # the globals of a module
    return type(owner) is ReturnedContainer or is_copied(owner) or is_buffer(owner)
