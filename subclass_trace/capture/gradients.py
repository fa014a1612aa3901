"""``.grad`` while a region runs: what it reads, what it sets, and what ``.backward()`` inside of it adds. What
`torch.autograd.grad` inside of it would do to tensors from outside.

The ``.grad`` of a tensor from outside is one more input, found through its owner in each call: an optimizer drops gradients
and gets new ones, so that which tensor it is tells nothing. What the region leaves there is assigned to the owner at the end
of a call; an addition to a gradient that is there is a write in place, as in eager.

``loss.backward()`` is `torch.autograd.grad` for all leaves behind it, and then what the nodes that accumulate gradients do
(``AccumulateGrad`` in torch/csrc/autograd).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import _torch
from ..errors import UnsupportedError
from ..subclass.flatten import leaves_of
from ..subclass.paths import Path
from .closed_over import StandIns, values_of
from .facts import AskedOf, fact_of
from .inputs import has_gradient
from .metadata import MetadataReads
from .recorder import Recorder
from .tape import leaves_behind, nodes_behind

Tensor = torch.Tensor


@dataclass(eq=False)
class Slot:
    """The ``.grad`` of a tensor from outside.

    Attributes:
        owner, traced: the tensor and its stand-in; ``edge``: where gradients of it come from.
        number: of the input; None for a tensor that the function closes over.
        before, now: the (traced) gradient that it came with, and the one that it has.
    """

    owner: Tensor
    traced: Tensor
    edge: Any
    number: int | None
    path: Path | None
    is_leaf: bool
    before: Tensor | None = None
    now: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Outside:
    """A tensor from outside: its number, if it is an input; where gradients of it come from; the tensor itself (not in a
    trace that is made again)."""

    number: int | None
    edge: Any
    real: Tensor | None
    is_leaf: bool
    path: Path | None

    @property
    def name(self) -> Any:
        """The number, or the tensor itself where that is closed over."""
        return self.real if self.number is None else self.number


class Gradients:
    """Those of one run of a region's function."""

    def __init__(self, recorder: Recorder, stand_ins: StandIns, metadata: MetadataReads) -> None:
        self.recorder, self.stand_ins, self.metadata = recorder, stand_ins, metadata
        self._count = len(metadata.rows())
        self._slots: dict[int, Slot] = {}  # by the id of the stand-in
        self._read: set[int] = set()  # the slots of which the gradient was asked for
        self._without: set[int] = set()  # ids of closed-over tensors that were found to have none
        self._asked: dict[int, dict[str, Any]] = {}  # facts of closed-over tensors, by their ids
        self._apart: list[tuple[list[int | Tensor], list[int | Tensor]]] = []

    # ---------------------------------------------------------------- the attribute
    def access(self, func: Callable[..., Any], args: Sequence[Any]) -> Any:
        """``x.grad``, ``x.grad = g``, ``del x.grad``."""
        slot = self._slot(args[0])
        if slot is None:
            return func(*map(self._traced, args))
        if func.__name__ == "__get__":
            return self._current(slot)
        self._current(slot)  # the slot must be as it was in the trace
        value = self._traced(args[1]) if func.__name__ == "__set__" else None
        if isinstance(value, Tensor):
            self._check(slot, value)
        elif value is not None:
            return func(args[0], value)  # raises what eager does
        slot.now = value
        return None

    def _slot(self, x: Any) -> Slot | None:
        """That of a tensor from outside; None for one that the region made."""
        traced = self.stand_ins.known(x)
        row = self.metadata.row_of(traced)
        if row is None and not self.stand_ins.is_from_outside(traced):
            return None
        if row is None:
            traced = self._traced(traced)
        known = self._slots.get(id(traced))
        if known is not None:
            return known
        if row is not None:
            number, real = self.metadata.number_of(traced), row.real()
            assert real is not None or not row.has_gradient
            found = Slot(traced if real is None else real, traced, row.edge, number, row.path, row.is_leaf)
        else:
            real = self.stand_ins.back[id(traced)]
            if self.metadata.is_input(real):  # two traced tensors for one: each would have a gradient of its own
                raise UnsupportedError(
                    "the region needs the .grad of an argument that it also reaches through a container or an optimizer",
                    path=self.recorder.user_line(),
                    expected="one way to each tensor whose .grad the region reads or writes",
                    got=f"a tensor of shape {tuple(real.shape)} that is an argument, and stands elsewhere too",
                    fix="pass the module that has the parameter, or let the function name the tensor instead of taking it",
                )
            found = Slot(real, traced, self.stand_ins.of[id(real)].edge, None, None, real.is_leaf)
        self._slots[id(traced)] = found
        return found

    def _traced(self, value: Any) -> Any:
        outside = isinstance(value, Tensor) and self.stand_ins.is_from_outside(value)
        return self.stand_ins.stand_in(self.stand_ins.back.get(id(value), value)) if outside else value

    def _current(self, slot: Slot) -> Tensor | None:
        if id(slot) in self._read:
            return slot.now
        self._read.add(id(slot))
        if slot.owner is slot.traced or not has_gradient(slot.owner):
            if slot.number is None:
                self._without.add(id(slot.owner))
            else:
                self.metadata.note(slot.number, "gradient")
            return None
        real = slot.owner.grad
        assert real is not None
        if real.layout is not torch.strided or id(real) in self.stand_ins.gradient_of or self.metadata.is_input(real):
            raise UnsupportedError(
                "the region asks for the gradient of a tensor, and that is sparse, or stands elsewhere among its inputs too",
                path=self.recorder.user_line() if slot.path is None else slot.path,
                expected="a strided gradient that is no argument, and no other tensor's",
                got=f"a gradient of layout {real.layout}",
                fix="pass the gradient as an argument alone",
            )
        self.stand_ins.gradient_of[id(real)] = slot.owner
        slot.before = slot.now = self.stand_ins.stand_in(real)
        return slot.now

    def _check(self, slot: Slot, value: Tensor) -> None:
        """Eager refuses gradients of other shapes and types."""
        if type(slot.traced) in _torch.FAKE_TYPES and type(value) in _torch.FAKE_TYPES:
            with _torch.without_tracing(), torch.no_grad():
                self.recorder.bare(slot.traced).grad = value.detach()

    # ---------------------------------------------------------------- backward
    def backward(self, roots: Any, tangents: Any, retain: bool, create: bool, inputs: Sequence[Any]) -> bool:
        """Run a backward that adds to ``.grad``; False where nothing of it is the trace's.

        Raises:
            UnsupportedError: it leads out of the region, or to a leaf with hooks from outside.
        """
        tensors = [t for t in roots if isinstance(t, Tensor)]
        if len(tensors) != len(roots) or not any(map(self._is_traced, tensors)):
            return False
        everyone = [*self._outside()]
        edges = [slot.edge for slot in everyone]
        targets = [*self._chosen(inputs, everyone)] if inputs else [*everyone, *self._own(tensors, edges)]
        where = [t.edge if isinstance(t, Slot) else t for t in targets]
        if not where:
            return False
        roots = [self._traced(t) for t in tensors]
        found = torch.autograd.grad(roots, where, tangents, retain_graph=retain, create_graph=create, allow_unused=True)
        held = [id(t) for t in (*(found), *tangents) if t is not None]
        for target, gradient in zip(targets, found, strict=True):
            if gradient is not None:
                self._add(target, gradient, create, held.count(id(gradient)) == 1)
        return True

    def _is_traced(self, t: Tensor) -> bool:
        return self.stand_ins.is_from_outside(t) or any(map(_torch.is_fake, leaves_of(t)))

    def _outside(self) -> Iterator[Slot]:
        """The slots of all tensors from outside that require grad, as far as the trace has met them."""
        rows = [row.traced for row in self.metadata.rows()]
        for traced in (*rows, *[s.traced for s in self.stand_ins.of.values()]):
            slot = self._slot(traced)
            if slot is not None and slot.edge is not None:
                yield slot

    def _chosen(self, inputs: Sequence[Any], everyone: Sequence[Slot]) -> Iterator[Any]:
        by_node = {slot.edge.node: slot for slot in everyone}
        for x in inputs:
            if not isinstance(x, Tensor):
                yield by_node.get(x.node, x)
            else:
                slot = self._slot(x)
                yield x if slot is None or slot.edge is None else slot

    def _own(self, roots: Sequence[Tensor], edges: Sequence[Any]) -> Iterator[Any]:
        """The leaves that the region made, and inputs of which it made leaves, behind these tensors."""
        seen = {}
        for leaf in (*leaves_behind(roots, edges), *[t for t in roots if t.is_leaf and t.requires_grad]):
            seen[id(leaf)] = leaf
        return iter(seen.values())

    def _add(self, target: Any, gradient: Tensor, create: bool, alone: bool) -> None:
        slot = target if isinstance(target, Slot) else self._slot(target)
        if slot is None:
            old = target.grad if isinstance(target, Tensor) and target.is_leaf else None
            new = _accumulated(old, gradient, target, create, alone)
            if new is not old:
                target.grad = new
            for hook in (getattr(target, "_post_accumulate_grad_hooks", None) or {}).values():
                hook(target)
            return
        self._check_owner(slot)
        old = self._current(slot)
        slot.now = _accumulated(old, gradient, slot.traced, create, alone)

    def _check_owner(self, slot: Slot) -> None:
        where = self.recorder.user_line() if slot.path is None else slot.path
        if slot.number is not None:
            self.metadata.note(slot.number, "is_leaf")
        if not slot.is_leaf:
            raise UnsupportedError(
                "the region calls .backward(), and that leads to a tensor with a history from outside",
                path=where,
                expected="leaves behind what .backward() is called on",
                got=f"a tensor of shape {tuple(slot.owner.shape)} that was computed before",
                fix="detach it, call .backward() on the result outside of the region, or say inputs=[...]",
            )
        registered = any(r.traced is slot.traced for r in self.recorder.late.registrations)
        if registered or self._fact(slot.number, slot.owner, "accumulation hooks") is True:
            raise self._has_hooks(where)

    def _fact(self, number: int | None, real: Any, name: str) -> Any:
        """A fact of a tensor from outside, on which the trace hangs from now on."""
        if number is not None:
            return self.metadata.fact(number, name)
        return self._asked.setdefault(id(real), {}).setdefault(name, fact_of(real, name))

    def _has_hooks(self, where: Any) -> UnsupportedError:
        return UnsupportedError(
            "the region differentiates, and a tensor behind that has hooks on its gradient",
            path=where,
            expected="tensors from outside without hooks, and without retain_grad()",
            got="register_hook, register_post_accumulate_grad_hook or retain_grad was called on it",
            fix="differentiate outside of the region, or register the hook inside of it on x * 1",
        )

    # ---------------------------------------------------------------- torch.autograd.grad
    def check_graphs(self, roots: Sequence[Any], inputs: Sequence[Any]) -> None:
        """In eager, gradients go on through the graphs that tensors from outside came with.

        Raises:
            UnsupportedError: that leads to another tensor whose gradient is wanted.
        """
        outside = self._from_outside()
        wanted = [outside[n] for x in inputs if (n := _node_of(x)) in outside]
        behind = set(nodes_behind(map(_node_of, roots), [])) if wanted and len(outside) > 1 else ()
        reached = [o for n, o in outside.items() if n in behind and any(w is not o for w in wanted)]
        for o in reached:
            self._note_is_leaf(o)
        above = [o for o in reached if not o.is_leaf]
        if not above or any(o.real is None for o in (*above, *wanted)):  # in a trace that is made again it is known
            return
        if _torch.leads_to([o.real for o in above], [o.real for o in wanted]):
            raise UnsupportedError(
                "the region differentiates, and that leads through the graph of a tensor from outside to another one",
                path=self.recorder.user_line(),
                expected="tensors from outside of which none was computed of another",
                got=f"{[self._path(o) for o in above]} beside {[self._path(o) for o in wanted]}",
                fix="compute the one of the other inside of the region, or differentiate outside",
            )
        self._apart.append(([o.name for o in above], [o.name for o in wanted]))

    def check_hooks(self, inputs: Sequence[Any], gradients: Sequence[Tensor | None]) -> None:
        """Eager hands the gradients that are found to the hooks that tensors from outside came with, as the caller's code
        may be; and keeps those of tensors that retain them.

        Raises:
            UnsupportedError: there is one.
        """
        outside = self._from_outside()
        for x, gradient in zip(inputs, gradients, strict=True):
            o = outside.get(_node_of(x))
            if o is None or gradient is None:
                continue
            self._note_is_leaf(o)
            names = ("gradient hooks",) if o.is_leaf else ("gradient hooks", "retains_grad")
            if any(self._fact(o.number, o.real, name) is True for name in names):
                raise self._has_hooks(o.path or self.recorder.user_line())

    def _note_is_leaf(self, o: Outside) -> None:
        if o.number is not None:
            self.metadata.note(o.number, "is_leaf")

    def _path(self, o: Outside) -> str:
        return "a tensor that is closed over" if o.path is None else str(o.path)

    def _from_outside(self) -> dict[Any, Outside]:
        """The tensors from outside that require grad, by the nodes that the trace ends in."""
        rows = [Outside(n, i.edge, i.real(), i.is_leaf, i.path) for n, i in enumerate(self.metadata.rows())]
        rows += [Outside(None, s.edge, s.value, s.value.is_leaf, None) for s in self.stand_ins.of.values()]
        return {row.edge.node: row for row in rows if row.edge is not None}

    def apart(self) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
        """Numbers of inputs, and of others that the graphs of the first do not lead to."""
        numbers = self._numbers()

        def row(names: Sequence[int | Tensor]) -> tuple[int, ...]:
            return tuple(n if isinstance(n, int) else numbers[id(n)] for n in names)

        return tuple(dict.fromkeys((row(above), row(wanted)) for above, wanted in self._apart))

    # ---------------------------------------------------------------- afterwards
    def changed(self) -> Iterator[tuple[int, Tensor | None]]:
        """(number of the input, ``.grad``) where that is something else than it came with."""
        numbers = self._numbers()
        for slot in self._slots.values():
            if slot.now is not slot.before:
                yield numbers[id(slot.owner)] if slot.number is None else slot.number, slot.now

    def _numbers(self) -> dict[int, int]:
        """The numbers of closed-over tensors, by their ids."""
        values = values_of(self.recorder, self.stand_ins)
        return {id(c.value): k for k, c in enumerate(values, start=self._count)}

    def facts(self) -> dict[int, AskedOf]:
        """What was asked of closed-over tensors, by their ids."""
        facts = {k: tuple(asked.items()) for k, asked in self._asked.items()}
        return {k: AskedOf(gradient=k in self._without, facts=facts.get(k, ())) for k in self._without | facts.keys()}


