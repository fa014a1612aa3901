"""Functions of `torch.compile` inside of a region: they run their own back end, and where one does not, that is told once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import subclass_trace as st

Tensor = torch.Tensor
MESSAGE = r"a function of torch\.compile"


def _counting(ran: list[int]) -> Callable[..., Any]:
    def mine(graph: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            ran.append(1)
            return graph(*args)

        return run

    return mine


def test_a_function_with_a_back_end_of_its_own_is_told_once() -> None:
    ran: list[int] = []
    inner = torch.compile(lambda x: x.sin() * 2, backend=_counting(ran))
    region = st.compile(lambda x: inner(x) + 1)
    with pytest.warns(UserWarning, match=MESSAGE + r"\(backend='mine'\)") as caught:
        for n in (2, 3, 4):  # three sizes, two specializations
            torch.testing.assert_close(region(torch.ones(n)), torch.ones(n).sin() * 2 + 1)
    assert len([w for w in caught if "torch.compile" in str(w.message)]) == 1
    assert "(backend='mine'), is a part of it" in region.explain()
    assert len(ran) == 1  # where the size is a number


def test_a_module_too() -> None:
    inner = torch.compile(nn.Linear(2, 2), backend=_counting([]))
    with pytest.warns(UserWarning, match=MESSAGE):
        st.compile(lambda x: inner(x))(torch.ones(2))


def test_an_optimizer_whose_step_is_compiled() -> None:
    p = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([p], lr=0.1)
    ran: list[int] = []
    update = torch.compile(optimizer.step, backend=_counting(ran))

    def step() -> None:
        p.grad = torch.ones(3)
        update()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        st.compile(step)()
    assert len(ran) == 1
    torch.testing.assert_close(p.detach(), torch.full((3,), 0.9))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_nothing_is_lost_with(backend: str) -> None:
    inner = torch.compile(lambda x: x.sin(), backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        st.compile(lambda x: inner(x) + 1)(torch.ones(2))


@pytest.mark.inductor
def test_the_back_end_of_the_region_is_the_same() -> None:
    inner = torch.compile(lambda x: x.sin())
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        out = st.compile(lambda x: inner(x) + 1, backend="inductor")(torch.ones(2))
    torch.testing.assert_close(out, torch.ones(2).sin() + 1)
