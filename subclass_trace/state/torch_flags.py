"""Torch's own flags, as a region asks for them and sets them: the table is `torch_api.flags.FLAGS`.

A flag that is asked for is a row. What the tracer switches for itself is not seen by the region.
What a region sets stays set after each call, and is put back after a trace.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ..errors import UnsupportedError
from ..plan import SideEffect
from ..plan.values import Constant
from ..torch_api.flag_rows import ALWAYS, AUTOCAST
from ..torch_api.flags import (
    FLAG_NAMED,
    FLAGS_OF_GETTER,
    FLAGS_OF_SETTER,
    changed_flags,
    put_back_flags,
    read_flags,
)
from ..torch_api.flags import FLAGS as torch_FLAGS
from ..torch_api.modes import autocast_classes
from . import calls
from .kinds import Function
from .recorder import user_line
from .running import Running
from .writes import Table


class Flags(Table):
    """A flag of torch's, by its row of the table."""

    def put(self, thing: Any, key: Any, value: Any) -> None:
        """Set it."""
        thing.write(value)


FLAGS = Flags()


class FlagsOfRun:
    """The flags around one run: ``outside`` as the caller has them, ``inside`` as the tracer has
    set them.

    Attributes:
        set: the names of those that the region sets.
        of_kernels: of these, those that kernels read as they run, where they are other than the
            caller's now.
    """

    def __init__(self) -> None:
        self.outside = self.inside = read_flags()
        self.set: set[str] = set()
        self.of_kernels: tuple[str, ...] = ()

    def start(self) -> None:
        """Code of the user's runs from here."""
        self.inside = read_flags()

    def effects(self, rec: Running) -> list[SideEffect]:
        """What the region has set: each call shall. (What another thread sets meanwhile stays.)"""
        now = read_flags()
        changed = self._changed(now)
        flags = [FLAG_NAMED[name] for name in changed]
        for name in sorted(self.set.difference(changed)):
            flag = FLAG_NAMED[name]
            is_compared = flag.of_thread and flag.decides == ALWAYS
            is_known = is_compared or _place(rec, flag) in rec.noted
            if now[name] != self.outside[name] or not is_known:
                flags.append(flag)
        return [
            SideEffect(flag, FLAGS, "put", (flag.name,), (Constant(now[flag.name]),))
            for flag in flags
            if flag.write is not None
        ]

    def _changed(self, now: dict[str, Any]) -> list[str]:
        changed = changed_flags(self.inside, now)
        return [name for name in changed if name in self.set or FLAG_NAMED[name].of_thread]

    def leave(self) -> None:
        """The run is over: the tracer's own contexts leave from what they have set."""
        put_back_flags({name: self.inside[name] for name in self._changed(read_flags())})


def _place(rec: Running, flag: Any) -> Any:
    return rec.child(rec.root(flag.read, flag.code), "call", ())


def note(rec: Running, flag: Any) -> None:
    """A flag decides the trace, as it was outside."""
    if flag.name not in rec.flags.set:
        rec.state_at(_place(rec, flag), rec.flags.outside[flag.name])


def _autocasts(rec: Running, cls: Any, a: tuple[Any, ...], k: dict[str, Any]) -> Any:
    """A region that turns autocast on starts from the dtypes that are set."""
    for flag in torch_FLAGS:
        if flag.decides == AUTOCAST:
            note(rec, flag)
    return cls(*a, **k)


def _asked(rec: Running, f: Any, a: tuple[Any, ...], k: dict[str, Any]) -> Any:
    """A function that tells flags."""
    with as_outside(rec, FLAGS_OF_GETTER[f]):
        return f(*a, **k)


@contextlib.contextmanager
def as_outside(rec: Running, flags: Iterable[Any]) -> Iterator[None]:
    """Inside, flags tell what the caller or the region has set, not the tracer; that is read."""
    run, aside = rec.flags, []
    for flag in flags:
        if flag.name in run.set:
            continue
        note(rec, flag)
        now = flag.read()
        if flag.name == "default devices":  # a mode, below those of the trace
            continue
        if (
            flag.write is not None
            and now != run.outside[flag.name]
            and now == run.inside[flag.name]
        ):
            aside.append((flag.write, now))
            flag.write(run.outside[flag.name])
    try:
        yield
    finally:
        for write, now in aside:
            write(now)


def _set(rec: Running, f: Any, a: tuple[Any, ...], k: dict[str, Any]) -> Any:
    """A function that sets flags."""
    names = [flag.name for flag in FLAGS_OF_SETTER[f]]
    if "default devices" in names:  # a mode, which would stand above those of the trace
        rec.refuse(
            UnsupportedError(
                "the region sets the default device",
                code="default-device-set",
                path=user_line(),
                fix="set it outside of the region",
            )
        )
    before = read_flags()
    try:
        return f(*a, **k)
    finally:  # some change others as well
        run, now = rec.flags, read_flags()
        run.set.update(names, changed_flags(before, now))
        differs = changed_flags(run.outside, now)
        run.of_kernels = tuple(n for n in differs if n in run.set and FLAG_NAMED[n].of_kernels)


def _set_without_a_row(rec: Running, f: Any, a: tuple[Any, ...], k: dict[str, Any]) -> Any:
    rec.refuse(
        UnsupportedError(
            "the region sets a flag of kernels, which nothing tells",
            code="flag-of-kernels",
            path=user_line(),
            got=f.__name__,
            fix="set it outside of the region",
        )
    )


calls.C_TABLE[torch.set_flush_denormal] = _set_without_a_row
calls.CLASSES.update(dict.fromkeys(autocast_classes(), _autocasts))
for _table, _handler in ((FLAGS_OF_GETTER, _asked), (FLAGS_OF_SETTER, _set)):
    for _function in _table:
        (calls.FUNCTIONS if type(_function) is Function else calls.C_TABLE)[_function] = _handler
