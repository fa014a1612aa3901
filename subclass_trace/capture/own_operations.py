"""Operations of ours in the place of torch's, with symbols in their schemas where those have numbers (``int``).

    aten::im2col(Tensor self, int[2] kernel_size, ...) -> Tensor
    subclass_trace::im2col(Tensor self, SymInt[2] kernel_size, ...) -> Tensor

What one computes is torch's operation on the numbers of the call, which our own back end calls at once (`original`). A class
of tensors sees torch's operation, too, with symbols for numbers: while its code runs, `SymbolsInside` is active.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import torch

from .. import _torch

_originals: dict[Any, Any] = {}
_derived: dict[Any, Any] = {}


def original(op: Any) -> Any:
    """Torch's operation, whose schema takes numbers, for one of ours; every other operation is itself."""
    return _originals.get(op, op)


@functools.cache
def library() -> Any:
    """What is registered lasts as long as this object."""
    return torch.library.Library("subclass_trace", "FRAGMENT")  # type: ignore[no-untyped-call]


def derive(op: Any, kernel: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Ours for one of torch's: the same, but with symbols in its schema. To be called once for each.

    Args:
        kernel: computes it of numbers.
        fake: makes tensors without data of symbols.
    """
    schema = _torch.op_schema(op)
    overload = schema.overload_name
    name = _torch.op_name(op) + (f".{overload}" if overload else "")
    library().define(_with_symbols(str(schema)).partition("::")[2])
    library().impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"subclass_trace::{name}", fake, lib=library())
    own = getattr(getattr(torch.ops.subclass_trace, _torch.op_name(op)), overload or "default")
    _originals[own], _derived[op] = op, own
    return own


def own(op: Any) -> Any:
    """Ours for one of torch's whose kernel for tensors without data, in Python, takes symbols as it is."""
    return derive(op, lambda *args: op(*args), _torch.kernel_without_data(op))


def differentiable(own: Any, backward: Callable[..., Any], keep: Callable[..., Any]) -> None:
    """Give one of ours its backward (see ``torch.library.register_autograd``)."""
    name = f"subclass_trace::{_torch.op_name(own)}"
    torch.library.register_autograd(name, backward, setup_context=keep, lib=library())


def _with_symbols(schema: str) -> str:
    """There is no type for symbols of floats, but for numbers of any kind."""
    return re.sub(r"\bfloat\b", "Scalar", re.sub(r"\bint\b", "SymInt", schema))


class SymbolsInside(_torch.TorchFunctionMode):
    """For the code of a class that is handed symbols for numbers: torch's operation on its inner tensors is ours."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _derived and any(map(holds_symbols, (*args, *kwargs.values()))):
            func = _derived[func]
        return func(*args, **kwargs)


def holds_symbols(value: Any) -> bool:
    """Is it a symbolic size, or several numbers of which one is?"""
    values = value if isinstance(value, (tuple, list)) else (value,)
    return any(isinstance(n, torch.SymInt) for n in values)
