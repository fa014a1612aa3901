"""Modules of torch that do things in Python in each call: gather parameters, arm reducers, start threads."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from torch.nn.parallel import DataParallel, DistributedDataParallel

#: the method of `DistributedDataParallel` that calls the module inside, between what it does before and after
_INNER_CALL = "_run_ddp_forward"


def _hooked() -> list[tuple[str, type]]:
    """Classes that torch gives to a module whose hooks do it, as far as they are loaded."""
    found = []
    for name, place, cls in (
        ("fully_shard", "torch.distributed.fsdp", "FSDPModule"),
        ("replicate", "torch.distributed._composable.replicate", "DDP"),
    ):
        module = sys.modules.get(place)
        if module is not None:
            found.append((name, getattr(module, cls)))
    return found


#: what the forward of a class calls first (looked up in each call, where a bound ``forward`` is not)
_BEGINS: tuple[tuple[Any, str], ...] = ((DistributedDataParallel, "_pre_forward"), (DataParallel, "replicate"))


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
