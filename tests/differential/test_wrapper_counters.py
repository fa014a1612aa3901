"""Version counters of wrappers that have an inner tensor of an input: those of eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from wrappers import nested, scaled, two

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


def test_a_wrapper_with_an_inner_tensor_of_an_input_counts_for_itself() -> None:
    def negated(x: Tensor) -> Tensor:
        made = TwoTensor(-x.a, x.b)  # type: ignore[attr-defined]
        made.a.add_(1)
        return made

    def written(x: Tensor) -> Tensor:
        return (-x).add_(1)

    for grad in (False, True):
        for function in (negated, written):
            versions = []
            for call in (function, st.compile(function)):
                x = scaled(3, 3, seed=0) if function is written else TwoTensor(torch.ones(3), torch.ones(3))
                out = call(x.requires_grad_(grad and function is written))
                versions.append((out._version, x._version))
            assert versions[0] == versions[1]


@pytest.mark.parametrize("make", [two, nested])
@pytest.mark.parametrize(
    "step", [lambda v: v.a.add_(1), lambda v: v.a.view(3, 3).t_().mul_(2), lambda v: (v.b, v.mul_(2)), lambda v: v.a]
)
def test_inner_tensors_of_a_view_count_for_themselves(make: Any, step: Callable[[Any], Any]) -> None:
    def f(x: Any) -> Any:
        v = x.view(-1)
        step(v)
        return v, x.t()

    seen = []
    for call in (f, st.compile(f)):
        x = make(3, 3, seed=0)
        views = call(x)
        tensors = (x, *views, x.a, x.b, *(getattr(v, n) for v in views for n in "ab"))
        seen.append([t._version for t in (*tensors, *(getattr(t, "a", t) for t in tensors))])
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    "step", [lambda x: x.t_(), lambda x: x.unsqueeze_(0), lambda x: (x.t_(), x.a.add_(1), x.mul_(2))]
)
def test_a_change_of_shape_counts_for_the_outer_wrapper_alone(step: Callable[[Any], Any]) -> None:
    def f(x: Any) -> Any:
        step(x)
        return x.a, x.b.a

    seen = []
    for call in (f, st.compile(f)):
        x = nested(3, 3, seed=0)
        inside = (x.a, x.b, x.a.a, x.b.b)
        tensors = (x, *inside, *call(x))
        seen.append([t._version for t in tensors])
    assert seen[0] == seen[1]
