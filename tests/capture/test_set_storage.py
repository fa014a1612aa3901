"""Inputs that get other memory: ``x.set_(y)``, ``x.data = y``, ``w.inner = y``. As in eager they share it afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.errors import UnsupportedError
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


def data(x: Tensor, y: Tensor) -> None:
    x.data = y


def swap(x: Tensor, y: Tensor) -> None:
    a, b = x.data, y.data
    x.set_(b)
    y.set_(a)


def then(*steps: Any) -> Any:
    return steps[-1]


DENSE: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "set_": lambda x, y: then(x.set_(y), None),
    "set_, the tensor is written": lambda x, y: then(x.set_(y), x.add_(1)),
    "set_, the other one is written": lambda x, y: then(x.set_(y), y.add_(1), x * 2),
    "set_ to a view": lambda x, y: then(x.set_(y[1:]), x.mul_(3), None),
    "set_ to nothing": lambda x, y: then(x.set_(), None),
    "set_ to a result": lambda x, y: then(z := y * 2, x.set_(z), x.add_(1), z),
    "data": lambda x, y: then(data(x, y), x.add_(1), None),
    "data of a view": lambda x, y: then(data(x, y[1:]), y.add_(1), None),
    "swap, and write": lambda x, y: then(swap(x, y), x.add_(1), y.sub_(1), None),
    "written before": lambda x, y: then(x.add_(5), x.set_(y), None),
    "a view of before is written": lambda x, y: then(v := x.view(-1), x.set_(y), v.add_(1), None),
    "a view of before is returned": lambda x, y: then(v := x[1:], x.set_(y), v),
}


@pytest.mark.parametrize("name", DENSE)
def test_as_in_eager(name: str) -> None:
    def run(function: Any) -> list[Any]:
        base = torch.zeros(3)
        x, y = base.detach(), torch.arange(5.0)
        result = function(x, y)
        tensors = [t for t in (x, y, base, result) if t is not None]
        seen: list[Any] = [t.clone() for t in tensors]
        shared = [[a.untyped_storage()._cdata == b.untyped_storage()._cdata for a in tensors] for b in tensors]
        x.add_(100)
        y.add_(1000)
        return [*seen, *tensors, shared, result is x]

    for a, b in zip(run(DENSE[name]), run(st.compile(DENSE[name])), strict=True):
        assert torch.equal(a, b) if isinstance(a, Tensor) else a == b


def inner(w: Any, y: Tensor) -> None:
    w.a = y


WRAPPERS: dict[str, Callable[[Any, Tensor], Any]] = {
    "attribute": lambda w, y: inner(w, y),
    "attribute, a view": lambda w, y: inner(w, y[:3]),
    "attribute, written": lambda w, y: then(inner(w, y), y.add_(1), None),
    "attribute, and the old one written": lambda w, y: then(w.a.add_(1), inner(w, y), None),
    "set_": lambda w, y: then(w.a.set_(y), None),
    "set_, written": lambda w, y: then(w.a.set_(y), w.mul_(2), None),
    "data": lambda w, y: then(data(w.a, y), y.add_(1), None),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_inner_tensors(name: str) -> None:
    def run(function: Any) -> list[Any]:
        a, y = torch.zeros(3), torch.arange(3.0)
        w = TwoTensor(a, torch.ones(3))
        function(w, y)
        y.add_(10)
        return [w.a.tolist(), w.b.tolist(), a.tolist(), w.a is y, w.a is a]

    assert run(st.compile(WRAPPERS[name])) == run(WRAPPERS[name])


def test_storage_that_no_tensor_of_its_kind_holds() -> None:
    with pytest.raises(UnsupportedError, match="set_"):
        st.compile(lambda x, y: x.set_(y.untyped_storage(), 0, (2,), (1,)))(torch.zeros(2), torch.zeros(2).double())


class Reordered(TwoTensor):
    """Which inner tensors it names, and in which order, depends on attributes."""

    def __tensor_flatten__(self) -> Any:
        names = ["b", "a"] if getattr(self, "turned", False) else ["a", "b"]
        return names[: getattr(self, "count", 2)], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"], inner["b"])


@pytest.mark.parametrize(
    ("name", "value", "what", "got"), [("turned", True, "order", "b, a"), ("count", 1, "set", "a")]
)
def test_inner_tensors_in_another_order(name: str, value: Any, what: str, got: str) -> None:
    with pytest.raises(UnsupportedError, match=f"the region changed the {what} of inner tensors of an input") as error:
        st.compile(lambda x: setattr(x, name, value))(Reordered(torch.ones(2), torch.ones(2)))
    assert (error.value.expected, error.value.got) == ("those of before the call, a, b", got)


@pytest.mark.parametrize("budget", [1.0, 0.0])
def test_a_backward_reads_what_data_was_set_to(budget: float) -> None:
    """Autograd saved the tensor, which has other memory by then: nothing is computed from it again."""

    def f(x, buffer):
        y = (x * buffer).sin()
        buffer.data = buffer.data * 2
        return y

    rows = []
    for g in (f, st.compile(f, activation_memory_budget=budget)):
        buffer = torch.ones(2)
        for _ in range(3):
            x = torch.full((2,), 0.5, requires_grad=True)
            g(x, buffer).sum().backward()
            rows.append(x.grad)
    assert all(map(torch.equal, rows[:3], rows[3:]))


def _takes_memory(x: Tensor, y: Tensor) -> Tensor:
    x.set_(y)
    return x.detach() * 1


def test_memory_of_a_tensor_that_requires_grad() -> None:
    """Under autograd the tensor gets a history without a derivative, which only eager can hand out."""

    def quietly(x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            return _takes_memory(x, y)

    with pytest.raises(UnsupportedError, match="has no derivative"):
        st.compile(_takes_memory)(torch.ones(3), torch.ones(3, requires_grad=True) * 2)
    seen = []
    for call in (quietly, st.compile(quietly)):
        x, y = torch.ones(3), torch.ones(3, requires_grad=True) * 2
        seen.append((call(x, y).tolist(), x.requires_grad, x.data_ptr() == y.data_ptr()))
    assert seen[1] == seen[0]


def test_a_wrapper_gets_the_storage_of_a_dense_tensor() -> None:
    """In a trace torch would give it one on another device; such a call runs eagerly."""
    found = []
    region = st.compile(Tensor.set_)
    with pytest.warns(UserWarning, match="a call of a region runs eagerly: torch gives a wrapper the storage"):
        region(TwoTensor(torch.zeros(2), torch.zeros(2)), torch.ones(2))
    for call in (Tensor.set_, region):
        w, x = TwoTensor(torch.zeros(2), torch.zeros(2)), torch.ones(2)
        call(w, x)
        x.add_(1)
        found.append((w.a.tolist(), w.b.tolist(), w._version, w.a._version))
    assert found[0] == found[1]
