"""One program, in eager and through Dynamo and this package: results, gradients, changed inputs and versions agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from subclass_trace.subclass.flatten import leaves_of
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


def dense(*size: int, grad: bool = True) -> Tensor:
    return torch.randn(*size).requires_grad_(grad)


def two(*size: int, grad: bool = True) -> Tensor:
    return TwoTensor(torch.randn(*size), torch.randn(*size)).requires_grad_(grad)


def tensors(value: Any) -> list[Tensor]:
    return [t for t in pytree.tree_leaves(value) if isinstance(t, Tensor)]


def assert_same(expected: Tensor | None, got: Tensor | None, where: str, **tolerance: Any) -> None:
    if expected is None or got is None:
        assert expected is got, where
        return
    assert type(got) is type(expected), where
    assert got.requires_grad == expected.requires_grad, where
    assert got.stride() == expected.stride(), where
    assert (got._base is None) == (expected._base is None), where
    for a, b in zip(leaves_of(expected), leaves_of(got), strict=True):
        torch.testing.assert_close(b.detach(), a.detach(), msg=lambda m: f"{where}: {m}", **tolerance)


def ones(t: Tensor) -> Tensor:
    if type(t) is Tensor:
        return torch.ones_like(t)
    return TwoTensor(*[torch.ones_like(leaf) for leaf in leaves_of(t)])


def run(function: Callable[..., Any], make: Callable[[], tuple[Any, ...]]) -> dict[str, Any]:
    torch.manual_seed(3)
    args = make()
    torch.manual_seed(4)
    results = function(*args)
    found = [t for t in tensors(results) if t.requires_grad and t.grad_fn is not None]
    if found:
        torch.autograd.backward(found, [ones(t) for t in found])
    inputs = tensors(args)
    return {
        "results": tensors(results),
        "rest": [v for v in pytree.tree_leaves(results) if not isinstance(v, Tensor)],
        "inputs": inputs,
        "grads": [t.grad if t.is_leaf else None for t in inputs],
        "versions": [t._version for t in inputs],
    }


def check(
    function: Callable[..., Any],
    make: Callable[[], tuple[Any, ...]],
    tolerance: dict[str, Any] | None = None,
    **options: Any,
) -> Callable[..., Any]:
    """Compare ``function`` with its compiled form on ``make()``; returns the compiled form."""
    options = {"fullgraph": True, **options}
    compiled = torch.compile(function, backend="subclass_trace", **options)
    expected, got = run(function, make), run(compiled, make)
    same(expected, got, tolerance)
    return compiled


def same(expected: dict[str, Any], got: dict[str, Any], tolerance: dict[str, Any] | None = None) -> None:
    """What two runs found is equal."""
    for key in ("results", "inputs", "grads"):
        assert len(expected[key]) == len(got[key])
        for k, (a, b) in enumerate(zip(expected[key], got[key], strict=True)):
            assert_same(a, b, f"{key}[{k}]", **(tolerance or {}))
    assert got["rest"] == expected["rest"]
    assert got["versions"] == expected["versions"]
