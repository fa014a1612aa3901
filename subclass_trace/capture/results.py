"""Results of operations on fake tensors, as eager mode would lay them out.

The common views never go to the fake mode: their kernels in C++ run on fake tensors, too. They are quicker than the mode's in
Python, and those of eager to the stride: ``view(1, 3)`` of a tensor with strides (7, 1) has (3, 1), the mode's (7, 1).
"""

from __future__ import annotations

from typing import Any

import torch

from .. import torch_api

Tensor = torch.Tensor
_aten = torch.ops.aten
#: views whose kernels in C++ run on fake tensors, too
_VIEWS = frozenset(
    {
        _aten.alias.default,
        _aten.expand.default,
        _aten.permute.default,
        _aten.select.int,
        _aten.slice.Tensor,
        _aten.split.Tensor,
        _aten.split_with_sizes.default,
        _aten.squeeze.dim,
        _aten.t.default,
        _aten.transpose.int,
        _aten.unbind.int,
        _aten.unsqueeze.default,
        _aten.view.default,
        _aten._unsafe_view.default,
    }
)


class Results:
    """What the operations of one capture give."""

    def __init__(self, mode: Any) -> None:
        self._mode = mode
        self._kernels = torch_api.fake_kernels()
        self._composite: dict[Any, bool] = {}

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``func(*args, **kwargs)`` on fake tensors."""
        if func in _VIEWS and _is_plain(args[0]) and not torch_api.holds_symbols((args, kwargs)):
            return torch_api.fake_views(self._mode, func, args, kwargs)
        return self._kernels.get(func, func)(*args, **kwargs)

    def is_composite(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Would the autograd engine have taken this operation apart, had it seen it (in inference mode it does not)?"""
        values = (*args, *kwargs.values())
        key = func, next((a.device.type for a in values if isinstance(a, Tensor)), None)
        if key not in self._composite:
            self._composite[key] = torch_api.autograd_would_have_decomposed(func, values)
        return self._composite[key]


def _is_plain(t: Any) -> bool:
    if t.layout is not torch.strided or t.is_conj() or t.is_neg() or t.is_inference() or t.is_quantized:
        return False
    return t.constant is None and not t._has_symbolic_sizes_strides
