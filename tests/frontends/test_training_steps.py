"""A whole training step as one region: forward, ``.backward()`` and the optimizer, to the last bit of eager."""

from __future__ import annotations

import copy
import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn, optim

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
Step = Callable[[Tensor], Any]


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def _whole(model: Any, optimizer: Any) -> Step:
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    return step


def _clipped(model: Any, optimizer: Any) -> Step:
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=False)
        model(x).square().sum().backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.4)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return norm

    return step


def _with_closure(model: Any, optimizer: Any) -> Step:
    def step(x: Tensor) -> Any:
        def again() -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = model(x).square().sum()
            loss.backward()
            return loss

        return optimizer.step(again)

    return step


def _in_parts(model: Any, optimizer: Any) -> Step:
    def step(x: Tensor) -> None:
        for part in x.chunk(2):
            (model(part).square().sum() / 2).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _leaves(t: Any) -> Any:
    return [t.a.tolist(), t.b.tolist()] if isinstance(t, TwoTensor) else t.tolist() if isinstance(t, Tensor) else t


def _state(model: Any, optimizer: Any, versions: bool = True) -> Any:
    parameters = list(model.parameters())
    rows = [
        (_leaves(p.detach()), versions and p._version, None if p.grad is None else _leaves(p.grad)) for p in parameters
    ]
    kept = [(k, _leaves(v)) for held in optimizer.state.values() for k, v in held.items()]
    return rows, kept


def _train(
    make: Callable[[], Any],
    kind: Callable[[Any], Any],
    step: Callable[[Any, Any], Step] = _whole,
    between: Callable[[int, Any, Any], None] = lambda k, model, optimizer: None,
    steps: int = 4,
    versions: bool = True,
) -> st.Region:
    """Trains a model in eager mode and one by a region, and compares after each step."""
    models, runs, regions = [], [], []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = make()
        optimizer = kind(model.parameters())
        function = step(model, optimizer)
        models.append((model, optimizer))
        runs.append(st.compile(function) if compiled else function)
    regions = [run for run in runs if isinstance(run, st.Region)]
    for k in range(steps):
        seen = []
        for run, (model, optimizer) in zip(runs, models, strict=True):
            torch.manual_seed(k)
            out = run(torch.randn(2, 3))
            told = None if out is None else (_leaves(out.detach()), out.requires_grad)
            seen.append((told, _state(model, optimizer, versions)))
            between(k, model, optimizer)
        assert seen[1] == seen[0], f"step {k}"
    return regions[0]


KINDS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "SGD of lists": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "Adam": lambda p: optim.Adam(p, lr=0.1),
    "Adam of lists": lambda p: optim.Adam(p, lr=0.1, foreach=True),
    "AMSGrad": lambda p: optim.Adam(p, lr=0.1, amsgrad=True, maximize=True),
    "Adam with a tensor": lambda p: optim.Adam(p, lr=torch.tensor(0.1)),
    "AdamW": lambda p: optim.AdamW(p),
    "RMSprop": lambda p: optim.RMSprop(p, centered=True, momentum=0.5),
    "Adagrad": lambda p: optim.Adagrad(p),
    "Adadelta": lambda p: optim.Adadelta(p),
    "Adamax": lambda p: optim.Adamax(p),
    "NAdam": lambda p: optim.NAdam(p),
    "Rprop": lambda p: optim.Rprop(p),
}


#: those whose code has nothing that the others have not
ALIKE = ("SGD", "AMSGrad", "AdamW", "Adagrad", "Adadelta", "Adamax", "NAdam", "Rprop")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in ALIKE else ()) for n in KINDS])
def test_every_step_is_that_of_eager(name: str) -> None:
    region = _train(_model, KINDS[name])
    assert len(region.specializations) == 1  # the first step makes the state, and runs eagerly


@pytest.mark.parametrize("name", ["SGD", "SGD of lists", "Adam"])
@pytest.mark.parametrize("step", [_clipped, _with_closure, _in_parts])
def test_other_ways_to_write_a_step(name: str, step: Callable[[Any, Any], Step]) -> None:
    assert len(_train(_model, KINDS[name], step).specializations) <= 2


