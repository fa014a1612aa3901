"""Functions that look at numbers from inside tensors in each call, and raise what eager raises."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import _torch

aten = torch.ops.aten


def is_from_inside(n: Any) -> bool:
    """Does a number depend on values inside tensors?"""
    return isinstance(n, torch.SymInt) and _torch.is_data_dependent(n)


def look_in_each_call(recorder: Any, function: Callable[..., bool], operands: Sequence[Any]) -> bool:
    """Each call runs ``function`` of these numbers, before what is recorded next; it raises, or returns True.

    False where another back end than our own runs the graph: it calls no functions of Python.
    """
    if recorder.late.copies:
        return False
    fine = _torch.unknown_number(recorder.mode.shape_env, bool)
    recorder.number(fine, function, operands)
    check = recorder.graph.call_function(aten._assert_scalar.default, (recorder.node_of(fine), function.__name__))
    check.meta["val"] = None
    recorder.annotate(check)
    return True


def fits(dims: int, *numbers: int) -> bool:
    """May the elements of a tensor (of ``dims`` dimensions, whose sizes come first) be seen in another shape?

    Raises:
        RuntimeError: eager refuses it.
    """
    shape, wanted = numbers[:dims], numbers[dims:]
    known, count = math.prod(n for n in wanted if n != -1), math.prod(shape)
    free = wanted.count(-1)
    if any(n < -1 for n in wanted) or free > 1 or (count % known if free and known else free or known != count):
        torch.empty(shape, device="meta").reshape(wanted)  # says so
    return True


def unflattens(dims: int, dim: int, *numbers: int) -> bool:
    """May a dimension of a tensor (of ``dims`` dimensions, whose sizes come first) be seen as several?

    Raises:
        RuntimeError: eager refuses it.
    """
    torch.empty(numbers[:dims], device="meta").unflatten(dim, numbers[dims:])  # type: ignore[no-untyped-call]  # says so
    return True
