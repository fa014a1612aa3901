"""Modules of TorchScript in a region: their tensors are inputs, as those of other modules are."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scripting is deprecated
        yield


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.k = nn.Linear(3, 3), nn.BatchNorm1d(3), 2
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: Tensor, scale: float = 2.0) -> Tensor:
        if self.training:
            self.seen = self.seen + x.sum(0)
        return self.norm(self.layer(x)) * scale * self.k + self.seen

    @torch.jit.export
    def other(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.k


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        return x * self.n


def pair() -> tuple[Any, Any]:
    torch.manual_seed(0)
    net = Net()
    return torch.jit.script(net), torch.jit.script(copy.deepcopy(net))


def check(eager: Any, ours: Any, mine: Any, other: Any, x: Tensor) -> None:
    results = [f(x) for f in (eager, ours)]
    torch.testing.assert_close(results[0], results[1])
    torch.testing.assert_close(dict(mine.named_buffers()), dict(other.named_buffers()))
    for r in results:
        r.sum().backward()
    grads = [{n: p.grad for n, p in m.named_parameters()} for m in (mine, other)]
    torch.testing.assert_close(grads[0], grads[1])


CALLS: dict[str, Callable[[Any], Callable[[Tensor], Tensor]]] = {
    "itself": lambda m: m,
    "inside of a function": lambda m: lambda x: m(x, scale=3.0) + 1,
    "inside of a module": lambda m: nn.Sequential(nn.Tanh(), m),
    "another method": lambda m: lambda x: m.other(x),
    "an inner module": lambda m: lambda x: m.layer(x) + m.norm(x),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_scripted_module(name: str) -> None:
    mine, other = pair()
    eager, region = CALLS[name](mine), st.compile(CALLS[name](other))
    for step in range(4):
        check(eager, region, mine, other, torch.randn(4, 3))
        with torch.no_grad():
            for m in (mine, other):
                m.layer.weight += step
    assert len(region.specializations) == 1
    for m in (mine, other):
        m.k = 5
    check(eager, region, mine, other, torch.randn(4, 3))
    for m in (mine, other):
        m.eval()
    check(eager, region, mine, other, torch.randn(4, 3))


def test_a_traced_module() -> None:
    x = torch.randn(4, 3)
    traced = torch.jit.trace(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), x)
    region = st.compile(lambda x: traced(x) * 2)
    for _ in range(2):
        torch.testing.assert_close(region(x), traced(x) * 2)
    with torch.no_grad():
        next(traced.parameters()).mul_(3)
    torch.testing.assert_close(region(x), traced(x) * 2)


def test_a_wrapper_goes_through_scripted_code() -> None:
    scripted = torch.jit.script(nn.Linear(3, 3))
    x = TwoTensor(torch.randn(4, 3), torch.randn(4, 3))
    torch.testing.assert_close(st.compile(nn.Tanh())(x).a, torch.tanh(x.a))
    torch.testing.assert_close(st.compile(lambda x: scripted(x).sin())(x).a, scripted(x.a).sin())


def test_what_is_no_tensor_and_what_depends_on_values_is_refused() -> None:
    counts = torch.jit.script(Counts())
    with pytest.raises(st.UnsupportedError, match="assigns to its attribute 'n'") as caught:
        st.compile(lambda x: counts(x) + 1)(torch.ones(2))
    assert "counts.n" in str(caught.value) and counts.n == 0

    class Branches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if bool(x.sum() > 0):
                return x * 2
            return x

    branches = torch.jit.script(Branches())
    with pytest.raises(st.UnsupportedError, match="scripted module cannot be traced") as caught:
        st.compile(nn.Sequential(branches))(torch.ones(2))
    assert "self[0]" in str(caught.value)
    assert branches(torch.ones(2)).tolist() == [2.0, 2.0]


class Reads:
    def __init__(self) -> None:
        self.w = torch.randn(3, 3, requires_grad=True)


W, READS, RUNNING = torch.randn(3, 3, requires_grad=True), Reads(), torch.ones(3)
LAYER = nn.Parameter(torch.randn(3, 3))


def _product(x: Tensor, w: Tensor, k: float = 2.0) -> Tensor:
    return torch.mm(x, w).relu() * k


def _products(x: Tensor, ws: list[Tensor]) -> Tensor:
    for w in ws:
        x = torch.mm(x, w).relu()
    return x


def _second(x: Tensor, w: Tensor) -> Tensor:
    return w


def _count(x: Tensor, v: Tensor) -> Tensor:
    v.add_(1)
    return x * v


def _branch(x: Tensor, w: Tensor) -> Tensor:
    if bool(x.sum() > 0):
        return torch.mm(x, w)
    return x


class Takes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        return torch.mm(self.layer(x), w)


def _without_grad(s: Any) -> Callable[[Tensor], Any]:
    def run(x: Tensor) -> Tensor:
        with torch.no_grad():
            return s(x, W)

    return run


SCRIPTED: dict[str, tuple[Any, Callable[[Any], Callable[[Tensor], Any]]]] = {
    "a global": (_product, lambda s: lambda x: s(x, W)),
    "a parameter": (_product, lambda s: lambda x: s(x, LAYER, 3.0)),
    "an attribute": (_product, lambda s: lambda x: s(x, READS.w)),
    "by keyword": (_product, lambda s: lambda x: s(x=x, w=W)),
    "in a list": (_products, lambda s: lambda x: s(x, [W, LAYER])),
    "without gradients": (_product, _without_grad),
    "returned": (_second, lambda s: lambda x: s(x, W)),
    "written": (_count, lambda s: lambda x: s(x, RUNNING)),
    "differentiated inside": (_product, lambda s: lambda x: torch.autograd.grad(s(x, W).sum(), W)[0]),
    "by a module": (Takes, lambda s: lambda x: s(x, W)),
}


@pytest.mark.parametrize("name", SCRIPTED)
def test_scripted_code_is_handed_a_tensor_that_is_closed_over(name: str) -> None:
    made, use = SCRIPTED[name]
    torch.manual_seed(0)
    f = use(torch.jit.script(made() if made is Takes else made))
    region = st.compile(f)
    for _ in range(3):
        x, found = torch.randn(2, 3), []
        for call in (f, region):
            RUNNING.fill_(1.0)
            before, out = RUNNING._version, call(x)
            leaves = (W, LAYER, READS.w)
            grads = torch.autograd.grad(out.sum(), leaves, allow_unused=True) if out.grad_fn is not None else ()
            row: list[Any] = [None if g is None else g.tolist() for g in grads]
            row += [out.tolist(), out is W, out.requires_grad, RUNNING.tolist(), RUNNING._version - before]
            found.append(row)
        assert found[0] == found[1]
    assert len(region.specializations) == 1


def test_a_scripted_function_that_branches_on_values_is_refused() -> None:
    branch = torch.jit.script(_branch)
    with pytest.raises(st.UnsupportedError, match="scripted function '_branch' cannot be traced") as caught:
        st.compile(lambda x: branch(x, W) + 1)(torch.ones(2, 3))
    assert "test_scripted_modules.py" in str(caught.value)
    assert branch(-torch.ones(2, 3), W).tolist() == [[-1.0] * 3] * 2
