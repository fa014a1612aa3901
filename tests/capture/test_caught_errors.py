"""An error that the region's code catches is eager's, its text too: a program may tell by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import subclass_trace as st

Tensor = torch.Tensor
P = torch.nn.Parameter(torch.ones(2, 2))
CALLS: dict[str, Callable[[Tensor], Any]] = {
    "an attribute": lambda x: x.nope,
    "an attribute of a parameter": lambda x: P.nope,
    "shapes of a product": lambda x: x @ torch.ones(2, 2),
    "of a product with a parameter": lambda x: P @ x,
    "of a linear layer": lambda x: F.linear(x, torch.ones(2, 2)),
    "of a convolution": lambda x: F.conv1d(x, x),
    "dimensions of cat": lambda x: torch.cat([x, torch.ones(2, 2)]),
    "nothing to stack": lambda x: torch.stack([]),
    "a dict added": lambda x: x + {},  # type: ignore[operator]
    "added to a dict": lambda x: {} + x,  # type: ignore[operator]
    "compared with a text": lambda x: x < "a",  # type: ignore[operator]
    "an index": lambda x: x[5],
    "many indices": lambda x: x[1, 2, 3],
    "a mask": lambda x: x[torch.ones(2, dtype=torch.bool)],
    "a view": lambda x: x.view(7),
    "a permutation": lambda x: x.permute(1, 0),
    "a dimension": lambda x: x.sum(4),
    "a keyword": lambda x: x.sum(foo=1),
    "a length": lambda x: len(x.sum()),
    "targets": lambda x: F.cross_entropy(x, x[:2]),
    "indices that are floats": lambda x: F.embedding(x, P),
    "a dtype in place": lambda x: x.clone().long().add_(x),
    "the shape of a norm": lambda x: F.layer_norm(x, (4,)),
    "the class of an index": lambda x: x.scatter(0, x, x),
    "a condition": lambda x: torch.where(x, x, x),
    "an equation": lambda x: torch.einsum("ij,j", x, x),
    "more elements than there are": lambda x: x.expand(2),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_error_that_is_caught(name: str) -> None:
    def f(x: Tensor) -> str:
        try:
            CALLS[name](x)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "none"

    x = torch.ones(3)
    expected = f(x)
    assert st.compile(f, frontend="trace")(x) == expected != "none"
