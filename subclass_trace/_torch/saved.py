"""The part of the door that leads to saved tensors and their hooks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import pytree
from .this_thread import replaced_here

Hook = Callable[[Any], Any]


@contextlib.contextmanager
def unpack_hooks_replaced(change: Callable[[Hook], Hook]) -> Iterator[None]:
    """Default saved-tensor hooks that this thread sets inside have ``change(unpack)`` for their unpack hook."""
    module = torch._C._autograd
    original = module._push_saved_tensors_default_hooks

    def push(pack: Hook, unpack: Hook) -> None:
        original(pack, change(unpack))

    with replaced_here(module, "_push_saved_tensors_default_hooks", push):
        yield


def packed_tensors(node: Any, name: str) -> list[torch.Tensor] | None:
    """What pack hooks made of the attribute ``name`` (``_saved_*`` or ``saved_tensors``) of an autograd node.

    None where it was saved without hooks.
    """
    raw = getattr(node, f"_raw_{name.removeprefix('_')}", None)
    variables = raw if isinstance(raw, (list, tuple)) else [raw]
    hooked = [v.data for v in variables if v is not None and getattr(v, "unpack_hook", None) is not None]
    return [t for t in pytree.tree_leaves(hooked) if isinstance(t, torch.Tensor)] if hooked else None
