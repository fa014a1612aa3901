"""Rules for functions of torch that read values: as operations that a graph can hold, with eager's checks.

`FUNCTIONS` maps the name of a function, as user code calls it, to ``(recorder, function, args, kwargs) -> result``.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from .. import torch_api
from ..subclass.protocol import is_traceable
from .operators import Rule

Tensor = torch.Tensor
aten = torch.ops.aten


def _one_hot(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """With eager's checks of the values: torch leaves them out for tensors without data."""
    index = (*args, *kwargs.values())[0]
    return _checked_one_hot(*args, **kwargs) if torch_api.is_fake(index) else func(*args, **kwargs)


def _checked_one_hot(input: Tensor, num_classes: int = -1) -> Tensor:
    if input.dtype is not torch.int64:
        raise RuntimeError("one_hot is only applicable to index tensor of type LongTensor.")
    if math.prod(input.shape) == 0:
        if num_classes <= 0:
            raise RuntimeError("Can not infer total number of classes from empty tensor.")
        return input.new_empty((*input.shape, num_classes))
    on_gpu = input.device.type == "cuda"  # there the kernel asserts
    if not on_gpu:
        torch_api.assert_async((input >= 0).all(), "Class values must be non-negative.")
    if num_classes == -1:
        num_classes = input.max().item() + 1  # type: ignore[assignment]
    elif not on_gpu:
        if num_classes < 0:
            raise RuntimeError("Class values must be smaller than num_classes.")
        torch_api.assert_async((input < num_classes).all(), "Class values must be smaller than num_classes.")
    elif num_classes < 1:
        raise RuntimeError("num_classes should be positive")
    if on_gpu:
        return input.new_zeros((*input.shape, num_classes)).scatter(-1, input.unsqueeze(-1), 1)
    return (input.unsqueeze(-1) == torch.arange(num_classes, device=input.device)).to(torch.int64)


def _product(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """With symbolic sizes torch takes it apart in Python, where its result may be a view, which eager's never is."""
    out = func(*args, **kwargs)
    if kwargs.get("out") is not None or not torch_api.is_fake(out) or not out._is_view():
        return out
    if any(out._base is a or is_traceable(a) for a in (*args, *kwargs.values()) if isinstance(a, Tensor)):
        return out  # a view of an argument, or a wrapper's own answer
    return aten._unsafe_view.default(out._base, out.shape)


def _attends(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """A function that computes attention, whose kernels a caller may choose."""
    recorder.met.add("attention")
    return _product(recorder, func, args, kwargs)


def _lstm(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """In C++ it is one of oneDNN's layers, which a graph does not call: see `torch_api.repairs.composites`."""
    with torch_api.enable_python_dispatcher():
        return func(*args, **kwargs)


FUNCTIONS: dict[str, Rule] = {
    "one_hot": _one_hot,
    **dict.fromkeys(("scaled_dot_product_attention", "multi_head_attention_forward"), _attends),
    **dict.fromkeys(("_native_multi_head_attention", "_transformer_encoder_layer_fwd"), _attends),
    **dict.fromkeys(("matmul", "__matmul__", "__rmatmul__", "linear"), _product),
    "lstm": _lstm,
}
