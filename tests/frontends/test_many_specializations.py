"""A region with many specializations asks the one that served last first."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

import subclass_trace as st


def test_the_last_one_is_asked_first():
    region = st.compile(lambda x, n: x + n, backend="eager", dynamic=False)
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
    region = st.compile(lambda x, n: x + n, backend="eager", dynamic=False)
    x = torch.ones(2)
    for n in (0, 1, 2, 3, 3, 3):
        region(x, n)
    assert region._Region__fast == tuple(s.entry.call for s in region.specializations)


def test_reset_forgets_them_all():
    region = st.compile(lambda x, n: x + n, backend="eager", dynamic=False)
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
