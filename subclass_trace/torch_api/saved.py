"""The part of the door that leads to saved tensors and their hooks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from . import pytree
from .this_thread import replaced_here

Hook = Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class Packed:
    """What a pack hook has made of a tensor."""

    value: Any
    tensor: torch.Tensor


@contextlib.contextmanager
def saved_hooks_replaced(change: Callable[[Hook, Hook], tuple[Hook, Hook]]) -> Iterator[None]:
    """Default saved-tensor hooks ``(pack, unpack)`` that this thread sets inside are ``change(pack, unpack)``."""
    module = torch._C._autograd
    original = module._push_saved_tensors_default_hooks

    def push(pack: Hook, unpack: Hook) -> None:
        original(*change(pack, unpack))

    with replaced_here(module, "_push_saved_tensors_default_hooks", push):
        yield


def packed_tensors(node: Any, name: str) -> list[torch.Tensor] | None:
    """What pack hooks made of the attribute ``name`` (``_saved_*`` or ``saved_tensors``) of an autograd node.

    None where it was saved without hooks.
    """
    raw = getattr(node, f"_raw_{name.removeprefix('_')}", None)
    variables = raw if isinstance(raw, (list, tuple)) else [raw]
    hooked = [v.data for v in variables if v is not None and getattr(v, "unpack_hook", None) is not None]
    hooked = [v.value if isinstance(v, Packed) else v for v in hooked]
    return [t for t in pytree.tree_leaves(hooked) if isinstance(t, torch.Tensor)] if hooked else None
