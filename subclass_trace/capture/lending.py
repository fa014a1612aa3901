"""Which objects in the contexts of traced inputs results may have: see `subclass.parts`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from .. import _torch
from ..errors import ProtocolError, UnsupportedError
from ..plan import MutationPlan
from ..subclass.arguments import has_own_equality
from ..subclass.context import Lent, has_sizes, is_atom, is_buffer, is_copied, map_parts
from ..subclass.flatten import leaves_of, wrappers_inside
from ..subclass.kept import is_looked_inside
from ..subclass.made import Elsewhere, Made
from ..subclass.parts import Part, marks_in, parts_of, read_lent
from ..subclass.protocol import flattens_alike, is_traceable
from ..subclass.spec import Spec, WrapperSpec
from ..subclass.visit import inner_values
from .inputs import TracedInputs
from .recorder import Recorder

Tensor = torch.Tensor


class Lending:
    """The objects in the contexts of traced inputs that results may have, by their marks."""

    def __init__(self, objects: Mapping[Lent, Any]) -> None:
        self.objects = dict(objects)
        self._marks = {id(value): mark for mark, value in reversed(self.objects.items())}

    @staticmethod
    def of(shape_env: Any, wrappers: Sequence[Any], first: int = 0) -> Lending:
        """What these traced inputs have, from input number ``first`` on. What a class makes anew each time stays alive."""
        objects: dict[Lent, Any] = {}
        aside = _torch.unbound_symbols_set_aside(shape_env)  # a class may compute its context
        with aside, _torch.without_tracing(), torch.no_grad():
            for number, value in enumerate(wrappers, first):
                objects |= {Lent(number, names, steps, held): held for names, steps, held in lendable(value)}
        return Lending(objects)

    def tensors(self) -> Iterator[tuple[Lent, Tensor]]:
        """The plain tensors among them, of which traced wrappers have copies."""
        return ((mark, v) for mark, v in self.objects.items() if type(v) is Tensor)

    def beside(self, other: Lending) -> Lending:
        """Those of both."""
        return Lending({**self.objects, **other.objects}) if other.objects else self

    def with_made(self, rows: Iterable[tuple[Any, bool]]) -> Lending:
        """Those and what the region has made: see `objects_made`."""
        found = self
        for number, (value, alone) in enumerate(rows):
            found = Lending({**found.objects, Made(number, value, alone, found.in_place_of): value})
        return found

    def with_elsewhere(self, rows: Iterable[tuple[Any, Elsewhere]]) -> Lending:
        """Those and objects of the call that are not in the contexts of its inputs."""
        marks: dict[Lent, Any] = {mark: value for value, mark in rows if id(value) not in self._marks}
        return Lending({**self.objects, **marks}) if marks else self

    def in_calls(self, used: Collection[Lent]) -> tuple[Lent, ...]:
        """The marks of which a call needs the objects, in this order. ``used``: by its results."""
        needed = set(used)
        for mark in reversed(self.objects):
            if isinstance(mark, Made) and mark in needed:
                needed |= {*marks_in((), [mark.inside()])}
        return tuple(m for m in self.objects if m in needed)

    def marked(self, spec: Spec) -> Spec:
        """The spec of a result, with marks in the place of what it has from an input."""
        if not isinstance(spec, WrapperSpec):
            return spec
        return replace(spec, inners=tuple(map(self.marked, spec.inners)), context=self._in_spec(spec.context))

    def _in_spec(self, context: Any) -> Any:
        mark = self._marks.get(id(context))
        return map_parts(context, self._in_spec) if mark is None or _left_to_specs(mark) else mark

    def lends(self, value: Any) -> bool:
        """Is it an object that an input has, and that a result is then handed on as a whole?"""
        return id(value) in self._marks

    def result(self, value: Any) -> Any:
        """The mark of an object; also of those in a tuple that is a leaf of the results: what a region assigns is one."""
        return self.in_place_of(value) if isinstance(value, tuple) else self._marks.get(id(value), value)

    def in_place_of(self, value: Any) -> Any:
        """The same for an attribute of a result."""
        mark = self._marks.get(id(value))
        return map_parts(value, self.in_place_of) if mark is None else mark


def check_tensors(
    lending: Lending,
    inputs: TracedInputs,
    closed: Sequence[Any],
    mutations: Sequence[MutationPlan],
    results: Sequence[Any],
    recorder: Recorder,
) -> None:
    """A region may compute with plain tensors of contexts, which are values that guards compare, and no inputs.

    Args:
        closed: the rows of what the region closes over, copies of such tensors among them; inputs after ``inputs``.

    Raises:
        UnsupportedError: it writes one, returns a view of one, or would have a gradient of one.
    """
    copies = {id(t): mark for mark, t in lending.tensors()}
    written = {m.input for m in mutations if m.value is not None}
    reals = [row.real() for row in inputs.inputs] if copies else []
    memory = {s for n in written for t in reals[n : n + 1] if t is not None for s in _memory(t)}
    handed_out = {s for o in results if isinstance(o, Tensor) for s in _memory(o)} if copies else set()
    differentiable = any(isinstance(o, Tensor) and o.requires_grad for o in results)
    for number, c in enumerate(closed, len(inputs.inputs)):
        mark, fake = copies.get(id(c.value)), recorder.lifted_fake(c.value)
        if mark is None:
            continue
        if number in written:
            what = "the region writes to"
        elif reals[mark.place[1]] is not None and memory.intersection(_memory(read_lent(mark, reals))):
            what = "the region writes, by an argument, memory of"
        elif fake is not None and handed_out.intersection(_memory(fake)):
            what = "a result shares memory with"
        elif c.edge is not None and differentiable:
            what = "there would be a gradient of"
        else:
            continue
        raise UnsupportedError(
            f"{what} a plain tensor that a flatten context holds",
            path=".".join((str(inputs.inputs[mark.place[1]].path), *mark.place[2])),
            expected="tensors that are only read, and not differentiated",
            got=f"a tensor of shape {tuple(c.value.shape)} that is no inner tensor",
            fix="let __tensor_flatten__ name it among the inner tensors",
        )


def _memory(t: Tensor) -> Iterator[Any]:
    return (_torch.storage_ref(leaf) for leaf in leaves_of(t) if leaf.layout is torch.strided)


def _left_to_specs(mark: Lent) -> bool:
    """Does a call make a copy for the context of a result anyway, and is that the only place where it stands?"""
    return isinstance(mark, Made) and mark.alone and mark.is_copied


def lendable(value: Any) -> Iterator[tuple[tuple[str, ...], tuple[Part, ...], Any]]:
    """The objects in the contexts of a wrapper, and of those inside of it, that other calls may have others for: the
    attributes that lead to the wrapper, the parts of the context that lead to the object, and the object."""
    for names, wrapper in _wrappers(value):
        yield from ((names, steps, held) for steps, held in _held(inner_values(wrapper)[2], ()))


def _wrappers(value: Any) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """A wrapper and those inside of it, with the names that lead there, as far as their contexts may hold objects."""
    if not isinstance(value, Tensor) or not is_traceable(value):
        return
    try:
        for names, wrapper in (((), value), *wrappers_inside(value)):
            cls = type(wrapper)
            if not flattens_alike(cls) and _torch.context_shortcut(cls) is None:
                yield tuple(names), wrapper
    except ProtocolError:  # a class computes its context of numbers that a trace does not know
        return


def _held(value: Any, steps: tuple[Part, ...]) -> Iterator[tuple[tuple[Part, ...], Any]]:
    """The objects in a context in whose place another call may have another one."""
    if _may_be_another(value) and not has_sizes(value):
        yield steps, value
    for part, inside in parts_of(value):
        yield from _held(inside, (*steps, part))


def _may_be_another(value: Any) -> bool:
    if is_copied(value) or is_buffer(value) or type(value) is Tensor or _torch.is_opaque(value):
        return True
    other = is_atom(value) or isinstance(value, (tuple, frozenset, Tensor))
    return not other and is_looked_inside(value) and has_own_equality(type(value))
