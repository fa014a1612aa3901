"""FSDP2 inside a region is refused: its hooks gather and free the memory of parameters, which no graph can do again.

Around a region it works: ``fully_shard(layer)``, then ``layer.forward = subclass_trace.compile(layer.forward)``. The hooks
of the layer run in eager, and the region gets whole parameters.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from ..errors import UnsupportedError


@contextlib.contextmanager
def no_fsdp_hooks(recorder: Any) -> Iterator[None]:
    """While inside, on this thread, calling a module that FSDP2 manages is an error.

    Raises:
        UnsupportedError: names the module's class and the line of the call.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        yield
        return
    thread, managed = threading.get_ident(), fsdp.FSDPModule

    def check(module: torch.nn.Module, args: Any) -> None:
        if isinstance(module, managed) and threading.get_ident() == thread:
            raise UnsupportedError(
                "a module that FSDP2 manages is called inside a region: its hooks move the memory of parameters",
                path=recorder.user_line() or "self",
                expected="fully_shard around the region, or sharded parameters that the region itself gathers",
                got=f"a call of {type(module).__name__}, made by fully_shard",
                fix="compile the layers inside: layer.forward = subclass_trace.compile(layer.forward); or use "
                "torch.compile(model, backend='subclass_trace'); or keep parameters as DTensors and call "
                "weight.redistribute(placements=[Replicate()]).to_local() in the region",
            )

    handle = register_module_forward_pre_hook(check)
    try:
        yield
    finally:
        handle.remove()
