"""`ScaledFP8`: FP8 training on tensors that know their scale. value = qdata * scale.

What it is for: matmuls in float8 and activations that are saved for backward in one byte each.
`fp8_linear` is ``F.linear`` with activation, weight and gradient quantised per tensor as they come
(dynamic scaling; delayed scaling is in `delayed_fp8`); the class does the rest, because autograd
saves the `ScaledFP8` operands of a matmul as they are.

    >>> _ = torch.manual_seed(0)
    >>> x, w = torch.randn(8, 16), torch.randn(4, 16, requires_grad=True)
    >>> y = fp8_linear(x, w)
    >>> bool((y - x @ w.t()).norm() < 0.05 * y.norm())
    True
    >>> y.sum().backward()
    >>> w.grad.shape, w.grad.dtype
    (torch.Size([4, 16]), torch.float32)
    >>> to_fp8(x)[:2].t()
    ScaledFP8(shape=(16, 2), float8_e4m3fn as float32, scale=tensor(0.0076))

Which operations stay in FP8: views, clone, changes of device or floating dtype, ``mm`` and
``addmm`` of two ScaledFP8 (dense result, from ``torch._scaled_mm``). In-place operations compute
densely and quantise the result again, so optimizers work on a ScaledFP8 parameter. Everything else
gives the dense tensor that it would give on the value, and so
does ``zeros_like``: optimizers make their state with it, and Adam's second moment does not survive
one scale in FP8.

Limits. There is one scale for the whole storage: a write through a view of a *part* keeps the scale
and saturates instead of touching the other elements. One NaN or infinity makes the whole tensor
useless, as in all per-tensor schemes. Updates smaller than half an FP8 step are lost: for training
keep the weights in high precision, which is the default of `FP8Linear`.
"""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any

import torch
from torch import nn
from torch.autograd.function import FunctionCtx, once_differentiable

from ..authoring import Outer, WrapperTensor, views
from ..torch_api.autograd import apply_function
from ..torch_api.operators import scaled_mm

aten = torch.ops.aten

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
_OUTER_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_TINY = 1e-12  # the smallest amax that a scale is made for; keeps zeros away from 0 / 0


class ScaledFP8(WrapperTensor, default="dequantize"):
    """An FP8 tensor with one scale, which stands for a tensor of ``shown``.

    Args:
        qdata: float8_e4m3fn (float8_e5m2 for gradients).
        scale: float32, 0-dim.
        shown: the floating dtype that the wrapper shows and dequantises to.
        whole: False for a view of a part of the elements: its scale belongs to others as well.
    """

    qdata: torch.Tensor
    scale: torch.Tensor
    shown: torch.dtype = torch.float32
    _: KW_ONLY
    whole: bool = True

    @classmethod
    def outer_metadata(cls, fields: Any) -> Outer:
        """As ``qdata``, but of another dtype."""
        return Outer(dtype=fields.shown)

    def dequantize(self) -> torch.Tensor:
        """The dense value; the gradient passes unchanged."""
        return (self.qdata.to(torch.float32) * self.scale).to(self.shown)

    def requantize_(self, value: torch.Tensor) -> None:
        """Write a dense value: with a scale for it if nothing else has this one."""
        if self.whole:
            self.scale.copy_(_scale_for(value, self.qdata.dtype))
        self.qdata.copy_(_quantise(value, self.scale, self.qdata.dtype))

    def __repr__(self) -> str:  # type: ignore[override]
        types = f"{self.qdata.dtype} as {self.dtype}".replace("torch.", "")
        return f"ScaledFP8(shape={tuple(self.shape)}, {types}, scale={self.scale!r})"


# ---- quantise and dequantise
def _scale_for(value: torch.Tensor, target: torch.dtype) -> torch.Tensor:
    """The scale that maps the largest magnitude of ``value`` to the largest FP8 number."""
    if value.numel() == 0:
        return torch.ones((), dtype=torch.float32, device=value.device)
    return value.abs().amax().to(torch.float32).clamp(min=_TINY) / torch.finfo(target).max


