"""Inputs that share a version counter: what the region writes shows on all of them, in whatever order they come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


def _no_grad_view(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x.view(-1)


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "detach": Tensor.detach,
    "data": lambda x: x.data,  # a counter of its own
    "view": lambda x: x.view(-1),
    "no_grad view": _no_grad_view,
    "part": lambda x: x.detach()[1:],
}


def _first(x: Tensor, y: Tensor) -> None:
    x.mul_(5)


def _second(x: Tensor, y: Tensor) -> None:
    y.mul_(5)


def _both(x: Tensor, y: Tensor) -> None:
    x.mul_(5)
    y.add_(1)
    x.add_(1)


@pytest.mark.parametrize("function", [_first, _second, _both])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("swapped", [False, True])
def test_versions_are_those_of_eager(function: Callable[..., None], view: str, swapped: bool) -> None:
    region = st.compile(function)
    for _ in range(2):  # the first call and the generated entry
        found = []
        for call in (function, region):
            x = torch.ones(3)
            y = VIEWS[view](x)
            call(*((y, x) if swapped else (x, y)))
            found.append((x._version, y._version, x.tolist(), y.tolist()))
        assert found[0] == found[1]


@pytest.mark.parametrize("view", ["detach", "no_grad view"])
def test_a_backward_that_saved_it_raises(view: str) -> None:
    region = st.compile(_first)
    for _ in range(2):
        x, p = torch.ones(3), torch.ones(3, requires_grad=True)
        loss = (p * x).sum()
        region(x, VIEWS[view](x))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_a_view_made_in_place_before_the_write_counts_once() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        view = x.view(1, 3).squeeze_(0)
        x.mul_(5)
        return view

    region = st.compile(function)
    for _ in range(2):
        found = []
        for call in (function, region):
            x = torch.ones(3)
            y = x.detach()
            call(x, y)
            found.append((x._version, y._version))
        assert found[0] == found[1]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", [torch.ones, lambda n: TwoTensor(torch.ones(n), torch.ones(n))])
@pytest.mark.parametrize("before", [False, True])
def test_what_the_region_saved_itself_is_watched_too(view: str, kind: Callable[..., Tensor], before: bool) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        out = x * x if before else x.sin()
        with torch.no_grad():
            y.mul_(5)
        return out if before else x * x

    region = st.compile(function)
    for _ in range(2):
        found = []
        for call in (function, region):
            x = kind(3).requires_grad_()
            out = call(x, VIEWS[view](x))
            try:
                out.sum().backward()
                found.append(str(x.grad))
            except RuntimeError as error:
                found.append("modified by an inplace operation" in str(error))
        assert found[0] == found[1]


def test_a_write_to_a_detached_result_is_noticed_by_a_backward_that_needs_the_input() -> None:
    def function(x: Tensor) -> Tensor:
        return x.detach()

    for call in (function, st.compile(function)):
        x = torch.ones(3).requires_grad_() * 2
        y = x * x
        call(x).add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_a_size_that_depends_on_values_beside_a_detached_argument() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return x[: x.long().sum().item()], x.detach()

    compiled = st.compile(function)
    for x in (torch.ones(3), torch.tensor([1.0, 0.0, 0.0])):
        for eager, mine in zip(function(x), compiled(x), strict=True):
            assert torch.equal(eager, mine) and eager._version == mine._version


def _of_the_other_written(x: Tensor, y: Tensor) -> TwoTensor:
    made = TwoTensor(y.detach(), y + 1)
    y.mul_(2)
    return made


@pytest.mark.parametrize(
    "f", [lambda x, y: TwoTensor(y.detach(), y + 1), _of_the_other_written], ids=["made", "then written"]
)
@pytest.mark.parametrize("way", [lambda b: b.t(), lambda b: b[:1], lambda b: b.detach()], ids=["view", "part", "alias"])
def test_inner_tensors_count_with_the_argument_that_they_are_detached_from(
    f: Callable[..., Any], way: Callable[[Tensor], Tensor]
) -> None:
    """The stand-ins of arguments that share memory have counters of their own: the right one is found among them."""

    def run(fn: Callable[..., Any]) -> list[Any]:
        base = torch.ones(2, 2)
        inner = fn(base, way(base)).a
        seen = [(inner._version, base._version)]
        base.mul_(2)
        return [*seen, (inner._version, base._version), inner.tolist()]

    compiled = st.compile(f)
    assert run(compiled) == run(f)
    assert run(compiled) == run(f)
