"""Writes in a region: to memory that other tensors show, in place of other layouts, by ``out=``: each program against eager."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import subclass_trace as st
from subclass_trace.capture.aliasing import may_overlap
from subclass_trace.zoo import TwoTensor

# ---------------------------- graphs with writes: what touches no written memory is copied, all else is made functional
Tensor = torch.Tensor
GENERATOR = torch.Generator()


def _ones(*size: int) -> Tensor:
    return torch.ones(*size, requires_grad=True)


def drawn_and_written(x: Tensor, w: Tensor) -> Any:
    y = torch.randn(3, generator=GENERATOR)
    y.mul_(2)
    return y, y * w[0]


def saved_constant(x: Tensor, w: Tensor) -> Any:
    x.add_(1)
    d = torch.tensor([5.0, 6.0, 7.0])
    return d * w[0], d


def out_keeps_its_layout(x: Tensor, w: Tensor) -> Any:
    o, places = torch.zeros(3, 3), torch.zeros(3, dtype=torch.long)
    torch.mul(x.t(), 2, out=o)
    largest = torch.zeros(3)
    torch.max(x, 1, out=(largest, places))
    return o.as_strided((2,), (1,)) * w[0, 0], o * w, o, largest * w[0], places


def sums_in_place(x: Tensor, w: Tensor) -> Any:
    out = torch.zeros_like(x)
    for k in range(3):
        out += (x @ w).relu() * k
        out[k].mul_(2)
    return out


def dropout_of_transposed(x: Tensor, w: Tensor) -> Any:
    return F.dropout((x * w).t().clone(), 0.5, inplace=True)


PROGRAMS = [drawn_and_written, saved_constant, out_keeps_its_layout, sums_in_place, dropout_of_transposed]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_as_in_eager(program: Callable[..., Any], dynamic: bool | None) -> None:
    region, found = st.compile(program, dynamic=dynamic), []
    for call in (program, region):
        torch.manual_seed(0)
        GENERATOR.manual_seed(0)
        x, w = torch.arange(9.0).view(3, 3), _ones(3, 3)
        results = call(x, w)
        results = results if isinstance(results, tuple) else (results,)
        sum(r.sum() for r in results if r.requires_grad).backward()  # type: ignore[union-attr]
        found.append([x, w.grad, *results])
    for ours, eagers in zip(*found, strict=True):
        assert torch.equal(ours, eagers) and ours.stride() == eagers.stride()
    assert len(region.specializations) == 1


class Scale(torch.autograd.Function):
    """Its backward makes a symbol, if it is differentiated itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * g.sum().item() if torch.is_grad_enabled() else g


def test_a_later_backward_finds_what_the_forward_saved() -> None:
    def f(w: Tensor, b: Tensor) -> Tensor:
        b.add_(1)
        p, q = w @ w, b @ w
        return Scale.apply(p.sin() * q.sin())

    found = []
    for call in (f, st.compile(f)):
        w, b = torch.eye(2).add_(0.3).requires_grad_(), torch.ones(2, 2)
        loss = call(w, b).sum()
        first = torch.autograd.grad(loss, w, retain_graph=True)
        found.append((*first, *torch.autograd.grad(loss, w, create_graph=True)))
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("view", [lambda x: x.t(), lambda x: (x * 1).t(), lambda x: x * 1])
def test_hooks_of_results(view: Callable[[Tensor], Tensor]) -> None:
    def f(x: Tensor) -> Tensor:
        y = view(x)
        y.register_hook(lambda g: g * 2)
        return y

    w = _ones(2, 3)
    st.compile(f)(w).sum().backward()
    assert w.grad is not None and w.grad.unique().tolist() == [2]


# ------------------------- to memory that another argument shows: the error or the numbers of eager, or a typed refusal
PLACES = torch.tensor([0, 1])

