"""Operations that take a count for a number in C++: one specialization for all sizes, and equal to eager."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from called_functions import names_called

import subclass_trace as st
from subclass_trace.capture.counts import COUNTS
from subclass_trace.capture.own_operations import original
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
SIZES = (4, 6, 8, 14)


def _channels(x: Tensor) -> Tensor:
    """2 images with as many channels as ``x`` has columns, and then as many again."""
    return torch.cat([x.t(), x.t().cos()]).unsqueeze(0).expand(2, -1, -1)


#: of a tensor with 7 rows and an even number of columns
CALLS: dict[str, Callable[[Tensor], Any]] = {
    "groups": lambda x: F.group_norm(_channels(x), x.shape[1]),
    "groups of images": lambda x: F.group_norm(_channels(x).unsqueeze(-1).contiguous(), x.shape[1] // 2),
    "groups, weighted": lambda x: F.group_norm(
        _channels(x), x.shape[1], torch.cat([x[0], x[1]]), torch.cat([x[2]] * 2)
    ),
    "windows": lambda x: F.unfold(x[None, None], (2, x.shape[1] // 2)),
    "windows by steps": lambda x: F.unfold(x[None], kernel_size=2, dilation=(1, x.shape[1] // 2), padding=1, stride=2),
    "windows put together": lambda x: F.fold(
        F.pad(x[:2], (1, 1)).repeat(x.shape[1], 1)[None], (3, x.shape[1] * 2), (2, x.shape[1]), stride=(1, 2)
    ),
    "pixels": lambda x: F.pixel_shuffle(x[:1].repeat(x.shape[1] ** 2, 1).unsqueeze(-1), x.shape[1]),
    "pixels back": lambda x: F.pixel_unshuffle(x.repeat(x.shape[1], 1)[None], x.shape[1]),
    "bins": lambda x: torch.histc(x.detach(), bins=x.shape[1], min=-1, max=1),
    "bins between all": lambda x: x.detach().histc(x.shape[1] + 1),
    "bins and edges": lambda x: tuple(torch.histogram(x.detach(), x.shape[1], range=(-1.0, 1.0))),
    "edges of all": lambda x: tuple(torch.histogram(x.detach(), bins=x.shape[1], density=True)),
    "given edges": lambda x: tuple(torch.histogram(x.detach(), torch.arange(-1.0, 2.0))),
    "most of parts": lambda x: F.adaptive_max_pool2d(x[None], (2, x.shape[1] // 2)),
    "most of parts of lines": lambda x: F.adaptive_max_pool1d(x, x.shape[1] // 2),
    "most of parts, and where": lambda x: F.adaptive_max_pool1d(x, x.shape[1] // 2, return_indices=True),
    "most of squares, and where": lambda x: F.adaptive_max_pool2d(x[None], x.shape[1] // 2, return_indices=True),
    "blocks": lambda x: torch.block_diag(x, x[0], x[:, 1:], x[0, 0]),
}
#: these are left to torch
LEFT: dict[str, Callable[[Tensor], Any]] = {
    "channels last": lambda x: F.group_norm(
        _channels(x).unsqueeze(-1).expand(-1, -1, -1, 2).contiguous(memory_format=torch.channels_last), x.shape[1]
    ),
    "too many groups": lambda x: F.group_norm(_channels(x), x.shape[1] + 1),
    "too wide": lambda x: F.unfold(x[None, None], x.shape[1] + 1),
    "no factor": lambda x: F.pixel_shuffle(x[None], 2 - x.shape[1]),
    "no bins": lambda x: torch.histc(x.detach(), 2 - x.shape[1]),
    "in C++": lambda x: torch.adaptive_max_pool1d(x, x.shape[1] // 2)[0],
}


def _made(columns: int, grad: bool, kind: str) -> Any:
    numbers = (torch.arange(7.0 * columns) * 0.7).view(7, columns)
    x: Any = numbers.sin()
    if kind == "wrapper":
        x = TwoTensor(numbers.sin(), numbers.cos())
    if kind == "nested":
        x = TwoTensor(TwoTensor(numbers.sin(), numbers.cos()), TwoTensor(numbers.exp().sin(), numbers.tanh()))
    return x.requires_grad_(grad)


def _shown(t: Tensor) -> Any:
    of = (t.shape, t.stride(), t.dtype, t.requires_grad, t._version, t._is_view())
    return type(t), str(t.detach()), of


def _run(f: Callable[[Tensor], Any], columns: int, grad: bool, kind: str) -> Any:
    x = _made(columns, grad, kind)
    try:
        out = f(x)
        outs = out if isinstance(out, tuple) else (out,)
        if grad and outs[0].requires_grad:
            (outs[0] * outs[0]).sum().backward()
    except (RuntimeError, TypeError, ValueError) as error:
        return type(error), str(error).partition("\n")[0]
    return [_shown(o) for o in outs], str(x.grad)


@pytest.mark.parametrize(
    ("grad", "kind"),
    [
        (False, "dense"),
        (True, "wrapper"),
        # Each forward and each backward is a part of one of those.
        pytest.param(True, "dense", marks=pytest.mark.slow),
        pytest.param(False, "wrapper", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", CALLS)
def test_two_specializations(name: str, grad: bool, kind: str) -> None:
    """One for the first size, one for all others."""
    region = st.compile(CALLS[name])
    for columns in SIZES if kind == "dense" else SIZES[:3]:
        assert _run(region, columns, grad, kind) == _run(CALLS[name], columns, grad, kind)
    assert len(region.specializations) == 2


@pytest.mark.parametrize("name", ["groups", "windows", "bins"])
def test_nested(name: str) -> None:
    """The class inside sees the operation on its own inner tensors."""
    region = st.compile(CALLS[name])
    for columns in SIZES[:3]:
        assert _run(region, columns, True, "nested") == _run(CALLS[name], columns, True, "nested")
    assert len(region.specializations) == 2


@pytest.mark.parametrize("kind", ["dense", "wrapper"])
@pytest.mark.parametrize("name", LEFT)
def test_left_to_torch(name: str, kind: str) -> None:
    """Each size has a specialization; errors are those of torch."""
    region = st.compile(LEFT[name])
    for columns in (4, 6, 8):
        for grad in (False, True):
            assert _run(region, columns, grad, kind) == _run(LEFT[name], columns, grad, kind)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("groups", marks=pytest.mark.slow),  # a part of the next one
        *("groups, weighted", "windows", "windows put together", "pixels", "most of parts", "blocks"),
    ],
)
def test_differentiated_again(name: str) -> None:
    """A gradient penalty, outside of the region and in it."""

    def penalty(f: Callable[[Tensor], Any], x: Tensor) -> Tensor:
        (grad,) = torch.autograd.grad(f(x).pow(3).sum(), x, create_graph=True)
        return grad.pow(2).sum()

    region, inside = st.compile(CALLS[name]), st.compile(lambda x: penalty(CALLS[name], x * 1))
    for columns in (4, 6, 8):
        results = []
        for f in (lambda x: penalty(CALLS[name], x), inside, lambda x: penalty(region, x)):
            x = _made(columns, False, "dense").double().requires_grad_()
            f(x).backward()
            results.append(x.grad)
        torch.testing.assert_close(results[1], results[0])
        torch.testing.assert_close(results[2], results[0])


@pytest.mark.parametrize("again", [False, True])
def test_products(again: bool) -> None:
    """The gradient of ``cumprod`` is that of eager, with zeros and without; what is differentiated again has numbers."""

    def f(x: Tensor) -> Tensor:
        return x.cumprod(-1) + torch.cumprod(x * (x > 0), dim=0)

    region = st.compile(f, dynamic=True)
    for columns in SIZES[:2] if again else SIZES:  # such a trace takes seconds
        grads = []
        for g in (f, region):
            x = _made(columns, False, "dense").double().requires_grad_()
            (grad,) = torch.autograd.grad(g(x).pow(3).sum(), x, create_graph=again)
            if again:
                grad.pow(2).sum().backward()
            grads.append(x.grad if again else grad)
        torch.testing.assert_close(grads[1], grads[0], **({} if again else {"rtol": 0, "atol": 0}))
    assert again or len(region.specializations) == 1


def test_forward_mode_inside() -> None:
    """Torch's operation is the one that has such a derivative."""
    fw = torch.autograd.forward_ad

    def f(x: Tensor) -> Tensor:
        with fw.dual_level():
            return fw.unpack_dual(F.pixel_shuffle(fw.make_dual(x, x * 2), x.shape[-1])).tangent

    region = st.compile(f)
    for n in (2, 3, 4):
        x = torch.arange(1.0 * n**3).view(n**2, 1, n)
        assert torch.equal(region(x), f(x))


