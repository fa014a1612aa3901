"""Operations that are called for what they do run once per call, in order, whoever reads their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace import verify
from subclass_trace.capture.effects import has_effects

LOG: list[float] = []
LIBRARY = torch.library.Library("st_effects", "DEF")


def note(x: torch.Tensor, at: str) -> None:
    LOG.append(float(x.detach().sum()))


LIBRARY.define("note(Tensor x, str at='') -> ()")
LIBRARY.define("same(Tensor x) -> Tensor")
LIBRARY.define("pair(Tensor x) -> (Tensor, Tensor)")
LIBRARY.impl("note", lambda x, at="": note(x, at), "CompositeExplicitAutograd")
LIBRARY.impl("same", lambda x: (note(x, ""), x + 1)[1], "CompositeExplicitAutograd")
LIBRARY.impl("pair", lambda x: (note(x, ""), (x + 1, x + 2))[1], "CompositeExplicitAutograd")
torch.library.register_fake("st_effects::note", lambda x, at="": None, lib=LIBRARY)
torch.library.register_fake("st_effects::same", lambda x: torch.empty_like(x), lib=LIBRARY)
torch.library.register_fake("st_effects::pair", lambda x: (torch.empty_like(x), torch.empty_like(x)), lib=LIBRARY)
for name in ("same", "pair"):
    torch._higher_order_ops.effects._register_effectful_op(
        f"st_effects::{name}", torch._higher_order_ops.effects._EffectType.ORDERED
    )
ops: Any = torch.ops.st_effects


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ops.note(x)
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        ops.note(g * 3)
        ops.same(x * 5)  # of no tangent
        return g * x.cos()


def in_order(x: torch.Tensor) -> torch.Tensor:
    ops.note(x)
    y = x * 3
    ops.note(y)
    y.mul_(2)
    ops.note(y)
    return y


def twice_alike(x: torch.Tensor) -> torch.Tensor:
    ops.note(x)
    ops.note(x)
    return x.sin()


def of_dead_values(x: torch.Tensor) -> torch.Tensor:
    ops.note(x.sin().exp())
    ops.pair(x.cos())
    return x * 2


def results_in_use(x: torch.Tensor) -> torch.Tensor:
    a, b = ops.pair(x.detach())
    return ops.same(x.detach() * 3) * a.sin() * b * x.exp()


CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a function's backward": lambda x: Sine.apply(x * 1),
    "in order": in_order,
    "twice alike": twice_alike,
    "of dead values": of_dead_values,
    "results in use": results_in_use,
}


def run(function: Callable[[torch.Tensor], torch.Tensor], grad: bool) -> tuple[list[float], list[Any]]:
    LOG.clear()
    found: list[Any] = []
    for k in (1.0, 2.0):
        x = torch.full((2,), k, requires_grad=grad)
        y = function(x)
        found.append(y.detach())
        if grad:
            y.sum().backward()
            found.append(x.grad)
    return list(LOG), found


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("partitioner", ["min_cut", "default", "torch_min_cut"])
@pytest.mark.sweep(every=4)
def test_as_often_and_in_the_order_of_eager(name: str, partitioner: str, grad: bool) -> None:
    log, values = run(CASES[name], grad)
    with verify.enabled():
        got, mine = run(st.compile(CASES[name], partitioner=partitioner), grad)
    assert got == log
    for a, b in zip(values, mine, strict=True):
        torch.testing.assert_close(b, a)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_inductor(name: str) -> None:
    for grad in (False, True):
        log, _ = run(CASES[name], grad)
        assert run(st.compile(CASES[name], backend="inductor"), grad)[0] == pytest.approx(log)
    assert torch._higher_order_ops.effects._get_effect(ops.note.default) is None  # registered while it compiled


def test_graph_modules() -> None:
    """A back end that takes graph modules, and removes what nothing reads."""

    def compiler(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        return gm.forward

    for name in ("in order", "of dead values"):
        for grad in (False, True):
            log, _ = run(CASES[name], grad)
            assert run(st.compile(CASES[name], backend=compiler), grad)[0] == log


def test_other_tangents_and_the_backward_of_a_backward() -> None:
    """A backward that is traced later has the effects of its own operations, and not again those of the forward."""

    def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ops.note(x)
        return Sine.apply(x * 1), x * 2

    found = []
    for f in (two, st.compile(two)):
        LOG.clear()
        x = torch.ones(2, requires_grad=True)
        f(x)[1].sum().backward()
        y = f(x)[0]
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        g.sum().backward()
        found.append(list(LOG))
    assert found[0] == found[1]


def test_compiled_autograd() -> None:
    log, _ = run(CASES["a function's backward"], True)
    region = st.compile(CASES["a function's backward"])
    with st.compiled_autograd():
        assert run(region, True)[0] == log


def test_tables() -> None:
    aten = torch.ops.aten
    assert has_effects(ops.note.default) and has_effects(ops.same.default) and has_effects(aten._print.default)
    assert has_effects(aten._assert_async.msg)
    assert not has_effects(aten.add.Tensor) and not has_effects(aten.add_.Tensor)
    assert not has_effects(aten.sym_constrain_range.default) and not has_effects(torch.add)
