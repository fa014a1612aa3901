"""What the recordings of one region have in common: a recorder with its memory, limits, and what
is told of them.

Note: whose results a replay overwrites
----------------------------------------
Results that were not cloned (what is saved for a backward, weak outputs) lie in the pool. A
recording keeps its results for as long as it lives, so one that is made later never gets their
memory. It may get the memory that an earlier one needs in between, though: **a replay leaves the
results of earlier recordings alone, and may overwrite its own and those of later ones.** So a call
is replayed if none of these is in use any more; else it is recorded anew, behind them, or, if they
are its own, runs without a recording: a second forward before the backward of the first.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...errors import OptionError
from ...torch_api.lines import warn_user
from .recorder import CudaRecorder, Recorder


@dataclass(frozen=True)
class Settings:
    """How a region is recorded.

    Attributes:
        recorder: None for CUDA graphs, or another `Recorder`.
        outputs: "clone", or "weak": a result is memory of the recording; while somebody has it, the
            next call of its kind runs without one.
        sizes: the sizes that are recorded, of the only symbol; others are padded to the next of
            them where each row is computed by itself, or else run without a recording. None: any.
        limit: so many sizes are recorded; more run without.
    """

    recorder: Any = None
    outputs: str = "clone"
    sizes: Sequence[int] | None = None
    limit: int = 16

    def __post_init__(self) -> None:
        """Check them.

        Raises:
            OptionError: a value out of range.
        """
        methods = ("on_host", "on_device", "warm", "record", "copy")
        known = [callable(getattr(self.recorder, name, None)) for name in methods]
        if self.recorder is not None and not all(known):
            self._refuse("recorder", f"an object with the methods {', '.join(methods)}")
        if self.outputs not in ("clone", "weak"):
            self._refuse("outputs", "'clone' or 'weak'")
        if not _is_size(self.limit):
            self._refuse("limit", "a whole number, 1 or more")
        if self.sizes is not None:
            given = self.sizes
            if not isinstance(given, (list, tuple)) or not given or not all(map(_is_size, given)):
                self._refuse("sizes", "a list of whole numbers, 1 or more")
            object.__setattr__(self, "sizes", tuple(sorted(set(given))))

    def _refuse(self, name: str, expected: str) -> None:
        got = repr(getattr(self, name))
        raise OptionError(
            f"{name!r} has no such value", path=f"options[{name!r}]", expected=expected, got=got
        )


def _is_size(n: Any) -> bool:
    return type(n) is int and n > 0


class HandsOut(Protocol):
    """A recording, as the pool sees it: `recording.Recording`."""

    number: int

    def is_in_use(self) -> bool:
        """Are results of it alive?"""


class Pool:
    """See the module's docstring.

    Attributes:
        lock: one call at a time: they share memory.
        memory: storages, by address, of results that lie in the pool, or stay where they are.
        ran: why calls ran without a recording, and how many.
        outside: operations that are in no recording, and why.
    """

    def __init__(self, settings: Settings) -> None:
        self.recorder: Recorder = settings.recorder or CudaRecorder()
        self.settings, self.lock = settings, threading.RLock()
        self.memory: dict[int, Any] = {}
        self.recorded = 0
        self.ran: collections.Counter[str] = collections.Counter()
        self.outside: dict[str, None] = {}
        self._in_use: list[HandsOut] = []
        self._sizes: dict[object, set[Hashable]] = {}
        self._said: set[str] = set()

    def handed_out(self, recording: HandsOut) -> None:
        """It has given results that lie in the pool."""
        if recording not in self._in_use:
            self._in_use.append(recording)

    def in_the_way(self, recording: HandsOut) -> HandsOut | None:
        """One whose results are in use, and would be overwritten."""
        if self._in_use:
            self._in_use = [r for r in self._in_use if r.is_in_use()]
            for other in self._in_use:
                if other.number >= recording.number:
                    return other
        return None

    def allows(self, group: object, kind: Hashable) -> bool:
        """May calls of this kind, a program with sizes, be recorded?"""
        known = self._sizes.setdefault(group, set())
        if kind not in known:
            if len(known) >= self.settings.limit:
                text = f"a region has recorded {self.settings.limit} sizes, its limit"
                self.say(f"{text}: calls of other sizes run without a recording")
                return False
            known.add(kind)
        return True

    def say(self, text: str) -> None:
        """Warn, once."""
        if text not in self._said:
            self._said.add(text)
            warn_user(f"{text} (region.explain() tells more)")

    def explain(self) -> str:
        """What was recorded, what was not, and why."""
        lines = [f"CUDA graphs: {self.recorded} recordings, by {self.recorder!r}"]
        lines += [f"  {count} calls ran without: {why}" for why, count in self.ran.items()]
        lines += [f"  outside of recordings: {text}" for text in self.outside]
        return "\n".join(lines)
