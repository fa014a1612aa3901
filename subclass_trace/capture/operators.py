"""Rules for single operations that a graph has otherwise than they are called.

`RULES` maps an operation to ``(recorder, operation, args, kwargs) -> result``, or NotImplemented where this call of it is
recorded as it is. The arguments are fake tensors.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable
from typing import Any

import torch

from .. import torch_api
from ..errors import UnsupportedError
from .foreach import WITH_NUMBERS, with_numbers
from .set_storage import SETS, record_set
from .writes import one_of_each

Tensor = torch.Tensor
aten = torch.ops.aten
Rule = Callable[[Any, Any, Any, Any], Any]


def _polygamma_in_place(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Torch has no functional form of it."""
    with recorder:
        return args[0].copy_(aten.polygamma.default(args[1], args[0]))


def _fill(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """That several elements lie in one place does not matter here."""
    if 0 not in args[0].stride() or 0 in args[0].shape:
        return NotImplemented
    with recorder:
        func(one_of_each(args[0]), *args[1:], **kwargs)
    return args[0]


def _resize(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Where there is memory enough: nothing for the sizes that it has, else another look at that memory.

    The functional form gives contiguous strides in any case, and takes no symbols.
    """
    t, sizes = args[0], args[1] if len(args) > 1 else kwargs["size"]
    layout = kwargs.get("memory_format")
    if layout is None and len(sizes) == t.dim() and all(map(torch_api.surely, map(operator.eq, t.shape, sizes))):
        return t
    stop = t.storage_offset() + math.prod(sizes)
    if layout is torch.preserve_format or not torch_api.surely(stop * t.element_size() <= t.untyped_storage().nbytes()):
        return NotImplemented
    strides = torch.empty(sizes, device="meta", memory_format=layout or torch.contiguous_format).stride()
    with recorder:
        return aten.as_strided_.default(t, sizes, strides, t.storage_offset())


def _indexed_by_bytes(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """A mask of bytes is one of booleans, which torch's fake kernels know; eager fills by one mask with another operation."""
    if not any(isinstance(i, Tensor) and i.dtype is torch.uint8 for i in args[1]):
        return NotImplemented
    values = args[2] if len(args) > 2 else None
    if isinstance(values, Tensor) and len([i for i in args[1] if i is not None]) == 1 and not any(args[3:4]):
        if values.numel() == 1 and values.device.type == "cpu":
            raise RuntimeError("masked_fill_ only supports boolean masks, but got mask with dtype unsigned char")
    warnings.warn(
        "indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead.", stacklevel=2
    )
    with recorder:
        masks = [i.ne(0) if isinstance(i, Tensor) and i.dtype is torch.uint8 else i for i in args[1]]
        return func(args[0], masks, *args[2:], **kwargs)


def _with_numbers(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """List operations whose numbers come in a tensor."""
    with recorder:
        return with_numbers(func, args, kwargs)


def _refuse_fused(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """A fused step of an optimizer: torch can neither make all of them functional nor run them on fake tensors."""
    raise UnsupportedError(
        "the region runs a fused step of an optimizer",
        path=recorder.user_line(),
        expected="steps whose operations have functional forms",
        got=str(func),
        fix="make the optimizer with fused=False; a back end that compiles fuses what it finds",
    )


def _detach(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The very value: no node."""
    out = recorder.bare(args[0])
    recorder.alias(out, args[0])
    return out


#: operations whose second argument is a list of indices
_INDEXED = (
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
    aten._unsafe_index.Tensor,
    aten._unsafe_index_put.default,
)
_FUSED = (
    aten._fused_adam_.default,
    aten._fused_adamw_.default,
    aten._fused_adagrad_.default,
    aten._fused_sgd_.default,
)
RULES: dict[Any, Rule] = {
    aten.detach.default: _detach,
    aten.polygamma_.default: _polygamma_in_place,
    aten.resize_.default: _resize,
    **dict.fromkeys((aten.zero_.default, aten.fill_.Scalar), _fill),
    **dict.fromkeys(_INDEXED, _indexed_by_bytes),
    **dict.fromkeys(WITH_NUMBERS, _with_numbers),
    **dict.fromkeys(_FUSED, _refuse_fused),
    **dict.fromkeys(SETS, record_set),
}
