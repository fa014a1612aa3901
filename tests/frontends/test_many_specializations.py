"""A region with many specializations asks the one that served last first."""

from __future__ import annotations

import torch

import subclass_trace as st


def test_the_last_one_is_asked_first():
    region = st.compile(lambda x, n: x + n, backend="eager")
    x = torch.ones(2)
    for n in range(12):
        region(x, n)
    made = region.specializations
    assert region._fast == tuple(s.entry.call for s in made)
    torch.testing.assert_close(region(x, 11), x + 11)
    assert region._fast[0] is made[11].entry.call
    assert sorted(map(id, region._fast)) == sorted(id(s.entry.call) for s in made)
    assert region.specializations == made  # in the order in which they were made
    for n in reversed(range(12)):
        torch.testing.assert_close(region(x, n), x + n)
    assert len(region.specializations) == 12


def test_a_few_stay_in_their_order():
    region = st.compile(lambda x, n: x + n, backend="eager")
    x = torch.ones(2)
    for n in (0, 1, 2, 3, 3, 3):
        region(x, n)
    assert region._fast == tuple(s.entry.call for s in region.specializations)


def test_reset_forgets_them_all():
    region = st.compile(lambda x, n: x + n, backend="eager")
    for n in range(6):
        region(torch.ones(2), n)
    served = region._fast[-1]
    region.reset()
    region._move_to_front(served)  # as a call that was under way would
    assert region._fast == ()
