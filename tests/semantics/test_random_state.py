"""The state of random generators in a region: drawing is as in eager, setting and reading it is refused."""

from __future__ import annotations

import types

import pytest
import torch
from torch.random import fork_rng, get_rng_state, set_rng_state

import subclass_trace as st

G = torch.Generator().manual_seed(5)
HIDDEN = types.SimpleNamespace(a=types.SimpleNamespace(b=types.SimpleNamespace(c=torch.Generator().manual_seed(6))))
X = torch.ones(3)


def _forked(x):
    with torch.random.fork_rng():
        return x * torch.rand(3)


def _forked_by_name(x):
    with fork_rng(devices=[]):
        return x * torch.rand(3)


REFUSED = {
    "made": lambda x: x * torch.rand(3, generator=torch.Generator().manual_seed(3)),
    "seeded": lambda x: (G.manual_seed(3), x * torch.rand(3, generator=G))[1],
    "seeded, hidden": lambda x: (HIDDEN.a.b.c.manual_seed(3), x * torch.rand(3, generator=HIDDEN.a.b.c))[1],
    "forked": _forked,
    "forked by name": _forked_by_name,
    "restored": lambda x: (state := get_rng_state(), x * torch.rand(3), set_rng_state(state))[1],
    "restored, explicit": lambda x: (state := G.get_state(), x * torch.rand(3, generator=G), G.set_state(state))[1],
    "seed": lambda x: (torch.seed(), x * torch.rand(3))[1],
    "manual_seed": lambda x: (torch.manual_seed(3), x * torch.rand(3))[1],
    "default seeded": lambda x: (torch.default_generator.manual_seed(3), x * torch.rand(3))[1],
    "cloned": lambda x: x * torch.rand(3, generator=G.clone_state()),
}


@pytest.mark.parametrize("f", REFUSED.values(), ids=REFUSED)
def test_setting_or_reading_the_state_is_refused(f) -> None:
    before, explicit = torch.get_rng_state(), G.get_state()
    with pytest.raises(st.UnsupportedError, match="the region (calls|draws)") as caught:
        st.compile(f)(X)
    assert caught.value.fix
    assert "test_random_state.py" in caught.value.path
    assert torch.get_rng_state().equal(before) and G.get_state().equal(explicit)
    assert torch.initial_seed() == torch.default_generator.initial_seed()  # nothing stands in for it any more


@pytest.mark.parametrize("seed", [torch.cuda.manual_seed, torch.xpu.manual_seed_all], ids=["cuda", "xpu"])
def test_what_seeds_one_device_runs_eagerly(seed) -> None:
    """Dynamo's graph seeds while it is traced, and not when it runs."""
    with pytest.warns(UserWarning, match=r"the region calls torch\..*random\.manual_seed"):
        region = st.compile(lambda x: (seed(3), x * 2)[1], frontend="auto")
        assert region(X).equal(X * 2) and not region.specializations


@pytest.mark.parametrize("where", ["cell", "hidden", "argument", "default"])
def test_drawing_from_a_generator_made_outside_is_as_in_eager(where: str) -> None:
    g = torch.default_generator if where == "default" else torch.Generator()
    box = types.SimpleNamespace(a=types.SimpleNamespace(b=types.SimpleNamespace(c=g)))
    f = {
        "cell": lambda x: x * torch.rand(3, generator=g) + torch.rand(3),
        "default": lambda x: x * torch.rand(3, generator=torch.default_generator),
        "hidden": lambda x: x * torch.rand(3, generator=box.a.b.c),
        "argument": lambda x, h: torch.empty_like(x).uniform_(generator=h),
    }[where]
    args = (X, g) if where == "argument" else (X,)

    def run(call):
        torch.manual_seed(1)
        g.manual_seed(7)
        return [call(*args) for _ in range(3)]

    region = st.compile(f)
    for got, want in zip(run(region), run(f), strict=True):
        assert got.equal(want)
    assert len(region.specializations) == 1
