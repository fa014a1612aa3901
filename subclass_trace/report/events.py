"""What a region tells while it works: Python logging under ``subclass_trace``, and torch's
structured trace.

``TORCH_LOGS="+subclass_trace"`` or ``logging.getLogger("subclass_trace").setLevel(logging.DEBUG)``
shows the one, ``TORCH_TRACE=folder`` and ``tlparse`` the other. Nothing is formatted where nobody
listens.
"""

from __future__ import annotations

import logging
from typing import Any

from ..torch_api.structured import trace_is_written, write_trace
from .names import function_text, name_of, place_of, seconds_text
from .text import guards_of, misses_text, saved_bytes
from .trace import trace_of

LOG = logging.getLogger("subclass_trace")


def compiled(region: Any, number: int, entry: Any) -> None:
    """A specialization was made."""
    written, second = trace_is_written(), entry.graphs.second
    if LOG.isEnabledFor(logging.INFO):
        name, sizes = function_text(region.function), f"{len(entry.graphs.first.body)} operations"
        if second is not None:
            saved = entry.plan.gradients.saved
            sizes += (
                f", {len(second.body)} in the backward, {len(saved)} saved "
                f"({saved_bytes(entry.plan)})"
            )
        LOG.info("captured %s [%d] in %s; %s", name, number, seconds_text(entry.seconds), sizes)
        if entry.misses:
            LOG.info(
                "recompiled %s [%d], because these guards failed:\n%s",
                name,
                number,
                misses_text(entry),
            )
    if not (written or LOG.isEnabledFor(logging.DEBUG)):
        return
    trace = trace_of(name_of(region.function), entry)
    texts = {
        f"aot_{'inference' if second is None else name}_graph": trace.code(name)
        for name in trace.graphs
    }
    texts["entry"] = entry.source
    for name, text in texts.items():
        LOG.debug("%s of %s [%d]\n%s", name, trace.function, number, text)
    if written:
        guards, seconds = guards_of(entry), sum(entry.seconds.values())
        texts |= {
            "guards": "\n".join(guards),
            "report": entry.report(),
            "recompile_reasons": misses_text(entry),
        }
        metrics = {"entire_frame_compile_time_s": seconds, "guard_count": len(guards)}
        write_trace(region, place_of(region.function), texts, metrics)


def handed_over(function: Any, why: object) -> None:
    """Dynamo serves a region from now on; ``why`` is None where it was asked for."""
    if LOG.isEnabledFor(logging.INFO):
        LOG.info(
            "%s is served by torch.compile from now on: %s",
            function_text(function),
            why or 'frontend="dynamo"',
        )


def ran_eagerly(function: Any, why: str) -> None:
    """A call of a region runs eagerly, for a reason that is new to it."""
    if LOG.isEnabledFor(logging.INFO):
        LOG.info("%s runs eagerly: %s", function_text(function), why)
