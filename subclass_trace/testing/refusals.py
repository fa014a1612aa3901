"""What it means that a class raises where the dense program works: a refusal, or an accident; and
what a class needs.

A *refusal* is said on purpose: by a ``raise`` in Python, or by all handlers that returned
NotImplemented. Anything else, such as an AttributeError or an error of a kernel inside of the
class's own code, is an *accident*. An accident is a finding where the class evidently means to do
the call.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import sys
import textwrap
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from types import TracebackType

from ..authoring.rules import RULES
from .calls import NEEDED

#: errors of code that did not foresee its arguments
BLUNDERS = (RecursionError, NameError, AttributeError, LookupError, TypeError, ZeroDivisionError)
#: from this share of calls on that are right, a class means to do all of them
ALL_OF_THEM = 0.7


@dataclass(frozen=True)
class Refusal:
    """An exception of a call that the dense program can do.

    Attributes:
        said: its type and the first line of its message.
        accident: it was not raised on purpose.
        blunder: an accident that is a fault of Python code, whatever the operation.
    """

    said: str
    accident: bool
    blunder: bool


def refusal_of(error: BaseException) -> Refusal:
    """What an exception of the class means."""
    message = (str(error).strip().splitlines() or [""])[0]
    accident = isinstance(error, RecursionError) or not _on_purpose(error)
    blunder = accident and isinstance(error, BLUNDERS)
    return Refusal(f"{type(error).__name__}: {message}"[:200], accident, blunder)


def _on_purpose(error: BaseException) -> bool:
    if isinstance(error, NotImplementedError) or "returned NotImplemented" in str(error):
        return True
    if "no implementation found for" in str(error):
        return True
    if "into a differentiable view" in str(error):  # what the class gave is no fresh tensor
        return False
    frames = list(_frames(error.__traceback__))
    code, line = frames[-1]
    if code.startswith("<"):  # raised by torch, before the class was asked or after it had answered
        return True
    text = linecache.getline(code, line).strip()
    return text.startswith(("raise", "assert"))


def _frames(trace: TracebackType | None) -> Iterator[tuple[str, int]]:
    while trace is not None:
        yield trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next


# ---- what a class says that it does
@functools.cache
def named_by(cls: type) -> frozenset[str]:
    """The operations that the class's module compares with, lists or registers: ``mul`` of
    ``func is aten.mul.Tensor``.

    A call of one (``aten.mul(a, b)``) is no such name, nor what a rule of it computes with.
    """
    found: set[str] = set()
    for owner in cls.__mro__:
        module = sys.modules.get(owner.__module__)
        if (
            module is None
            or owner.__module__.startswith(("torch.", "subclass_trace.auth"))
            or owner.__module__ in ("torch", "builtins")
        ):
            continue
        try:
            source = inspect.getsource(owner if owner.__module__ == "__main__" else module)
            found |= _named_in(textwrap.dedent(source))
        except (OSError, TypeError, SyntaxError):  # no source is at hand
            continue
    return frozenset(found)


def _named_in(source: str) -> set[str]:
    tree = ast.parse(source)
    called = {id(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    inner = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in called and id(node) not in inner:
            parts = ast.unparse(node).split(".")
            if "aten" in parts[:-1]:
                found.add(parts[parts.index("aten") + 1])
            elif parts[0] in ("torch", "F", "Tensor"):
                found.add(parts[-1])
    return found


def means_to(cls: type, operations: frozenset[str], text: str) -> bool:
    """Does the class name all operations of a call, or the function that is called?"""
    named = named_by(cls)
    return bool(operations) and (operations <= named or any(f".{n}(" in text for n in named))


def never_done(cls: type, refused: Collection[str], right: Collection[str]) -> list[str]:
    """Calls of functions that have a rule of their own (`implements_torch_function`), and that are
    refused always: where there are such, of calls that have a dense tensor in front (a weight)."""
    found = []
    for owner in (k for k in cls.__mro__ if RULES in vars(k)):
        for name in (f"F.{f.__name__}(" for f in vars(owner)[RULES].functions):
            calls = [text for text in (*refused, *right) if text.startswith(name)]
            calls = [text for text in calls if text[len(name)] not in "xyma"] or calls
            found += calls if all(text in refused for text in calls) else []
    return found


# ---- what it is used for
def inferred_use(right: set[str]) -> str:
    """What a class seems to be for, by the calls that are right."""
    if {"x + y", "x * 2"} & right and "x.view(-1)" in right:
        return "activation"
    if "x.add_(p, alpha=-0.5)" in right and any(text in right for text in NEEDED["parameter"][0]):
        return "parameter"
    if any(text in right for text in NEEDED["weight"][0]):
        return "weight"
    return "input"


def missing(use: str, right: set[str]) -> list[str]:
    """The calls that a use cannot do without, and of which none is right: the first of each."""
    return [texts[0] for texts in NEEDED[use] if not right.intersection(texts)]
