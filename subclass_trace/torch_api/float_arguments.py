"""Symbols where C++ takes a plain float: the rate of a dropout, the momentum of a batch norm, the
rate of a fused optimizer.

C++ makes a number of a symbol there, which fixes it: each rate would be traced anew. Where all that
C++ does with the number is to hand it on to an operation, it gets another one that stands in for
the symbol; who traces finds that among what the operation is called with, and the symbol for it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..errors import VerificationError
from .repairs.composites import dropout_form
from .this_thread import replaced_here

#: in-place operations from whose numbers nothing is differentiated
_FILLS = (
    "bernoulli_",
    "normal_",
    "uniform_",
    "exponential_",
    "log_normal_",
    "cauchy_",
    "geometric_",
)
_STEPS = ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_")
_OPERATIONS = [getattr(torch.ops.aten, name) for name in (*_FILLS, *_STEPS)]
#: the names of functions that do nothing with a float but hand it on to one operation, and of those
# operations
HAND_FLOATS_ON = frozenset(
    name
    for op in _OPERATIONS
    for name in (op.__name__, *(f"{op.__name__}.{o}" for o in op.overloads()))
)
_EPSILON = 7  # among the arguments of `torch.batch_norm`
#: a rate, or a momentum, that is no operation's default, which would be left out
_LIKE_NO_OTHER = 0.3333 + 2.0**-30
_here = threading.local()


def with_symbols(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``f(*args, **kwargs)``, of a function that hands floats on, with symbols among them."""
    given = [*args, *kwargs.values()]
    if not any(isinstance(a, torch.SymFloat) for a in given):
        return f(*args, **kwargs)
    fixed, made = [a for a in given if type(a) is float], dict[float, Any]()

    def stand_in(a: Any) -> Any:
        if not isinstance(a, torch.SymFloat):
            return a
        number = _LIKE_NO_OTHER
        while number in made or number in fixed:
            number += 2.0**-40
        made[number] = a
        return number

    before, _here.waiting = getattr(_here, "waiting", None), made
    given_on = [*map(stand_in, args)], {name: stand_in(a) for name, a in kwargs.items()}
    guard: Any = torch._C._DisablePythonDispatcher()
    try:
        with guard:  # Python's forms of operations would compute with the numbers
            out = f(*given_on[0], **given_on[1])
    finally:
        _here.waiting = before
    if made:
        raise VerificationError(
            f"{f} has not handed on what it was given", got=f"{[*made.values()]}"
        )
    return out


def symbols_back(args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments of an operation that is traced, with symbols for what stands in for them."""
    waiting: dict[float, Any] | None = getattr(_here, "waiting", None)
    if not waiting:
        return args, kwargs

    def symbol(a: Any) -> Any:
        return waiting.pop(a, a) if type(a) is float else a

    return tuple(map(symbol, args)), {name: symbol(a) for name, a in kwargs.items()}


def plain_floats(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments of an operation on fake tensors: the metadata of its result hangs on no float
    that was a symbol."""
    if not any(isinstance(a, torch.SymFloat) for a in (*args, *kwargs.values())):
        return args, kwargs
    floats = {a.name for a in func._schema.arguments if str(a.type) == "float"}

    def plain(name: str, a: Any) -> Any:
        return 0.5 if name in floats and isinstance(a, torch.SymFloat) else a

    given = zip(func._schema.arguments, args, strict=False)
    return tuple(plain(row.name, a) for row, a in given), {
        name: plain(name, a) for name, a in kwargs.items()
    }


@contextlib.contextmanager
def floats_handed_on() -> Iterator[None]:
    """Inside, layers take symbols: in C++ these functions would make numbers of them."""
    dropout, batch_norm = torch._VF.dropout, torch.batch_norm

    def dropped(input: torch.Tensor, p: Any, train: bool) -> torch.Tensor:
        symbolic = (
            isinstance(p, torch.SymFloat) and input.device.type == "cpu" and input.is_contiguous()
        )
        return dropout_form(input, p, train, with_symbols) if symbolic else dropout(input, p, train)

    # its backward computes with epsilon, which is fixed
    def normed(*args: Any, **kwargs: Any) -> Any:
        if len(args) <= _EPSILON:
            return batch_norm(*args, **kwargs)
        return with_symbols(
            batch_norm, *args[:_EPSILON], float(args[_EPSILON]), *args[_EPSILON + 1 :], **kwargs
        )

    with replaced_here(torch._VF, "dropout", dropped), replaced_here(torch, "batch_norm", normed):
        yield
