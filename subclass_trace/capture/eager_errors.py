"""What eager mode refuses, refused alike: where a fake kernel has refused, the real one is asked, on zeros.

Fake kernels refuse with errors of other classes, in other words. The real kernel says it as eager says it, and on a few
zeros it takes microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from .. import _torch
from ..errors import SubclassTraceError, UnsupportedError

Tensor = torch.Tensor
#: what a fake kernel raises where it knows the answer; not where it would need values, or does not exist
REFUSALS = (RuntimeError, AssertionError, ValueError, IndexError, TypeError)
#: memory that the zeros for one argument may take, in bytes
_MOST = 1 << 24
_SYMBOLIC: dict[type, Any] = {torch.SymFloat: 1.5, torch.SymBool: True}


class _Unknown(Exception):
    """No tensor of zeros can stand for an argument."""


def error_of_eager(
    func: Any, args: Sequence[Any], kwargs: dict[str, Any], error: Exception, line: str | None
) -> Exception:
    """What to raise in the place of ``error``, which a fake kernel has raised at ``line``: what the real kernel raises.

    Where the real one raises nothing, the fake one is wrong: then an `UnsupportedError`.
    """
    known = (SubclassTraceError, _torch.NO_FAKE_KERNEL, *_torch.DATA_DEPENDENT_ERRORS)
    draws = torch.Tag.nondeterministic_seeded in func.tags
    if isinstance(error, known) or func.namespace != "aten" or draws:
        return error
    try:
        with _torch.no_modes(), torch.no_grad():
            func(*map(_real, args), **{k: _real(v) for k, v in kwargs.items()})
    except _Unknown:
        return error
    except Exception as found:
        return found.with_traceback(None)
    given = [t for t in tensors_in((*args, *kwargs.values())) if not _torch.is_fake(t)]
    if given:  # torch's error may not say which of them it does not take
        return UnsupportedError(
            f"{func} is called with a tensor that the trace has no stand-in for",
            path=line,
            expected="dense tensors, parameters and traceable wrappers",
            got=f"an instance of {type(given[0]).__qualname__}",
            fix="let its class override nothing, or give it the wrapper protocol",
        )
    return UnsupportedError(
        f"torch refuses to trace {func} here, although it runs in eager mode",
        path=line,
        expected="an operation whose fake kernel takes what the real one takes",
        got=" ".join(str(error).split())[:300],
        fix="move this part out of the region, or write it with other operations",
    )


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among the arguments of an operation, and in lists of these."""
    for value in values:
        for t in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(t, Tensor):
                yield t


def has_out(func: Any) -> bool:
    """Is its result written to an argument (``out=``)?"""
    return any(a.is_out for a in func._schema.arguments)


def _real(a: Any) -> Any:
    if isinstance(a, Tensor):
        return _zeros(a)
    if isinstance(a, (list, tuple)):
        return [_real(b) for b in a]
    return _number(a) if isinstance(a, torch.SymInt) else _SYMBOLIC.get(type(a), a)


def _number(n: Any) -> int:
    """The value of a size in the traced call."""
    if isinstance(n, torch.SymInt):
        if _torch.is_nested(n) or _torch.is_data_dependent(n):
            raise _Unknown
        return int(n.node.hint)
    return int(n)


def _zeros(t: Tensor) -> Tensor:
    if t.layout is not torch.strided or t.is_quantized or t.is_nested:
        raise _Unknown
    size, stride = [_number(n) for n in t.shape], [_number(n) for n in t.stride()]
    reach = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if 0 not in size else 0
    if reach * t.element_size() > _MOST:
        raise _Unknown
    try:
        return torch.zeros(reach, dtype=t.dtype, device=t.device).as_strided(size, stride)
    except RuntimeError as error:  # no such device here, or no such numbers
        raise _Unknown from error
