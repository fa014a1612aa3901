"""`TwoTensor`: two tensors that go through the same program, the smallest complete wrapper.

What it is for: the test subject for everything that is not about values. Every operation runs on both inner tensors,
so a region over TwoTensors must give exactly what the dense region gives on each of them. It nests: the inner tensors
may be wrappers.

    >>> x = TwoTensor(torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0]))
    >>> y = (x * 2)[1:]
    >>> y
    TwoTensor(a=tensor([4.]), b=tensor([40.]))
    >>> y.add_(1) is y
    True

Limits: random operations draw twice. A Python value that depends on the data (``item``, ``equal``) is refused when
the halves disagree. Writing a TwoTensor into a plain tensor is refused, since there are two values to write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .. import _torch
from ..errors import UnsupportedError
from ._common import foreign, is_mutable, unwrap, view, written


class TwoTensor(torch.Tensor):
    """A pair of tensors with the same size, strides, dtype and device.

    The constructor is not differentiable; call ``requires_grad_()`` on the result.
    """

    a: torch.Tensor
    b: torch.Tensor
    __torch_function__ = _torch.disabled_torch_function

    @staticmethod
    def __new__(
        cls: type[TwoTensor],
        a: torch.Tensor,
        b: torch.Tensor,
        *,
        outer_size: Sequence[int] | None = None,
        outer_stride: Sequence[int] | None = None,
    ) -> TwoTensor:
        if (a.shape, a.stride(), a.dtype, a.device) != (b.shape, b.stride(), b.dtype, b.device):
            raise ValueError(
                "the halves of a TwoTensor must agree in size, stride, dtype and device; got "
                f"{tuple(a.shape)}, {a.stride()}, {a.dtype}, {a.device} and "
                f"{tuple(b.shape)}, {b.stride()}, {b.dtype}, {b.device}"
            )
        self: TwoTensor = _torch.make_wrapper_subclass(
            cls,
            a.shape if outer_size is None else outer_size,
            strides=a.stride() if outer_stride is None else outer_stride,
            storage_offset=a.storage_offset(),
            dtype=a.dtype,
            layout=a.layout,
            device=a.device,
        )
        self.a, self.b = a, b
        return self

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["a", "b"], None

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, torch.Tensor], context: None, outer_size: Sequence[int], outer_stride: Sequence[int]
    ) -> TwoTensor:
        return TwoTensor(inner["a"], inner["b"], outer_size=outer_size, outer_stride=outer_stride)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"TwoTensor(a={self.a!r}, b={self.b!r})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if foreign(cls, types):
            return NotImplemented
        if is_mutable(func) and not all(isinstance(t, cls) for t in written(func, args, kwargs)):
            raise UnsupportedError(
                f"{func} would write a TwoTensor into a plain tensor",
                expected="a TwoTensor as the argument that is written to",
                fix="make the written tensor a TwoTensor, or use the out-of-place operation",
            )
        if (result := func.decompose(*args, **kwargs)) is not NotImplemented:  # inference mode: composites come here
            return result
        if func.is_view:
            return view(func, args, kwargs, _both)
        return _torch.return_and_correct_aliasing(func, args, kwargs, _both(func, *args, **kwargs))


def _both(func: Any, *args: Any, **kwargs: Any) -> Any:
    args_a, kwargs_a = unwrap(TwoTensor, lambda t: t.a, (args, kwargs))
    args_b, kwargs_b = unwrap(TwoTensor, lambda t: t.b, (args, kwargs))
    return _pair(func, func(*args_a, **kwargs_a), func(*args_b, **kwargs_b))


def _pair(func: Any, a: Any, b: Any) -> Any:
    """The results for both halves as one: tensors become TwoTensors, everything else must be equal."""
    if isinstance(a, torch.Tensor):
        return TwoTensor(a, b)
    if isinstance(a, (list, tuple)):
        return type(a)(_pair(func, x, y) for x, y in zip(a, b, strict=True))
    if a is b or a == b or (a != a and b != b):
        return a
    raise UnsupportedError(
        f"{func} gives different Python values for the halves of a TwoTensor",
        expected=f"{a!r} for both",
        got=f"{b!r} for b",
        fix="do not read values of a TwoTensor into Python, or read them from .a and .b",
    )
