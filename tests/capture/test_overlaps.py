"""Operations that write to memory which another argument shows: the error or the numbers of eager, or a typed refusal."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.capture.aliasing import may_overlap
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
PLACES = torch.tensor([0, 1])

#: eager refuses these, or gives numbers that depend on the order of reads and writes: they run eagerly
EAGERLY: dict[str, Callable[[Tensor], Any]] = {
    "index_copy_": lambda x: x[:3].index_copy_(0, PLACES, x[2:]),
    "cat into a part": lambda x: torch.cat([x[2:], x[:2]], out=x),
    "mul_ by a part": lambda x: x.mul_(x[:1]),
    "a wrapper's copy_": lambda x: TwoTensor(torch.zeros(4, 4), x).copy_(x.t()),
    "bits of another type": lambda x: x[:3].copy_(x.view(torch.int32)[1:]),
    "an expanded target": lambda x: x[0].expand(4, 4).add_(1),
    "an expanded result": lambda x: torch.add(x, 1, out=x[0].expand(4, 4)),
    "addmm_": lambda x: x.addmm_(x, x),
    "columns that move to the right": lambda x: x[:, 1:].copy_(x[:, :-1]),
    "a sum into a row": lambda x: torch.sum(x, 0, out=x[0]),
}
#: eager computes these as if the source were a copy
ALLOWED: dict[str, Callable[[Tensor], Any]] = {
    "the same tensor": lambda x: (x.mul_(x), x.add_(x.detach()), x.clamp_(x, x + 1)),
    "running sums in place": lambda x: torch.cumsum(x, 0, out=x),
    "sorted in place": lambda x: torch.sort(x, 0, out=(x, torch.empty(0, dtype=torch.long))),
    "other rows": lambda x: (x[0].add_(x[1]), x[::2].copy_(x[1::2])),
    "other columns": lambda x: (x[:, 0].add_(x[:, 1]), x[:, ::2].copy_(x[:, 1::2]), x[:2, :2].mul_(x[2:, 2:])),
    "by a mask": lambda x: x.index_put_((x > 1,), x[0, 0]),
    "filled with an element": lambda x: x.fill_(x[0, 1]),
    "lower triangle": lambda x: torch.tril(x, out=x),
}


def start() -> Tensor:
    return torch.rand(4, 4, generator=torch.Generator().manual_seed(0)) + 0.2


@pytest.mark.filterwarnings("ignore:a call of a region runs eagerly")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", EAGERLY)
def test_eagerly(name: str, dynamic: bool) -> None:
    seen = []
    for call in (EAGERLY[name], st.compile(EAGERLY[name], dynamic=dynamic)):
        x = start()
        try:
            call(x)
        except RuntimeError as error:
            seen.append(str(error))
        seen.append(str(x))
    assert seen[: len(seen) // 2] == seen[len(seen) // 2 :] and not call.specializations  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:a call of a region runs eagerly")
@pytest.mark.parametrize("name", ALLOWED)
def test_as_in_eager(name: str) -> None:
    x, y = start(), start()
    ALLOWED[name](x)
    region = st.compile(ALLOWED[name])
    region(y)
    assert torch.equal(x, y)
    assert region.specializations or name not in ("other rows", "other columns")


def test_which_views_meet() -> None:
    """Two views of one memory, at random, and by counting."""
    numbers = random.Random(0)

    def view() -> Tensor:
        size = [numbers.randint(1, 4) for _ in range(numbers.randint(0, 3))]
        stride = [numbers.choice([0, 1, 2, 3, 5, 12]) for _ in size]
        return torch.arange(140).as_strided(size, stride, numbers.randint(0, 12))

    for _ in range(2000):
        a, other = view(), view()
        b = a.as_strided(other.shape, other.stride(), other.storage_offset())
        common = {*a.flatten().tolist()} & {*b.flatten().tolist()}
        assert may_overlap(a, b) is bool(common)


def test_memory_onto_itself_in_another_shape() -> None:
    def f(x: Tensor) -> Tensor:
        v = x.unsqueeze(0)
        v[:1] = x[:1]
        return x * 2

    region = st.compile(f)
    assert region(torch.ones(1, 3)).sum() == 6 and region.specializations
