"""Timing that can be trusted on a shared machine: ratios, interleaved in one process, in CPU time.

    >>> times = interleaved({"short": lambda: sum(range(300)), "long": lambda: sum(range(3000))},
    rounds=5)
    >>> times.ratio("long", "short") > 1
    True

`interleaved` is for calls that can be repeated; `once` for those that happen only once, as a first
call does. Both take the variants in turn (and start each round with another one), so that a slow
moment of the machine hits all of them.
"""

from __future__ import annotations

import contextlib
import gc
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

Action = Callable[[], Any]


@dataclass(frozen=True)
class Timings:
    """CPU microseconds per call: name -> one sample for each round."""

    samples: Mapping[str, list[float]]

    def ratio(self, name: str, base: str) -> float:
        """Median over the rounds of the ratio within the round."""
        pairs = zip(self.samples[name], self.samples[base], strict=True)
        return statistics.median(a / b for a, b in pairs)

    def ratios(self, base: str) -> dict[str, float]:
        """All ratios to ``base``."""
        return {name: self.ratio(name, base) for name in self.samples}

    def median(self, name: str) -> float:
        """Median time. It depends on the machine and its load; the ratios hardly do."""
        return statistics.median(self.samples[name])

    def medians(self) -> dict[str, float]:
        """All median times."""
        return {name: self.median(name) for name in self.samples}


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Torch's kernels run in the calling thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """One thread, and a garbage collector that leaves everything alone that exists now. It stays
    switched on."""
    gc.collect()
    gc.freeze()
    try:
        with one_thread():
            yield
    finally:
        gc.unfreeze()


def interleaved(
    variants: Mapping[str, Action],
    *,
    rounds: int,
    burst_ms: float = 10.0,
    warm_up: int = 30,
    clock: Callable[[], int] = time.thread_time_ns,
) -> Timings:
    """Time repeatable calls, by default in thread CPU time.

    A sample is the mean of a burst of calls, after another, untimed burst of the same: else a
    variant that comes after one with other code (autograd after a bare graph) pays for cold caches,
    some 10 % of a 4 ms burst.

    Args:
        rounds: each variant gives one sample per round.
        burst_ms: length of a burst, at least one call.
        warm_up: calls before the first burst.
        clock: in nanoseconds.
    """
    with quiet():
        counts = {
            name: _burst(action, burst_ms, warm_up, clock) for name, action in variants.items()
        }
        samples: dict[str, list[float]] = {name: [] for name in variants}
        for number in range(rounds):
            for name in _rotated(list(variants), number):
                action, repeat = variants[name], range(counts[name])
                for _ in repeat:
                    action()
                start = clock()
                for _ in repeat:
                    action()
                samples[name].append((clock() - start) / len(repeat) / 1e3)
            gc.collect()
    return Timings(samples)


def _burst(action: Action, burst_ms: float, warm_up: int, clock: Callable[[], int]) -> int:
    """How many calls take ``burst_ms``. A single call may be longer than that."""
    for _ in range(warm_up):
        action()
    calls, spent = 0, 0
    while spent < burst_ms * 1e6:
        start = clock()
        for _ in range(max(1, calls)):
            action()
        spent = clock() - start
        calls = max(1, 2 * calls)
    return max(1, int(calls / 2 * burst_ms * 1e6 / spent) + 1)


def once(
    variants: Mapping[str, Callable[[], Action]], *, rounds: int, fresh: Action = lambda: None
) -> Timings:
    """Time calls that happen once, in process CPU time (other threads may take part).

    The garbage collector works as it does in any process: what it costs a first call is part of its
    cost.

    Args:
        variants: name -> makes a new callable, which is called once; only this call is timed.
        fresh: called before each: forgets what earlier calls left in caches.
    """
    clock = time.process_time_ns
    samples: dict[str, list[float]] = {name: [] for name in variants}
    with one_thread():
        for number in range(rounds):
            for name in _rotated(list(variants), number):
                fresh()
                action = variants[name]()
                gc.collect()
                start = clock()
                action()
                samples[name].append((clock() - start) / 1e3)
                del action
    return Timings(samples)


def _rotated(names: list[str], by: int) -> list[str]:
    by %= max(1, len(names))
    return names[by:] + names[:by]


def memory_events(function: Action) -> list[int]:
    """Bytes of each allocation (positive) and release (negative) while ``function`` runs, in order
    of time."""
    with _silent(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    return [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """The profiler's library writes lines of its own to the standard error stream; and Python's
    part warns."""
    sys.stderr.flush()
    keep, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.dup2(keep, 2)
        os.close(keep)
        os.close(null)
