"""Every specialization goes ``describe -> JSON -> bind``, in place of itself."""

from __future__ import annotations

import collections
import json
from dataclasses import replace
from typing import Any

from subclass_trace.frontends import region
from subclass_trace.frontends.compile_call import from_description
from subclass_trace.frontends.specialization import Specialization


class Through:
    """Replaces what a trace has made by what its description is bound to.

    Attributes:
        portable: how many were.
        gaps: why the others were not.
    """

    def __init__(self) -> None:
        self.portable = 0
        self.gaps: list[tuple[str, ...]] = []
        self._made = region.compile_call

    def __call__(
        self, function: Any, call: Any, ambient: Any, options: Any, history: Any, *rest: Any, **named: Any
    ) -> Specialization:
        """As `compile_call`."""
        made = self._made(function, call, ambient, options, history, *rest, **named)
        described = made.describe(*call[0], **call[1])
        if described.gaps:
            self.gaps.append(tuple(map(str, described.gaps)))
            return made
        data = json.loads(json.dumps(described.data))
        found = from_description(data, function, call, options, history)
        self.portable += 1
        return replace(found, misses=made.misses)

    @property
    def reasons(self) -> collections.Counter[str]:
        """Why how many were not portable: what stands last of the first gap of each."""
        return collections.Counter(gaps[0].rpartition(": ")[2] for gaps in self.gaps)
