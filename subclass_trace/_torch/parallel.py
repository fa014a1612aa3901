"""Modules of torch that do things in Python in each call: gather parameters, arm reducers, start threads."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DataParallel, DistributedDataParallel

from .this_thread import replaced_here

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
def calls_of_managed_modules(meet: Callable[[str, torch.nn.Module], None]) -> Iterator[None]:
    """While inside, on this thread, ``meet`` is told of each call of such a module before anything happens.

    It gets the name of what manages the module (``"fully_shard"``, ``"DistributedDataParallel"``, ...), and the module.
    A `DataParallel` of one device only calls its module.
    """
    thread, hooked = threading.get_ident(), _hooked()

    def called(module: torch.nn.Module, args: Any) -> None:
        for name, cls in hooked:
            if isinstance(module, cls) and threading.get_ident() == thread:
                meet(name, module)

    def watched(original: Any, name: str) -> Any:
        def begin(self: Any, *args: Any, **kwargs: Any) -> Any:
            meet(name, self)
            return original(self, *args, **kwargs)

        return begin

    with contextlib.ExitStack() as stack:
        if hooked:
            stack.callback(register_module_forward_pre_hook(called).remove)
        for cls, method in _BEGINS:
            stack.enter_context(replaced_here(cls, method, watched(getattr(cls, method), cls.__name__)))
        yield


def flat_parameter_class() -> Any:
    """FSDP1's class of modules; None while it is not loaded."""
    module = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
    return None if module is None else module.FullyShardedDataParallel


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
