"""Hypothesis strategies for tensors, wrappers and programs over them. Everything shrinks to the smallest, plainest one.

    shapes()  dtypes()            sizes and dtypes
    dense_tensors()               dense tensors: contiguous, transposed, with a storage offset
    wrappers(cls)                 instances of a wrapper class
    nested_wrappers(max_depth=2)  wrappers of wrappers
    op_programs()                 sources of short programs: ``def f(x): ...``
    tangents(y)                   cotangents for an output: dense, of its own class, non-contiguous

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
    (),
    (2,),
    (3,),
    (4,),
    (2, 2),
    (2, 3),
    (2, 4),
    (3, 2),
    (4, 2),
    (4, 4),
    (2, 2, 2),
    (2, 3, 4),
    (1, 4),
    (0,),
    (0, 2),
)
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
            return f"{replace(self, shape=shape[::-1], layout='contiguous').code}.permute({_numbers(range(len(shape))[::-1])})"
        if self.layout == "sliced":
            return f"{replace(self, shape=(shape[0] + 1, *shape[1:]), layout='contiguous').code}[1:]"
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
    """Shapes, of up to three dimensions by default; they shrink to few, and to sides of 2, which say more than 0 and 1."""
    most = max(3, min_dims) if max_dims is None else max_dims
    return s.lists(s.sampled_from(_sides(min_side, max_side)), min_size=min_dims, max_size=most).map(tuple)


def _sides(least: int, most: int) -> list[int]:
    return sorted(range(least, most + 1), key=lambda n: (n < 2, n if n >= 2 else -n))


def all_shapes() -> Iterator[tuple[int, ...]]:
    """Every shape that `shapes` gives by default, and some of four dimensions, in the order of shrinking."""
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
    """``count`` dense tensors of one shape, dtype and layout, for the arguments of a wrapper's factory."""
    size = draw(shape if shape is not None else shapes())
    kind = draw(dtype if dtype is not None else dtypes())
    allowed: Sequence[str] = LAYOUTS if len(size) > 1 else LAYOUTS[::2] if len(size) == 1 else LAYOUTS[:1]
    layout = draw(s.sampled_from(allowed))
    seed = draw(s.sampled_from((0, 1, 2)))
    return tuple(Dense(tuple(size), kind, layout, seed + 10 * k if k else seed) for k in range(count))


def dense_tensors(
    *, shape: s.SearchStrategy[tuple[int, ...]] | None = None, dtype: s.SearchStrategy[torch.dtype] | None = None
) -> s.SearchStrategy[torch.Tensor]:
    """Dense tensors of any layout; the simplest is ``tensor(1.)``."""
    return dense_specs(1, shape, dtype).map(lambda specs: specs[0].make())


def wrappers(target: Any, *, floating: bool = False, **options: Any) -> s.SearchStrategy[torch.Tensor]:
    """Instances of a wrapper class.

    Args:
        target: what `check` takes: a class, a factory, a name, a subject.
        options: how to build it, see `subject.subject_of`.

    Raises:
        OptionError: no instance can be built.
    """
    from .resolve import resolve

    subject = resolve(target, **options)
    if subject.strategy is not None:
        return subject.strategy
    kinds = s.sampled_from(subject.floating if floating else subject.dtypes)
    specs = dense_specs(subject.arity, subject.shapes(), kinds)
    return specs.map(lambda found: _instance(subject, found)).filter(lambda x: x is not None)


def _instance(subject: Any, specs: tuple[Dense, ...]) -> Any:
    try:
        return eval(subject.make.format(*(f"({spec.code})" for spec in specs)), dict(subject.namespace))
    except Exception:  # sizes or dtypes that the class does not have
        return None


@s.composite
def nested_wrappers(draw: Any, *targets: Any, max_depth: int = 2, min_depth: int = 1) -> torch.Tensor:
    """Wrappers of wrappers: at each level one of the given classes (TwoTensor of the zoo by default).

    A class that cannot hold the wrapper below is left out at that level, so the depth may be smaller.
    """
    from .resolve import resolve

    if not targets:
        from ..zoo import TwoTensor

        targets = (TwoTensor,)
    subjects = [resolve(t) for t in targets]
    first = subjects[draw(s.integers(0, len(subjects) - 1))]
    value: torch.Tensor = draw(wrappers(first))
    for _ in range(draw(s.integers(min_depth, max_depth)) - 1):
        outer = subjects[draw(s.integers(0, len(subjects) - 1))]
        names = {**outer.namespace, **{f"_{k}": value.clone() for k in range(outer.arity)}}
        try:
            value = eval(outer.make.format(*(f"_{k}" for k in range(outer.arity))), names)
        except Exception:  # this class does not take wrappers inside
            break
    return value


_STEPS = (
    "{v} * 2", "{v} + 1", "{v} + {w}", "{v} * {w}", "{v}.sin()", "{v}.clone()", "-{v}", "{v}.relu()", "{v}.detach()",
    "{v}.view(-1)", "{v}.unsqueeze(0)", "{v}.transpose(0, -1)", "{v}[:1]", "{v}.sum()", "{v}.mean(-1)",
)  # fmt: skip
_WRITES = ("{v}.mul_(2)", "{v}.add_(1)", "{v}.add_({w})", "{v}.copy_({w})", "{v}.zero_()")


@s.composite
def op_programs(draw: Any, *, max_lines: int = 4, mutate: bool = True, arguments: int = 1) -> str:
    """Source of a function ``f(x)`` (``f(x, y)``) of a few operations; shrinks to ``v0 = x * 2; return v0``.

    A program may make no sense for a class or a size: run it eagerly first, and drop it if it raises.
    """
    names = ["x", "y", "z"][:arguments]
    head = f"def f({', '.join(names)}):"
    lines = []
    for k in range(draw(s.integers(1, max_lines))):
        v, w = (draw(s.sampled_from(names)) for _ in "vw")
        step = draw(s.sampled_from((*_STEPS, *(_WRITES if mutate else ()))))
        text = step.format(v=v, w=w)
        if step in _WRITES:
            lines.append(text)
        else:
            lines.append(f"v{k} = {text}")
            names.append(f"v{k}")
    # integers, so that a program with one name to return is no simpler than one with two
    results = dict.fromkeys(
        names[::-1][k % len(names)] for k in draw(s.lists(s.integers(0, 7), min_size=1, max_size=2))
    )
    return "\n    ".join([head, *lines, f"return {', '.join(results)}"])


def tangents(output: torch.Tensor) -> s.SearchStrategy[torch.Tensor]:
    """Cotangents for an output: one of its own class, a dense one, one that is not contiguous."""
    ones = torch.ones(output.shape, dtype=output.dtype)
    kinds: list[torch.Tensor] = [ones, torch.arange(1, ones.numel() + 1).reshape(ones.shape).to(ones.dtype)]
    if ones.dim() > 1:
        kinds.append(kinds[1].transpose(0, -1).contiguous().transpose(0, -1))
    if hasattr(type(output), "__tensor_flatten__"):
        kinds.append(output.detach().clone())
    return s.sampled_from(kinds)
