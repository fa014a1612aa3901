"""Composite operations of torch that read values, as operations that a graph can hold; and with what eager shows of them.

A function of the table is called in the place of the one with its name, with the recorder, that function and the arguments.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from .. import _torch
from ..errors import DataDependentError
from .by_sizes import BY_SIZES, by_sizes, pieces
from .conversions import allclose, equal, is_nonzero, tensor
from .counts import COUNTS, block_diag, counts, cumprod
from .indexing import sees_functions
from .known import known_value
from .looks import is_from_inside, look_in_each_call, unflattens
from .packed import PACKED
from .parts import PARTS, parts_by_sizes
from .recorder import Recorder
from .sized import SIZES, sized
from .windows import WINDOWS, maxima, may_be_ours, of_symbols, windows

Tensor = torch.Tensor
aten = torch.ops.aten


def _one_hot(recorder: Recorder, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """With eager's checks of the values: torch leaves them out for tensors without data."""
    index = (*args, *kwargs.values())[0]
    if not _torch.is_fake(index):
        return func(*args, **kwargs)
    out = _checked_one_hot(*args, **kwargs)
    return out if math.prod(index.shape) == 0 else _written(out, 2)  # eager fills zeros, and writes the ones into them


def _written(t: Tensor, times: int) -> Tensor:
    """A result that eager writes to in place so often before it hands it out. C++ takes other ways for traced tensors."""
    if _torch.is_fake(t) and not t.is_inference():
        _torch.set_version(t, times)
    return t


