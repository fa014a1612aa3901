"""Random generators in a region: a graph draws from them as eager does, but it cannot set, read or make one.

Drawing on fakes leaves every generator where it was. What moves or reads one is C code that no tensor mode sees, so
it is watched for: the functions of ``torch.random`` meet a stand-in for the default generator, and where a region draws
from an explicit generator, Python's profile hook tells which methods of generators it calls (on a second trace, unless
one was found beforehand). A generator that no trace met before was made in the region.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from .. import _torch
from ..errors import UnsupportedError
from .user_code import TORCH_FILES, is_user_code

Generator = torch.Generator
Tensor = torch.Tensor
_ALLOWED = ("device",)
#: what stands between ``torch.manual_seed`` and its caller
_KEEPS_DYNAMO_OUT = (os.path.join("torch", "_compile.py"), os.path.join("torch", "_dynamo", "eval_frame.py"))
_FIX = "seed outside of the region before the call, or make the torch.Generator outside and pass it"


class UnknownGenerators(Exception):
    """The region draws from these, or somebody moved them; it has to be traced again, watching them."""

    def __init__(self, met: tuple[Generator, ...], moved: Sequence[tuple[Generator, Tensor]]) -> None:
        super().__init__()
        self.met = met
        self.moved = moved  # with the states that they had


class RandomState:
    """What one capture knows of generators.

    Attributes:
        known: those that were there before, by the address of what they hold. None: nobody traces again.
        met: explicit generators that the region draws from, and which were not known.
    """

    def __init__(
        self, known: Iterable[Generator] | None, recorder: Any, first: UnknownGenerators | None = None
    ) -> None:
        self.recorder, self.again = recorder, first is not None
        self.ask = known is not None
        self._moved = () if first is None else first.moved  # by the region, if this trace refuses it
        self.known = {g._cdata: g for g in known or ()}  # type: ignore[attr-defined]
        self.met: dict[int, Generator] = {}

    def draws(self, generator: Generator) -> None:
        """The region draws from this explicit generator.

        Raises:
            UnsupportedError: this trace is the second one, and it is new: it was made in the region.
        """
        number = generator._cdata  # type: ignore[attr-defined]
        if not self.ask or number in self.known:
            return
        if self.again:
            raise UnsupportedError(
                "the region makes a random generator: the compiled region would go on drawing from that one",
                path=self.recorder.user_line(),
                expected="a torch.Generator that exists before the region runs",
                got="another generator each time the region is traced",
                fix=_FIX,
            )
        self.met[number] = generator

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """While inside, on this thread, setting or reading the state of a generator is refused.

        Raises:
            UnknownGenerators: the region draws from generators that were not watched; or one moved, and it may have
                been another thread that drew from it.
            UnsupportedError: the state of one was set or read.
        """
        threads = threading.active_count()
        before = [(g, g.get_state()) for g in (*_defaults(), *self.known.values())]
        self.recorder.random_state = self
        try:
            with _stand_in_for_default(self._refuse), self._profiled():
                yield
        finally:
            self.recorder.random_state = None
            alone = max(threads, threading.active_count()) == 1
            with _torch.no_modes():
                moved = [(g, state) for g, state in before if not torch.equal(state, g.get_state())]
                for g, state in moved if alone else ():
                    g.set_state(state)
        if moved and alone:
            self._refuse("manual_seed, seed or set_state of a generator", None)
        if moved and self.ask and not self.again:  # the profile hook will tell whether it was the region
            self.met |= {g._cdata: g for g, _ in moved}  # type: ignore[attr-defined]
        if self.met:
            raise UnknownGenerators(tuple(self.met.values()), moved)

    def _refuse(self, name: str, line: str | None) -> None:
        with _torch.no_modes():
            for g, state in self._moved:
                g.set_state(state)
        raise UnsupportedError(
            "the region sets or reads the state of a random generator",
            path=line,
            expected="a function that draws random numbers and leaves their generators to its caller",
            got=name,
            fix=_FIX,
        )

    @contextlib.contextmanager
    def _profiled(self) -> Iterator[None]:
        if not self.known:
            yield
            return

        def look(frame: Any, event: str, called: Any) -> None:
            if event == "c_call" and isinstance(getattr(called, "__self__", None), Generator):
                name = called.__name__
                if name not in _ALLOWED and is_user_code(frame.f_code):
                    self._refuse(f"Generator.{name}()", f"{frame.f_code.co_filename}:{frame.f_lineno}")

        before = sys.getprofile()
        sys.setprofile(look)
        try:
            yield
        finally:
            sys.setprofile(before)


def _defaults() -> list[Generator]:
    found = [torch.default_generator]
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found += torch.cuda.default_generators
    return found


class _StandIn:
    """The default generator, for ``torch.random``: methods are refused where user code asks for them."""

    def __init__(self, real: Generator, refuse: Callable[[str, str | None], None]) -> None:
        self._real, self._refuse, self._thread = real, refuse, threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        if name not in _ALLOWED and threading.get_ident() == self._thread:
            frame: Any = sys._getframe(1)
            function = frame.f_code.co_name
            while frame is not None and _is_plumbing(frame.f_code.co_filename):
                if frame.f_code.co_filename == torch.random.__file__:
                    function = frame.f_code.co_name
                frame = frame.f_back
            if frame is not None and not _torch_file(frame.f_code.co_filename):
                self._refuse(f"torch.random.{function}()", f"{frame.f_code.co_filename}:{frame.f_lineno}")
        return getattr(self._real, name)


def _is_plumbing(file: str) -> bool:
    return file in (torch.random.__file__, contextlib.__file__, __file__) or file.endswith(_KEEPS_DYNAMO_OUT)


def _torch_file(file: str) -> bool:
    return file.startswith(TORCH_FILES)


@contextlib.contextmanager
def _stand_in_for_default(refuse: Callable[[str, str | None], None]) -> Iterator[None]:
    module: Any = torch.random
    real = module.default_generator
    module.default_generator = _StandIn(real, refuse)
    try:
        yield
    finally:
        module.default_generator = real
