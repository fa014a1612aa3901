"""What a function reaches besides its arguments: a later call sees what is there then, as in eager."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import subclass_trace as st
from subclass_trace.frontends.reach import reach

Tensor = torch.Tensor
K = 1.0
W = torch.ones(3)
MODEL: nn.Module = nn.Linear(3, 3)
HOLDER = SimpleNamespace(k=1.0, inner=SimpleNamespace(w=torch.ones(3)), items=[1.0, [2.0]])


def helper(x: Tensor) -> Tensor:
    return x * K * W


def in_a_comprehension(x: Tensor) -> Any:
    return sum([v * K * W for v in x.unbind()])


def in_a_lambda(x: Tensor) -> Any:
    return functools.reduce(lambda a, v: a + MODEL(v) * K * W, x.unbind(), x)


def in_a_called_function(x: Tensor) -> Tensor:
    return helper(MODEL(x))


def inside_of_objects(x: Tensor) -> Tensor:
    return MODEL(x) * W * K * HOLDER.k * HOLDER.inner.w * HOLDER.items[0] * HOLDER.items[1][0]


@torch.no_grad()
def behind_a_decorator(x: Tensor) -> Tensor:
    return MODEL(x) * W * K


partial = functools.partial(lambda scale, x: MODEL(x) * scale * W * K, 2.0)
FUNCTIONS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (in_a_comprehension, in_a_lambda, in_a_called_function, inside_of_objects, behind_a_decorator)
} | {"a partial": partial}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_globals_behind_a_function(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, here = FUNCTIONS[name], globals()
    region = st.compile(function)
    x = torch.arange(9.0).view(3, 3)

    def same() -> None:
        torch.testing.assert_close(region(x), function(x))

    same()
    for key, value in {"K": 3.0, "W": torch.full((3,), 2.0), "MODEL": nn.Linear(3, 3)}.items():
        monkeypatch.setitem(here, key, value)
        same()
    monkeypatch.setattr(MODEL, "weight", nn.Parameter(torch.ones(3, 3)))
    same()
    monkeypatch.setitem(here, "helper", lambda v: v - 1)
    same()
    monkeypatch.setattr(HOLDER, "k", 5.0)
    monkeypatch.setattr(HOLDER.inner, "w", torch.zeros(3) + 7)
    monkeypatch.setattr(HOLDER, "items", [1.0, [2.0]])
    same()
    HOLDER.items[1][0] = 4.0
    same()


class Trainer:
    """An ordinary object with a module, a tensor and numbers."""

    limit = 10.0

    def __init__(self) -> None:
        self.model, self.scale, self.power, self.unread = nn.Linear(3, 2), torch.tensor(2.0), 1, 0

    def loss(self, x: Tensor) -> Tensor:
        return self.more(self.model(x)).pow(self.power).mean() * self.scale

    def more(self, x: Tensor) -> Tensor:
        return x.clamp(max=self.limit)

    __call__ = loss


class Slots(Trainer):
    __slots__ = ("extra",)


@pytest.mark.parametrize("kind", ["method", "callable", "argument", "closure"])
@pytest.mark.parametrize("cls", [Trainer, Slots])
def test_self_of_an_object(cls: type[Trainer], kind: str) -> None:
    t, x = cls(), torch.arange(6.0).view(2, 3)
    made: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
        "method": lambda: st.compile(t.loss),
        "callable": lambda: st.compile(t),
        "argument": lambda: functools.partial(st.compile(cls.loss), t),
        "closure": lambda: st.compile(lambda v: t.loss(v)),
    }
    region = made[kind]()

    def step() -> None:
        for run in (t.loss, region):
            t.model.zero_grad()
            loss = run(x)
            loss.backward()
            results.append((loss.detach(), [p.grad.clone() for p in t.model.parameters() if p.grad is not None]))
        torch.testing.assert_close(results[-1], results[-2])

    results: list[Any] = []
    step()
    t.scale = torch.tensor(5.0)
    step()
    t.power = 2
    step()
    t.model = nn.Linear(3, 2)
    step()
    t.limit = -0.5
    step()
    count = len(getattr(region, "specializations", ()))
    t.unread = 7  # no code reads it
    t.scale = torch.tensor(6.0)  # an input
    step()
    assert len(getattr(region, "specializations", ())) == count


class Slotted:
    __slots__ = ("k", "w")

    def __init__(self) -> None:
        self.w, self.k = torch.ones(2), 2.0


def test_slots() -> None:
    held = Slotted()
    region = st.compile(lambda x: x * held.w * held.k)
    assert region(torch.ones(2)).tolist() == [2, 2]
    held.k, held.w = 3.0, torch.full((2,), 2.0)
    assert region(torch.ones(2)).tolist() == [6, 6]


def test_names_of_attributes_are_no_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "step", 0)
    held = SimpleNamespace(step=2)
    region = st.compile(lambda x: x * held.step)
    for k in range(3):
        globals()["step"] = k
        assert region(torch.ones(1)).item() == 2
    assert len(region.specializations) == 1


def test_parameters_in_a_list() -> None:
    m = nn.Linear(3, 2)
    ps, x = list(m.parameters()), torch.ones(1, 3)

    def plain(x: Tensor) -> Any:
        return torch.autograd.grad(m(x).pow(2).mean() + sum(p.pow(2).sum() for p in ps), list(m.parameters()))

    def by_list(x: Tensor) -> Any:
        return torch.autograd.grad(m(x).pow(2).mean(), ps)

    for function in (plain, by_list):
        region = st.compile(function)
        torch.testing.assert_close(region(x), function(x))
        with torch.no_grad():
            ps[0].add_(1)
        torch.testing.assert_close(region(x), function(x))


def test_modules_in_a_list() -> None:
    layers = [nn.Linear(2, 2), nn.Dropout(0.9).eval()]

    def f(x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x)
        return x

    region, x = st.compile(f), torch.ones(2, 2)
    torch.testing.assert_close(region(x), f(x))
    layers[1].train()
    torch.manual_seed(3)
    found = region(x)
    torch.manual_seed(3)
    torch.testing.assert_close(found, f(x))
    layers[0] = nn.Linear(2, 2)
    layers[1].eval()
    torch.testing.assert_close(region(x), f(x))


class Defaults(nn.Module):
    k = 1
    _scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return x * self.k * self._scale


def test_attributes_of_modules_and_their_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    m = Defaults()
    region, x = st.compile(m), torch.ones(1)
    assert region(x).item() == 1
    monkeypatch.setattr(Defaults, "k", 2)
    assert region(x).item() == 2
    m.k = 3
    assert region(x).item() == 3
    m._scale = 2.0
    assert region(x).item() == 6
    m._scale = 3.0
    assert region(x).item() == 9


def test_the_walk_ends() -> None:
    ring: list[Any] = [SimpleNamespace()]
    ring.append(ring)
    ring[0].back = ring
    found = reach(lambda x: x * ring[0].back[0].back[1][0].back[0].missing)
    assert {str(s.path) for s in found.slots if not str(s.path).endswith("__")} == {"ring", "ring[0].back"}


def test_each_place_is_found_once() -> None:
    t = Trainer()
    found = reach(t.loss)
    assert len(found.slots) == len({(id(s.holder), s.key) for s in found.slots})
    assert sorted(str(s.path) for s in found.slots if str(s.path).startswith("self")) == [
        "self.__call__",
        "self.__class__",
        "self.limit",
        "self.limit",  # of the class, and that the object has none
        "self.model",
        "self.more",
        "self.more",
        "self.power",
        "self.scale",
    ]
