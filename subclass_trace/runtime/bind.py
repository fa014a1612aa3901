"""To serve is to bind: the records of a specialization, and the roots of a call, become an entry.

A trace ends here; so does a program that an equal module shares (another root), and one that a
description was read of (another process). What is bound is compared once in full before it serves:
the entry's own checks are made of the tensors of this call.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..capture.aliasing import alias_pattern
from ..errors import ProtocolError, Reason
from ..plan import InputPlan, Plan, TensorKind
from ..stages import stage
from ..state.guards import StateGuards
from ..state.place import GONE, Roots
from ..subclass.flatten import flatten, guarded_spec, leaves_of, tensors_inside
from ..subclass.paths import Path
from ..subclass.spec import OpaqueSpec, Spec, WrapperSpec, same_contexts, sizes_in
from ..subclass.template import Examples
from ..torch_api.kinds import dispatch_keys, keys_of_device
from .emit import is_sized
from .entry_code import Emitted, EntryEmitter
from .guards import Ambient
from .program import Program
from .sizes import hint_of

Tensor = torch.Tensor


def with_circumstances(
    program: Program, flat: Sequence[Any], device: torch.device | None = None
) -> Program:
    """The program of a trace, with what its plan says of the tensors of the call: their kinds, how
    they share memory. ``device``: for which those on ``meta`` stand."""
    plan = program.plan
    inputs = [row.of(flat) for row in plan.inputs.rows]
    kinds = tuple(_kind_on(kind_of(t), device) for _, t in tensors_of(plan, inputs))
    known = replace(plan.inputs, alias=_alias(plan, inputs), kinds=kinds)
    return replace(program, plan=replace(plan, inputs=known))


def bind(
    program: Program, ambient: Ambient, guards: StateGuards, flat: Sequence[Any], mode: Any = None
) -> Emitted:
    """The entry of a program.

    Args:
        flat: the flat arguments of a call that meets the records (`unlike`).
        mode: a fake mode, in which constructors of wrappers are verified.
    """
    examples = Examples(hint_of, mode, program.templates)
    with torch.no_grad(), stage("code generation"):
        return EntryEmitter(program, ambient, guards).emit(flat, examples)


def unlike(plan: Plan, ambient: Ambient, guards: StateGuards, call: Roots) -> Reason | None:
    """Why the records do not meet a call, as far as the entry would not say so itself; None: they
    may be bound to it."""
    thread = Ambient.now()
    if ambient != thread or any(k is not None and k != n for k, n in _besides(ambient, thread)):
        return ambient.changes(thread)
    if len(call.args) != guards.positional or (*call.kwargs,) != guards.keywords:
        got = f"got {len(call.args)} and {[*call.kwargs]}"
        return Reason(
            f"arguments: expected {guards.positional} and the keywords {[*guards.keywords]}, {got}"
        )
    for failing in guards.failing(call):
        try:
            return Reason(failing.why(call), failing.code)
        except GONE as error:
            return Reason(f"{failing.place} is gone ({error!r})", failing.code)
    try:
        flat = [place.read(call) for place in guards.flat]
        inputs = [row.of(flat) for row in plan.inputs.rows]
        kinds = [(path, kind_of(t)) for path, t in tensors_of(plan, inputs)]
        specs = [
            guarded_spec(flatten(t)[1], row.path)
            for row, t in zip(plan.inputs.rows, inputs, strict=True)
        ]
    except (*GONE, ProtocolError) as error:
        return Reason(f"an input is of another kind, or gone ({error!r})")
    for row, spec in zip(plan.inputs.rows, specs, strict=True):
        if (why := _other_spec(row, spec)) is not None:
            return why
    for (path, now), known in zip(kinds, plan.inputs.kinds, strict=False):
        if now != known:
            return Reason(f"{path}: expected {known.text(now)}, got {now.text(known)}")
    if len(kinds) != len(plan.inputs.kinds) or not _are_as_distinct(plan, inputs):
        return Reason("two of the inputs, or of the tensors inside of them, are one, or one is two")
    return None


def other_input(row: InputPlan, value: Any) -> Reason | None:
    """In what an input differs from what a plan knows of it, so far as its spec says it."""
    try:
        spec = guarded_spec(flatten(value)[1], row.path)
    except (*GONE, ProtocolError) as error:
        return Reason(f"{row.path} is of another kind ({error!r})")
    known = row.spec
    if (
        isinstance(known, OpaqueSpec)
        or isinstance(spec, OpaqueSpec)
        or type(known) is not type(spec)
    ):
        return Reason(
            f"{row.path}: expected a {type(known).__name__}, got a {type(value).__qualname__}"
        )
    facts = [(s.dtype, s.device, s.requires_grad, getattr(s, "cls", None)) for s in (known, spec)]
    if facts[0] != facts[1]:
        return Reason(f"{row.path}: expected {facts[0]}, got {facts[1]}")
    return _other_spec(row, spec)


def _other_spec(row: InputPlan, spec: Spec) -> Reason | None:
    if not _is_sized(row.spec) and not same_contexts(row.spec, spec):
        return Reason(f"{row.path}: another context")
    known, now = ([*sizes_in(s)] for s in (row.spec, spec))
    if any(type(was) is int and was != is_now for was, is_now in zip(known, now, strict=False)):
        return Reason(f"{row.path}: expected sizes and strides {known}, got {now}")
    return None


def _besides(ambient: Ambient, now: Ambient) -> Iterator[tuple[Any, Any]]:
    """What is compared where the trace met it alone."""
    return zip((ambient.dtensor, ambient.attention), (now.dtensor, now.attention), strict=True)


def _are_as_distinct(plan: Plan, inputs: Sequence[Tensor]) -> bool:
    """Are the inputs different objects, and their leaves the same ones where they were?"""
    pairs = {
        (number, id(leaf))
        for row, value in zip(plan.inputs.rows, inputs, strict=True)
        for number, leaf in zip(row.leaves, leaves_of(value), strict=True)
    }
    leaves = len({leaf for _, leaf in pairs})
    return len({*map(id, inputs)}) == len(inputs) and len(pairs) == plan.inputs.leaf_count == leaves


def tensors_of(plan: Plan, inputs: Sequence[Tensor]) -> Iterator[tuple[Path, Tensor]]:
    """The inputs, and the tensors inside of them, with their paths."""
    for row, value in zip(plan.inputs.rows, inputs, strict=True):
        yield row.path, value
        for names, inner in tensors_inside(value):
            yield functools.reduce(Path.attr, names, row.path), inner


def _is_sized(spec: Spec) -> bool:
    """Has it, or something inside of it, sizes in its context? Those the entry compares."""
    return isinstance(spec, WrapperSpec) and (is_sized(spec) or any(map(_is_sized, spec.inners)))


def kind_of(t: Tensor) -> TensorKind:
    """See `TensorKind`."""
    return TensorKind(type(t), dispatch_keys(t), t.dtype, t.device, t.requires_grad)


def _kind_on(kind: TensorKind, device: torch.device | None) -> TensorKind:
    if device is None or kind.device.type != "meta":
        return kind
    return replace(kind, device=device, keys=kind.keys ^ keys_of_device(device))


def _alias(plan: Plan, inputs: Sequence[Tensor]) -> tuple[Any, ...] | None:
    """The alias pattern, when it decided anything: something is written or compared, or leaves
    share memory."""
    table: dict[int, Tensor] = {}
    for row, value in zip(plan.inputs.rows, inputs, strict=True):
        table.update(zip(row.leaves, leaves_of(value), strict=True))
    pattern = alias_pattern(inputs, [table[k] for k in range(plan.inputs.leaf_count)])
    return pattern if plan.mutations.rows or len(pattern) > 1 else None