#: eager refuses these, or gives numbers that depend on the order of reads and writes: they run eagerly
EAGERLY: dict[str, Callable[[Tensor], Any]] = {
    "index_copy_": lambda x: x[:3].index_copy_(0, PLACES, x[2:]),
    "cat into a part": lambda x: torch.cat([x[2:], x[:2]], out=x),
    "mul_ by a part": lambda x: x.mul_(x[:1]),
    "a wrapper's copy_": lambda x: TwoTensor(torch.zeros(4, 4), x).copy_(x.t()),
    "bits of another type": lambda x: x[:3].copy_(x.view(torch.int32)[1:]),
    "an expanded target": lambda x: x[0].expand(4, 4).add_(1),
    "an expanded result": lambda x: torch.add(x, 1, out=x[0].expand(4, 4)),
    "addmm_": lambda x: x.addmm_(x, x),
    "columns that move to the right": lambda x: x[:, 1:].copy_(x[:, :-1]),
    "a sum into a row": lambda x: torch.sum(x, 0, out=x[0]),
}
#: eager computes these as if the source were a copy
ALLOWED: dict[str, Callable[[Tensor], Any]] = {
    "the same tensor": lambda x: (x.mul_(x), x.add_(x.detach()), x.clamp_(x, x + 1)),
    "running sums in place": lambda x: torch.cumsum(x, 0, out=x),
    "sorted in place": lambda x: torch.sort(x, 0, out=(x, torch.empty(0, dtype=torch.long))),
    "other rows": lambda x: (x[0].add_(x[1]), x[::2].copy_(x[1::2])),
    "other columns": lambda x: (x[:, 0].add_(x[:, 1]), x[:, ::2].copy_(x[:, 1::2]), x[:2, :2].mul_(x[2:, 2:])),
    "by a mask": lambda x: x.index_put_((x > 1,), x[0, 0]),
    "filled with an element": lambda x: x.fill_(x[0, 1]),
    "lower triangle": lambda x: torch.tril(x, out=x),
}


def start() -> Tensor:
    return torch.rand(4, 4, generator=torch.Generator().manual_seed(0)) + 0.2


