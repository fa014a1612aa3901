"""Sizes that are symbols: as an index, in contexts, in conditions, and computed of numbers from inside tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
SIZES = (5, 6, 8)


def _written(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, x.shape[1] - 1] = 7
    y[x.shape[0] - 1, 1:] = x[0, 1:]
    return y


def _input_written(x: Tensor) -> Tensor:
    x.detach()[:, x.shape[1] - 1] = 3
    return x * 2


INDEXED: dict[str, Callable[[Tensor], Any]] = {
    "last row": lambda x: x[x.shape[0] - 1],
    "after an ellipsis": lambda x: x[..., x.shape[-1] - 2],
    "new dimensions": lambda x: x[None, :, x.shape[1] - 1, None],
    "with a slice": lambda x: x[1:3, x.shape[1] - 1],
    "before a slice": lambda x: x[x.shape[0] - 1, 1 : x.shape[1] - 1 : 2],
    "with places": lambda x: x[torch.tensor([0, 2]), x.shape[1] - 1],
    "with a number from inside": lambda x: x[torch.tensor(1), x.shape[1] - 1],
    "half": lambda x: x[:, : x.shape[1] // 2],
    "a chain of views": lambda x: x.unsqueeze(0).narrow(2, 1, x.shape[1] - 2).transpose(0, 2),
    "expanded": lambda x: x[:1, :1].expand(2, x.shape[1] + 1),
    "written": _written,
    "an input written": _input_written,
    "out of bounds": lambda x: x[:, x.shape[1]],
    "below the bounds": lambda x: x[:, -x.shape[1] - 1],
    "too many": lambda x: x[0, 0, x.shape[1] - 1],
}


def _made(columns: int, kind: str, grad: bool) -> Tensor:
    numbers = torch.arange(4.0 * columns).view(4, columns)
    x = TwoTensor(numbers.sin(), numbers.cos()) if kind == "wrapper" else numbers.sin()
    return x.requires_grad_(grad)


def _shown(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_shown(v) for v in value]
    if not isinstance(value, Tensor):
        return type(value), value
    base = value._base
    aliased = value._is_view(), None if base is None else (type(base), base.shape)
    return type(value), str(value.detach()), value.stride(), value.storage_offset(), value.requires_grad, aliased


def _run(f: Callable[[Tensor], Any], columns: int, kind: str, grad: bool) -> Any:
    x = _made(columns, kind, grad)
    try:
        out = f(x)
    except (IndexError, RuntimeError, TypeError) as error:
        return type(error), str(error).partition("\n")[0]
    first = out[0] if isinstance(out, tuple) else out
    shown = _shown(out)
    if grad:
        (first * first).sum().backward()
    return shown, str(x.detach()), str(x.grad)


@pytest.mark.parametrize(("kind", "dynamic"), [("wrapper", False), ("dense", True)])
@pytest.mark.parametrize("f", [pytest.param(f, id=name) for name, f in INDEXED.items()])
@pytest.mark.sweep(every=4)
def test_as_in_eager_for_all_sizes(f: Callable[[Tensor], Any], kind: str, dynamic: bool) -> None:
    """With and without gradients: at most two specializations each."""
    region = st.compile(f, dynamic=dynamic or None)
    for columns in SIZES:
        for grad in (False, True):
            assert _run(region, columns, kind, grad) == _run(f, columns, kind, grad)
    assert len(region.specializations) <= (2 if dynamic else 4)


def test_length_of_a_class_of_its_own() -> None:
    """``len`` is what the class says."""

    class Long(TwoTensor):
        def __len__(self) -> int:
            return 17

    region = st.compile(lambda x: x * len(x), dynamic=True)
    for n in SIZES:
        assert str(region(Long(torch.ones(n), torch.zeros(n)))) == str(Long(torch.ones(n), torch.zeros(n)) * 17)


# ---------------------------------------------------------------- in contexts, and outer sizes that no inner tensor has
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


def test_a_number_of_the_context_is_compared() -> None:
    """It is no size: each has a specialization."""
    f, compiled = lambda x: x * 2, st.compile(lambda x: x * 2)
    for count in (3, 4, 6, 3):
        x = Padded(torch.randn(8, 2), count)
        found, wanted = compiled(x), f(x)
        assert found.count == wanted.count == count and torch.equal(found.rows, wanted.rows)
    assert len(compiled.specializations) == 3


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

    region = st.compile(f, dynamic=dynamic or None)
    for n in (3, 4, 5, 6, 3):
        (y, k), (wanted, m) = (call(cls(torch.ones(8, 3), (n, 3))) for call in (region, f))
        assert y.shape == wanted.shape and y.a.equal(wanted.a) and k == m == n


# ------------------------------- shapes with numbers from inside tensors; those that do not fit are refused in the call
SHAPES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "view": lambda x, k: x.view(k, -1),
    "reshape": lambda x, k: x.reshape(-1, k) * 2,
    "unflatten, all given": lambda x, k: torch.unflatten(x, -2, (2, k)) * 2,
    "unflatten, by name": lambda x, k: x.unflatten(dim=1, sizes=[3, k]),
    "pieces": lambda x, k: x.split([k, 4 - k])[1],
    "pad": lambda x, k: F.pad(x, (k, 1)),
    "interpolate": lambda x, k: F.interpolate(x.sum(0).view(1, 1, 3), size=(k * k + 1,)),
    "zeros": lambda x, k: torch.zeros(k, 3) + x.sum(0),
    "new": lambda x, k: x.new_ones((k, 2)) * 2,
}


def outcome(f: Any, x: Tensor, k: int) -> Any:
    try:
        out = f(x, torch.tensor(k))
    except Exception as error:
        return type(error)
    return [(list(t.shape), t.flatten().tolist()) for t in ((out.a, out.b) if isinstance(out, TwoTensor) else (out,))]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.sweep(every=4)
def test_as_in_eager(name: str, wrapped: bool) -> None:
    def f(x: Tensor, k: Tensor) -> Tensor:
        return SHAPES[name](x, k.item())

    region = st.compile(f, backend="eager")
    for rows in (4, 0):
        x = torch.arange(rows * 3.0).view(rows, 3)
        x = TwoTensor(x, x + 1) if wrapped else x
        for k in (2, 4, 1, 3, 12, 0, 5, -1, -2):
            expected = outcome(f, x, k)
            if k == -1 and isinstance(expected, list):  # a size, which is taken to be a number of elements
                continue
            assert outcome(region, x, k) == expected, (rows, k)
    assert len(region.specializations) <= 2


WRITTEN: dict[str, Callable[[Tensor, int, int], Any]] = {
    "a view": lambda x, n, m: (x.view(n, m).mul_(2), x * 2),
    "of a clone": lambda x, n, m: (x.clone().view(n, m).t().mul_(2), x * 2),
    "columns": lambda x, n, m: (x.view(n, m)[:, :1].t().mul_(2), x * 2),
    "new": lambda x, n, m: x.new_zeros(n, m, 2).permute(2, 1, 0).add_(1),
    "before it may be copied": lambda x, n, m: (x.add_(1), x.view(3, 4)[:, :n].contiguous() * 2),
    "a copy in any case": lambda x, n, m: (x.view(3, 4)[:, :n].clone().add_(1), x.add_(1)),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_writes_through_shapes_at_numbers(name: str) -> None:
    region = st.compile(lambda x, n, m: WRITTEN[name](x, n.item(), m.item()))
    for n, m in ((4, 3), (3, 4), (1, 12), (12, 1)):
        mine, theirs = torch.arange(12.0), torch.arange(12.0)
        found, expected = region(mine, torch.tensor(n), torch.tensor(m)), WRITTEN[name](theirs, n, m)
        rows = [r if isinstance(r, tuple) else (r,) for r in (found, expected)]
        for a, b in zip((*rows[0], mine), (*rows[1], theirs), strict=True):
            assert torch.equal(a, b) and a.stride() == b.stride()
    assert len(region.specializations) <= 1  # a view of an input at such a place, as a result, runs eagerly


SHARED: dict[str, Callable[[Tensor, int], Any]] = {
    "reshape": lambda x, n: x.view(3, 4).t().reshape(n, 12 // n).add_(1),
    "its source, returned": lambda x, n: [x.view(3, 4)[:, :n].contiguous(), x.add_(1)],
}


@pytest.mark.parametrize("name", SHARED)
def test_a_write_to_what_may_be_a_view_runs_eagerly(name: str) -> None:
    x, y = torch.arange(12.0), torch.arange(12.0)
    with pytest.warns(UserWarning, match="memory that is shared or not"):
        st.compile(lambda x, n: SHARED[name](x, n.item()))(x, torch.tensor(4))
    SHARED[name](y, 4)
    assert torch.equal(x, y)


# ------------------------ what a trace takes for true of a size is guarded, also where that turns out to be another one
def _if(condition: Any) -> int:
    return 1 if condition else 0  # a result that is a condition is none that was taken for true


def _square(x: Any) -> Any:
    found = _if(x.shape[0] != 7), _if(x.shape[1] % 2 == 0), _if(x.shape[0] > 8)
    return found, (x + x.t() if x.shape[0] == x.shape[1] else x * 2)


def _multiple(x: Any) -> Any:
    found = _if(x.shape[1] != 6), _if(x.shape[0] != 6)
    return found, (x * 3 if x.shape[0] == 2 * x.shape[1] else x * 2)


def _constant(x: Any) -> Any:
    found = _if(x.shape[0] < 6), _if(x.shape[0] * x.shape[1] > 40)
    return found, (x * 3 if x.shape[0] == 6 else x * 2)


def _two(*shape: int) -> TwoTensor:
    return TwoTensor(torch.ones(shape), torch.ones(shape) * 2)


@pytest.mark.parametrize(
    ("make", "dynamic"),
    [(torch.ones, False), (torch.ones, True), (_two, True), pytest.param(_two, False, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("function", [_square, _multiple, _constant])
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.sweep(every=4)
def test_conditions_on_sizes_that_were_found_to_be_equal(
    function: Callable[..., Any], make: Callable[..., Any], dynamic: bool, backwards: bool
) -> None:
    shapes = [(4, 5), (6, 6), (7, 7), (8, 8), (9, 9), (10, 5), (12, 6), (14, 7), (6, 5), (6, 9), (5, 9)]
    region = st.compile(function, dynamic=dynamic or None)
    for shape in reversed(shapes) if backwards else shapes:
        x = make(*shape)
        expected, found = function(x), region(x)
        assert found[0] == expected[0], shape
        assert torch.equal(getattr(found[1], "a", found[1]), getattr(expected[1], "a", expected[1]))


class _Branching(torch.autograd.Function):
    """Its backward looks at a size, and goes on as if it were another one."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 1

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        factor = 2 + _if(g.shape[0] == 7)
        return g * factor if g.shape[0] == g.shape[1] else g


