"""Pytrees of arguments and results, rebuilt as they came: optree's, but that a ``torch.Size`` stays one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import optree
import torch


def unflatten_tree(tree: Any, leaves: Sequence[Any]) -> Any:
    """The inverse of flattening, with a torch.Size where there was one (torch's pytree makes it a tuple)."""
    if not holds_size(tree):
        return optree.tree_unflatten(tree, leaves)
    if tree.type is torch.Size:
        return torch.Size(leaves)
    rest = iter(leaves)
    children = [unflatten_tree(c, list(itertools.islice(rest, c.num_leaves))) for c in tree.children()]
    return tree.one_level().unflatten(children)


def holds_size(tree: Any) -> bool:
    """Is there a torch.Size in this structure?"""
    return tree.type is torch.Size or any(map(holds_size, tree.children()))
