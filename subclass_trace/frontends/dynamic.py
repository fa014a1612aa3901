"""Which sizes are symbols: all of them on request, marked ones, and those that changed between calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..capture.inputs import Argument, DynamicDims
from ..subclass.paths import Path
from ..subclass.protocol import is_traceable
from ..subclass.visit import visit

Tensor = torch.Tensor
Sizes = dict[str, tuple[int, ...]]


def sizes_of(arguments: Sequence[Argument]) -> Sizes:
    """path -> size, for each argument and each value inside it."""
    out: Sizes = {}

    def note(t: Tensor, path: Path) -> None:
        if not t.is_nested:
            out[str(path)] = tuple(t.shape)

    for a in arguments:
        if a.value.is_nested:  # which sizes of a jagged tensor agree is carried by its offsets: kept static
            continue
        visit(
            a.value,
            leaf=note,
            wrapper=lambda t, names, inners, context, path: note(t, path),
            opaque=lambda v, path: None,
            path=a.path,
        )
    return out


class SizeHistory:
    """Remembers the sizes that a region was specialised for, and which dimensions differed between them."""

    def __init__(self) -> None:
        self.seen: list[Sizes] = []
        self.varying: dict[str, frozenset[int]] = {}

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


def marked_dims(t: Tensor) -> frozenset[int]:
    """Dimensions marked with ``torch._dynamo.mark_dynamic`` or ``maybe_mark_dynamic``."""
    marks = getattr(t, "_dynamo_dynamic_indices", ()) or ()
    return frozenset({*marks, *(getattr(t, "_dynamo_weak_dynamic_indices", ()) or ())})


def choose(arguments: Sequence[Argument], history: SizeHistory, everything: bool) -> tuple[DynamicDims, bool]:
    """The dynamic dimensions of a capture, and whether there are any.

    Parameters and buffers are dynamic only where they changed. Where an outer size of a wrapper is marked, so are inner
    sizes of the same value (the outer shape may have another rank than the inner one).
    """
    chosen: dict[str, list[bool]] = {}

    def note(t: Tensor, path: Path, extra: frozenset[int], whole: bool) -> None:
        if t.is_nested:
            return
        dims = history.varying.get(str(path), frozenset()) | marked_dims(t) | extra
        chosen[str(path)] = [whole or d in dims for d in range(t.dim())]

    for a in arguments:
        if a.value.is_nested:
            continue
        whole = everything and not (a.static and isinstance(a.value, torch.nn.Parameter))
        marks = marked_dims(a.value) if is_traceable(a.value) else frozenset()
        values = {a.value.shape[d] for d in marks} if marks else set()

        def leaf(t: Tensor, path: Path, whole: bool = whole, values: set[Any] = values) -> None:
            same = frozenset(d for d, n in enumerate(t.shape) if n in values) if not t.is_nested else frozenset()
            note(t, path, same, whole)

        def wrapper(
            t: Tensor, names: Any, inners: Any, context: Any, path: Path, whole: bool = whole, values: set[Any] = values
        ) -> None:
            leaf(t, path, whole, values)

        visit(a.value, leaf=leaf, wrapper=wrapper, opaque=lambda v, path: None, path=a.path)
    any_dynamic = any(any(dims) for dims in chosen.values())

    def dynamic(path: Path, t: Tensor) -> list[bool]:
        return chosen.get(str(path), [False] * (0 if t.is_nested else t.dim()))

    return dynamic, any_dynamic
