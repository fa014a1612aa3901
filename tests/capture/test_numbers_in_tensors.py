"""Tensors that stand for numbers, which each call reads anew; wrappers that keep numbers in their contexts."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

import subclass_trace as st
from subclass_trace import verify
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
CLOSED_OVER = torch.tensor(0)


def set_item(x: Tensor, i: Tensor) -> Tensor:
    y = x * 1
    y[i] = 5.0
    return y


def set_column(x: Tensor, i: Tensor) -> Tensor:
    y = x * 1
    y[:, i] = y[:, 0] * 2
    return y


PROGRAMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "x[i]": lambda x, i: x[i] * 2,
    "x[i], a view": lambda x, i: x[i],
    "x[:, i]": lambda x, i: x[:, i] * 2,
    "x[-i]": lambda x, i: x[-i] * 2,
    "x[i.item()]": lambda x, i: x[i.item()] * 2,
    "x[i][[1, 0]]": lambda x, i: x[i, torch.tensor([1, 0])] * 2,
    "select": lambda x, i: x.select(0, i) * 2,
    "narrow": lambda x, i: x.narrow(0, i, 2) * 2,
    "x[g]": lambda x, i: x[CLOSED_OVER] * 2,
    "x[i] = 5": set_item,
    "x[:, i] = y": set_column,
    "tolist": lambda x, i: x[i.view(1).tolist()[0]] * 2,
    "not used": lambda x, i: (x[i], x * 2)[1],
}
KINDS: dict[str, Callable[[], Tensor]] = {
    "dense": lambda: torch.randn(5, 4),
    "two": lambda: TwoTensor(torch.randn(5, 4), torch.randn(5, 4)),
}
VALUES = [2, 3, 0, -1, 4, 7, -9]


def leaves(t: Any) -> list[Tensor]:
    if isinstance(t, TwoTensor):
        return [*leaves(t.a), *leaves(t.b)]
    return [t] if isinstance(t, Tensor) else []


def seen(f: Callable[..., Any], kind: str, value: int, grad: bool) -> Any:
    torch.manual_seed(value % 5)
    x = KINDS[kind]().requires_grad_(grad)
    CLOSED_OVER.fill_(value)
    try:
        out = f(x, torch.tensor(value))
        if grad:
            (out * out).sum().backward()
    except (IndexError, RuntimeError) as error:
        return type(error)
    finally:
        CLOSED_OVER.fill_(0)
    return (
        out._is_view() and out._base is x,
        out.stride(),
        [*leaves(out.detach()), *leaves(x.grad), *leaves(x.detach())],
    )


def compare(f: Callable[..., Any], compiled: Callable[..., Any], kind: str, value: int, grad: bool) -> None:
    theirs, mine = seen(f, kind, value, grad), seen(compiled, kind, value, grad)
    if isinstance(theirs, type) or isinstance(mine, type):
        assert isinstance(theirs, type) and isinstance(mine, type), (value, theirs, mine)
        return
    assert mine[:2] == theirs[:2], value
    assert len(mine[2]) == len(theirs[2]) and all(map(torch.equal, mine[2], theirs[2])), value


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name in PROGRAMS for kind in KINDS if kind == "dense" or name != "narrow"]
)
@pytest.mark.sweep(every=4)
def test_each_call_reads_them(name: str, kind: str) -> None:
    f = PROGRAMS[name]
    for grad in (True, False) if kind == "two" else (True,):
        compiled = st.compile(f)
        with verify.enabled():
            for value in VALUES:
                compare(f, compiled, kind, value, grad)
        assert len(compiled.specializations) == (0 if name.endswith("a view") else 1)


def test_written_through_an_index() -> None:
    def f(x: Tensor, i: Tensor) -> None:
        x[i] = 7.0
        x[:, i].mul_(2)

    compiled = st.compile(f)
    for value in (1, 3, -2):
        x, y = torch.ones(4, 4), torch.ones(4, 4)
        f(x, torch.tensor(value)), compiled(y, torch.tensor(value))
        assert torch.equal(x, y)
    assert len(compiled.specializations) == 1


@pytest.mark.parametrize("kind", ["dense", "two"])
@pytest.mark.usefixtures("own_backward")
def test_outputs_of_a_size_that_depends_on_values(kind: str) -> None:
    """Tangents of other sizes are served by the same backward."""

    def f(x: Tensor, m: Tensor) -> Tensor:
        return x[m.nonzero()[:, 0]] * 2

    compiled = st.compile(f)
    for mask in ([1, 0, 1, 0, 0], [1, 1, 1, 0, 1], [0, 0, 1, 0, 0], [1, 1, 1, 1, 1]):
        rows = []
        for g in (f, compiled):
            torch.manual_seed(0)
            x = KINDS[kind]().requires_grad_()
            out = g(x, torch.tensor(mask))
            (out * out).sum().backward()
            rows.append([*leaves(out.detach()), *leaves(x.grad)])
        assert all(map(torch.equal, *rows))
    (found,) = compiled.specializations
    assert len(found.program.backwards.compiled) == 1


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_check_of_a_computed_float_is_made_in_each_call(dynamic: bool) -> None:
    def f(x: Tensor) -> Tensor:
        v = x[0].item()
        torch._check(v * 0.3 > x.shape[0] - 3)
        return x * v

    compiled = st.compile(f, dynamic=dynamic or None)
    for x in (torch.ones(3), torch.zeros(3), torch.ones(4), torch.full((4,), 4.0)):
        try:
            expected = f(x)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                compiled(x)
        else:
            assert torch.equal(compiled(x), expected)


def test_a_check_against_a_size_that_is_constant_since() -> None:
    def f(x: Tensor) -> Tensor:
        v = x[0].item()
        torch._check(v <= x.shape[0])
        return x * v * (2 if x.shape[0] == 3 else 1)

    compiled = st.compile(f, dynamic=True)
    for values in ([2, 1, 1], [4, 0, 0], [4, 1, 1, 1], [5, 1, 1, 1]):
        x = torch.tensor(values)
        if values[0] > len(values):
            with pytest.raises(RuntimeError):
                compiled(x)
        else:
            assert torch.equal(compiled(x), f(x))


def _sizes(x: Tensor) -> Any:
    n = (x > 1).sum().item()
    return torch.zeros(n), x[: x.long()[0].item()] * 1, x[:n] * 2, [n, n + 1]


def _truths(x: Tensor) -> Any:
    return x.isnan().any().item(), x[0].item() > 3


#: what Python computes with the values inside tensors
AS_NUMBERS: dict[str, Callable[[Tensor], Any]] = {"sizes": _sizes, "truths": _truths}


@pytest.mark.parametrize("name", AS_NUMBERS)
def test_numbers_of_the_call(name: str) -> None:
    f = AS_NUMBERS[name]
    compiled = st.compile(f)
    for values in (
        [3.25, 2.0, 1.5],
        [4.0, 2.0, 3.0],
        [2.0, float("nan"), 0.5] if name == "truths" else [1.5, 1.0, 2.5],
    ):
        x = torch.tensor(values)
        want, got = f(x), compiled(x)
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
        for a, b in zip(flat(got), flat(want), strict=True):
            assert type(a) is type(b)
            if isinstance(a, Tensor):
                assert (a._is_view(), a._base is None) == (b._is_view(), b._base is None)
    assert len(compiled.specializations) == 1


#: arithmetic of Python's on ``v = x.item()``: the numbers are those of eager to the bit, of NaN and infinities too
ARITHMETIC: dict[str, Callable[[Any, Tensor], Any]] = {
    "v - v": lambda v, p: p + (v - v),
    "v + 1 - v": lambda v, p: p + (v + 1 - v),
    "(v + 1e20) - 1e20": lambda v, p: p + ((v + 1e20) - 1e20),
    "2 * v - v - v": lambda v, p: p * (2 * v - v - v),
    "v * 0": lambda v, p: p + v * 0,
    "0.0 * v": lambda v, p: torch.full_like(p, 0.0 * v),
    "v // 0.5": lambda v, p: p * (v // 0.5),
    "v % 0.75": lambda v, p: p * (v % 0.75),
    "-v": lambda v, p: p * -v + abs(v),
    "v ** 2": lambda v, p: p * v**2 + v**-1,
    "2.0 ** v": lambda v, p: p * 2.0**v,
    "round": lambda v, p: p * round(v, 1),
    "floor": lambda v, p: p * math.floor(v) + math.ceil(v) - math.trunc(v) + round(v),
    "v": lambda v, p: (p * 1, v, v + 1, -v, v > 1, v != v + 1),
    "sym_max": lambda v, p: p * torch.sym_max(v, 0.0) + torch.sym_min(0.0, v),
}
FLOATS = [0.5, 2.0, float("nan"), -1.5, float("inf"), 0.0, float("-inf"), -0.0, 1.25]


def outcome(f: Callable[..., Any], *args: Any) -> Any:
    try:
        return f(*args)
    except (ValueError, OverflowError, ZeroDivisionError) as error:
        return type(error)


def compare_numbers(f: Callable[..., Any], compiled: Callable[..., Any], floats: list[float]) -> None:
    p = torch.tensor([1.0, -2.0, 3.0])
    for v in floats:
        want, got = (outcome(g, torch.tensor([v], dtype=torch.float64), p) for g in (f, compiled))
        if isinstance(want, type) or isinstance(got, type):
            assert got is want, v
        else:
            torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
            assert list(map(type, flat([got]))) == list(map(type, flat([want])))


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_of_floats_is_exact(name: str) -> None:
    compute = ARITHMETIC[name]
    f = lambda x, p: compute(x.item(), p)
    compiled = st.compile(f, frontend="trace")
    compare_numbers(f, compiled, FLOATS)
    assert len(compiled.specializations) == 1


@pytest.mark.inductor
def test_arithmetic_of_floats_is_exact_by_inductor() -> None:
    def f(x: Tensor, p: Tensor) -> Any:
        v = x.item()
        return p + (v - v), p * (v * 2 // 0.5), p * (1 / (v + 0.25))

    compare_numbers(f, st.compile(f, frontend="trace", backend="inductor"), [0.5, float("nan"), float("inf"), 2.0])


@pytest.mark.parametrize("digits", [0, 1, 2, 20])
@pytest.mark.parametrize("source", ["size", "argument", "inside"])
def test_round_of_an_int_to_tens(source: str, digits: int) -> None:
    def f(x: Tensor, n: int, i: Tensor) -> Tensor:
        k = {"size": x.shape[0], "argument": n, "inside": i.item()}[source]
        return x[:1] * round(k * 37, -digits)

    compiled = st.compile(f, frontend="trace")
    for n in (7, 12, 15, 25, 35, 0, 1350, 50, -15 if source != "size" else 4, -7 if source != "size" else 3):
        args = torch.ones(max(n, 3), dtype=torch.float64), n, torch.tensor(n)
        assert torch.equal(compiled(*args), f(*args)), n


def test_a_root_of_an_int_argument_that_is_negative() -> None:
    f = lambda x, n: x * n**0.5
    compiled = st.compile(f)
    for n in (4, 9, 2, -4, 5, -1):
        torch.testing.assert_close(compiled(torch.ones(2), n), f(torch.ones(2), n))


def flat(tree: Any) -> list[Any]:
    return [v for row in tree for v in flat(row)] if isinstance(tree, (list, tuple)) else [tree]


def _branches(x: Tensor) -> Any:
    return x if bool(x.any()) else -x


def _branches_on_an_item(x: Tensor) -> Any:
    return x if x.any().item() else -x


def _branches_on_a_comparison(x: Tensor) -> Any:
    return x if torch.allclose(x, x * 1) else -x


@pytest.mark.parametrize(
    "f",
    [
        _branches,
        _branches_on_an_item,
        _branches_on_a_comparison,
        lambda x: complex(x[0]),
        lambda x: int(x[0]),
        lambda x: math.sqrt(x[0].item()),
        lambda x: x * 2 if x[0].item() != x[0].item() else x,
        lambda x: [10, 20, 30][int(x[0])],
        lambda x: sorted(x.tolist()),
        lambda x: range(x.long()[0]),
        lambda x: [1, 2, 3][x.sum().long()],
        lambda x: max(x[0].item(), 1),
        lambda x: x * 2 if x[0].item() == x[0].item() else x,
        lambda x: x * 2 if (v := x[0].item()) >= v else x,
        lambda x: x * 2 if x[0].item() < math.inf else x,
        lambda x: x * 2 if math.isnan(x[0].item()) else x,
        lambda x: x * x[0].item() ** 0.5,
    ],
)
def test_what_needs_the_number_at_once_is_refused_with_its_line(f: Callable[[Tensor], Any]) -> None:
    with pytest.raises(st.DataDependentError) as caught:
        st.compile(f)(torch.tensor([1.0, 2.0]))
    assert "test_numbers_in_tensors.py" in str(caught.value.path)
    assert "zuf" not in str(caught.value) and "u0" not in str(caught.value)
    assert caught.value.expected and caught.value.got and caught.value.fix


def test_a_composite_operation_that_reads_numbers_in_the_code_of_a_class() -> None:
    """Taken apart once more by every attempt, it would never end. (From torch 2.15 on it reads none.)"""
    x = TwoTensor(torch.randn(1), torch.randn(1))
    with torch.inference_mode(), contextlib.suppress(st.DataDependentError):
        assert torch.equal(st.compile(lambda x: torch.combinations(x, r=1))(x).a, x.a[:, None])


# ------------------------------- numbers in contexts, which a region computes of sizes: each size gets a specialization
aten = torch.ops.aten


class Gain(torch.Tensor):
    """``data * gain``: a product with a number is one of the gain alone."""

    data_: Tensor

    @staticmethod
    def __new__(cls, data: Tensor, gain: float) -> Gain:
        self = Tensor._make_wrapper_subclass(cls, data.shape, strides=data.stride(), dtype=data.dtype)
        self.data_, self.gain, self.label = data, gain, "none"
        return self

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["data_"], {"gain": self.gain}

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, Tensor], context: Any, size: Any, stride: Any) -> Gain:
        return cls(inner["data_"], context["gain"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        x = args[0]
        if func is aten.mul.Tensor and isinstance(x, cls) and not isinstance(args[1], Tensor):
            return cls(x.data_.clone(), x.gain * args[1])
        if func.is_view:
            return return_and_correct_aliasing(func, args, kwargs, cls(func(x.data_, *args[1:]), x.gain))
        args, kwargs = tree_map_only(cls, lambda t: t.data_ * t.gain, (args, kwargs or {}))
        return func(*args, **kwargs)


def _of_two(x: Any) -> Any:
    return x * x.shape[0] * (1 / x.shape[1]), x[1:] * x.shape[0]


def _power(x: Any) -> Any:
    return x * x.shape[0] ** -0.5


def _int(x: Any) -> Any:
    return x * int(x.shape[0])


KEPT_PROGRAMS = [_power, _int, _of_two]


def _seen(*values: Any) -> list[Any]:
    return [
        (type(t), t.gain, t.label, t.data_.tolist()) if isinstance(t, Gain) else t.tolist()
        for t in tree_leaves(values)
        if isinstance(t, Tensor)
    ]


@pytest.mark.parametrize("gain", [3, 0.1])
@pytest.mark.parametrize("program", KEPT_PROGRAMS)
def test_each_size_has_the_number_of_eager(program: Callable[[Any], Any], gain: float) -> None:
    region = st.compile(program)
    for n in (2, 3, 4, 3, 2):
        a, b = (Gain(torch.arange(3.0 * n).view(n, 3), gain) for _ in range(2))
        assert _seen(region(a), a) == _seen(program(b), b)
    assert len(region.specializations) <= 3


def test_gradients_of_such_a_product() -> None:
    program: Callable[[Any], Any] = lambda x: x * (1 / x.shape[0])
    region = st.compile(program)
    for n in (2, 3, 4):
        grads = []
        for f in (program, region):
            x = Gain(torch.ones(n, 3), 0.1).requires_grad_()
            f(x).sum().backward()
            assert x.grad is not None
            grads += _seen(x.grad)
        assert grads[0] == grads[1]


@pytest.mark.parametrize("program", [lambda x: x * x.data_.sum().item()])
def test_numbers_from_inside_tensors_are_refused(program: Callable[[Any], Any]) -> None:
    with pytest.raises(st.UnsupportedError, match="a wrapper keeps a number that is computed of others"):
        st.compile(program)(Gain(torch.ones(2, 3), 0.1))


def _inside(x: Tensor, i: Tensor) -> Any:
    return x * float(x.sum()), x[int(i)] + float(i) / 3, float(x.sum()) * 2


def test_numbers_inside_tensors_by_the_classes_of_python() -> None:
    region = st.compile(_inside, frontend="trace")
    for n in range(3):
        x, i = torch.arange(3.0) * n - 1, torch.tensor(n)
        assert _seen(region(x, i)[:2]) == _seen(_inside(x, i)[:2]) and region(x, i)[2] == _inside(x, i)[2]
    assert len(region.specializations) == 1
    with pytest.raises(ValueError, match="one element"):
        st.compile(lambda x: x * float(x))(torch.ones(2))
