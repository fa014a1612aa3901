"""One compiled instance of a region, and how it is made: run the function once on traced values, then partition and compile.

In: a function, a call, what is known of earlier calls. Out: a `Specialization`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from .. import torch_api
from ..backends import resolve_backend
from ..capture.capture import Captured, Ran, capture
from ..capture.inputs import Argument, Inputs
from ..capture.session import Session
from ..errors import UnsupportedError
from ..options import Options
from ..partition.interface import resolve_partitioner
from ..plan import Plan, SavedValue
from ..runtime.entry_code import Entry, EntryEmitter
from ..runtime.finish import Program
from ..runtime.guards import Ambient, Guards, failed_guard
from ..runtime.planning import FlatArguments
from ..runtime.sizes import hint_of
from ..runtime.specialize import Graphs, alias_guard, build_program
from ..state.code_names import asks_for_number_types
from ..state.guard_code import Reader
from ..state.guards import StateGuards
from ..state.run import StateRun
from ..state.side_effects import Recipes
from ..state.source import Call, Source
from ..subclass.context import parts_of
from ..subclass.paths import Path
from ..subclass.protocol import is_traceable
from ..subclass.template import Examples
from ..subclass.visit import inner_values
from .dynamic import SIZES, SizeHistory, choose, may_be_dynamic

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class Specialization:
    """One compiled instance of a region with the guards under which it is right. Immutable.

    Attributes:
        reason: why it was made: which guard of each earlier specialization failed.
        plan, guards: what the run time does, and when it may.
        graphs: the joint (if kept), forward and backward graph modules.
    """

    reason: str
    plan: Plan
    guards: Guards
    program: Program
    graphs: Graphs
    entry: Entry

    @property
    def source(self) -> str:
        """The generated entry."""
        return self.entry.source

    @property
    def saved(self) -> tuple[SavedValue, ...]:
        """What is saved for the backward."""
        return self.plan.gradients.saved

    def failed(self, args: Any, kwargs: Any, ambient: Ambient | None = None) -> str | None:
        """Why it does not serve a call; None if it does."""
        return failed_guard(self.plan, self.guards, (args, kwargs), ambient or Ambient.now())

    def run(self, args: Any, kwargs: Any) -> Any:
        """The result of a call, or `MISS`."""
        return self.entry.call(args, kwargs)

    def report(self) -> str:
        """A readable table: inputs and their leaves, outputs and how they are rewrapped, saved activations."""
        from ..report.text import describe

        return describe(self.plan)


class _Maker:
    """Makes the inputs of one trace as the walk over Python state finds them: see `state.run.StandInMaker`.

    Attributes:
        flat: the distinct tensors and numbers, in the order in which they were found; ``sources``: where.
        positions: flat position -> number of the input; None for a number.
        handed: what stands for each.
    """

    def __init__(self, session: Session, history: SizeHistory, options: Options, *, symbols: bool) -> None:
        self.session, self.history, self.options = session, history, options
        self.numbers, self.may_have_symbols = symbols and options.automatic_dynamic, symbols
        self.inputs: Inputs | None = None
        self.flat: list[Any] = []
        self.sources: list[Source] = []
        self.positions: list[int | None] = []
        self.handed: list[Any] = []
        self.floats = options.backend == "eager" and options.fw_compiler is options.bw_compiler is None
        self._number: dict[int, int] = {}  # id of an input -> its number

    def tensors(self, found: Sequence[tuple[Source, Tensor]]) -> list[Tensor]:
        """The traced tensors for these."""
        assert self.inputs is not None
        with torch_api.no_overrides(), torch_api.no_modes():  # real tensors: nothing here is part of the trace
            first = {id(real): k for k, (_, real) in reversed([*enumerate(found)]) if id(real) not in self._number}
            new = []
            for k in sorted(first.values()):
                source, real = found[k]
                static = source.holder.fixed or isinstance(real, torch.nn.Parameter)
                new.append(Argument(real, Path.of(source.path), len(self.flat) + k, static))
            if self.options.automatic_dynamic:
                self.history.add(new)
            symbols = self.session.dynamic or self.may_have_symbols
            dynamic = choose(new, self.history, self.options.dynamic is True, symbols)
            if dynamic.any() and not self.session.dynamic:
                raise _HasSymbols
        for argument, traced in zip(new, self.inputs.add(new, dynamic), strict=True):
            number = self.inputs.number_of(traced)
            assert number is not None
            self._number[id(argument.value)] = number
        numbers = [self._number[id(real)] for _, real in found]
        for (source, real), number in zip(found, numbers, strict=True):
            self._add(source, real, number)
        made = [self.inputs.rows[n].traced for n in numbers]
        self.handed += made
        return made

    def class_of(self, traced: Tensor) -> type:
        """The class of the tensor that a dense traced one stands for."""
        return torch.nn.Parameter if isinstance(traced, torch.nn.Parameter) else Tensor

    def _add(self, source: Source, value: Any, number: int | None) -> None:
        self.flat.append(value)
        self.sources.append(source)
        self.positions.append(number)

    def number(self, source: Source, value: Any) -> Any:
        """The symbol of a number that changes between calls."""
        if not self.numbers or not self.history.is_symbol(source.path, value, floats=self.floats):
            return None
        assert self.inputs is not None
        symbol = self.session.number(len(self.flat), value, source.path)
        self.inputs.add_number(symbol)
        self._add(source, value, None)
        self.handed.append(symbol)
        return symbol


def _check_contexts(outcome: Recipes, flat: Sequence[Any], traced: Sequence[Any]) -> None:
    """An object in a context is compared, and copied for the trace: that code has another name for it is not kept.

    Raises:
        UnsupportedError: the region makes an object that is in the context of a result and elsewhere; or such an object of
            an input is a result; or it changes one, by another name, that is in the context of an input.
    """
    if outcome.objects:
        for value in _in_contexts([*outcome.outputs, *traced]):
            if id(value) in outcome.objects:
                raise UnsupportedError(
                    "an object in the context of a wrapper is in another result or place too",
                    path="result",
                    expected="objects of its own in each",
                    got=f"a {type(value).__qualname__}",
                    fix="make a copy for one of them",
                )
    holders = [e.holder for e in outcome.effects]
    changed = {id(thing) for h in holders for thing in (h.thing, h.owner) if thing is not None}
    if holders:
        with torch_api.no_overrides(), torch_api.no_modes():
            for value in _in_contexts(flat):
                if id(value) in changed:
                    raise UnsupportedError(
                        "the region changes an object that is in the context of an input",
                        path=holders[0].path,
                        expected="contexts as they were before the call",
                        got=f"a {type(value).__qualname__}",
                        fix="let the wrapper have a copy of its own",
                    )


def _in_contexts(values: Sequence[Any]) -> Iterator[Any]:
    """What is in the contexts of wrappers."""

    def inside(value: Any) -> Iterator[Any]:
        yield value
        for part in parts_of(value):
            yield from inside(part)

    for value in values:
        if isinstance(value, Tensor) and is_traceable(value):
            yield from inside(inner_values(value)[2])


class _HasSymbols(Exception):
    """Sizes of this call are symbols: the trace starts again, in a session that has some."""


@dataclass(frozen=True, eq=False)
class Traced:
    """A captured region with the Python state around it."""

    captured: Captured
    flat: FlatArguments
    values: list[Any]  # the flat arguments of the call
    outcome: Recipes
    maker: _Maker
    state: StateRun

    def guards(self, ambient: Ambient) -> Guards:
        """The guards, made of the state as it was before the trace."""
        maker, walk = self.maker, self.state.walk
        numbers = {s for s, n in zip(maker.sources, maker.positions, strict=True) if n is None}
        state = StateGuards(walk, self.state.call, maker.sources, numbers, self.outcome.entries, keys=self.outcome.keys)
        inputs = [_input_of(row, self.values) for row in self.captured.inputs.rows]
        session = self.captured.session
        ambient = replace(
            ambient,
            dtensor=session.dtensor_modes(),
            attention=ambient.attention if session.meets_attention() else None,
        )
        return Guards(ambient, Reader(state), alias_guard(self.captured, inputs))


def _input_of(row: Any, values: Sequence[Any]) -> Tensor:
    value: Any = values[row.position]
    if row.gradient_of is not None:
        return value.grad  # type: ignore[no-any-return]
    return value  # type: ignore[no-any-return]


def trace_call(
    function: Callable[..., Any],
    call: Call,
    options: Options,
    history: SizeHistory,
    table: dict[Any, Any],
    *,
    symbols: bool,
    then: Callable[[Traced], Any],
) -> Any:
    """Trace one call, and hand it to ``then``; Python state is as it was before, whatever happens.

    Args:
        symbols: may sizes and numbers be symbols?
        table: of decompositions.

    Raises:
        SubclassTraceError: a refusal.
        Exception: the function's own.
    """
    everyone = [t for t in torch_api.pytree.tree_leaves(call) if isinstance(t, Tensor)]
    dynamic = symbols and may_be_dynamic(everyone, history, options.dynamic is True)
    while True:
        session = Session(dynamic=dynamic, decompositions=table)
        maker = _Maker(session, history, options, symbols=symbols)
        state = StateRun(function, call, maker, warns=options.frontend == "trace")
        session.recorder.state, session.recorder.follows_state = state, state.follows
        outcome: list[Recipes] = []

        def run(inputs: Inputs, maker: _Maker = maker, state: StateRun = state, outcome: Any = outcome) -> Ran:
            maker.inputs = inputs
            args, kwargs = state.start()
            outcome.append(state.run(args, kwargs))
            _check_contexts(outcome[0], maker.flat, maker.handed)
            return Ran(outcome[0].outputs, maker.handed)

        try:
            captured = capture(run, session)
        except _HasSymbols:
            dynamic = True
            continue
        finally:
            state.restore()
            session.recorder.state = None
        session.recorder.functions, session.recorder.forward_state = state.walk.by_code, state
        flat = FlatArguments(tuple(maker.positions), outcome[0].result, outcome[0].effects)
        return then(Traced(captured, flat, maker.flat, outcome[0], maker, state))


def compile_call(
    function: Callable[..., Any],
    call: Call,
    ambient: Ambient,
    options: Options,
    history: SizeHistory,
    reason: str,
    *,
    keep_joint: bool = False,
) -> Specialization:
    """The specialization for a call: with symbols for what differs between calls, or as it is where that fails.

    Raises:
        SubclassTraceError: a refusal.
        Exception: the function's own.
    """
    backend = resolve_backend(options.backend, fw_compiler=options.fw_compiler, bw_compiler=options.bw_compiler)
    partitioner = resolve_partitioner(options.partitioner, options.activation_memory_budget)
    table = options.table(backend)

    def finish(traced: Traced) -> Specialization:
        captured = traced.captured
        program, graphs = build_program(
            captured,
            traced.flat,
            backend,
            partitioner,
            keep_joint=keep_joint,
        )
        captured.session.no_branch_on_floats()
        guards = traced.guards(ambient)
        examples = Examples(captured.session.mode, hint_of)
        with torch.no_grad():
            entry = EntryEmitter(program, guards, traced.values, examples).emit()
        if any(map(asks_for_number_types, traced.state.walk.entered)):
            history.fix_all(history.varying_numbers, "code that asks whether type(n) is int")
        traced.state.forget()
        captured.session.recorder.forward_state = None
        traced.values.clear()  # cycles may keep it for a while
        return Specialization(reason, program.plan, guards, program, graphs, entry)

    def attempt(symbols: bool) -> Specialization:
        made: Specialization = trace_call(function, call, options, history, table, symbols=symbols, then=finish)
        return made

    try:
        return attempt(True)
    except Exception as error:
        if not history.has_symbols:
            raise
        why = " ".join(str(error).partition("\n")[0].split())[:200] or type(error).__name__
    made = attempt(False)  # what the function itself raises comes again
    history.fix_all([*history.varying_numbers, SIZES], f"what only numbers serve ({why})")
    return made
