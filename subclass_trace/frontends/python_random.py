"""Random numbers that are not torch's: a region would draw them once, while it is traced, and use them for ever."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import UnsupportedError
from ..subclass.paths import Path
from .reach import Reached

_GLOBAL = ("random", "numpy.random")


@dataclass(frozen=True, eq=False)
class _Source:
    """A generator of random numbers.

    Attributes:
        name: for people.
        read, restore: its state, as something that compares by value, and the way back to it.
    """

    name: str
    read: Callable[[], Any]
    restore: Callable[[Any], None]


@contextlib.contextmanager
def no_random_numbers(reached: Reached) -> Iterator[None]:
    """Inside, the function runs that reaches these.

    Raises:
        UnsupportedError: it drew a number from a generator of Python's or numpy's, or seeded one. Their states are as
            before; but while other threads run, the global ones stay as they are, since those may have drawn from them.
    """
    rows = [(source, source.read()) for source in _sources(reached)]
    threads = threading.active_count()
    moved = []
    try:
        yield
    finally:
        alone = max(threads, threading.active_count()) == 1
        for source, before in rows:
            if source.read() != before:
                moved.append(source.name)
                if alone or source.name not in _GLOBAL:
                    source.restore(before)
    if moved:
        raise UnsupportedError(
            f"the region draws random numbers from {moved[0]}, or seeds it",
            path=moved[0],
            expected="random numbers of torch, which each call draws anew",
            got="another state of the generator after the function ran",
            fix="draw the number outside and pass it as an argument, or draw it with torch.rand, torch.randint, ...",
        )


def _sources(reached: Reached) -> Iterator[_Source]:
    yield _Source("random", random.getstate, random.setstate)
    numbers: Any = sys.modules.get("numpy.random")
    if numbers is not None:
        yield _Source("numpy.random", lambda: _plain(numbers.get_state()), numbers.set_state)
    for value, path in _values(reached):
        if isinstance(value, random.Random):
            yield _Source(str(path), value.getstate, value.setstate)
        elif numbers is not None and isinstance(value, numbers.Generator):
            yield _of_bits(str(path), value.bit_generator)


def _values(reached: Reached) -> Iterator[tuple[Any, Path]]:
    for slot in reached.slots:
        yield slot.read(), slot.path
    for root, path in reached.modules:
        for name, module in root.named_modules():
            place = path.attr(name) if name else path
            for key, value in vars(module).items():
                yield value, place.attr(key)


def _of_bits(name: str, bits: Any) -> _Source:
    def restore(state: Any) -> None:
        bits.state = state

    return _Source(name, lambda: _plain(bits.state), restore)


def _plain(state: Any) -> Any:
    """Arrays as lists, which compare by value; numpy takes them back."""
    if isinstance(state, dict):
        return {k: _plain(v) for k, v in state.items()}
    if isinstance(state, tuple):
        return tuple(map(_plain, state))
    return state.tolist() if hasattr(state, "tolist") else state
