"""Rules for functions of torch's, by the names that user code calls.

They hold in the region's function (`functions`), and in hooks and custom backwards, where the
engine leaves function modes behind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..errors import UnsupportedError
from ..subclass.protocol import is_traceable
from ..torch_api.collectives import COLLECTIVES, collective_in_place, is_collective
from ..torch_api.float_arguments import HAND_FLOATS_ON, with_symbols
from ..torch_api.kinds import is_fake
from ..torch_api.modes import TorchFunctionMode, enable_python_dispatcher
from ..torch_api.numbers import as_numbers, holds_symbols
from ..torch_api.operators import is_differentiated_inside
from ..torch_api.repairs.composites import assert_async
from ..torch_api.trees import pytree
from .phase import Recording
from .recorder import Recorder

Tensor = torch.Tensor
_aten = torch.ops.aten


class FunctionRules(TorchFunctionMode):
    """Calls functions by their rules, and makes numbers of the symbols that they tell."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.compiler.is_dynamo_compiling():  # torch.cond lets Dynamo look at this mode as well
            return func(*args, **(kwargs or {}))
        return as_numbers(self.call(func, args, kwargs or {}))

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """By the rule for its name, or as it is."""
        rule = _RULES.get(getattr(func, "__name__", ""))
        if rule is not None:
            return rule(self.recorder, func, args, kwargs)
        if is_differentiated_inside(func) and torch.is_grad_enabled():
            self._refuse_derivative(func, args, kwargs)
        if self.recorder.met.numbers and holds_symbols((args, kwargs)):
            with enable_python_dispatcher():  # composite kernels in C++ ask for numbers
                return func(*args, **kwargs)
        return func(*args, **kwargs)

    def _refuse_derivative(self, func: Any, args: Any, kwargs: Any) -> None:
        """A kernel is one node, without what is in it.

        Raises:
            UnsupportedError: a gradient goes through it.
        """
        tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        if any(t.requires_grad for t in tensors):
            raise UnsupportedError(
                "the region calls an operator that has no derivative: eager mode differentiates "
                "the operations of its kernel",
                code="operator-without-derivative",
                path=self.recorder.user_line(),
                got=str(func),
                fix="register one (torch.library.register_autograd), or call it under no_grad",
            )


# ---- rules
def _one_hot(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """With eager's check of the values, which torch leaves out for tensors without data."""
    index, classes = (*args, *kwargs.values(), -1)[:2]
    if is_fake(index):
        if index.dtype is not torch.int64 or classes <= 0:
            raise UnsupportedError(
                "one_hot whose values tell the number of classes, or that eager refuses",
                code="one-hot",
                got=classes,
            )
        if index.device.type != "cuda":  # there the kernel asserts
            assert_async(
                ((index >= 0) & (index < classes)).all(),
                "Class values must be non-negative and smaller than num_classes.",
            )
    return func(*args, **kwargs)


def _product(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """With symbolic sizes torch takes it apart in Python, where its result may be a view, which
    eager's never is."""
    out = func(*args, **kwargs)
    if kwargs.get("out") is not None or not is_fake(out) or not out._is_view():
        return out
    bias = kwargs.get("bias", (*args, None, None, None)[2])
    if getattr(func, "__name__", "") == "linear" and bias is not None and out.dim() == 1:
        return out  # of a vector, eager's is one, too
    if any(
        out._base is a or is_traceable(a)
        for a in (*args, *kwargs.values())
        if isinstance(a, Tensor)
    ):
        return out  # a view of an argument, or a wrapper's own answer
    return _aten._unsafe_view.default(out._base, out.shape)


def _attends(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """A function that computes attention, whose kernels a caller may choose."""
    recorder.met.attention = True
    return func(*args, **kwargs)


def _handed_on(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """A function whose floats may be symbols."""
    return with_symbols(func, *args, **kwargs)


def _collective(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """A collective that writes to its arguments."""
    known = is_collective(func)
    return collective_in_place(func, args, kwargs) if known else func(*args, **kwargs)


#: rules for functions that read values, or hide what they are made of, by the names that user code
# calls: with eager's checks
_RULES: dict[str, Callable[[Recorder, Any, Any, Any], Any]] = {
    "one_hot": _one_hot,
    **dict.fromkeys(("scaled_dot_product_attention", "multi_head_attention_forward"), _attends),
    **dict.fromkeys(("_native_multi_head_attention", "_transformer_encoder_layer_fwd"), _attends),
    **dict.fromkeys(HAND_FLOATS_ON, _handed_on),
    **dict.fromkeys(COLLECTIVES, _collective),
    **dict.fromkeys(("matmul", "__matmul__", "__rmatmul__", "linear"), _product),
}
