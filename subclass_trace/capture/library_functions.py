"""Rules for functions of torch that read values: as operations that a graph can hold, with eager's checks.

`FUNCTIONS` maps the name of a function, as user code calls it, to ``(recorder, function, args, kwargs) -> result``.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import torch_api
from ..errors import NeedsEager
from ..subclass.protocol import is_traceable
from .operators import Rule

Tensor = torch.Tensor
aten = torch.ops.aten


def _one_hot(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """With eager's check of the values, which torch leaves out for tensors without data."""
    index, classes = (*args, *kwargs.values(), -1)[:2]
    if torch_api.is_fake(index):
        if index.dtype is not torch.int64 or classes <= 0:
            raise NeedsEager("one_hot whose values tell the number of classes, or that eager refuses", got=classes)
        if index.device.type != "cuda":  # there the kernel asserts
            torch_api.assert_async(
                ((index >= 0) & (index < classes)).all(),
                "Class values must be non-negative and smaller than num_classes.",
            )
    return func(*args, **kwargs)


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
    return func(*args, **kwargs)


FUNCTIONS: dict[str, Rule] = {
    "one_hot": _one_hot,
    **dict.fromkeys(("scaled_dot_product_attention", "multi_head_attention_forward"), _attends),
    **dict.fromkeys(("_native_multi_head_attention", "_transformer_encoder_layer_fwd"), _attends),
    **dict.fromkeys(("matmul", "__matmul__", "__rmatmul__", "linear"), _product),
}
