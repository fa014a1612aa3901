"""Objects in contexts that results have from the inputs.

A class often hands its context on (``cls(out, x.config)``). In eager mode the result then has the very object of the input,
so that what changes one changes the other. A traced wrapper has a copy of what can be changed in place; where a result of
the trace has that very copy, a call hands on the object of its own input. See docs/notes/contexts.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from .. import _torch
from ..errors import ProtocolError
from ..subclass.arguments import attributes_inside, has_own_equality
from ..subclass.components import Part, parts_of, value_at
from ..subclass.context import (
    Lent,
    has_generated_equality,
    has_sizes,
    is_atom,
    is_buffer,
    is_copied,
    is_frozen,
    map_parts,
    note_inside,
    snapshot,
)
from ..subclass.flatten import wrappers_inside
from ..subclass.kept_objects import is_looked_inside
from ..subclass.made import Elsewhere, Made
from ..subclass.noted_dict import ROWS, NotedDict, plain
from ..subclass.noting import unnoted
from ..subclass.protocol import flattens_alike, is_traceable, unflatten_of
from ..subclass.spec import Spec, WrapperSpec
from ..subclass.visit import inner_values

Tensor = torch.Tensor


class Lending:
    """The objects in the contexts of traced inputs that results may have, by their marks."""

    def __init__(
        self, objects: Mapping[Lent, Any], outermost: Iterable[Lent] = (), renewed: Iterable[Lent] = ()
    ) -> None:
        self.objects = dict(objects)
        self.outermost = tuple(outermost)
        self.renewed = frozenset(renewed)
        self._marks = {id(value): mark for mark, value in reversed(self.objects.items())}

    @staticmethod
    def of(shape_env: Any, wrappers: Sequence[Any], kind: str = "input") -> Lending:
        """What these traced inputs have (or tangents, which are the ``kind``)."""
        objects: dict[Lent, Any] = {}
        outermost, renewed = [], set[Lent]()
        aside = _torch.unbound_symbols_set_aside(shape_env)  # a class may compute its context
        with aside, unnoted(), _torch.without_tracing(), torch.no_grad():
            for number, value in enumerate(wrappers):
                for names, wrapper in _known(value):
                    rows = list(_held(inner_values(wrapper)[2], inner_values(wrapper)[2], (), False))
                    copied = [row for row in rows if not row[2] and is_copied(row[1]) and kind == "input"]
                    other = _built_again(wrapper) if copied else None
                    objects |= {Lent(kind, number, names, steps, held): held for steps, held, _ in rows}
                    for steps, held, _ in copied:
                        if other is not None and _component(other, steps) is not held:
                            outermost.append(Lent(kind, number, names, steps, held))
                    for steps, held, _ in rows:
                        mark = Lent(kind, number, names, steps, held)
                        around = Lent(kind, number, names, steps[:-1], None)
                        if mark in outermost or (is_copied(held) and around in renewed) or is_frozen(held):
                            renewed.add(mark)
        return Lending(objects, outermost, renewed)

    def beside(self, other: Lending) -> Lending:
        """Those of both."""
        if not other.objects:
            return self
        marks = (*self.outermost, *other.outermost)
        return Lending({**self.objects, **other.objects}, marks, self.renewed | other.renewed)

    def with_made(self, rows: Iterable[tuple[Any, bool]]) -> Lending:
        """Those and what the region has made: see `objects_made`."""
        found = self
        for number, (value, alone) in enumerate(rows):
            made = Made(number, value, alone, found.in_place_of)
            found = Lending({**found.objects, made: value}, found.outermost, found.renewed)
        return found

    def with_elsewhere(self, rows: Iterable[tuple[Any, Elsewhere]]) -> Lending:
        """Those and objects of the call that are not in the contexts of its inputs."""
        marks: dict[Lent, Any] = {mark: value for value, mark in rows if id(value) not in self._marks}
        return Lending({**self.objects, **marks}, self.outermost, self.renewed) if marks else self

    def with_tensors(self, results: Iterable[Any]) -> Lending:
        """Those and tensors of contexts that results stand for by their marks: see `TensorsOfContexts`."""
        marks = {r: r.value for r in results if isinstance(r, Lent) and r not in self.objects}
        return Lending({**self.objects, **marks}, self.outermost, self.renewed) if marks else self

    def in_calls(self, used: Collection[Lent], trains: bool) -> tuple[Lent, ...]:
        """The marks of which a call needs the objects, in this order. ``used``: by its results; in a region that trains,
        a backward that is traced later may use others."""
        needed = set(used)
        for mark in reversed(self.objects):
            if isinstance(mark, Made) and (mark in needed or (trains and not _left_to_specs(mark))):
                needed |= {mark, *marks_in((), [mark.inside()])}
        return tuple(m for m in self.objects if m in needed or (trains and not isinstance(m, Made)))

    def shared(self) -> Iterator[Lent]:
        """The marks of objects of which traced wrappers have no copies, but a backward the state in its own call."""
        return (mark for mark in self.renewed if is_frozen(self.objects[mark]))

    def others(self, specs: Iterable[Spec]) -> Iterator[Any]:
        """The dataclasses in the contexts of inputs which a backward that is traced later may not know as they are then."""
        places = (row for number, spec in enumerate(specs) for row in dataclasses_in(spec, number))
        return (value for mark, value in places if mark not in self.renewed)

    def marked(self, spec: Spec) -> Spec:
        """The spec of a result, with marks in the place of what it has from an input."""
        if not isinstance(spec, WrapperSpec):
            return spec
        return replace(spec, inners=tuple(map(self.marked, spec.inners)), context=self._in_spec(spec.context))

    def _in_spec(self, context: Any) -> Any:
        mark = self._marks.get(id(context))
        return self._inside(context, self._in_spec) if mark is None or _left_to_specs(mark) else mark

    def _inside(self, context: Any, mark: Callable[[Any], Any]) -> Any:
        if type(context) is NotedDict:  # the result keeps what it holds
            context.read()
        found = map_parts(plain(context), mark)
        if found is context:
            note_inside(context)
        return found

    def lends(self, value: Any) -> bool:
        """Is it an object that an input has, and that a result is then handed on as a whole?"""
        return id(value) in self._marks

    def mark_of(self, value: Any) -> Any:
        """The mark of an object; anything else is itself."""
        return self._marks.get(id(value), value)

    def result(self, value: Any) -> Any:
        """The same, also of those in a tuple that is a leaf of the results: what a region assigns is one."""
        return self.in_place_of(value) if isinstance(value, tuple) else self.mark_of(value)

    def in_place_of(self, value: Any) -> Any:
        """The same for an attribute of a result."""
        mark = self._marks.get(id(value))
        return self._inside(value, self.in_place_of) if mark is None else mark

    def take_on(self, call: Mapping[Any, Any]) -> dict[Lent, Any]:
        """Let the copies of the trace hold what the objects of a call hold now, which is returned by their marks."""
        found = {mark: call[mark] for mark in self.outermost if mark in call}
        for mark, value in found.items():
            _take_on(self.objects[mark], value)
        return found


def _left_to_specs(mark: Lent) -> bool:
    """Does a call make a copy for the context of a result anyway, and is that the only place where it stands?"""
    return isinstance(mark, Made) and mark.alone and mark.is_copied


def dataclasses_in(spec: Spec, number: int, names: tuple[str, ...] = ()) -> Iterator[tuple[Lent, Any]]:
    """The dataclasses with generated equality in the contexts of an input, with the marks of their places."""
    if not isinstance(spec, WrapperSpec):
        return
    for name, inner in zip(spec.names, spec.inners, strict=True):
        yield from dataclasses_in(inner, number, (*names, name))
    rows: list[tuple[tuple[Part, ...], Any]] = [((), spec.context)]
    while rows:
        steps, value = rows.pop()
        if has_generated_equality(value):
            yield Lent("input", number, names, steps, None), value
        rows += (((*steps, part), v) for part, v in parts_of(value))


def marks_in(specs: Iterable[Spec | None], attributes: Iterable[Any] = ()) -> tuple[Lent, ...]:
    """The marks in specs and in attributes of results, each once."""
    found: dict[Lent, None] = {}

    def note(context: Any) -> Any:
        if isinstance(context, Lent):
            found[context] = None
            return context
        return map_parts(context, note)

    def look(spec: Spec | None) -> None:
        if isinstance(spec, WrapperSpec):
            note(spec.context)
            for inner in spec.inners:
                look(inner)

    for spec in specs:
        look(spec)
    for value in attributes:
        note(value)
    return tuple(found)


def _known(value: Any) -> list[tuple[tuple[str, ...], Tensor]]:
    """`_wrappers`; none where a class computes its context of numbers that a trace does not know."""
    try:
        return list(_wrappers(value))
    except ProtocolError:
        return []


def _wrappers(value: Any) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """A wrapper and those inside of it, with the names that lead there, as far as their contexts may hold objects."""
    if not isinstance(value, Tensor) or not is_traceable(value):
        return
    for names, wrapper in (((), value), *wrappers_inside(value)):
        cls = type(wrapper)
        if not flattens_alike(cls) and _torch.context_shortcut(cls) is None and not is_atom(inner_values(wrapper)[2]):
            yield tuple(names), wrapper


def _built_again(wrapper: Tensor) -> Any:
    """The context of another wrapper that is made of the parts of this one: with copies, unless the class keeps its objects
    elsewhere. None where none can be made."""
    names, values, context = inner_values(wrapper)
    try:
        inner = dict(zip(names, values, strict=True))
        made = unflatten_of(type(wrapper))(inner, snapshot(context), wrapper.shape, tuple(wrapper.stride()))
        return inner_values(made)[2]
    except Exception:  # an author's code may raise anything
        return None


def _component(context: Any, steps: Sequence[Part]) -> Any:
    try:
        return value_at(context, tuple(steps))
    except (AttributeError, LookupError, TypeError):
        return None


def _held(a: Any, b: Any, steps: tuple[Part, ...], inside: bool) -> Iterator[tuple[tuple[Part, ...], Any, bool]]:
    """The objects of a context that another look at it finds as well: where, what, and whether inside of another one."""
    own = a is b and _may_be_lent(a)
    if own and not has_sizes(a):
        yield steps, a, inside
    if type(a) is type(b):
        for (part, x), (_, y) in zip(parts_of(a), parts_of(b), strict=False):
            yield from _held(x, y, (*steps, part), inside or own)


def _may_be_lent(value: Any) -> bool:
    """Can it be changed in place, and may another one stand in its place in the next call?"""
    if is_copied(value) or is_buffer(value):
        return True
    other = is_atom(value) or isinstance(value, (tuple, frozenset, Tensor))
    return not other and is_looked_inside(value) and has_own_equality(type(value))


def _take_on(held: Any, value: Any) -> None:
    """Let a copy hold what an object holds. Parts of it that may be held elsewhere stay the same objects."""
    if held is value or type(plain(held)) is not type(value):
        return
    if type(held) is list:
        held[:] = [brought_to(held[k] if k < len(held) else None, v) for k, v in enumerate(value)]
    elif type(held) in ROWS:
        rows = {k: brought_to(dict.get(held, k), v) for k, v in value.items()}
        dict.clear(held)
        dict.update(held, rows)
    elif type(held) is set:
        held.clear()
        held.update(value)
    else:
        before, now = dict(attributes_inside(held)), dict(attributes_inside(value))
        for name in before.keys() - now.keys():
            object.__delattr__(held, name)
        for name, v in now.items():
            object.__setattr__(held, name, brought_to(before.get(name), v))


def brought_to(held: Any, value: Any) -> Any:
    """What holds as much as ``value``: the very container that was held, where it can be changed in place."""
    if type(plain(held)) is type(value) and is_copied(value):
        _take_on(held, value)
        return held
    return value
