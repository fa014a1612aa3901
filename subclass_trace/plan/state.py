"""What a call changes: tensors among its inputs, and Python state."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from ..subclass.paths import owner_of
from ..subclass.spec import Spec


@dataclass(frozen=True, eq=False)
class MutationPlan:
    """What the region did to one input.

    Attributes:
        input: number of the input.
        value: number of the forward value that holds its new contents, or None (metadata alone).
        leaves: positions (within the input) of the leaves whose data is copied back.
        replaced: position -> "data" (new storage: ``leaf.data = new``) or "attribute" (the wrapper's attribute).
        memory: position of a leaf that is replaced, or laid out anew, and whose memory was written before -> the forward
            value with what that holds.
        differentiable: autograd saw it, so that the input gets a new history.
        metadata: spec after the call when sizes, strides or offsets changed.
        attributes: Python attributes of the wrapper that the region changed.
        version_bumps: by how much the version counter moves.
        starts_grad: the region called ``requires_grad_()`` on it.
        stops_grad: the region detached it in place, or called ``requires_grad_(False)``.
        below: those of ``leaves`` that operations on the wrapper alone have written, which may be inference tensors.
        inner_bumps: wrappers inside, by dotted names -> by how much their counters move.
        leaf_bumps: of a wrapper: position of a leaf -> by how much its own counter moves, less what the program has
            moved it by. An operation on the wrapper does not move it. A leaf that another plan counts is left out.
        laid_out: leaves that have got their layout with another input of which they are a leaf as well.
        in_program: those of ``leaves`` that the program writes itself (docs/notes/in_place.md).
        moved: by how much that has moved the version counter of a dense input.
    """

    input: int
    value: int | None
    leaves: tuple[int, ...]
    replaced: Mapping[int, str] = field(default_factory=dict)
    memory: Mapping[int, int] = field(default_factory=dict)
    differentiable: bool = False
    metadata: Spec | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    version_bumps: int = 0
    starts_grad: bool = False
    stops_grad: bool = False
    below: tuple[int, ...] = ()
    leaf_bumps: Mapping[int, int] | None = None
    inner_bumps: Mapping[str, int] = field(default_factory=dict)
    laid_out: tuple[int, ...] = ()
    in_program: tuple[int, ...] = ()
    moved: int = 0

    @property
    def copied(self) -> tuple[int, ...]:
        """The leaves that are still to be written when the program is done."""
        return tuple(k for k in self.leaves if k not in self.in_program)


@dataclass(frozen=True)
class OfResult:
    """Result number ``result``, as the owner of an attribute."""

    result: int


@dataclass(frozen=True, eq=False)
class AssignmentPlan:
    """What the region assigned: ``owner.<table>[name] = results[result]``.

    ``table`` is "_parameters", "_buffers", "_modules", or "__dict__" for a plain attribute; ``owner`` is a module, or the
    number of an input, or `OfResult` (then ``name`` may be dotted: of a wrapper inside). ``table`` is None where ``owner``
    is a dict (of globals, of an object's attributes) or a list itself, or a closure cell, which has no ``name``. ``anew``:
    the value is a container that the region makes, of which each call gets a new one.
    """

    owner: Any
    table: str | None
    name: Any
    result: int
    anew: bool = False

    def deliver(self, inputs: Sequence[torch.Tensor], results: Sequence[Any]) -> None:
        """Make the assignment in a call with these inputs and results."""
        owner: Any = self.owner
        value = _anew(results[self.result]) if self.anew else results[self.result]
        if isinstance(owner, int):
            owner, name = owner_of(inputs[owner], self.name)
            setattr(owner, name, value)
        elif isinstance(owner, OfResult):
            owner, name = owner_of(results[owner.result], self.name)
            setattr(owner, name, value)
        elif self.name is None:
            owner.cell_contents = value
        else:
            (owner if self.table is None else getattr(owner, self.table))[self.name] = value


def _anew(value: Any) -> Any:
    """A copy of a container and of the containers in it."""
    if type(value) is dict:
        return {k: _anew(v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_anew, value))
    return copy.copy(value) if type(value) in (set, deque) else value


@dataclass(frozen=True, eq=False)
class ItemPlan:
    """What the region stores in a table of tables: ``owner[outer][name] = results[result]``; a missing inner table is made."""

    owner: Any
    outer: Any
    name: str
    result: int

    def deliver(self, inputs: Sequence[torch.Tensor], results: Sequence[Any]) -> None:
        """Store the value of a call."""
        self.owner.setdefault(self.outer, {})[self.name] = results[self.result]


@dataclass(frozen=True, eq=False)
class CountPlan:
    """What the region moves on: ``owner.name += results[result]``; ``owner[name]`` where ``is_item`` (globals are items of a
    dict), the contents of a closure cell where ``name`` is None."""

    owner: Any
    name: Any
    is_item: bool
    result: int

    def deliver(self, inputs: Sequence[torch.Tensor], results: Sequence[Any]) -> None:
        """Count in a call."""
        owner, value = self.owner, results[self.result]
        if self.is_item:
            owner[self.name] += value
        elif self.name is None:
            owner.cell_contents += value
        else:
            setattr(owner, self.name, getattr(owner, self.name) + value)


@dataclass(frozen=True, eq=False)
class AppendPlan:
    """What the region adds to a list, a deque or a set: ``owner.append(results[result])``. ``anew``: see `AssignmentPlan`."""

    owner: Any
    result: int
    anew: bool = False

    def deliver(self, inputs: Sequence[torch.Tensor], results: Sequence[Any]) -> None:
        """Add the value of a call."""
        value = _anew(results[self.result]) if self.anew else results[self.result]
        (self.owner.add if isinstance(self.owner, set) else self.owner.append)(value)


@dataclass(frozen=True, eq=False)
class RemovalPlan:
    """What the region deletes: ``del owner.<table>[name]``; where ``table`` is None, ``owner`` is a dict or a set itself, or
    a list or a deque, which loses its last item (``name`` -1).

    ``result`` is the number of a result that is None.
    """

    owner: Any
    table: str | None
    name: Any
    result: int

    def deliver(self, inputs: Sequence[torch.Tensor], results: Sequence[Any]) -> None:
        """Delete it in a call, if it is there: what must be there is guarded."""
        holder = self.owner if self.table is None else getattr(self.owner, self.table)
        if isinstance(holder, set):
            holder.discard(self.name)
        elif isinstance(holder, (list, deque)):
            if holder:
                del holder[self.name]
        elif self.name in holder:
            del holder[self.name]


@dataclass(frozen=True, eq=False)
class HookPlan:
    """A hook that the region registers on a tensor from outside: ``owner.<method>(hook)``; ``owner`` may be the number of an
    input. ``result`` is the number of a result that is None."""

    owner: Any
    method: str
    hook: Any
    result: int

    def deliver(self, inputs: Sequence[torch.Tensor], results: Sequence[Any]) -> None:
        """Register it in a call."""
        getattr(inputs[self.owner] if isinstance(self.owner, int) else self.owner, self.method)(self.hook)


@dataclass(frozen=True, eq=False)
class SettingPlan:
    """A setting of torch that the region changes (its default dtype): ``owner(results[result])`` sets it."""

    owner: Callable[[Any], None]
    result: int

    def deliver(self, inputs: Sequence[torch.Tensor], results: Sequence[Any]) -> None:
        """Set it in a call."""
        self.owner(results[self.result])


#: what a region does to Python state in each call
StatePlan: TypeAlias = AssignmentPlan | ItemPlan | CountPlan | AppendPlan | RemovalPlan | SettingPlan | HookPlan


@dataclass(frozen=True)
class ContainerItem:
    """Something that a container holds after the call: the item ``before`` of before, or the new value ``new``."""

    before: Any = None
    new: int | None = None


@dataclass(frozen=True, eq=False)
class ReturnedContainer:
    """Stands in the result for a list or dict that the region did not make: the one at ``keys`` of ``(args, kwargs)``, or
    of what ``read()`` finds. Either is looked up before the region does anything: it may put another one there.

    With ``after`` it is one that the region has put there, and is looked up when that is done.

    As the ``owner`` of a plan it is the container that a name leads to, which the region changes."""

    keys: tuple[Hashable, ...] = ()
    read: Callable[[], Any] | None = None
    after: bool = False


@dataclass(frozen=True, eq=False)
class SameContainer:
    """Stands in ``(result, [new values])`` for a list or dict that the region makes, the one at ``keys`` of the same."""

    keys: tuple[Hashable, ...]


@dataclass(frozen=True)
class ContainerChange:
    """What the region did to a list or dict among its arguments.

    Attributes:
        keys: the way to it from ``(args, kwargs)``.
        items: all items afterwards, in their order, each with its key (a number, for a list).
        replaced: keys whose items differ; the others keep theirs.
        reordered: a dict's keys stand in another order than additions and removals make.
    """

    keys: tuple[Hashable, ...]
    items: tuple[tuple[Any, ContainerItem], ...]
    replaced: frozenset[Any]
    reordered: bool = False

    def deliver(self, container: Any, old: Any, new: Sequence[Any]) -> None:
        """Change the caller's container; ``old`` is a copy of it, ``new`` are the new values of the call."""
        made = [(key, old[i.before] if i.new is None else new[i.new]) for key, i in self.items]
        if not isinstance(container, dict):
            container.clear()
            container.extend(value for _, value in made)
            return
        for key in [k for k in container if k not in {key for key, _ in made}]:
            del container[key]
        if self.reordered:
            container.clear()
        for key, value in made:
            if self.reordered or key in self.replaced:
                container[key] = value


#: what a call does with containers: of those among its arguments, and of those in its result
ContainerRow: TypeAlias = ContainerChange | ReturnedContainer | SameContainer
