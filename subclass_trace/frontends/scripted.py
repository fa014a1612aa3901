"""Scripted and traced modules (TorchScript) in a region.

Their code finds its tensors in C++ objects, where no stand-in is seen. So while a region is captured their methods run on
copies of those objects, which hold traced tensors; other threads run the originals.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .. import _torch
from ..capture.functions import cannot_be_traced
from ..errors import UnsupportedError
from ..subclass.paths import Path

Module = torch.nn.Module


@contextlib.contextmanager
def on_copies(modules: Sequence[tuple[Module, Path]]) -> Iterator[dict[int, Any]]:
    """Inside, and on this thread alone, the methods of scripted ones among these modules run on copies.

    Yields the copies by the id of the module: set traced tensors in them.
    """
    twins: dict[int, Any] = {}
    for module, _ in modules:  # an outer one comes before those inside
        if _torch.is_scripted(module) and id(module) not in twins:
            _enter(twins, module, _torch.script_twin(module))
    restore: list[tuple[Any, str, Any]] = []
    for module, path in modules:
        for name in _torch.script_methods(module) if id(module) in twins else ():
            known = getattr(module, name)
            restore.append((vars(module), name, known))
            run = _torch.script_method(twins[id(module)], name)
            vars(module)[name] = functools.partial(_run, threading.get_ident(), run, known, module, path, name)
    try:
        yield twins
    finally:
        for table, name, known in restore:
            table[name] = known


def _enter(twins: dict[int, Any], module: Module, twin: Any) -> None:
    twins[id(module)] = twin
    for name, child in module.named_children():
        _enter(twins, child, twin.getattr(name))


def _run(
    thread: int,
    run: Callable[..., Any],
    known: Callable[..., Any],
    module: Module,
    path: Path,
    method: str,
    *args: Any,
    **kwargs: Any,
) -> Any:
    if threading.get_ident() != thread:
        return known(*args, **kwargs)
    for names, name in _torch.script_attributes(module, written=True):
        raise UnsupportedError(
            f"a scripted module assigns to its attribute {name!r}, which is no tensor",
            path=".".join((str(path), *names, name)),
            expected="tensors that are assigned to buffers",
            got=f"an assignment in the code of {type(module).__qualname__}",
            fix="keep the number in a buffer, or call the module outside of the region",
        )
    try:
        return run(*args, **kwargs)
    except RuntimeError as error:
        raise cannot_be_traced(f"the method {method!r} of a scripted module", path, error) from error