@pytest.mark.filterwarnings("ignore:a call of a region runs eagerly")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", EAGERLY)
def test_eagerly(name: str, dynamic: bool) -> None:
    seen = []
    for call in (EAGERLY[name], st.compile(EAGERLY[name], dynamic=dynamic)):
        x = start()
        try:
            call(x)
        except RuntimeError as error:
            seen.append(str(error))
        seen.append(str(x))
    assert seen[: len(seen) // 2] == seen[len(seen) // 2 :] and not call.specializations  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:a call of a region runs eagerly")
@pytest.mark.parametrize("name", ALLOWED)
def test_overlapping_as_in_eager(name: str) -> None:
    x, y = start(), start()
    ALLOWED[name](x)
    region = st.compile(ALLOWED[name])
    region(y)
    assert torch.equal(x, y)
    assert region.specializations or name not in ("other rows", "other columns")


def test_which_views_meet() -> None:
    """Two views of one memory, at random, and by counting."""
    numbers = random.Random(0)

    def view() -> Tensor:
        size = [numbers.randint(1, 4) for _ in range(numbers.randint(0, 3))]
        stride = [numbers.choice([0, 1, 2, 3, 5, 12]) for _ in size]
        return torch.arange(140).as_strided(size, stride, numbers.randint(0, 12))

    for _ in range(2000):
        a, other = view(), view()
        b = a.as_strided(other.shape, other.stride(), other.storage_offset())
        common = {*a.flatten().tolist()} & {*b.flatten().tolist()}
        assert may_overlap(a, b) is bool(common)


def test_memory_onto_itself_in_another_shape() -> None:
    def f(x: Tensor) -> Tensor:
        v = x.unsqueeze(0)
        v[:1] = x[:1]
        return x * 2

    region = st.compile(f)
    assert region(torch.ones(1, 3)).sum() == 6 and region.specializations


# ----------- in place on transposed tensors: the tensor stays laid out as it is, though functional forms are contiguous
MASK = torch.arange(12).view(3, 4) % 3 == 0
ROW = torch.zeros(1, 4, dtype=torch.long)
#: writes to a tensor of shape (3, 4)
WRITES: dict[str, Callable[[Tensor], Tensor]] = {
    "masked_fill_": lambda y: y.masked_fill_(MASK, 0),
    "masked_scatter_": lambda y: y.masked_scatter_(MASK, torch.arange(12.0)),
    "index_add_": lambda y: y.index_add_(0, PLACES, torch.ones(2, 4)),
    "scatter_add_": lambda y: y.scatter_add_(0, ROW, torch.ones(1, 4)),
    "cumsum_": lambda y: y.cumsum_(0),
    "addmm_": lambda y: y.addmm_(torch.ones(3, 2), torch.ones(2, 4)),
    "a column": lambda y: (y[:, 0].cumsum_(0), y)[1],
}


def everywhere(write: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """Writes to a new value, to the transposed of one, and to the argument, with what is computed of each."""
    made, contiguous = write(x * 2), x.t().contiguous()
    write(contiguous.t())
    write(x)
    return [made, made + 0, contiguous, contiguous * 1, x * 1]


@pytest.mark.parametrize(
    ("name", "dynamic"), [*((n, False) for n in WRITES), ("masked_fill_", True), ("cumsum_", True)]
)
def test_transposed_as_in_eager(name: str, dynamic: bool) -> None:
    found = []
    for call in (everywhere, st.compile(everywhere, dynamic=dynamic or None)):
        x = torch.arange(12.0).view(4, 3).t()
        found.append([(t.stride(), t.tolist(), t._version) for t in (*call(WRITES[name], x), x)])
    assert found[0] == found[1]


@pytest.mark.parametrize("f", [lambda x: x.norm(dim=0), lambda x: x.flip(0).sin() + x.norm(dim=0)])
def test_strides_of_a_gradient(f: Callable[[Tensor], Tensor]) -> None:
    found = []
    for call in (f, st.compile(f)):
        x = torch.ones(4, 3).t().requires_grad_()
        out = call(x)
        found += torch.autograd.grad(out, x, torch.ones_like(out))
    assert found[0].stride() == found[1].stride() and torch.allclose(*found)


# -------------------------------- ``out=`` with arguments of the right size, of another size and empty ones, which grow
Case = tuple[Callable[..., Any], Callable[[], tuple[Tensor, ...]]]


def numbers(*shape: int) -> Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)


def places(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.long)


CASES: dict[str, Case] = {
    "empty": (lambda x, y: torch.add(x, 1, out=y), lambda: (numbers(3), torch.empty(0))),
    "transposed": (lambda x, y: torch.add(x, 1, out=y), lambda: (numbers(2, 3), torch.zeros(3, 2).t())),
    "every second element": (lambda x, y: torch.add(x, 1, out=y), lambda: (numbers(3), torch.zeros(6)[::2])),
    "made in the region": (lambda x: torch.add(x, 1, out=torch.empty(0)), lambda: (numbers(3),)),
    "read afterwards": (lambda x, y: (torch.add(x, 1, out=y), y * 2)[1], lambda: (numbers(3), torch.empty(0))),
    "two results": (
        lambda x, v, i: torch.sort(x, out=(v, i)),
        lambda: (torch.tensor([3.0, 1, 2]), torch.empty(0), places(0)),
    ),
    "inner tensor": (
        lambda x, w: (torch.add(x, 1, out=w.a), None)[1],
        lambda: (numbers(3), TwoTensor(torch.zeros(3), torch.zeros(3))),
    ),
    "wrapper": (
        lambda x, w: torch.add(x, 1, out=w),
        lambda: (TwoTensor(numbers(3), numbers(3)), TwoTensor(torch.zeros(3), torch.zeros(3))),
    ),
}


#: what is written to another size runs eagerly
KEEP_THEIR_SIZES = ("transposed", "every second element", "inner tensor", "wrapper")


def seen(function: Callable[..., Any], arguments: tuple[Tensor, ...]) -> list[Any]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "An output with one or more elements was resized")
        result = function(*arguments)
    results = [t for t in (result if isinstance(result, tuple) else [result]) if t is not None]
    same = [[r is a for a in arguments] for r in results]
    leaves = [t for v in (*arguments, *results) for t in ((v.a, v.b) if isinstance(v, TwoTensor) else (v,))]
    rows: list[Any] = [(t.tolist(), t.dtype, t.shape, t.stride(), t.storage_offset()) for t in leaves]
    return [*rows, same, [t._version for t in arguments], [t.untyped_storage().nbytes() for t in arguments]]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_out_as_in_eager(name: str, dynamic: bool) -> None:
    function, arguments = CASES[name]
    region = st.compile(function, dynamic=dynamic or None)
    for _ in range(2):
        assert seen(region, arguments()) == seen(function, arguments())
    assert len(region.specializations) == (name in KEEP_THEIR_SIZES)


def test_a_constant_and_a_write_in_a_later_backward_alone() -> None:
    """Cross entropy of a tensor that the region makes, differentiated twice: the second backward scatters in place."""

    def f(x: Tensor) -> Tensor:
        return F.silu(F.cross_entropy(x, torch.tensor([0, 1, 2]), reduction="none")[:, None] * x)

    seen = []
    for g in (f, st.compile(f)):
        x = torch.arange(12.0).view(3, 4).sin().requires_grad_()
        (first,) = torch.autograd.grad(g(x).sum(), x, create_graph=True)
        seen.append([first.detach(), *torch.autograd.grad(first.square().sum(), x)])
    torch.testing.assert_close(*seen)
