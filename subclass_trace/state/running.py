"""The recorder that code runs under, as the rules for calls, operators and attributes see it."""

from __future__ import annotations

from typing import Any, TextIO

from ..errors import UnsupportedError
from .reach import Reach
from .recorder import user_line
from .writes import Table


class Running(Reach):
    """What rules may ask of it; `caller.Caller` and `run.StateRun` do it.

    Attributes:
        warns: what only writes (logging) happens while tracing, with a warning; else it is refused.
        printed: what each call prints, or warns of: how, options, values; ``stdout``: where to.
        variables: context variables that were set, what they held, and what takes that back.
        flags: `torch_flags.FlagsOfRun`.
    """

    warns: bool
    stdout: TextIO
    printed: list[tuple[Table, dict[str, Any], tuple[Any, ...]]]
    variables: dict[int, tuple[Any, Any, Any]]
    flags: Any
    hashed: frozenset[Any] = frozenset()  # things whose hashes are compared

    def call(self, f: Any, /, *args: Any, **kwargs: Any) -> Any:
        """``f(*args, **kwargs)``, by whatever it is: a clone, a rule, or as it is."""
        raise NotImplementedError

    def call_function(self, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The same of a Python function."""
        raise NotImplementedError

    def call_again(self, f: Any, /, *args: Any) -> Any:
        """A call that C code makes, too: done twice it must be as once.

        Raises:
            UnsupportedError: it changes something.
        """
        before = self.changes
        out = self.call(f, *args)
        if self.changes != before:
            self.refuse(
                UnsupportedError(
                    "C code calls Python code that changes something, as often as it likes",
                    code="unread-python-code",
                    path=f"{getattr(f, '__qualname__', f)} at {user_line()}",
                    fix="change it in another method",
                )
            )
        return out

    def attribute(self, o: Any, name: str) -> Any:
        """``o.name``."""
        raise NotImplementedError

    def item_of(self, o: Any, key: Any) -> Any:
        """``o[key]``."""
        raise NotImplementedError
