"""Numbers of the call where Python would need them at once: ``int(x)``, ``float(x)``, ``bool(x)``, ``max(a, b)``, ``len(x)``.

Python's own functions take a tensor's value, which a trace does not have, or a size as the number of this trace. In code
of the user's that does nothing but call them, others stand for them (`conversions`), which give symbols for what the trace
does not know.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from .. import _torch
from .argument_checks import take
from .clocks import Reading, reading
from .python_numbers import as_number, covering, is_symbol, is_unknown, number_of

Tensor = torch.Tensor
# torch has no annotations for symbols here
_AS_FLOAT: Any = torch.sym_float
_SCALAR: Any = torch.scalar_tensor
_TOO_LARGE = "cannot convert a float that is NaN, infinite, or beyond 2**63 to an integer"


# ---------------------------------------------------------------------------------------------- symbols for values
def truth_of(t: Tensor) -> Any:
    """``bool(t)``, or a symbol for it."""
    return t.detach().item() if t.dtype is torch.bool else (t.detach() != 0).item()


def _whole(recorder: Any, t: Tensor) -> Any:
    """``int(t)`` of a tensor of floats: a symbol of its own, which can be a size."""
    t = t.detach().reshape(())
    take(recorder, _torch.Branch(True, _TOO_LARGE), t.abs() < 2.0**63)
    return t.to(torch.int64).item()


def _int(value: Any, *rest: Any, **named: Any) -> Any:
    watch = None if rest or named else covering(value)
    if watch is None:
        if type(value) is torch.SymInt and not rest and not named and is_symbol(value):
            return value
        n = int(value, *rest, **named)
        return reading(n) if isinstance(value, Reading) else n
    recorder = watch.session.recorder
    if isinstance(value, Tensor):
        n = number_of(value)
        if watch.session.takes_steps or not isinstance(n, torch.SymFloat):
            return _int(n) if is_unknown(n) else int(n)
        return _whole(recorder, value)
    if isinstance(value, torch.SymFloat):
        if watch.session.takes_steps:
            return watch.session.step(math.trunc, (value,), int)
        return _whole(recorder, _SCALAR(value, dtype=torch.float64))
    return as_number(value)


def _float(value: Any = 0.0) -> Any:
    if covering(value) is None:
        n = float(value)
        return reading(n) if isinstance(value, Reading) else n
    n = number_of(value) if isinstance(value, Tensor) else value
    n = as_number(n)
    return _AS_FLOAT(n) if is_unknown(n) else float(n)


def _bool(value: Any = False) -> Any:
    if covering(value) is None:
        return bool(value)
    if isinstance(value, Tensor):
        n = truth_of(value)
        return n if is_unknown(n) else bool(n)
    return value if isinstance(value, torch.SymBool) else value != 0


def _extreme(plain: Callable[..., Any], symbolic: Callable[..., Any]) -> Callable[..., Any]:
    """``max`` or ``min`` of numbers of one class: else the class of the result would depend on the values."""

    @functools.wraps(plain)
    def call(*values: Any, **named: Any) -> Any:
        items = values if len(values) > 1 else values[0] if values and type(values[0]) in (list, tuple) else ()
        alike = any(all(type(v) in kind for v in items) for kind in ((int, torch.SymInt), (float, torch.SymFloat)))
        watch = next((w for v in items if (w := covering(v)) is not None), None)
        if named or not alike or watch is None:
            return plain(*values, **named)
        if watch.session.takes_steps and isinstance(items[0], (float, torch.SymFloat)):  # NaN, and the sign of 0
            return watch.session.step(plain, items, float)
        return functools.reduce(symbolic, items)

    return call


def _len(value: Any) -> Any:
    """The first size of a tensor, as a symbol, where its class has nothing else to say."""
    if isinstance(value, Tensor) and type(value).__len__ is Tensor.__len__ and not value.is_nested and value.dim():
        size = value.shape[0]
        if is_symbol(size):
            return size
    return len(value)


# ---------------------------------------------------------------------------------------------- what stands for them
class _Converting(type):
    """The class of what stands for ``int``, ``float`` or ``bool``, and is it for whoever does not call it."""

    def __new__(mcs, plain: Any, convert: Callable[..., Any]) -> Any:
        base = plain if plain is not bool else int  # nobody inherits from bool
        return super().__new__(mcs, plain.__name__, (base,), {"plain": plain, "convert": staticmethod(convert)})

    def __init__(cls, plain: Any, convert: Callable[..., Any]) -> None:
        pass

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        found: Any = cls
        return found.convert(*args, **kwargs) if args else found.plain(**kwargs)

    def __instancecheck__(cls, value: Any) -> bool:
        found: Any = cls
        return isinstance(value, found.plain)

    def __subclasscheck__(cls, other: Any) -> bool:
        found: Any = cls
        return issubclass(other, found.plain)

    def __eq__(cls, other: Any) -> bool:
        found: Any = cls
        return other is cls or other is found.plain

    def __hash__(cls) -> int:
        found: Any = cls
        return hash(found.plain)


_STANDING: dict[str, Any] = {
    "int": _Converting(int, _int),
    "float": _Converting(float, _float),
    "bool": _Converting(bool, _bool),
    "max": _extreme(max, torch.sym_max),
    "min": _extreme(min, torch.sym_min),
    "len": _len,
}
_ROUNDED: dict[str, Callable[[Tensor], Tensor]] = {"floor": torch.floor, "ceil": torch.ceil, "trunc": torch.trunc}
#: names of Python's functions that are replaced where code does nothing but call them
CONVERSIONS = frozenset(_STANDING)


@contextlib.contextmanager
def conversions(places: Iterable[tuple[dict[str, Any], str]]) -> Iterator[None]:
    """Inside, these names (of `CONVERSIONS`) in these tables of globals, which have none, stand for symbols too; and so do
    ``math.floor`` and its siblings."""
    free = [(table, name, _STANDING[name]) for table, name in places if name not in table]
    of_math = [(name, getattr(math, name)) for name in _ROUNDED]
    for table, name, value in free:
        table[name] = value
    for name, plain in of_math:
        setattr(math, name, _rounding(name, plain))
    try:
        yield
    finally:
        for table, name, _ in free:
            table.pop(name, None)
        for name, plain in of_math:
            setattr(math, name, plain)


@functools.cache
def _rounding(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """``math.floor`` and its siblings; a module that is imported meanwhile may keep it."""

    @functools.wraps(plain)
    def call(value: Any) -> Any:
        value = as_number(value)
        watch = covering(value)
        if watch is None:
            return plain(value)
        n = number_of(value) if isinstance(value, Tensor) else value
        if not (isinstance(n, torch.SymFloat) and is_unknown(n)):
            return plain(n)
        if watch.session.takes_steps:
            return watch.session.step(plain, (n,), int)
        return _whole(watch.session.recorder, _ROUNDED[name](_SCALAR(n, dtype=torch.float64)))

    return call


# ---------------------------------------------------------------------------------------------- functions of torch
def allclose(recorder: Any, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """``torch.allclose``: a symbol, where its own kernel gives Python's True or False."""
    return torch.isclose(*args, **kwargs).all().item() if _are_dense(recorder, args[:2]) else func(*args, **kwargs)


