"""``torch.Size``: the product of sizes of which some are symbols."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
from collections.abc import Iterator
from typing import Any

import torch


def _numel(sizes: torch.Size) -> int:
    """The number of elements of a tensor of these sizes; a symbol where one of them is."""
    return math.prod(sizes)


@contextlib.contextmanager
def products_of_sizes() -> Iterator[None]:
    """Inside, ``torch.Size.numel`` takes symbols; that in C++ makes a number of each, which only this trace has.

    Other threads get the same answers from it. The class can neither be derived from nor assigned to: what is exchanged
    is an entry of its dictionary, of which Python has to be told.
    """
    (table,) = (t for t in gc.get_referents(vars(torch.Size)) if type(t) is dict and "numel" in t)
    before = table["numel"]
    _exchange(table, _numel)
    try:
        yield
    finally:
        _exchange(table, before)


def _exchange(table: dict[str, Any], method: Any) -> None:
    table["numel"] = method
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(torch.Size))


@contextlib.contextmanager
def parameters_of_distributions() -> Iterator[None]:
    """Inside, ``torch.distributions`` takes symbols among the parameters of a distribution for numbers."""
    holder: Any = torch.distributions.utils
    before = holder._Number
    holder._Number = (*before, torch.SymInt, torch.SymFloat) if isinstance(before, tuple) else before
    try:
        yield
    finally:
        holder._Number = before
