"""Which sizes are symbols: all of them on request, marked ones, and those that changed between
calls.

Strides follow from sizes, or are numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..capture.input_sizes import DynamicDims
from ..capture.inputs import Argument
from ..capture.session import Dim
from ..plan import Plan
from ..state.place import Place
from ..subclass.paths import Path
from ..subclass.protocol import is_traceable
from ..subclass.spec import OpaqueSpec, SizeExpr, Spec, WrapperSpec
from ..subclass.visit import visit
from ..torch_api.dynamo import marked, marked_dims

Tensor = torch.Tensor
#: stands for all sizes among what is fixed
SIZES = "the sizes of its tensors"
_LARGEST = 2**31


def each_tensor(value: Tensor, path: Path, note: Callable[[Tensor, Path], None]) -> None:
    """Call ``note`` for each dense tensor and wrapper in a value. (A jagged tensor's own size
    follows from those inside.)"""

    def wrapper(t: Tensor, names: Any, inners: Any, context: Any, path: Path) -> None:
        if not t.is_nested:
            note(t, path)

    visit(value, leaf=note, wrapper=wrapper, opaque=lambda v, path: None, path=path)


class SizeHistory:
    """Remembers the sizes that a region was specialised for, and which dimensions differed between
    them.

    Attributes:
        all_numbers: numbers are symbols from the first call on.
        varying: path -> dimensions that differed; ``varying_numbers``: paths of numbers that did.
        fixed: paths of numbers that are no symbols, and `SIZES` where no sizes are.
        waits: the call that is traced runs eagerly instead, where it makes what later ones find,
            but for these places; None: it does not.
    """

    def __init__(self, *, all_numbers: bool = False) -> None:
        self.all_numbers = all_numbers
        self.seen: dict[str, set[tuple[int, ...]]] = {}
        self.varying: dict[str, frozenset[int]] = {}
        self.varying_numbers: set[str] = set()
        self.fixed: set[str] = set()
        self.waits: frozenset[str] | None = None

    @property
    def has_symbols(self) -> bool:
        """May anything be a symbol?"""
        return bool(self.varying or self.varying_numbers or self.all_numbers)

    def add(self, arguments: Sequence[Argument]) -> None:
        """Compare with earlier sizes at the same paths, and remember these."""
        sizes: dict[str, tuple[int, ...]] = {}
        for a in arguments:
            each_tensor(a.value, a.path, lambda t, path: sizes.update({str(path): tuple(t.shape)}))
        for path, size in sizes.items():
            seen = self.seen.setdefault(path, set())
            for before in seen:
                if len(before) == len(size):
                    changed = {
                        d for d, (a, b) in enumerate(zip(before, size, strict=True)) if a != b
                    }
                    if changed:
                        self.varying[path] = self.varying.get(path, frozenset()) | changed
            seen.add(size)

    def learn(self, plan: Plan, flat: Sequence[Place]) -> None:
        """What are symbols in a plan differed between the calls of whoever made it. ``flat``: where
        its arguments stand."""

        def learn(spec: Spec, path: Path) -> None:
            if isinstance(spec, OpaqueSpec):
                return
            dims = frozenset(d for d, n in enumerate(spec.size) if isinstance(n, SizeExpr))
            if dims:
                self.varying[str(path)] = self.varying.get(str(path), frozenset()) | dims
            for name, inner in zip(*_inside(spec), strict=True):
                learn(inner, path.attr(name))

        for row in plan.inputs.rows:
            learn(row.spec, row.path)
        for symbol in plan.inputs.symbols:
            if symbol.kind == "flat":
                self.varying_numbers.add(str(flat[symbol.number]))

    def fix_all(self) -> None:
        """No symbols stand for the numbers that differ by now, nor for sizes: where the trace of a
        region fails with some."""
        self.fixed |= {*self.varying_numbers, SIZES}

    def is_symbol(self, path: str, value: float, *, floats: bool) -> bool:
        """May a symbol stand for a number? Not for 0.0, infinities and nan, nor for what 64 bits
        could not square."""
        fixed = path in self.fixed or (self.all_numbers and SIZES in self.fixed)
        if fixed or not (self.all_numbers or path in self.varying_numbers):
            return False
        if type(value) is int:
            return abs(value) < _LARGEST
        return floats and math.isfinite(value) and value != 0


def _inside(spec: Spec) -> tuple[Sequence[str], Sequence[Spec]]:
    return (spec.names, spec.inners) if isinstance(spec, WrapperSpec) else ((), ())


class _Choice(DynamicDims):
    """The dynamic dimensions, path by path."""

    def __init__(self, history: SizeHistory) -> None:
        self.history = history
        #: by path, and number of dimensions: two keys of a dict may have one text, as Parameters
        # have
        self.chosen: dict[tuple[str, int], list[int]] = {}

    def sizes(self, path: Path, t: Tensor) -> Sequence[int]:
        """What the sizes of the value at a path become."""
        return self.chosen.get((str(path), t.dim())) or super().sizes(path, t)

    def any(self) -> bool:
        """Is any size a symbol?"""
        return any(map(any, self.chosen.values()))

    def note(self, argument: Argument, everything: bool) -> None:
        """An input. Where an outer size of a wrapper is marked, so are inner sizes of the same
        value (the outer shape may have another rank than the inner one)."""
        value = argument.value
        whole = everything and not isinstance(value, torch.nn.Parameter)
        alike = (
            {value.shape[d] for d in marked_dims(value)}
            if is_traceable(value) and not value.is_nested
            else set()
        )

        def note(t: Tensor, path: Path) -> None:
            name = str(path)
            varying = (
                self.history.varying.get(name, frozenset())
                if not whole
                else frozenset(range(t.dim()))
            )
            dims = varying - marked(t, "static") | marked_dims(t)
            if value.is_nested:
                self.chosen[name, t.dim()] = self._inside_jagged(t, dims)
            else:
                rows = enumerate(t.shape)
                self.chosen[name, t.dim()] = [
                    Dim.ALIKE if d in dims or n in alike else Dim.STATIC for d, n in rows
                ]

        each_tensor(value, argument.path, note)

    def _inside_jagged(self, t: Tensor, dims: frozenset[int]) -> list[int]:
        """A dense tensor inside a jagged one. Its sizes (sum and number of lengths) are equal to
        others by chance only.

        Jagged tensors mark the sizes that nearly always differ, and keep their longest and shortest
        length as the size of a tensor without elements; these may well be 0 or 1.
        """
        if self.history.seen:
            dims |= marked(t, "propagated_dynamic")
        first = Dim.NUMBER if t.dim() == 2 and t.shape[1] == 0 else Dim.OWN
        return [(first if d == 0 else Dim.OWN) if d in dims else Dim.STATIC for d in range(t.dim())]


def choose(
    arguments: Sequence[Argument], history: SizeHistory, everything: bool, sizes: bool = True
) -> _Choice:
    """The dynamic dimensions of some inputs (where ``sizes`` may be). Parameters are dynamic only
    where they changed."""
    choice = _Choice(history)
    if sizes and SIZES not in history.fixed:
        for a in arguments:
            choice.note(a, everything)
    return choice
