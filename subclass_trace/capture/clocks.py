"""The time: a region would read the clock once, while it is traced, and use that reading for ever.

While the function runs, the clocks of the ``time`` module give its code a `Reading`: a number that stays one through
arithmetic, so that it is known where it comes out. A reading that is printed or logged is as good as any; where one is
computed with, compared, returned or stored, the region is refused. So are random bytes of the operating system.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..errors import UnsupportedError
from .user_code import asking_frame, is_users_own

_CLOCKS = ("time", "perf_counter", "monotonic", "process_time", "thread_time")
#: the clocks of the ``time`` module, by name
_NAMES = (*_CLOCKS, *(f"{name}_ns" for name in _CLOCKS))


class Reading:
    """A number that was computed from the time of the trace."""

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self


class _Float(Reading, float):
    pass


class _Int(Reading, int):
    pass


#: the classes of readings
READINGS = (_Float, _Int)


def reading(number: Any) -> Any:
    """A number as a reading; other values as they are."""
    if type(number) is float:
        return _Float(number)
    return _Int(number) if type(number) is int else number


def _computed(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def compute(self: Any, *others: Any) -> Any:
        out = plain(self, *others)
        return tuple(map(reading, out)) if type(out) is tuple else reading(out)

    return compute


def _compared(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def compare(self: Any, other: Any) -> Any:
        frame = asking_frame(sys._getframe(1))
        if frame is None:
            return plain(self, other)
        line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        raise (ACTIVE[-1] if ACTIVE else Clocks()).refusal("compares the time with a number", line)

    return compare


_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow")
for _cls, _plain in ((_Float, float), (_Int, int)):
    for _name in (
        *_ARITHMETIC,
        *(f"r{n}" for n in _ARITHMETIC),
        "neg",
        "pos",
        "abs",
        "round",
        "trunc",
        "floor",
        "ceil",
    ):
        setattr(_cls, f"__{_name}__", _computed(getattr(_plain, f"__{_name}__")))
    for _name in ("lt", "le", "gt", "ge"):
        setattr(_cls, f"__{_name}__", _compared(getattr(_plain, f"__{_name}__")))


# ---------------------------------------------------------------------------------------------- while the function runs
class Clocks:
    """What one run of the function reads; ``taken``: (name of the clock, line) of each reading."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, str]] = []
        self._started, self._thread = datetime.datetime.now(), threading.get_ident()

    def is_time(self, value: Any) -> bool:
        """Is it a reading, or a date and time since the function began?"""
        if not isinstance(value, datetime.datetime):
            return isinstance(value, Reading)
        passed = datetime.datetime.now() - self._started
        moments = (self._started, self._started.astimezone(datetime.timezone.utc).replace(tzinfo=None))
        return any(moment <= value.replace(tzinfo=None) <= moment + passed for moment in moments)

    def refusal(self, what: str, where: object) -> UnsupportedError:
        """What to say of a region that uses the time for more than a log."""
        name, line = self.taken[0] if self.taken else ("datetime.now", None)
        return UnsupportedError(
            f"the region {what}, which would be the time of its trace in each call",
            path=where,
            expected="times that are printed or logged, if anything",
            got=f"time.{name}() at {line}" if line else f"{name}()",
            fix="read the clock outside of the region, and store or return the time there; printing or logging it is fine",
        )

    def refuse_among(self, values: Iterable[Any], where: Callable[[], object]) -> None:
        """Refuse a time among the arguments of an operation."""
        for value in values:
            if isinstance(value, Reading):
                raise self.refusal("computes with the time", where())
            if type(value) in (list, tuple):
                self.refuse_among(value, where)

    def clock(self, name: str, plain: Callable[[], Any]) -> Callable[[], Any]:
        """What stands for a clock: code of the user's gets a reading."""

        @functools.wraps(plain)
        def read() -> Any:
            line = self._line(sys._getframe(1))
            if line is None:
                return plain()
            self.taken.append((name, line))
            return reading(plain())

        return read

    def source(self, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        """What stands for a source of random bytes: code of the user's is refused."""

        @functools.wraps(plain)
        def draw(*args: Any, **kwargs: Any) -> Any:
            line = self._line(asking_frame(sys._getframe(1)))
            if line is None:
                return plain(*args, **kwargs)
            raise UnsupportedError(
                f"the region draws random numbers from {name}: each call would use those of its trace",
                path=line,
                expected="random numbers of torch, which each call draws anew",
                got=name,
                fix="draw the number outside and pass it as an argument, or draw it with torch.rand, torch.randint, ...",
            )

        return draw

    def _line(self, frame: Any) -> str | None:
        """``file:line`` of code of the user's; None for all other code, and for other threads."""
        if frame is None or threading.get_ident() != self._thread or not is_users_own(frame.f_code):
            return None
        return f"{frame.f_code.co_filename}:{frame.f_lineno}"


#: those of the captures that are running
ACTIVE: list[Clocks] = []


@contextlib.contextmanager
def clocks(names: Iterable[tuple[dict[str, Any], Any]]) -> Iterator[Clocks]:
    """Inside, the function runs, whose code finds clocks in the ``time`` module and by these ``names`` (globals, name)."""
    found = Clocks()
    plain = [(vars(time), name) for name in _NAMES if hasattr(time, name)]
    stand_ins = {table[name]: found.clock(name, table[name]) for table, name in plain}
    stand_ins[os.urandom] = found.source("os.urandom", os.urandom)
    stand_ins[uuid.uuid1] = found.source("uuid.uuid1", uuid.uuid1)
    plain += [(vars(os), "urandom"), (vars(random), "_urandom"), (vars(uuid), "uuid1")]
    plain += [(t, k) for t, k in names if type(t.get(k)) in _FUNCTIONS and t[k] in stand_ins]
    places = [(table, name, table[name]) for table, name in plain]
    ACTIVE.append(found)
    for table, name, value in places:
        table[name] = stand_ins[value]
    try:
        yield found
    finally:
        ACTIVE.remove(found)
        for table, name, value in places:
            if table.get(name) is stand_ins[value]:
                table[name] = value


#: what the clocks, and the others, are
_FUNCTIONS = (type(time.time), type(uuid.uuid1))
