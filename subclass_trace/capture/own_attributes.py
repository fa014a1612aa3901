"""Python attributes that somebody has set on wrappers, beside what their contexts say (``x.n = 3``).

A traced wrapper is built anew, so it has what ``__tensor_unflatten__`` sets. Where that is a number, a string or None, or the
wrapper of the call has one there, it is taken over from that wrapper, and guarded. Nested wrappers too: ``x.inner.n`` has the
name ``inner.n``.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import _torch
<<<<<<< HEAD
from ..subclass.arguments import ObjectIdentity, attributes_inside
from ..subclass.context import same_context, snapshot
from ..subclass.kept import kept
from ..subclass.paths import owner_of
=======
from ..errors import UnsupportedError
from ..subclass.arguments import attributes_inside
from ..subclass.context import same_context
from ..subclass.noting import Listener, Withheld, noting, noting_getattribute
from ..subclass.paths import Path
>>>>>>> cut-autograd
from ..subclass.protocol import is_traceable
from ..subclass.spec import Spec, WrapperSpec
from .facts import SIMPLE
from .inputs import TracedInputs

Facts = dict[tuple[int, str], Any]


def own_attributes(inputs: TracedInputs, guarded: bool = True) -> Facts:
    """Take over what the wrappers of the call hold: (number of the input, dotted name) -> value, for the guards.

    Args:
        guarded: another tracer guards attributes where False, and has its own.
    """
    found: Facts = {}
    for number, row in enumerate(inputs.inputs):
        real = row.real()
        if real is not None and guarded:
            _take_over(number, row.traced, real, row.spec, (), found)
        for name, value in row.facts.items():  # a trace that is made again
            owner, last = owner_of(row.traced, name[1:]) if name.startswith(".") else (None, "")
            if owner is not None and hasattr(owner, last) and type(value) in SIMPLE:
                object.__setattr__(owner, last, value)
    return found


<<<<<<< HEAD
def _known(value: Any) -> Any:
    return ObjectIdentity(value) if isinstance(value, torch.Tensor) else kept(value)
=======
class OwnAttributes:
    """Those of all inputs of one capture. Making it takes over what the wrappers of the call hold."""

    def __init__(self, inputs: TracedInputs, reads: ContextReads | None) -> None:
        """``reads``: None where another tracer guards attributes."""
        self._rows: list[_Own] = []
        self.facts: dict[tuple[int, str], Any] = {}
        for number, row in enumerate(inputs.inputs):
            real = row.real()
            if real is not None and reads is not None:
                self._look(number, row, row.traced, real, row.spec, (), reads)

    def _look(
        self,
        number: int,
        row: TracedInput,
        traced: Any,
        real: Any,
        spec: Spec,
        names: tuple[str, ...],
        reads: ContextReads,
    ) -> None:
        if not isinstance(spec, WrapperSpec) or type(traced) is not type(real) or not is_traceable(real):
            return
        mine, theirs = dict(attributes_inside(traced)), dict(attributes_inside(real))
        known: dict[str, Any] = {}
        withheld: dict[str, Any] = {}
        both = sorted(mine.keys() & theirs.keys() - {*spec.names})
        told = reads.copied(traced) | (
            _read_by_flatten(real) if any(type(theirs[n]) in SIMPLE for n in both) else set()
        )
        for name in both:
            fresh, value = mine[name], theirs[name]
            if isinstance(fresh, (Tensor, *_torch.SYM_TYPES)):
                continue
            if type(value) in SIMPLE:
                same = same_context(fresh, value)
                if not same or name not in told:
                    known[name] = fresh if same else value
                if not same:
                    object.__setattr__(traced, name, value)
            elif type(fresh) in SIMPLE:
                withheld[name] = fresh
        if known or withheld:
            tell = functools.partial(self._tell, number, names)
            own = _Own(traced, known, withheld, tell)
            self._rows.append(own)
            self._withhold(own, row.path, names)
            if not _is_watchable(type(own.wrapper)):
                for name, value in known.items():
                    tell(name, value)
        for name, inner in zip(spec.names, spec.inners, strict=True):
            self._look(number, row, getattr(traced, name), getattr(real, name), inner, (*names, name), reads)

    def _tell(self, number: int, names: Sequence[str], name: str, value: Any) -> None:
        self.facts[number, "." + ".".join((*names, name))] = value

    def _withhold(self, own: _Own, path: Path, names: Sequence[str]) -> None:
        if not _is_watchable(type(own.wrapper)):
            return
        for part in names:
            path = path.attr(part)
        for name, fresh in own.withheld.items():
            read = functools.partial(_refuse_or, fresh, type(own.wrapper), path.attr(name))
            own.stood[name] = Withheld(read)
            object.__setattr__(own.wrapper, name, own.stood[name])

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """The user function runs inside."""
        with noting([row for row in self._rows if _is_watchable(type(row.wrapper))]):
            yield

    def handed_out(self, results: Iterable[Any], inputs: TracedInputs) -> None:
        """Wrappers inside of inputs that are results, or stand in one, take their attributes along: those are read."""
        rows = {id(row.wrapper): row for row in self._rows}
        inputs_themselves = {id(row.traced) for row in inputs.inputs}
        todo = [o for o in results if rows and is_traceable(o) and id(o) not in inputs_themselves]
        while todo:
            wrapper = todo.pop()
            if id(wrapper) in rows:
                for name in rows[id(wrapper)].known:
                    rows[id(wrapper)].note(name)
            todo += [v for n in wrapper.__tensor_flatten__()[0] if is_traceable(v := getattr(wrapper, n))]

    def settle(self) -> None:
        """What was withheld, and not assigned, is that of a fresh wrapper again. Call it once changes were read off."""
        for row in self._rows:
            for name, stands in row.stood.items():
                if dict(attributes_inside(row.wrapper)).get(name) is stands:
                    object.__setattr__(row.wrapper, name, row.withheld[name])
>>>>>>> cut-autograd


def _take_over(number: int, traced: Any, real: Any, spec: Spec, names: tuple[str, ...], found: Facts) -> None:
    if not isinstance(spec, WrapperSpec) or type(traced) is not type(real) or not is_traceable(real):
        return
    mine, theirs = dict(attributes_inside(traced)), dict(attributes_inside(real))
    code = getattr(getattr(type(real), "__tensor_flatten__", None), "__code__", None)
    told = frozenset() if code is None else frozenset(code.co_names)  # the context tells them, as far as it matters
    for name in sorted(mine.keys() & theirs.keys() - {*spec.names}):
        fresh, value = mine[name], theirs[name]
        if isinstance(fresh, (torch.Tensor, *_torch.SYM_TYPES)) or not {type(fresh), type(value)}.intersection(SIMPLE):
            continue
        same = same_context(fresh, value)
        if not same:
            object.__setattr__(traced, name, value if isinstance(value, torch.Tensor) else snapshot(value))
        if not same or name not in told:
            found[number, "." + ".".join((*names, name))] = _known(value)
    for name, inner in zip(spec.names, spec.inners, strict=True):
        _take_over(number, getattr(traced, name), getattr(real, name), inner, (*names, name), found)
