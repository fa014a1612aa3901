"""What eager refuses is refused alike; what reads the memory of a tensor is refused at the user's line."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import subclass_trace as st
from subclass_trace.errors import DataDependentError, UnsupportedError
from subclass_trace.zoo import TwoTensor

# ---------------------------------- calls that eager refuses: the class of the error, its words, and nothing is written
#: fake kernels refuse these as well, with another class or text
CASES: dict[str, Callable[[Any], Any]] = {
    "index by floats": lambda x: x[torch.tensor([0.0])],
    "index by short integers": lambda x: x[torch.tensor([0], dtype=torch.int16)],
    "embedding of one dimension": lambda x: F.embedding(x.long(), torch.ones(3)),
    "weights for other classes": lambda x: F.cross_entropy(x[None], torch.tensor([0]), weight=torch.ones(2)),
    "several targets": lambda x: F.nll_loss(x[None], torch.tensor([[0]])),
    "clamp without bounds": lambda x: x.clamp(),
    "alpha of another kind": lambda x: torch.add(x.int(), 1, alpha=0.5),
    "elu of int": lambda x: F.elu(x.int()),
    "shift of float, out of place": lambda x: x << 1,
    "out of ints": lambda x: torch.add(x, 1, out=torch.empty(3, dtype=torch.int)),
}


@pytest.mark.parametrize("name", CASES)
def test_as_in_eager(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exception) as eager:
        CASES[name](torch.tensor([1.0, 2.0, 3.0]))
    x = torch.tensor([1.0, 2.0, 3.0])
    with pytest.raises(Exception) as ours:
        st.compile(CASES[name])(x)
    assert type(ours.value) is type(eager.value)
    assert str(ours.value).partition("\n")[0] == str(eager.value).partition("\n")[0]
    assert x.tolist() == [1.0, 2.0, 3.0] and x._version == 0
    assert "Traceback" not in capfd.readouterr().err  # torch's own report of what its fake kernel refused


def test_right_calls_of_mixed_types_pass() -> None:
    def f(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        n.add_(1)
        n.bitwise_or_(4)
        x.mul_(n)
        x.div_(torch.tensor(2))
        x.index_put_((torch.tensor([True, False]),), torch.tensor(9.0))
        n.floor_divide_(n)  # the zeros that the real kernel is asked with would be a division by zero
        return torch.add(x, n, out=torch.empty(2, dtype=torch.double))

    (x, n), (y, m) = [(torch.tensor([1.0, 2.0]), torch.tensor([3, 4])) for _ in range(2)]
    assert torch.equal(st.compile(f)(x, n), f(y, m))
    assert torch.equal(x, y) and torch.equal(n, m)


def test_fake_kernel_is_wrong() -> None:
    """Up to torch 2.14."""
    try:
        found = st.compile(lambda x: x.nan_to_num_())(torch.ones(2, dtype=torch.cfloat))
    except UnsupportedError as error:
        assert "the trace fails where eager does not" in str(error)
    else:
        assert found.tolist() == [1, 1]


# ----------------------------------------------------------------------------------------- backwards that eager refuses
Tensor = torch.Tensor
MODIFIED = "one of the variables needed for gradient computation has been modified by an inplace operation: "


def error_of(call: Callable[[], Any]) -> BaseException:
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    "igamma": lambda x: torch.igamma(x, torch.ones(2, 2)),
    "geqrf": lambda x: torch.geqrf(x)[0],
    "heaviside": lambda x: torch.heaviside(x, torch.ones(2, 2)),
}


@pytest.mark.filterwarnings("ignore:a call of a region runs eagerly")
@pytest.mark.parametrize("name", FORMULAS)
def test_no_derivative(name: str) -> None:
    def backward(f: Any) -> None:
        f(torch.rand(2, 2).requires_grad_()).sum().backward()

    f = FORMULAS[name]
    expected, got = error_of(lambda: backward(f)), error_of(lambda: backward(st.compile(f)))
    assert (type(got), str(got)) == (type(expected), str(expected))


@pytest.mark.parametrize("dynamic", [False, True])
def test_no_second_derivative(dynamic: bool) -> None:
    def twice(f: Any) -> None:
        x = torch.rand(3, 3).requires_grad_()
        (grad,) = torch.autograd.grad(f(x).pow(2).sum(), x, create_graph=True)
        grad.sum().backward()

    def f(x: Tensor) -> Tensor:
        return torch.nn.functional.embedding_bag(torch.tensor([[0, 1]]), x, mode="max")

    expected, got = error_of(lambda: twice(f)), error_of(lambda: twice(st.compile(f, dynamic=dynamic or None)))
    assert (type(got), str(got)) == (type(expected), str(expected)) and type(got) is NotImplementedError


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * grad * ctx.saved_tensors[0]


def inside(x: Tensor) -> Tensor:
    y = x * 1
    z = y * y
    y.add_(1)
    return torch.autograd.grad(z, x, torch.ones_like(z))[0]


def argument(x: Tensor) -> Tensor:
    z = x * x.exp()
    with torch.no_grad():
        x.add_(1)
    return z


def result(x: Tensor) -> Tensor:
    return x.exp().add_(1)


def custom(x: Tensor) -> Tensor:
    y = x * 1
    z: Tensor = Squared.apply(y)
    y.add_(1)
    return z


@pytest.mark.parametrize("f", [inside, argument, result, custom])
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_written_in_the_region(f: Any, wrapped: bool, dynamic: bool) -> None:
    """Torch cannot write its message for a wrapper with symbolic sizes."""

    def backward(f: Any) -> None:
        x = torch.rand(3, 2)
        x = (TwoTensor(x, x * 2) if wrapped else x).requires_grad_()
        out = f(x)
        if out.requires_grad:
            out.backward(torch.ones_like(out.detach()))

    for call in (f, st.compile(f, dynamic=dynamic or None)):
        error = error_of(lambda call=call: backward(call))
        assert type(error) is RuntimeError and str(error).startswith(MODIFIED)


# -------------------------------------------------- methods that reach into a tensor's memory: a traced tensor has none
CLOSED_OVER = torch.ones(2)
CALLS = {
    "apply_": (lambda x: x.apply_(lambda v: v + 1), "for each element"),
    "apply_ of an intermediate": (lambda x: (x * 1).apply_(lambda v: v + 1), "for each element"),
    "map_": (lambda x: x.map_(x.clone(), lambda a, b: a + b), "for each element"),
    "map2_": (lambda x: x.map2_(x.clone(), x.clone(), lambda a, b, c: a + b + c), "for each element"),
    "numpy": (lambda x: torch.from_numpy(x.numpy()), r"\.numpy\(\)"),
    "np.asarray": (lambda x: torch.from_numpy(np.asarray(x)), "__array__"),
    "np.from_dlpack": (lambda x: torch.from_numpy(np.from_dlpack(x)), "__dlpack__"),
    "from_dlpack": (lambda x: torch.from_dlpack(x * 1), "__dlpack__"),
    "share_memory_": (lambda x: x.share_memory_() * 2, "share_memory_"),
    "pin_memory": (lambda x: x.pin_memory() * 2, "pin_memory"),
    "untyped_storage": (lambda x: x * x.untyped_storage()[1], "storage of an input"),
    "a filled storage": (lambda x: (x.untyped_storage().fill_(0), x * 1)[1], "storage of an input"),
    "format": (lambda x: f"{x.sum():.3f}", "formats the value"),
    "an array of a tensor that is closed over": (lambda x: x * float(CLOSED_OVER.numpy()[0]), r"\.numpy\(\)"),
    "torch.save": (lambda x: (torch.save(x, io.BytesIO()), x * 1)[1], "__reduce_ex__"),
}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", CALLS)
def test_refused_with_the_line(name: str) -> None:
    function, text = CALLS[name]
    x = torch.tensor([1.0, 2.0])
    with pytest.raises((DataDependentError, UnsupportedError), match=text) as caught:
        st.compile(function)(x)
    assert caught.value.path is not None and __file__ in caught.value.path
    assert torch.equal(x, torch.tensor([1.0, 2.0]))


def test_what_needs_no_memory_still_works() -> None:
    x = torch.tensor([1.0, 2.0])
    assert torch.equal(st.compile(lambda x: x * len(x.tolist()))(x), x * 2)


# -------------------------------------------------------------------------------- composite operations that read values
X = torch.tensor([0, 1, 2])


@pytest.mark.parametrize("dynamic", [False, True])
def test_one_hot_checks_each_call(dynamic: bool) -> None:
    region = st.compile(lambda x: F.one_hot(x, num_classes=3).float() * 2, dynamic=dynamic or None)
    assert torch.equal(region(X), torch.eye(3) * 2)
    for wrong in (X + 1, X - 1):
        with pytest.raises(RuntimeError, match=r"Class values must be non-negative and smaller than num_classes\."):
            region(wrong)
    assert len(region.specializations) == 1


@pytest.mark.filterwarnings("ignore:a call of a region runs eagerly")
def test_one_hot_of_any_number() -> None:
    assert torch.equal(st.compile(F.one_hot)(X), F.one_hot(X))
    with pytest.raises(RuntimeError, match="LongTensor"):
        st.compile(lambda x: F.one_hot(x, 3))(X.float())
