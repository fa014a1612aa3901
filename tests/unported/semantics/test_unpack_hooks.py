"""Unpack hooks of saved-tensor hooks inside a region are called in each backward, where they do more than to compute."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
hooks = torch.autograd.graph.saved_tensors_hooks
Case = tuple[Callable[[Tensor], Tensor], Callable[[], Any], Callable[[], None]]


def _body(x: Tensor) -> Tensor:
    return (x.sin() * x).exp() * x


def _nothing() -> None:
    """Between forward and backward."""


def _as_it_is(t: Tensor) -> Tensor:
    return t


def _of(pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        with hooks(pack, unpack):
            return _body(x)

    return function


def counter() -> Case:
    seen = [0]

    def unpack(t: Tensor) -> Tensor:
        seen[0] += 1
        return t * 1

    return _of(_as_it_is, unpack), lambda: seen, _nothing


def attribute() -> Case:
    class State:
        packed = unpacked = 0

        def pack(self, t: Tensor) -> tuple[Tensor, torch.dtype]:
            self.packed += 1
            return t.to(torch.bfloat16), t.dtype

        def unpack(self, packed: tuple[Tensor, torch.dtype]) -> Tensor:
            self.unpacked += 1
            return packed[0].to(packed[1])

    state = State()
    return _of(state.pack, state.unpack), lambda: (state.packed, state.unpacked), _nothing


def log_of_values() -> Case:
    """In the order in which autograd unpacks."""
    rows: list[list[float]] = []

    def unpack(t: Any) -> Tensor:
        rows.append(getattr(t, "a", t).tolist())
        return t  # type: ignore[no-any-return]

    return _of(_as_it_is, unpack), lambda: rows, _nothing


def printing() -> Case:
    out = io.StringIO()

    def unpack(t: Tensor) -> Tensor:
        print("unpacked", file=out)
        return t

    return _of(_as_it_is, unpack), out.getvalue, _nothing


def number_that_changes() -> Case:
    scale = [1.0]

    def change() -> None:
        scale[0] += 0.5

    return _of(_as_it_is, lambda t: t * scale[0]), lambda: scale, change


def tensor_that_changes() -> Case:
    scale = torch.ones(3)

    def change() -> None:
        scale.add_(0.5)

    return _of(_as_it_is, lambda t: t * scale), scale.tolist, change


def tensor_that_is_replaced() -> Case:
    scale = [torch.ones(3)]

    def change() -> None:
        scale[0] = scale[0] + 0.5

    return _of(_as_it_is, lambda t: t * scale[0]), lambda: scale[0].tolist(), change


def random_numbers() -> Case:
    return _of(_as_it_is, lambda t: t * (torch.rand(()) + 1)), _nothing, _nothing


def random_numbers_and_a_counter() -> Case:
    seen = [0]

    def unpack(t: Tensor) -> Tensor:
        seen[0] += 1
        return t * (torch.rand(()) + 1)

    return _of(_as_it_is, unpack), lambda: seen, _nothing


def own_error() -> Case:
    """It reads the counter that it moves on."""
    seen = [0]

    def unpack(t: Tensor) -> Tensor:
        seen[0] += 1
        if seen[0] > 14:
            raise KeyError("enough")
        return t

    return _of(_as_it_is, unpack), lambda: seen, _nothing


def list_of_the_region() -> Case:
    def function(x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        with hooks(lambda t: kept.append(t * 2), lambda _: kept.pop() / 2):
            return x.sin().exp()

    return function, _nothing, _nothing


def object_of_the_region() -> Case:
    class Store:
        def __init__(self) -> None:
            self.number, self.items = 0, dict[int, Tensor]()

        def pack(self, t: Tensor) -> int:
            self.number += 1
            self.items[self.number] = t * 2
            return self.number

        def unpack(self, key: int) -> Tensor:
            return self.items.pop(key) / 2

    def function(x: Tensor) -> Tensor:
        store = Store()
        with hooks(store.pack, store.unpack):
            return _body(x)

    return function, _nothing, _nothing


def packed_object() -> Case:
    class Held:
        def __init__(self, t: Tensor) -> None:
            self.tensor, self.used = t, 0

    def unpack(held: Held) -> Tensor:
        held.used += 1
        return held.tensor * held.used

    return _of(Held, unpack), _nothing, _nothing


CASES = [
    counter,
    attribute,
    log_of_values,
    printing,
    number_that_changes,
    tensor_that_changes,
    tensor_that_is_replaced,
    random_numbers,
    random_numbers_and_a_counter,
    own_error,
    list_of_the_region,
    object_of_the_region,
    packed_object,
]


def _train(case: Callable[[], Case], call: Callable[..., Any], wrapped: bool, twice: bool) -> list[Any]:
    function, state, between = case()
    region, rows = call(function), []
    for k in range(3):
        torch.manual_seed(k)
        x: Any = torch.linspace(0.1, 0.9, 3)
        x = (TwoTensor(x, x + 1) if wrapped else x).requires_grad_()
        error = None
        try:
            y = region(x).sum()
            between()
            y.backward(retain_graph=twice)
            if twice:
                y.backward()
        except KeyError as raised:
            error = str(raised)
        rows.append((error, str(state()), [] if x.grad is None else [x.grad.a, x.grad.b] if wrapped else [x.grad]))
    return rows


def _same(ours: tuple[Any, ...], eager: tuple[Any, ...]) -> None:
    assert ours[:2] == eager[:2] and len(ours[2]) == len(eager[2])
    for a, b in zip(ours[2], eager[2], strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("partitioner", ["min_cut", "default"])
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda f: f.__name__)
def test_as_in_eager_mode(case: Callable[[], Case], wrapped: bool, partitioner: str) -> None:
    found = _train(case, lambda f: st.compile(f, partitioner=partitioner), wrapped, False)
    for ours, eager in zip(found, _train(case, _as_it_is, wrapped, False), strict=True):
        _same(ours, eager)


@pytest.mark.parametrize("case", CASES[:10], ids=lambda f: f.__name__)
def test_in_each_of_two_backwards(case: Callable[[], Case]) -> None:
    for ours, eager in zip(_train(case, st.compile, False, True), _train(case, _as_it_is, False, True), strict=True):
        _same(ours, eager)


def test_a_number_that_changes_costs_few_traces() -> None:
    scale, traced = [1.0], []
    function = _of(_as_it_is, lambda t: t * scale[0])
    region = st.compile(lambda x: (traced.append(1), function(x))[1])
    for k in range(6):
        x = torch.ones(3, requires_grad=True)
        y = region(x)
        scale[0] += 1
        y.sum().backward()
    assert len(region.specializations) <= 2


def test_what_only_computes_is_part_of_the_graph() -> None:
    region = st.compile(_of(lambda t: t.to(torch.bfloat16), lambda t: t.to(torch.float32)))
    region(torch.ones(3, requires_grad=True)).sum().backward()
    (made,) = region.specializations
    assert made.graphs.backward is not None
    assert "user_code" not in made.graphs.backward.code


def _refused(pack: Any, unpack: Any, **kinds: Any) -> str:
    region = st.compile(_of(pack, unpack))
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(st.SubclassTraceError) as raised:
        torch.autograd.grad(region(x).sum(), x, **kinds)
    assert "test_unpack_hooks" in str(raised.value.path)
    return raised.value.got


def test_refusals() -> None:
    seen = [0]

    def count(t: Tensor) -> Tensor:
        seen[0] += 1
        return t

    def count_and_write(t: Tensor) -> Tensor:
        seen[0] += 1
        return t.mul_(1)

    def count_and_pop(kept: list[Tensor]) -> Tensor:
        seen[0] += 1
        return kept.pop()

    assert "create_graph=True" in _refused(_as_it_is, count, create_graph=True)
    assert "in place" in _refused(lambda t: t * 1, count_and_write)
    assert "what the region itself has made" in _refused(lambda t: [t], count_and_pop)
    assert seen == [0]


@pytest.mark.parametrize("other", [lambda t: t.to(torch.float64), lambda t: t[:2], lambda t: None])
def test_another_kind_of_tensor_in_a_later_backward_is_refused(other: Any) -> None:
    seen = [0]

    def unpack(t: Tensor) -> Any:
        seen[0] += 1
        return t if seen[0] <= 12 else other(t)

    region = st.compile(_of(_as_it_is, unpack))
    for _ in range(2):
        region(torch.ones(3, requires_grad=True)).sum().backward()
    y = region(torch.ones(3, requires_grad=True)).sum()
    with pytest.raises(st.SubclassTraceError, match="returns something else"):
        y.backward()
