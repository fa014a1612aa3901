"""Which tensor an input is: code that keeps tables by tensor or by ``id()``, sets of parameters, and optimizers' state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st

Tensor = torch.Tensor
Module = torch.nn.Module
#: makes a function of a model, and what is to be looked at afterwards
Make = Callable[[Module], tuple[Callable[[Tensor], Any], Callable[[], Any]]]


def model() -> Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh(), torch.nn.Linear(2, 2))


def seen(value: Any) -> Any:
    if isinstance(value, Tensor):
        return type(value).__name__, value.tolist(), value.requires_grad, value._version
    return [seen(v) for v in value] if isinstance(value, (list, tuple)) else value


def steps(make: Make, wrap: Callable[[Any], Any]) -> Any:
    """Three calls, and what they leave in the model."""
    module = model()
    function, left = make(module)
    called, told = wrap(function), []
    for k in range(3):
        told.append(seen(called(torch.full((3, 2), 1.0 + k))))
    return told, seen(list(module.parameters())), seen(left())


def in_a_set(m: Module) -> Any:
    undecayed = {p for n, p in m.named_parameters() if n.endswith("bias")}
    return lambda x: (m(x), [p in undecayed for p in m.parameters()]), lambda: len(undecayed)


def in_a_list(m: Module) -> Any:
    kept = list(m.parameters())[::2]
    return lambda x: (m(x), [any(p is q for q in kept) for p in m.parameters()]), lambda: kept[0] is m[0].weight


def by_name_and_in_an_object(m: Module) -> Any:
    weight = m[0].weight
    m.first = weight

    class Holder:
        weight = m[0].weight

    holder = Holder()
    return lambda x: (m(x), weight is m[0].weight, holder.weight is weight, m.first is weight), lambda: (
        weight is m[0].weight,
        "weight" in vars(holder),
    )


def a_table(m: Module) -> Any:
    average = {p: p.detach().clone() for p in m.parameters()}

    def f(x: Tensor) -> Tensor:
        y = m(x)
        with torch.no_grad():
            for p in m.parameters():
                average[p].lerp_(p + 1, 0.5)
        return y

    return f, lambda: ([a is b for a, b in zip(average, m.parameters(), strict=True)], list(average.values()))


def an_optimizer(make: Callable[..., Any], first: bool, how: str) -> Make:
    def made(m: Module) -> Any:
        optimizer = make(m.parameters())
        if not first:
            m(torch.ones(2, 2)).sum().backward()
            optimizer.step()
        (group,) = optimizer.param_groups

        def f(x: Tensor) -> Any:
            optimizer.zero_grad()
            loss = m(x).pow(2).sum()
            loss.backward()
            if how == "groups":
                for p in group["params"]:
                    p.grad.mul_(0.5)
            told: Any = [p is q for p, q in zip(group["params"], m.parameters(), strict=True)]
            if how == "state":
                told += [p in optimizer.state for p in m.parameters()]
                for p in m.parameters():
                    for held in optimizer.state[p].values():
                        if held.dim():
                            held.mul_(0.5)
            optimizer.step()
            if how == "state after":
                told += [held * 1 for p in m.parameters() for held in optimizer.state[p].values()]
            return loss.detach(), told

        return f, lambda: (
            [list(held.values()) for held in optimizer.state.values()],
            [a is b for a, b in zip(optimizer.state, m.parameters(), strict=True)],
            [a is b for a, b in zip(group["params"], m.parameters(), strict=True)],
        )

    return made


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1),
}


@pytest.mark.parametrize("make", [in_a_set, in_a_list, by_name_and_in_an_object, a_table])
def test_parameters_that_stand_elsewhere_too(make: Make) -> None:
    assert steps(make, st.compile) == steps(make, lambda f: f)


@pytest.mark.parametrize(
    ("first", "how"),
    [(True, "groups"), (True, "compared"), (False, "groups"), (False, "state"), (False, "state after")],
)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_parameters_of_an_optimizer_are_those_of_the_module(kind: str, first: bool, how: str) -> None:
    make = an_optimizer(OPTIMIZERS[kind], first, how)
    assert steps(make, st.compile) == steps(make, lambda f: f)


def test_a_dropped_trace_is_made_again_where_parameters_stand_elsewhere_too() -> None:
    m = model()
    kept = list(m.parameters())

    def f(x: Tensor) -> Tensor:
        out: Tensor = m(x)
        return out * 2 if m[0].weight is kept[0] else out * 3

    def second(out: Tensor) -> Tensor:
        (grad,) = torch.autograd.grad(out.sum(), kept[0], create_graph=True)
        return torch.autograd.grad(grad.sum(), kept[0])[0]

    region, x = st.compile(f, retain_trace=False), torch.ones(3, 2)
    out = region(x)
    assert region.specializations[0].program.backwards.again is not None  # type: ignore[union-attr]
    torch.testing.assert_close(second(out), second(f(x)))
