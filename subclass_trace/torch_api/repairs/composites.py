"""Composite operations as eager mode computes them, where torch's Python form of one computes
something else.

With symbolic sizes, in inference mode, and where a class decomposes an operation itself, torch
takes some operations apart in Python instead of in C++. These Python forms differ from the C++
kernels, and have another one here:

    rnn_tanh, rnn_relu, lstm, gru   no dropout between the layers: a comparison of torch's is the
                                    wrong way round; refused
    dropout                         draws random numbers for p = 1; copies where the kernel returns
                                    its argument
    multilabel_margin_loss_forward  counts class 0 for each target that a row has less than classes;
    refused
    upsample_linear and the like,
    multi_margin_loss               round in another way, upsampling by 1 for bytes
    batch norms, margin losses      wrappers get the parts, where eager mode hands the operation
                                    itself to their class

What is refused with symbolic sizes is traced again with numbers, and then computed by the kernel.
And the sizes of pooling's results are computed without a branch: before torch 2.13 it asks for the
remainder of a division, which changes nothing, and a size of each remainder would get a
specialization of its own.
"""

from __future__ import annotations

import contextlib
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch._decomp.decompositions as decompositions
from torch import _meta_registrations
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ...errors import UnsupportedError
from ..this_thread import replaced_here

Tensor = torch.Tensor
#: an operation that raises an error with this text in the call where the condition does not hold
assert_async = torch._assert_async
_aten = torch.ops.aten
_KEYS = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)


@contextlib.contextmanager
def composites_as_eager() -> Iterator[None]:
    """Inside, an operation that torch takes apart in Python computes what it computes in eager
    mode."""
    forms = [
        (op, key, op.py_kernels[key]) for op in _FORMS for key in _KEYS if key in op.py_kernels
    ]
    with (
        replaced_here(decompositions, "_rnn_helper", _refused),
        replaced_here(_meta_registrations, "div_rtn", operator.floordiv),
    ):
        _set_forms([(op, key, _of_this_thread(_FORMS[op], kernel)) for op, key, kernel in forms])
        try:
            yield
        finally:
            _set_forms(forms)


def _of_this_thread(
    form: Callable[..., Any] | None, kernel: Callable[..., Any]
) -> Callable[..., Any] | None:
    """What another thread traces meanwhile is computed with ``kernel``."""
    if form is None:
        return None
    thread = threading.get_ident()
    return lambda *args, **kwargs: (form if threading.get_ident() == thread else kernel)(
        *args, **kwargs
    )


def _set_forms(rows: Sequence[tuple[Any, Any, Callable[..., Any] | None]]) -> None:
    for op, key, form in rows:
        if form is None:
            op.py_kernels.pop(key, None)
        else:
            op.py_kernels[key] = form
        op._dispatch_cache.clear()


def _plainly(f: Callable[..., Tensor], *args: Any) -> Tensor:
    return f(*args)


def dropout_form(
    input: Tensor, p: Any, train: bool, call: Callable[..., Tensor] = _plainly
) -> Tensor:
    """`torch.dropout`; ``call``: calls what draws the mask, with a rate that may be a symbol."""
    if not train or p == 0 or input.numel() == 0:
        return input
    if p == 1:  # without random numbers
        return input.mul(torch.zeros((), dtype=input.dtype, device=input.device))
    out: Tensor
    if input.device.type == "cpu" and not input.is_nested:
        if input.is_contiguous() or _is_wrapper(input):
            # As in eager mode. The fused kernel scales after it has masked, which rounds in another
            # way.
            mask = call(Tensor.bernoulli_, torch.empty_like(input), 1 - p)
            out = input * _aten.div_.Scalar(mask, 1 - p)
            return out
    out = _aten.native_dropout.default(input, p, train)[0]
    return out


def _refused(*_: Any, **__: Any) -> Any:
    raise UnsupportedError(
        "torch takes an operation apart in Python here, where its form computes something else "
        "than the kernel",
        code="composite",
        fix="leave recurrent layers and multilabel margin losses out of the region",
    )


_size_of: Any = decompositions.upsample_compute_output_size


def _interpolation(kernel: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """As C++ has it: the size of the result, and the kernel."""

    def form(
        x: Tensor,
        output_size: Sequence[int] | None,
        align_corners: bool,
        scale_factors: Sequence[float] | None = None,
    ) -> Tensor:
        size = _size_of(x.size(), output_size, scale_factors)
        return kernel(x, size, align_corners, *(scale_factors or ()))

    return form


def _itself_for_wrappers(op: Any, form: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """``form`` (else torch's own) for dense tensors. A wrapper gets the operation itself, as in
    eager mode."""
    form = form or next(op.py_kernels[key] for key in _KEYS if key in op.py_kernels)

    def either(*args: Any, **kwargs: Any) -> Any:
        if not any(map(_is_wrapper, (*args, *kwargs.values()))):
            return form(*args, **kwargs)
        with _in_cpp(op):
            return op(*args, **kwargs)

    return either


@contextlib.contextmanager
def _in_cpp(op: Any) -> Iterator[None]:
    """Inside, an operation has no form in Python."""
    before = [(op, key, op.py_kernels[key]) for key in _KEYS if key in op.py_kernels]
    _set_forms([(op, key, None) for _, key, _ in before])
    try:
        yield
    finally:
        _set_forms(before)


def _is_wrapper(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and type(value) is not FakeTensor
        and is_traceable_wrapper_subclass(value)
    )


#: those whose form in Python is no choice of elements
_INTERPOLATIONS = [
    getattr(_aten, f"upsample_{name}")
    for name in ("linear1d", "bilinear2d", "trilinear3d", "bicubic2d")
]
#: operation -> its form; None: that of C++ alone
_FORMS: dict[Any, Callable[..., Any] | None] = {
    _aten.dropout.default: dropout_form,
    _aten.multilabel_margin_loss_forward.default: _itself_for_wrappers(
        _aten.multilabel_margin_loss_forward.default, _refused
    ),
    _aten.multi_margin_loss.default: None,
    _aten.native_batch_norm.default: _itself_for_wrappers(_aten.native_batch_norm.default),
    _aten.matmul.default: _itself_for_wrappers(_aten.matmul.default),
    _aten.cudnn_batch_norm.default: _itself_for_wrappers(_aten.cudnn_batch_norm.default),
    **{op.vec: _interpolation(op.default) for op in _INTERPOLATIONS},
    **{op.default: None for op in _INTERPOLATIONS},
}
