"""How often the Python code of a function runs."""

from __future__ import annotations

import sys
from typing import Any

_counters: dict[str, list[int]] = {}


def _heard(event: str, args: tuple[Any, ...]) -> None:
    if event == "subclass_trace.tests.ran":
        _counters[args[0]][0] += 1


sys.addaudithook(_heard)


class Runs:
    """Counts where no region looks: what a region does to numbers and lists is done in each call, an audit event is heard once."""

    def __init__(self) -> None:
        self._name = f"runs {len(_counters)}"
        _counters[self._name] = [0]

    def note(self) -> None:
        """The function runs."""
        sys.audit("subclass_trace.tests.ran", self._name)

    def __len__(self) -> int:
        return _counters[self._name][0]

    def clear(self) -> None:
        """Begin anew."""
        _counters[self._name][0] = 0
