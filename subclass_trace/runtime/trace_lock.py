"""The lock around traces, and what a fork does about it."""

from __future__ import annotations

import os
import threading
from typing import Any

from ..torch_api.dynamo import dynamo_lock

#: captures and later traces share process-wide state (fake modes, patched checkpoint), so they are
#: serialised; Dynamo's lock comes before it
TRACE_LOCK = threading.RLock()
#: seconds; whoever traces may itself wait for the thread that forks
_PATIENCE = 30.0
_held: dict[int, list[Any]] = {}  # by the thread that forks


def _before_fork() -> None:
    """In the child there is no other thread that would end its trace, and give the locks back."""
    locks = [lock for lock in (dynamo_lock(), TRACE_LOCK) if hasattr(lock, "acquire")]
    _held[threading.get_ident()] = [lock for lock in locks if lock.acquire(timeout=_PATIENCE)]


def _after_fork() -> None:
    for lock in reversed(_held.pop(threading.get_ident(), [])):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
    )
