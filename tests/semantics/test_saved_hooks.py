"""Saved-tensor hooks that the region itself sets: what pack returns is saved, and unpack runs right before its use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx as fx

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
hooks = torch.autograd.graph.saved_tensors_hooks
PARTITIONERS = ["min_cut", "default"]
LAYERS, WIDTH, BATCH = 6, 32, 64


def to_int8(t: Tensor) -> tuple[Tensor, Tensor]:
    scale = t.abs().amax() / 127 + 1e-6
    return (t / scale).round().to(torch.int8), scale


def from_int8(packed: tuple[Tensor, Tensor]) -> Tensor:
    return packed[0].to(torch.float32) * packed[1]


def compressed(x: Tensor, weights: list[Tensor]) -> Tensor:
    with hooks(to_int8, from_int8):
        for w in weights:
            x = torch.tanh(x @ w)
    return x


def _inputs(wrapped: bool, batch: int = BATCH) -> tuple[Tensor, list[Any]]:
    generator = torch.Generator().manual_seed(1)
    weights: list[Any] = [torch.randn(WIDTH, WIDTH, generator=generator) / 5 for _ in range(LAYERS)]
    if wrapped:
        weights = [TwoTensor(w, w * 0.5) for w in weights]
    return torch.randn(batch, WIDTH, generator=generator), [w.requires_grad_() for w in weights]


def _parts(t: Any) -> tuple[Tensor, ...]:
    return (t.a, t.b) if isinstance(t, TwoTensor) else (t,)


def _same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    for a, b in zip(_parts(found), _parts(expected), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def _train(function: Callable[..., Any], x: Tensor, weights: list[Any]) -> list[Any]:
    y = function(x, weights)
    y.sum().backward()
    return [y.detach(), *[w.grad for w in weights]]


# ---------------------------------------------------------------------------------------------- memory
def _unpacked_alive(graph: fx.Graph) -> tuple[int, int]:
    """How many unpacked values a program holds at a time at most, and how many there are; by their memory."""
    made = {n for n in graph.nodes if n.meta.get("unpack") and any(not u.meta.get("unpack") for u in n.users)}
    memory = {n.meta["val"].untyped_storage()._cdata for n in made}
    nodes = [n for n in graph.nodes if n.op == "call_function"]
    place = {n: k for k, n in enumerate(nodes)}
    spans = []
    for storage in memory:
        holders = [n for n in nodes if n.meta["val"].untyped_storage()._cdata == storage]
        last = max(place.get(u, len(nodes)) for n in holders for u in [n, *n.users])
        spans.append((min(place[n] for n in holders if n in made), last))
    most = max(sum(start <= k <= last for start, last in spans) for k in range(len(nodes)))
    return most, len(spans)


def _directly_before_use(graph: fx.Graph) -> bool:
    nodes = [n for n in graph.nodes if n.op != "placeholder"]
    place = {n: k for k, n in enumerate(nodes)}
    for n in nodes:
        if n.meta.get("unpack"):
            first = min(place[u] for u in n.users)
            if not all(m.meta.get("unpack") for m in nodes[place[n] : first]):
                return False
    return True


@pytest.mark.parametrize(
    ("partitioner", "dynamic"),
    [
        *((name, False) for name in PARTITIONERS),
        *(pytest.param(n, True, marks=() if n == "min_cut" else pytest.mark.slow) for n in PARTITIONERS),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_what_pack_returns_is_saved(partitioner: str, wrapped: bool, dynamic: bool) -> None:
    region = st.compile(compressed, partitioner=partitioner, dynamic=dynamic)
    for found, expected in zip(_train(region, *_inputs(wrapped)), _train(compressed, *_inputs(wrapped)), strict=True):
        _same(found, expected)
    (made,) = region.specializations
    tensors = [row for row in made.saved if row.is_tensor]
    assert {row.dtype for row in tensors if row.shape} == {"int8"}, "neither what was packed nor what is unpacked"
    eager = _bytes_in_eager(*_inputs(wrapped))
    assert sum(row.bytes for row in tensors) <= eager
    assert made.graphs.backward is not None
    graph = made.graphs.backward.graph
    assert _directly_before_use(graph)
    most, count = _unpacked_alive(graph)
    assert count == (23 if wrapped else 12), "a result is packed twice, as such and as the next input: one is enough"
    assert most <= 2 * (2 if wrapped else 1), "one autograd node of a wrapper is one of each inner tensor"


def _bytes_in_eager(x: Tensor, weights: list[Any]) -> int:
    """What the hooks keep when the function runs eagerly."""
    kept: list[Tensor] = []

    def pack(t: Any) -> Any:
        packed = to_int8(t)
        kept.extend(leaf for part in packed for leaf in _parts(part))
        return packed

    with hooks(pack, from_int8):
        for w in weights:
            x = torch.tanh(x @ w)
    return sum(t.nbytes for t in kept)


def test_without_hooks_four_times_as_much_is_saved() -> None:
    """The measure of the test above can fail."""

    def plain(x: Tensor, weights: list[Tensor]) -> Tensor:
        for w in weights:
            x = torch.tanh(x @ w)
        return x

    rows = []
    for function in (plain, compressed):
        region = st.compile(function)
        _train(region, *_inputs(False))
        # Inputs are free here, but hooks pack them as well.
        rows.append(sum(r.bytes for r in region.specializations[0].saved if r.shape == (BATCH, WIDTH)))
    assert rows == [(LAYERS - 1) * BATCH * WIDTH * 4, (LAYERS + 1) * BATCH * WIDTH]


# ---------------------------------------------------------------------------------------------- kinds of hooks
def _by_index(x: Tensor, weights: list[Tensor]) -> Tensor:
    kept: list[Tensor] = []

    def pack(t: Tensor) -> int:
        kept.append(t.to(torch.bfloat16))
        return len(kept) - 1

    with hooks(pack, lambda k: kept[k].to(torch.float32)):
        for w in weights:
            x = torch.tanh(x @ w)
    return x


def _as_it_is(x: Tensor, weights: list[Tensor]) -> Tensor:
    with hooks(lambda t: t, lambda t: t):
        for w in weights:
            x = torch.tanh(x @ w)
    return x


def _object(x: Tensor, weights: list[Tensor]) -> Tensor:
    class Held:
        def __init__(self, t: Tensor) -> None:
            self.half, self.shape = t.to(torch.float16).view(-1), t.shape

    with hooks(Held, lambda h: h.half.view(h.shape).to(torch.float32)):
        for w in weights:
            x = torch.tanh(x @ w)
    return x


def _on_cpu(x: Tensor, weights: list[Tensor]) -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        for w in weights:
            x = torch.tanh(x @ w)
    return x


def _nested(x: Tensor, weights: list[Tensor]) -> Tensor:
    """The inner pair alone is used inside."""
    with hooks(lambda t: t * 2, lambda t: t / 2):
        for w in weights[:2]:
            x = torch.tanh(x @ w)
        with hooks(to_int8, from_int8):
            for w in weights[2:4]:
                x = torch.tanh(x @ w)
        for w in weights[4:]:
            x = torch.tanh(x @ w)
    return x


def _rounded_at_random(x: Tensor, weights: list[Tensor]) -> Tensor:
    def pack(t: Tensor) -> Tensor:
        return (t * 64 + torch.rand_like(t)).floor().to(torch.int8)

    with hooks(pack, lambda q: q.to(torch.float32) / 64):
        for w in weights:
            x = torch.tanh(x @ w)
    return x


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad * x * 2


def _own_function(x: Tensor, weights: list[Tensor]) -> Tensor:
    with hooks(to_int8, from_int8):
        for w in weights:
            x = Square.apply(torch.tanh(x @ w))
    return x


def _written(x: Tensor, weights: list[Tensor]) -> Tensor:
    """What was packed may be written afterwards."""
    with hooks(lambda t: t.to(torch.float16), lambda t: t.to(torch.float32)):
        for w in weights:
            x = (x @ w).sin()
            x.mul_(2)
    return x


KINDS = [_by_index, _as_it_is, _object, _on_cpu, _nested, _rounded_at_random, _own_function, _written]


@pytest.mark.parametrize(
    ("partitioner", "wrapped"),
    [
        *(("min_cut", wrapped) for wrapped in (False, True)),
        *(pytest.param(n, w, marks=pytest.mark.slow if w else ()) for n in PARTITIONERS[1:] for w in (False, True)),
    ],
)
@pytest.mark.parametrize("function", KINDS, ids=lambda f: f.__name__)
def test_kinds_of_hooks(function: Callable[..., Any], partitioner: str, wrapped: bool) -> None:
    region = st.compile(function, partitioner=partitioner)
    torch.manual_seed(3)
    found = _train(region, *_inputs(wrapped))
    torch.manual_seed(3)
    for a, b in zip(found, _train(function, *_inputs(wrapped)), strict=True):
        _same(a, b)


# ---------------------------------------------------------------------------------------------- further backwards
def _two_results(x: Any, w: Any) -> Any:
    with hooks(to_int8, from_int8):
        return torch.tanh(x @ w), (x @ w).sin()


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_other_tangents(partitioner: str, used: tuple[int, ...]) -> None:
    def gradient(function: Callable[..., Any]) -> Tensor:
        x, (w, *_) = _inputs(False)
        results = function(x, w)
        sum(results[k].sum() for k in used).backward()
        return w.grad  # type: ignore[no-any-return]

    region = st.compile(_two_results, partitioner=partitioner)
    _same(gradient(region), gradient(_two_results))
    made = region.specializations[0].program.backwards
    assert made is not None
    graphs = [b.graph for b in made.compiled if isinstance(b.graph, fx.GraphModule)]
    assert len(graphs) == (0 if len(used) == 2 else 1) and all(_directly_before_use(g.graph) for g in graphs)


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_twice_and_double_backward(partitioner: str) -> None:
    def gradients(function: Callable[..., Any]) -> list[Tensor]:
        x, weights = _inputs(False)
        y = function(x, weights).sum()
        y.backward(retain_graph=True)
        first = [w.grad.clone() for w in weights]
        grads = torch.autograd.grad(y, weights, create_graph=True)
        second = torch.autograd.grad(sum((g * g).sum() for g in grads), weights)
        return [*first, *second]

    for found, expected in zip(
        gradients(st.compile(compressed, partitioner=partitioner)), gradients(compressed), strict=True
    ):
        torch.testing.assert_close(found, expected)


# ---------------------------------------------------------------------------------------------- around the region
def test_hooks_around_and_inside() -> None:
    """Hooks around the call see what is saved at run time, which is what the inner hooks packed."""
    seen: Counter[torch.dtype] = Counter()

    def pack(t: Tensor) -> Tensor:
        assert type(t) in (Tensor, torch.nn.Parameter)
        seen[t.dtype] += t.dim() == 2
        return t

    region = st.compile(compressed)
    for _ in range(2):
        seen.clear()
        x, weights = _inputs(True)
        with hooks(pack, lambda t: t):
            y = region(x, weights)
        y.sum().backward()
        assert seen[torch.int8] == 23 and seen[torch.float32] == 0
        for w, expected in zip(weights, _train(compressed, *_inputs(True))[1:], strict=True):
            _same(w.grad, expected)
