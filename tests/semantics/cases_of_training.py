"""Cases: what lies between a forward and its backward, gradients as state, and training steps inside a region."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from case_kit import cases
from wrappers import dense, two

import subclass_trace as st
from subclass_trace.subclass.flatten import leaves_of

Tensor = torch.Tensor


def _written_between(fn: Callable[[Tensor], Tensor], write: Callable[[Tensor, Tensor], object]) -> list[Tensor | str]:
    """The gradient, eager's and ours, where something is written between forward and backward."""
    found: list[Tensor | str] = []
    for call in (fn, st.compile(fn)):
        x = dense(200, 200, seed=0).abs().requires_grad_()
        y = call(x)
        loss = (y * 1).sum()
        with torch.no_grad():
            write(x, y)
        try:
            loss.backward()
            assert x.grad is not None
            found.append(x.grad)
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
            found.append("raises")
    return found


same, fact = cases("Backward")


@fact("a result that eager's backward reads, written before the backward: eager refuses too", torch="not in the survey")
def _written_result() -> None:
    assert _written_between(torch.exp, lambda x, y: y.mul_(2)) == ["raises", "raises"]


@fact(
    "an input of over 64 KiB that eager's backward does not read, written before the backward",
    differs='values may be computed of it again, and autograd raises; `partitioner="default"` keeps what eager keeps',
    torch="differs in the same way",
)
def _written_input() -> None:
    eager, ours = _written_between(lambda x: (x + 1).sin(), lambda x, y: x.mul_(2))
    assert ours == eager


@fact(
    "an input of over 64 KiB that is written before the backward behind autograd's back (`x.data.zero_()`)",
    differs='values that are computed of it again see the new contents; `partitioner="default"` keeps what eager keeps',
    torch="differs in the same way",
)
def _written_data() -> None:
    eager, ours = _written_between(lambda x: (x * 2).sin(), lambda x, y: x.data.zero_())
    assert isinstance(eager, Tensor) and isinstance(ours, Tensor) and torch.allclose(eager, ours)


@fact(
    "an input that the region has written (`x.exp_()`), written again before the backward",
    differs="the gradient is that of the forward's values; eager refuses",
    torch="differs in the same way",
)
def _written_again(compile: Any) -> Any:
    x = dense(3, seed=0).requires_grad_() * 1
    loss = (compile(torch.exp_)(x) * 1).sum()
    with torch.no_grad():
        x.mul_(2)
    try:
        loss.backward()
        return "a number"
    except RuntimeError:
        return "raises"


def _trained(compile: Callable[[Any], Any], make: Callable[[], Tensor]) -> Any:
    """A few steps of Adam, each a whole one."""
    weight = torch.nn.Parameter(make())
    optimizer = torch.optim.Adam([weight], lr=0.1)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (x @ weight).square().sum()
        loss.backward()
        optimizer.step()
        return weight.grad  # type: ignore[return-value]

    run = compile(step)
    return [*(run(dense(2, 3, seed=k)) for k in range(3)), weight.detach(), *optimizer.state[weight].values()]


@fact("`.backward()` and an optimizer's step inside the region, dense and wrapped parameters", torch="graph breaks")
def _training_steps() -> None:
    for make in (lambda: dense(3, 3, seed=9), lambda: two(3, 3, seed=9)):
        eager, ours = _trained(lambda f: f, make), _trained(st.compile, make)
        for a, b in zip(eager, ours, strict=True):
            assert type(a) is type(b)
            assert all(map(torch.equal, leaves_of(a), leaves_of(b)))


@fact("hooks around the step of an optimizer that come, go, count, and read what changes", torch="not in the survey")
def _hooks_around_steps(compile: Any) -> Any:
    weight, calls, limit = torch.nn.Parameter(two(3, 3, seed=9)), [0], [0.1]
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        (x * weight).square().sum().backward()
        optimizer.step()

    def hook(*_: Any) -> None:
        calls[0] += 1
        with torch.no_grad():
            weight.mul_(limit[0])

    region, handles = compile(step), []
    for k in range(6):
        handles += [optimizer.register_step_post_hook(hook)] if k == 2 else []
        handles.pop().remove() if k == 5 else None
        limit[0] = 0.1 * k
        region(two(3, 3, seed=k))
    assert calls == [3]
    return [leaf.tolist() for leaf in leaves_of(weight.detach())]


@fact("`.grad` read, replaced, dropped and changed in place inside the region")
def _gradients_as_state(compile: Any) -> Any:
    def f(x: Tensor, y: Tensor) -> Any:
        before, y.grad = x.grad, None
        assert x.grad is not None
        x.grad = x.grad * 2
        x.grad.add_(1)
        return before, x.grad

    call = compile(f)
    x, y = (dense(3, seed=k).requires_grad_() for k in (1, 2))
    x.grad, y.grad = dense(3, seed=3), dense(3, seed=4)
    first = x.grad
    before, after = call(x, y)
    return (before is first, after is x.grad, after.tolist(), y.grad)


