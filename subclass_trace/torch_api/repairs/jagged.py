"""The jagged tensor that torch hands to each view of one, so that the class is asked.

It is made once for a process, by whoever comes first. Under a fake mode (a trace of ours, or one of
``torch.compile``) its tensors are fakes of that trace, for good.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nested._internal import nested_tensor
from torch.utils._python_dispatch import _disable_current_modes

from ..this_thread import replaced_here

_plain: Any = nested_tensor._nt_view_dummy


@contextlib.contextmanager
def jagged_views_as_eager() -> Iterator[None]:
    """Inside, that tensor is of no trace."""
    with replaced_here(nested_tensor, "_nt_view_dummy", _real):
        yield


def _real() -> torch.Tensor:
    held: Any = nested_tensor._dummy_instance
    if held is None or isinstance(held._values, FakeTensor):
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            nested_tensor._dummy_instance = None
            held = _plain()
    real: torch.Tensor = held
    return real
