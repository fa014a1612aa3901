"""The native kernels of ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer``, which they
take in inference.

Their Python code asks `torch.overrides.has_torch_function` first, which is true of all tensors
while a function mode is active, as one is during a capture. Eager mode, without one, takes the
kernel: it rounds otherwise than the single operations, has other strides, and an encoder with a
padding mask gives zeros for what is padded.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import torch
import torch.nn.modules.activation
import torch.nn.modules.transformer

from ..lines import asking
from ..this_thread import replaced_here

#: the kernel that a module would call
_KERNELS: dict[type, str] = {
    torch.nn.MultiheadAttention: "aten::_native_multi_head_attention",
    torch.nn.TransformerEncoderLayer: "aten::_transformer_encoder_layer_fwd",
}
_HERE = (torch.nn.modules.activation.__name__, torch.nn.modules.transformer.__name__)
_DISABLED = torch._C._disabled_torch_function_impl


@contextlib.contextmanager
def fast_paths_as_eager() -> Iterator[None]:
    """Inside, these modules see in this thread whether the classes of the tensors override
    functions, not the mode."""
    asked = torch.overrides.has_torch_function

    def has_torch_function(args: Iterable[Any]) -> bool:
        return (
            any(map(_overrides, args))
            if _can_be_traced(_module_that_asks(asking(sys._getframe(2))))
            else asked(args)
        )

    def is_causal(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
        """A hint, for which torch would compare the values: a mask that is not said to be causal is
        used as it is."""
        return is_causal is True

    causal = replaced_here(torch.nn.modules.transformer, "_detect_is_causal_mask", is_causal)
    with (
        causal,
        replaced_here(torch.overrides, "has_torch_function", has_torch_function) as stand_in,
    ):
        try:
            yield
        finally:
            _forget(stand_in)


def takes_fast_path(frame: FrameType) -> bool:
    """Is this the code of `nn.TransformerEncoder`? It goes on to look at its padding mask, where it
    is not compiling."""
    return isinstance(_module_that_asks(frame), _ENCODER)


def _forget(stand_in: Any) -> None:
    """What Dynamo knows by function, it looks up once in a process, each table when it is first
    asked for: it may have met the stand-in (under ``torch.cond``, or because something that a
    capture needs imports it)."""
    tables, rules = map(
        sys.modules.get, ("torch._dynamo.variables.torch", "torch._dynamo.trace_rules")
    )
    if tables is None or rules is None:
        return
    handlers = tables.TorchInGraphFunctionVariable._get_handlers
    caches = (tables.tracing_state_functions, handlers, rules.get_torch_obj_rule_map)
    filled = [table for table in caches if table.cache_info().currsize]
    if any(stand_in in table() for table in filled):
        for table in caches:
            table.cache_clear()


_ENCODER = torch.nn.TransformerEncoder


def _module_that_asks(frame: FrameType) -> Any:
    """Of which module the code is, if it is one of torch's."""
    return frame.f_locals.get("self") if frame.f_globals.get("__name__") in _HERE else None


def _can_be_traced(module: Any) -> bool:
    """Has what it would call a fake kernel? (That of the layer has one from torch 2.13 on.) An
    encoder calls its layers."""
    kernels = [k for cls, k in _KERNELS.items() if isinstance(module, cls)]
    meta = torch._C._dispatch_has_kernel_for_dispatch_key
    return isinstance(module, _ENCODER) or any(meta(k, "Meta") for k in kernels)


def _overrides(value: Any) -> bool:
    cls = type(value)
    return (
        isinstance(value, torch.Tensor)
        and cls is not torch.Tensor
        and cls.__torch_function__ is not _DISABLED
    )
