"""Results of one region that depend on different inputs: a backward goes where eager's goes, and nowhere else."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
Wrap = Callable[[Any], Any]


def eager(f: Any) -> Any:
    return f


class Upstream(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        Upstream.calls += 1
        return grad


def heads(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    h = (x * w).exp()
    return h * 2, (h * y).sin(), y * 3, x.detach() + 1


def make(wrapper: bool) -> list[Tensor]:
    torch.manual_seed(0)
    rows = [torch.randn(3) for _ in range(3)]
    return [(TwoTensor(t, t.clone()) if wrapper else t).requires_grad_() for t in rows]


@pytest.mark.parametrize("choice", [(0,), (1,), (2,), (0, 2), (0, 1, 2), (2, 1)])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("wrapper", [False, True])
def test_what_lies_before_the_other_inputs_does_not_run(wrapper: bool, dynamic: bool, choice: tuple[int, ...]) -> None:
    seen = []
    for call in (heads, st.compile(heads, dynamic=dynamic)):
        for _ in range(3):  # the second backward of a kind has code of its own
            leaves, log = make(wrapper), []
            for k, leaf in enumerate(leaves):
                leaf.register_hook(lambda g, k=k, log=log: log.append((k, type(g).__name__)))
                leaf.register_post_accumulate_grad_hook(lambda p, k=k, log=log: log.append((k, "accumulated")))
            Upstream.calls = 0
            results = call(*[t * 1 if wrapper else Upstream.apply(t) for t in leaves])
            versions = [(r._version, r.requires_grad, r._is_view(), r.is_leaf) for r in results]
            sum(results[k].sum() for k in choice).backward()
        grads = [None if t.grad is None else (type(t.grad), t.grad.sum().item()) for t in leaves]
        seen.append((versions, Upstream.calls, sorted(log), grads))
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    "upstream", [lambda x: checkpoint(lambda z: z * 1, x, use_reentrant=True), st.compile(lambda x: x * 1)]
)
def test_others_are_not_handed_zeros(upstream: Callable[[Tensor], Tensor]) -> None:
    for wrap in (eager, st.compile):
        a, b = (torch.ones(2, requires_grad=True) for _ in range(2))
        first, _ = wrap(lambda x, y: (x * 2, y * 3))(a, upstream(b))
        first.sum().backward()
        assert b.grad is None and a.grad is not None


def test_two_towers_and_their_heads() -> None:
    for wrap in (eager, st.compile):
        towers = [nn.Linear(2, 2) for _ in range(2)]
        x = torch.ones(2)
        first, second = wrap(lambda p, q: (p.sin(), q.exp()))(*[t(x).tanh() for t in towers])
        first.sum().backward()
        second.sum().backward()
        assert all(t.weight.grad is not None for t in towers)


def test_a_statistic_with_a_history() -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))
            self.register_buffer("mean", torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            h = x * self.weight
            self.mean = 0.9 * self.mean + 0.1 * h.mean(0)
            return h

    runs = []
    for wrap in (eager, st.compile):
        model = Mean()
        region, grads = wrap(model), []
        for _ in range(4):
            region(torch.ones(3, 2)).sum().backward()
            grads.append((model.weight.grad.tolist(), model.mean.tolist()))
        runs.append(grads)
    assert runs[0] == runs[1]


@pytest.mark.parametrize("wrapper", [False, True])
def test_gradients_of_some_inputs_of_some_results(wrapper: bool) -> None:
    runs = []
    for call in (heads, st.compile(heads)):
        leaves = make(wrapper)
        p, q, r, _ = call(*[t * 1 for t in leaves])
        ones = torch.ones_like(p.detach())
        rows = [
            torch.autograd.grad(p, leaves, ones, allow_unused=True, retain_graph=True),
            torch.autograd.grad(q, leaves[1:2], ones, retain_graph=True),
            torch.autograd.grad((q, r), leaves[1:], (ones, ones), retain_graph=True),
            torch.autograd.grad((p, r), leaves, (ones, ones), retain_graph=False),
        ]
        runs.append([None if g is None else g.sum().item() for row in rows for g in row])
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(q, leaves[:1], ones)
    assert runs[0] == runs[1]


def test_backward_that_is_differentiated() -> None:
    runs = []
    for call in (heads, st.compile(heads)):
        leaves = make(False)
        hidden = [t * 1 for t in leaves]
        p, q, r, _ = call(*hidden)
        (of_x, of_y) = torch.autograd.grad((q.sum() + r.sum() ** 2), leaves[:2], create_graph=True)
        (of_x.square().sum() + of_y.square().sum() + p.sum()).backward()
        runs.append([t.grad for t in leaves])
    for a, b in zip(*runs, strict=True):
        torch.testing.assert_close(a, b)


def test_batched_tangents() -> None:
    runs = []
    for call in (heads, st.compile(heads)):
        leaves = make(False)
        _, q, r, _ = call(*leaves)
        rows = torch.eye(3)
        runs.append(torch.autograd.grad((q, r), leaves[1:2], (rows, rows), is_grads_batched=True)[0])
    torch.testing.assert_close(*runs)


def test_nothing_stays_in_memory() -> None:
    leaves = make(False)
    hidden = [t * 1 for t in leaves]
    p, q, r, _ = st.compile(heads)(*hidden)
    p.sum().backward()
    del p
    references = [weakref.ref(t) for t in (*hidden, q, r)]
    del hidden, q, r
    gc.disable()
    try:
        assert [ref() for ref in references] == [None] * 5  # without cycles
    finally:
        gc.enable()


def test_results_that_are_written_and_seen_as_views() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        h, k = x * 2, y.exp()
        v = h.view(-1)
        v.mul_(3)
        return h, v, k, k[0]

    runs = []
    for call in (f, st.compile(f)):
        x, y = (torch.ones(2, 2, requires_grad=True) for _ in range(2))
        h, v, k, row = call(x, y)
        assert v._base is h and row._base is k
        state = (h._version, v._version, k._version)
        v.add_(1)
        (h.sum() + row.sum()).backward()
        runs.append((state, x.grad.tolist(), y.grad.tolist()))
        x.grad = y.grad = None
        h, v, k, row = call(x, y)
        h.sum().backward()
        runs[-1] += (x.grad.tolist(), y.grad)
    assert runs[0] == runs[1]


def test_a_backward_in_the_midst_of_another() -> None:
    runs = []
    for call in (heads, st.compile(heads)):
        leaves = make(False)
        p, q, r, _ = call(*[t * 1 for t in leaves])
        inner: list[Any] = []

        loss = q.sum()

        def look(g: Tensor, of: Tensor = loss, leaves: list[Tensor] = leaves, inner: list[Any] = inner) -> None:
            inner.extend(torch.autograd.grad(of, leaves, retain_graph=True, allow_unused=True))

        r.register_hook(look)
        (p.sum() + q.sum() + r.sum()).backward(retain_graph=True)
        (p.sum() + r.sum()).backward()
        runs.append([t.tolist() for t in (*inner, *[leaf.grad for leaf in leaves])])
    for a, b in zip(*runs, strict=True):
        assert a == pytest.approx(b)


def test_two_threads_go_back_through_one_call() -> None:
    runs = []
    for call in (heads, st.compile(heads)):
        leaves = make(False)
        p, q, r, _ = call(*[t * 1 for t in leaves])
        meet = threading.Barrier(2, timeout=30)
        for t in (p, r):
            t.register_hook(lambda g, meet=meet: (meet.wait(), None)[1])
        found: dict[str, Any] = {}

        def back(name: str, loss: Tensor, found: dict[str, Any] = found, leaves: list[Tensor] = leaves) -> None:
            found[name] = torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True)

        rows = {"first": p.sum() + q.sum(), "second": r.sum() + q.sum()}
        threads = [threading.Thread(target=back, args=row) for row in rows.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        runs.append([None if g is None else g.tolist() for name in rows for g in found[name]])
    for a, b in zip(*runs, strict=True):
        assert (a is None and b is None) or a == pytest.approx(b)


def second_order(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    h = torch.cat([x, y])[:3]
    return h * w, y * y, h.tanh()


@pytest.mark.parametrize("chosen", [(0,), (1,), (2,), (0, 1, 2)])
@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("wrapper", [False, True])
def test_a_backward_that_is_differentiated_goes_where_eagers_goes(
    wrapper: bool, wanted: tuple[int, ...], chosen: tuple[int, ...]
) -> None:
    """Hooks and Functions before inputs that the second derivative does not depend on do not run."""
    seen = []
    for call in (second_order, st.compile(second_order)):
        leaves, log = make(wrapper), []
        for k, leaf in enumerate(leaves):
            leaf.register_hook(lambda g, k=k, log=log: log.append((k, type(g).__name__)))
        Upstream.calls = 0
        results = call(*[t * 1 if wrapper else Upstream.apply(t) for t in leaves])
        ones = torch.ones(3).requires_grad_()
        tangents = [TwoTensor(ones, ones) if wrapper else ones for _ in chosen]
        grads = torch.autograd.grad(
            [results[k] for k in chosen], [leaves[k] for k in wanted], tangents, create_graph=True, allow_unused=True
        )
        log.append((9, "twice"))
        for g in grads:
            if g is not None and g.requires_grad:
                g.sum().backward(retain_graph=True)
        values = [None if t.grad is None else t.grad.sum().item() for t in leaves]
        seen.append((sorted(log), Upstream.calls, values, [g is not None and g.requires_grad for g in grads]))
    assert seen[0] == seen[1]


def test_a_gradient_with_a_history_that_is_a_view_can_be_written() -> None:
    seen = []
    for call in (second_order, st.compile(second_order)):
        leaves = make(False)
        g = torch.autograd.grad(call(*leaves)[0].sum(), leaves[:1], create_graph=True)[0]
        facts = (g._is_view(), g._version, g.is_leaf)
        g.mul_(2)
        g.sum().backward()
        seen.append((facts, g.tolist(), [None if t.grad is None else t.grad.tolist() for t in leaves]))
    assert seen[0] == seen[1]
