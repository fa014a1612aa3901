"""What people compile: a transformer block over DTensors, and stacks of quantised linear layers.

Every stack runs the same eager kernels. The small block is bound by overhead, which is what a compiler of wrappers can
take away; in the large one the kernels count, and no wrapper can be much faster than eager mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import stacks
from .harness import interleaved
from .results import Figure, Goal
from .subjects import Subject, WrongValues, block, check, linear_stack, ranks

_EAGER, _DYNAMO = "time / eager mode", "time / torch.compile(aot_eager)"


def subjects(quick: bool) -> list[tuple[Subject, Goal | None, Goal]]:
    """What is measured, with the goals against eager mode and against torch.compile."""
    small, large = {"width": 32, "length": 8}, {"width": 256, "length": 64}
    rows: list[tuple[Subject | None, Goal | None, Goal]] = [
        (block("DTensor", train=False, **small), Goal("<=", 0.2), Goal("<=", 0.333)),
        (block("DTensor", train=True, **small), Goal("<=", 0.25), Goal("<=", 0.4)),
    ]
    if not quick:
        rows += [
            (block("DTensor", train=False, **large), None, Goal("<=", 1.0)),
            (block("DTensor", train=True, **large), None, Goal("<=", 1.0)),
        ]
    rows += [(linear_stack(kind), None, Goal("<=", 1.0)) for kind in ("ScaledFP8", "Int8Tensor")]
    return [(s, a, b) for s, a, b in rows if s is not None]


def verify(quick: bool) -> None:
    """Do all stacks give eager's values?"""
    with ranks():
        for subject, _, _ in subjects(quick):
            _stacks(subject)


def run(quick: bool, say: Callable[[str], None]) -> Iterator[Figure]:
    """Measure."""
    with ranks():
        for subject, eager_goal, dynamo_goal in subjects(quick):
            say(f"models, {subject.name}")
            variants = {name: _step(subject, function) for name, function in _stacks(subject).items()}
            times = interleaved(variants, rounds=4 if quick else 12)
            ratios = times.ratios("eager")
            yield Figure("models", _EAGER, subject.name, ratios.pop("ours"), eager_goal, ratios, times.medians())
            against = times.ratios("torch.compile")
            yield Figure("models", _DYNAMO, subject.name, against.pop("ours"), dynamo_goal, against, times.medians())


def _step(subject: Subject, function: Callable[..., Any]) -> Callable[[], Any]:
    if subject.trains:
        wanted = [t for t in subject.inputs if t.requires_grad]
        return lambda: torch.autograd.grad(function(*subject.inputs), wanted, subject.tangent)

    def infer() -> Any:
        with torch.no_grad():
            return function(*subject.inputs)

    return infer


def _stacks(subject: Subject) -> dict[str, Callable[..., Any]]:
    region = stacks.ours(subject.function)
    found: dict[str, Callable[..., Any]] = {"ours": region, "torch.compile": stacks.dynamo(subject.function)}
    for name, function in found.items():
        stacks.forget()
        check(subject, function, name)
    if len(region.specializations) > 2:  # with gradients (the check) and without
        raise WrongValues(f"{subject.name}: {len(region.specializations)} specializations for one kind of call")
    return {**found, "eager": subject.function}
