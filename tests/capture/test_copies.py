"""``copy.copy`` and ``copy.deepcopy`` of tensors and modules inside a region."""

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


class Copies(nn.Module):
    """Computes with a copy of a layer that it has."""

    def __init__(self, program: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.program = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), program
        self.layer[0].bias = nn.Parameter(self.layer[0].bias.detach(), requires_grad=False)

    def forward(self, x: Tensor) -> Any:
        return self.program(self.layer, x)


def applied(layer: Any, x: Tensor) -> Any:
    return copy.deepcopy(layer)(x)


def beside_the_original(layer: Any, x: Tensor) -> Any:
    return copy.deepcopy(layer)(x) * layer(x) + sum(p.sum() for p in copy.deepcopy(layer).parameters())


def inner_step(layer: Any, x: Tensor) -> Any:
    fast = copy.deepcopy(layer[0])
    (gradient,) = torch.autograd.grad(fast(x).square().sum(), [fast.weight])
    with torch.no_grad():
        fast.weight -= 0.1 * gradient
    return fast(x), gradient


def shallow(layer: Any, x: Tensor) -> Any:
    return copy.copy(layer[0])(x)


@pytest.mark.parametrize("program", [applied, beside_the_original, inner_step, shallow])
def test_of_a_module(program: Any) -> None:
    found = []
    for call in (lambda m: m, st.compile):
        model = Copies(program)
        region, rows = call(model), []
        for k in range(3):
            x = torch.linspace(-1, 2, 6).reshape(2, 3).mul(k + 1).requires_grad_()
            with verify.enabled():
                out = region(x)
            first = out[0] if isinstance(out, tuple) else out
            first.square().sum().backward()
            rows += [first.detach(), x.grad, model.layer[0].weight.grad, model.layer[1].running_mean.clone()]
            model.zero_grad()
        found.append(rows)
    for want, got in zip(*found, strict=True):
        assert (want is None) == (got is None)
        if want is not None:
            torch.testing.assert_close(got, want)


def written(x: Tensor) -> Any:
    y = copy.deepcopy(x)
    return y.add_(1), x * y


def twice(x: Tensor) -> Any:
    rows = copy.deepcopy([x, {"x": x}])
    assert rows[0] is rows[1]["x"]
    return rows[0]


def shallow_written(x: Tensor) -> Any:
    y = copy.copy(x.detach())
    y.add_(1)
    return y


FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "deepcopy": copy.deepcopy,
    "deepcopy, written": written,
    "one copy of each": twice,
    "of a value": lambda x: copy.deepcopy(x.detach() * 2),
    "of a conjugate": lambda x: copy.deepcopy((x.detach() * 1j).conj()).real,
    "copy": copy.copy,
    "copy, written": shallow_written,
}
INPUTS: dict[str, Callable[[], Tensor]] = {
    "plain": lambda: torch.arange(6.0).reshape(2, 3),
    "transposed": lambda: torch.arange(6.0).reshape(2, 3).t(),
    "leaf": lambda: torch.ones(3, requires_grad=True),
    "Parameter": lambda: nn.Parameter(torch.ones(3)),
    "wrapper": lambda: TwoTensor(torch.ones(2), torch.zeros(2)),
}


def seen(t: Any) -> Any:
    if isinstance(t, tuple):
        return [seen(v) for v in t]
    rows = [t.a, t.b] if isinstance(t, TwoTensor) else [t]
    values = [(v.detach().tolist(), v.stride(), v.storage_offset()) for v in rows]
    return values, type(t), t.is_leaf, t.requires_grad, t._is_view(), t.untyped_storage().nbytes()


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_of_a_tensor(name: str, kind: str) -> None:
    f, found = FUNCTIONS[name], []
    for call in (lambda f: f, st.compile):
        region, rows = call(f), []
        for _ in range(2):
            x = INPUTS[kind]()
            with verify.enabled():
                try:
                    out = region(x)
                except st.UnsupportedError as refusal:
                    assert "returns an nn.Parameter" in str(refusal) and kind == "Parameter"
                    return
                except RuntimeError as error:
                    rows.append(type(error))
                    continue
            rows.append((seen(out), seen(x), x._version))
        found.append(rows)
    assert found[0] == found[1]


def test_what_eager_refuses_and_what_is_refused() -> None:
    region = st.compile(copy.deepcopy)
    with pytest.raises(RuntimeError, match="graph leaves"):
        region(torch.ones(2, requires_grad=True) * 2)
    with pytest.raises(st.UnsupportedError, match="part of larger memory") as refusal:
        region(torch.ones(4)[1:])
    assert "clone()" in (refusal.value.fix or "")
    x = torch.ones(2, requires_grad=True)
    x.sum().backward()
    with pytest.raises(st.UnsupportedError, match="gradient"):
        region(x)


CLOSED_OVER = {"t": torch.ones(2)}


def test_of_a_tensor_that_is_closed_over() -> None:
    region = st.compile(lambda x: copy.deepcopy(CLOSED_OVER["t"]).add_(x))
    for k in range(3):
        CLOSED_OVER["t"].fill_(k)
        assert region(torch.ones(2)).tolist() == [k + 1.0] * 2
    assert CLOSED_OVER["t"].tolist() == [2.0, 2.0]
