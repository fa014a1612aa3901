"""Views of a base whose shape is changed in place: the history is eager's, or the region is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
W = torch.arange(9.0).view(3, 3)


def base_transposed(x: Tensor) -> tuple[Tensor, ...]:
    base = x + x
    view = base[1:]
    base.t_()
    return view * W[1:], base * 1


def base_transposed_without_gradients(x: Tensor) -> tuple[Tensor, ...]:
    base = x + x
    view = base[1:]
    with torch.no_grad():
        base.t_()
    return view * W[1:], base * W


def base_transposed_and_written(x: Tensor) -> tuple[Tensor, ...]:
    base = x + x
    view = base[1]
    base.t_()
    base.mul_(W)
    return (view,)


def base_unsqueezed(x: Tensor) -> tuple[Tensor, ...]:
    base = x + x
    view = base[1:].t()
    base.unsqueeze_(0)
    return (view + view,)


def view_written_afterwards(x: Tensor) -> tuple[Tensor, ...]:
    base = x + x
    view = base[1]
    base.transpose_(0, 1)
    view.mul_(2)
    return (base * W,)


def view_transposed_and_base_written(x: Tensor) -> tuple[Tensor, ...]:
    base = x + x
    view = base[1:]
    view.t_()
    base.mul_(2)
    return (view * W[:, 1:],)


def view_of_a_transposed_view(x: Tensor) -> tuple[Tensor, ...]:
    base = x + x
    view = base[1:]
    view.t_()
    part = view[0]
    base.mul_(W)
    return (part * 1,)


def transposed_view_alone(x: Tensor) -> tuple[Tensor, ...]:
    base = x + x
    view = base[1:]
    view.t_()
    view.mul_(2)
    return (base * W,)


def view_made_afterwards(x: Tensor) -> tuple[Tensor, ...]:
    base = x + x
    base.t_()
    view = base[1:]
    base.mul_(W)
    return (view * 1,)


def view_not_used_afterwards(x: Tensor) -> tuple[Tensor, ...]:
    base = x + x
    view = base[1:]
    base.add_(view.sum())
    base.t_()
    base.mul_(W)
    return (base * W,)


REFUSED = (
    base_transposed,
    base_transposed_and_written,
    base_transposed_without_gradients,
    base_unsqueezed,
    view_written_afterwards,
    view_transposed_and_base_written,
    view_not_used_afterwards,
    view_of_a_transposed_view,
    transposed_view_alone,
)
RIGHT = (view_made_afterwards,)


def _seen(function: Callable[[Tensor], tuple[Tensor, ...]], make: Callable[[Tensor], Tensor]) -> tuple[str, str]:
    x = make(torch.arange(9.0).view(3, 3)).requires_grad_()
    results = function(x)
    sum((t * torch.arange(float(t.numel())).view(t.shape)).sum() for t in results).backward()
    return str([t.detach() for t in results]), str(x.grad)


@pytest.mark.parametrize("function", RIGHT)
def test_as_eager(function: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
    assert _seen(st.compile(function), torch.clone) == _seen(function, torch.clone)


@pytest.mark.parametrize("function", REFUSED)
def test_a_history_that_a_trace_would_get_wrong(function: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
    with pytest.warns(UserWarning, match="runs eagerly: the region changes the shape of a view"):
        assert _seen(st.compile(function), torch.clone) == _seen(function, torch.clone)


@pytest.mark.filterwarnings("ignore:a call of a region runs eagerly")
@pytest.mark.parametrize("function", (*REFUSED, *RIGHT))
def test_wrappers_are_as_in_eager(function: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
    def two(t: Tensor) -> Tensor:
        return TwoTensor(t.clone(), t * 2)

    found = []
    for call in (function, st.compile(function)):
        try:
            found.append(_seen(call, two))
        except RuntimeError as error:  # eager repeats the calls that made the view as well
            found.append((str(error).splitlines()[0][:30], ""))
    assert found[0] == found[1] or found[1][0].startswith("the region changes")


# ---------------------------------------------------------------------------------------------- leaves
def _two(*size: int) -> TwoTensor:
    return TwoTensor(torch.ones(*size), torch.ones(*size))


def _turned_twice(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.t_()
        x.t_()
    return x * 2


def _only_turned(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.t_()
        return x * 2


@pytest.mark.filterwarnings("ignore:a call of a region runs eagerly")
@pytest.mark.parametrize("function", [_turned_twice, _only_turned])
@pytest.mark.parametrize("kind", [torch.ones, _two])
def test_leaves_that_are_used_in_their_own_shape(kind: Any, function: Callable[[Tensor], Any]) -> None:
    seen = []
    for call in (function, st.compile(function)):
        x = kind(2, 3).requires_grad_()
        out = call(x)
        gradient = torch.autograd.grad(out.sum(), x)[0] if out.requires_grad else out
        seen.append((x.shape, x.stride(), out.shape, gradient.shape, repr(gradient)))
    assert seen[1] == seen[0]
