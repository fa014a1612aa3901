"""Random generators in a region: a graph draws from them as eager does, but it cannot set, read or make one.

Drawing on fakes leaves every generator where it was. What moves or reads one is C code that no tensor mode sees: the
functions of ``torch.random`` meet a stand-in for the default generator, and generators that the function may use are
compared with what they were. (What other threads draw meanwhile concerns nobody.)
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from .. import _torch
from ..errors import UnsupportedError
from .user_code import is_user_code

Generator = torch.Generator
_FIX = "seed outside of the region before the call, or make the torch.Generator outside and pass it"


class RandomState:
    """What one capture knows of generators: ``known`` are those that were there before; None: nobody has looked."""

    def __init__(self, known: Iterable[Generator] | None, recorder: Any) -> None:
        self.recorder = recorder
        self.known = None if known is None else {g._cdata: g for g in known}  # type: ignore[attr-defined]

    def draws(self, generator: Generator) -> None:
        """The region draws from this explicit generator.

        Raises:
            UnsupportedError: it was not there before.
        """
        there = {*(self.known or ()), *(g._cdata for g in _defaults())}  # type: ignore[attr-defined]
        if self.known is not None and generator._cdata not in there:  # type: ignore[attr-defined]
            raise UnsupportedError(
                "the region draws from a random generator that it makes: it would go on drawing from that one",
                path=self.recorder.user_line(),
                expected="a torch.Generator that is an argument, or that the function has a name for",
                got="another one",
                fix=_FIX,
            )

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """While inside, on this thread, setting or reading the state of a generator is refused.

        Raises:
            UnsupportedError: the state of one was set or read.
        """
        known, alone = [*(self.known or {}).values()], threading.active_count() == 1
        before = [(g, g.get_state()) for g in (*known, *_defaults())]
        self.recorder.random_state = self
        try:
            with _stand_in_for_default(), _methods_watched() if known else contextlib.nullcontext():
                yield
        finally:
            self.recorder.random_state = None
            with _torch.no_modes():
                alone = alone and threading.active_count() == 1
                rows = before if alone else before[: len(known)]
                moved = [(g, state) for g, state in rows if not torch.equal(state, g.get_state())]
                for g, state in moved:
                    g.set_state(state)
        if moved:
            raise _refused("manual_seed, seed or set_state of a generator", None)


@contextlib.contextmanager
def _methods_watched() -> Iterator[None]:
    """Inside, user code of this thread may call no method of a generator. They are C code, of which the profile hook hears."""
    before = sys.getprofile()

    def look(frame: Any, event: str, called: Any) -> None:
        if event == "c_call" and isinstance(getattr(called, "__self__", None), Generator) and called.__name__ != "device":
            if is_user_code(frame.f_code):
                raise _refused(f"Generator.{called.__name__}()", f"{frame.f_code.co_filename}:{frame.f_lineno}")
        if before is not None:
            before(frame, event, called)

    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(before)


def _refused(name: str, line: str | None) -> UnsupportedError:
    return UnsupportedError(
        "the region sets or reads the state of a random generator",
        path=line,
        expected="a function that draws random numbers and leaves their generators to its caller",
        got=name,
        fix=_FIX,
    )


def _defaults() -> list[Generator]:
    found = [torch.default_generator]
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found += torch.cuda.default_generators
    return found


class _StandIn:
    """The default generator, for ``torch.random``: methods are refused where user code of this thread asks for them."""

    def __init__(self, real: Generator) -> None:
        self._real, self._thread = real, threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        if name != "device" and threading.get_ident() == self._thread:
            frame: Any = sys._getframe(1)
            called = frame.f_code.co_name
            while frame is not None and (not is_user_code(frame.f_code) or frame.f_code.co_filename == contextlib.__file__):
                called = frame.f_code.co_name if frame.f_code.co_filename == torch.random.__file__ else called
                frame = frame.f_back
            if frame is not None and frame.f_code.co_filename != __file__:
                raise _refused(f"torch.random.{called}()", f"{frame.f_code.co_filename}:{frame.f_lineno}")
        return getattr(self._real, name)


@contextlib.contextmanager
def _stand_in_for_default() -> Iterator[None]:
    module: Any = torch.random
    real: Callable[..., Any] = module.default_generator
    module.default_generator = _StandIn(real)  # type: ignore[arg-type]
    try:
        yield
    finally:
        module.default_generator = real
