"""Rules for functions of torch that read values: as operations that a graph can hold, with eager's checks.

`FUNCTIONS` maps the name of a function, as user code calls it, to ``(recorder, function, args, kwargs) -> result``.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from .. import torch_api
from ..errors import DataDependentError, NeedsEager
from ..subclass.protocol import is_traceable
from .known import known_value
from .operators import Rule
from .packed import PACKED

Tensor = torch.Tensor
aten = torch.ops.aten
#: torch has no annotations for it
_SCALAR: Any = torch.scalar_tensor


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


def _tensor_split(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """By a tensor, whose values say how many pieces there are, and how large: a constant."""
    named = "tensor_indices_or_sections" in kwargs
    places = kwargs["tensor_indices_or_sections"] if named else args[1] if len(args) > 1 else None
    if not isinstance(places, Tensor):
        return func(*args, **kwargs)
    known = known_value(recorder, places) if recorder.knows(places) else None
    if known is None:
        raise DataDependentError(
            "tensor_split by a tensor: its values say how large the pieces are",
            path=recorder.user_line(),
            expected="places that are a list of Python numbers, or a constant",
            got=f"a tensor of shape {tuple(places.shape)}",
            fix="pass indices.tolist() into the region, which is guarded",
        )
    with torch_api.no_modes():
        torch.tensor_split(torch.zeros(1), known)  # its checks
    rest = {k: v for k, v in kwargs.items() if k != "tensor_indices_or_sections"}
    return func(args[0], known.tolist(), *args[2:], **rest)


def _unflatten(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """With sizes from inside tensors: torch asks in C++ whether they are 0."""
    named = dict(zip(("input", "dim", "sizes"), args, strict=False)) | kwargs
    x, dim, sizes = named.get("input"), named.get("dim"), named.get("sizes")
    if type(dim) is not int or not any(
        isinstance(n, torch.SymInt) and torch_api.is_data_dependent(n) for n in sizes or ()
    ):
        return func(*args, **kwargs)
    dim %= x.dim()
    if not any(type(n) is int and n == -1 for n in sizes):
        fits = math.prod(sizes) == x.shape[dim]
        recorder.symbols.require(fits, "unflatten: the sizes do not multiply up to that of the dimension")
    with torch_api.enable_python_dispatcher():
        return x.view(*x.shape[:dim], *sizes, *x.shape[dim + 1 :])


def _set(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """A wrapper has the storage of a real device, a dense traced tensor none."""
    if len(args) > 1 and is_traceable(args[0]) and torch_api.is_fake(args[1]):
        raise NeedsEager(
            "torch gives a wrapper the storage of a dense tensor, which in a trace has none",
            path=recorder.user_line(),
            expected="x.set_(y) where both are of one class",
            fix="call set_ on the inner tensors, or outside of the region",
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
    return _product(recorder, func, args, kwargs)


_OBSERVED = (
    *("self", "observer_on", "fake_quant_on", "running_min", "running_max", "scale", "zero_point"),
    *("averaging_const", "quant_min", "quant_max", "ch_axis", "per_row_fake_quant"),
)


def _observed(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The kernel of an observer gives its empty statistics a size, at the first batch; the functional form does not."""
    named = dict(zip(_OBSERVED, args, strict=False)) | kwargs
    low = named.get("running_min")
    if named.get("per_row_fake_quant", False) and isinstance(low, Tensor) and low.numel() == 0:
        for name, start in (("running_min", math.inf), ("running_max", -math.inf), ("scale", 1), ("zero_point", 0)):
            t = named[name]
            version = t._version  # what a kernel writes by itself does not count
            t.resize_(named["self"].shape[named["ch_axis"]]).fill_(start)
            torch_api.set_version(t, version)
    return func(*args, **kwargs)


