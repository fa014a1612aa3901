"""Modules that do something in Python in each call are refused inside a region, where that would happen once.

FSDP gathers parameters and frees them; `DistributedDataParallel` tells its reducer that gradients are to be summed; both
would be right in the call that is traced, and silently wrong in the next. Around a region they work: their Python runs in
eager, and the region gets the module inside (see `data_parallel`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch

from .. import _torch
from ..errors import UnsupportedError
from ..subclass.paths import Path
from .modules import Root, submodules

_WHY = {
    "fully_shard": "a module that FSDP2 manages is called inside a region: its hooks move the memory of parameters",
    "FullyShardedDataParallel": "a region uses a FullyShardedDataParallel, which moves the memory of parameters",
    "DistributedDataParallel": "a DistributedDataParallel is called inside a region: it says in Python, in each call, that "
    "gradients are to be summed over the ranks",
    "replicate": "a module made by replicate is called inside a region: its hooks say in Python, in each call, that "
    "gradients are to be summed over the ranks",
    "DataParallel": "a DataParallel of several devices is called inside a region: it starts a thread for each of them",
}
_FIX = {
    "fully_shard": "compile the layers inside: layer.forward = subclass_trace.compile(layer.forward); or use "
    "torch.compile(model, backend='subclass_trace'); or keep parameters as DTensors and call "
    "weight.redistribute(placements=[Replicate()]).to_local() in the region",
    "FullyShardedDataParallel": "compile what it wraps: model.forward = subclass_trace.compile(model.forward), then "
    "FullyShardedDataParallel(model, use_orig_params=True)",
    "DistributedDataParallel": "compile what it wraps: model.forward = subclass_trace.compile(model.forward), then "
    "DistributedDataParallel(model); where it is the outermost module, subclass_trace.compile(DistributedDataParallel(model))",
    "replicate": "compile what it manages: model.forward = subclass_trace.compile(model.forward), then replicate(model)",
    "DataParallel": "use DistributedDataParallel, with one process for each device",
}


def no_managed_modules(roots: Sequence[Root]) -> contextlib.AbstractContextManager[None]:
    """While inside, on this thread, calling a module that FSDP, DDP and the like manage is an error.

    Raises:
        UnsupportedError: names what manages the module, and where it is in the module trees ``roots``.
    """
    return _torch.calls_of_managed_modules(lambda by, module: _refuse(by, module, _place(module, roots)))


def check_flat_parameters(roots: Sequence[Root]) -> None:
    """Refuse trees with FSDP1's modules before their tensors are looked at: they are views whose memory is gone.

    Raises:
        UnsupportedError: there is one; names its place.
    """
    cls = _torch.flat_parameter_class()
    for root in roots if cls is not None else ():
        for module, path in submodules(root):
            if isinstance(module, cls):
                _refuse("FullyShardedDataParallel", module, path)


def _place(module: torch.nn.Module, roots: Sequence[Root]) -> Path | None:
    return next((path for root in roots for m, path in submodules(root) if m is module), None)


def _refuse(by: str, module: torch.nn.Module, path: Path | None) -> None:
    raise UnsupportedError(
        _WHY[by],
        path=path,
        expected=f"{by} around the region, or a region of the module inside",
        got=f"a {type(module).__name__}",
        fix=_FIX[by],
    )
