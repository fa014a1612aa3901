"""Whose code is this, or whose class: the one answer, by file and by the name of a Python module.

Questions on top of it: what of torch's code is entered like the user's (`state.boundary`), which
line to tell (`lines`), what a guard holds as it is (`subclass.attributes.is_foreign`).
"""

from __future__ import annotations

import enum
import functools
import os
import sys
import sysconfig
from typing import Any

import torch


class Owner(enum.Enum):
    """Who has written a piece of code. By the name of a module, an installed package is a user's:
    only its file tells."""

    USER = "user"
    INSTALLED = "installed"
    PYTHON = "Python"
    TORCH = "torch"
    OURS = "subclass_trace"


TORCH_FILES = os.path.dirname(torch.__file__) + os.sep
OUR_FILES = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_PATHS = {name: os.path.join(path, "") for name, path in sysconfig.get_paths().items()}
_INSTALLED = (_PATHS["purelib"], _PATHS["platlib"])
_PYTHON = (_PATHS["stdlib"], _PATHS["platstdlib"], "<frozen")
_NAMES = {
    **dict.fromkeys(sys.stdlib_module_names, Owner.PYTHON),
    "torch": Owner.TORCH,
    "functorch": Owner.TORCH,
    "subclass_trace": Owner.OURS,
}


@functools.lru_cache(None)
def owner_of_file(filename: str) -> Owner:
    """Of a file's code; generated code of this package has names that begin with its own."""
    if filename.startswith(TORCH_FILES):
        return Owner.TORCH
    if filename.startswith((OUR_FILES, "<subclass_trace")):
        return Owner.OURS
    if filename.startswith(_INSTALLED):
        return Owner.INSTALLED
    return Owner.PYTHON if filename.startswith(_PYTHON) else Owner.USER


def package_of(value: Any) -> str:
    """The package that a class or function is of, by its module's name; empty: it tells none."""
    name = getattr(value, "__module__", None)
    return name.partition(".")[0] if type(name) is str else ""


def owner_of_name(name: str) -> Owner:
    """Of what is in the Python module of this name."""
    return _NAMES.get(name.partition(".")[0], Owner.USER)


def owner_of(value: Any) -> Owner:
    """Of a class or function."""
    return owner_of_name(package_of(value))
