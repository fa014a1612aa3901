"""What takes long: seconds per stage, and a line on the terminal while it lasts.

>>> with working("capture of f") as seconds:
...     with stage("trace"):
...         pass
>>> list(seconds)
['trace']
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

#: after so many seconds the line appears
PATIENCE = 2.0
_here = threading.local()  # ``work``: what this thread works on


@dataclass
class _Work:
    """One piece of work.

    Attributes:
        seconds: stage -> how long it took, without the stages inside of it; ``inner``: of those inside of the current one.
        line: where its progress is shown; None where it is not.
    """

    what: str
    line: _Line | None
    seconds: dict[str, float] = field(default_factory=dict)
    inner: float = 0.0

    def show(self, text: str) -> None:
        """Say what is done now."""
        if self.line is not None:
            self.line.text = text


@contextlib.contextmanager
def working(what: str) -> Iterator[dict[str, float]]:
    """Inside, stages are those of this work; yields their seconds. Work inside of other work has the same line."""
    outer: _Work | None = getattr(_here, "work", None)
    line = outer.line if outer is not None else _Line() if sys.stderr.isatty() else None
    work = _here.work = _Work(what, line)
    work.show(what)
    try:
        yield work.seconds
    finally:
        _here.work = outer
        if outer is not None:
            outer.show(outer.what)
        elif line is not None:
            line.stop()


@contextlib.contextmanager
def stage(name: str) -> Iterator[None]:
    """Inside, or in the function that it decorates, time counts as this stage of the work of this thread."""
    work: _Work | None = getattr(_here, "work", None)
    if work is None:
        yield
        return
    work.show(f"{work.what}: {name}")
    start, before, work.inner = time.perf_counter(), work.inner, 0.0
    try:
        yield
    finally:
        took = time.perf_counter() - start
        work.seconds[name] = work.seconds.get(name, 0.0) + took - work.inner
        work.inner = before + took


class _Line:
    """The last line of the terminal, by rich, once `PATIENCE` is over; nothing is left of it. Without rich nothing comes."""

    _shown = threading.Lock()  # a terminal has one last line

    def __init__(self) -> None:
        self.text, self._since = "", time.perf_counter()
        self._live: Any = None
        self._lock, self._done = threading.Lock(), False
        self._timer = threading.Timer(PATIENCE, self._start)
        self._timer.daemon = True
        self._timer.start()

    def _start(self) -> None:
        with self._lock, contextlib.suppress(ImportError):
            from rich.console import Console
            from rich.live import Live

            if not self._done and self._shown.acquire(blocking=False):
                # What others print goes where it would go without us.
                apart: dict[str, Any] = {"redirect_stdout": False, "redirect_stderr": False}
                self._live = Live(get_renderable=self._now, console=Console(stderr=True), transient=True, **apart)
                self._live.start()

    def _now(self) -> Any:
        from rich.text import Text

        text = f"subclass_trace: {self.text} ({time.perf_counter() - self._since:.0f} s)"
        return Text(text, no_wrap=True, overflow="ellipsis")

    def stop(self) -> None:
        """Take it away."""
        self._timer.cancel()
        with self._lock:
            self._done = True
            if self._live is not None:
                self._live.stop()
                self._shown.release()
