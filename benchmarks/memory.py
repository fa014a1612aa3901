"""Memory of a training step: bytes kept for the backward, and the peak.

- *Saved bytes* are counted by ``saved_tensors_hooks`` around the forward: dense leaves of what is
  packed, one per storage, without the storages of inputs and parameters. The tensors are kept alive
  while counting, since a freed storage's identity is used again.
- The *peak* is the highest running sum of the profiler's memory events, by their time. Inputs exist
  before and do not count. The sum ends at 0, which is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._functorch.config as functorch_config

from subclass_trace.subclass.flatten import leaves_of

from . import stacks
from .harness import memory_events
from .results import Figure, Goal
from .subjects import Subject, WrongValues, check, transformer

_SAVED, _PEAK = "saved bytes / those of torch's min_cut", "peak of a training step / eager's"
_GOALS = {1.0: Goal("<=", 1.0), 0.5: Goal("<=", 0.75)}


def subjects(quick: bool) -> list[Subject]:
    """Transformers whose activations are larger than their overheads."""
    kinds = ["dense"] if quick else ["dense", "TwoTensor"]
    return [transformer(kind, layers=1 if quick else 4, width=64, length=32) for kind in kinds]


def verify(quick: bool) -> None:
    """Does our stack give eager's values under each budget?"""
    for subject in subjects(quick):
        for budget in (None, 0.5):
            check(
                subject, stacks.ours(subject.function, budget=budget), f"ours with budget {budget}"
            )


def run(quick: bool, say: Callable[[str], None]) -> Iterator[Figure]:
    """Measure."""
    for subject in subjects(quick):
        eager = subject.function
        for budget, goal in _GOALS.items():
            say(f"memory, {subject.name}, budget {budget}")
            stacks.forget()
            region = stacks.ours(eager, budget=None if budget == 1.0 else budget)
            stacks_: dict[str, Callable[..., Any]] = {
                "ours": region,
                "aot_function": stacks.aot(eager),
            }
            # its bytes are those of ours, and its solver takes a while
            if "dense" in subject.name and not quick:
                stacks_["torch.compile"] = stacks.dynamo(eager)
            with functorch_config.patch(activation_memory_budget=budget):
                for name, function in stacks_.items():
                    check(subject, function, name)
                    subject.step(function)
            bytes_ = {
                name: float(saved_bytes(subject, f))
                for name, f in {**stacks_, "eager": eager}.items()
            }
            base = bytes_["aot_function"]
            saved = {name: b / base for name, b in bytes_.items()}
            case = f"{subject.name}, budget {budget:g}"
            yield Figure("memory", _SAVED, case, saved.pop("ours"), Goal("<=", 1.0), saved, bytes_)
            peaks = {
                name: float(peak_bytes(subject, f))
                for name, f in {**stacks_, "eager": eager}.items()
            }
            peak = {name: p / peaks["eager"] for name, p in peaks.items()}
            yield Figure("memory", _PEAK, case, peak.pop("ours"), goal, peak, peaks)


def saved_bytes(subject: Subject, function: Callable[..., Any]) -> int:
    """Bytes of the storages that a forward keeps for its backward."""
    kept: list[Any] = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        kept.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        result = function(*subject.inputs)
    given = {leaf.untyped_storage()._cdata for t in subject.inputs for leaf in leaves_of(t)}
    storages = {
        leaf.untyped_storage()._cdata: leaf.untyped_storage() for t in kept for leaf in leaves_of(t)
    }
    total = sum(s.nbytes() for key, s in storages.items() if key not in given)
    del result
    return total


def peak_bytes(subject: Subject, function: Callable[..., Any]) -> int:
    """The most bytes that are allocated at any time of a training step, beyond what there is before
    it.

    Raises:
        WrongValues: something that the step allocated was not freed.
    """
    subject.step(function)
    current = peak = 0
    for change in memory_events(lambda: subject.step(function)):
        current += change
        peak = max(peak, current)
    if current != 0:
        raise WrongValues(f"{subject.name}: {current} bytes were left after the step")
    return peak
