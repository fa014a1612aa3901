"""Python attributes of tensors which a function names: read, they are guarded; set, refused. So are traced tensors that it
sets on objects of libraries."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


@pytest.mark.parametrize("kind", [lambda t: t, torch.nn.Parameter])
def test_reads(kind: Any) -> None:
    w = kind(torch.ones(2))
    w.factor, w.label = 2.0, "w"

    def f(x: Tensor) -> Tensor:
        return x * w * w.factor if w.label == "w" else x

    region = st.compile(f)
    x = torch.ones(2)
    for change in (lambda: None, lambda: setattr(w, "factor", 5.0), lambda: setattr(w, "label", "v")):
        change()
        assert torch.equal(region(x), f(x))
    w = kind(torch.full((2,), 3.0))  # another tensor of that name
    w.factor, w.label = 7.0, "w"
    assert torch.equal(region(x), f(x))
    w.factor = 2.0
    assert torch.equal(region(x), f(x))


@pytest.mark.parametrize("made", [lambda x: 5, lambda x: x * 2])
def test_writes(made: Any) -> None:
    w, v = torch.ones(2), TwoTensor(torch.ones(2), torch.ones(2))
    w.tag = 1  # type: ignore[attr-defined]

    def plain(x: Tensor) -> Tensor:
        w.tag = made(x)  # type: ignore[attr-defined]
        return x + 1

    def wrapped(x: Tensor) -> Tensor:
        v.tag = made(x)
        return x + 1

    for f, held in ((plain, w), (wrapped, v)):
        region = st.compile(f, frontend="trace")
        for k in range(3):
            x = torch.full((2,), float(k))
            assert torch.equal(region(x), x + 1)
            assert torch.equal(torch.as_tensor(held.tag), torch.as_tensor(made(x)))


def test_an_argument_may_be_given_attributes_though_it_has_a_name() -> None:
    w = torch.ones(2)

    def f(x: Tensor) -> Tensor:
        x.tag = 5  # type: ignore[attr-defined]
        return x + w

    region = st.compile(f)
    for t in (torch.ones(2), w):
        assert region(t).tolist() == [2.0, 2.0] and t.tag == 5  # type: ignore[attr-defined]


def test_objects_of_libraries_get_what_is_assigned() -> None:
    d = torch.distributions.Bernoulli(probs=torch.tensor([0.2, 0.7]))
    scaler: Any = torch.amp.GradScaler("cpu")

    def f(x: Tensor) -> Tensor:
        d.probs = x
        return d.mean * 2

    region = st.compile(f, frontend="trace")
    for k in range(3):
        x = torch.full((2,), k / 4)
        assert torch.equal(region(x), x * 2) and torch.equal(d.probs, x)

    def g(x: Tensor) -> Tensor:
        scaler.last = x
        return x * 2

    st.compile(g, frontend="trace")(x)
    assert scaler.last is x
    was = d.probs

    def temporarily(x: Tensor) -> Tensor:
        old, d.probs = d.probs, x
        try:
            return d.mean * 2
        finally:
            d.probs = old

    x = torch.tensor([0.5, 0.25])
    assert torch.equal(st.compile(temporarily)(x), temporarily(x)) and d.probs is was
