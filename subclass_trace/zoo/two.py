"""`TwoTensor`: two tensors that go through the same program, the smallest complete wrapper.

What it is for: the test subject for everything that is not about values. Every operation runs on
both inner tensors, so a region over TwoTensors must give exactly what the dense region gives on
each of them. It nests: the inner tensors may be wrappers.

    >>> x = TwoTensor(torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0]))
    >>> y = (x * 2)[1:]
    >>> y
    TwoTensor(a=tensor([4.]), b=tensor([40.]))
    >>> y.add_(1) is y
    True

Limits: random operations draw twice. A Python value that depends on the data (``item``, ``equal``)
is refused when the halves disagree. Writing a TwoTensor into a plain tensor is refused, since there
are two values to write.
"""

from __future__ import annotations

import torch

from ..authoring import WrapperTensor


class TwoTensor(WrapperTensor, default="per_inner"):
    """A pair of tensors with the same size, strides, dtype and device.

    The constructor is not differentiable; call ``requires_grad_()`` on the result.
    """

    a: torch.Tensor
    b: torch.Tensor

    def __post_init__(self) -> None:
        a, b = self.a, self.b
        if (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device) or not same_strides(a, b):
            raise ValueError(
                "the halves of a TwoTensor must agree in size, stride, dtype and device; got "
                f"{tuple(a.shape)}, {a.stride()}, {a.dtype}, {a.device} and "
                f"{tuple(b.shape)}, {b.stride()}, {b.dtype}, {b.device}"
            )


def same_strides(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Do two tensors of one shape lie alike? The stride of a dimension of size 1 means nothing, and
    is not the same on every path."""
    return all(
        size == 1 or s == t for size, s, t in zip(a.shape, a.stride(), b.stride(), strict=True)
    )
