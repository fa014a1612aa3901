"""Backwards from several results of one region, one after the other: which of them eager mode allows, and what they give."""

from __future__ import annotations

import functools
import gc
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


def _of_one(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    h = (x * w).exp()
    return h.sin(), h.cos(), w.tanh()


def _of_a_sum(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    h = x + w
    return h.sin(), h.cos()


PROGRAMS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, ...]]] = {
    "disjoint": lambda x, w: ((x * w).sin(), (x @ w).pow(2)),
    "of saved results": lambda x, w: ((x * w).sigmoid(), (x @ w).exp()),
    "of one": _of_one,
    "of a sum": _of_a_sum,
    "without activations": lambda x, w: (x + 1, w + x),
}


def _dense() -> Tensor:
    return torch.randn(3, 3)


def _two() -> Tensor:
    return TwoTensor(_dense(), _dense())  # type: ignore[return-value]


def _run(function: Any, base: Sequence[Tensor], order: Sequence[int]) -> tuple[list[bool], list[Tensor | None]]:
    x, w = (t.detach().clone().requires_grad_() for t in base)
    results, allowed = function(x, w), []
    for k in order:
        try:
            results[k].sum().backward()
            allowed.append(True)
        except RuntimeError as error:
            assert "second time" in str(error)
            allowed.append(False)
    return allowed, [None if t.grad is None else getattr(t.grad, "a", t.grad) for t in (x, w)]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("make", [_dense, _two])
@pytest.mark.parametrize("name", PROGRAMS)
def test_eager_mode_decides_which_are_allowed(name: str, make: Callable[[], Tensor], dynamic: bool) -> None:
    base = make(), make()
    region = st.compile(PROGRAMS[name], dynamic=dynamic)
    for order in itertools.product(range(len(PROGRAMS[name](*base))), repeat=3):
        (allowed, wanted), (now, found) = (_run(f, base, order) for f in (PROGRAMS[name], region))
        assert now == allowed, order
        for a, b in zip(found, wanted, strict=True):
            assert (a is None) is (b is None)
            if a is not None:
                torch.testing.assert_close(a, b)


def _hooked(function: Any, *args: Any) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t.clone()):
        return function(*args)


def _checkpointed(function: Any, *args: Any) -> Any:
    return checkpoint(function, *args, use_reentrant=False)


@pytest.mark.parametrize(
    ("make", "dynamic"),
    [
        (_dense, True),
        (_two, False),
        *(pytest.param(m, d, marks=pytest.mark.slow) for m, d in ((_dense, False), (_two, True))),
    ],
)
@pytest.mark.parametrize("around", [_hooked, _checkpointed])
@pytest.mark.parametrize("name", PROGRAMS)
def test_eager_mode_decides_where_hooks_save_the_activations(
    name: str, around: Callable[..., Any], make: Callable[[], Tensor], dynamic: bool
) -> None:
    base = make(), make()
    region = st.compile(PROGRAMS[name], dynamic=dynamic)
    for order in itertools.product(range(len(PROGRAMS[name](*base))), repeat=3):
        (allowed, wanted), (now, found) = (
            _run(functools.partial(around, f), base, order) for f in (PROGRAMS[name], region)
        )
        assert now == allowed, order
        for a, b in zip(found, wanted, strict=True):
            assert (a is None) is (b is None)
            if a is not None:
                torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", ["disjoint", "of one"])
def test_the_reference_allows_the_same(name: str) -> None:
    base = _dense(), _dense()
    region = st.compile(PROGRAMS[name])
    region(*(t.clone().requires_grad_() for t in base))
    (made,) = region.specializations
    for order in itertools.product(range(len(PROGRAMS[name](*base))), repeat=3):
        runs = (_run(f, base, order) for f in (PROGRAMS[name], lambda *args: made.program(args)))
        (allowed, wanted), (now, found) = runs
        assert now == allowed, order
        assert all(a is b if a is None else torch.allclose(a, b) for a, b in zip(found, wanted, strict=True))


