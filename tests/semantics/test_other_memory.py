"""What lies in which memory: shapes set in place, data set after views were made, and arguments that repeat their elements."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.zoo import Masked, TwoTensor

Tensor = torch.Tensor
CALLS: list[Callable[[Any], Any]] = [lambda f: f, st.compile, lambda f: st.compile(f, dynamic=True)]


def dense(t: Tensor) -> Tensor:
    return t.a if isinstance(t, TwoTensor) else t


def facts(results: Any) -> list[Any]:
    rows = results if isinstance(results, tuple) else (results,)
    return [(type(t), dense(t).tolist(), t.stride(), t.requires_grad) if isinstance(t, Tensor) else t for t in rows]


def same_sizes(x: Tensor) -> Any:
    z = x.clone().t()
    z.resize_(2, 3)
    return z.reshape(-1), z.stride()


def as_another(x: Tensor) -> Any:
    z = x.clone().t()
    z.resize_as_(torch.ones(2, 3))
    return z.reshape(-1), z.stride()


def other_sizes(x: Tensor) -> Any:
    z = x.clone().t()
    z.resize_(3, 2)
    return z * 1, z.stride()


def fewer(x: Tensor) -> Any:
    z = x.clone().t()
    z.resize_(4)
    return z * 1


def channels_last(x: Tensor) -> Any:
    z = x.clone().view(1, 2, 3, 1)
    z.resize_((1, 2, 3, 1), memory_format=torch.channels_last)
    return z.stride(), z.reshape(-1)


def argument(x: Tensor) -> Any:
    x.t_()
    x.resize_(2, 3)
    return x.reshape(-1), x.stride()


@pytest.mark.parametrize("wrapper", [False, True])
@pytest.mark.parametrize("f", [same_sizes, as_another, other_sizes, fewer, channels_last, argument])
def test_sizes_that_are_set_in_place(f: Callable[..., Any], wrapper: bool) -> None:
    seen = []
    for call in CALLS[: 2 if wrapper else 3]:  # torch resizes no wrapper whose sizes are symbols
        x = torch.arange(6.0).view(3, 2)
        x = TwoTensor(x, x + 10) if wrapper else x
        seen.append((facts(call(f)(x)), facts(x)))
    assert all(row == seen[0] for row in seen)


def data_after_a_view(x: Tensor) -> Any:
    v = x[1:]
    x.data = x * 3
    return v


def data_after_a_write_and_a_view(x: Tensor) -> Any:
    v = x.view(-1)
    x.mul_(2)
    x.data = x * 3
    v.add_(1)
    return v


def data_of_a_view(x: Tensor) -> Any:
    v = x[1:]
    v.data = x.clone()
    return v


def data_of_a_view_of_a_value(x: Tensor) -> Any:
    h = x * 2
    v = h[1:]
    v.data = x + 1
    h.mul_(5)
    return v, h


@pytest.mark.parametrize(
    ("f", "wrapper"),
    [
        *((f, w) for f in (data_after_a_view, data_after_a_write_and_a_view) for w in (False, True)),
        (data_of_a_view, False),  # of a wrapper, eager sets the outer size alone
        (data_of_a_view_of_a_value, False),
    ],
)
def test_data_that_is_set_after_a_view_was_made(f: Callable[..., Any], wrapper: bool) -> None:
    seen = []
    for call in CALLS:
        x = torch.arange(6.0).view(3, 2)
        held = x[0]
        x = TwoTensor(x, x + 10) if wrapper else x
        results = call(f)(x)
        first = results[0] if isinstance(results, tuple) else results
        dense(first).add_(100)  # seen by whatever shares its memory
        seen.append(([dense(t).tolist() for t in (first, x)], held.tolist(), first.shape))
    assert all(row == seen[0] for row in seen)


def test_data_of_an_inner_tensor_after_a_view() -> None:
    def f(w: TwoTensor) -> Tensor:
        v = w.t()
        w.a.data = w.a * 3
        return v

    for call in CALLS:
        a = torch.ones(2, 2)
        w = TwoTensor(a, a.clone())
        v = call(f)(w)
        assert v.a.tolist() == [[1.0, 1.0], [1.0, 1.0]] and w.a.tolist() == [[3.0, 3.0], [3.0, 3.0]]


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: (lambda b: (b, b.expand(2, 3)))(torch.arange(3.0)),
        lambda: (lambda b: (b[:2], b[1:].expand(2, 2)))(torch.arange(3.0)),
        lambda: (lambda b: (b, b.view(-1)[1:4].expand(2, 3)))(torch.arange(6.0).view(2, 3)),
    ],
)
def test_an_argument_that_repeats_elements_of_one_that_is_written(make: Callable[[], Any], order: bool) -> None:
    def write(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return y * 3

    def turned(y: Tensor, x: Tensor) -> Tensor:
        return write(x, y)

    seen = []
    for call in CALLS:
        f = call(turned if order else write)
        for _ in range(2):
            x, y = make()
            result = f(*((y, x) if order else (x, y)))
            seen.append([(t.tolist(), t._version) for t in (result, x, y)])
    assert all(row == seen[0] for row in seen)


def test_a_view_of_a_leaf_gives_up_no_gradient() -> None:
    def f(v: Tensor) -> Tensor:
        v.requires_grad_(False)
        return v * 2

    for call in CALLS:
        x = torch.ones(3, requires_grad=True)
        with torch.no_grad():
            v = x.view(3)
        y = call(f)(v)
        assert y.requires_grad and v.requires_grad


def test_a_view_that_requires_grad_by_itself_gives_it_up() -> None:
    def f(v: Tensor) -> Tensor:
        v.requires_grad_(False)
        return v * 2

    for call in CALLS:
        v = torch.ones(3, 2)[0].requires_grad_()
        assert not call(f)(v).requires_grad and not v.requires_grad


def test_a_view_is_not_detached_in_place() -> None:
    for call in CALLS:
        with pytest.raises(RuntimeError, match="detach views in-place"):
            call(lambda x: x.detach_() * 2)(torch.ones(4)[1:])
        x = torch.ones(3, requires_grad=True)
        assert not call(lambda x: x.detach_() * 2)(x).requires_grad and not x.requires_grad


def smaller(x: Tensor) -> Any:
    v = x[1:]
    x.mul_(2)
    x.resize_(2)
    return v


def other_place(x: Tensor) -> Any:
    v = x[:1]
    x.mul_(2)
    x.data = x[1:]
    return v


def set_to_a_part(x: Tensor) -> Any:
    x.mul_(2)
    x.set_(x[1:])


def strided(x: Tensor) -> Any:
    v = x[1:]
    x.mul_(2)
    x.as_strided_((2,), (1,), 1)
    return v


@pytest.mark.parametrize("f", [smaller, other_place, set_to_a_part, strided])
def test_what_was_written_before_a_tensor_became_smaller(f: Callable[..., Any]) -> None:
    seen = []
    for call in CALLS:
        x = torch.arange(6.0).view(2, 3)
        whole = x.view(-1)
        result = call(f)(x)
        seen.append((facts(result), facts(x), whole.tolist(), x.storage_offset()))
    assert all(row == seen[0] for row in seen)


def through_a_step(x: Tensor) -> Any:
    v = (x * 2).view(-1)
    v.unsqueeze_(0)
    return v, v[:, 1:], v.t()


def through_two(x: Tensor) -> Any:
    v, w = x.view(-1), x[0]
    v.unsqueeze_(0)
    w.unsqueeze_(0)
    return v, v[:, 1:], w, w.t()


@pytest.mark.parametrize("wrapper", [False, True])
@pytest.mark.parametrize(("f", "grad"), [(through_a_step, False), (through_a_step, True), (through_two, False)])
def test_two_results_made_through_one_change_of_a_shape(f: Callable[..., Any], grad: bool, wrapper: bool) -> None:
    seen = []
    for call in CALLS[:2]:
        x = torch.arange(6.0).view(2, 3)
        x = (TwoTensor(x, x + 1) if wrapper else x).requires_grad_(grad)
        results = call(f)(x)
        seen.append(([(t.shape, t._version, t._is_view()) for t in results], x._version))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    "change", [lambda a: a.as_strided_((2,), (1,), 1), lambda a: a.set_(a[1:]), lambda a: a.resize_(3)]
)
def test_an_inner_tensor_that_is_an_argument_is_laid_out_once(change: Callable[[Tensor], Tensor], turned: bool) -> None:
    def f(x: Any, y: Any) -> Tensor:
        change(x if turned else y)
        return (x if turned else y) * 2

    seen = []
    for call in CALLS:
        a = torch.arange(6.0)
        w = TwoTensor(a, torch.ones(6))
        region = call(f)
        result = region(a, w) if turned else region(w, a)
        seen.append((result.tolist(), a.tolist(), a.storage_offset(), w.a is a))
    assert all(row == seen[0] for row in seen)


def test_a_wrapper_inside_of_another_argument() -> None:
    def f(x: TwoTensor, w: TwoTensor) -> Any:
        same = x.a is w
        x.t_()
        return same, tuple(w.shape), tuple(x.a.shape), w * 2

    def make(shared: bool) -> tuple[TwoTensor, TwoTensor]:
        w, other = (TwoTensor(torch.arange(6.0).view(2, 3), torch.ones(2, 3)) for _ in range(2))
        inner = w if shared else TwoTensor(w.a, w.b)
        return TwoTensor(inner, other), w

    regions = [call(f) for call in CALLS]
    for shared in (True, False, True):
        seen = []
        for region in regions:
            x, w = make(shared)
            *rest, y = region(x, w)
            seen.append((rest, y.a.tolist(), y.shape, x.shape, x.a.shape, w.shape, w.a.shape, w._version, x._version))
        assert all(row == seen[0] for row in seen[:2])


def test_arguments_of_one_memory_one_of_which_is_conjugated() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(2)
        return x * 1, y * 1

    seen = []
    for call in CALLS[:2]:
        region = call(f)
        for make in (lambda x: x.view(-1), lambda x: x.conj(), lambda x: x.clone().conj()):
            x = torch.complex(torch.ones(2), torch.ones(2))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # one of them runs eagerly
                results = region(x, make(x))
            seen.append([t.tolist() for t in (*results, x)])
    assert seen[:3] == seen[3:]


def test_arguments_with_negative_bits_are_written() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        y.mul_(3)
        return x + y

    seen = []
    for call in CALLS:
        x, y = (torch.ones(3, dtype=torch.complex64).mul(1 + 2j).conj() for _ in range(2))
        seen.append((call(f)(x.imag, y.imag).tolist(), x.tolist(), y.tolist()))
    assert all(row == seen[0] for row in seen)


@pytest.mark.parametrize("f", [lambda x, w: torch.complex(x, w), lambda x, w: torch.complex(x, w).conj()])
def test_tangents_that_are_still_to_be_conjugated(f: Callable[..., Tensor]) -> None:
    seen = []
    for call in CALLS:
        x, w = (torch.ones(3, requires_grad=True) for _ in range(2))
        region, rows = call(f), []
        for tangent in (torch.full((3,), 1 + 2j), torch.full((3,), 1 + 2j).conj(), torch.full((3,), 1 + 2j)):
            grads = torch.autograd.grad(region(x, w), (x, w), tangent)
            rows.append([g.tolist() for g in grads])
        seen.append(rows)
    assert all(row == seen[0] for row in seen)


@pytest.mark.parametrize("look", [torch.ravel, torch.flatten, lambda y: y.reshape(-1), lambda y: y.view(-1)])
def test_a_flat_view_of_what_is_transposed_afterwards(look: Callable[[Tensor], Tensor]) -> None:
    def of_value(x: Tensor) -> Any:
        y = x * 2
        v = look(y)
        y.t_()
        return v, y

    def of_argument(x: Tensor) -> Any:
        v = look(x)
        x.t_()
        return v

    for f in (of_value, of_argument):
        seen = []
        for call in CALLS:
            x = torch.arange(6.0).view(2, 3)
            results = call(f)(x)
            v = results[0] if isinstance(results, tuple) else results
            with torch.no_grad():
                v[1] = 50
            seen.append(facts(results))
        assert all(row == seen[0] for row in seen)
    for call in CALLS[1:]:  # autograd makes its history anew, which it cannot on fake tensors
        with pytest.raises(st.errors.UnsupportedError, match="view that requires grad after the shape of its base"):
            call(of_value)(torch.ones(2, 3, requires_grad=True))


def test_other_classes_where_a_wrapper_was_inside_of_another() -> None:
    def f(x: Any, w: Any) -> Any:
        return x * 2, w * 3

    region = st.compile(f)
    w = TwoTensor(torch.ones(2), torch.ones(2))
    other = Masked(torch.ones(2), torch.tensor([True, False]))
    region(TwoTensor(w, w * 2), w)
    for x in (torch.ones(2), TwoTensor(torch.ones(2), torch.ones(2)), other):
        assert type(region(x, w)[0]) is type(x)


def test_a_wrapper_takes_the_data_of_one_that_spans_more() -> None:
    """``x.data = y``, where the strides of ``y`` reach further than what stands for the memory of ``x``."""

    def made() -> tuple[Any, Any]:
        numbers = torch.arange(80.0)
        x = TwoTensor(numbers.as_strided((2, 3), (7, 2), 0), numbers.as_strided((2, 3), (7, 2), 40))
        return x, TwoTensor(numbers.as_strided((2, 3), (7, 3), 1), numbers.as_strided((2, 3), (7, 3), 41))

    def function(x: Any, y: Any) -> Any:
        x.data = y
        return x.add_(1), y * 1

    region = st.compile(function)
    for _ in range(2):
        (x, y), (p, q) = made(), made()
        found, expected = region(x, y), function(p, q)
        for a, b in ((x, p), (y, q), *zip(found, expected, strict=True)):
            assert (a.stride(), a._version) == (b.stride(), b._version)
            assert torch.equal(a.a, b.a) and torch.equal(a.b, b.b)
        assert found[0] is x
