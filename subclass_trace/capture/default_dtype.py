"""Operations that depend on the default dtype: a region may set it, while its graph runs under that of the call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import UnsupportedError

Tensor = torch.Tensor


def check_default_dtype(
    func: Any, args: Sequence[Any], out: Any, default: torch.dtype, line: Callable[[], str | None]
) -> None:
    """The region has changed the default dtype: does the operation, which runs under the caller's, depend on it?

    Raises:
        UnsupportedError: it does, since it promotes integers.
    """
    inputs = [a for a in args if isinstance(a, Tensor)]
    promoted = isinstance(out, Tensor) and (out.is_floating_point() or out.is_complex())
    if inputs and promoted and not any(a.is_floating_point() or a.is_complex() for a in inputs):
        raise UnsupportedError(
            "the region turns integers into floating point numbers under a default dtype that it has set itself",
            path=line(),
            expected=f"the default dtype of the call, {default}",
            got=f"{func} under {torch.get_default_dtype()}",
            fix="convert the tensor first (x.to(dtype)), or set the default dtype outside the region",
        )


@functools.cache
def is_factory(func: Any) -> bool:
    """Does the operation make a tensor from no tensor, with a dtype that may be left out?"""
    arguments = func._schema.arguments
    takes = any("Tensor" in str(a.type) for a in arguments)
    return not takes and any(a.name == "dtype" and a.kwarg_only for a in arguments)