@fact(
    "`requires_grad` of parameters changed between two `.backward()` inside the region (a GAN step)",
    refused="eager",
    torch="error (a second backward)",
)
def _frozen_between(compile: Any) -> Any:
    def step(x: Tensor, w: Tensor, v: Tensor) -> None:
        y = (x * v).tanh()
        (y.detach() * w).tanh().sum().backward()
        w.requires_grad = False
        (y * w).sum().backward()
        w.requires_grad_(True)

    call = compile(step)
    x, w, v = (dense(3, seed=k).requires_grad_(k > 1) for k in (1, 2, 3))
    call(x, w, v)
    return (w.requires_grad, w.grad.tolist(), v.grad.tolist())


@fact(
    "`.backward()` inside the region that leads to a tensor with a history from outside",
    refused="UnsupportedError",
    torch="graph breaks",
)
def _backward_that_leads_out() -> None:
    st.compile(lambda x: x.square().sum().backward())(dense(3, seed=1).requires_grad_() * 2)


@fact(
    "hooks that leaves have from outside, under `.backward()` inside the region (an optimizer in the backward)",
    torch="graph breaks",
)
def _step_in_the_backward() -> None:
    def step(weight: Any, optimizer: Any) -> Callable[[], object]:
        def update(_: Any) -> None:
            optimizer.step()
            optimizer.zero_grad()

        weight.register_hook(lambda g: g.clamp(max=0.5))
        weight.register_post_accumulate_grad_hook(update)
        return lambda: weight.square().sum().backward()

    _steps(step)


@fact(
    "`torch.autograd.grad` inside the region of one argument for another that it was computed of, or is a view of",
    refused="UnsupportedError",
    torch="not in the survey",
)
def _grad_that_leads_out() -> None:
    x = dense(3, seed=1).requires_grad_()
    st.compile(lambda x, y: torch.autograd.grad((y * y).sum(), x))(x, x[1:])


@fact(
    "`torch.autograd.grad` inside the region for an argument with a hook of the caller's on its gradient",
    refused="UnsupportedError",
    torch="not in the survey",
)
def _grad_for_a_hooked_argument() -> None:
    x = dense(3, seed=1).requires_grad_()
    x.register_hook(lambda g: g * 10)
    st.compile(lambda x: torch.autograd.grad((x * x).sum(), x))(x)


@fact(
    "a leaf that requires grad is used after its shape was changed in place, under no_grad or by `x.data = y`",
    refused="eager",
    torch="not in the survey",
)
def _reshaped_leaf() -> None:
    def turned(x: Tensor) -> Tensor:
        with torch.no_grad():
            x.t_()
        return x * 2

    st.compile(turned)(dense(2, 3, seed=1).requires_grad_())


def _steps(step: Callable[[Any, Any], Callable[[], object]]) -> None:
    """Ten steps of a model, eagerly and compiled, with what ``step`` makes of it and its optimizer."""
    seen = []
    for wrap in (lambda f: f, st.compile):
        weight = torch.nn.Parameter(dense(3, 3, seed=1))
        run = wrap(step(weight, torch.optim.SGD([weight], lr=0.1)))
        seen.append([(run(), weight.tolist())[1] for _ in range(10)])
    assert seen[0] == seen[1]


@fact(
    "a `GradScaler`'s step in the region, which it leaves out where a gradient is not finite: a branch, without copies (one that "
    "changes other Python state is handed over; with a back end that wants functional graphs both sides are computed; wrappers count a version there also where nothing is written)",
    torch="graph breaks",
)
def _scaled_step() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def step(weight: Any, optimizer: Any) -> Callable[[], object]:
        def run() -> None:
            scaler.scale(weight.square().sum()).backward()
            scaler.step(optimizer)
            scaler.update()

        return run

    _steps(step)


@fact(
    "`Adafactor`, `ASGD` in the region, which take the larger of two numbers inside tensors",
    refused="DataDependentError",
    torch="graph breaks",
)
def _largest() -> None:
    def step(weight: Any, _: Any) -> Callable[[], object]:
        def run() -> None:
            with torch.no_grad():
                weight.div_(max(1.0, weight.norm(2).item())).add_(0.5)

        return run

    _steps(step)


@fact(
    "`RAdam`, `AveragedModel.update_parameters` in the region, which branch on small tensors of their state: a specialization "
    "for each branch, which each call checks before it writes",
    torch="graph breaks",
)
def _branching_step() -> None:
    def step(weight: Any, _: Any) -> Callable[[], object]:
        model = torch.nn.ParameterList([weight])
        average = torch.optim.swa_utils.AveragedModel(model)

        def run() -> None:
            average.update_parameters(model)
            with torch.no_grad():
                weight.add_(average.module[0])

        return run

    _steps(step)


@fact(
    "`scheduler.step()` in the region, but for `MultiStepLR` (a specialization for each step, then Dynamo)",
    torch="graph breaks",
)
def _scheduled_step() -> None:
    def step(weight: Any, optimizer: Any) -> Callable[[], object]:
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return lambda: (weight.square().sum().backward(), optimizer.step(), schedule.step(), optimizer.zero_grad())

    _steps(step)
