"""`DistributedDataParallel`, which does things in Python in each call, around the module inside."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch.nn.parallel import DistributedDataParallel

#: the method of `DistributedDataParallel` that calls the module inside, between what it does before and after
_INNER_CALL = "_run_ddp_forward"


@contextlib.contextmanager
def module_inside_replaced(parallel: Any, call: Callable[..., Any]) -> Iterator[None]:
    """While inside, this `DistributedDataParallel` calls ``call`` where it would call its module."""
    vars(parallel)[_INNER_CALL] = call
    try:
        yield
    finally:
        vars(parallel).pop(_INNER_CALL, None)  # another thread may have been faster


def is_data_parallel(module: object) -> bool:
    """Is it a `DistributedDataParallel`, whose module is called in one step? (Not with its mixed precision, by hooks.)"""
    return isinstance(module, DistributedDataParallel) and module.mixed_precision is None
