"""Hooks that leaves have from outside, under a backward inside of the region: an optimizer in the backward, gradients clipped."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Step = Callable[[torch.Tensor], torch.Tensor]


def in_place(method: Callable[[float], object], number: float) -> None:
    method(number)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))


def steps_in_the_backward(kind: Any, **options: Any) -> Callable[[nn.Module, list[Any]], Step]:
    def make(module: nn.Module, log: list[Any]) -> Step:
        optimizers = {p: kind([p], lr=0.1, **options) for p in module.parameters()}
        names = {p: name for name, p in module.named_parameters()}

        def hook(p: torch.Tensor) -> None:
            log.append(names[p])
            optimizers[p].step()
            optimizers[p].zero_grad()

        for p in optimizers:
            p.register_post_accumulate_grad_hook(hook)

        def step(x: torch.Tensor) -> torch.Tensor:
            loss = module(x).square().mean()
            loss.backward()
            return loss.detach()

        return step

    return make


def clipped(module: nn.Module, log: list[Any]) -> Step:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for name, p in module.named_parameters():
        p.register_hook(lambda g, name=name: (log.append(name), g.clamp(-0.01, 0.01))[1])
        p.register_hook(lambda g: None)

    def step(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            loss = module(x).square().mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def changed_in_place(module: nn.Module, log: list[Any]) -> Step:
    """One gradient reaches two leaves, and a hook writes to it."""
    a, b = (nn.Parameter(torch.ones(4)) for _ in range(2))
    module.a, module.b = a, b
    a.register_post_accumulate_grad_hook(lambda p: in_place(p.grad.mul_, 3))

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = ((a + b) * x).sum()
        loss.backward()
        return loss.detach()

    return step


def read_first(module: nn.Module, log: list[Any]) -> Step:
    """Leaves that are read before what they are used in."""
    inner = steps_in_the_backward(torch.optim.SGD)(module, log)

    def step(x: torch.Tensor) -> torch.Tensor:
        norm = sum(p.detach().square().sum() for p in module.parameters())
        return inner(x) + norm

    return step


MAKERS = {
    "SGD": steps_in_the_backward(torch.optim.SGD),
    "AdamW": steps_in_the_backward(torch.optim.AdamW, foreach=False),
    "clipped": clipped,
    "changed in place": changed_in_place,
    "read first": read_first,
}


@pytest.mark.parametrize("name", MAKERS)
def test_as_in_eager_mode(name: str) -> None:
    modules, logs = [model(), model()], [[], []]
    eager, traced = (MAKERS[name](m, log) for m, log in zip(modules, logs, strict=True))
    region = st.compile(traced, frontend="trace")
    for _ in range(5):
        x = torch.randn(3, 4)
        assert torch.equal(eager(x), region(x)) and logs[0] == logs[1]
        for p, q in zip(*(m.parameters() for m in modules), strict=True):
            assert torch.equal(p, q) and (p.grad is None) == (q.grad is None)
            assert p.grad is None or torch.equal(p.grad, q.grad)
    assert len(region.specializations) == (2 if name == "changed in place" else 1)  # with and without a gradient


def test_the_steps_are_between_the_operations_of_the_backward() -> None:
    region = st.compile(steps_in_the_backward(torch.optim.SGD)(model(), []), frontend="trace")
    region(torch.randn(3, 4))
    targets = [str(n.target) for n in region.specializations[0].graphs.forward.graph.nodes]
    writes = [k for k, name in enumerate(targets) if "add_" in name]
    assert min(writes) < targets.index("aten.gelu_backward.default") < max(writes)


def test_which_hooks_there_are_and_what_they_read_is_compared() -> None:
    weight, scale = nn.Parameter(torch.ones(3)), {"by": 2.0, "name": "a"}
    first = weight.register_post_accumulate_grad_hook(lambda p: in_place(p.grad.mul_, scale["by"]))

    @st.compile(frontend="trace")
    def step(x: torch.Tensor) -> torch.Tensor:
        weight.grad = None
        (weight * x).sum().backward()
        return weight.grad * 1

    x = torch.ones(3)
    assert step(x).tolist() == [2.0] * 3
    scale["name"] = "b"
    assert step(x).tolist() == [2.0] * 3 and len(step.specializations) == 1
    scale["by"] = 3.0
    assert step(x).tolist() == [3.0] * 3
    weight.register_hook(lambda g: g + 1)
    assert step(x).tolist() == [6.0] * 3
    first.remove()
    assert step(x).tolist() == [2.0] * 3


def test_of_an_argument_and_of_a_wrapper() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        loss = (x * x).sum()
        loss.backward()
        return loss.detach()

    region = st.compile(step, frontend="trace")
    for make in (lambda: torch.randn(3), lambda: TwoTensor(torch.randn(3), torch.randn(3))):
        x = make().requires_grad_()
        y = copy.deepcopy(x)
        for t in (x, y):
            t.register_hook(lambda g: g * 2)
            t.register_post_accumulate_grad_hook(lambda p: in_place(p.grad.add_, 1))
        step(x), region(y)
        for a, b in ((x.grad, y.grad),):
            assert type(a) is type(b) and bool((a == b).all() if type(a) is torch.Tensor else torch.equal(a.a, b.a))


WRONG = {
    "division": (lambda g: 1 // 0, ZeroDivisionError, "division"),
    "no tensor": (lambda g: 3, TypeError, "expected Variable"),
    "another size": (lambda g: g[:1], RuntimeError, "changed the size"),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_error_of_a_hook_is_that_of_eager_mode(name: str) -> None:
    hook, kind, text = WRONG[name]
    weight = nn.Parameter(torch.ones(3))
    weight.register_hook(hook)
    with pytest.raises(kind, match=text):
        st.compile(lambda x: (weight * x).sum().backward(), frontend="trace")(torch.ones(3))
    assert weight.grad is None


def test_a_hook_that_returns_something() -> None:
    weight = nn.Parameter(torch.ones(3))
    weight.register_post_accumulate_grad_hook(lambda p: p.grad)
    with pytest.raises(RuntimeError, match="should return None"):
        st.compile(lambda x: (weight * x).sum().backward(), frontend="trace")(torch.ones(3))


def test_torch_autograd_grad_past_a_hook_is_refused() -> None:
    weight = nn.Parameter(torch.ones(3))
    weight.register_hook(lambda g: g * 2)
    with pytest.raises(st.errors.UnsupportedError, match="hooks on its gradient"):
        st.compile(lambda x: torch.autograd.grad((weight * x).sum(), weight)[0], frontend="trace")(torch.ones(3))