def _node_of(x: Any) -> Any:
    """Where gradients of a tensor, or of a gradient edge, come from; None for a leaf."""
    return x.grad_fn if isinstance(x, Tensor) else x.node


def _accumulated(old: Tensor | None, gradient: Tensor, owner: Tensor, create: bool, alone: bool) -> Tensor:
    """What ``owner.grad`` is after ``gradient`` was added to ``old``.

    ``alone``: nobody else holds the gradient, so that it can become ``.grad`` without a copy.
    """
    with torch.set_grad_enabled(create):
        if old is not None and not create:
            return old.add_(gradient)
        if old is not None:
            return old + gradient
        if not create and alone and _has_layout_of(gradient, owner):
            return gradient.detach()
        if _torch.is_dense(owner):
            fresh = gradient.new_empty_strided(owner.shape, owner.stride())
            return fresh.copy_(gradient)
        return gradient.clone(memory_format=torch.contiguous_format)


def _has_layout_of(gradient: Tensor, owner: Tensor) -> bool:
    """Does the gradient have the strides that autograd gives to gradients of ``owner``?"""
    if not _torch.is_dense(owner):
        return gradient.is_contiguous()
    rows = zip(gradient.shape, gradient.stride(), owner.stride(), strict=True)
    return all(mine == theirs if size != 1 else mine != 0 for size, mine, theirs in rows)
