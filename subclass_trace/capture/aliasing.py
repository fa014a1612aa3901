"""Which dense leaves can touch the same memory.

Everything here works on leaves, where a storage is a storage; see docs/notes/flatten_first.md.
Ranges are in bytes, so that a ``uint8`` view and a ``float32`` view of one storage compare.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.fx as fx

from ..subclass.context import size_key
from ..torch_api.autograd import is_autograd_view
from ..torch_api.kinds import storage_key, storage_ref
from ..torch_api.operators import OpOverload, is_builtin, op_name
from ..torch_api.symbols import maybe, surely


class ByteRange(NamedTuple):
    """First byte, and the byte after the last, of a storage that a tensor can touch."""

    start: Any
    stop: Any

    def overlaps(self, other: ByteRange) -> bool:
        """Do the two ranges share a byte?

        An over-approximation for interleaved strided views (PyTorch PR 106461), and where a place
        depends on values inside tensors.
        """
        return maybe(self.start < other.stop) and maybe(other.start < self.stop)


def byte_range(t: torch.Tensor) -> ByteRange:
    """The range of its storage that ``t`` can touch; empty for a tensor without elements, [0, 1)
    without strides."""
    if t.layout is not torch.strided:
        return ByteRange(0, 1)
    start, width = t.storage_offset(), t.element_size()
    if surely(t.numel() == 0):
        return ByteRange(start * width, start * width)
    stop = start + 1
    for size, stride in zip(t.shape, t.stride(), strict=True):
        stop = stop + (size - 1) * stride
    return ByteRange(start * width, stop * width)


def one_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Have two strided tensors one storage?"""
    strided = a.layout is torch.strided and b.layout is torch.strided
    return strided and storage_ref(a) == storage_ref(b)


def may_overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """May an element of one lie in an element of the other? (Two columns of a matrix do not
    meet.)"""
    if not one_storage(a, b) or not byte_range(a).overlaps(byte_range(b)):
        return False
    distance: Any = b.storage_offset() - a.storage_offset()
    if a.element_size() != b.element_size() or not all(
        isinstance(n, int) for n in (distance, *a.stride(), *b.stride())
    ):
        return True
    # stride -> how far two elements may be apart along it, either way
    reach: dict[int, list[int]] = {}
    for way, t in enumerate((a, b)):
        for size, stride in zip(t.shape, t.stride(), strict=True):
            reach.setdefault(stride, [0, 0])[way] += size - 1 if isinstance(size, int) else 1 << 62
    return _is_sum(distance, [(s, -j, i) for s, (i, j) in sorted(reach.items(), reverse=True) if s])


def _is_sum(distance: int, rows: Sequence[tuple[int, int, int]]) -> bool:
    """May ``distance`` be a sum of strides, each of them so many times as its row of (stride,
    least, most) says?"""
    if not rows:
        return distance == 0
    (stride, least, most), *rest = rows
    low, high = (sum(s * ends[k] for s, *ends in rest) for k in (0, 1))
    first, last = max(least, -((high - distance) // stride)), min(most, (distance - low) // stride)
    return last - first > 3 or any(
        _is_sum(distance - k * stride, rest) for k in range(first, last + 1)
    )


def repeats(t: torch.Tensor) -> bool:
    """Has a tensor a dimension along which its elements are the same again? Kernels look for no
    other overlap in one."""
    if t.layout is not torch.strided or surely(t.numel() == 0):
        return False
    rows = zip(t.shape, t.stride(), strict=True)
    return any(surely(stride == 0) and maybe(size > 1) for size, stride in rows)


def same_elements(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Do both show the very same elements in the same order, but for dimensions of size 1?"""
    return a is b or (a.dtype == b.dtype and one_storage(a, b) and _rows(a) == _rows(b))


def _rows(t: torch.Tensor) -> list[Any]:
    rows = zip(map(size_key, t.shape), map(size_key, t.stride()), strict=True)
    return [size_key(t.storage_offset()), *(row for row in rows if row[0] != 1)]


def family(t: torch.Tensor) -> torch.Tensor:
    """The base that autograd relates a view to, or the tensor itself."""
    base = t._base if t._is_view() else None
    return t if base is None else base


def alias_pattern(
    inputs: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]
) -> tuple[Any, ...]:
    """What of the memory layout decides a trace, comparable between calls.

    Which inputs are one autograd family, and for each storage with two or more leaves where in it
    they lie. ``leaves`` are distinct tensors (duplicates by identity are guarded elsewhere).
    """
    families: dict[int, int] = {}
    pattern: list[Any] = [tuple(families.setdefault(id(family(t)), len(families)) for t in inputs)]
    storages: dict[int | None, list[tuple[int, Any, Any]]] = {}
    for k, t in enumerate(leaves):
        if t.numel():
            storages.setdefault(storage_key(t), []).append((k, *byte_range(t)))
    for members in storages.values():
        if len(members) > 1:
            start = min(m[1] for m in members)
            pattern.append(tuple((k, lo - start, hi - start) for k, lo, hi in members))
    return tuple(pattern)


_number = operator.attrgetter("_cdata")


def alias_check(
    known: tuple[Any, ...],
) -> Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], bool]:
    """A test whether `alias_pattern` of a call equals ``known``, quick for the usual pattern:
    nothing is related."""
    if known != (tuple(range(len(known[0]))),):
        return lambda inputs, leaves: alias_pattern(inputs, leaves) == known

    def unrelated(inputs: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]) -> bool:
        storages = {*map(_number, map(torch.Tensor.untyped_storage, leaves))}
        if len(storages) == len(leaves) and not any(map(is_autograd_view, inputs)):
            return True
        return alias_pattern(inputs, leaves) == known

    return unrelated


def is_from_outside(node: fx.Node) -> bool:
    """Is the memory of its value that of an input, or of a constant?"""
    return any(n.op in ("placeholder", "get_attr") for n in _sharing(node))


def shows_elsewhere(node: fx.Node, same: Mapping[fx.Node, fx.Node]) -> bool:
    """Is the memory of its value that of another tensor?

    Args:
        same: node of a tensor since its shape was changed in place -> the one before.
    """
    own = {node}
    while node in same:
        own.add(node := same[node])
    for other in _sharing(node):
        if other not in own:
            # an operation in place gives the tensor that it writes
            target: Any = other.target
            in_place = isinstance(target, OpOverload) and op_name(target).endswith("_")
            if not (in_place and is_builtin(target) and other.args[0] in own):
                return True
            own.add(other)
    return False


def _sharing(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes whose values have the memory that its value has, in order."""
    storage = storage_ref(node.meta["val"])
    for other in node.graph.nodes:
        value = other.meta.get("val")
        if isinstance(value, torch.Tensor) and storage_ref(value) == storage:
            yield other