def _quantise(value: torch.Tensor, scale: torch.Tensor, target: torch.dtype) -> torch.Tensor:
    limit = torch.finfo(target).max
    return (value.to(torch.float32) / scale).clamp(-limit, limit).to(target)


class _Quantise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx, x: torch.Tensor, target: torch.dtype, scale: torch.Tensor | None
    ) -> ScaledFP8:
        scale = _scale_for(x, target) if scale is None else scale
        return ScaledFP8(_quantise(x, scale, target), scale, x.dtype)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return grad, None, None  # straight through: a scale from the tensor's own amax never clips


class _Matmul(torch.autograd.Function):
    """a @ w.t() for two ScaledFP8, with the gradient quantised once for both matmuls of the
    backward."""

    @staticmethod
    def forward(ctx: Any, a: ScaledFP8, w: ScaledFP8) -> torch.Tensor:
        grad_a, grad_w = ctx.needs_input_grad
        ctx.save_for_backward(a if grad_w else None, w if grad_a else None)
        return a.mm(w.t())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        a, w = ctx.saved_tensors
        g = to_fp8(grad, E5M2)
        return None if w is None else g.mm(w), None if a is None else g.t().mm(a)


def to_fp8(
    x: torch.Tensor, target: torch.dtype = E4M3, scale: torch.Tensor | None = None
) -> ScaledFP8:
    """Quantise with one scale for the tensor: amax / finfo.max, or ``scale`` (float32, 0-dim),
    beyond which values saturate. Straight-through gradient."""
    result: ScaledFP8 = (
        x if isinstance(x, ScaledFP8) else apply_function(_Quantise, x, target, scale)
    )
    return result


# ---- operation rules
@ScaledFP8.implements(views)
def _view(func: Any, x: ScaledFP8, *args: Any, **kwargs: Any) -> Any:
    out = func(x.qdata, *args, **kwargs)

    def wrap(q: torch.Tensor) -> ScaledFP8:
        return x.replace(qdata=q, whole=x.whole and q.numel() == x.qdata.numel())

    return [wrap(q) for q in out] if isinstance(out, (list, tuple)) else wrap(out)


@ScaledFP8.implements(aten.clone.default, aten._unsafe_view.default)
def _fresh(func: Any, x: ScaledFP8, *args: Any, **kwargs: Any) -> ScaledFP8:
    return x.replace(qdata=func(x.qdata, *args, **kwargs), scale=x.scale.clone(), whole=True)


