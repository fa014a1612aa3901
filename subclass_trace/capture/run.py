"""What one run of the user function gave, and the tensors that it set as attributes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from .. import _torch
from ..plan import AssignmentPlan, ContainerChange, OfResult, StatePlan
from ..subclass.arguments import attributes_of_wrapper
from ..subclass.flatten import flatten, leaves_of
from ..subclass.protocol import Kind, is_traceable, kind_of
from ..subclass.spec import Spec, WrapperSpec, is_ragged
from ..subclass.visit import rebuild
from .inputs import TracedInputs
from .mutation import Before
from .recorder import Recorder

Tensor = torch.Tensor


class Run(NamedTuple):
    """What the user function gave: flat results and their structure, the flat tensors that it was handed (by position
    in the call), what it assigned to modules (those values stand after the results), and what it did to containers
    among its arguments (whose new items stand beside the result in the structure)."""

    results: list[Any]
    tree: Any
    handed: list[Any]
    assignments: tuple[StatePlan, ...] = ()
    containers: tuple[ContainerChange, ...] = ()


def with_attributes(run: Run, inputs: TracedInputs, before: Sequence[Before], recorder: Recorder) -> Run:
    """The run with the tensors and sizes that the region set as attributes of inputs and results among what it assigned."""
    results, assignments = list(run.results), list(run.assignments)
    for number, (row, was) in enumerate(zip(inputs.inputs, before, strict=True)):
        for name, value in _tensors_and_sizes(row.traced, row.spec).items():
            if was.attributes.get(name) is not value:
                assignments.append(AssignmentPlan(number, "__dict__", name, len(results)))
                results.append(value)
    own = {id(row.traced) for row in inputs.inputs}
    for number, result in enumerate(run.results[: run.tree.num_leaves]):
        if id(result) not in own:
            own.add(id(result))
            for name, value in _set_on(result, recorder):
                assignments.append(AssignmentPlan(OfResult(number), "__dict__", name, len(results)))
                results.append(value)
    for registration in recorder.late.registrations:
        assignments.append(registration.plan(len(results)))
        results.append(None)
    return run._replace(results=results, assignments=tuple(assignments))


def _set_on(result: Any, recorder: Recorder) -> Iterator[tuple[str, Any]]:
    """The tensors and sizes that somebody has set on a result that the region made: a fresh one has none there."""
    if not isinstance(result, Tensor) or not (is_traceable(result) or kind_of(type(result)) is Kind.LEAF):
        return
    leaves = leaves_of(result)
    if result.is_nested or not any(map(_torch.is_fake, leaves)):
        return
    spec = flatten(result)[1]
    held = _tensors_and_sizes(result, spec)
    if not held:
        return
    with _torch.without_tracing(), torch.no_grad():
        fresh = rebuild(spec, iter(leaves)) if isinstance(spec, WrapperSpec) else recorder.bare(result)
    known = attributes_of_wrapper(fresh, spec)
    for name, value in held.items():
        if (isinstance(value, Tensor) and not isinstance(known.get(name), Tensor)) or name not in known:
            yield name, value


def _tensors_and_sizes(t: Tensor, spec: Spec) -> dict[str, Any]:
    """The attributes of a value that hold tensors or sizes."""
    rows = attributes_of_wrapper(t, spec).items()
    return {k: v for k, v in rows if isinstance(v, (Tensor, *_torch.SYM_TYPES)) and not is_ragged(v)}