def test_conditions_of_a_backward() -> None:
    region = st.compile(_Branching.apply, dynamic=True)
    for shape in [(4, 5), (6, 6), (7, 7), (8, 8), (7, 3)]:
        grads = []
        for run in (_Branching.apply, region):
            x = torch.ones(shape, requires_grad=True)
            run(x).sum().backward()
            grads.append(x.grad)
        assert torch.equal(*grads), shape


TRUTHS_AS_KEYS = {
    "dict": lambda x: x * {True: 2.0, False: 3.0}[x.shape[0] > 5],
    "set": lambda x: x * (1 + ((x.shape[0] > 5) in {True})),
    "tuple": lambda x: x * {(True, 1): 2.0, (False, 1): 3.0}[x.shape[0] > 5, 1],
    "compared": lambda x: x * (2.0 if (x.shape[0] % 2 == 0) == True else 3.0),  # noqa: E712
    "differs": lambda x: x * (2.0 if (x.shape[0] % 2 == 0) != False else 3.0),  # noqa: E712
}


@pytest.mark.parametrize("f", TRUTHS_AS_KEYS.values(), ids=TRUTHS_AS_KEYS)
def test_a_condition_on_a_size_as_a_key(f) -> None:
    compiled = st.compile(f)
    for n in (4, 6, 9, 3, 8):
        assert torch.equal(compiled(torch.ones(n)), f(torch.ones(n)))
    assert len(compiled.specializations) <= 3
