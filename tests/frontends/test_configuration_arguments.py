"""Configuration among the arguments, in objects of Python and torch: a region sees a change of it in place."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import subclass_trace as st

Tensor = torch.Tensor
Space = argparse.Namespace
Function = Callable[[Tensor, Any], Tensor]


@dataclasses.dataclass(frozen=True)
class Frozen:
    inner: Any


class Words(dict[str, Any]):
    __getattr__ = dict.__getitem__


class Factor:
    k = 1.0


def a_function() -> Any:
    def function(x: Tensor) -> Tensor:
        return x * function.k  # type: ignore[attr-defined, no-any-return]

    function.k = 1.0  # type: ignore[attr-defined]
    return function


def a_python_module() -> types.ModuleType:
    module = types.ModuleType("of_the_user")
    module.k = 1.0  # type: ignore[attr-defined]
    return module


def an_optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.ones(()))], lr=1.0)


def a_scheduler() -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.StepLR(an_optimizer(), 1, 0.5)


def step(scheduler: Any) -> None:
    scheduler.optimizer.step()
    scheduler.step()


#: name -> (function, second argument, its changes)
CASES: dict[str, tuple[Function, Callable[[], Any], list[Callable[[Any], Any]]]] = {
    "namespace in a namespace": (
        lambda x, p: x * p.inner.k * p.items[1]["k"],
        lambda: Space(inner=Space(k=1.0), items=[0, {"k": 1.0}]),
        [lambda p: setattr(p.inner, "k", 2.0), lambda p: p.items[1].update(k=3.0)],
    ),
    "tensor in a namespace": (
        lambda x, p: x * p.w,
        lambda: Space(w=torch.ones(())),
        [lambda p: p.w.mul_(2), lambda p: setattr(p, "w", torch.full((), 3.0))],
    ),
    "namespace in a frozen dataclass": (
        lambda x, p: x * p.inner.k,
        lambda: Frozen(Space(k=1.0)),
        [lambda p: setattr(p.inner, "k", 2.0)],
    ),
    "dict of the user's": (
        lambda x, p: x * p.k * p.w,
        lambda: Words(k=1.0, w=torch.ones(())),
        [lambda p: p.update(k=2.0), lambda p: p["w"].mul_(3), lambda p: p.update(w=torch.full((), 5.0))],
    ),
    "UserDict": (
        lambda x, p: x * p["k"] * p["w"],
        lambda: collections.UserDict(k=1.0, w=torch.ones(())),
        [lambda p: p.update(k=2.0), lambda p: p["w"].mul_(3), lambda p: p.update(w=torch.full((), 5.0))],
    ),
    "view of a dict": (
        lambda x, p: x * p[0]["k"],
        lambda: (lambda held: [types.MappingProxyType(held), Space(held=held)])({"k": 1.0}),
        [lambda p: p[1].held.update(k=2.0)],
    ),
    "list in a partial": (
        lambda x, p: p(x),
        lambda: functools.partial(lambda held, x: x * held[0], [1.0]),
        [lambda p: p.args[0].__setitem__(0, 2.0)],
    ),
    "function": (lambda x, p: p(x), a_function, [lambda p: setattr(p, "k", 2.0)]),
    "class": (lambda x, p: x * p.k, lambda: type("Factor", (Factor,), {}), [lambda p: setattr(p, "k", 2.0)]),
    "Python module": (lambda x, p: x * p.k, a_python_module, [lambda p: setattr(p, "k", 2.0)]),
    "optimizer": (
        lambda x, p: x * p.param_groups[0]["lr"],
        an_optimizer,
        [lambda p: p.param_groups[0].update(lr=2.0)],
    ),
    "scheduler": (lambda x, p: x * p.get_last_lr()[0], a_scheduler, [step]),
    "iterator": (lambda x, p: x * next(p), lambda: iter([1.0, 2.0, 3.0]), [lambda p: None]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_change_in_place_is_seen(name: str) -> None:
    function, make, changes = CASES[name]
    rows = []
    for call in (function, st.compile(function)):
        p = make()
        rows.append([float(call(torch.ones(()), p))])
        for change in changes:
            change(p)
            rows[-1] += [float(call(torch.ones(()), p)) for _ in range(2)]
    assert rows[0] == rows[1] and len(set(rows[0])) > 1
