"""How often the Python code of a function runs."""

from __future__ import annotations

import ctypes


class Runs:
    """Counts where no region looks: numbers and lists in Python state are moved on in each call, memory of C is not."""

    def __init__(self) -> None:
        self._seen = ctypes.c_int(0)

    def note(self) -> None:
        """The function runs."""
        self._seen.value += 1

    def __len__(self) -> int:
        return self._seen.value

    def clear(self) -> None:
        """Begin anew."""
        self._seen.value = 0
