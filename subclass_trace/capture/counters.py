"""Inputs that share a version counter: a view and its base, or ``x`` and ``x.detach()``.

Their traced stand-ins are made apart from each other, each with a counter of its own. After each call of the user
function the counters of a group are brought to one value, so that autograd refuses what it refuses in eager: a backward
that needs a value which was written through another input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .. import _torch
from ..subclass.context import size_key
from ..subclass.flatten import leaves_of
from .aliasing import family, storage_key

Tensor = torch.Tensor
Groups = tuple[tuple[int, ...], ...]


def counter_groups(inputs: Sequence[Tensor]) -> Groups:
    """Which inputs (by position, two or more each) share a version counter."""
    families: dict[int, list[int]] = {}
    for k, t in enumerate(inputs):
        if not t.is_inference():
            families.setdefault(id(family(t)), []).append(k)
    for first, second in joined_counters([inputs[row[0]] for row in families.values()]):
        rows = list(families.values())
        rows[first] += rows[second]
        rows[second].clear()
    return tuple(tuple(sorted(row)) for row in families.values() if len(row) > 1)


def joined_counters(tensors: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Pairs (the first with each other one) among tensors of different families that share a counter all the same.

    Nothing but moving it tells: it is moved and put back.
    """
    storages: dict[int, list[int]] = {}
    for k, t in enumerate(tensors):
        for key in {storage_key(leaf) for leaf in leaves_of(t) if leaf.layout is torch.strided and leaf.numel()}:
            storages.setdefault(key, []).append(k)
    found: dict[int, int] = {}
    for members in storages.values():
        for place, k in enumerate(members):
            others = [n for n in members[place + 1 :] if n not in found and tensors[n]._version == tensors[k]._version]
            if others and k not in found and not tensors[k].is_inference():
                found |= dict.fromkeys(_moved_by(tensors, k, others), k)
    return [(k, n) for n, k in found.items()]


def _moved_by(tensors: Sequence[Tensor], k: int, others: Sequence[int]) -> list[int]:
    version = tensors[k]._version
    _torch.set_version(tensors[k], version + 1)
    try:
        return [n for n in others if not tensors[n].is_inference() and tensors[n]._version == version + 1]
    finally:
        _torch.set_version(tensors[k], version)


def share_counter(a: Tensor, b: Tensor) -> bool:
    """Do two tensors share a version counter?"""
    if a.is_inference() or b.is_inference() or a._version != b._version:
        return False
    return bool(_moved_by((a, b), 0, (1,)))


def detached_from(arguments: Sequence[Tensor], results: Sequence[Tensor]) -> dict[int, list[Tensor]]:
    """id of a traced tensor -> those with which it shares its counter, though it is no view of them.

    Those come first whose ``detach()`` it is, as far as their places in memory tell.

    Args:
        arguments: what the user function got.
        results: what it returned; bases of these are looked at as well.
    """
    known = {
        id(t): t for t in (*arguments, *sorted(results, key=lambda t: not t.requires_grad)) if not t.is_inference()
    }
    families = [
        family(t) for t in known.values()
    ]  # each held: that of some classes is another object when it is asked again
    roots = list({id(t): t for t in families}.values())
    members: dict[Any, list[int]] = {}
    number = {id(t): k for k, t in enumerate(roots)}
    rows = [*enumerate(roots), *((number[id(f)], t) for f, t in zip(families, known.values(), strict=True))]
    for k, t in rows:  # a view may lie in other memory than its base
        for storage in {_torch.storage_ref(leaf) for leaf in leaves_of(t) if leaf.layout is torch.strided}:
            members.setdefault(storage, []).append(k)
    first: dict[int, int] = {}
    for row in (sorted(set(m)) for m in members.values()):
        for place, k in enumerate(row):
            others = [n for n in row[place + 1 :] if n not in first and roots[n]._version == roots[k]._version]
            if k not in first and others:
                first |= dict.fromkeys(_moved_by(roots, k, others), k)
    mine = {id(t) for t in arguments}
    found: dict[int, list[Tensor]] = {}
    for n, k in first.items():
        root = roots[n]
        if id(root) in mine or root.grad_fn is not None:
            continue
        group = {id(roots[m]) for m in (k, *(m for m in range(n) if first.get(m) == k))}
        sources = [t for t in (*known.values(), *roots) if id(family(t)) in group and t is not root]
        found[id(root)] = sorted(sources, key=lambda t: not same_place(t, root))
    return found


def same_place(first: Tensor, second: Tensor) -> bool:
    """Are both of one class and laid out alike, in the same memory? No size becomes a fact of the trace by that."""
    if type(first) is not type(second):
        return False
    one, two = [first, *leaves_of(first)], [second, *leaves_of(second)]
    return len(one) == len(two) and all(map(_same_layout, one, two)) and all(map(_same_memory, one[1:], two[1:]))


def _same_memory(a: Tensor, b: Tensor) -> bool:
    strided = a.layout is torch.strided and b.layout is torch.strided
    return strided and _torch.storage_ref(a) == _torch.storage_ref(b)


def _same_layout(a: Tensor, b: Tensor) -> bool:
    if a.layout is not torch.strided or b.layout is not torch.strided or a.dtype != b.dtype:
        return False
    places = [(*t.shape, *t.stride(), t.storage_offset()) for t in (a, b)]
    if (a.is_conj(), a.is_neg()) != (b.is_conj(), b.is_neg()):
        return False
    return a.dim() == b.dim() and [*map(size_key, places[0])] == [*map(size_key, places[1])]


class SharedCounters:
    """The groups of one run, as traced stand-ins.

    Attributes:
        borrowed: id of a stand-in -> by how much its counter was moved for writes through others of its group.
    """

    def __init__(self, traced: Sequence[Tensor], groups: Groups) -> None:
        rows = [[traced[k] for k in group if not traced[k].is_inference()] for group in groups]
        self._groups = [(row, [t._version for t in row]) for row in rows]
        self.borrowed: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def level(self) -> None:
        """Bring the counters of each group to one value, as after the writes of all of them."""
        for row, before in self._groups:
            own = [t._version - was for t, was in zip(row, before, strict=True)]
            total = sum(own)
            if total:
                for k, t in enumerate(row):
                    self.borrowed[id(t)] = self.borrowed.get(id(t), 0) + total - own[k]
                    before[k] += total
                    _torch.set_version(t, before[k])
