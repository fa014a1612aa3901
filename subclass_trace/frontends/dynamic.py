"""Which sizes are symbols: all of them on request, marked ones, and those that changed between calls.

Strides follow from sizes, or are numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .. import torch_api
from ..capture.input_sizes import DynamicDims
from ..capture.inputs import Argument
from ..capture.session import Dim
from ..errors import ProtocolError
from ..subclass.paths import Path
from ..subclass.protocol import is_traceable
from ..subclass.visit import visit

Tensor = torch.Tensor
Sizes = dict[str, tuple[int, ...]]
#: stands for all sizes where the trace of a region failed with symbols for them
SIZES = "the sizes of its tensors"
_LARGEST = 2**31


def sizes_of(arguments: Sequence[Argument]) -> Sizes:
    """path -> size, for each argument and each value inside it (a jagged tensor's own size follows from those)."""
    out: Sizes = {}

    def note(t: Tensor, path: Path) -> None:
        if not t.is_nested:
            out[str(path)] = tuple(t.shape)

    for a in arguments:
        visit(
            a.value,
            leaf=note,
            wrapper=lambda t, names, inners, context, path: note(t, path),
            opaque=lambda v, path: None,
            path=a.path,
        )
    return out


class SizeHistory:
    """Remembers the sizes that a region was specialised for, and which dimensions differed between them.

    ``all_numbers``: numbers are symbols from the first call on.
    """

    def __init__(self, *, all_numbers: bool = False) -> None:
        self.all_numbers = all_numbers
        self.seen: list[Sizes] = []
        self.varying: dict[str, frozenset[int]] = {}
        self.varying_numbers: set[str] = set()
        self.has_symbols = False  # had the last trace any?
        self.fixed: dict[str, str] = {}  # path of a number that is no symbol, or `SIZES` -> why

    def add(self, sizes: Sizes) -> None:
        """Compare with earlier sizes at the same paths, and remember these."""
        for earlier in self.seen:
            for path, size in sizes.items():
                before = earlier.get(path)
                if before is not None and len(before) == len(size):
                    changed = {d for d, (a, b) in enumerate(zip(before, size, strict=True)) if a != b}
                    if changed:
                        self.varying[path] = self.varying.get(path, frozenset()) | changed
        if sizes not in self.seen:
            self.seen.append(sizes)

    def fix_all(self, places: Iterable[str], why: str) -> None:
        """No symbols stand for these numbers from now on, nor for sizes, if `SIZES` is among them."""
        self.fixed = {**dict.fromkeys(places, why), **self.fixed}

    def note_numbers(self, paths: Iterable[str]) -> None:
        """Numbers at these paths changed between calls: they may be symbols from now on."""
        self.varying_numbers.update(paths)

    def is_symbol(self, path: str, value: float, *, floats: bool) -> bool:
        """May a symbol stand for a number? Not for 0.0, infinities and nan, nor for what 64 bits could not square."""
        if not (self.all_numbers or path in self.varying_numbers) or path in self.fixed:
            return False
        if type(value) is int:
            return abs(value) < _LARGEST
        return floats and math.isfinite(value) and value != 0

    def of(self, path: str, dim: int) -> tuple[int | None, ...]:
        """The sizes of one dimension in the calls so far."""
        return tuple(s[path][dim] if path in s and dim < len(s[path]) else None for s in self.seen)


def marked_dims(t: Tensor) -> frozenset[int]:
    """Dimensions marked with ``torch._dynamo.mark_dynamic`` or ``maybe_mark_dynamic``."""
    return _marks(t, "_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices")


def _marks(t: Tensor, *names: str) -> frozenset[int]:
    return frozenset(d for name in names for d in getattr(t, name, ()) or ())


class _Choice(DynamicDims):
    """The dynamic dimensions, path by path."""

    def __init__(self, history: SizeHistory) -> None:
        self.history = history
        self.chosen: dict[str, list[int]] = {}
        self._alike: dict[int, tuple[int | None, ...]] = {}  # size -> how the dimensions went that share its symbol

    def note(self, t: Tensor, path: Path, extra: frozenset[int], whole: bool) -> None:
        """A dense tensor or a wrapper. ``extra``: more dynamic dimensions; ``whole``: all are."""
        if t.is_nested:
            return
        name = str(path)
        dims = self.history.varying.get(name, frozenset()) | marked_dims(t) | extra
        self.chosen[name] = [
            self._kind(name, d, n) if whole or d in dims else Dim.STATIC for d, n in enumerate(t.shape)
        ]

    def _kind(self, path: str, dim: int, size: int) -> Dim:
        """Equal sizes are one symbol, unless they differed in an earlier call."""
        went = self.history.of(path, dim)
        return Dim.ALIKE if self._alike.setdefault(size, went) == went else Dim.OWN

    def sizes(self, path: Path, t: Tensor) -> Sequence[int]:
        """What the sizes of the value at a path become."""
        return self.chosen.get(str(path)) or super().sizes(path, t)

    def clear(self) -> None:
        """All sizes are numbers."""
        self.chosen.clear()

    def any(self) -> bool:
        """Is any size a symbol?"""
        return any(map(any, self.chosen.values()))

    def note_inside_jagged(self, t: Tensor, path: Path, whole: bool) -> None:
        """A dense tensor inside a jagged one. Its sizes (sum and number of lengths) are equal to others by chance only.

        Jagged tensors mark the sizes that nearly always differ, and keep their longest and shortest length as the
        size of a tensor without elements; these may well be 0 or 1.
        """
        name = str(path)
        dims = self.history.varying.get(name, frozenset()) | marked_dims(t)
        if self.history.seen:
            dims |= _marks(t, "_dynamo_propagated_dynamic_indices")
        number = t.dim() == 2 and t.shape[1] == 0
        self.chosen[name] = [
            Dim.STATIC if not (whole or d in dims) else Dim.NUMBER if number and d == 0 else Dim.OWN
            for d in range(t.dim())
        ]


def choose(arguments: Sequence[Argument], history: SizeHistory, everything: bool, sizes: bool = True) -> _Choice:
    """The dynamic dimensions of some inputs (where ``sizes`` may be).

    Parameters and buffers are dynamic only where they changed. Where an outer size of a wrapper is marked, so are inner
    sizes of the same value (the outer shape may have another rank than the inner one).
    """
    choice = _Choice(history)
    for a in arguments:
        whole = everything and not (a.static and isinstance(a.value, torch.nn.Parameter))
        if a.value.is_nested:
            _note_jagged(choice, a, whole)
            continue
        marks = marked_dims(a.value) if is_traceable(a.value) else frozenset()
        values = {a.value.shape[d] for d in marks} if marks else set()

        def leaf(t: Tensor, path: Path, whole: bool = whole, values: set[Any] = values) -> None:
            same = frozenset(d for d, n in enumerate(t.shape) if n in values) if not t.is_nested else frozenset()
            choice.note(t, path, same, whole)

        def wrapper(t: Tensor, names: Any, inners: Any, context: Any, path: Path, leaf: Any = leaf) -> None:
            leaf(t, path)

        visit(a.value, leaf=leaf, wrapper=wrapper, opaque=lambda v, path: None, path=a.path)
    if not sizes or SIZES in history.fixed:
        choice.clear()
    return choice


def may_be_dynamic(tensors: Iterable[Tensor], history: SizeHistory, everything: bool) -> bool:
    """May a capture have symbols? (A ragged size is one in any case.)"""
    if everything or history.varying or history.varying_numbers or history.all_numbers:
        return True
    with torch_api.no_overrides():  # a class may do something when it is asked, or know no answer
        return any(t.is_nested or marked_dims(t) or (is_traceable(t) and _is_marked_inside(t)) for t in tensors)


def _is_marked_inside(t: Tensor) -> bool:
    found: list[bool] = []
    try:
        visit(
            t,
            leaf=lambda inner, path: found.append(inner.is_nested or bool(marked_dims(inner))),
            wrapper=lambda inner, names, inners, context, path: found.append(
                inner.is_nested or bool(marked_dims(inner))
            ),
            opaque=lambda v, path: None,
            path=Path("x"),
        )
    except ProtocolError:  # the walk over the arguments says where
        return False
    return any(found)


def _note_jagged(choice: _Choice, argument: Argument, whole: bool) -> None:
    visit(
        argument.value,
        leaf=lambda t, path: choice.note_inside_jagged(t, path, whole),
        wrapper=lambda t, names, inners, context, path: None,
        opaque=lambda v, path: None,
        path=argument.path,
    )
