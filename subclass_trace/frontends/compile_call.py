"""How a `Specialization` comes to be: of a trace, which is partitioned and compiled; of that of an
equal module; or of a description.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from .. import verify
from ..artifacts.graph_cache import graph_cache_of
from ..backends.eager import compile_eager
from ..capture.session import Session
from ..capture.tape import Tape
from ..data.describe import read, trace_of
from ..data.programs import program_of
from ..errors import (
    DescriptionError,
    OptionError,
    Reason,
    SubclassTraceError,
    TangentError,
    Unlike,
    VerificationError,
)
from ..options import Options
from ..partition.interface import partition, resolve_partitioner
from ..passes import passes_of
from ..runtime.bind import bind, unlike, with_circumstances
from ..runtime.guards import Ambient
from ..runtime.program import Program
from ..runtime.specialize import build_program
from ..stages import stage
from ..state.guards import StateGuards
from ..state.place import Roots
from ..state.run import StateRun
from ..torch_api.dynamo import check_marks
from ..torch_api.modes import autocast_as
from ..verify.proof import prove
from .dynamic import SizeHistory
from .equal_modules import of_another
from .routes import Route, route_of
from .specialization import Specialization
from .traced_call import Arguments, HasSymbols, Maker, traced_call

Tensor = torch.Tensor


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
    new_session = functools.partial(
        Session, decompositions=table, passes=passes, device=options.stands_for
    )
    session = new_session(dynamic=symbols and dynamic)
    try:
        captured, state, maker = traced_call(function, call, options, history, session, symbols)
    except HasSymbols:
        session = new_session(dynamic=True)
        captured, state, maker = traced_call(function, call, options, history, session, symbols)
    split = graph_cache_of(options).partition if options.cache == "graph" else partition
    program, graphs = build_program(
        captured, backend, partitioner, keep_joint=keep_joint, split=split
    )
    session.no_branch_on_floats()
    if symbols and not history.all_numbers:  # else Dynamo, or a trace without symbols, has decided
        for row in program.plan.inputs.rows:
            check_marks(row.of(maker.flat), row.spec, str(row.path))
    guarded = _guards_of(state, maker, program, Roots(*call, function))
    attention = ambient.attention if session.meets_attention() else None
    ambient = replace(ambient, dtensor=session.dtensor_modes(), attention=attention)
    program = with_circumstances(program, maker.flat, options.stands_for)
    emitted = bind(program, ambient, guarded, maker.flat, session.mode)
    proved = None
    if verify.PROVES and session.dynamic:
        code, conditions = emitted[1], program.plan.inputs.conditions
        proved = prove(captured, code.checks, code.names, code.compared, conditions)
    inlined = {
        n: by
        for n, by in state.inlined.items()
        if by != backend.name and n not in graphs.own_kernels
    }
    state.forget()
    maker.roots = Roots((), {})
    maker.flat.clear()  # cycles may keep it for a while
    records = () if passes is None else tuple(passes.records)
    return Specialization(
        misses,
        options,
        ambient,
        guarded,
        program,
        graphs,
        *emitted,
        {},
        records,
        inlined,
        proved,
        session.rank_reads(),
    )


def _guards_of(state: StateRun, maker: Maker, program: Program, roots: Roots) -> StateGuards:
    """The guards on Python state: on what the function read, and the first backward."""
    rows = zip(maker.places, maker.flat, strict=True)
    numbers = frozenset(place for place, value in rows if not isinstance(value, Tensor))
    guards = StateGuards(state, roots, maker.places, numbers)
    for backward in () if program.backwards is None else program.backwards.compiled:
        guards = guards.and_of_backward(backward.reads)
    if verify.ENABLED:
        verify.verify_guards(guards, roots)
    return guards


def _stands(error: Exception) -> bool:
    """Would a trace without symbols be refused, too?"""
    refused = isinstance(error, SubclassTraceError) and route_of(error) is Route.ONCE
    return refused or isinstance(error, (OptionError, VerificationError))


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
        not (keep_joint or traces or options.device)
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
    roots = Roots(*call, function)
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
    made = Specialization((), options, parts.ambient, parts.guards, program, graphs, *emitted, {})
    return replace(made, rank_reads=parts.rank_reads)


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
