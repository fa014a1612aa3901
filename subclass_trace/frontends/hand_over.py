"""Dynamo in the front seat, where our trace refuses a function or its calls differ without end.

``torch.compile(function, backend="subclass_trace")`` then finds out what Python does, and our back end does the rest.
Specializations that exist keep serving the calls whose guards hold; `Region.reset` starts over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..errors import LimitError, NeedsEager, SubclassTraceError, UnsupportedError
from ..options import Options
from ..report.events import handed_over
from ..report.names import name_of
from ..torch_api import warn_user
from ..torch_api.dynamo import compile_alone, is_of_dynamo
from ..torch_api.dynamo_methods import TracedMethods

#: so many calls in which no graph of Dynamo's was worth its guards: there is none, as of ``nn.LSTM``, or code that Dynamo
#: breaks into pieces; after so many more it is asked again, since other calls may have larger ones
_IDLE, _AGAIN = 3, 64
#: so many calls in a row with such a graph: Dynamo's limit of recompilations is not what decides
_SURE = 16
#: for so many calls of torch's functions, on average, graphs of the eager back end cost less than they spare
_WORTH = 16
#: how many have run, and such calls in them
graphs_run = [0, 0]


class HandOverWarning(UserWarning):
    """A region is served by Dynamo from now on, because our trace refuses it."""


def hands_over(error: SubclassTraceError) -> bool:
    """Is it a refusal that Dynamo may know better? Errors of protocols, arguments, options, back ends, tangents and
    the verifier are not."""
    return isinstance(error, (UnsupportedError, LimitError)) and not isinstance(error, NeedsEager)


class HandOver:
    """The function, served by ``torch.compile``, and why."""

    def __init__(self, function: Callable[..., Any], options: Options, why: SubclassTraceError | None) -> None:
        """``why``: the refusal; None where ``frontend="dynamo"`` asks for it."""
        self.why = why
        if why is not None:
            why.with_traceback(None)  # which would hold the fakes of the trace
            why.__cause__ = why.__context__ = None
        compiled = compile_alone(
            function, fullgraph=options.fullgraph, dynamic=options.dynamic, options=options.changed() or None
        )
        # The call of the outer module costs 10 us, and runs hooks that the region has run.
        self._served: Callable[..., Any] = compiled.forward if isinstance(compiled, torch.nn.Module) else compiled
        self._methods = TracedMethods()
        self._function, self._row = function, 0
        self._worth = _WORTH if options.backend == "eager" and why is not None else 0
        self.call: Callable[..., Any] = self._first
        if why is not None:
            warn_user(f"torch.compile serves {name_of(function)} from now on: {why}", HandOverWarning)
        handed_over(function, why)

    def _first(self, *args: Any, **kwargs: Any) -> Any:
        """Serve a call, before a graph has run that is worth it.

        Raises:
            SubclassTraceError: our refusal, from Dynamo's error, if Dynamo refuses the call too.
        """
        graphs, calls = graphs_run
        try:
            result = self._compiled(*args, **kwargs)
        except Exception as error:
            if self.why is None or not (is_of_dynamo(error) or isinstance(error, SubclassTraceError)):
                raise
            raise self.why.with_traceback(None) from error
        graphs, calls = graphs_run[0] - graphs, graphs_run[1] - calls
        worth = graphs and calls >= self._worth * graphs
        self._row = max(self._row, 0) + 1 if worth else min(self._row, 0) - 1
        idle = self._row <= -_IDLE and self.why is not None
        self.call = self._compiled if self._row >= _SURE else self._eagerly if idle else self._first
        return result

    def _compiled(self, *args: Any, **kwargs: Any) -> Any:
        before = self._methods.before_call()
        try:
            return self._served(*args, **kwargs)
        finally:
            self._methods.after_call(before)

    def _eagerly(self, *args: Any, **kwargs: Any) -> Any:
        """Serve a call where Dynamo has compiled nothing, or little."""
        self._row -= 1
        if self._row % _AGAIN == 0:
            return self._first(*args, **kwargs)
        return self._function(*args, **kwargs)

    def explain(self) -> str:
        """Who serves, and why."""
        because = 'as frontend="dynamo" asks' if self.why is None else f"because our trace is refused:\n{self.why}"
        eagerly = ", which compiles too little of it: it runs eagerly" if self.call == self._eagerly else ""
        return f"served by torch.compile(backend='subclass_trace'){eagerly}, {because}"
