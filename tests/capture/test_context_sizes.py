"""Sizes inside contexts, and outer sizes that no inner tensor has: symbols like other sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import subclass_trace as st
from subclass_trace import verify

Tensor = torch.Tensor


class Padded(Tensor):
    """The first ``count`` rows of a tensor. The context is the number; no inner tensor has it as a size."""

    @staticmethod
    def __new__(cls, rows: Tensor, count: Any, *outer: Any) -> Padded:
        size = (count, *rows.shape[1:])
        return Tensor._make_wrapper_subclass(cls, size, rows.stride(), dtype=rows.dtype, device=rows.device)

    def __init__(self, rows: Tensor, count: Any, *outer: Any) -> None:
        self.rows, self.count = rows, count

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["rows"], self.count

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, Tensor], context: Any, size: Any, stride: Any) -> Padded:
        return cls(inner["rows"], context)

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        (count, *_) = [a.count for a in pytree.tree_leaves((args, kwargs)) if isinstance(a, cls)]
        args, kwargs = pytree.tree_map_only(cls, lambda x: x.rows, (args, kwargs or {}))
        if func is torch.ops.aten.sum.default:
            return func(args[0][:count])
        return pytree.tree_map_only(Tensor, lambda t: cls(t, count), func(*args, **kwargs))


class Described(Padded):
    """The same number in a dict, beside a size that the class takes from its inner tensor, and a constant."""

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["rows"], {"count": self.count, "padded": tuple(self.rows.shape), "bits": 4}

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, Tensor], context: Any, size: Any, stride: Any) -> Described:
        assert context["bits"] == 4
        return cls(inner["rows"], context["count"])


class Outside(Padded):
    """The number is told by the outer size alone."""

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["rows"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, Tensor], context: Any, size: Any, stride: Any) -> Outside:
        return cls(inner["rows"], size[0])


CLASSES = [Padded, Described, Outside]
PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "pointwise": lambda x: x * 2,
    "size as a result": lambda x: (x * 2, x.shape[0] + 1),
    "size as a number": lambda x: x * x.shape[0],
}


def compare(f: Callable[..., Any], compiled: Callable[..., Any], make: Callable[[], Tensor]) -> None:
    rows = []
    for g in (f, compiled):
        x = make().requires_grad_()
        out = g(x)
        first, *rest = out if isinstance(out, tuple) else (out,)
        first.backward(type(first)(torch.ones_like(first.rows), first.count))
        grad = x.grad
        rows.append(
            ([type(first), tuple(first.shape), first.__tensor_flatten__(), *rest], first.rows.detach(), grad.rows)
        )
        assert type(grad) is type(x) and grad.count == x.count and type(grad.count) is int
    assert rows[0][0] == rows[1][0]
    torch.testing.assert_close(rows[0][1:], rows[1][1:])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("cls", CLASSES)
def test_one_more_specialization(cls: type[Padded], name: str, dynamic: bool) -> None:
    f = PROGRAMS[name]
    compiled = st.compile(f, dynamic=dynamic)
    with verify.enabled():
        for count, padded in ((3, 8), (4, 8), (6, 8), (5, 8), (3, 8), (8, 8), (7, 8)):
            compare(f, compiled, lambda c=count, p=padded: cls(torch.randn(p, 2, generator=_seed(c)), c))  # type: ignore[misc]
    assert len(compiled.specializations) <= 2, compiled.explain()


def _seed(n: int) -> torch.Generator:
    return torch.Generator().manual_seed(n)


@pytest.mark.parametrize("cls", CLASSES)
def test_a_branch_on_the_number_is_guarded(cls: type[Padded]) -> None:
    f = lambda x: x * 2 if x.shape[0] > 4 else x * 3
    compiled = st.compile(f)
    for count in (3, 4, 6, 5, 3, 7, 2):
        compare(f, compiled, lambda c=count: cls(torch.randn(8, 2, generator=_seed(c)), c))  # type: ignore[misc]
    assert len(compiled.specializations) <= 3


@pytest.mark.parametrize("cls", CLASSES)
def test_sizes_0_and_1_are_said(cls: type[Padded]) -> None:
    compiled = st.compile(PROGRAMS["pointwise"])
    for count in (3, 4, 1, 5, 1, 6):
        compare(PROGRAMS["pointwise"], compiled, lambda c=count: cls(torch.randn(8, 2, generator=_seed(c)), c))  # type: ignore[misc]
    assert len(compiled.specializations) == 3
    assert "0 and 1 get specializations of their own" in compiled.explain()


def test_a_number_that_differs_by_itself_is_compared() -> None:
    """A number of the context that is no size has its value in each graph."""

    class Step(Padded):
        def __tensor_flatten__(self) -> tuple[list[str], Any]:
            return ["rows"], (self.rows.shape[0], self.count)

        @classmethod
        def __tensor_unflatten__(cls, inner: dict[str, Tensor], context: Any, size: Any, stride: Any) -> Step:
            return cls(inner["rows"], context[1])

    f = PROGRAMS["pointwise"]
    compiled = st.compile(f)
    for count, padded in ((3, 8), (3, 9), (3, 10), (5, 9), (5, 8)):
        compare(f, compiled, lambda c=count, p=padded: Step(torch.randn(p, 2, generator=_seed(c)), c))  # type: ignore[misc]
    assert len(compiled.specializations) <= 4


def test_dimensions_that_differed_have_symbols_of_their_own() -> None:
    """Equal sizes share a symbol only as long as they never differed."""
    compiled = st.compile(lambda x, y: (x * 2, y * 3))
    for a, b in ((3, 5), (6, 6), (7, 8), (4, 2)):
        x, y = torch.randn(a, 2), torch.randn(b, 2)
        torch.testing.assert_close(compiled(x, y), (x * 2, y * 3))
    assert len(compiled.specializations) == 2


class WithShape(torch.Tensor):
    """Keeps its shape in the context, and takes it from there."""

    a: torch.Tensor

    @staticmethod
    def __new__(cls, a: torch.Tensor, shape: Any, kept: Any = None) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=a.dtype)

    def __init__(self, a: torch.Tensor, shape: Any, kept: Any = None) -> None:
        self.a, self.kept = a, kept

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["a"], ("tag", tuple(self.shape) if self.kept is None else self.kept)

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"], context[1])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        x = next(t for t in args if isinstance(t, cls))
        dense = [t.a if isinstance(t, cls) else t for t in args]
        return cls(func(*dense, **(kwargs or {})) * x._rows(), tuple(x.shape))

    def _rows(self) -> Any:
        return self.shape[0]


class ReadsItsCopy(WithShape):
    """Takes its size from outside, and reads the copy all the same."""

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"], size, context[1])

    def _rows(self) -> Any:
        return (self.kept or self.shape)[0]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("cls", [WithShape, ReadsItsCopy])
def test_a_class_that_takes_its_outer_size_from_the_context(cls: type[WithShape], dynamic: bool) -> None:
    def f(x: Any) -> Any:
        return x.sin(), x.shape[0]

    region = st.compile(f, dynamic=dynamic)
    for n in (3, 4, 5, 6, 3):
        (y, k), (wanted, m) = (call(cls(torch.ones(8, 3), (n, 3))) for call in (region, f))
        assert y.shape == wanted.shape and y.a.equal(wanted.a) and k == m == n
    assert len(region.specializations) <= 2
