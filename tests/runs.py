"""How often the Python code of a function runs."""

from __future__ import annotations

import queue


class Runs:
    """Counts where no region looks: numbers and lists in Python state are moved on in each call."""

    def __init__(self) -> None:
        self._seen: queue.SimpleQueue[None] = queue.SimpleQueue()

    def note(self) -> None:
        """The function runs."""
        self._seen.put(None)

    def __len__(self) -> int:
        return self._seen.qsize()

    def clear(self) -> None:
        """Begin anew."""
        while len(self):
            self._seen.get()
