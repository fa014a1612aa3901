"""What is asked for otherwise than by name: environment variables, context variables, items of the mappings of libraries."""

from __future__ import annotations

import contextvars
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from ..capture.user_code import is_foreign, is_library
from ..runtime.held import ABSENT, container_behind, is_simple


class Asked:
    """What somebody answers, as a table: ``read`` gives the answer to a key, or raises an exception; ``write`` sets it."""

    def __init__(self, read: Callable[[str], Any], write: Callable[[Any], Any] | None = None) -> None:
        self.read, self.write = read, write

    def __getitem__(self, key: str) -> Any:
        """The answer; KeyError where there is none."""
        try:
            return self.read(key)
        except Exception:  # a class of a library may raise anything
            raise KeyError(key) from None

    def __setitem__(self, key: str, value: Any) -> None:
        if self.write is not None:
            self.write(value)

    def __delitem__(self, key: str) -> None:
        """A context variable cannot be unset: it is None then."""
        self[key] = None

    def get(self, key: str, default: Any = None) -> Any:
        """The answer, or ``default``."""
        try:
            return self[key]
        except KeyError:
            return default

    def __contains__(self, key: str) -> bool:
        return self.get(key, ABSENT) is not ABSENT


#: names by which code asks for environment variables
ENVIRONMENT = frozenset({"environ", "getenv"})


def variables_of(texts: Collection[str]) -> Iterator[tuple[str, Any]]:
    """The environment variables that some of these strings name, and those that they could name: (name, value or ABSENT)."""
    for text in sorted(texts):
        if text in os.environ or text.isupper():
            yield text, os.environ.get(text, ABSENT)


def answers_of(value: Any, names: Collection[str]) -> Iterator[tuple[Asked, str, Any]]:
    """What a context variable, or a mapping of an installed library, answers to some of these names: (table, name, answer).

    Of such a mapping also its length, so that items which come to be are seen. Answers that are made anew each time are
    none: nothing could be compared with them.
    """
    if isinstance(value, contextvars.ContextVar):
        table = Asked(lambda _: value.get(), value.set)
        yield table, value.name, table.get(value.name, ABSENT)
    elif _is_mapping(value):
        table = Asked(value.__getitem__)
        for name in sorted(names):
            now = table.get(name, ABSENT)
            if now is not ABSENT and (is_simple(now) or now is table.get(name)):
                yield table, name, now
        yield Asked(lambda _: len(value)), "len", len(value)


def _is_mapping(value: Any) -> bool:
    cls = type(value)
    mapping = isinstance(value, Mapping) and not isinstance(value, dict) and container_behind(value) is None
    return mapping and is_library(cls) and not is_foreign(cls)
