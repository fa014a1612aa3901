"""One run of a function with the Python state around it: sources in while it runs, side effects out.

`StateRun` is what the events of `entering` are told to. Tensors and numbers that the walk finds get stand-ins at once, which
the capture makes; what the function did is read off when it has returned; and `restore` leaves everything as it was.
"""

from __future__ import annotations

import contextlib
import operator
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from ..errors import NeedsEager, RuleError, SideEffectError, SubclassTraceError, UnsupportedError
from ..plan import SideEffect
from ..subclass.attributes import namespace_of
from ..subclass.protocol import is_traceable
from ..torch_api import warn_user
from .entering import Events, draws_by_numpy, is_users
from .guards import StateGuards
from .kinds import check_cache
from .side_effects import SYMBOLS, Recipes, Snapshot, side_effects
from .source import Call, Printed, Source
from .types import TYPE, exchange
from .values import MISSING, is_a, is_atom
from .walk import Functions, Walk


class StateRun:
    """See the module's docstring.

    Args:
        function: what runs, with the positional and keyword arguments of ``call``.
        make: makes stand-ins (`frontends.specialization`), once for each tensor:
            ``tensors(rows)``, ``number(source, value)`` (None: a constant).
        follows: some functions of this package read no Python state (``has_no_state``), and none is looked for.
        warns: what only writes (logging) happens while tracing, with a warning; else it is refused.
    """

    recipes: Any = None  # of what the run gave

    def __init__(self, function: Callable[..., Any], call: Call, make: Any, *, warns: bool) -> None:
        self.function, self.call, self.make, self.warns = function, call, make, warns
        self.follows = not getattr(function, "has_no_state", False)
        self.walk = Walk()
        self.snapshot = Snapshot(self.walk)
        self.refusal: SubclassTraceError | None = None
        self.events: Events | None = None
        self._exchanged: list[tuple[Any, str, Any]] = []  # globals, names and what stood there, see `types`
        self.printed: list[tuple[Printed, tuple[Any, ...]]] = []
        self._thread, self._stdout = threading.get_ident(), sys.stdout
        self._live = False
        self.stand_ins: dict[int, torch.Tensor] = {}  # id of a real tensor -> what stands for it
        self.symbols: dict[Source, Any] = {}
        self.reals: dict[int, tuple[Source, torch.Tensor]] = {}  # id of a stand-in -> where the real tensor is, and it
        self._seen_tensors = self._seen_numbers = 0

    # ------------------------------------------------------------------------------------------ events
    def enter(self, code: types.CodeType, space: dict[str, Any]) -> None:
        """Code runs for the first time; see `entering`."""
        try:
            self.walk.enter(code, space)
            self.stand_in()
            self._exchanged += exchange(code, space, (type, TYPE), (print, self.print))
            if {"sys", "modules"} <= set(code.co_names) and is_users(code.co_filename):
                raise SideEffectError(
                    "the region looks into sys.modules", path=_line(code, code.co_firstlineno), fix="import the module"
                )
            if is_users(code.co_filename) and draws_by_numpy(code, space):
                raise SideEffectError(
                    "the region draws from numpy.random",
                    path=_line(code, code.co_firstlineno),
                    fix="draw outside of it, and pass the number or the array",
                )
        except SubclassTraceError as error:
            raise self.refused(error) from None

    def world(self, name: str, frame: types.FrameType) -> None:
        """Code is about to ask or change what is outside of the region."""
        while frame.f_back is not None and not is_users(frame.f_code.co_filename):
            frame = frame.f_back
        where = _line(frame.f_code, frame.f_lineno)
        if self.warns and name in ("print", "logging"):
            warn_user(f"{where}: {name} happens once, while the region is traced")
            return
        # Dynamo leaves torch.manual_seed out of its graphs, but not what seeds one device.
        cls = NeedsEager if name.startswith(("torch.cuda", "torch.xpu", "torch.mps")) else SideEffectError
        raise self.refused(
            cls(
                f"the region calls {name}",
                path=where,
                expected="code that depends on its arguments and on Python state alone",
                fix="call it outside of the region, or hand over what it gives as an argument",
            )
        )

    def print(self, *values: Any, **options: Any) -> None:
        """Code prints texts and numbers, as each call shall."""
        if not self._live or threading.get_ident() != self._thread:
            return print(*values, **options)
        file = options.get("file")
        plain = all(is_atom(v) or is_a(v, SYMBOLS) or v is file for v in (*values, *options.values()))
        of_c = file is None or (id(file) in self.walk.known and type(file).__module__ == "_io")
        if not plain or not of_c or sys.stdout is not self._stdout:
            self.world("print with something else than texts and numbers, or to another place", sys._getframe(1))
        self.printed.append((Printed(options, "print"), values))

    @property
    def is_live(self) -> bool:
        """Is code of the user's running, above the recorder?"""
        return self._live

    def on(self) -> None:
        """Code of the user's runs from here."""
        self._live = True
        if self.events is not None:
            self.events.on()

    def off(self) -> None:
        """Code of torch's and of this package runs from here."""
        self._live = False
        if self.events is not None:
            self.events.off()

    def close(self) -> None:
        """The function has run."""
        self._live = False
        if self.events is not None:
            self.events.close()
        while self._exchanged:
            space, name, before = self._exchanged.pop()
            if before is MISSING:
                space.pop(name, None)
            else:
                space[name] = before

    def check_generator(self, generator: torch.Generator) -> None:
        """The region draws from this explicit generator.

        Raises:
            SideEffectError: it was not there before.
        """
        known: Any = (torch.default_generator, *self.walk.generators)
        if generator._cdata not in {g._cdata for g in known}:  # type: ignore[attr-defined]  # a call may wrap it in another object
            raise SideEffectError(
                "the region draws from a random generator that it makes: it would go on drawing from that one",
                fix="make it outside of the region and pass it",
            )

    def refused(self, error: SubclassTraceError) -> SubclassTraceError:
        """Remember a refusal, so that no ``except Exception`` of the user's can swallow it; a class's own is eager's, too."""
        if self.refusal is None and not isinstance(error, RuleError):
            self.refusal = error
        return error

    # ------------------------------------------------------------------------------------------ stand-ins
    def stand_in(self) -> None:
        """Put stand-ins where the walk has come since the last time."""
        walk, places = self.walk, list[Source]()
        while self._seen_tensors < len(walk.tensors):
            found = walk.tensors[self._seen_tensors :]
            self._seen_tensors = len(walk.tensors)
            self._stand_in_for(found)
            places += [source for source, _ in found]
        for source in walk.numbers[self._seen_numbers :]:
            if source not in self.symbols:
                symbol = self.make.number(source, source.read(self.call))
                if symbol is not None:
                    self.symbols[source] = symbol
            if source in self.symbols:
                places.append(source)
        self._seen_numbers = len(walk.numbers)
        self.snapshot.stand_in(places, self.replaced)
        self.snapshot.stand_in_keys(self.stand_ins)

    def _stand_in_for(self, found: Sequence[tuple[Source, torch.Tensor]]) -> None:
        first: dict[int, tuple[Source, torch.Tensor]] = {}
        for row in found:
            first.setdefault(id(row[1]), row)
        rows = [row for key, row in first.items() if key not in self.stand_ins]
        for (source, real), traced in zip(rows, self.make.tensors(rows), strict=True):
            self.stand_ins[id(real)] = traced
            self.reals[id(traced)] = source, real
            self._attributes(real, source, traced)

    def _attributes(self, real: torch.Tensor, source: Source, traced: torch.Tensor) -> None:
        """The stand-in of a tensor, and those of the wrappers inside of it, have their plain attributes."""
        held = self.walk.attributes_of(real, source, traced)
        if held is None:
            return
        for name in held.guarded or ():
            held.live[name] = held.before[name]
        for name, inner in list(held.live.items()):
            if is_traceable(inner) and type(held.thing.get(name)) is type(inner):
                self._attributes(held.thing[name], Source(held, name), inner)

    def replaced(self, value: Any, source: Source) -> Any:
        """The value that stands at a source while the function is traced."""
        if source in self.symbols:
            return self.symbols[source]
        if is_a(value, torch.Tensor):
            return self.stand_ins.get(id(value), value)
        if is_a(value, tuple) and type(value) is not torch.Size:
            rows = enumerate(value)
            items = [self.replaced(v, Source(source.holder, source.key, (*source.items, k))) for k, v in rows]
            if all(map(operator.is_, items, value)):
                return value
            return tuple(items) if type(value) is tuple else tuple.__new__(type(value), items)
        return value

    # ------------------------------------------------------------------------------------------ the run
    def start(self) -> Call:
        """Walk the function and its arguments; the arguments with stand-ins."""
        self.walk.start(self.function if self.follows else _nothing, self.call)
        self.stand_in()
        at = self.walk.arguments
        args = tuple(self.replaced(v, Source(at, k)) for k, v in enumerate(self.call[0]))
        return args, {k: self.replaced(v, Source(at, k)) for k, v in self.call[1].items()}

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recipes:
        """Run the function, and read off what it gave.

        Raises:
            SubclassTraceError: the first refusal, whatever code of the user's made of it.
            Exception: the function's own.
        """
        if self.follows:
            self.events = Events(self)
        try:
            self.on()
            result = self.function(*args, **kwargs)
        finally:
            self.close()
            if self.refusal is not None:
                raise self.refusal
        for row in self.walk.caches:
            check_cache(*row)
        recipes = self.recipes = Recipes(self.walk, self.reals)
        recipes.result = recipes(result, "result")
        rows = [(at, tuple(recipes(v, "print") for v in values)) for at, values in self.printed]
        printed = [SideEffect(at, "extend", (), values) for at, values in rows]
        recipes.effects = (*side_effects(self.snapshot.changes(), recipes), *printed)
        changed = {id(e.holder.thing if e.holder.owner is None else e.holder.owner) for e in recipes.effects}
        for source, real in self.reals.values() if changed else ():
            if any(id(value) in changed for value in (namespace_of(real) or {}).values()):
                raise UnsupportedError(
                    "the region changes an object that an input has in its context, of which the trace has a copy",
                    path=source.path,
                    fix="let the wrapper have a copy of its own",
                )
        return recipes

    def restore(self) -> None:
        """All sources hold what they held before."""
        self.close()
        self.snapshot.restore()

    def forget(self) -> None:
        """What only the trace needed: nothing leads to the tensors of the call, or to the traced ones."""
        self.walk.forget()
        for holder in self.walk.holders.values():
            holder.live, holder.before = None, {}
            if not holder.fixed:  # each call finds its own
                holder.thing = holder.owner = None
        self.walk.arguments.thing, self.call, self.make = None, ((), {}), None
        self.snapshot.base.clear()
        self.recipes = None
        self.stand_ins, self.reals, self.symbols = {}, {}, dict.fromkeys(self.symbols)


