"""Views at places that a tensor tells, which are written to and returned: contents, versions, bases and gradients as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace import verify
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


def item(x: Tensor, k: int, n: int) -> Any:
    x[k] = n
    return x[k]


def select(x: Tensor, k: int, n: int) -> Any:
    y = x[k]
    x.add_(n)
    return y, x


def narrow(x: Tensor, k: int, n: int) -> Any:
    y = x.narrow(0, k, 1)
    y.add_(n)
    return y


def parts(x: Tensor, k: int, n: int) -> Any:
    y, z = x[k], x[k:]
    y.add_(n)
    z.mul_(2)
    return y, z, x[:k]


def several(x: Tensor, k: int, n: int) -> Any:
    x[k], x[k - 1] = n, n + 1
    return x[k], x[k - 1]


def swapped(x: Tensor, k: int, n: int) -> Any:
    t = x[k].clone()
    x[k] = x[0]
    x[0] = t * n
    return x[k], x[0]


def of_a_copy(x: Tensor, k: int, n: int) -> Any:
    v = x * 1
    y = v[k]
    v[k] = n
    return y, v


def nothing_returned(x: Tensor, k: int, n: int) -> Any:
    x[k] = n


OF_2_11 = torch.__version__.startswith("2.11")
PROGRAMS = (item, select, narrow, parts, several, swapped, of_a_copy, nothing_returned)
KINDS: dict[str, Callable[[], Tensor]] = {
    "dense": lambda: torch.arange(1.0, 5.0),
    "with a gradient": lambda: torch.arange(1.0, 5.0).requires_grad_(),
    "two": lambda: TwoTensor(torch.arange(1.0, 5.0), torch.arange(2.0, 6.0)),
}


def seen(f: Callable[..., Any], kind: str, k: int, n: int) -> Any:
    leaf = KINDS[kind]()
    x = leaf * 1 if leaf.requires_grad else leaf
    found = f(x, torch.tensor(k), n)
    out = found if isinstance(found, tuple) else () if found is None else (found,)
    if leaf.requires_grad and any(t.requires_grad for t in (x, *out)):
        sum((t * t).sum() for t in (x, *out)).backward()
    everything = [*out, x] if leaf.grad is None else [*out, x, leaf.grad]
    dense = [d.detach() for t in everything for d in ((t.a, t.b) if isinstance(t, TwoTensor) else (t,))]
    told = [(t._version, t._is_view(), t._base is x, t.storage_offset(), t.data_ptr() == x.data_ptr()) for t in out]
    return x._version, told, [d.tolist() for d in dense]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: str(f.__name__))
def test_views_that_are_written_and_returned(program: Callable[..., Any], kind: str) -> None:
    def f(x: Tensor, i: Tensor, n: int) -> Any:
        return program(x, int(i), n)

    region = st.compile(f)
    if program is parts and kind == "with a gradient" and OF_2_11:
        with pytest.raises(st.DataDependentError, match="sizes in the backward"):  # torch asks whether a size is 1
            seen(region, kind, 3, 1)
        return
    with verify.enabled():
        for k, n in ((3, 1), (2, 5), (1, 2)):
            assert seen(region, kind, k, n) == seen(f, kind, k, n), (k, n)


def test_a_view_whose_size_becomes_one() -> None:
    """The number is a symbol until it is 1, where torch makes another view."""
    region = st.compile(lambda x, k: x.expand(k, 4))
    for k in (2, 3, 1, 4, 1):
        assert region(torch.ones(4), k).shape == (k, 4)
