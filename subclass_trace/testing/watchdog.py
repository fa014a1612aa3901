"""A limit on how long one line of a rule may take: classes can hang, and then the report should say where.

It uses an alarm signal, so it works in the main thread of systems that have one, and only while Python code runs;
elsewhere there is no limit.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


class TookTooLong(Exception):
    """A line did not come to an end in time."""


@contextlib.contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise `TookTooLong` in the body after so many seconds."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: Any) -> None:
        raise TookTooLong(f"more than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, ring)
    remaining, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, remaining)
        signal.signal(signal.SIGALRM, before)