def equal(recorder: Any, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """``torch.equal``."""
    if not _are_dense(recorder, args) or len(args) != 2 or len({(t.dtype, t.device) for t in args}) > 1:
        return func(*args, **kwargs)
    return (args[0] == args[1]).all().item() if args[0].shape == args[1].shape else False


def is_nonzero(recorder: Any, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """``torch.is_nonzero``."""
    one = _are_dense(recorder, args[:1]) and args[0].numel() == 1
    return truth_of(args[0]) if one else func(*args, **kwargs)


def tensor(recorder: Any, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """``torch.tensor`` and its siblings of a number from inside a tensor, or of a list that holds such ones or tensors: one
    tensor of them."""
    like = args[0] if func is Tensor.new_tensor else None
    data = args[0 if like is None else 1] if len(args) > (like is not None) else kwargs.get("data")
    known = not _holds_unknown(data) if isinstance(data, (list, tuple)) else not is_symbol(data)
    if func not in _MAKE_TENSORS or known:
        return func(*args, **kwargs)
    named = {k: v for k, v in kwargs.items() if k != "data"}
    if func is torch.as_tensor:
        named |= dict(zip(("dtype", "device"), args[1:], strict=False))
    dtype, device = named.get("dtype"), named.get("device")
    items = _items(data)[0]
    if dtype is None:
        dtype = functools.reduce(torch.promote_types, map(_dtype_of, items)) if like is None else like.dtype
    if device is None:
        device = torch.get_default_device() if like is None else like.device
    with torch.no_grad():
        made = _stacked(data, dtype, device)
    return made.requires_grad_() if named.get("requires_grad") else made


_MAKE_TENSORS = (torch.tensor, torch.as_tensor, Tensor.new_tensor)


def _are_dense(recorder: Any, values: Any) -> bool:
    return all(_torch.is_fake(t) and t.layout is torch.strided and not t.is_quantized for t in values)


def _holds_unknown(data: Any) -> bool:
    if isinstance(data, (list, tuple)):
        return any(map(_holds_unknown, data))
    return _torch.is_fake(data) or is_symbol(data)


def _items(data: Any) -> tuple[list[Any], list[int]]:
    """The numbers in nested lists, and how the lists are nested."""
    if not isinstance(data, (list, tuple)):
        return [data], []
    rows = [_items(row) for row in data]
    shapes = [shape for _, shape in rows]
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError("expected sequences of one length at each dimension, to make a tensor of numbers")
    return [item for items, _ in rows for item in items], [len(rows), *shapes[0]]


def _stacked(data: Any, dtype: torch.dtype, device: Any) -> Tensor:
    """No view, as it would be after ``reshape``."""
    if not isinstance(data, (list, tuple)):
        return _one(data, dtype, device)
    return torch.stack([_stacked(row, dtype, device) for row in data])


def _dtype_of(value: Any) -> torch.dtype:
    if isinstance(value, Tensor):
        return value.dtype
    if isinstance(value, (bool, torch.SymBool)):
        return torch.bool
    if isinstance(value, (int, torch.SymInt)):
        return torch.int64
    default = torch.get_default_dtype()
    return default.to_complex() if isinstance(value, complex) else default


def _one(value: Any, dtype: torch.dtype, device: Any) -> Tensor:
    if not isinstance(value, Tensor):
        if dtype.is_floating_point:  # a number that is too large for it becomes infinite
            made: Tensor = _SCALAR(_AS_FLOAT(as_number(value)), dtype=torch.float64, device=device)
            return made.to(dtype)
        return torch.scalar_tensor(value, dtype=dtype, device=device)
    if value.numel() != 1:
        raise ValueError("only one element tensors can be converted to Python scalars")
    whole = not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)
    if whole and (value.dtype.is_floating_point or value.dtype.is_complex):
        raise TypeError("only integer tensors of a single element can be converted to an index")
    return value.detach().reshape(()).to(device, dtype)
