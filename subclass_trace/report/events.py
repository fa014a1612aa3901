"""What a region tells while it works: Python logging under ``subclass_trace``, and torch's structured trace.

``TORCH_LOGS="+subclass_trace"`` or ``logging.getLogger("subclass_trace").setLevel(logging.DEBUG)`` shows the one,
``TORCH_TRACE=folder`` and ``tlparse`` the other. Nothing is formatted where nobody listens.
"""

from __future__ import annotations

import logging
from typing import Any

from .. import torch_api
from .names import function_text, name_of, place_of, seconds_text
from .text import guards_of, misses_text
from .trace import trace_of

LOG = logging.getLogger("subclass_trace")


def compiled(region: Any, number: int, entry: Any) -> None:
    """A specialization was made."""
    told = LOG.isEnabledFor(logging.INFO)
    if told:
        _log(function_text(region.function), number, entry)
    if not (LOG.isEnabledFor(logging.DEBUG) or torch_api.trace_is_written()):
        return
    trace = trace_of(name_of(region.function), entry)
    if told:
        for name in trace.graphs:
            LOG.debug("%s graph of %s [%d]\n%s", name, trace.function, number, trace.code(name))
        LOG.debug("entry of %s [%d]\n%s", trace.function, number, entry.source)
    if torch_api.trace_is_written():
        alone = trace.backward is None
        texts = {f"aot_{'inference' if alone else name}_graph": trace.code(name) for name in trace.graphs}
        texts |= {"entry": entry.source, "guards": "\n".join(guards_of(entry)), "report": entry.report()}
        texts |= {"recompile_reasons": misses_text(entry)} if entry.misses else {}
        seconds = sum(entry.seconds.values())
        metrics = {"graph_op_count": len(entry.graphs.first.body), "entire_frame_compile_time_s": seconds}
        torch_api.write_trace(
            region, place_of(region.function), texts, {**metrics, "guard_count": len(guards_of(entry))}
        )


def _log(function: str, number: int, entry: Any) -> None:
    plan, second = entry.plan, entry.graphs.second
    sizes = f"{len(entry.graphs.first.body)} operations"
    if second is not None:
        saved = sum(row.bytes for row in plan.gradients.saved)
        sizes += f", {len(second.body)} in the backward, {len(plan.gradients.saved)} saved ({saved:,} B)"
    LOG.info("captured %s [%d] in %s; %s", function, number, seconds_text(entry.seconds), sizes)
    if entry.misses:
        LOG.info("recompiled %s [%d], because these guards failed:\n%s", function, number, misses_text(entry))


def handed_over(function: Any, why: object) -> None:
    """Dynamo serves a region from now on; ``why`` is None where it was asked for."""
    if LOG.isEnabledFor(logging.INFO):
        LOG.info("%s is served by torch.compile from now on: %s", function_text(function), why or 'frontend="dynamo"')


def ran_eagerly(function: Any, why: str) -> None:
    """A call of a region runs eagerly, for a reason that is new to it."""
    if LOG.isEnabledFor(logging.INFO):
        LOG.info("%s runs eagerly: %s", function_text(function), why)
