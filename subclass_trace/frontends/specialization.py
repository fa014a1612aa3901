"""One compiled instance of a region, and how it is made: run the function once on traced values,
then partition and compile.

In: a function, a call, what is known of earlier calls. Out: a `Specialization`.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch

from .. import policy, verify
from ..backends.eager import compile_eager
from ..capture.capture import Capture, Captured, Ran
from ..capture.inputs import Argument, Inputs
from ..capture.session import Session
from ..capture.tape import Tape
from ..data.describe import Description, describe, read, trace_of
from ..data.programs import program_of
from ..errors import (
    DescriptionError,
    OptionError,
    Reason,
    SubclassTraceError,
    TangentError,
    Unlike,
)
from ..options import Options
from ..partition.interface import resolve_partitioner
from ..passes import PassRecord, passes_of
from ..plan import Plan, SavedValue
from ..runtime.bind import bind, unlike, with_circumstances
from ..runtime.guards import Ambient
from ..runtime.program import Program
from ..runtime.source import Source as Code
from ..runtime.specialize import Graphs, build_program
from ..stages import stage
from ..state.guards import StateGuards, changed_since
from ..state.place import Call, Place, above
from ..state.run import StateRun
from ..subclass.paths import Path
from ..torch_api.dynamo import check_marks
from ..torch_api.modes import autocast_as, no_modes, no_overrides
from ..torch_api.numbers import math_of_symbols
from .dynamic import SizeHistory, choose
from .routes import Route, route_of

Tensor = torch.Tensor
#: the positional and keyword arguments of a call
Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, eq=False, repr=False)
class Specialization:
    """One compiled instance of a region with the guards under which it is right. Immutable.

    Attributes:
        misses: why each earlier specialization did not serve the call.
        ambient, state: the state of the thread, and of Python, in which it may.
        graphs: the joint (if kept), forward and backward graph modules.
        run: the generated entry: (args, kwargs) -> the result of a call, or `MISS`; ``written``:
            its source.
        failed: why it does not serve a call; None if it does.
        seconds: stage -> how long it took; ``passes``: what each pass did to the first graph.
        inlined: functions of ``torch.compile`` that are part of it -> their back ends, which do not
            run.
    """

    misses: tuple[Reason, ...]
    options: Options
    ambient: Ambient
    state: StateGuards
    program: Program
    graphs: Graphs
    run: Callable[[tuple[Any, ...], dict[str, Any]], Any]
    written: Code
    failed: Callable[[tuple[Any, ...], dict[str, Any]], Reason | None]
    seconds: Mapping[str, float]
    passes: tuple[PassRecord, ...] = ()
    inlined: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return (
            f"<Specialization: {len(self.guards)} guards, {len(self.saved)} saved values; "
            f"{self.reason}>"
        )

    @property
    def reason(self) -> str:
        """Why it was made: which guard of each earlier specialization failed."""
        return "; ".join(f"[{k}] {why}" for k, why in enumerate(self.misses)) or "first call"

    @property
    def plan(self) -> Plan:
        """What the run time does."""
        return self.program.plan

    @property
    def saved(self) -> tuple[SavedValue, ...]:
        """What is saved for the backward."""
        return self.plan.gradients.saved

    @property
    def source(self) -> str:
        """The source of the entry."""
        return self.written.text()

    @property
    def guards(self) -> tuple[str, ...]:
        """What it asks of a call, as code."""
        return self.written.guards

    def report(self) -> str:
        """A readable table: inputs and their leaves, outputs and how they are rewrapped, saved
        activations."""
        from ..report.text import describe

        return describe(self.plan)

    def describe(self, *args: Any, **kwargs: Any) -> Description:
        """What it is as data, but for its compiled graphs; `from_description` binds that in this
        process or another.

        Args:
            args, kwargs: of a call that it serves, where the region finds things among them by
                identity.
        """
        roots = Call(args, kwargs, self.state.function)
        options = self.options.of_a_trace()
        return describe(self.ambient, self.state, self.program, self.graphs, options, roots)

    @property
    def not_portable(self) -> tuple[str, ...]:
        """What of it can be neither written as data nor reached by a place, with its path; none: it
        is portable."""
        try:
            return tuple(map(str, self.describe().gaps))
        except Exception as error:  # reading a place runs code of C on whatever stands there by now
            return (f"it cannot be described: {type(error).__name__}: {error}",)

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """A page that needs nothing else: graphs, wrappers, what is saved, guards, seconds.
        ``path``: written there, too."""
        from ..report.page import page

        return page("specialization", [self], path)


class _Maker:
    """Makes the inputs of one trace as Python state is read: see `state.run.StateRun`.

    Attributes:
        flat: the distinct tensors and numbers, in the order in which they were found; ``places``:
            where.
        handed: what stands for each; ``roots``: of the call.
        inputs: of the capture, which sets it.
    """

    inputs: Inputs

    def __init__(
        self,
        session: Session,
        history: SizeHistory,
        options: Options,
        roots: Call,
        *,
        symbols: bool,
    ) -> None:
        self.session, self.history, self.options, self.roots = session, history, options, roots
        self.numbers, self.may_have_symbols = symbols and options.dynamic is not False, symbols
        self.flat: list[Any] = []
        self.places: list[Place] = []
        self.handed: list[Any] = []
        self._texts: collections.Counter[str] = collections.Counter()
        self.floats = (
            options.backend == "eager" and options.fw_compiler is options.bw_compiler is None
        )

    def tensors(self, found: Sequence[tuple[Place, Tensor]]) -> list[Tensor]:
        """The traced tensors for these."""
        # real tensors: nothing here is part of the trace
        with no_overrides(), no_modes():
            new = []
            for k, (place, real) in enumerate(found, len(self.flat)):
                new.append(Argument(real, self._path(place), k, place, self._kind(place, real)))
            if self.options.dynamic is not False:
                self.history.add(new)
            dynamic = choose(new, self.history, self.options.dynamic is True, self.may_have_symbols)
            if dynamic.any() and not self.session.dynamic:
                raise _HasSymbols
        made = self.inputs.add(new, dynamic)
        for (place, real), traced in zip(found, made, strict=True):
            self._add(place, real, traced)
        return made

    def _kind(self, place: Place, real: Tensor) -> str:
        """See `plan.descriptors.Input`."""
        if isinstance(real, torch.nn.Parameter):
            return "parameter"
        if place.moves:
            return "argument"
        steps = [at for at in above(place) if at.parent is not None]
        if len(steps) > 1 and steps[1].kind == "attr" and steps[1].key == "_buffers":
            return "buffer"
        of = (
            at.parent.read(self.roots)
            for at in steps
            if at.parent is not None and type(at.key) is str and at.key == "state"
        )
        return (
            "optimizer state" if any(isinstance(o, torch.optim.Optimizer) for o in of) else "state"
        )

    def _path(self, place: Place) -> Path:
        """A text of its own: two keys of a dict may have one, as Parameters have. Sizes are
        remembered by it."""
        text = str(place)
        self._texts[text] += 1
        return Path(text if self._texts[text] == 1 else f"{text} #{self._texts[text]}")

    def _add(self, place: Place, value: Any, traced: Any) -> None:
        self.flat.append(value)
        self.places.append(place)
        self.handed.append(traced)

    def number(self, place: Place, value: Any) -> Any:
        """The symbol of a number that changes between calls."""
        if not self.numbers or not self.history.has_symbols:
            return None
        path = str(place)
        if not self.history.is_symbol(path, value, floats=self.floats):
            return None
        symbol = self.session.number(len(self.flat), value, path)
        self.inputs.bind_sizes([symbol])
        self._add(place, value, symbol)
        return symbol


class _HasSymbols(Exception):
    """Sizes of this call are symbols: the trace starts again, in a session that has some."""


@stage("trace")
def traced_call(
    function: Callable[..., Any],
    call: Arguments,
    options: Options,
    history: SizeHistory,
    session: Session,
    symbols: bool,
) -> tuple[Captured, StateRun, _Maker]:
    """Trace one call; Python state is as it was before, whatever happens.

    Raises:
        _HasSymbols: the session has none.
        SubclassTraceError: a refusal.
        Exception: the function's own.
    """
    maker = _Maker(session, history, options, Call(*call, function), symbols=symbols)
    state = StateRun(function, call, maker, warns=options.frontend == "trace")
    state.waits = history.waits
    session.recorder.state, session.recorder.follows_state = state, state.follows

    def run(inputs: Inputs) -> Ran:
        maker.inputs = inputs
        args, kwargs = state.start()
        return Ran(state.run(args, kwargs), maker.handed)

    with math_of_symbols() if session.dynamic else contextlib.nullcontext():
        try:
            captured = Capture(session).capture(run)
        finally:
            state.restore()
            session.recorder.state = None
    session.recorder.forward_state = state
    return captured, state, maker


def _specialize(
    function: Callable[..., Any],
    call: Arguments,
    ambient: Ambient,
    options: Options,
    history: SizeHistory,
    misses: tuple[Reason, ...],
    keep_joint: bool,
    symbols: bool,
) -> Specialization:
    """``symbols``: may sizes and numbers be symbols?"""
    backend = options.resolve_backend()
    asked = options.partitioner is not None or options.activation_memory_budget is not None
    partitioner = (
        resolve_partitioner(options.partitioner, options.activation_memory_budget)
        if asked
        else None
    )
    table = options.table(backend)
    dynamic = options.dynamic is True or history.has_symbols
    passes = passes_of(options.passes, options.on_error)
    session = Session(dynamic=symbols and dynamic, decompositions=table, passes=passes)
    try:
        captured, state, maker = traced_call(function, call, options, history, session, symbols)
    except _HasSymbols:
        session = Session(dynamic=True, decompositions=table, passes=passes)
        captured, state, maker = traced_call(function, call, options, history, session, symbols)
    program, graphs = build_program(captured, backend, partitioner, keep_joint=keep_joint)
    session.no_branch_on_floats()
    if symbols and not history.all_numbers:  # else Dynamo, or a trace without symbols, has decided
        for row in program.plan.inputs.rows:
            check_marks(row.of(maker.flat), row.spec, str(row.path))
    numbers = frozenset(
        p
        for p, value in zip(maker.places, maker.flat, strict=True)
        if not isinstance(value, Tensor)
    )
    guarded = StateGuards(state, Call(*call, function), maker.places, numbers)
    for backward in () if program.backwards is None else program.backwards.compiled:
        guarded = guarded.and_of_backward(backward.reads)
    if verify.ENABLED:
        verify.verify_guards(guarded, Call(*call, function))
    attention = ambient.attention if session.meets_attention() else None
    ambient = replace(ambient, dtensor=session.dtensor_modes(), attention=attention)
    program = with_circumstances(program, maker.flat)
    emitted = bind(program, ambient, guarded, maker.flat, session.mode)
    inlined = {
        n: by
        for n, by in state.inlined.items()
        if by != backend.name and n not in graphs.own_kernels
    }
    state.forget()
    maker.roots = Call((), {})
    maker.flat.clear()  # cycles may keep it for a while
    records = () if passes is None else tuple(passes.records)
    return Specialization(
        misses, options, ambient, guarded, program, graphs, *emitted, {}, records, inlined
    )


def _stands(error: Exception) -> bool:
    """Would a trace without symbols be refused, too?"""
    refused = isinstance(error, SubclassTraceError) and route_of(error) is Route.ONCE
    return refused or isinstance(error, OptionError)


def compile_call(
    function: Callable[..., Any],
    call: Arguments,
    ambient: Ambient,
    options: Options,
    history: SizeHistory,
    misses: tuple[Reason, ...],
    *,
    keep_joint: bool = False,
    traces: bool = False,
) -> Specialization:
    """The specialization for a call: with symbols for what differs between calls, or as it is where
    that fails.

    ``traces``: that of an equal module would not do.

    Raises:
        SubclassTraceError: a refusal.
        Exception: the function's own.
    """
    if (
        not (keep_joint or traces)
        and (found := of_another(function, call, options, history)) is not None
    ):
        return replace(found, misses=misses)
    make = functools.partial(
        _specialize, function, call, ambient, options, history, misses, keep_joint
    )
    try:
        return make(symbols=True)
    except Exception as error:
        if not history.has_symbols or _stands(error):
            raise
    made = make(symbols=False)  # what the function itself raises comes again
    history.fix_all()
    return made


def from_description(
    data: Any,
    function: Callable[..., Any],
    call: Arguments,
    options: Options,
    history: SizeHistory | None = None,
) -> Specialization:
    """The specialization that a description says, bound to a function and to what a call of it
    finds.

    Args:
        data: `Description.data`, perhaps as JSON has given it back.
        history: what a re-trace knows of sizes, for a backward of other tangents than those that
            are described.

    Raises:
        DescriptionError: it is broken, old or foreign.
        Unlike: it is not for this call, or what is read here is something else; ``reason`` says
            what.
    """
    roots = Call(*call, function)
    backend = options.resolve_backend()
    with stage("description"):
        parts = read(data, roots, options.of_a_trace(), fakes=backend.forward is not compile_eager)
    why = unlike(parts.plan, parts.ambient, parts.guards, roots)
    if why is not None:
        raise Unlike(why)
    again = functools.partial(
        _traced_again, function, options, history or SizeHistory(), data, parts.ambient
    )
    try:
        program, graphs = program_of(parts, backend, again)
        flat = [place.read(roots) for place in parts.guards.flat]
        emitted = bind(program, parts.ambient, parts.guards, flat)
    except SubclassTraceError:
        raise
    except Exception as error:  # of data that no trace has written
        raise DescriptionError(
            "a broken description", got=f"{type(error).__name__}: {error}"
        ) from error
    if (why := emitted[2](*call)) is not None:
        raise Unlike(why)
    return Specialization((), options, parts.ambient, parts.guards, program, graphs, *emitted, {})


def _traced_again(
    function: Callable[..., Any],
    options: Options,
    history: SizeHistory,
    data: Any,
    ambient: Ambient,
    call: Arguments,
) -> Tape:
    """The retained autograd graph of a call whose specialization came from a description.

    Raises:
        TangentError: the trace is another one by now.
    """
    symbols = bool(data["backwards"]["symbols"])
    passes = passes_of(options.passes, options.on_error)
    session = Session(
        dynamic=symbols, decompositions=options.table(options.resolve_backend()), passes=passes
    )
    with torch.set_grad_enabled(ambient.grad), autocast_as(ambient.autocast or (False,)):
        try:
            tape, refused = (
                traced_call(function, call, options, history, session, symbols)[0].tape,
                None,
            )
        # of the function, of torch's flags: this is no call, and another one would tell
        except Exception as error:
            tape, refused = None, error
    nodes = session.recorder.graph.nodes
    if tape is None or trace_of(nodes) != data["backwards"]["trace"]:
        raise TangentError(
            "this backward needs another trace of the forward, which is another one by now",
            expected="the tangents for which the description was made, or the state of Python "
            "that it was made in",
            fix="call the region again, or describe it after a step",
        ) from refused
    return tape


#: class of a module -> id of a program -> a specialization that has it, of a region of such a
# module or of a method of one
_made: weakref.WeakKeyDictionary[type, weakref.WeakValueDictionary[int, Specialization]] = (
    weakref.WeakKeyDictionary()
)


def _of_class(module: Any) -> weakref.WeakValueDictionary[int, Specialization]:
    none = weakref.WeakValueDictionary[int, Specialization]()
    return _made.setdefault(type(module), none) if isinstance(module, torch.nn.Module) else none


def remember(function: Any, entry: Specialization) -> None:
    """Other modules of the class may have its program from now on."""
    _of_class(getattr(function, "__self__", function))[id(entry.program)] = entry


def of_another(
    function: Any, call: Arguments, options: Options, history: SizeHistory
) -> Specialization | None:
    """What serves the call with the program of another module of the class, which was traced
    before.

    Where two of them have other numbers alone (a layer's index), those are symbols in the trace of
    this one.
    """
    module, numbers = getattr(function, "__self__", function), list[set[str]]()
    for entry in reversed([*_of_class(module).values()][-policy.POLICY.equal_modules :]):
        if vars(entry.options) != vars(options):
            continue
        guards, backwards, roots = (
            entry.state.of_function(function),
            entry.program.backwards,
            Call(*call, function),
        )
        if unlike(entry.plan, entry.ambient, guards, roots) is not None:
            failing = [*guards.failing(roots)]
            if failing and all(
                row.kind == "value" and type(row.known) in (int, float) for row in failing
            ):
                numbers.append(changed_since(guards, roots))
            continue
        run, written, failed = bind(
            entry.program, entry.ambient, guards, [p.read(roots) for p in guards.flat]
        )
        if failed(*call) is None and (backwards is None or backwards.share()):
            return replace(entry, state=guards, run=run, written=written, failed=failed)
    if len(numbers) > 1:
        history.varying_numbers.update(*numbers)
    return None
