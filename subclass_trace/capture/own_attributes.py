"""Python attributes of wrappers that no context tells: ``x.n = 2``, where the class's constructor sets ``n`` as well.

The traced wrapper was built by ``__tensor_unflatten__``, and has what that sets. So numbers and strings are taken over from
the wrapper of the call, before anything runs, and those that the trace reads become facts that the guards compare. What a
trace can neither take over nor compare (a tensor, an object) is withheld: the user's code is refused it, the class's own code
sees the attribute of a fresh wrapper. Nested wrappers too: ``x.inner.n`` has the name ``inner.n``.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import _torch
from ..errors import UnsupportedError
from ..subclass.arguments import attributes_inside
from ..subclass.context import same_context
from ..subclass.noting import Listener, Withheld, noting, noting_getattribute
from ..subclass.paths import Path
from ..subclass.protocol import is_traceable
from ..subclass.spec import Spec, WrapperSpec
from .context_reads import ContextReads
from .facts import SIMPLE
from .inputs import TracedInput, TracedInputs
from .user_code import code_of, is_user_code

Tensor = torch.Tensor


@dataclass(eq=False)
class _Own(Listener):
    """The attributes of one traced wrapper that are watched.

    Attributes:
        known: numbers and strings, as in the call; ``withheld``: name -> what a fresh wrapper has.
        tell: is told the name of one that is read, and its value.
    """

    wrapper: Tensor
    known: Mapping[str, Any]
    withheld: Mapping[str, Any]
    tell: Callable[[str, Any], None]
    stood: dict[str, Withheld] = field(default_factory=dict)

    def note(self, name: str) -> None:
        """An attribute is read: it is a fact, unless the region has assigned it."""
        if name in self.known and object.__getattribute__(self.wrapper, name) is self.known[name]:
            self.tell(name, self.known[name])


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


def _refuse_or(fresh: Any, cls: type, path: Path, code: Any) -> Any:
    if code is None or not is_user_code(code) or code in code_of(cls):
        return fresh
    raise UnsupportedError(
        f"the region reads an attribute that somebody has set on an input of class {cls.__qualname__}",
        path=path,
        expected="a number, a string or None, or a value of the flatten context",
        got="an object or a tensor that __tensor_unflatten__ does not set",
        fix="pass it as an argument of its own",
    )


@dataclass(eq=False)
class _Asked(Listener):
    """The names of the attributes that are read of one wrapper."""

    wrapper: Tensor
    names: set[str] = field(default_factory=set)

    def note(self, name: str) -> None:
        self.names.add(name)


def _read_by_flatten(real: Any) -> frozenset[str]:
    """The attributes that ``__tensor_flatten__`` reads: what the names and the context tell."""
    asked = _Asked(real)
    if not _is_watchable(type(real)):
        return frozenset()
    with noting([asked]):
        real.__tensor_flatten__()
    return frozenset(vars(real) if "__dict__" in asked.names else asked.names)


def _is_watchable(cls: type) -> bool:
    """Does every read of an attribute pass through `noting_getattribute`?"""
    own = (vars(k).get("__getattribute__") for k in cls.__mro__ if k not in Tensor.__mro__)
    return all(f is None or f is noting_getattribute for f in own)