class BackwardState(StateRun):
    """The Python state around the trace of a backward, whose code (hooks, custom functions, classes) runs again.

    What it reads is guarded by each use of the backward; what it changes is refused. Tensors that it comes upon are those of
    the trace, which it knows by identity.

    Attributes:
        guards: None where no code of the user's ran.
    """

    def __init__(self, functions: Functions, forward: StateRun | None) -> None:
        super().__init__(_nothing, ((), {}), None, warns=False)
        self.walk = Walk(functions)
        self.snapshot = Snapshot(self.walk)
        self.forward = forward
        self.guards: StateGuards | None = None

    def stand_in(self) -> None:
        """There are none."""

    def meets(self, *values: Any) -> None:
        """A hook of the region's is about to run: no name in its code leads to its ``self``, and to what it is given."""
        for value in values:
            self.walk.value(value, getattr(values[0], "__qualname__", "a hook"))
        self.walk.drain()

    def meets_kept(self, nodes: Iterable[Any]) -> None:
        """The objects that custom functions keep (``ctx.config = config``): no name in the code of a backward leads there."""
        for node in nodes:
            for value in (namespace_of(node) or {}).values():
                if not is_a(value, (torch.Tensor, *SYMBOLS)):
                    with contextlib.suppress(SideEffectError):  # what it does with such an object is not known to us
                        self.walk.value(value, f"{node.name()}.{type(value).__name__}")
                        self.walk.drain()

    def finish(self) -> None:
        """Read off what the code did.

        Raises:
            SideEffectError: it changed Python state: each backward would have to, and the graph does not.
        """
        changed = self.snapshot.changes()
        self.restore()
        if self.printed:
            raise _changed_in_backward("print")
        for holder, (now, was) in changed.items():
            other = [key for key in now.keys() | was.keys() if now.get(key) is not was.get(key)]
            raise _changed_in_backward(holder.text(other[0]) if other else holder.path)
        if self.forward is not None and (others := self.forward.snapshot.restore()):
            raise _changed_in_backward(others[0])  # an object that no name of the backward's code leads to
        if self.walk.holders:
            self.guards = StateGuards(self.walk, ((), {}), (), (), by_identity=True)
        self.forget()


def _nothing() -> None:
    pass


@contextlib.contextmanager
def backward_state(recorder: Any) -> Iterator[BackwardState]:
    """Inside, a backward is traced by ``recorder``.

    Raises:
        SubclassTraceError: a refusal, or a change of Python state.
    """
    state, before = BackwardState(recorder.functions, recorder.forward_state), recorder.state
    if not recorder.follows_state:
        yield state
        return
    recorder.state = state
    state.events = Events(state)
    try:
        state.on()
        yield state
    except BaseException as error:
        state.restore()
        raise (error if state.refusal is None else state.refusal) from None
    finally:
        recorder.state = before
        state.close()
    if state.refusal is not None:
        state.restore()
        raise state.refusal
    state.finish()


def _changed_in_backward(path: str) -> SideEffectError:
    return SideEffectError(
        "a hook or a custom backward changes Python state, which each backward would have to do again",
        path=path,
        expected="backwards that compute gradients",
        fix="do it outside of the backward",
    )


def _line(code: types.CodeType, line: int) -> str:
    return f"{code.co_filename}:{line} ({code.co_name})"
