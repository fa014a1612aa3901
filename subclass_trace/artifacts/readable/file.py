"""A file of saved source: what is read of a call, compared; flatten; the graphs; unflatten."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path as File
from typing import Any

import torch

from ...data.objects import FINGERPRINTS
from ...errors import ExportError
from ..saved import write_whole
from .specialization import SpecializationText

_PRELUDE = File(__file__).parents[2] / "torch_api" / "readable.py"


def save_source(path: str | os.PathLike[str], name: str, entries: Sequence[Any]) -> None:
    """Write specializations as one Python file.

    Args:
        name: of the function, for people.
        entries: the `Specialization`s.

    Raises:
        ExportError: one of them cannot be written; the path says what of it.
    """
    if not entries:
        raise ExportError(
            "there is nothing to write",
            path="specializations",
            expected="a region that was called, or warmed up",
            fix="call the region first",
        )
    text = "\n".join(_lines(name, entries)) + "\n"
    compile(text, os.fspath(path), "exec")  # what is given away can be read
    write_whole(File(path), text.encode())


def _lines(name: str, entries: Sequence[Any]) -> Iterator[str]:
    count = len(entries)
    yield f'"""{name}: {count} specialization{"s" * (count > 1)}, written by subclass_trace.'
    yield ""
    yield "``bind(function_or_module)`` gives what to call in its place. This file is code, which"
    yield "an import runs; it needs torch alone. It stands in for the code that it was traced of,"
    yield "which it does not run. What that code, and what it calls, has read of arguments and"
    yield 'state is compared in each call, and so is the code itself, but for that of torch."""'
    prelude = _PRELUDE.read_text(encoding="utf-8")
    yield prelude[prelude.index("import enum") :]
    yield from map(inspect.getsource, FINGERPRINTS)
    python = ".".join(map(str, sys.version_info[:2]))
    yield f"MADE_WITH = ({str(torch.__version__)!r}, {python!r})"
    yield 'if (str(torch.__version__), ".".join(map(str, sys.version_info[:2]))) != MADE_WITH:'
    yield '    raise ImportError(f"this file is for torch and Python {MADE_WITH}: write it again")'
    for number, entry in enumerate(entries):
        try:
            yield from SpecializationText(number, entry).lines()
        except ExportError as error:
            path = f"specializations[{number}]: {error.path}"
            raise ExportError(error.what, path=path, got=error.got, fix=error.fix) from None
    calls = "".join(f"call_{number}, " for number in range(count))
    yield from (
        "",
        "",
        "def bind(f=None):",
        '    """A function or module, as that of which this was made -> what serves its calls."""',
        "",
        "    def served(*args, **kwargs):",
        f"        return first_that_serves(({calls}), (f, args, kwargs), 'call')",
        "",
        "    return served",
    )
