"""Which dense leaves can touch the same memory.

Everything here works on leaves, where a storage is a storage; see docs/notes/flatten_first.md. Ranges are in bytes, so
that a ``uint8`` view and a ``float32`` view of one storage compare.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from .. import torch_api
from ..errors import AliasingError
from ..subclass.context import size_key
from ..subclass.flatten import leaves_of


class ByteRange(NamedTuple):
    """First byte, and the byte after the last, of a storage that a tensor can touch."""

    start: Any
    stop: Any

    def overlaps(self, other: ByteRange) -> bool:
        """Do the two ranges share a byte?

        An over-approximation for interleaved strided views (PyTorch PR 106461), and where a place depends on values
        inside tensors.
        """
        return torch_api.maybe(self.start < other.stop) and torch_api.maybe(other.start < self.stop)


def byte_range(t: torch.Tensor) -> ByteRange:
    """The range of its storage that ``t`` can touch; empty for a tensor without elements, [0, 1) without strides."""
    if t.layout is not torch.strided:
        return ByteRange(0, 1)
    start, width = t.storage_offset(), t.element_size()
    if torch_api.surely(t.numel() == 0):
        return ByteRange(start * width, start * width)
    stop = start + 1
    for size, stride in zip(t.shape, t.stride(), strict=True):
        stop = stop + (size - 1) * stride
    return ByteRange(start * width, stop * width)


def same_place(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Do two tensors show the very same elements in the same order, as elements of one type?"""
    if a is b:
        return True
    if a.dtype != b.dtype or a.dim() != b.dim() or not one_storage(a, b):
        return False
    rows = zip((*a.shape, *a.stride(), a.storage_offset()), (*b.shape, *b.stride(), b.storage_offset()), strict=True)
    return all(torch_api.surely(m == n) for m, n in rows)


def one_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Have two strided tensors one storage?"""
    strided = a.layout is torch.strided and b.layout is torch.strided
    return strided and torch_api.storage_ref(a) == torch_api.storage_ref(b)


def may_overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """May an element of one lie in an element of the other?"""
    if not one_storage(a, b) or not byte_range(a).overlaps(byte_range(b)):
        return False
    numbers: list[list[Any]] = [[_hint(n) for n in (*t.shape, *t.stride(), t.storage_offset())] for t in (a, b)]
    if a.dtype != b.dtype or any(n is None for row in numbers for n in row):
        return True
    places = [Place(tuple(r[: t.dim()]), tuple(r[t.dim() : -1]), r[-1]) for r, t in zip(numbers, (a, b), strict=True)]
    return not boxes_apart(*places)


def _hint(n: Any) -> int | None:
    """A number of this trace; None where it depends on the values inside a tensor."""
    return n if type(n) is int else n.node.hint if torch_api.is_known(n) else None


#: Sums of products, whose kernels (of other libraries) read what they have written, or do not, by size and processor.
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "matmul", "linalg_matmul")


#: they read the one element that they write everywhere before they write
_OF_ONE = ("fill", "masked_fill", "index_put")


def refuse_overlap(func: Any, args: Sequence[Any], kwargs: dict[str, Any], line: Callable[[], str | None]) -> None:
    """Refuse an operation that writes to memory which it reads in other places, or to one element several times.

    Fake kernels never look, real ones refuse it or depend on the order of reads and writes; a graph reads everything first.

    Raises:
        AliasingError: it does.
    """
    if func.namespace != "aten" or torch.Tag.inplace_view in func.tags:
        return
    name = func._schema.name.removeprefix("aten::").removesuffix("_")
    written: list[torch.Tensor] = []
    others: list[torch.Tensor] = []
    for argument, value in [*zip(func._schema.arguments, args, strict=False), *_by_name(func, kwargs)]:
        writes = argument.alias_info is not None and argument.alias_info.is_write
        values = value if isinstance(value, (list, tuple)) else (value,)
        (written if writes else others).extend(v for v in values if isinstance(v, torch.Tensor))
    for k, w in enumerate(written):
        for t in (*written[:k], *others):
            if name in _OF_ONE and torch_api.surely(t.numel() == 1):
                continue
            if may_overlap(w, t) and (name in _PRODUCTS if same_place(w, t) else not name.startswith("_foreach")):
                raise _overlap(func, line(), [w, t])
        if repeats(w) and name not in ("zero", "fill"):
            raise _overlap(func, line(), [w])


def _by_name(func: Any, kwargs: dict[str, Any]) -> list[tuple[Any, Any]]:
    return [(a, kwargs[a.name]) for a in func._schema.arguments if a.name in kwargs]


def _overlap(func: Any, line: str | None, tensors: Sequence[torch.Tensor]) -> AliasingError:
    return AliasingError(
        f"{torch_api.op_name(func)} writes to memory that it reads in another place, or to one element several times: the "
        "result depends on the order of reads and writes",
        path=line,
        expected="arguments that share no memory with the tensor that is written",
        got="in one memory: shapes " + ", ".join(str([*t.shape]) for t in tensors),
        fix="clone the other argument before the operation",
    )


class Place(NamedTuple):
    """Where in its storage a tensor lies."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: Any


