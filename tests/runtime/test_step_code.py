"""The code of a training step over many parameters: what a call does for each of them, beside eager's own work."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda ps: torch.optim.SGD(ps, lr=0.1),
    "SGD with momentum": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, foreach=True),
    "Adam": lambda ps: torch.optim.Adam(ps, lr=0.1, foreach=True),
    "AdamW": lambda ps: torch.optim.AdamW(ps, lr=0.1, foreach=False),
}


def _dense(k: int) -> Tensor:
    return torch.randn(3, generator=torch.Generator().manual_seed(k))


def _two(k: int) -> Tensor:
    return TwoTensor(_dense(k), _dense(-k))


def _step(kind: Callable[[int], Tensor], optimizer: str, *, count: int = 3) -> tuple[Any, Any]:
    """A step, and what it leaves: values and versions of parameters, gradients, and the optimizer's state."""
    parameters = [torch.nn.Parameter(kind(k)) for k in range(count)]
    made = OPTIMIZERS[optimizer](parameters)
    x = kind(9)

    def step() -> Any:
        made.zero_grad()
        total = sum((p.sin() * x).sum() for p in parameters)  # of p * p, autograd adds up two gradients in place
        total.backward()  # type: ignore[union-attr]
        made.step()
        return total

    def left() -> list[Any]:
        states = [t for p in parameters for t in made.state[p].values() if isinstance(t, Tensor)]
        tensors = [*parameters, *[p.grad for p in parameters], *states]
        inner = [i for t in tensors if isinstance(t, TwoTensor) for i in (t.a, t.b)]
        dense = [t for t in tensors if not isinstance(t, TwoTensor)]
        return [[t.tolist() for t in (*dense, *inner)], [p._version for p in parameters]]

    return step, left


def _forward(region: Any) -> str:
    return inspect.getsource(inspect.unwrap(region.specializations[-1].program.forward))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", [_dense, _two])
def test_a_call_delivers_straight_down(kind: Callable[[int], Tensor], optimizer: str) -> None:
    step, _ = _step(kind, optimizer)
    region = st.compile(step)
    for _ in range(3):
        region()
    source = region.specializations[-1].source
    assert "copy" not in source and "make_wrapper" not in source
    assert source.count(".grad = ") == 3
    assert source.count("move_versions(") <= (2 if kind is _two else 0)  # a dense tensor's own write moves its counter
    assert ".detach()" not in _forward(region)


def _calls(function: Callable[[], Any]) -> int:
    """How many Python functions run in a call, but for the arithmetic on numbers that the graph asks for."""
    seen: list[str] = []

    def note(frame: types.FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name not in ("_check_scalar", "fn"):
            seen.append(getattr(frame.f_code, "co_qualname", frame.f_code.co_name))  # Python 3.10 has none

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return len(seen)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", [_dense, _two])
def test_no_python_function_runs_for_each_parameter(kind: Callable[[int], Tensor], optimizer: str) -> None:
    found = []
    for count in (2, 4):
        step, _ = _step(kind, optimizer, count=count)
        region = st.compile(step)
        for _ in range(3):
            region()
        assert len(region.specializations) == 2  # the first step makes the optimizer's state
        found.append(_calls(region))
    assert found[0] == found[1]


WRITES: dict[str, Callable[[list[Tensor]], Any]] = {
    "foreach on data": lambda ps: torch._foreach_add_([p.data for p in ps], 1.0),
    "foreach": lambda ps: torch._foreach_add_(ps, 1.0),
    "twice": lambda ps: [p.add_(1).mul_(2) for p in ps] and None,
    "by copies": lambda ps: [p.mul_(2).add_(torch.ones(3).double()) for p in ps] and None,  # which promotes
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("kind", [_dense, _two])
def test_writes(kind: Callable[[int], Tensor], name: str) -> None:
    def run(ps: list[Tensor]) -> None:
        with torch.no_grad():
            WRITES[name](ps)

    seen, region = [], st.compile(run)
    for function in (run, region):
        ps = [torch.nn.Parameter(kind(k)) for k in range(3)]
        for _ in range(3):
            function(ps)
        inner = [i for p in ps if isinstance(p, TwoTensor) for i in (p.a, p.b)]
        seen.append(([t.tolist() for t in inner or ps], [t._version for t in ps]))
    assert seen[0] == seen[1]
    source = region.specializations[0].source
    assert source.count("move_versions(") <= 2


def test_what_several_results_have_left() -> None:
    def step(x: Tensor, w: Tensor, *, free: bool) -> tuple[Tensor, Tensor]:
        y = x * w
        loss, other = (y * y).sum(), (y * 2 if free else x * w * x).sum()
        loss.backward()
        with torch.no_grad():
            x.mul_(2)
        return loss, other

    for free in (True, False):
        seen = []
        for function in (step, st.compile(step)):
            x, w = torch.ones(3, requires_grad=True), torch.full((3,), 2.0)
            loss, other = function(x, w, free=free)
            with pytest.raises(RuntimeError, match="second time" if free else "second time|modified by an inplace"):
                other.backward()
            seen.append((loss.item(), other.item(), x.tolist(), x._version, x.grad.tolist()))  # type: ignore[union-attr]
        assert seen[0] == seen[1]


@pytest.mark.parametrize("kind", [_dense, _two])
def test_results_in_the_memory_of_inputs(kind: Callable[[int], Tensor]) -> None:
    def run(ps: list[Tensor]) -> list[Tensor]:
        out = [p.data for p in ps]
        torch._foreach_add_(out, 1.0)
        return out

    seen, region, calls = [], st.compile(run), []
    for function in (run, region):
        ps = [torch.nn.Parameter(kind(k)) for k in range(3)]
        out = function(function(ps))
        out[0].mul_(2)
        seen.append([getattr(t, "a", t).tolist() for t in (*ps, *out)])
    assert seen[0] == seen[1]
    for count in (20, 40):
        ps = [torch.nn.Parameter(kind(k)) for k in range(count)]
        region(ps)
        calls.append(_calls(lambda ps=ps: region(ps)))  # type: ignore[misc]
    assert calls[1] < 2 * calls[0]  # for each result what it takes to make it, whatever their number
