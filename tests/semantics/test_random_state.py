"""Random generators in a region: drawing is as in eager, whatever the memory layout; setting and reading them is refused."""

from __future__ import annotations

import types
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.random import fork_rng, get_rng_state, set_rng_state

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

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


# -------------------------------------------- eager's numbers whatever the memory layout, and put where eager puts them
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5),
    "bernoulli_": lambda x: (x * 1).bernoulli_(0.3),
    "bernoulli_ of a tensor": lambda x: (x * 1).bernoulli_(torch.full(x.shape, 0.3)),
    "uniform_": lambda x: (x * 1).uniform_(),
    "normal_": lambda x: (x * 1).normal_(),
    "exponential_": lambda x: (x * 1).exponential_(),
    "rand_like": torch.rand_like,
}
LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "transposed": lambda: torch.rand(2, 3, 4).transpose(1, 2),
    "permuted": lambda: torch.rand(2, 3, 4).permute(2, 0, 1),
    "with holes": lambda: torch.rand(2, 3, 8)[:, :, ::2],
    "channels last": lambda: torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_draws_in_order_of_memory(name: str, layout: str) -> None:
    function, x = FUNCTIONS[name], LAYOUTS[layout]()
    found = []
    for call in (lambda f: f, st.compile):
        compiled = call(function)
        torch.manual_seed(0)
        found.append(compiled(x))
    torch.testing.assert_close(*found, rtol=0, atol=0)
    assert found[0].stride() == found[1].stride()


def test_the_mask_of_a_transposed_wrapper() -> None:
    found = []
    for call in (lambda f: f, st.compile):
        x = TwoTensor(torch.ones(3, 4).t(), torch.ones(3, 4).t()).requires_grad_()
        torch.manual_seed(0)
        out = call(lambda x: F.dropout(x, 0.5))(x)
        (grad,) = torch.autograd.grad(out, x, torch.ones_like(out))
        found.append([out.a, out.b, grad.a, grad.b])
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dynamic", [False, True])
def test_dropout_rounds_as_in_eager(dtype: torch.dtype, dynamic: bool) -> None:
    f = lambda x: torch.nn.functional.dropout(torch.nn.functional.gelu(x), 0.1)
    compiled = st.compile(f, dynamic=dynamic or None)
    for rows in (8, 5):
        found = []
        for fn in (f, compiled):
            torch.manual_seed(0)
            x = torch.randn(rows, 16).to(dtype).requires_grad_()
            y = fn(x)
            y.square().sum().backward()
            found.append((y.detach(), x.grad, torch.rand(1)))
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dropout_of_a_symbolic_size_has_the_bits_of_eager_mode(dtype: torch.dtype) -> None:
    region = st.compile(lambda x: torch.nn.functional.dropout(x, 0.15))
    for n in (100, 200, 300):
        x = torch.randn(n, dtype=dtype, requires_grad=True)
        seen = []
        for f in (region, lambda x: torch.nn.functional.dropout(x, 0.15)):
            torch.manual_seed(0)
            out = f(x)
            seen.append([out, *torch.autograd.grad(out.sum(), x)])
        torch.testing.assert_close(*seen, rtol=0, atol=0)
    assert len(region.specializations) == 2
