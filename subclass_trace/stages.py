"""What takes long: seconds per stage, and a line on the terminal while it lasts (by rich; without
it nothing is shown).

>>> with working("capture of f") as seconds, stage("trace"):
...     pass
>>> list(seconds)
['trace']
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import time
from collections.abc import Iterator, Sequence

#: after so many seconds the line appears
PATIENCE = 2.0


class _Here(threading.local):
    """What this thread works on: names from the outside in, and seconds of the innermost work."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.seconds: dict[str, float] = {}
        self.inside = 0.0  # of finished stages inside of the current one


_here = _Here()


@contextlib.contextmanager
def stage(name: str) -> Iterator[None]:
    """Inside, or in the function that it decorates, time counts as this stage of the work of this
    thread."""
    start, seconds, outside, _here.inside = time.perf_counter(), _here.seconds, _here.inside, 0.0
    _here.names.append(name)
    try:
        yield
    finally:
        took = time.perf_counter() - start
        _here.names.pop()
        seconds[name] = seconds.get(name, 0.0) + took - _here.inside
        _here.inside = outside + took


@contextlib.contextmanager
def working(what: str) -> Iterator[dict[str, float]]:
    """Inside, stages are those of this work; yields their seconds."""
    shown = not _here.names and sys.stderr.isatty()
    with stage(what), _line(_here.names) if shown else contextlib.nullcontext():
        outer, _here.seconds = _here.seconds, {}
        try:
            yield _here.seconds
        finally:
            _here.seconds = outer


@contextlib.contextmanager
def _line(names: Sequence[str]) -> Iterator[None]:
    """The last line of the terminal says what is done, from `PATIENCE` on; nothing is left of
    it."""
    done = threading.Event()
    thread = threading.Thread(target=_show, args=(names, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _show(names: Sequence[str], done: threading.Event) -> None:
    if done.wait(PATIENCE):
        return
    with contextlib.suppress(ImportError):
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        start = time.perf_counter() - PATIENCE

        def now() -> Text:
            took = time.perf_counter() - start
            return Text(
                f"subclass_trace: {': '.join(names)} ({took:.0f} s)",
                no_wrap=True,
                overflow="ellipsis",
            )

        console = Console(stderr=True)  # what others print goes where it would go without us
        with Live(
            get_renderable=now,
            console=console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        ):
            done.wait()


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Capture and partition make many live objects; collecting among them costs a third of the time
    and frees nothing. And what finalizers, callbacks of weak references and those of the collector
    do is no part of what is recorded."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not _has_frozen():
                # there and back: what was made here is old at once, so that enabling does not
                gc.freeze()
                gc.unfreeze()  # set off a full collection over all of it
            gc.enable()


_frozen: list[bool] = []


def _has_frozen() -> bool:
    """Has the caller frozen objects, which to unfreeze would release? What counts them walks all of
    them, so a process that has once done it is not asked again."""
    if not _frozen and gc.get_freeze_count():
        _frozen.append(True)
    return bool(_frozen)
