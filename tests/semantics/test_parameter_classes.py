"""Classes of Parameters with attributes and methods alone: computed with as any Parameter, seen as what they are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import subclass_trace as st

Tensor = torch.Tensor


class Packed(nn.Parameter):
    """As quantised weights of bitsandbytes are: codes, and a state beside them."""

    scale: Any

    def __new__(cls, data: Tensor, requires_grad: bool = True, scale: Any = None) -> Any:
        made = torch.Tensor._make_subclass(cls, data, requires_grad)
        made.scale, made.calls = scale, 0
        return made

    def unpacked(self) -> Tensor:
        return self * self.scale

    @property
    def doubled(self) -> Tensor:
        return self.unpacked() * 2

    def __deepcopy__(self, memo: Any) -> Packed:
        return type(self)(self.data.clone(), self.requires_grad, copy.deepcopy(self.scale, memo))


class Derived(Packed):
    pass


def _counted(m: Any, x: Tensor) -> Tensor:
    m.w.calls += 1
    return x * m.w * m.w.calls


def _written(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        m.w.add_(1)
    return x * m.w


PROGRAMS: dict[str, Callable[[Any, Tensor], Any]] = {
    "computed with": lambda m, x: torch.mul(x, m.w).sin() + m.w,
    "its method": lambda m, x: x + m.w.unpacked(),
    "its property": lambda m, x: x + m.w.doubled,
    "its attribute": lambda m, x: x @ m.w * m.w.scale,
    "isinstance": lambda m, x: x * (2 if isinstance(m.w, Packed) else 3) * (5 if isinstance(m.w, nn.Parameter) else 7),
    "isinstance of another": lambda m, x: x * (2 if isinstance(m.w, Derived) else 3),
    "type": lambda m, x: x * len(type(m.w).__name__) * (2 if type(m.w) is Packed else 3),
    "class": lambda m, x: x * len(m.w.__class__.__name__),
    "returned": lambda m, x: (m.w, x * m.w),
    "detached": lambda m, x: m.w.detach() * x,
    "a view": lambda m, x: m.w.view(-1)[:3] * x.sum(),
    "written": _written,
    "counted": _counted,
    "a dict of them": lambda m, x: sum(p.sum() for p in dict(m.named_parameters()).values()) * x,
    "vars": lambda m, x: x * sum(v for v in vars(m.w).values() if type(v) is int),
}


def _model(cls: type[Packed]) -> Any:
    model = nn.Module()
    torch.manual_seed(0)
    model.w = cls(torch.randn(3, 3), True, scale=0.5)
    model.scales = nn.Parameter(torch.randn(3))
    return model


def _seen(program: Callable[..., Any], model: Any) -> list[Any]:
    """What a caller sees of three calls; before the last one the state beside the codes is another one."""
    seen: list[Any] = []
    for call in range(3):
        if call == 2:
            model.w.scale = 0.25
        x = torch.linspace(0, 1, 9).view(3, 3).requires_grad_()
        out = program(model, x)
        results = out if type(out) is tuple else (out,)
        seen += [(type(r), r is model.w, r.detach().clone()) for r in results]
        sum(r.sum() for r in results if r.requires_grad).backward()
        seen += [x.grad, None if model.w.grad is None else model.w.grad.clone(), model.w.calls, model.w._version]
        model.zero_grad()
    return seen


@pytest.mark.parametrize("cls", [Packed, Derived])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str, cls: type[Packed]) -> None:
    program = PROGRAMS[name]
    region = st.compile(program, frontend="trace")
    want, got = _seen(program, _model(cls)), _seen(region, _model(cls))
    assert region.specializations, "it ran eagerly"
    for k, (a, b) in enumerate(zip(want, got, strict=True)):
        if isinstance(a, tuple):
            assert a[:2] == b[:2], (k, a, b)
            a, b = a[2], b[2]
        assert torch.equal(a, b) if isinstance(a, Tensor) else a == b, (k, a, b)


def test_another_class_is_another_specialization() -> None:
    def f(w: Tensor) -> Tensor:
        return w * 2 if isinstance(w, Packed) else w * 3

    region, t = st.compile(f), torch.ones(2)
    assert torch.equal(region(Packed(t)), t * 2)
    assert torch.equal(region(nn.Parameter(t)), t * 3)
    assert torch.equal(region(Derived(t)), t * 2)


def test_one_that_computes_by_itself_is_no_plain_parameter() -> None:
    class Own(nn.Parameter):
        def __radd__(self, other: Any) -> Any:
            return other - self

    def f(x: Tensor, w: Tensor) -> Any:
        return x.numel() + w

    w = Own(torch.ones(2))
    with pytest.warns(UserWarning, match="runs eagerly"):
        got = st.compile(f)(torch.ones(3), w)
    assert torch.equal(got, f(torch.ones(3), w))
