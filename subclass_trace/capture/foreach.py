"""List operations: those that depend on the order of their steps, and those whose numbers come in a tensor.

A list operation in place works through its lists in order, so that a tensor of a later step may have been changed by an
earlier one (``torch._foreach_copy_(xs, xs[::-1])``). Its functional form reads everything first.

Then there are those of optimizers whose numbers come in one tensor: ``torch._foreach_addcdiv_(xs, ys, zs, scalars)``.

Their kernels read the tensor and go on with the numbers. Here each number is read by ``.item()``, which is a symbol of
the trace, so that the graph reads it anew in each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .aliasing import alias_groups

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


def steps(func: Any, args: Sequence[Any]) -> list[tuple[Any, ...]] | None:
    """The arguments of each step of a list operation in place, as a call with lists of one; None where no order matters.

    ``args``: all arguments, of which the first is the list that is written.
    """
    if not func._schema.name.startswith("aten::_foreach") or not args or not isinstance(args[0], (list, tuple)):
        return None
    count = len(args[0])
    if count < 2:
        return None
    rows = [(k, t) for a in args if _is_list(a, count) for k, t in enumerate(a)]
    rows += [(-1, a) for a in args if isinstance(a, torch.Tensor)]
    distinct = {(k, id(t)): (k, t) for k, t in rows}
    places, tensors = zip(*distinct.values(), strict=True) if distinct else ((), ())
    if not any(len({places[i] for i in group}) > 1 for group in alias_groups(tensors)):
        return None
    return [tuple([a[k]] if _is_row(a, count) else a for a in args) for k in range(count)]


def _is_list(a: Any, count: int) -> bool:
    return isinstance(a, (list, tuple)) and len(a) == count and all(isinstance(t, torch.Tensor) for t in a)


def _is_row(a: Any, count: int) -> bool:
    """A list with something for each step: tensors, or numbers."""
    return isinstance(a, (list, tuple)) and len(a) == count
