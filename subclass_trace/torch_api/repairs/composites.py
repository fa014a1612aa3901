"""Composite operations as eager mode computes them, where torch's Python form of one computes something else.

With symbolic sizes, in inference mode, and where a class decomposes an operation itself, torch takes some operations
apart in Python instead of in C++. These Python forms differ from the C++ kernels, and have another one here:

    rnn_tanh, rnn_relu, lstm, gru   no dropout between the layers: a comparison of torch's is the wrong way round; refused
    dropout                         draws random numbers for p = 1; copies where the kernel returns its argument
    multilabel_margin_loss_forward  counts class 0 for each target that a row has less than classes
    upsample_linear and the like    rounds in another way, by 1 for bytes
    upsample_nearest and the like   wrappers get indexing by dense tensors, which DTensor refuses
    softshrink, hardshrink          another gradient of NaN, which kernels treat as they please
    multi_margin_loss               a gradient of the weights, which eager mode refuses
    batch norms, margin losses      wrappers get the parts, where eager mode hands the operation itself to their class

And the sizes of pooling's results are computed without a branch: before torch 2.13 it asks for the remainder of a division,
which changes nothing, and a size of each remainder would get a specialization of its own.
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
from .fake_kernels import META_KERNELS

Tensor = torch.Tensor
#: an operation that raises an error with this text in the call where the condition does not hold
assert_async = torch._assert_async
_aten = torch.ops.aten
_KEYS = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
_META = torch._C.DispatchKey.Meta


@contextlib.contextmanager
def composites_as_eager() -> Iterator[None]:
    """Inside, an operation that torch takes apart in Python computes what it computes in eager mode."""
    forms = [(op, key, op.py_kernels[key]) for op in _FORMS for key in _KEYS if key in op.py_kernels]
    metas = [(op, _META, op.py_kernels.get(_META)) for op in META_KERNELS]
    with (
        replaced_here(decompositions, "_rnn_helper", _no_recurrent_layers),
        replaced_here(_meta_registrations, "div_rtn", operator.floordiv),
    ):
        _set_forms([(op, key, _of_this_thread(_FORMS[op], kernel)) for op, key, kernel in forms])
        _set_forms([(op, key, META_KERNELS[op]) for op, key, _ in metas])
        try:
            yield
        finally:
            _set_forms([*forms, *metas])


def _of_this_thread(form: Callable[..., Any] | None, kernel: Callable[..., Any]) -> Callable[..., Any] | None:
    """What another thread traces meanwhile is computed with ``kernel``."""
    if form is None:
        return None
    thread = threading.get_ident()
    return lambda *args, **kwargs: (form if threading.get_ident() == thread else kernel)(*args, **kwargs)


def _set_forms(rows: Sequence[tuple[Any, Any, Callable[..., Any] | None]]) -> None:
    for op, key, form in rows:
        if form is None:
            op.py_kernels.pop(key, None)
        else:
            op.py_kernels[key] = form
        op._dispatch_cache.clear()


def _dropout(input: Tensor, p: float, train: bool) -> Tensor:
    if not train or p == 0 or input.numel() == 0:
        return input
    if p == 1:  # without random numbers
        return input.mul(torch.zeros((), dtype=input.dtype, device=input.device))
    out: Tensor
    if input.device.type == "cpu" and not input.is_nested:
        rounded_twice = input.dtype in _ROUNDED_TWICE and input.is_contiguous()
        if rounded_twice or _is_wrapper(input):
            # As in eager mode. The fused kernel scales after it has masked, which rounds once more.
            out = input * _aten.div_.Scalar(torch.empty_like(input).bernoulli_(1 - p), 1 - p)
            return out
    out = _aten.native_dropout.default(input, p, train)[0]
    return out


_ROUNDED_TWICE = (torch.bfloat16, torch.float16)


def _multilabel_margin_loss(input: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """The loss of each row, with sums over its targets (up to the first -1) and over the classes that are none."""
    torch._check(
        0 < input.dim() <= 2 and target.shape == input.shape,
        lambda: f"inconsistent target size: {list(target.shape)} for input of size: {list(input.shape)}",
    )  # type: ignore[no-untyped-call]
    rows, targets = (t if t.dim() == 2 else t.unsqueeze(0) for t in (input, target))
    given = (targets == -1).cumsum(1) == 0
    classes = torch.arange(rows.shape[1], device=target.device)
    hit = (targets.unsqueeze(2) == classes) & given.unsqueeze(2)  # row, target, class
    is_target = hit.any(1)
    wanted = rows.gather(1, torch.where(given, targets, 0))
    margins = (1 - wanted.unsqueeze(2) + rows.unsqueeze(1)).clamp_min(0)
    counted = given.unsqueeze(2) & ~is_target.unsqueeze(1)
    loss = torch.where(counted, margins, 0).sum((1, 2)) / rows.shape[1]
    loss = loss.mean() if reduction == 1 else loss.sum() if reduction == 2 else loss.reshape(input.shape[:-1])
    return loss, is_target.to(input.dtype).reshape(target.shape)


def _multi_margin_loss(op: Any) -> Callable[..., Tensor]:
    """Torch's form, for weights that need no gradient."""
    form = op.py_kernels[_KEYS[0]]

    def checked(
        input: Tensor, target: Tensor, p: Any = 1, margin: Any = 1, weight: Tensor | None = None, reduction: int = 1
    ) -> Tensor:
        if weight is not None and weight.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(
                "The function 'multi_margin_loss' is not differentiable with respect to argument 'weight'. "
                "This input cannot have requires_grad True."
            )
        return form(input, target, p, margin, weight, reduction)  # type: ignore[no-any-return]

    return checked


