"""Subclasses of ``nn.Parameter`` that override nothing: closed over, in modules, as arguments, and what is asked of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import subclass_trace as st
from subclass_trace import verify
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


class Scaled(nn.Parameter):
    factor = 2.0

    def doubled(self) -> Tensor:
        return self * self.factor

    @property
    def rows(self) -> int:
        return self.shape[0]

    @classmethod
    def kind(cls) -> str:
        return cls.__name__


class Marked(Scaled):
    def __new__(cls, data: Tensor, requires_grad: bool = True) -> Marked:
        made = super().__new__(cls, data, requires_grad)
        made.mark = 3  # type: ignore[attr-defined]
        return made  # type: ignore[return-value]


class Overrides(nn.Parameter):
    def numel(self) -> int:
        return 1


def made(cls: Any = Scaled) -> Any:
    torch.manual_seed(0)
    return cls(torch.randn(3, 3))


def _asked(x: Tensor, p: Any) -> Any:
    is_scaled, is_marked = isinstance(p, Scaled), isinstance(p, Marked)
    kind = type(p) is Scaled, type(p) is Marked, type(p) is nn.Parameter, isinstance(p, nn.Parameter)
    return x @ p, is_scaled, is_marked, kind


def _written(x: Tensor, p: Any) -> Any:
    with torch.no_grad():
        p.mul_(2).add_(x.sum())
    return x @ p


def _marked(x: Tensor, p: Any) -> Any:
    p.seen = 4
    return x @ p


def _trained(x: Tensor, p: Any) -> Any:
    (x @ p).pow(2).sum().backward()
    with torch.no_grad():
        p -= 0.1 * p.grad
    return x @ p


PROGRAMS: dict[str, Callable[[Tensor, Any], Any]] = {
    "used": lambda x, p: (x @ p).relu(),
    "returned": lambda x, p: (x @ p, p, p.t(), p.detach(), p.data),
    "asked": _asked,
    "a method": lambda x, p: x @ p.doubled(),
    "a property, a class method, a class attribute": lambda x, p: (x * p.rows * p.factor, p.kind()),
    "written": _written,
    "marked": _marked,
    "trained": _trained,
    "in a wrapper": lambda x, p: TwoTensor(x, x) @ TwoTensor(p.detach(), p.detach()),
    "stored": lambda x, p: {"p": p, "y": x + p[0]},
}


def seen(out: Any, p: Any) -> Any:
    leaves = torch.utils._pytree.tree_leaves(out)
    tensors = [t for t in leaves if isinstance(t, Tensor)]
    rows = [(type(t), t is p, t._base is p, t.requires_grad, t.stride()) for t in tensors]
    values = [[u.tolist() for u in ((t.a, t.b) if isinstance(t, TwoTensor) else (t,))] for t in tensors]
    live = [t for t in tensors if t.grad_fn is not None]
    grads = [torch.autograd.grad(t.sum(), p, retain_graph=True)[0].tolist() for t in live]
    rest = [o for o in leaves if not isinstance(o, Tensor)]
    return rows, values, grads, rest, p.tolist(), p._version, vars(p), None if p.grad is None else p.grad.tolist()


@pytest.mark.parametrize("way", ["closed over", "argument", "module", "module named"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str, way: str) -> None:
    program, found = PROGRAMS[name], []
    for compiled in (False, True):
        p = made(Marked)
        holder = nn.Module()
        holder.p = p
        holder.forward = lambda x: program(x, holder.p)  # type: ignore[method-assign]  # noqa: B023
        function: Any = {
            "closed over": lambda x: program(x, p),  # noqa: B023
            "argument": lambda x: program(x, p),  # noqa: B023
            "module": holder,
            "module named": lambda x: holder(x),  # noqa: B023
        }[way]
        if way == "argument":
            region = st.compile(program) if compiled else program
            function = lambda x: region(x, p)  # noqa: B023
        elif compiled:
            function = st.compile(function)
        with verify.enabled():
            found.append([seen(function(torch.full((2, 3), k)), p) for k in (1.0, 2.0, 3.0)])
    assert found[0] == found[1]


def test_the_class_is_guarded() -> None:
    region = st.compile(_asked)
    x = torch.ones(2, 3)
    for cls in (nn.Parameter, Scaled, Marked, Scaled, nn.Parameter, Marked):
        p = made(cls)
        assert region(x, p)[1:] == _asked(x, p)[1:]
    assert len(region.specializations) == 3
    assert region(x, torch.ones(3, 3))[1:] == _asked(x, torch.ones(3, 3))[1:]


def test_attributes_are_guarded() -> None:
    region = st.compile(lambda x, p: x * p.mark * p.factor)
    x, p = torch.ones(2), made(Marked)
    assert region(x, p).tolist() == [6.0, 6.0]
    p.mark = 5
    assert region(x, p).tolist() == [10.0, 10.0]
    Scaled.factor = 3.0
    try:
        assert region(x, p).tolist() == [15.0, 15.0]
    finally:
        Scaled.factor = 2.0
    with pytest.raises(AttributeError):
        st.compile(lambda x, p: x * p.nothing)(x, p)


def test_a_module_of_such_parameters_learns() -> None:
    layer = nn.Linear(3, 3)
    layer.weight = made(Marked)
    mine, other = layer, copy.deepcopy(layer)
    assert type(other.weight) is Marked
    steps = []
    for module, wrap in ((mine, lambda f: f), (other, st.compile)):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()  # noqa: B023
            loss = module(x).pow(2).sum()  # noqa: B023
            loss.backward()
            optimizer.step()  # noqa: B023
            return loss.detach()

        run = wrap(step)
        steps.append([run(torch.full((2, 3), float(k))).item() for k in range(4)])
        assert type(module.weight) is Marked
    assert steps[0] == steps[1]


def test_inside_of_a_wrapper_they_are_refused() -> None:
    x = TwoTensor(Scaled(torch.ones(2), False), Scaled(torch.ones(2), False))
    with pytest.raises(st.ProtocolError, match="Scaled is a tensor subclass"):
        st.compile(lambda x: (x * 2, isinstance(x.a, Scaled)))(x)


def test_a_class_that_overrides_is_refused() -> None:
    with pytest.raises(st.ProtocolError, match="Overrides is a tensor subclass"):
        st.compile(lambda x, p: x)(torch.ones(2), made(Overrides))


def test_what_methods_reach_is_guarded() -> None:
    settings = {"factor": 2.0}

    class Scale(torch.nn.Parameter):
        def scaled(self) -> torch.Tensor:
            return self * settings["factor"]

    module = torch.nn.Module()
    module.w = Scale(torch.ones(1))
    of_argument, of_module = st.compile(lambda x, p: x * p.scaled()), st.compile(lambda x: x * module.w.scaled())
    for factor in (2.0, 10.0, 3.0):
        settings["factor"] = factor
        assert of_argument(torch.ones(1), module.w).item() == of_module(torch.ones(1)).item() == factor
    Scale.scaled = lambda self: self * 7.0
    assert of_argument(torch.ones(1), module.w).item() == of_module(torch.ones(1)).item() == 7.0


@pytest.mark.parametrize("where", ["named", "argument", "module"])
@pytest.mark.parametrize("gained", ["relu", "__torch_function__"])
def test_a_class_that_comes_to_override_something(where: str, gained: str) -> None:
    """Its parameters are no longer parameters like others: refused, until it is what it was."""
    kind: Any = type("Kind", (Scaled,), {})
    p, module = made(kind), nn.Linear(3, 3)
    if where == "module":
        module.weight = p
    used = {"named": lambda x: p.relu() * x, "module": lambda x: module.weight.relu() * x}
    region: Any = st.compile(used.get(where, lambda x, p: p.relu() * x))
    given = [torch.ones(3), *([p] if where == "argument" else [])]
    before = region(*given).tolist()

    def override(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (
            torch.zeros(3) if func is Tensor.relu else nn.Parameter.__torch_function__(func, types, args, kwargs or {})
        )

    setattr(kind, gained, classmethod(override) if gained != "relu" else lambda self: self * 10)
    expected = ((p * 10) if gained == "relu" else torch.zeros(3)).tolist()
    try:
        assert region(*given).tolist() == expected
    except st.SubclassTraceError as error:
        assert "Kind" in str(error)
    delattr(kind, gained)
    assert region(*given).tolist() == before
    again: Any = st.compile(lambda x, p: p.relu() * x)
    assert again(torch.ones(3), p).tolist() == before
