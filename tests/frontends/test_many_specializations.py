"""A region with many specializations asks the one that served last first."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

import subclass_trace as st
from subclass_trace.zoo import TwoTensor


def test_the_last_one_is_asked_first():
    region = st.compile(lambda x, n: x + n, backend="eager", automatic_dynamic=False)
    x = torch.ones(2)
    for n in range(12):
        region(x, n)
    made = region.specializations
    assert region._Region__fast == tuple(s.entry.call for s in made)
    torch.testing.assert_close(region(x, 11), x + 11)
    assert region._Region__fast[0] is made[11].entry.call
    assert sorted(map(id, region._Region__fast)) == sorted(id(s.entry.call) for s in made)
    assert region.specializations == made  # in the order in which they were made
    for n in reversed(range(12)):
        torch.testing.assert_close(region(x, n), x + n)
    assert len(region.specializations) == 12


def test_a_few_stay_in_their_order():
    region = st.compile(lambda x, n: x + n, backend="eager", automatic_dynamic=False)
    x = torch.ones(2)
    for n in (0, 1, 2, 3, 3, 3):
        region(x, n)
    assert region._Region__fast == tuple(s.entry.call for s in region.specializations)


def test_reset_forgets_them_all():
    region = st.compile(lambda x, n: x + n, backend="eager", automatic_dynamic=False)
    for n in range(6):
        region(torch.ones(2), n)
    served = region._Region__fast[-1]
    region.reset()
    region._Region__move_to_front(served)  # as a call that was under way would
    assert region._Region__fast == ()


class Checked(torch.Tensor):
    """Its outer size is in its context, and rebuilding it compares the two: no size of it can stay a symbol."""

    @staticmethod
    def __new__(cls, a: torch.Tensor) -> Checked:
        made = torch.Tensor._make_wrapper_subclass(cls, a.shape, strides=a.stride(), dtype=a.dtype)
        made.a = a
        return made

    def __tensor_flatten__(self):
        return ["a"], (self.shape,)

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Any], context: Any, size: Any, stride: Any) -> Checked:
        assert context == (torch.Size(size),)
        return Checked(inner["a"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = tree_map(lambda t: t.a if isinstance(t, Checked) else t, (args, kwargs or {}))
        return tree_map(Checked, func(*args, **kwargs))


def test_a_size_that_became_a_constant_does_not_specialize_for_ever():
    region = st.compile(lambda x: x.sin() * 2, dynamic=True)
    for n in (3, 3, 5, 5, 3):
        x = Checked(torch.linspace(0, 1, n))
        assert torch.equal(region(x).a, x.a.sin() * 2)
    assert len(region.specializations) == 2


def _tail(n: int) -> torch.Tensor:
    return torch.arange(3.0 * n).reshape(3, n)[:, -8:]


PARTS = {
    "dense": _tail,
    "inner": lambda n: TwoTensor(_tail(n), _tail(n)),
    "outer": lambda n: TwoTensor(torch.ones(3, n), torch.ones(3, n))[:, -8:],
    "permuted": lambda n: torch.arange(24.0 * n).reshape(8, n, 3)[:, 2:5].permute(2, 0, 1),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_a_growing_buffer_need_one_more_specialization(name) -> None:
    """Their sizes stay, their strides are those of the buffer."""

    def f(x):
        return x.sin().sum(0), x[0], x * x.stride(0)

    region = st.compile(f)
    for n in (20, 21, 22, 30, 40):
        for want, got in zip(f(PARTS[name](n)), region(PARTS[name](n)), strict=True):
            assert str(want) == str(got) and want.stride() == got.stride()
    assert len(region.specializations) == 2, region.explain()