def test_a_schedule_costs_one_specialization() -> None:
    def scheduled(parameters: Any) -> Any:
        optimizer = optim.Adam(parameters, lr=0.1)
        optimizer.schedule = optim.lr_scheduler.StepLR(optimizer, 1, 0.9)  # type: ignore[attr-defined]
        return optimizer

    region = _train(_model, scheduled, between=lambda k, _, o: o.schedule.step(), steps=6)
    assert len(region.specializations) == 2  # the second one with the rate as a symbol


class _Warm:
    """A learning rate that the step itself computes of its number."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self.model, self.optimizer, self.count = model, optimizer, 0

    def __call__(self, x: Tensor) -> Tensor:
        for group in self.optimizer.param_groups:
            group["lr"] = 0.05 * (1 + math.cos(math.pi * self.count / 10)) * math.exp(-self.count / 7)
        self.count += 1
        return _whole(self.model, self.optimizer)(x)


@pytest.mark.long
def test_a_learning_rate_that_the_step_computes() -> None:
    _train(_model, KINDS["SGD"], _Warm, steps=6)  # ``math.cos`` takes the number of each step


_SCHEDULES = optim.lr_scheduler


def _linear(step: int) -> float:
    """As Transformers write it, with ``float()`` of the step."""
    return float(step) / float(max(1, 3)) if step < 3 else max(0.0, float(100 - step) / float(max(1, 97)))


#: how a schedule is made, and how many specializations twelve steps with it need
SCHEDULES: dict[str, tuple[Callable[[Any], Any], int]] = {
    "every third step": (lambda o: _SCHEDULES.StepLR(o, 3, 0.5), 5),
    "a function": (lambda o: _SCHEDULES.LambdaLR(o, lambda k: 0.9**k), 3),
    "cosine": (lambda o: _SCHEDULES.CosineAnnealingLR(o, 100), 3),
    "warm up": (lambda o: _SCHEDULES.LinearLR(o, 0.1, total_iters=4), 4),
    "warm up, then cosine": (
        lambda o: _SCHEDULES.SequentialLR(
            o, [_SCHEDULES.LinearLR(o, 0.1, total_iters=3), _SCHEDULES.CosineAnnealingLR(o, 100)], [3]
        ),
        5,
    ),
    "one cycle": (lambda o: _SCHEDULES.OneCycleLR(o, 0.1, total_steps=100), 3),
    "up and down": (lambda o: _SCHEDULES.CyclicLR(o, 0.01, 0.1, 100), 3),
    "linear": (lambda o: _SCHEDULES.LambdaLR(o, _linear), 4 if sys.version_info >= (3, 11) else 12),
}


def _with_schedule(make: Callable[[Any], Any]) -> Callable[[Any, Any], Step]:
    def with_schedule(model: Any, optimizer: Any) -> Step:
        whole, schedule = _whole(model, optimizer), make(optimizer)

        def step(x: Tensor) -> Tensor:
            loss = whole(x)
            schedule.step()
            return loss * schedule.get_last_lr()[0]

        return step

    return with_schedule


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.sweep(every=4)
def test_a_schedule_inside(name: str) -> None:
    make, most = SCHEDULES[name]
    assert len(_train(_model, KINDS["SGD with momentum"], _with_schedule(make), steps=12).specializations) <= most


def _every_fourth(model: Any, optimizer: Any) -> Step:
    count, losses = [0], {"loss": [], "norm": []}

    def step(x: Tensor) -> Tensor:
        loss: Tensor = model(x).square().sum() / 4
        loss.backward()
        count[0] += 1
        if count[0] % 4 == 0:
            losses["norm"].append(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
            optimizer.step()
            optimizer.zero_grad()
        losses["loss"].append(loss.detach())
        return loss

    return step


@pytest.mark.parametrize("name", ["SGD with momentum", "Adam"])
def test_gradients_of_four_steps(name: str) -> None:
    """The first and the second call, the first and the second step of the optimizer, the call after a step."""
    assert len(_train(_model, KINDS[name], _every_fourth, steps=16).specializations) <= 5


def test_state_that_is_loaded() -> None:
    saved = []

    def between(k: int, model: Any, optimizer: Any) -> None:
        if k == 1:
            saved.append(copy.deepcopy(optimizer.state_dict()))
        elif k == 3:
            optimizer.load_state_dict(copy.deepcopy(saved[-1]))

    _train(_model, KINDS["Adam"], between=between, steps=6)


def test_groups_that_are_added() -> None:
    def first(parameters: Any) -> Any:
        weight, bias, *_ = parameters
        return optim.SGD([weight, bias], lr=0.1, momentum=0.5)

    def between(k: int, model: Any, optimizer: Any) -> None:
        if k == 1:
            optimizer.add_param_group({"params": model[2].parameters(), "lr": 0.01})

    _train(_model, first, between=between, steps=5)


def test_parameters_that_are_frozen_and_freed() -> None:
    def between(k: int, model: Any, optimizer: Any) -> None:
        if k == 1:
            model[0].weight.requires_grad_(False)
            model[0].weight.grad = None
        elif k == 3:
            model[0].weight.requires_grad_(True)

    _train(_model, KINDS["Adam"], between=between, steps=6)


class OfMine(optim.Optimizer):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.calls = 0

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        self.calls += 1
        for group in self.param_groups:
            for p in group["params"]:
                held = self.state[p]
                if not held:
                    held["mean"], held["count"] = torch.zeros_like(p), 0
                held["count"] += 1
                held["mean"] = held["mean"] * 0.9 + p.grad
                p.add_(held["mean"], alpha=-group["lr"] / held["count"])


def test_an_optimizer_of_the_users() -> None:
    made: list[OfMine] = []

    def kind(parameters: Any) -> OfMine:
        made.append(OfMine(parameters))
        return made[-1]

    _train(_model, kind, steps=6)
    assert [o.calls for o in made] == [6, 6]


def test_an_optimizer_among_the_arguments_whose_state_is_made() -> None:
    """A trace of its first step would have the parameters of one call as keys."""

    def step(x: Tensor, model: Any, optimizer: Any) -> Any:
        return _whole(model, optimizer)(x)

    seen = []
    for call in (step, region := st.compile(step, frontend="trace")):
        torch.manual_seed(0)
        model = _model()
        optimizer = optim.Adam(model.parameters(), lr=0.1)
        seen.append([call(torch.randn(2, 3), model, optimizer).detach() for _ in range(4)])
        assert len(optimizer.state) == 4
    torch.testing.assert_close(*seen, rtol=0, atol=0)
    assert len(region.specializations) == 1


class _OfWrappers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(TwoTensor(torch.randn(3, 3), torch.randn(3, 3)))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


@pytest.mark.parametrize("name", ["SGD with momentum", "Adam"])
def test_parameters_that_are_wrappers(name: str) -> None:
    assert len(_train(_OfWrappers, KINDS[name]).specializations) == 1


def test_the_report_names_what_is_assigned() -> None:
    report = _train(_model, KINDS["SGD with momentum"]).specializations[0].report()
    assert "['momentum_buffer']" in report and "optimizer.param_groups[0]['params'][0]" in report


def test_state_of_an_optimizer_holds_no_traced_tensor_after_an_exception() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = optim.Adam([weight])

    def step(x: Tensor) -> None:
        (weight * x).sum().backward()
        optimizer.step()
        raise ValueError("of the function")

    with pytest.raises(ValueError, match="of the function"):
        st.compile(step)(torch.ones(3))
    assert optimizer.state[weight]["step"].item() == 1  # it ran once, eagerly
    weight.grad = torch.ones(3)
    optimizer.step()
    assert weight.tolist() != [1.0] * 3


def test_an_argument_that_an_optimizer_holds_too() -> None:
    def step(weight: Tensor, optimizer: optim.Optimizer) -> Tensor:
        loss = weight.square().sum()
        loss.backward()
        optimizer.step()
        return loss

    def steps(wrap: Any) -> list[Any]:
        weight, other = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3) * 2)
        optimizer, called, told = optim.SGD([weight], lr=0.1), wrap(step), []
        for w in (weight, weight, other, weight, other):
            loss = called(w, optimizer)
            told += [loss.tolist(), weight.tolist(), other.tolist(), w.grad.tolist()]
        return told

    assert steps(st.compile) == steps(lambda f: f)


def test_a_scaled_loss() -> None:
    def run(compile: Callable[[Any], Any]) -> Any:
        torch.manual_seed(0)
        model = _model()
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        step = compile(lambda x: scaler.scale(model(x).mean()).backward())
        for k in range(4):
            optimizer.zero_grad()
            step(torch.full((2, 3), float(k)))
            scaler.step(optimizer)
            scaler.update()
        return _state(model, optimizer), scaler.get_scale()

    assert run(st.compile) == run(lambda f: f)


class _Drawing(OfMine):
    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad * torch.rand_like(p))


class _Elsewhere(OfMine):
    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        self.param_groups[0]["params"][0].sub_(0.1)
        _STEPS.add_(1)


_STEPS = torch.zeros(())


def _scaled(model: Any, optimizer: Any) -> Step:
    """Every third loss is so large that its gradients are not finite."""
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    size = torch.ones(())

    def scaled(x: Tensor) -> Tensor:
        loss: Tensor = (model(x) * size).square().sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        size.copy_(torch.where(scaler._scale > 8, 1e30, 1.0))
        return loss

    return scaled


@pytest.mark.parametrize("name", ["SGD", "SGD with momentum", "SGD of lists", "Adam", "Adam of lists", "AMSGrad"])
def test_steps_that_a_scaler_leaves_out(name: str) -> None:
    region = _train(_model, KINDS[name], _scaled, steps=8)
    assert 1 <= len(region.specializations) <= 3


@pytest.mark.parametrize(
    ("kind", "why"),
    [(_Drawing, "draws random numbers"), (_Elsewhere, "writes to tensors besides"), (OfMine, "changes Python state")],
)
def test_steps_that_cannot_be_taken_back_are_handed_over(kind: Any, why: str) -> None:
    model = _model()
    with pytest.raises(st.UnsupportedError, match=why):
        region = st.compile(_scaled(model, kind(model.parameters())), frontend="trace")
        for _ in range(2):  # a first step that makes the optimizer's state runs eagerly
            region(torch.ones(2, 3))


def _both(
    build: Callable[[Any, Any], Step], sizes: Sequence[int], *, momentum: float = 0.0, fused: bool = False, **how: Any
) -> Any:
    """Steps with batches of these sizes have eager's losses and leave eager's parameters; the region."""
    seen: list[list[Tensor]] = []
    for compile_it in (lambda f: f, functools.partial(st.compile, **how)):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        call = compile_it(build(model, optim.SGD(model.parameters(), lr=0.05, momentum=momentum, fused=fused)))
        seen.append([call(torch.ones(n, 3)).detach() for n in sizes] + [p.detach() for p in model.parameters()])
    torch.testing.assert_close(*seen, rtol=0, atol=0)
    return call


def test_all_sizes_dynamic() -> None:
    """The state of an optimizer has keys that look alike, its values other dimensions."""
    region = _both(_whole, (4, 4, 5, 7), momentum=0.9, dynamic=True, frontend="trace")
    assert len(region.specializations) == 1


def test_the_rate_of_a_fused_optimizer_is_a_symbol() -> None:
    build = _with_schedule(lambda optimizer: _SCHEDULES.StepLR(optimizer, 2, 0.5))
    region = _both(build, [4] * 12, fused=True, frontend="trace")
    assert len(region.specializations) <= 4  # the schedule branches


@pytest.mark.long
def test_misses_that_go_on_are_handed_over() -> None:
    """Each epsilon of a norm is a guard; every second miss has the reason of an earlier one."""

    def build(model: Any, optimizer: Any) -> Step:
        step = _with_schedule(lambda optimizer: _SCHEDULES.StepLR(optimizer, 2, 0.5))(model, optimizer)
        rates = optimizer.param_groups[0]
        return lambda x: step(nn.functional.layer_norm(x, (3,), eps=rates["lr"]))

    with pytest.warns(st.HandOverWarning):
        region = _both(build, [4] * 20, frontend="auto")
    assert len(region.specializations) == 16
