"""Rules for single operations that a graph has otherwise than they are called.

`RULES` maps an operation to ``(recorder, operation, args, kwargs) -> result``, or NotImplemented
where this call of it is recorded as it is. The arguments are fake tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..errors import UnsupportedError
from ..torch_api.modes import no_modes
from .known import known_value
from .phase import Recording

Tensor = torch.Tensor
aten = torch.ops.aten
Rule = Callable[[Recording, Any, Any, Any], Any]


def _detach(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """The very value: no node."""
    out = recorder.bare(args[0])
    recorder.alias(out, args[0])
    return out


def _indexed(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """Masks of bytes are deprecated, and fake kernels do not know them."""
    if any(isinstance(i, Tensor) and i.dtype is torch.uint8 for i in args[1]):
        raise UnsupportedError(
            "the region indexes by a mask of bytes",
            code="byte-mask",
            path=recorder.user_line(),
            fix="mask.bool()",
        )
    return NotImplemented


def _contiguous(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """The functional form of the operation has strides of its own."""
    if not args[0].is_contiguous():
        raise UnsupportedError(
            f"the region calls {func} on a tensor that is not contiguous",
            code="not-contiguous",
            path=recorder.user_line(),
        )
    return NotImplemented


def _equal(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """Of constants, the answer is a constant."""
    known = [known_value(recorder, t) for t in args]
    if any(t is None for t in known):
        return NotImplemented
    with no_modes():
        return func(*known)


#: operations whose second argument is a list of indices
_INDEXED = (
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
    aten._unsafe_index.Tensor,
    aten._unsafe_index_put.default,
)
RULES: dict[Any, Rule] = {
    aten.detach.default: _detach,
    **dict.fromkeys(_INDEXED, _indexed),
    aten.rrelu_with_noise.default: _contiguous,
    aten.equal.default: _equal,
    # the very value: no node
    aten.detach_.default: lambda recorder, func, args, kwargs: func(*args),
}
