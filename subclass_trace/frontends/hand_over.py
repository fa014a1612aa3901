"""Dynamo in the front seat, where our trace refuses a function or its calls differ without end.

``torch.compile(function, backend="subclass_trace")`` then finds out what Python does, and our back
end does the rest. Specializations that exist keep serving the calls whose guards hold;
`Region.reset` starts over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

from .. import policy
from ..errors import RuleError, SubclassTraceError, UnsupportedError
from ..options import Options
from ..report.events import handed_over, ran_eagerly
from ..report.names import name_of
from ..torch_api.autograd import saved_tensor_hooks_active
from ..torch_api.dynamo import (
    TRACES_AUTOGRAD,
    autograd_operations_traced,
    compile_alone,
    failures_run_eagerly,
    frames_tried,
    graph_breaks,
    is_of_dynamo,
    recompile_limit,
)
from ..torch_api.dynamo_methods import TracedMethods
from ..torch_api.lines import warn_user

#: how many have run, and such calls in them
graphs_run = [0, 0]


class HandOverWarning(UserWarning):
    """A region is served by Dynamo from now on, because our trace refuses it; or by eager mode,
    because Dynamo compiles it in each call."""


class Retraces:
    """Whether Dynamo compiles in each call of a region, wherever in it, and why.

    Attributes:
        compiled: in so many calls in a row it has compiled by now.
        why: what it compiles again and again; None until that is so.
        traces_autograd: it tries `torch.autograd.grad` in vain, which it can have in a graph.
    """

    def __init__(self) -> None:
        self.why: str | None = None
        self.traces_autograd = False
        self.compiled = self._in_vain = 0
        self._breaks: dict[str, int] = {}

    def called(self, before: tuple[int, int], now: tuple[int, int]) -> None:
        """A call was served, which found ``before`` and left ``now`` in `frames_tried`."""
        if before[0] == now[0]:
            self.compiled = self._in_vain = 0
            return
        self.compiled += 1
        self._in_vain = self._in_vain + 1 if before[1] != now[1] else 0
        breaks = graph_breaks()
        reasons = [text for text, count in breaks.items() if self._breaks.get(text) != count]
        self._breaks = breaks
        if self._in_vain > 1 and any(TRACES_AUTOGRAD in text for text in reasons):
            self.traces_autograd = True
        if (
            self._in_vain >= policy.POLICY.in_vain or self.compiled >= recompile_limit()
        ):  # no frame is compiled more often
            self.why = reasons[-1].splitlines()[0] if reasons else "code that is new in each call"


class HandOver:
    """The function, served by ``torch.compile``, and why."""

    def __init__(
        self, function: Callable[..., Any], options: Options, why: SubclassTraceError | None
    ) -> None:
        """``why``: the refusal; None where ``frontend="dynamo"`` asks for it."""
        self.why = why
        if why is not None:
            why.with_traceback(None)  # which would hold the fakes of the trace
            why.__cause__ = why.__context__ = None
        compiled = compile_alone(
            function,
            fullgraph=options.fullgraph,
            dynamic=options.dynamic,
            options=options.changed() or None,
        )
        # The call of the outer module costs 10 us, and runs hooks that the region has run.
        self._served: Callable[..., Any] = (
            compiled.forward if isinstance(compiled, torch.nn.Module) else compiled
        )
        self._methods, self._retraces = TracedMethods(), Retraces()
        self._function, self._row = function, 0
        self._lenient = why is not None and not options.fullgraph
        self._worth = policy.POLICY.worth if options.backend == "eager" and why is not None else 0
        # Eager mode may need more memory than there is.
        scarce = options.activation_memory_budget is not None or torch.accelerator.is_available()
        self._timed = 0 if scarce or why is None else policy.POLICY.timed
        # the fastest call by Dynamo's graphs, and the fastest eager one
        self._seconds = [float("inf"), float("inf")]
        self.call: Callable[..., Any] = self._first
        if why is not None:
            warn_user(
                f"torch.compile serves {name_of(function)} from now on: {why}", HandOverWarning
            )
        handed_over(function, why)

    def _first(self, *args: Any, **kwargs: Any) -> Any:
        """Serve a call, before a graph has run that is worth it.

        Raises:
            SubclassTraceError: our refusal, from Dynamo's error, if Dynamo refuses the call too.
        """
        graphs, calls = graphs_run
        # a checkpoint that runs this again shall meet the same one
        keep = saved_tensor_hooks_active()
        eagerly = (
            self._row >= policy.POLICY.warm
            and self._timed > 0
            and self._retraces.compiled == 0
            and not keep
        )
        self._timed -= eagerly
        start = perf_counter()
        try:
            result = self._function(*args, **kwargs) if eagerly else self._compiled(*args, **kwargs)
        except Exception as error:
            of_region = isinstance(error, SubclassTraceError) and not isinstance(error, RuleError)
            if self.why is None or not (is_of_dynamo(error) or of_region):
                raise
            raise self.why.with_traceback(None) from error
        self._seconds[eagerly] = min(self._seconds[eagerly], perf_counter() - start)
        graphs, calls = graphs_run[0] - graphs, graphs_run[1] - calls
        worth = eagerly or (graphs and calls >= self._worth * graphs)
        self._row = max(self._row, 0) + 1 if worth else min(self._row, 0) - 1
        idle = self._row <= -policy.POLICY.idle and self.why is not None
        if self._retraces.why is None and not keep:
            self.call = (
                self._compiled
                if self._row >= policy.POLICY.sure
                else self._eagerly
                if idle
                else self._first
            )
        return result

    def _compiled(self, *args: Any, **kwargs: Any) -> Any:
        before, tried = self._methods.before_call(), frames_tried()
        lenient = failures_run_eagerly(self._lenient)
        try:
            with (
                autograd_operations_traced()
                if self._retraces.traces_autograd
                else contextlib.nullcontext()
            ):
                return self._served(*args, **kwargs)
        finally:
            failures_run_eagerly(lenient)
            self._methods.after_call(before)
            self._retraces.called(tried, frames_tried())
            if (
                self._retraces.why is not None
                and self.why is not None
                and not saved_tensor_hooks_active()
            ):
                self._give_up(self._retraces.why)

    def _give_up(self, reason: str) -> None:
        """Dynamo compiles in each call, which costs more than any graph spares."""
        self.call = self._function
        what = f"torch.compile compiles {name_of(self._function)} again in each call: {reason}"
        message = f"{what}; it runs eagerly from now on, until its reset()"
        warn_user(message, HandOverWarning)
        ran_eagerly(self._function, what)

    def _eagerly(self, *args: Any, **kwargs: Any) -> Any:
        """Serve a call where Dynamo has compiled nothing, or little."""
        self._row -= 1
        if self._row % policy.POLICY.again == 0:
            return self._first(*args, **kwargs)
        return self._function(*args, **kwargs)

    def explain(self) -> str:
        """Who serves, and why; both times, where eager mode is faster."""
        code = f" [{self.why.code}]" if isinstance(self.why, UnsupportedError) else ""
        because = (
            'as frontend="dynamo" asks'
            if self.why is None
            else f"because our trace is refused{code}:\n{self.why}"
        )
        eagerly = (
            ", which compiles too little of it: it runs eagerly"
            if self.call == self._eagerly
            else ""
        )
        if self.call is self._function:
            eagerly = (
                f", which compiled it again in each call ({self._retraces.why}): it runs eagerly"
            )
        compiled, plain = self._seconds
        if not eagerly and plain < compiled < float("inf"):
            eagerly = (
                f" (a call takes {compiled * 1e3:.3g} ms, and {plain * 1e3:.3g} ms in eager mode)"
            )
        return f"served by torch.compile(backend='subclass_trace'){eagerly}, {because}"