def boxes_apart(a: Place, b: Place) -> bool:
    """Are two tensors of one dtype boxes without a common element, in a grid of their storage that both lie in?

    As ``cache[:, 4]`` and ``cache[:, 5]``; False where it is hard to say.
    """
    rows = [{s: n for n, s in zip(p.shape, p.stride, strict=True) if n > 1} for p in (a, b)]
    if any(len(row) != sum(n > 1 for n in p.shape) for row, p in zip(rows, (a, b), strict=True)):
        return False  # two dimensions of one stride
    grid = sorted({1, *rows[0], *rows[1]}, reverse=True)
    if grid[-1] != 1 or any(large % small for large, small in itertools.pairwise(grid)):
        return False
    left, apart = [a.offset, b.offset], False
    for k, stride in enumerate(grid):
        starts = [n // stride for n in left]
        stops = [start + row.get(stride, 1) for start, row in zip(starts, rows, strict=True)]
        if k and max(stops) * stride > grid[k - 1]:
            return False  # a box goes across the end of the grid
        apart |= stops[0] <= starts[1] or stops[1] <= starts[0]
        left = [n % stride for n in left]
    return apart


def repeats(t: torch.Tensor) -> bool:
    """Has a tensor a dimension along which its elements are the same again? Kernels look for no other overlap in one."""
    if t.layout is not torch.strided or torch_api.surely(t.numel() == 0):
        return False
    rows = zip(t.shape, t.stride(), strict=True)
    return any(torch_api.surely(stride == 0) and torch_api.maybe(size > 1) for size, stride in rows)


def share_counter(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Do two tensors share a version counter? Nothing but moving it tells: it is moved and put back."""
    if a.is_inference() or b.is_inference() or a._version != b._version:
        return False
    version = a._version
    torch_api.set_version(a, version + 1)
    moved = bool(b._version == version + 1)
    torch_api.set_version(a, version)
    return moved


def laid_out_alike(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Are both of one class and laid out alike, in the same memory? No size becomes a fact of the trace by that."""
    if type(first) is not type(second):
        return False
    one, two = leaves_of(first), leaves_of(second)
    outer = first is one[0] or _numbers(first) == _numbers(second)
    return outer and len(one) == len(two) and all(map(_in_one_place, one, two))


def _in_one_place(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype != b.dtype or not one_storage(a, b):
        return False
    return (a.is_conj(), a.is_neg()) == (b.is_conj(), b.is_neg()) and _numbers(a) == _numbers(b)


def _numbers(t: torch.Tensor) -> list[Any]:
    return [size_key(n) for n in (*t.shape, *t.stride(), t.storage_offset())]


def storage_key(t: torch.Tensor) -> int:
    """A number that two live tensors share exactly when they share a storage."""
    return int(t.untyped_storage()._cdata)


def alias_groups(leaves: Sequence[torch.Tensor]) -> list[list[int]]:
    """Groups (of two or more, by position) of leaves whose ranges overlap, directly or through others."""
    items = []
    for k, t in enumerate(leaves):
        if t.layout is torch.strided and t.numel():
            items.append((storage_key(t), *byte_range(t), k))
    items.sort()
    groups: list[list[int]] = []
    current: list[int] = []
    key, stop = None, 0
    for storage, start, end, k in items:
        if storage == key and start < stop:
            current.append(k)
            stop = max(stop, end)
        else:
            if len(current) > 1:
                groups.append(current)
            current, key, stop = [k], storage, end
    if len(current) > 1:
        groups.append(current)
    return groups


def family(t: torch.Tensor) -> torch.Tensor:
    """The base that autograd relates a view to, or the tensor itself."""
    base = t._base if t._is_view() else None
    return t if base is None else base


def alias_pattern(inputs: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """What of the memory layout decides a trace, comparable between calls.

    Which inputs are one autograd family, and for each storage with two or more leaves where in it they lie.
    ``leaves`` are distinct tensors (duplicates by identity are guarded elsewhere).
    """
    families: dict[int, int] = {}
    pattern: list[Any] = [tuple(families.setdefault(id(family(t)), len(families)) for t in inputs)]
    storages: dict[int, list[tuple[int, Any, Any]]] = {}
    for k, t in enumerate(leaves):
        if t.layout is torch.strided and t.numel():
            storages.setdefault(storage_key(t), []).append((k, *byte_range(t)))
    for members in storages.values():
        if len(members) > 1:
            start = min(m[1] for m in members)
            pattern.append(tuple((k, lo - start, hi - start) for k, lo, hi in members))
    return tuple(pattern)


_is_view = operator.methodcaller("_is_view")
_storage = operator.methodcaller("untyped_storage")
_number = operator.attrgetter("_cdata")


def alias_check(
    known: tuple[Any, ...], *, strided: bool = False
) -> Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], bool]:
    """A test whether `alias_pattern` of a call equals ``known``, quick for the usual pattern: nothing is related.

    ``strided``: other guards see to it that all leaves are.
    """
    if known != (tuple(range(len(known[0]))),):
        return lambda inputs, leaves: alias_pattern(inputs, leaves) == known

    def unrelated(inputs: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]) -> bool:
        no_views = not any(map(_is_view, inputs)) and (strided or all(t.layout is torch.strided for t in leaves))
        if no_views and len({*map(_number, map(_storage, leaves))}) == len(leaves):
            return True
        return alias_pattern(inputs, leaves) == known

    return unrelated