def _interpolation(vec: Any, kernel: Any) -> Callable[..., Tensor]:
    """The kernel itself where no gradient is wanted; torch's form, which has a backward for symbolic sizes, elsewhere."""
    with_gradient = vec.py_kernels[_KEYS[0]]

    def form(
        input: Tensor, output_size: Any, align_corners: bool, scale_factors: Sequence[float] | None = None
    ) -> Tensor:
        if torch.is_grad_enabled() and input.requires_grad:
            return with_gradient(input, output_size, align_corners, scale_factors)  # type: ignore[no-any-return]
        size: Any = decompositions.upsample_compute_output_size(input.size(), output_size, scale_factors)  # type: ignore[no-untyped-call]
        scales: Sequence[float | None] = scale_factors or [None] * len(size)
        with torch._C._AutoDispatchBelowAutograd():
            out: Tensor = kernel(input, size, align_corners, *scales)
        return out

    return form


def _whole_for_wrappers(kernel: Any, form: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``form`` for dense tensors. A wrapper gets the operation itself, as in eager mode: its class may not know the parts."""

    def either(input: Tensor, output_size: Any, *rest: Any) -> Tensor:
        if not _is_wrapper(input):
            return form(input, output_size, *rest)
        *options, scale_factors = rest
        size: Any = decompositions.upsample_compute_output_size(input.size(), output_size, scale_factors)  # type: ignore[no-untyped-call]
        with _in_cpp(kernel):
            out: Tensor = kernel(input, size, *options, *(scale_factors or [None] * len(size)))
        return out

    return either


def _itself_for_wrappers(op: Any, form: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """``form`` (else torch's own) for dense tensors. A wrapper gets the operation itself, as in eager mode."""
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
    return isinstance(value, Tensor) and type(value) is not FakeTensor and is_traceable_wrapper_subclass(value)


_INTERPOLATIONS = (
    (_aten.upsample_linear1d.vec, _aten.upsample_linear1d.default),
    (_aten.upsample_bilinear2d.vec, _aten.upsample_bilinear2d.default),
    (_aten.upsample_trilinear3d.vec, _aten.upsample_trilinear3d.default),
    (_aten.upsample_bicubic2d.vec, _aten.upsample_bicubic2d.default),
)
_NEAREST = [
    getattr(_aten, f"{name}{n}d") for name in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3)
]
#: None: the kernel, and the derivative that it has in C++
_FORMS: dict[Any, Callable[..., Any] | None] = {
    _aten.dropout.default: _dropout,
    _aten.multilabel_margin_loss_forward.default: _itself_for_wrappers(
        _aten.multilabel_margin_loss_forward.default, _multilabel_margin_loss
    ),
    _aten.softshrink.default: None,
    _aten.hardshrink.default: None,
    _aten.multi_margin_loss.default: _itself_for_wrappers(
        _aten.multi_margin_loss.default, _multi_margin_loss(_aten.multi_margin_loss.default)
    ),
    _aten.native_batch_norm.default: _itself_for_wrappers(_aten.native_batch_norm.default),
    _aten.matmul.default: _itself_for_wrappers(_aten.matmul.default),
    _aten.cudnn_batch_norm.default: _itself_for_wrappers(_aten.cudnn_batch_norm.default),
    **{vec: _whole_for_wrappers(kernel, _interpolation(vec, kernel)) for vec, kernel in _INTERPOLATIONS},
    **{op.vec: _whole_for_wrappers(op.default, op.vec.py_kernels[_KEYS[0]]) for op in _NEAREST},
}


def _no_recurrent_layers(*_: Any, **__: Any) -> Any:
    raise UnsupportedError(
        "a recurrent layer is taken apart in Python, where torch leaves out the dropout between layers",
        expected="no torch.lstm, torch.gru or torch.rnn_* in the region",
        fix="leave the layer out of the region, as torch.compile does",
    )