def _matrix_rank(recorder: Recorder, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    out = func(*args, **kwargs)
    return out if kwargs.get("out") is not None else _written(out, 1)


def _max_pool1d(recorder: Recorder, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Where no gradient is wanted, eager has a kernel for one dimension on the CPU; else a view of a result of two."""
    of_two = _pooled_as_two(*args, **kwargs)
    out = func(*args, **kwargs) if of_two is None else of_two
    if not _torch.is_fake(out) or out.requires_grad or out.device.type != "cpu":
        return out
    return _written(out.detach(), int(out.dim() == 2))


def _pooled_as_two(
    input: Any,
    kernel_size: Any = (),
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | None:
    """What C++ makes of it for a traced tensor, but for its checks, which take the size for a number; None where they are
    to be made."""
    if not isinstance(input, Tensor) or input.dim() not in (2, 3) or not isinstance(input.shape[-1], torch.SymInt):
        return None
    given = [kernel_size, stride or kernel_size, padding, dilation]
    numbers = [n[0] if isinstance(n, (tuple, list)) and len(n) == 1 else n for n in given]
    if return_indices or sees_functions(type(input)) or not all(type(n) in (int, torch.SymInt) for n in numbers):
        return None
    kernel, step, border, spread = numbers
    fits = min(kernel, step, spread) > 0 and 0 <= border <= kernel // 2 and 0 not in input.shape
    if not fits or input.shape[-1] + 2 * border < spread * (kernel - 1) + 1:
        return None
    if all(type(n) is int for n in numbers):
        return aten.max_pool1d_with_indices.default(input, [kernel], [step], [border], [spread], ceil_mode)[0]
    if not may_be_ours(input, (2, 3)):
        return None
    as_two: Sequence[Tensor] = maxima(2)(
        input.unsqueeze(-2), [1, kernel], [1, step], [0, border], [1, spread], ceil_mode
    )
    return as_two[0].squeeze(-2)


def _matmul(recorder: Recorder, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """With symbolic sizes torch decomposes it in Python, where its result may be a view, which eager's never is."""
    out = func(*args, **kwargs)
    given = (*args, *kwargs.values())
    if kwargs.get("out") is not None or (fresh := _no_view(out, given)) is out:
        return out
    return _written(
        fresh, int(sorted(a.dim() for a in given if a is not None) == [1, 2])
    )  # a row of a matrix: C++ writes its shape


def _linear(recorder: Recorder, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Such a product. Where eager does not compute it with the bias at once, it adds that in place."""
    named = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
    x, weight = named.get("input"), named.get("weight")
    if not isinstance(x, Tensor) or not isinstance(weight, Tensor):
        return func(*args, **kwargs)
    if named.get("bias") is None:
        return _matmul(recorder, lambda x, weight: func(*args, **kwargs), (x, weight), {})
    out = func(*args, **kwargs)
    known = _torch.is_fake(x) and _torch.is_fake(weight)  # a class may compute the whole at once
    if x.dim() == 2 or not known or not isinstance(out, Tensor) or out._is_view():
        return out
    return _written(out, 1 + int((x.dim(), weight.dim()) == (1, 2)))


def _attention(recorder: Recorder, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The same of queries without heads, which ends in such a product."""
    recorder.met.add("attention")
    out = func(*args, **kwargs)
    given = (*args, *kwargs.values())
    return _no_view(out, given) if isinstance(given[0], Tensor) and given[0].dim() == 3 else out


def _attends(recorder: Recorder, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """A function that computes attention inside."""
    recorder.met.add("attention")
    return func(*args, **kwargs)


def _no_view(out: Any, given: Sequence[Any]) -> Any:
    if not _torch.is_fake(out) or not out._is_view() or any(out._base is a for a in given):
        return out
    return aten._unsafe_view.default(out._base, out.shape)


def _checked_one_hot(input: Tensor, num_classes: int = -1) -> Tensor:
    if input.dtype is not torch.int64:
        raise RuntimeError("one_hot is only applicable to index tensor of type LongTensor.")
    if math.prod(input.shape) == 0:
        if num_classes <= 0:
            raise RuntimeError("Can not infer total number of classes from empty tensor.")
        return input.new_empty((*input.shape, num_classes))
    on_gpu = input.device.type == "cuda"  # there the kernel asserts
    if not on_gpu:
        _torch.assert_async((input >= 0).all(), "Class values must be non-negative.")
    if num_classes == -1:
        num_classes = input.max().item() + 1  # type: ignore[assignment]
    elif not on_gpu:
        if num_classes < 0:
            raise RuntimeError("Class values must be smaller than num_classes.")
        _torch.assert_async((input < num_classes).all(), "Class values must be smaller than num_classes.")
    elif num_classes < 1:
        raise RuntimeError("num_classes should be positive")
    if on_gpu:
        return input.new_zeros((*input.shape, num_classes)).scatter(-1, input.unsqueeze(-1), 1)
    return (input.unsqueeze(-1) == torch.arange(num_classes, device=input.device)).to(torch.int64)


def _tensor_split(recorder: Recorder, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """By a tensor, whose values say how many pieces there are, and how large; or into so many pieces of a size that is a
    symbol, as C++ makes them, which would branch on the remainder."""
    named = "tensor_indices_or_sections" in kwargs
    places = kwargs["tensor_indices_or_sections"] if named else args[1] if len(args) > 1 else None
    if type(places) is int and places > 0 and len(args) > 1 and kwargs.keys() <= {"dim"}:
        split = pieces(args[0], places, *args[2:], **kwargs)
        if split is not NotImplemented:
            return split
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
    with _torch.no_modes():
        torch.tensor_split(torch.zeros(1), known)  # its checks
    rest = {k: v for k, v in kwargs.items() if k != "tensor_indices_or_sections"}
    return func(args[0], known.tolist(), *args[2:], **rest)


def _unflatten(recorder: Recorder, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """With sizes from inside tensors: torch asks in C++ whether they are 0."""
    named = dict(zip(("input", "dim", "sizes"), args, strict=False)) | kwargs
    x, sizes, dim = named.get("input"), named.get("sizes"), named.get("dim")
    if not (
        isinstance(x, Tensor) and isinstance(sizes, (tuple, list)) and type(dim) is int and -x.dim() <= dim < x.dim()
    ):
        return func(*args, **kwargs)
    if not any(map(is_from_inside, sizes)):
        return func(*args, **kwargs)
    dim %= x.dim()
    look_in_each_call(recorder, unflattens, (x.dim(), dim, *x.shape, *sizes))
    with _torch.enable_python_dispatcher():
        return x.view(*x.shape[:dim], *sizes, *x.shape[dim + 1 :])


_OBSERVED: tuple[str, ...] = (
    "self",
    "observer_on",
    "fake_quant_on",
    "running_min",
    "running_max",
    "scale",
    "zero_point",
)
_OBSERVED += ("averaging_const", "quant_min", "quant_max", "ch_axis", "per_row_fake_quant")


def _observed(recorder: Recorder, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The kernel of an observer gives its empty statistics a size, at the first batch; the functional form does not."""
    named = dict(zip(_OBSERVED, args, strict=False)) | kwargs
    low = named.get("running_min")
    if named.get("per_row_fake_quant", False) and isinstance(low, Tensor) and low.numel() == 0:
        for name, start in (("running_min", math.inf), ("running_max", -math.inf), ("scale", 1), ("zero_point", 0)):
            t = named[name]
            version = t._version  # what a kernel writes by itself does not count
            t.resize_(named["self"].shape[named["ch_axis"]]).fill_(start)
            _torch.set_version(t, version)
    return func(*args, **kwargs)


def _affine_grid(recorder: Recorder, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Its backward, in C++, takes sizes that are numbers."""
    out = of_symbols(func, args, kwargs) if func.__name__ in WINDOWS else NotImplemented
    if out is not NotImplemented:
        return out
    named = dict(zip(("theta", "size", "align_corners"), args, strict=False)) | kwargs
    if torch.is_grad_enabled() and isinstance(named.get("theta"), Tensor) and named["theta"].requires_grad:
        named["size"] = [int(n) for n in named["size"]]
    return func(**named)


#: name of a function -> what is called in its place
COMPOSITES: Mapping[str, Callable[..., Any]] = {
    **PACKED,
    **dict.fromkeys(SIZES, sized),
    **dict.fromkeys(BY_SIZES, by_sizes),
    **dict.fromkeys(WINDOWS, windows),
    **dict.fromkeys(COUNTS, counts),
    **dict.fromkeys(PARTS, parts_by_sizes),  # `F.unfold` as well
    "block_diag": block_diag,
    "cumprod": cumprod,
    "one_hot": _one_hot,
    "scaled_dot_product_attention": _attention,
    **dict.fromkeys(("multi_head_attention_forward", "_native_multi_head_attention"), _attends),
    "_transformer_encoder_layer_fwd": _attends,
    **dict.fromkeys(("matmul", "__matmul__", "__rmatmul__"), _matmul),
    "linear": _linear,
    "matrix_rank": _matrix_rank,
    "linalg_matrix_rank": _matrix_rank,
    "max_pool1d": _max_pool1d,
    "tensor_split": _tensor_split,
    "unflatten": _unflatten,
    "fused_moving_avg_obs_fake_quant": _observed,
    **dict.fromkeys(("affine_grid", "affine_grid_generator"), _affine_grid),
    "allclose": allclose,
    "equal": equal,
    "is_nonzero": is_nonzero,
    "tensor": tensor,
    "as_tensor": tensor,
    "new_tensor": tensor,
}


@contextlib.contextmanager
def cumulative_averages() -> Iterator[None]:
    """Inside, ``BatchNorm(momentum=None)`` computes the weight of a batch as a tensor; its own code reads it as a number."""
    original = _torch.BatchNormBase.forward

    def forward(self: Any, input: Tensor) -> Tensor:
        cumulative = self.training and self.track_running_stats and self.momentum is None
        if not (
            cumulative and isinstance(self.num_batches_tracked, Tensor) and _torch.is_fake(self.num_batches_tracked)
        ):
            return original(self, input)
        self._check_input_dim(input)
        self.num_batches_tracked.add_(1)
        now = [torch.zeros_like(buffer) for buffer in (self.running_mean, self.running_var)]
        out = F.batch_norm(input, now[0], now[1], self.weight, self.bias, True, 1.0, self.eps)
        with torch.no_grad():
            mean, var = self.running_mean.data, self.running_var.data  # the kernels do not move the version counters
            # As the CPU's kernel rounds them: the share like the average, and the variance's sum in doubles.
            share = self.num_batches_tracked.double().reciprocal().to(mean.dtype)
            mean.copy_(now[0] * share + mean * (1 - share))
            var.copy_(now[1].double() * share + (var * (1 - share)).double())
        return out

    with _torch.replaced_here(_torch.BatchNormBase, "forward", forward):
        yield
