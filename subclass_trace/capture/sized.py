"""Operations that make a tensor of so many elements, where the number is a symbol: ``torch.linspace(0, 1, x.shape[0])``.

Torch's schemas of these take a number (``int``), so that a symbol would be the number that it is in this trace alone. In
their place a graph has operations of ours: those of torch, but with symbols in their schemas.

    aten::hann_window(int window_length, *, ScalarType? dtype=None, ...) -> Tensor
    subclass_trace::hann_window(SymInt window_length, *, ScalarType? dtype=None, ...) -> Tensor

What they make of symbols has the sizes that `SIZES` says, and looks otherwise like what torch's operation makes of the numbers
in the traced call.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from .. import _torch
from ..subclass.protocol import Kind, kind_of
from .own_operations import derive
from .recorder import Recorder

Tensor = torch.Tensor
aten = torch.ops.aten
#: the arguments of a call by their names -> the sizes of the result
Sizes: TypeAlias = Callable[[Mapping[str, Any]], tuple[Any, ...]]
_MOST: Any = torch.sym_max  # torch has no annotations for it
#: stands for a number that the traced call does not have, where only the dtype and the like of a result are asked for
_SOME = 3


# ---------------------------------------------------------------------------------------------- sizes
def _named(name: str) -> Sizes:
    return lambda given: (given[name],)


def _lower(given: Mapping[str, Any]) -> tuple[Any, ...]:
    return 2, _below(given["row"], given["col"], given["offset"])


def _upper(given: Mapping[str, Any]) -> tuple[Any, ...]:
    rows, columns = given["row"], given["col"]
    return 2, rows * columns - _below(rows, columns, given["offset"] - 1)


def _below(rows: Any, columns: Any, offset: Any) -> Any:
    """How many places of a matrix lie on its diagonal of that number, and below: row ``k`` has ``k + 1 + offset`` of them,
    but at least none, and at most all columns."""
    wide = _staircase(rows + offset) - _staircase(offset)
    return wide - _staircase(rows + offset - columns) + _staircase(offset - columns)


def _staircase(steps: Any) -> Any:
    """``1 + 2 + ... + steps``; nothing where there are none."""
    steps = _MOST(steps, 0)
    return steps * (steps + 1) // 2


_WINDOWS = ("bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window")
#: operation -> the sizes of what it makes
SIZES: Mapping[str, Sizes] = {
    **dict.fromkeys(("linspace", "logspace"), _named("steps")),
    **dict.fromkeys(_WINDOWS, _named("window_length")),
    "fft_fftfreq": _named("n"),
    "fft_rfftfreq": lambda given: (given["n"] // 2 + 1,),
    "tril_indices": _lower,
    "triu_indices": _upper,
}
#: arguments that may be negative
_PLACES = ("offset",)
#: options of torch's functions in Python that their schemas do not have
_OTHER_OPTIONS = ("out", "names")


# ---------------------------------------------------------------------------------------------- calls
def sized(recorder: Recorder, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """A call of one of these functions (see `composites.COMPOSITES`)."""
    given = (*args, *kwargs.values())
    plain = isinstance(func, types.BuiltinFunctionType)  # ``torch.ops`` counts versions in another way
    if not (plain and any(map(_is_open, given))) or any(kwargs.get(name) is not None for name in _OTHER_OPTIONS):
        return func(*args, **kwargs)
    if any(isinstance(a, Tensor) and kind_of(type(a)) is not Kind.LEAF for a in given):
        return func(*args, **kwargs)  # a class would see another operation
    options = {k: v for k, v in kwargs.items() if k not in ("requires_grad", *_OTHER_OPTIONS)}
    options.setdefault("pin_memory", False)  # as torch's functions in Python say it
    if options.get("device") is None:  # modes for default devices know those functions alone
        options["device"] = torch.get_default_device()
    operation = operations(func.__name__)
    try:
        made: Tensor = operation(*(a.detach() if isinstance(a, Tensor) else a for a in args), **options)
    except (TypeError, RuntimeError):  # whatever it is, eager's is that of the function
        return func(*args, **kwargs)
    return made.requires_grad_() if kwargs.get("requires_grad") else made


def _is_open(n: Any) -> bool:
    """Is it a number that is another one in other calls?"""
    return isinstance(n, _torch.SYM_TYPES) and not _torch.is_nested(n) and bool(n.node.expr.free_symbols)


# ---------------------------------------------------------------------------------------------- operations
@functools.cache
def operations(name: str) -> Any:
    """Ours of a name in `SIZES`, with all its overloads, registered on the first call."""
    packet = getattr(aten, name)
    for op in (getattr(packet, overload) for overload in packet.overloads()):
        if not _torch.op_schema(op).is_mutable:
            derive(op, _on_numbers(op), _on_symbols(op, SIZES[name]))
    return getattr(torch.ops.subclass_trace, name)


def _on_numbers(op: Any) -> Callable[..., Tensor]:
    def kernel(*args: Any, **kwargs: Any) -> Tensor:
        out: Tensor = op(*args, **kwargs)
        if not out.is_inference():  # that it was filled in place does not count in torch's functions in Python
            _torch.set_version(out, 0)
        return out

    return kernel


def _on_symbols(op: Any, sizes: Sizes) -> Callable[..., Tensor]:
    defaults = {p.name: p.default_value for p in _torch.op_schema(op).arguments}
    counts = [p.name for p in _torch.op_schema(op).arguments if str(p.type) == "int" and p.name not in _PLACES]

    def fake(*args: Any, **kwargs: Any) -> Tensor:
        like = op(*map(_number, args), **{k: _number(v) for k, v in kwargs.items()})
        given = defaults | dict(zip(defaults, args, strict=False)) | kwargs
        for name in counts:
            torch._check(given[name] >= 0)  # type: ignore[no-untyped-call]
        return torch.empty(sizes(given), dtype=like.dtype, layout=like.layout, device=like.device)

    return fake


def _number(n: Any) -> Any:
    """The number that a symbol is in the traced call."""
    if not isinstance(n, _torch.SYM_TYPES):
        return n
    known = _torch.value_in_trace(n)
    return _SOME if known is None else known
