"""What a region can neither return nor have done to its arguments."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch

from .. import _torch
from ..capture.python_numbers import needs_number
from ..errors import UnsupportedError
from ..plan import ReturnedContainer
from ..subclass.flatten import leaves_of
from ..subclass.paths import Path
from .reached import Reached

Tensor = torch.Tensor


def is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and type(value).__qualname__ == "ndarray"


def check_arrays(rows: Sequence[tuple[Path, Any, Any]]) -> None:
    """``rows``: path, array among the arguments, and a copy of before the function ran."""
    changed = [(path, array, was) for path, array, was in rows if array.tobytes() != was.tobytes()]
    for _, array, was in changed:
        array[...] = was
    if changed:
        raise UnsupportedError(
            "the region writes to a numpy array among its arguments",
            path=changed[0][0],
            expected="arrays that are only read",
            got=f"an array of shape {changed[0][1].shape} with other contents",
            fix="pass torch.from_numpy(array), or write to a copy",
        )


@contextlib.contextmanager
def no_attributes_of_named_tensors(reached: Reached) -> Iterator[None]:
    """Inside, the function may not set attributes of the tensors that it names: nothing would do so in later calls.

    Raises:
        UnsupportedError: it has done so; they are what they were.
    """
    named = [row for row in reached.slots if isinstance(row.value, Tensor)] if reached.stored else []
    before = {id(row.value): dict(vars(row.value)) for row in named}
    try:
        yield
    finally:
        changed = [(row, name) for row in named for name in _set_on(row.value, before[id(row.value)], reached.stored)]
        for row, name in changed:
            state = vars(row.value)
            state.pop(name, None)
            state.update({k: v for k, v in before[id(row.value)].items() if k == name})
    if changed:
        row, name = changed[0]
        raise UnsupportedError(
            f"the region sets the attribute {name!r} of a tensor that it names",
            path=str(row.path),
            expected="attributes that are read, or set on an argument",
            got=f"{row.path.attr(name)} = ...",
            fix="pass the tensor as an argument, or set the attribute outside of the region",
        )


def _set_on(t: Tensor, before: dict[str, Any], names: Collection[str]) -> list[str]:
    now = vars(t)
    return [n for n in names if (n in now) != (n in before) or (n in now and now[n] is not before[n])]


def check_result(value: Any, path: Path, depth: int = 0) -> None:
    """An object that is no pytree node but holds traced tensors would hand fake tensors to the caller."""
    lazy = isinstance(value, (Iterator, types.CoroutineType, types.FunctionType, functools.partial, types.MethodType))
    if lazy and not isinstance(value, Tensor):
        raise UnsupportedError(
            f"the region returns a {type(value).__qualname__}, which would compute outside of the region",
            path=path,
            expected="tensors, and containers of them",
            got=type(value).__qualname__,
            fix="return a list or tuple, and make functions outside of the region",
        )
    if isinstance(value, (Tensor, torch.nn.Module, type, ReturnedContainer)) or depth > 3:
        return
    held = [(path.attr(k), v) for k, v in getattr(value, "__dict__", {}).items()]
    if isinstance(value, (list, tuple, set)):
        held += [(path.item(k), v) for k, v in enumerate(value)]
    elif isinstance(value, dict):
        held += [(path.item(k), v) for k, v in value.items()]
    elif isinstance(value, slice):
        held += [(path.attr(name), getattr(value, name)) for name in ("start", "stop", "step")]
    for where, inner in held:
        check_result(inner, where, depth + 1)
        if isinstance(inner, _torch.SYM_TYPES):
            needs_number(inner, f"{where}, inside of a {type(value).__qualname__} that is no registered pytree node")
        if isinstance(inner, Tensor) and any(map(_torch.is_fake, leaves_of(inner))):
            raise UnsupportedError(
                f"the region returns a {type(value).__qualname__} that holds tensors and is no registered pytree node",
                path=where,
                expected="tensors, containers, or a class registered with optree or torch.utils._pytree",
                got=f"{type(value).__module__}.{type(value).__qualname__}",
                fix="register the class with optree.register_pytree_node, or return its tensors",
            )
