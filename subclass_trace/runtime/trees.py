"""Pytrees of arguments and results, rebuilt as they came: optree's, but that a ``torch.Size`` stays one."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import optree
import torch

from .. import _torch


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


def twins_in(value: Any) -> dict[int, int]:
    """Which nodes of classes that somebody has registered are one object: the number of one, as a walk finds them -> that of
    the first."""
    first: dict[int, tuple[int, Any]] = {}  # keeps alive what a class makes anew when it is flattened
    twins: dict[int, int] = {}
    numbers = itertools.count()

    def walk(node: Any) -> None:
        if optree.tree_is_leaf(node, namespace=_torch.pytree_namespace()):
            return
        number = next(numbers)
        if not isinstance(node, _BUILT_IN) and (before := first.setdefault(id(node), (number, node))[0]) != number:
            twins[number] = before
        for child in optree.tree_flatten_one_level(node, namespace=_torch.pytree_namespace())[0]:
            walk(child)

    walk(value)
    return twins


_BUILT_IN = (tuple, list, dict, deque, type(None))


def unflatten_with_twins(tree: Any, leaves: Sequence[Any], twins: Mapping[int, int]) -> Any:
    """As `unflatten_tree`, with one object for nodes that are: see `twins_in`."""
    if not twins:
        return unflatten_tree(tree, leaves)
    rest, numbers, made = iter(leaves), itertools.count(), dict[int, Any]()

    def build(node: Any) -> Any:
        if node.is_leaf():
            return next(rest)
        number = next(numbers)
        children = [build(child) for child in node.children()]
        if number in twins:
            return made[twins[number]]
        made[number] = torch.Size(children) if node.type is torch.Size else node.one_level().unflatten(children)
        return made[number]

    return build(tree)
