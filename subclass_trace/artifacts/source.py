"""Where a region finds descriptions, and brings those that it makes: what a file or a cache is to
it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..data.describe import Description


class Source:
    """Asked when no specialization serves a call; a region has some.

    A candidate has a name. Each that is handed out is either `bound` or `refused`.
    """

    def candidates(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Names and data of what may serve."""
        raise NotImplementedError

    def bound(self, name: str) -> None:
        """It serves from now on."""

    def refused(self, name: str, error: Exception) -> None:
        """It does not serve this call."""

    def asks_for_a_trace(self) -> bool:
        """Shall what it has be compared with a new trace, before it serves?"""
        return False

    def compared(
        self, name: str, data: dict[str, Any], describe: Callable[[], Description]
    ) -> bool:
        """A new trace has been made, which serves: does it say the same? Never raises."""
        raise NotImplementedError

    def made(self, describe: Callable[[], Description]) -> None:
        """A trace has made what none of the candidates was; ``describe`` says what it is. Never
        raises."""

    def reset(self) -> None:
        """The region forgets what it has."""

    def explain(self) -> str:
        """What it holds, and why what it holds did not serve."""
        raise NotImplementedError
