"""`if bad: raise ...` of a value inside a tensor: a graph for the other branch, and eager mode where a call takes this one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import subclass_trace as st
from tests.differential.oracle import difference

Tensor = torch.Tensor
NAN = float("nan")


class _Diverged(Exception):
    def __init__(self, step: int, loss: float) -> None:
        super().__init__(f"step {step}: {loss}")


def _plain(x: Tensor) -> Tensor:
    loss = x.sum()
    if torch.isnan(loss):
        raise ValueError("loss is NaN")
    return loss * 2


def _negated(x: Tensor) -> Tensor:
    if not torch.isfinite(x).all():
        raise _Diverged(3, x.sum().item())
    return x * 2


def _either(x: Tensor) -> Tensor:
    y = x.exp()
    if torch.isnan(y).any() or torch.isinf(y).any():
        raise FloatingPointError
    return y


def _item(x: Tensor) -> Tensor:
    if x.isnan().any().item():
        raise RuntimeError(f"{x.shape[0]} values")
    return x + 1


_names: dict[str, Any] = {}
exec('def asserted(x):\n    assert not x.isnan().any(), f"bad: {x.tolist()}"\n    return x + 1', _names)
_asserted: Callable[[Tensor], Any] = _names["asserted"]  # pytest writes asserts of this file anew


def _at_the_end(x: Tensor) -> Tensor:
    if (x == x).all():
        return x.sin()
    raise ValueError("NaN")


def _nested(x: Tensor) -> Tensor:
    def look(y: Tensor) -> Tensor:
        if y.isnan().any():
            raise ValueError("inside")
        return y

    return look(look(x) * 2)


def _caught(x: Tensor) -> Tensor:
    try:
        return _nested(x)
    except ValueError as error:
        return x.nan_to_num() + len(str(error))


def _skipped(x: Tensor) -> Any:
    return [_caught(x), _plain(x.nan_to_num())]


def _outcome(f: Callable[..., Any], *args: Any) -> Any:
    try:
        return f(*args)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("f", [_plain, _negated, _either, _item, _asserted, _at_the_end, _nested, _caught, _skipped])
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=[pytest.mark.inductor, pytest.mark.slow])])
def test_as_eager_mode(f: Callable[[Tensor], Any], backend: str) -> None:
    region = st.compile(f, frontend="trace", backend=backend)
    for first in (1.0, NAN, 2.0, NAN):
        x = torch.tensor([first, 3.0])
        assert difference(_outcome(f, x), _outcome(region, x)) is None
    assert len(region.specializations) == 1
    assert "2 calls: a branch that raises was taken" in region.explain()


def test_the_first_call_may_take_it() -> None:
    region = st.compile(_plain, frontend="trace")
    with pytest.raises(ValueError, match="loss is NaN"):
        region(torch.tensor([NAN]))
    assert region(torch.ones(1)) == 2


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("when", ["before", "after the backward", "after the step"])
@pytest.mark.sweep(every=4)
def test_a_training_step_leaves_what_eager_mode_leaves(when: str, dropped: bool) -> None:
    """Statistics, gradients, parameters, counters and random numbers, also where the error comes late."""

    def build() -> tuple[Callable[[Tensor], Any], Callable[[], Any]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5 if dropped else 0.0))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        calls: list[int] = []

        def look(at: str, value: Tensor) -> None:
            if at == when and torch.isnan(value):
                raise ValueError(f"NaN {at} in call {len(calls)}")

        def step(x: Tensor) -> Tensor:
            calls.append(1)
            loss: Tensor = model(x).square().mean()
            look("before", loss)
            loss.backward()
            look("after the backward", model[0].weight.grad.sum())  # type: ignore[union-attr]
            optimizer.step()
            look("after the step", model[0].weight.sum())
            optimizer.zero_grad()
            return loss.detach()

        def state() -> Any:
            gradients = [p.grad for p in model.parameters()]
            return [*model.state_dict().values(), *gradients, len(calls), torch.get_rng_state()]

        return step, state

    seen = []
    for compiled in (False, True):
        step, state = build()
        run = st.compile(step, frontend="trace") if compiled else step
        seen.append([])
        for k in range(5):
            x = torch.ones(4, 3) * (NAN if k == 3 else 1.0)
            seen[-1].append(_outcome(run, x))
            seen[-1] += [v.clone() if isinstance(v, Tensor) else v for v in state()]
    for a, b in zip(*seen, strict=True):
        same = (
            torch.equal(a.nan_to_num(), b.nan_to_num()) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b
        )
        assert same, (a, b)


def test_both_ways_that_go_on_are_refused() -> None:
    def f(x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = x * 2
        return x

    with pytest.raises(st.DataDependentError):
        st.compile(f, frontend="trace")(torch.ones(2))


def test_a_draw_from_a_generator_of_ones_own_before_it_is_refused() -> None:
    """Its state is not put back."""
    generator = torch.Generator()

    def f(x: Tensor) -> Tensor:
        return _plain(x + torch.rand(2, generator=generator))

    with pytest.raises(st.DataDependentError):
        st.compile(f, frontend="trace")(torch.ones(2))
