"""What eager mode refuses, refused alike: the real kernel is asked, on zeros.

Fake kernels refuse with errors of other classes, in other words; and they accept operations in place whose result does not
fit (``x.mul_(1j)`` of a real ``x``, ``x.eq_(y)`` of a larger ``y``). The real kernel says it as eager says it, and on a few
zeros it takes microseconds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from .. import torch_api
from ..errors import SubclassTraceError, UnsupportedError

Tensor = torch.Tensor
#: what a fake kernel raises where it knows the answer; not where it would need values, or does not exist
REFUSALS = (RuntimeError, AssertionError, ValueError, IndexError, TypeError)
#: memory that the zeros for one argument may take, in bytes
_MOST = 1 << 24
#: parts of errors that come of the zeros
_OF_VALUES = ("ZeroDivision", "out of bounds", "out of range", "singular")
_SYMBOLIC: dict[type, Any] = {torch.SymFloat: 1.5, torch.SymBool: True}


class _Unknown(Exception):
    """No tensor of zeros can stand for an argument."""


def error_of_eager(
    func: Any, args: Sequence[Any], kwargs: dict[str, Any], error: Exception, line: str | None
) -> Exception:
    """What to raise in the place of ``error``, which a fake kernel has raised at ``line``: what the real kernel raises.

    Where the real one raises nothing, the fake one is wrong: then an `UnsupportedError`.
    """
    known = (SubclassTraceError, torch_api.NO_FAKE_KERNEL, *torch_api.DATA_DEPENDENT_ERRORS)
    if isinstance(error, known):
        return error
    try:
        found = _ask(func, args, kwargs)
    except _Unknown:
        return error
    if found is not None:
        return found
    given = [t for t in tensors_in((*args, *kwargs.values())) if not torch_api.is_fake(t)]
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


def refuse_misfit(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise what eager raises for an elementwise operation in place on tensors of several dtypes or shapes."""
    if torch.Tag.pointwise not in func.tags or not args or not isinstance(args[0], Tensor) or has_out(func):
        return
    given = list(tensors_in(args))
    numbers = any(isinstance(a, (float, complex)) for a in args[1:]) and not args[0].is_complex()
    kinds = {t.dtype for t in given}
    alike = len(kinds) == 1 and len({t.dim() for t in given}) == 1 and all(map(_same_sizes, given[1:], given))
    if alike and not (numbers and (not args[0].is_floating_point() or any(isinstance(a, complex) for a in args))):
        return
    with contextlib.suppress(_Unknown):
        if (found := _ask(func, args, kwargs)) is not None and not any(text in str(found) for text in _OF_VALUES):
            raise found from None


def _same_sizes(a: Tensor, b: Tensor) -> bool:
    """Are both surely of one shape?"""
    return all(torch_api.surely(m == n) for m, n in zip(a.shape, b.shape, strict=True))


def _ask(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Exception | None:
    """What the real kernel raises on zeros.

    Raises:
        _Unknown: it cannot be asked.
    """
    if func.namespace != "aten" or torch.Tag.nondeterministic_seeded in func.tags:
        raise _Unknown
    try:
        with torch_api.no_modes(), torch.no_grad():
            func(*map(_real, args), **{k: _real(v) for k, v in kwargs.items()})
    except _Unknown:
        raise
    except Exception as error:
        return error.with_traceback(None)
    return None


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
        if torch_api.is_nested(n) or torch_api.is_data_dependent(n):
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
