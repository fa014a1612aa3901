"""Which versions of torch and Python are tested. One outside of them is no error: one warning says
which these are."""

from __future__ import annotations

import re
import sys

import torch

from .lines import warn_user

#: of the torch that runs
TORCH_HERE = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
TORCH, PYTHON = ((2, 11), (2, 15)), ((3, 10), (3, 14))


def untested(torch_version: str, python_version: tuple[int, int]) -> str | None:
    """What is outside of the tested versions, as a sentence; None where nothing is.

    >>> print(untested("2.16.0a0+git1", (3, 12)))  # doctest: +NORMALIZE_WHITESPACE
    subclass_trace is tested with torch 2.11 to 2.15 and Python 3.10 to 3.14; this is torch
    2.16.0a0+git1
    >>> untested("2.13.0+cpu", (3, 10)) is None
    True
    """
    found = re.match(r"(\d+)\.(\d+)", torch_version)
    pairs = [
        ("torch", TORCH, tuple(map(int, found.groups())) if found else (), torch_version),
        ("Python", PYTHON, python_version, ".".join(map(str, python_version))),
    ]
    beyond = [
        f"{name} {text}"
        for name, (first, last), version, text in pairs
        if not first <= version <= last
    ]
    if not beyond:
        return None
    ranges = " and ".join(f"{name} {a[0]}.{a[1]} to {b[0]}.{b[1]}" for name, (a, b), _, _ in pairs)
    return f"subclass_trace is tested with {ranges}; this is {' and '.join(beyond)}"


if (_found := untested(torch.__version__, sys.version_info[:2])) is not None:
    warn_user(_found)
