"""Python autograd.Functions on a tape: pasted in where a backward graph is known, else one call of ``backward``.

Graphs are known of regions of this package (`regions.py`) and of forwards that torch compiled, which are recognised by
what AOTAutograd leaves on their Function class. The call is written as well, as the other variant: a backward that makes
a graph itself (``create_graph``) must go through it.
"""

from __future__ import annotations

from typing import Any

import torch

from ..torch_api import tape as _door
from . import operations
from .paste import paste
from .regions import paste_region, program_of
from .steps import Step

aten = torch.ops.aten


def call_function_backward(
    capture: Any,
    ctx: Any,
    ctx_step: Step,
    saved: list[Step],
    grads: list[Step | None],
    count: int,
    state: Step | None,
    opaque: list[Step],
) -> list[Step | None]:
    """Write the backward of a Python Function; returns the step of each gradient."""
    cls = _door.forward_class(ctx)
    sizes = [s.node.step for s in _door.captured_sizes(ctx)]
    begin = len(capture.steps)
    program = program_of(cls)
    pasted: list[Step | None] | None = None
    if program is not None:
        pasted = paste_region(capture, program, ctx, ctx_step, saved, grads, count)
    elif _door.is_aot_function(cls) and state is None:
        pasted = _paste_aot(capture, cls, saved, grads, sizes, opaque, count)
    middle = len(capture.steps)
    called = _opaque(capture, ctx_step, saved, grads, count, cls)
    if pasted is None:
        return called
    for number, step in enumerate(capture.steps[begin:], start=begin):
        step.variant = "pasted" if number < middle else "called"
    rows = zip(pasted, called, strict=True)
    return [None if a is None else capture.write("choice", None, (a, b)) for a, b in rows]


def _opaque(
    capture: Any, ctx: Step, saved: list[Step], grads: list[Step | None], count: int, cls: Any
) -> list[Step | None]:
    plain: list[Step | None] = []
    packed: list[tuple[Any, ...]] = []
    deferred: list[Step] = []
    for place, step in enumerate(saved):
        if step is not None and step.kind == "unpack":
            packed.append((place, *step.args))  # `BackwardContext` unpacks it, when the backward asks for it
            deferred.append(step)
            plain.append(None)
        else:
            plain.append(step)
    fill = all(g is not None for g in grads) and _materializes(cls)
    args = (ctx, plain, packed, count, fill, *grads)
    step = capture.write("backward", operations.run_backward, args, note=cls.__name__, meta={"deferred": deferred})
    return [capture.part(step, i) for i in range(count)]


def _materializes(cls: Any) -> bool:
    """Does the engine hand zeros to this Function where a gradient is undefined?

    It does when the capture knows of it; that another Function returned None is known in the run only. There is no way
    to ask a ctx: the forward's code is looked at.
    """
    return not any(
        "set_materialize_grads" in code.co_names
        for f in (cls.forward, getattr(cls, "setup_context", None))
        if (code := getattr(f, "__code__", None)) is not None
    )


def _paste_aot(
    capture: Any,
    cls: Any,
    saved: list[Step],
    grads: list[Step | None],
    sizes: list[Step],
    opaque: list[Step],
    count: int,
) -> list[Step | None]:
    """The backward of a forward that torch compiled: its prologue (one call), its graph, its epilogue."""
    graph = _door.aot_backward_graph(cls)
    prologue, epilogue, subclasses = _door.aot_steps(cls)
    before = capture.write("backward", prologue, (saved, sizes, opaque, grads), note="aot_prologue")
    wanted = sum(n.op == "placeholder" for n in graph.graph.nodes)
    args: list[Any] = [capture.part(before, i) for i in range(wanted)]
    args[: len(sizes)] = sizes
    outs = paste(capture, graph, args, reshape=True)
    if subclasses is not None:
        after = capture.write("backward", epilogue, (outs,), note="aot_epilogue")
        return [capture.part(after, i) for i in range(count)]
    # The epilogue only drops and places values: it is played on stand-ins.
    stand_ins = [capture.token(o) if isinstance(o, Step) else o for o in outs]
    placed = epilogue(stand_ins)
    return [capture.steps_of(r) if r is not None else None for r in placed]
