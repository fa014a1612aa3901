"""What serves a call without a trace: the program of an equal module, or the first description of a
source that binds."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..artifacts.source import Source
from ..options import Options
from ..report.names import name_of
from ..stages import working
from .compile_call import from_description
from .dynamic import SizeHistory
from .equal_modules import of_another
from .specialization import Specialization
from .traced_call import Arguments


@dataclass(frozen=True, eq=False)
class Unverified:
    """A candidate that would serve, and of which its source wants to know what a new trace says."""

    source: Source
    name: str
    data: dict[str, Any]

    def is_said_by(self, traced: Specialization, call: Arguments) -> bool:
        """Does a new trace of the call say the same? The source knows by then."""
        describe = functools.partial(traced.describe, *call[0], **call[1])
        return self.source.compared(self.name, self.data, describe)


def without_a_trace(
    sources: Sequence[Source],
    function: Any,
    call: Arguments,
    options: Options,
    history: SizeHistory,
    *,
    shares: bool,
) -> Specialization | Unverified | None:
    """What serves a call; ``shares``: that of an equal module would do. Sources are told of those
    that do not."""
    if shares and (shared := of_another(function, call, options, history)) is not None:
        return shared
    for source in sources:
        for name, data in source.candidates():
            try:
                with working(f"binding of {name_of(function)}") as seconds:
                    found = from_description(data, function, call, options, history)
            except Exception as error:  # guards run code of classes, and data may be anything
                source.refused(name, error)
                continue
            found = replace(found, seconds=seconds)
            if source.asks_for_a_trace():
                history.learn(found.plan, found.state.flat)
                return Unverified(source, name, data)
            source.bound(name)
            return found
    return None
