"""Objects in contexts that have other names as well: a module's log, a configuration of both, results, copies."""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

import subclass_trace as st
from subclass_trace.errors import UnsupportedError

Tensor = torch.Tensor
LOG: list[int] = []


@dataclasses.dataclass
class Config:
    bits: int = 4
    tags: list[str] = dataclasses.field(default_factory=list)


class Held(Tensor):
    """Keeps an object, which is its context, and hands it on."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, a: Tensor, held: Any) -> Any:
        return Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype, requires_grad=a.requires_grad)

    def __init__(self, a: Tensor, held: Any) -> None:
        self.a, self.held = a.detach(), held

    def __tensor_flatten__(self) -> Any:
        return ["a"], (self.held,)

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"], context[0])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = next(t for t in args if isinstance(t, Held))
        out = func(*tree_map(lambda t: t.a if isinstance(t, Held) else t, args), **(kwargs or {}))
        return Held(out, first.held)


class Logs(torch.nn.Module):
    """Logs into the list that its weight keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[int] = []
        self.weight = torch.nn.Parameter(Held(torch.ones(2), self.log))

    def forward(self, x: Tensor) -> Tensor:
        self.log.append(x.shape[0])
        return x * len(self.weight.held)


class Counts(torch.nn.Module):
    """Counts in the configuration that its weight has."""

    def __init__(self) -> None:
        super().__init__()
        self.config = Config()
        self.weight = torch.nn.Parameter(Held(torch.ones(2), self.config))

    def forward(self, x: Tensor) -> Tensor:
        self.config.bits += 1
        return x * self.weight.held.bits


def _global_log(x: Any) -> Tensor:
    LOG.append(1)
    return x.a * len(x.held)


BY_ANOTHER_NAME: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "a list of a module": lambda: (Logs(), (torch.ones(2),)),
    "a configuration of a module": lambda: (Counts(), (torch.ones(2),)),
    "a global list": lambda: (_global_log, (Held(torch.ones(2), LOG),)),
}


@pytest.mark.parametrize("name", BY_ANOTHER_NAME)
def test_changed_by_another_name(name: str) -> None:
    LOG.clear()
    function, args = BY_ANOTHER_NAME[name]()
    with pytest.raises(UnsupportedError, match="by another name") as raised:
        st.compile(function)(*args)
    assert "weight" in str(raised.value) or "args[0]" in str(raised.value)


def test_what_is_refused_did_not_happen() -> None:
    module = Logs()
    with pytest.raises(UnsupportedError):
        st.compile(module)(torch.ones(2))
    assert module.log == [] and module.weight.held is module.log


class Appends(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, w: Tensor, x: Any) -> Tensor:
        ctx.x = x
        return w * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        ctx.x.held.append(1)
        return grad * len(ctx.x.held), None


def test_changed_in_a_backward() -> None:
    region = st.compile(lambda w, x: Appends.apply(w, x).sum())
    with pytest.raises(UnsupportedError, match="a custom backward or a hook changes"):
        region(torch.ones(2, requires_grad=True), Held(torch.ones(2), [])).backward()


def test_a_plain_tensor_whose_gradient_would_be_lost() -> None:
    region = st.compile(lambda x: x.a * x.held[0])
    with pytest.raises(UnsupportedError, match="there would be a gradient of a plain tensor"):
        region(Held(torch.ones(2), [torch.ones(2, requires_grad=True)]))
    torch.testing.assert_close(region(Held(torch.ones(2), [torch.full((2,), 3.0)])), torch.full((2,), 3.0))


def test_a_result_is_the_object_of_the_call() -> None:
    region = st.compile(lambda x: (x * 2, x.held))
    for config in (Config(), Config(8)):
        x = Held(torch.ones(2), config)
        y, found = region(x)
        assert found is config and y.held is config
    y, found = st.compile(lambda x: (x * 2, x.held), backend="eager")(Held(torch.ones(2).requires_grad_(), config))
    assert found is config


@pytest.mark.parametrize("make", [list, Config, lambda: ([],)], ids=["a list", "a configuration", "a list in a tuple"])
def test_a_deep_copy_has_objects_of_its_own(make: Callable[[], Any]) -> None:
    def run(function: Any) -> Any:
        x = Held(torch.ones(2), make())
        y = function(x)
        held = y.held[0] if isinstance(y.held, tuple) else y.held
        held.append(1) if isinstance(held, list) else held.tags.append("t")
        return x.held, y.held, y.a.tolist()

    def copied(x: Any) -> Any:
        return copy.deepcopy(x) * 2.0

    region = st.compile(copied)
    for _ in range(2):
        assert run(region) == run(copied)


def _append_and_read(x: Any, log: list[int]) -> Tensor:
    log.append(3)
    return x.a * len(x.held)


def test_a_list_that_is_an_argument_too() -> None:
    log = [1]
    with pytest.raises(UnsupportedError, match=r"args\[1\]"):
        st.compile(_append_and_read)(Held(torch.ones(2), log), log)
    assert log == [1]


def test_a_plain_tensor_that_requires_grad_where_no_gradient_is_wanted() -> None:
    def region(x: Any) -> Tensor:
        with torch.no_grad():
            return x.a * x.held[0]

    compiled = st.compile(region)
    assert torch.equal(compiled(Held(torch.ones(2), [torch.ones(2, requires_grad=True)])), torch.ones(2))


@pytest.mark.parametrize(
    ("region", "message"),
    [
        (lambda x, t: x.a * x.held[0].mul_(2), "the region writes to a plain tensor"),
        (lambda x, t: (x.a * 2, x.held[0][1:]), "a result shares memory with a plain tensor"),
        (lambda x, t: t.add_(1) * x.held[0], "the region writes, by an argument, memory of a plain tensor"),
    ],
    ids=["written", "a view as a result", "an argument too"],
)
def test_what_cannot_be_done_with_a_plain_tensor_in_a_context(region: Any, message: str) -> None:
    t = torch.ones(2)
    with pytest.raises(UnsupportedError, match=message):
        st.compile(region)(Held(torch.ones(2), [t]), t)
    assert torch.equal(t, torch.ones(2))


@pytest.mark.parametrize("grad", [False, True])
def test_a_plain_tensor_of_a_context_as_a_result(grad: bool) -> None:
    compiled = st.compile(lambda x: (x * 2, x.held[0], x.held[0] + 1))
    for _ in range(3):
        t = torch.ones(2)
        y, held, z = compiled(Held(torch.ones(2), [t]).requires_grad_(grad))
        assert held is t and y.held[0] is t and torch.equal(z, t + 1)
        held.add_(1)
        z.add_(1)


def _by_globals(x: Tensor) -> Tensor:
    globals().update(TRACED=x * 2)
    return x + 1


def _by_module(x: Tensor) -> Tensor:
    name = "TRACED"
    setattr(sys.modules[__name__], name, x * 2)
    return x + 1


class ByGlobals(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        globals()["TRACED"] = [x * 2]
        return x + 1


@pytest.mark.parametrize("region", [_by_globals, _by_module, ByGlobals()])
def test_a_traced_tensor_in_a_global(region: Any) -> None:
    with pytest.raises(UnsupportedError, match="global"):
        st.compile(region)(torch.ones(2))
    assert "TRACED" not in globals()
