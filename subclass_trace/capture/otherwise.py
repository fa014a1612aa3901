"""Operations that a graph has otherwise than they were called: through other operations, or as no node of their own.

`OTHERWISE` maps an operation to ``(recorder, func, args, kwargs) -> result``, or NotImplemented where this call of it is
recorded as it is. The arguments are fake tensors.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from .. import _torch
from ..errors import UnsupportedError
from .foreach import WITH_NUMBERS, with_numbers
from .masks import INDEXED, has_bytes, with_booleans
from .set_storage import SETS, record_set
from .writes import one_of_each

aten = torch.ops.aten


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
    if layout is None and len(sizes) == t.dim() and all(map(_torch.surely, map(operator.eq, t.shape, sizes))):
        return t
    stop = t.storage_offset() + math.prod(sizes)
    if layout is torch.preserve_format or not _torch.surely(stop * t.element_size() <= t.untyped_storage().nbytes()):
        return NotImplemented
    strides = torch.empty(sizes, device="meta", memory_format=layout or torch.contiguous_format).stride()
    with recorder:
        return aten.as_strided_.default(t, sizes, strides, t.storage_offset())


def _indexed(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Masks of bytes."""
    if not has_bytes(args):
        return NotImplemented
    with recorder:
        return func(*with_booleans(args), **kwargs)


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


#: torch's fused steps of optimizers
FUSED = (
    aten._fused_adam_.default,
    aten._fused_adamw_.default,
    aten._fused_adagrad_.default,
    aten._fused_sgd_.default,
)


def _detach(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The very value: no node."""
    out = recorder.bare(args[0])
    recorder.alias(out, args[0])
    return out


OTHERWISE: dict[Any, Callable[[Any, Any, Any, Any], Any]] = {
    aten.detach.default: _detach,
    aten.polygamma_.default: _polygamma_in_place,
    aten.resize_.default: _resize,
    **dict.fromkeys((aten.zero_.default, aten.fill_.Scalar), _fill),
    **dict.fromkeys(INDEXED, _indexed),
    **dict.fromkeys(WITH_NUMBERS, _with_numbers),
    **dict.fromkeys(FUSED, _refuse_fused),
    **dict.fromkeys(SETS, record_set),
}
