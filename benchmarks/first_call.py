"""The first call of a region: tracing, partitioning, code generation, and the first forward and
backward.

Each measurement is of a new region with emptied caches, in a process that imported everything.
``aot_function`` gets the same partitioner and a compiler that does nothing; ``torch.compile`` gets
its ``aot_eager`` back end, whose partitioner is min_cut. With all sizes symbolic, every dimension
of every input is, in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import stacks
from .harness import once
from .results import Figure, Goal
from .subjects import Subject, WrongValues, check, ranks, transformer

AOT = {"min_cut": Goal(">=", 4.0), "default": Goal(">=", 2.2)}
DYNAMO, SYMBOLIC = Goal(">=", 2.7), Goal(">=", 1.6)
_AGAINST_AOT, _AGAINST_DYNAMO = (
    "times as fast as aot_function",
    "times as fast as torch.compile(aot_eager)",
)


def subjects(quick: bool) -> list[Subject]:
    """Transformers over each kind of tensor. Call it, and use them, inside `ranks`."""
    kinds = ["dense", "TwoTensor"] if quick else ["dense", "TwoTensor", "DTensor"]
    return [transformer(kind, layers=2 if quick else 6) for kind in kinds]


def verify(quick: bool) -> None:
    """Do all stacks give eager's values?"""
    with ranks():
        for subject in subjects(quick):
            for partitioner in ("min_cut", "default"):
                check(
                    subject, stacks.ours(subject.function, partitioner), f"ours with {partitioner}"
                )
        symbolic = transformer("dense", layers=1)
        region = stacks.ours(symbolic.function, dynamic=True)
        check(symbolic, region, "ours with symbolic sizes")
        numbers = [n for n in _traced_sizes(region) if not isinstance(n, torch.SymInt)]
        if numbers:
            raise WrongValues(f"with dynamic=True, these sizes of inputs are numbers: {numbers}")


def _traced_sizes(region: Any) -> list[Any]:
    graph = region.specializations[0].graphs.forward.graph
    vals = [n.meta["val"] for n in graph.nodes if n.op == "placeholder"]
    return [size for v in vals if isinstance(v, torch.Tensor) for size in v.shape]


def run(quick: bool, say: Callable[[str], None]) -> Iterator[Figure]:
    """Measure."""
    with ranks():
        say("first call, warm-up")
        _warm_up(transformer("dense", layers=1))
        for subject in subjects(quick):
            say(f"first call, {subject.name}")
            yield from _static(subject, rounds=1 if quick else 4)
        kinds = [("dense", 1)] if quick else [("dense", 6), ("TwoTensor", 2)]
        for kind, layers in kinds:
            say(f"first call, {layers} layers, {kind}, all sizes symbolic")
            yield _symbolic(transformer(kind, layers=layers), rounds=1 if quick else 2)


def _warm_up(subject: Subject) -> None:
    """What happens once per process does not count: imports above all."""
    f = subject.function
    for compiled in (stacks.ours(f), stacks.aot(f), stacks.dynamo(f)):
        subject.step(compiled)
    for make in (stacks.ours, stacks.aot):
        subject.step(make(f, dynamic=True))


def _static(subject: Subject, rounds: int) -> Iterator[Figure]:
    f = subject.function
    made: dict[str, Callable[[], Any]] = {
        "ours min_cut": lambda: stacks.ours(f, "min_cut"),
        "aot_function min_cut": lambda: stacks.aot(f, "min_cut"),
        "ours default": lambda: stacks.ours(f, "default"),
        "aot_function default": lambda: stacks.aot(f, "default"),
        "torch.compile": lambda: stacks.dynamo(f),
    }
    times = once(
        {k: _first(subject, make) for k, make in made.items()}, rounds=rounds, fresh=stacks.forget
    )
    raw = times.medians()
    for partitioner in ("min_cut", "default"):
        base = f"aot_function {partitioner}"
        value = times.ratio(base, f"ours {partitioner}")
        case = f"{subject.name}, {partitioner}"
        others = (
            {"torch.compile": times.ratio(base, "torch.compile")}
            if partitioner == "min_cut"
            else {}
        )
        yield Figure("first_call", _AGAINST_AOT, case, value, AOT[partitioner], others, raw)
    value = times.ratio("torch.compile", "ours min_cut")
    others = {"aot_function": times.ratio("torch.compile", "aot_function min_cut")}
    yield Figure(
        "first_call", _AGAINST_DYNAMO, f"{subject.name}, min_cut", value, DYNAMO, others, raw
    )


def _symbolic(subject: Subject, rounds: int) -> Figure:
    f = subject.function
    made: dict[str, Callable[[], Any]] = {
        "ours": lambda: stacks.ours(f, dynamic=True),
        "aot_function": lambda: stacks.aot(f, dynamic=True),
    }
    times = once(
        {k: _first(subject, make) for k, make in made.items()}, rounds=rounds, fresh=stacks.forget
    )
    case = f"{subject.name}, min_cut, all sizes symbolic"
    return Figure(
        "first_call",
        _AGAINST_AOT,
        case,
        times.ratio("aot_function", "ours"),
        SYMBOLIC,
        raw=times.medians(),
    )


def _first(subject: Subject, make: Callable[[], Any]) -> Callable[[], Callable[[], Any]]:
    def prepare() -> Callable[[], Any]:
        compiled = make()
        return lambda: subject.step(compiled)

    return prepare
