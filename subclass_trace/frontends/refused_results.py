"""What a region can neither return nor have done to its arguments."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import types
from collections import deque
from collections.abc import Collection, ItemsView, Iterable, Iterator, KeysView, Sequence, ValuesView
from typing import Any

import torch

from .. import _torch
from ..capture.facts import holds_traced
from ..capture.objects_made import is_makeable
from ..errors import SubclassTraceError, UnsupportedError
from ..plan import ReturnedContainer
from ..runtime.held import is_simple
from ..subclass.arguments import attributes_inside
from ..subclass.context import is_buffer
from ..subclass.flatten import leaves_of
from ..subclass.paths import Path
from .containers import inside_of
from .reached import Reached

Tensor = torch.Tensor


def is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and type(value).__qualname__ == "ndarray"


@contextlib.contextmanager
def no_written_arrays(rows: Iterable[tuple[Any, Path]]) -> Iterator[None]:
    """Inside, the function may not write to arrays and buffers from outside (numpy's, bytearray, array.array), which later
    calls would not do.

    Raises:
        UnsupportedError: it has done so; they are what they were.
    """
    before = [(value, path, copy.copy(value)) for value, path in rows if is_buffer(value)]
    changed: list[tuple[Any, Path]] = []
    try:
        yield
    finally:
        for array, path, was in before:
            if _bytes_of(array) != _bytes_of(was):
                array[... if is_array(array) else slice(None)] = was
                changed.append((array, path))
    if changed:
        array, path = changed[0]
        kind = "numpy array" if is_array(array) else type(array).__qualname__
        raise UnsupportedError(
            f"the region writes to a {kind} from outside",
            path=path,
            expected="arrays and buffers that are only read",
            got=f"one of shape {array.shape if is_array(array) else (len(array),)} with other contents",
            fix="pass torch.from_numpy(array), or write to a copy",
        )


def _bytes_of(array: Any) -> bytes:
    """What it holds; of an array of objects, which ones they are."""
    found: bytes = bytes(array) if isinstance(array, bytearray) else array.tobytes()
    return found


@contextlib.contextmanager
def no_other_attributes(reached: Reached) -> Iterator[None]:
    """Inside, the function may not set attributes of tensors that it names, nor traced tensors as attributes of objects of
    libraries (``distribution.probs = x``): nothing would do so in later calls.

    Raises:
        UnsupportedError: it has done so; they are what they were.
    """
    tensors = [(row.value, row.path) for row in reached.slots if isinstance(row.value, Tensor)]
    rows = [*tensors, *reached.of_libraries] if reached.stored else []
    before = [dict(vars(owner)) for owner, _ in rows]
    changed: list[tuple[str, Path]] = []
    try:
        yield
    finally:
        for (owner, path), was in zip(rows, before, strict=True):
            state = vars(owner)
            for name in _changed(state, was, reached.stored):
                if isinstance(owner, Tensor) or holds_traced(state.get(name)):
                    state.pop(name, None)
                    state.update({k: v for k, v in was.items() if k == name})
                    changed.append((name, path))
    if changed:
        name, path = changed[0]
        raise UnsupportedError(
            f"the region sets the attribute {name!r} of something that it names, and that is no module or object of yours",
            path=str(path.attr(name)),
            expected="attributes that are read, or set on an argument",
            got="an assignment that later calls would not make",
            fix="pass a tensor as an argument; make an object of a library anew in the region, or set it up outside",
        )


def _changed(now: dict[str, Any], was: dict[str, Any], names: Collection[str]) -> list[str]:
    return [n for n in names if (n in now) != (n in was) or (n in now and now[n] is not was[n])]


def check_keys(result: Any) -> None:
    """Refuse traced tensors that are keys of dicts in a result: the structure of results would hold them."""
    for value in inside_of(result):
        for key in value if isinstance(value, dict) else ():
            if isinstance(key, Tensor) and any(map(_torch.is_fake, leaves_of(key))):
                raise UnsupportedError(
                    "the region returns a dict with a tensor of its own as a key",
                    path="result",
                    expected="keys that are known while tracing",
                    got=f"a tensor of shape {tuple(key.shape)}",
                    fix="return pairs of tensors and values, and make the dict outside of the region",
                )


def check_memory(result: Any, arguments: Sequence[Any]) -> None:
    """Refuse arrays of numpy in a result that share memory with each other, or with one among the arguments."""
    arrays = {id(v): v for held in inside_of((result,)) for v in _items_of(held) if is_array(v)}
    others = {id(v): v for v in arguments if is_array(v)}
    for key, array in arrays.items():
        for other, held in (arrays | others).items():
            if key not in others and key != other and array.size and may_share_memory(array, held):
                raise UnsupportedError(
                    "the region returns a numpy array that shares memory with another one",
                    path="result",
                    expected="arrays with memory of their own, or the very arguments",
                    got=f"an array of shape {array.shape}, a view of one of shape {held.shape}",
                    fix="return a copy of it, or take the view outside of the region",
                )


def _items_of(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def may_share_memory(a: Any, b: Any) -> bool:
    import numpy

    return bool(numpy.shares_memory(a, b))


def check_error(error: Exception) -> None:
    """Refuse an exception of the user's with traced values inside."""
    held = [*error.args, *(v for _, v in attributes_inside(error))]
    if isinstance(error, SubclassTraceError) or type(error).__module__.partition(".")[0] == "torch":
        return
    if any(map(holds_traced, held)):
        raise UnsupportedError(
            f"the region raises a {type(error).__qualname__} with a tensor or a size of its own inside",
            expected="exceptions that hold what is known while tracing",
            got=f"{type(error).__qualname__}{tuple(type(v).__name__ for v in error.args)}",
            fix="raise it outside of the region, or without the tensor",
        ) from error


def check_kept(values: Iterable[Any]) -> None:
    """Refuse functions with traced values inside, in what a region assigns; stand-ins are gone by now, so these are new."""
    seen: dict[int, Any] = {}
    todo: deque[tuple[Any, str | None]] = deque(
        (v, None) for v in values
    )  # a value, and the function that refers to it
    while todo and len(seen) < _MOST_LOOKED_AT:
        value, around = todo.popleft()
        if id(value) in seen or is_simple(value):
            continue
        seen[id(value)] = value
        name = getattr(value, "__qualname__", type(value).__qualname__)
        if around is not None and isinstance(value, (Tensor, *_torch.SYM_TYPES)) and holds_traced(value):
            raise UnsupportedError(
                "the region keeps a function that refers to a tensor, or a size, of its own",
                path=around,
                expected="functions that refer to what is there before the region is called, and to numbers",
                got=f"a {type(value).__qualname__}",
                fix="make the function outside of the region, or give it the tensor when it is called",
            )
        elif isinstance(value, types.FunctionType):
            held = [*map(_content, value.__closure__ or ()), *(value.__defaults__ or ())]
            todo += ((v, name) for v in (*held, *(value.__kwdefaults__ or {}).values()))
        elif isinstance(value, functools.partial):
            todo += ((v, name) for v in (value.func, *value.args, *value.keywords.values()))
        elif isinstance(value, types.MethodType):
            todo.append((value.__self__, name))
        elif isinstance(value, (list, tuple, set, frozenset, deque, dict)):
            todo += ((v, around) for v in list(_items_of(value)))
        elif is_makeable(value):
            todo += ((v, around) for _, v in attributes_inside(value))


#: no more objects are looked at
_MOST_LOOKED_AT = 1000


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return None


def _held_by_module(module: torch.nn.Module, path: Path) -> Iterator[tuple[Path, Any]]:
    """Its parameters, buffers and other attributes, and those of the modules inside."""
    for name, inner in module.named_modules():
        place = path.attr(name) if name else path
        own = vars(inner)
        for key, value in (own["_parameters"] | own["_buffers"] | own).items():
            if key not in ("_parameters", "_buffers", "_modules"):
                yield place.attr(key), value


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
    if isinstance(value, (Tensor, type, ReturnedContainer, *_torch.SYM_TYPES)) or depth > 3:
        return
    is_module = isinstance(value, torch.nn.Module)
    held = [*_held_by_module(value, path)] if is_module else [(path.attr(k), v) for k, v in attributes_inside(value)]
    if isinstance(value, (list, tuple, set, frozenset, deque, KeysView, ValuesView, ItemsView)):
        held += [(path.item(k), v) for k, v in enumerate(value)]
    elif isinstance(value, types.MappingProxyType):
        held += [(path, v) for v in gc.get_referents(value)]
    elif isinstance(value, dict):
        held += [(path.item(k), v) for k, v in value.items()]
    elif is_array(value) and value.dtype == object:
        held += [(path.item(k), v) for k, v in enumerate(value.flat)]
    elif isinstance(value, BaseException):
        held += [(path.attr("args").item(k), v) for k, v in enumerate(value.args)]
    elif isinstance(value, slice):
        held += [(path.attr(name), getattr(value, name)) for name in ("start", "stop", "step")]
    for where, inner in held:
        check_result(inner, where, depth + 1)
        if isinstance(inner, _torch.SYM_TYPES):
            raise UnsupportedError(
                f"the region returns a {type(value).__qualname__}, which is no registered pytree node, with a size inside",
                path=where,
                expected="a number of this trace",
                got=inner,
                fix="call int() or bool() on it: each answer is a specialization of its own",
            )
        if isinstance(inner, Tensor) and any(map(_torch.is_fake, leaves_of(inner))):
            raise UnsupportedError(
                f"the region returns a {type(value).__qualname__} that holds tensors and is no registered pytree node",
                path=where,
                expected="tensors, containers, or a class registered with optree or torch.utils._pytree",
                got=f"{type(value).__module__}.{type(value).__qualname__}",
                fix="return its tensors; a class may be registered with optree.register_pytree_node",
            )
