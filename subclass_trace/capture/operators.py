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
from ..torch_api.operators import overloads_of
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


def _quantized(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """Fake tensors have no scale, and say that they are not quantized."""
    raise UnsupportedError(
        "the region makes a quantized tensor",
        code="kind-of-tensor",
        path=recorder.user_line(),
        fix="use fake_quantize_per_tensor_affine, or quantize outside of the region",
    )


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
_QUANTIZES = [
    getattr(aten, name)
    for name in (
        "quantize_per_tensor",
        "quantize_per_tensor_dynamic",
        "quantize_per_channel",
        "_empty_affine_quantized",
        "_empty_per_channel_affine_quantized",
        "_make_per_tensor_quantized_tensor",
        "_make_per_channel_quantized_tensor",
    )
]
RULES: dict[Any, Rule] = {
    aten.detach.default: _detach,
    **{op: _quantized for packet in _QUANTIZES for op in overloads_of(packet) or ()},
    **dict.fromkeys(_INDEXED, _indexed),
    aten.rrelu_with_noise.default: _contiguous,
    aten.equal.default: _equal,
    # the very value: no node
    aten.detach_.default: lambda recorder, func, args, kwargs: func(*args),
}
