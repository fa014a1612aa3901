"""List operations of optimizers whose numbers come in one tensor: ``torch._foreach_addcdiv_(xs, ys, zs, scalars)``.

Their kernels read the tensor and go on with the numbers. Here each number is read by ``.item()``, which is a symbol of
the trace, so that the graph reads it anew in each call.
"""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten

#: an overload with numbers in a tensor, and the same operation with a list of numbers
WITH_NUMBERS = {
    op.Tensor: op.ScalarList
    for op in (aten._foreach_addcdiv, aten._foreach_addcdiv_, aten._foreach_addcmul, aten._foreach_addcmul_)
}


def with_numbers(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call ``func(xs, ys, zs, scalars)``, where ``func`` is a key of `WITH_NUMBERS`, with a list of numbers."""
    named = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    numbers = [t.item() for t in named.pop("scalars").unbind()]
    return WITH_NUMBERS[func](*named.values(), numbers)