@ScaledFP8.implements(aten._to_copy.default)
def _to_copy(func: Any, x: ScaledFP8, *, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
    dtype = x.dtype if dtype is None else dtype
    if dtype not in _OUTER_DTYPES:
        return NotImplemented
    to = {k: v for k, v in kwargs.items() if k in ("device", "non_blocking")}
    return ScaledFP8(func(x.qdata, **kwargs), func(x.scale, **to), dtype)


@ScaledFP8.implements(aten.copy_.default)
def _copy_(func: Any, x: Any, source: Any, non_blocking: bool = False) -> Any:
    if not isinstance(x, ScaledFP8):
        return NotImplemented
    exact = (
        isinstance(source, ScaledFP8)
        and source.qdata.dtype == x.qdata.dtype
        and source.shape == x.shape
    )
    if exact and x.whole:  # no second rounding
        x.scale.copy_(source.scale)
        x.qdata.copy_(source.qdata)
    else:
        value = source.dequantize() if isinstance(source, ScaledFP8) else source
        x.requantize_(value.to(device=x.device, dtype=x.dtype).expand(x.shape))
    return x


def _matmul_inputs(a: Any, b: Any) -> bool:
    """Can ``torch._scaled_mm`` multiply these two?"""
    if not (isinstance(a, ScaledFP8) and isinstance(b, ScaledFP8) and a.dtype == b.dtype):
        return False
    if a.qdata.device.type != "cuda":
        return True
    sixteens = all(size % 16 == 0 for size in (*a.shape, *b.shape))
    return sixteens and not (a.qdata.dtype == E5M2 and b.qdata.dtype == E5M2)


@ScaledFP8.implements(aten.mm.default)
def _mm(func: Any, a: Any, b: Any) -> Any:
    if not _matmul_inputs(a, b):
        return NotImplemented
    # what GPU kernels want: row times column major
    left, right = a.qdata.contiguous(), b.qdata.t().contiguous().t()
    accumulate = torch.float32 if a.dtype == torch.float64 else a.dtype
    out = scaled_mm(left, right, scale_a=a.scale, scale_b=b.scale, out_dtype=accumulate)
    if a.shape[1] == 0:  # the kernel leaves its memory as it was
        out.zero_()
    return out.to(a.dtype)


@ScaledFP8.implements(aten.addmm.default)
def _addmm(func: Any, bias: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    if not _matmul_inputs(a, b):
        return NotImplemented
    product = _mm(aten.mm.default, a, b)
    bias = bias.dequantize() if isinstance(bias, ScaledFP8) else bias
    return (product if alpha == 1 else product * alpha) + (bias if beta == 1 else bias * beta)


# ---- layers
def fp8_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """``F.linear`` with the three matmuls of training in FP8.

    Forward: activation and weight in e4m3, each with a scale from its own amax. Backward: the
    incoming gradient is quantised once, to e5m2 (more range, fewer digits), and multiplied with the
    saved e4m3 operands. What is saved for backward is FP8. The bias, its gradient and all results
    are in the dtype of ``x``. ``x`` and ``weight`` may already be `ScaledFP8`.
    """
    lead = x.shape[:-1]
    y: torch.Tensor = apply_function(_Matmul, to_fp8(x.reshape(-1, x.shape[-1])), to_fp8(weight))
    y = y.view(*lead, weight.shape[0])
    return y if bias is None else y + bias.to(y.dtype)


class FP8Linear(nn.Linear):
    """``nn.Linear`` that computes with `fp8_linear`.

    With ``fp8_weight=True`` the weight parameter itself is a `ScaledFP8`: one byte per element, and
    each optimizer step quantises it again.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        fp8_weight: bool = False,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        if fp8_weight:
            self.weight = _fp8_parameter(self.weight)

    @classmethod
    def from_linear(cls, linear: nn.Linear, *, fp8_weight: bool = False) -> FP8Linear:
        """The same layer with the same parameters (with ``fp8_weight``: a quantised copy of the
        weight)."""
        new = cls(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
        new.weight = _fp8_parameter(linear.weight) if fp8_weight else linear.weight
        new.bias = linear.bias
        return new.train(linear.training)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return fp8_linear(x, self.weight, self.bias)


def _fp8_parameter(weight: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(to_fp8(weight.detach()), requires_grad=weight.requires_grad)


def convert_linears(
    module: nn.Module, *, fp8_weight: bool = False, layer: type[FP8Linear] = FP8Linear
) -> nn.Module:
    """Swap every ``nn.Linear`` (not its subclasses) below ``module`` for an `FP8Linear` (or
    ``layer``), in place.

    Returns ``module``, or its replacement when it is itself an ``nn.Linear``. A layer that is used
    in several places stays one layer. Hooks are not carried over; ``fp8_weight`` unties a weight
    that is shared with another layer.
    """
    if type(module) is nn.Linear:
        return layer.from_linear(module, fp8_weight=fp8_weight)
    replaced: dict[nn.Module, nn.Module] = {}
    for path, child in list(module.named_modules(remove_duplicate=False)):
        if type(child) is nn.Linear:
            if child not in replaced:
                replaced[child] = layer.from_linear(child, fp8_weight=fp8_weight)
            parent, _, name = path.rpartition(".")
            setattr(module.get_submodule(parent), name, replaced[child])
    return module
