"""Modules that do something in Python in each call are refused inside a region, where that would happen once.

FSDP gathers parameters and frees them; `DistributedDataParallel` tells its reducer that gradients are to be summed; both
would be right in the call that is traced, and silently wrong in the next. Around a region they work: their Python runs in
eager, and the region gets the module inside (see `data_parallel`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

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


@contextlib.contextmanager
def no_scripted_gradients(function: Any, roots: Sequence[Root]) -> Iterator[None]:
    """While inside, on this thread, a module of TorchScript must not be differentiated with respect to its parameters.

    Its C++ code takes them where they are, and not the traced tensors in their places: no gradient would reach them.

    Raises:
        UnsupportedError: names its place in the module trees ``roots``.
    """
    if isinstance(function, torch.ScriptMethod):
        raise UnsupportedError(
            "there is a method of a TorchScript module to compile",
            expected="a function, an nn.Module, or a method written in Python",
            got=f"a {type(function).__name__}",
            fix="compile the module itself",
        )
    scripted = [(m, p) for root in roots for m, p in submodules(root) if isinstance(m, torch.jit.ScriptModule)]
    thread = threading.get_ident()
    with contextlib.ExitStack() as stack:
        for module, path in scripted:
            own = vars(module)  # a traced module finds its forward through its class
            undo = (own.__setitem__, "forward", own["forward"]) if "forward" in own else (own.pop, "forward")
            stack.callback(*undo)
            own["forward"] = _watched(module.forward, module, path, thread)
        yield


def _watched(forward: Callable[..., Any], module: torch.nn.Module, path: Path, thread: int) -> Callable[..., Any]:
    def watched(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == thread:
            _check_scripted(module, path)
        return forward(*args, **kwargs)

    return watched


def _check_scripted(module: torch.nn.Module, path: Path) -> None:
    if torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters()):
        raise UnsupportedError(
            "a module of TorchScript whose parameters require grad is called inside a region",
            path=path,
            expected="modules that read their parameters in Python, or parameters that do not require grad",
            got=f"a {type(module).__name__}, whose C++ code reads its parameters by itself",
            fix="use the module that was scripted or traced; or call it under torch.no_grad(), or take requires_grad "
            "from each of its parameters",
        )


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