def test_class_sees_operations_of_torch() -> None:
    """In its dispatch no operation is ours, forward and backward."""
    seen: list[Any] = []

    class Listening(TwoTensor):
        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return super().__torch_dispatch__(func, types, args, kwargs or {})

    def f(x: Tensor) -> Tensor:
        return F.avg_pool1d(F.unfold(x[None], (1, x.shape[2] // 2)), 2).sum() + F.max_pool2d(x, x.shape[1:]).sum()

    def run(f: Callable[[Tensor], Tensor], columns: int) -> tuple[list[str], Tensor]:
        seen.clear()
        numbers = (torch.arange(14.0 * columns) * 0.7).view(1, 14, columns)
        x = Listening(numbers.sin(), numbers.cos()).requires_grad_()
        f(x).backward()
        assert x.grad is not None
        return [str(func) for func in seen if "pool" in str(func) or "im2col" in str(func)], x.grad

    region = st.compile(f)
    for columns in (4, 6):
        expected, grad = run(f, columns)
        called, found = run(region, columns)
        assert set(called) == set(expected) and all(original(func) is func for func in seen)
        assert str(found) == str(grad)
    assert run(region, 8)[0] == []  # the specialization for all sizes
    assert len(region.specializations) == 2


def test_numbers_in_a_class() -> None:
    """A class may take the symbol that it sees for a number: each size has a specialization."""

    class Counting(TwoTensor):
        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.pixel_shuffle.default:
                args = (args[0], int(args[1]))
            return super().__torch_dispatch__(func, types, args, kwargs or {})

    def f(x: Tensor) -> Tensor:
        return F.pixel_shuffle(x, x.shape[2]) * 2

    region = st.compile(f)
    for n in (2, 3, 4, 5):
        numbers = torch.arange(1.0 * n**3).view(n**2, 1, n)
        x = Counting(numbers, -numbers)
        assert str(region(x)) == str(f(x))
    assert len(region.specializations) == 4


def test_under_vmap() -> None:
    """A transform sees torch's operation."""
    f = torch.vmap(lambda x: F.pixel_shuffle(x, x.shape[-1]))
    region = st.compile(f)
    for n in (2, 3, 4):
        x = torch.arange(2.0 * n**3).view(2, n**2, 1, n)
        assert torch.equal(region(x), f(x))


def test_autocast() -> None:
    """Torch chooses the dtype by the operation."""

    def f(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return (
                F.avg_pool3d((x @ x.t())[None, None], (1, 1, x.shape[0])) + F.group_norm(x.t()[None], x.shape[1])[:, :1]
            )

    region = st.compile(f)
    for columns in (4, 6, 8):
        x = _made(columns, False, "dense")
        a, b = f(x), region(x)
        assert a.dtype == b.dtype and torch.equal(a, b)


def test_with_inductor() -> None:
    """As a call of the operation."""

    def f(x: Tensor) -> Tensor:
        return F.group_norm(_channels(x), x.shape[1]).relu().sum() + F.unfold(x[None], (1, x.shape[1] // 2)).sum()

    region = st.compile(f, backend="inductor")
    for columns in (4, 6, 8):
        a, b = (_made(columns, True, "dense") for _ in range(2))
        f(a).backward()
        region(b).backward()
        torch.testing.assert_close(b.grad, a.grad)
    assert len(region.specializations) == 2


def test_all_operations_have_a_case() -> None:
    """`COUNTS` has none that is not called above."""
    assert names_called(partial(_run, f, 4, False, "dense") for f in CALLS.values()) >= set(COUNTS)


def test_a_gradient_of_groups_is_differentiated_again() -> None:
    """Its trace asks for the sizes in another order than the first backward, which has saved them by their names."""
    f = lambda x: F.group_norm(x, x.shape[1] // 2)
    region = st.compile(f, dynamic=True)
    for n in (4, 6):
        found = []
        for g in (f, region):
            torch.manual_seed(0)
            x = torch.randn(2, n, 5, requires_grad=True)
            y = g(x)
            (first,) = torch.autograd.grad(y[0, 0, :2].sum() + y.pow(2)[1, 0, 1], x, create_graph=True)
            found.append((first.detach(), *torch.autograd.grad(first.pow(2).sum(), x)))
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b)


DISTRIBUTIONS: dict[str, Callable[[Tensor], Any]] = {
    "normal": lambda x: torch.distributions.Normal(x, 1 / x.shape[1]).log_prob(x),
    "normal of numbers": lambda x: torch.distributions.Normal(1 / x.shape[1], x.shape[1]).sample() + x,
    "beta": lambda x: torch.distributions.Beta(x.exp(), 1 / x.shape[1]).sample(),
    "shares": lambda x: torch.distributions.Dirichlet(x.exp()).sample(),
    "trials": lambda x: torch.binomial(x.abs().mul(9).round(), x.sigmoid()),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_parameters_of_distributions(name: str) -> None:
    region = st.compile(DISTRIBUTIONS[name])
    for columns in SIZES:
        x = (torch.arange(7.0 * columns) * 0.7).sin().view(7, columns)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(columns)
            expected = DISTRIBUTIONS[name](x)
            torch.manual_seed(columns)
            assert torch.equal(region(x), expected)
    assert len(region.specializations) == 2
