"""Hypothesis strategies for dense tensors. Everything shrinks to the smallest, plainest one.

    shapes()  dtypes()            sizes and dtypes
    dense_tensors()               dense tensors: contiguous, transposed, with a storage offset

A dense tensor is drawn as a `Dense`: how to write it down, so that a counterexample can print it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from hypothesis import strategies as s

FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
#: sizes that `shapes` draws often: a class that takes none of these hardly gets examples from it
SMALL = (
    (), (2,), (3,), (4,), (2, 2), (2, 3), (2, 4), (3, 2), (4, 2), (4, 4), (2, 2, 2),
    (2, 3, 4), (1, 4), (0,), (0, 2),
)  # fmt: skip
LAYOUTS = ("contiguous", "transposed", "sliced")


@dataclass(frozen=True, slots=True)
class Dense:
    """How to make one dense tensor.

    Attributes:
        shape: sizes.
        dtype: dtype.
        layout: ``contiguous``, ``transposed`` (strides reversed), ``sliced`` (a storage offset).
        seed: 0 gives 1, 2, 3, ..., others small random numbers.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    layout: str = "contiguous"
    seed: int = 0

    @property
    def code(self) -> str:
        """A Python expression that makes the tensor."""
        shape = self.shape
        if self.layout == "transposed":
            plain = replace(self, shape=shape[::-1], layout="contiguous")
            return f"{plain.code}.permute({_numbers(range(len(shape))[::-1])})"
        if self.layout == "sliced":
            return (
                f"{replace(self, shape=(shape[0] + 1, *shape[1:]), layout='contiguous').code}[1:]"
            )
        count = 1
        for n in shape:
            count *= n
        if self.seed and self.dtype.is_floating_point:
            text = f"torch.randn({shape}, generator=torch.Generator().manual_seed({self.seed}))"
            return text if self.dtype is torch.float32 else f"{text}.to({self.dtype})"
        text = f"torch.arange({self.seed + 1}, {self.seed + 1 + count}, dtype={self.dtype})"
        if self.dtype is torch.bool:
            text = f"(torch.arange({self.seed + 1}, {self.seed + 1 + count}) % 2 == 0)"
        return text if len(shape) == 1 else f"{text}.reshape({shape})"

    def make(self) -> torch.Tensor:
        """The tensor."""
        made: torch.Tensor = eval(self.code, {"torch": torch})
        return made

    def other(self) -> Dense:
        """The same sizes and dtype with other numbers."""
        return replace(self, seed=self.seed + 100)


def _numbers(values: Any) -> str:
    return ", ".join(map(str, values))


def shapes(
    *, min_dims: int = 0, max_dims: int | None = None, min_side: int = 0, max_side: int = 4
) -> s.SearchStrategy[tuple[int, ...]]:
    """Shapes, of up to three dimensions by default; they shrink to few, and to sides of 2, which
    say more than 0 and 1."""
    most = max(3, min_dims) if max_dims is None else max_dims
    return s.lists(
        s.sampled_from(_sides(min_side, max_side)), min_size=min_dims, max_size=most
    ).map(tuple)


def _sides(least: int, most: int) -> list[int]:
    return sorted(range(least, most + 1), key=lambda n: (n < 2, n if n >= 2 else -n))


def all_shapes() -> Iterator[tuple[int, ...]]:
    """Every shape that `shapes` gives by default, and some of four dimensions, in the order of
    shrinking."""
    for dims in range(4):
        yield from product(_sides(0, 4), repeat=dims)
    yield from ((2, 2, 2, 2), (2, 3, 2, 4), (1, 2, 3, 3))


def shapes_of(listed: Iterable[tuple[int, ...]]) -> s.SearchStrategy[tuple[int, ...]]:
    """One of these shapes; each number of dimensions is as likely as the others."""
    groups: dict[int, list[tuple[int, ...]]] = {}
    for shape in listed:
        groups.setdefault(len(shape), []).append(shape)
    return s.sampled_from(list(groups.values())).flatmap(s.sampled_from) if groups else s.nothing()


def dtypes(*, floating: bool = False) -> s.SearchStrategy[torch.dtype]:
    """Dtypes, float32 first."""
    return s.sampled_from(FLOATING if floating else (*FLOATING, torch.int64, torch.bool))


@s.composite
def dense_specs(
    draw: Any,
    count: int,
    shape: s.SearchStrategy[tuple[int, ...]] | None = None,
    dtype: s.SearchStrategy[torch.dtype] | None = None,
) -> tuple[Dense, ...]:
    """``count`` dense tensors of one shape, dtype and layout, for the arguments of a wrapper's
    factory."""
    size = draw(shape if shape is not None else shapes())
    kind = draw(dtype if dtype is not None else dtypes())
    allowed: Sequence[str] = (
        LAYOUTS if len(size) > 1 else LAYOUTS[::2] if len(size) == 1 else LAYOUTS[:1]
    )
    layout = draw(s.sampled_from(allowed))
    seed = draw(s.sampled_from((0, 1, 2)))
    return tuple(
        Dense(tuple(size), kind, layout, seed + 10 * k if k else seed) for k in range(count)
    )


def dense_tensors(
    *,
    shape: s.SearchStrategy[tuple[int, ...]] | None = None,
    dtype: s.SearchStrategy[torch.dtype] | None = None,
) -> s.SearchStrategy[torch.Tensor]:
    """Dense tensors of any layout; the simplest is ``tensor(1.)``."""
    return dense_specs(1, shape, dtype).map(lambda specs: specs[0].make())