def test_what_hooks_have_packed_goes_after_the_last_backward_or_with_the_results() -> None:
    class Packed:
        def __init__(self, value: Tensor) -> None:
            self.value = value
            rows.append(weakref.ref(self))

    st.compile(torch.sin)(_dense().requires_grad_()).sum().backward()  # what is imported on the way is imported now
    region = st.compile(PROGRAMS["of saved results"])
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            for backwards in (0, 1, 2):
                rows: list[weakref.ref[Packed]] = []
                x, w = _dense().requires_grad_(), _dense().requires_grad_()
                with torch.autograd.graph.saved_tensors_hooks(Packed, lambda p: p.value):
                    results = region(x, w)
                for t in results[:backwards]:
                    t.sum().backward()
                assert rows and all((row() is None) is (backwards == 2) for row in rows)
                results = t = None
                assert all(row() is None for row in rows)
    finally:
        gc.enable()


def test_a_write_in_between_is_noticed() -> None:
    region = st.compile(PROGRAMS["of saved results"])
    for _ in range(3):
        x, w = _dense().requires_grad_(), _dense().requires_grad_()
        a, b = region(x, w)
        a.sum().backward()
        with torch.no_grad():
            b.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            b.sum().backward()


def test_activations_that_wait_go_with_the_results() -> None:
    region = st.compile(PROGRAMS["of saved results"])
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            x, w = _dense().requires_grad_(), _dense().requires_grad_()
            a, b = region(x, w)
            a.sum().backward()
            node, gone = a.grad_fn, weakref.ref(b)
            assert node.kept is not None
            del a, b
            assert gone() is None
            kept = [weakref.ref(t) for t in node.kept]
            del node, x, w
            assert all(t() is None for t in kept)
    finally:
        gc.enable()


def test_after_the_last_one_nothing_is_kept() -> None:
    region = st.compile(PROGRAMS["of saved results"])
    x, w = _dense().requires_grad_(), _dense().requires_grad_()
    a, b = region(x, w)
    node = a.grad_fn
    a.sum().backward()
    b.sum().backward()
    assert node.kept is None and not node.inputs


@pytest.mark.parametrize("middle", [torch.nn.SiLU(), torch.nn.LayerNorm(4)], ids=["silu", "layer_norm"])
def test_gradient_penalty_whose_backward_writes_in_place(middle: torch.nn.Module) -> None:
    """The first trace has no operation in place, a later one of the same region has: saved values keep their names."""
    found = []
    for call in (lambda m: m, st.compile):
        torch.manual_seed(0)
        layers = torch.nn.Sequential(torch.nn.Linear(3, 4), middle, torch.nn.Linear(4, 1))
        x = torch.rand(5, 3).requires_grad_()
        out = call(layers)(x)
        (grad,) = torch.autograd.grad(out, x, torch.ones_like(out), create_graph=True)
        loss = out.mean() + ((grad.norm(2, 1) - 1) ** 2).mean()
        found.append(torch.autograd.grad(loss, [x, *layers.parameters()]))
    for eager, ours in zip(*found, strict=True):
        assert torch.allclose(eager, ours, atol=1e-6)


def test_a_statistic_that_keeps_a_graph_does_not_hinder_the_next_steps() -> None:
    """No gradient comes out of it, so that the backward of the steps before does not run, which could not."""

    class Rounds(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("least", torch.tensor(0.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.least.copy_(torch.minimum(self.least, x.min()))
            return x * 2 + (x.round() - self.least - x).detach()

    runs = []
    for wrap in (lambda m: m, st.compile):
        model = Rounds()
        call, seen = wrap(model), []
        for k in range(4):
            x = torch.randn(3, generator=torch.Generator().manual_seed(k)).requires_grad_()
            call(x).sum().backward()
            seen.append((x.grad.tolist(), model.least.item(), model.least.requires_grad))
        runs.append(seen)
    assert runs[0] == runs[1]


@pytest.mark.parametrize("order", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (0, 0, 1), (2, 1, 0, 2)])
def test_results_behind_which_nothing_is_saved_go_back_again(order: tuple[int, ...]) -> None:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return (x * w).exp(), x + w, w.sum() - x.sum()

    base = torch.ones(3), torch.ones(3)
    (wanted, expected), (allowed, found) = (_run(call, base, order) for call in (f, st.compile(f)))
    assert allowed == wanted and all(map(torch.allclose, found, expected))
