"""One run of a region's function on traced values, whose inputs are made as it reads them."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from ..capture.capture import Capture, Captured, Ran
from ..capture.inputs import Argument, Inputs
from ..capture.session import Session
from ..options import Options
from ..stages import stage
from ..state.place import Place, Roots, above
from ..state.run import StateRun
from ..subclass.paths import Path
from ..torch_api.modes import no_modes, no_overrides
from ..torch_api.numbers import math_of_symbols
from .dynamic import SizeHistory, choose

Tensor = torch.Tensor
#: the positional and keyword arguments of a call
Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


class Maker:
    """Makes the inputs of one trace as Python state is read: see `state.run.StateRun`.

    Attributes:
        flat: the distinct tensors and numbers, in the order in which they were found; ``places``:
            where.
        handed: what stands for each; ``roots``: of the call.
        inputs: of the capture, which sets it.
    """

    inputs: Inputs

    def __init__(
        self,
        session: Session,
        history: SizeHistory,
        options: Options,
        roots: Roots,
        *,
        symbols: bool,
    ) -> None:
        self.session, self.history, self.options, self.roots = session, history, options, roots
        self.numbers, self.may_have_symbols = symbols and options.dynamic is not False, symbols
        self.flat: list[Any] = []
        self.places: list[Place] = []
        self.handed: list[Any] = []
        self._texts: collections.Counter[str] = collections.Counter()
        self.floats = (
            options.backend == "eager" and options.fw_compiler is options.bw_compiler is None
        )

    def tensors(self, found: Sequence[tuple[Place, Tensor]]) -> list[Tensor]:
        """The traced tensors for these."""
        # real tensors: nothing here is part of the trace
        with no_overrides(), no_modes():
            new = []
            for k, (place, real) in enumerate(found, len(self.flat)):
                new.append(Argument(real, self._path(place), k, place, self._kind(place, real)))
            if self.options.dynamic is not False:
                self.history.add(new)
            dynamic = choose(new, self.history, self.options.dynamic is True, self.may_have_symbols)
            if dynamic.any() and not self.session.dynamic:
                raise HasSymbols
        made = self.inputs.add(new, dynamic)
        for (place, real), traced in zip(found, made, strict=True):
            self._add(place, real, traced)
        return made

    def _kind(self, place: Place, real: Tensor) -> str:
        """See `plan.descriptors.Input`."""
        if isinstance(real, torch.nn.Parameter):
            return "parameter"
        if place.moves:
            return "argument"
        steps = [at for at in above(place) if at.parent is not None]
        if len(steps) > 1 and steps[1].kind == "attr" and steps[1].key == "_buffers":
            return "buffer"
        of = (
            at.parent.read(self.roots)
            for at in steps
            if at.parent is not None and type(at.key) is str and at.key == "state"
        )
        return (
            "optimizer state" if any(isinstance(o, torch.optim.Optimizer) for o in of) else "state"
        )

    def _path(self, place: Place) -> Path:
        """A text of its own: two keys of a dict may have one, as Parameters have. Sizes are
        remembered by it."""
        text = str(place)
        self._texts[text] += 1
        return Path(text if self._texts[text] == 1 else f"{text} #{self._texts[text]}")

    def _add(self, place: Place, value: Any, traced: Any) -> None:
        self.flat.append(value)
        self.places.append(place)
        self.handed.append(traced)

    def number(self, place: Place, value: Any) -> Any:
        """The symbol of a number that changes between calls."""
        if not self.numbers or not self.history.has_symbols:
            return None
        path = str(place)
        if not self.history.is_symbol(path, value, floats=self.floats):
            return None
        symbol = self.session.number(len(self.flat), value, path)
        self.inputs.bind_sizes([symbol])
        self._add(place, value, symbol)
        return symbol


class HasSymbols(Exception):
    """Sizes of this call are symbols: the trace starts again, in a session that has some."""


@stage("trace")
def traced_call(
    function: Callable[..., Any],
    call: Arguments,
    options: Options,
    history: SizeHistory,
    session: Session,
    symbols: bool,
) -> tuple[Captured, StateRun, Maker]:
    """Trace one call; Python state is as it was before, whatever happens.

    Raises:
        HasSymbols: the session has none.
        SubclassTraceError: a refusal.
        Exception: the function's own.
    """
    maker = Maker(session, history, options, Roots(*call, function), symbols=symbols)
    state = StateRun(function, call, maker, warns=options.frontend == "trace")
    state.waits = history.waits

    def run(inputs: Inputs) -> Ran:
        maker.inputs = inputs
        args, kwargs = state.start()
        return Ran(state.run(args, kwargs), maker.handed)

    with math_of_symbols() if session.dynamic else contextlib.nullcontext():
        try:
            with session.recorder.during(state=state):
                captured = Capture(session).capture(run)
        finally:
            state.restore()
    session.recorder.forward_state = state
    return captured, state, maker