def _gaussian_nll_loss(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """It asks whether a variance is negative."""
    with recorder.takes(torch_api.Branch(False, "var has negative entry/entries")):
        return func(*args, **kwargs)


def _allclose(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """A symbol, where its own kernel gives Python's True or False."""
    return torch.isclose(*args, **kwargs).all().item() if _are_dense(args[:2]) else func(*args, **kwargs)


def _equal(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    if not _are_dense(args) or len(args) != 2 or len({(t.dtype, t.device) for t in args}) > 1:
        return func(*args, **kwargs)
    return (args[0] == args[1]).all().item() if args[0].shape == args[1].shape else False


def _is_nonzero(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    if not _are_dense(args[:1]) or args[0].numel() != 1:
        return func(*args, **kwargs)
    t = args[0].detach()
    return t.item() if t.dtype is torch.bool else (t != 0).item()


def _are_dense(values: Any) -> bool:
    return all(torch_api.is_fake(t) and t.layout is torch.strided and not t.is_quantized for t in values)


def _tensor(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """``torch.tensor`` and its siblings of a number from inside a tensor, or of a list with traced tensors in it."""
    like = args[0] if func is Tensor.new_tensor else None
    rest = args if like is None else args[1:]
    data = rest[0] if rest else kwargs.get("data")
    makes = func in (torch.tensor, torch.as_tensor, Tensor.new_tensor)
    if not makes or isinstance(data, Tensor) or not _is_traced(data):
        return func(*args, **kwargs)
    named = {k: v for k, v in kwargs.items() if k != "data"} | dict(zip(("dtype", "device"), rest[1:], strict=False))
    with torch.no_grad():
        made = _stacked(data)
        dtype = named.get("dtype") or (made.dtype if like is None else like.dtype)
        device = named.get("device") or (torch.get_default_device() if like is None else like.device)
        made = made.to(device, dtype)
    return made.requires_grad_() if named.get("requires_grad") else made


def _is_traced(data: Any) -> bool:
    if isinstance(data, (list, tuple)):
        return any(map(_is_traced, data))
    return torch_api.is_fake(data) or isinstance(data, torch_api.SYM_TYPES)


def _stacked(data: Any) -> Tensor:
    """One tensor of nested lists of numbers and of tensors with one element."""
    if isinstance(data, Tensor):
        if data.numel() != 1:
            raise ValueError("only one element tensors can be converted to Python scalars")
        return data.detach().reshape(())
    if not isinstance(data, (list, tuple)):
        data = torch_api.as_torch_symbol(data)
        return _SCALAR(data, dtype=_dtype_of(data))  # type: ignore[no-any-return]
    rows = [_stacked(row) for row in data]
    dtype = functools.reduce(torch.promote_types, [row.dtype for row in rows])
    return torch.stack([row.to(dtype) for row in rows])


def _dtype_of(number: Any) -> torch.dtype:
    if isinstance(number, (bool, torch.SymBool)):
        return torch.bool
    if isinstance(number, (int, torch.SymInt)):
        return torch.int64
    default = torch.get_default_dtype()
    return default.to_complex() if isinstance(number, complex) else default


FUNCTIONS: dict[str, Rule] = {
    **PACKED,
    "one_hot": _one_hot,
    **dict.fromkeys(("scaled_dot_product_attention", "multi_head_attention_forward"), _attends),
    **dict.fromkeys(("_native_multi_head_attention", "_transformer_encoder_layer_fwd"), _attends),
    **dict.fromkeys(("matmul", "__matmul__", "__rmatmul__", "linear"), _product),
    "tensor_split": _tensor_split,
    "unflatten": _unflatten,
    "set_.source_Tensor": _set,  # the one of a wrapper that no mode sees as `Tensor.set_`
    "fused_moving_avg_obs_fake_quant": _observed,
    "gaussian_nll_loss": _gaussian_nll_loss,
    "allclose": _allclose,
    "equal": _equal,
    "is_nonzero": _is_nonzero,
    **dict.fromkeys(("tensor", "as_tensor", "new_tensor"), _tensor),
}
