"""Objects in contexts that any program reads and changes."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from objects_in_contexts import Quantised, sine

import subclass_trace as st

Tensor = torch.Tensor


class Part:
    kind = 1.0

    def __init__(self) -> None:
        self.n, self.step = 1.0, 0

    @property
    def twice(self) -> float:
        return self.n * 2

    def method(self) -> float:
        return self.n + self.kind


class Loose(Part):
    def __getattr__(self, name: str) -> float:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.n + len(name)


class Tree(Part):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.items = Part(), Loose(), [Part(), 2.0, 3]
        self.table: dict[str, Any] = {"k": 1.0, "o": Part()}
        self.alias = self.left

    def use(self) -> float:
        return sum(float(read(self)) for read in type(self).reads)

    reads: tuple[Callable[[Any], Any], ...] = ()


_READERS: tuple[Callable[[Any], Any], ...] = (
    lambda q: q.n,
    lambda q: q.left.n,
    lambda q: q.right.n,
    lambda q: q.left.twice,
    lambda q: q.right.method(),
    lambda q: q.right.unknown,
    lambda q: getattr(q.left, "extra", 5.0),
    lambda q: hasattr(q, "extra"),
    lambda q: q.items[0].n,
    lambda q: sum(v for v in q.items if isinstance(v, (int, float))),
    lambda q: q.table["k"],
    lambda q: q.table["o"].n,
    lambda q: len(q.table),
    lambda q: len(vars(q.left)),
    lambda q: q.alias.n,
    lambda q: q.alias is q.left,
    lambda q: q.left.kind,
    lambda q: type(q.left) is Part,
    lambda q: copy.copy(q.right).n,
)


_CHANGES: tuple[Callable[[Any], Any], ...] = (
    lambda q: setattr(q, "step", q.step + 1),
    lambda q: setattr(q, "n", q.n + 1),
    lambda q: setattr(q.left, "n", q.left.n + 1),
    lambda q: setattr(q.left, "step", q.left.step + 1),
    lambda q: setattr(q.right, "n", q.right.n + 1),
    lambda q: setattr(q.left, "extra", 2.0),
    lambda q: vars(q.left).pop("extra", None),
    lambda q: setattr(q, "extra", 2.0),
    lambda q: setattr(q.items[0], "n", 7.0),
    lambda q: q.items.append(4.0),
    lambda q: q.items.__setitem__(1, q.items[1] + 1),
    lambda q: q.table.__setitem__("k", q.table["k"] + 1),
    lambda q: q.table.__setitem__("new", 1.0),
    lambda q: setattr(q.table["o"], "n", 9.0),
    lambda q: setattr(q, "left", Loose()),
    lambda q: setattr(q, "alias", q.right),
    lambda q: setattr(q, "left", q.alias),
    lambda q: setattr(q, "table", dict(q.table)),
    lambda q: setattr(q.left, "kind", 3.0),
    lambda q: setattr(q.right, "unknown", 3.0),
    lambda q: setattr(q.left, "__class__", Loose),
)


@pytest.mark.parametrize("seed", range(8))
def test_any_reads_and_changes(seed: int) -> None:
    chance = random.Random(seed)

    class Program(Tree):
        reads = tuple(chance.sample(_READERS, chance.randint(1, 4)))

    q, region = Program(), st.compile(sine)
    for _ in range(7):
        found, expected = region(Quantised(torch.ones(1), q)), sine(Quantised(torch.ones(1), q))
        assert found.a.item() == expected.a.item()
        for change in chance.sample(_CHANGES, chance.randint(1, 2)):
            change(q)


class _LeavesOut:
    """Equal by ``n`` alone; its operations read ``scale``."""

    def __init__(self, scale: float, n: int) -> None:
        self.scale, self.n = scale, n

    def __eq__(self, other: Any) -> bool:
        return type(other) is _LeavesOut and self.n == other.n

    __hash__ = None  # type: ignore[assignment]


def test_what_was_read_counts_though_the_class_calls_others_equal() -> None:
    f = lambda x: x * x.q.scale
    compiled = st.compile(f)
    changed = _LeavesOut(2.0, 1)
    for c in (changed, _LeavesOut(2.0, 1), _LeavesOut(3.0, 1), changed):
        x = Quantised(torch.ones(2), c)
        assert torch.equal(compiled(x).a, f(x).a)
        changed.scale += 1
        assert torch.equal(compiled(x).a, f(x).a)
