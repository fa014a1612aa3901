"""Programs out of the lines of a script: imports in front, and the source of each helper that the
lines name."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from ..torch_api import testing as private
from . import probes

if TYPE_CHECKING:
    from .subject import Subject

#: what lines may name: the functions and classes of the two helper files
HELPERS: dict[str, Any] = {
    name: value
    for module in (private, probes)
    for name, value in vars(module).items()
    if callable(value) and getattr(value, "__module__", "") == module.__name__
}


#: signs of operations in source
_SYMBOLS = {
    " + ": "add",
    " - ": "sub",
    " * ": "mul",
    " / ": "div",
    " @ ": "mm",
    " > ": "gt",
    "[": "slice select index",
}


def named_operations(source: str) -> set[str]:
    """Every name in a program, and the operations of its signs: those that it may take."""
    names = {name.strip("_") for name in re.findall(r"[A-Za-z_]\w*", source)}
    return names.union(*(given.split() for sign, given in _SYMBOLS.items() if sign in source))


def safe_repr(value: Any) -> str:
    """``repr(value)``, also for wrappers whose repr raises; cut at 600 characters."""
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__qualname__} whose repr raises {type(error).__name__}>"
    return text if len(text) < 600 else text[:600] + " ..."


def both_sides(got: Any, expected: Any) -> tuple[str, str]:
    """The two sides of a comparison as text; where that is the same, with sizes, strides and the
    tensors inside."""
    texts = safe_repr(got), safe_repr(expected)
    if texts[0] != texts[1] or not (
        isinstance(got, torch.Tensor) and isinstance(expected, torch.Tensor)
    ):
        return texts
    first, second = (
        f"{text} of size {tuple(x.shape)}, {x.dtype}, with {safe_repr(probes.named_leaves(x))}"
        for text, x in zip(texts, (got, expected), strict=True)
    )
    return first, second


def program(subject: Subject, lines: Iterable[str], *, short: bool = False) -> str:
    """A program that runs the lines. It needs only torch and what the subject imports; a short one
    this package as well."""
    body = "\n".join(lines)
    text = [
        *(f"# {note}" for note in subject.notes if "cannot be imported" in note or not short),
        "import torch",
        *subject.imports,
        *(_imports(body) if short else _definitions(body)),
        *([subject.setup] if subject.setup else []),
        *(["torch.manual_seed(0)"] if subject.random or not short else []),
        body,
    ]
    return "\n".join(text) + "\n"


def _definitions(body: str) -> list[str]:
    helpers = _needed(body)
    return [
        *(["from typing import Any"] if helpers else []),
        *(f"\n{_source(name).strip()}\n" for name in helpers),
    ]


def _imports(body: str) -> list[str]:
    named = {n.id for n in ast.walk(ast.parse(body)) if isinstance(n, ast.Name)} & HELPERS.keys()
    homes: dict[str, list[str]] = {}
    for name in sorted(named):
        homes.setdefault(HELPERS[name].__module__, []).append(name)
    return [f"from {home} import {', '.join(names)}" for home, names in homes.items()]


@functools.cache
def _source(name: str) -> str:
    source = textwrap.dedent(inspect.getsource(HELPERS[name]))
    return re.sub(r"  # type: ignore.*", "", source)


def _needed(source: str) -> list[str]:
    """The helpers that a source names, with those that they name, in the order of their
    definition."""
    found: set[str] = set()
    left = [source]
    while left:
        names = {n.id for n in ast.walk(ast.parse(left.pop())) if isinstance(n, ast.Name)}
        new = names & HELPERS.keys() - found
        found |= new
        left += [_source(n) for n in new]
    return [n for n in HELPERS if n in found]
