"""Peak memory of a function, from the profiler's memory events."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile


def peak_bytes(function: Callable[[], Any]) -> int:
    """The highest number of tensor bytes above what there was before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
            function()
    events = [e for e in found.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = high = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        high = max(high, now)
    return high
