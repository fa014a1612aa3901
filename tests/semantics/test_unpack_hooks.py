"""Hooks inside a region, of saved tensors and others: what only computes is traced, a change of Python state is refused."""

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


def hook_of_an_object() -> Case:
    class Counts:
        seen = 0

        def hook(self, gradient: Tensor) -> Tensor:
            self.seen += 1
            return gradient * 2

    counts = Counts()

    def function(x: Tensor) -> Tensor:
        y = x * 2
        y.register_hook(counts.hook)
        return y.sin()

    return function, lambda: counts.seen, _nothing


def hook_of_an_object_of_the_region() -> Case:
    class Counts:
        seen = 0

        def hook(self, gradient: Tensor) -> None:
            self.seen += 1

    def function(x: Tensor) -> Tensor:
        y, counts = x * 2, Counts()
        y.register_hook(lambda gradient: gradient * counts.seen)
        y.register_hook(counts.hook)
        return y.sin()

    return function, _nothing, _nothing


def hook_of_a_module() -> Case:
    class Counts:
        seen = 0

        def hook(self, module: Any, inputs: Any, outputs: Any) -> None:
            self.seen += 1

    counts, module = Counts(), torch.nn.Linear(3, 3)
    module.register_full_backward_hook(counts.hook)
    return module, lambda: counts.seen, _nothing


RIGHT = [number_that_changes, tensor_that_changes, tensor_that_is_replaced, random_numbers]
REFUSED = [
    counter,
    attribute,
    log_of_values,
    printing,
    random_numbers_and_a_counter,
    list_of_the_region,
    object_of_the_region,
    packed_object,
    hook_of_an_object,
    hook_of_an_object_of_the_region,
    hook_of_a_module,
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


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("case", RIGHT, ids=lambda f: f.__name__)
def test_as_in_eager_mode(case: Callable[[], Case], wrapped: bool, twice: bool) -> None:
    for ours, eager in zip(
        _train(case, st.compile, wrapped, twice), _train(case, _as_it_is, wrapped, twice), strict=True
    ):
        _same(ours, eager)


@pytest.mark.parametrize("case", REFUSED, ids=lambda f: f.__name__)
def test_what_each_backward_would_have_to_do_is_refused(case: Callable[[], Case]) -> None:
    function, state, _ = case()
    before = str(state())
    with pytest.raises(st.errors.SideEffectError):
        st.compile(function)(torch.ones(3, requires_grad=True)).sum().backward()
    assert str(state()) == before


def test_what_only_computes_is_part_of_the_graph() -> None:
    region = st.compile(_of(lambda t: t.to(torch.bfloat16), lambda t: t.to(torch.float32)))
    region(torch.ones(3, requires_grad=True)).sum().backward()
    (made,) = region.specializations
    assert made.graphs.backward is not None
    assert "user_code" not in made.graphs.backward.code
