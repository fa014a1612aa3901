"""Cases: sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from case_kit import cases, plain, root
from oracle import Inputs
from wrappers import dense, two

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


same, fact = cases("Sizes and data")


@fact("a changing size costs one more specialization")
def _sizes() -> None:
    region = st.compile(lambda x: (x * 2).sum(0))
    for n in (3, 4, 7, 9):
        assert torch.allclose(region(x := two(n, 2, seed=n)).a, (x.a * 2).sum(0))
    assert len(region.specializations) == 2


@fact("`dynamic=True` needs one")
def _dynamic() -> None:
    region = st.compile(lambda x: x.view(-1) * x.shape[0], dynamic=True)
    for n in (3, 4, 7):
        assert torch.equal(region(x := two(n, 2, seed=n)).b, x.b.view(-1) * n)
    assert len(region.specializations) == 1


@fact(
    "a size where torch takes a number: `torch.linspace(0, 1, n)`, `torch.hann_window(n)` (each size has a specialization)",
    torch="not in the survey",
)
def _sizes_as_numbers() -> None:
    def f(x: Tensor) -> Tensor:
        return x * torch.linspace(0, 1, x.shape[0])[:, None] * torch.hann_window(x.shape[0])[:, None]

    region = st.compile(f, dynamic=True)
    for n in (3, 4, 7):
        assert torch.equal(region(x := two(n, 2, seed=n)).b, f(x).b)
    assert len(region.specializations) == 3


@fact("sizes as outputs")
def _size_outputs() -> None:
    region = st.compile(lambda x: (x.shape[0] + 1, x * 2), dynamic=True)
    assert region(two(3, seed=0))[0] == 4 and region(two(5, seed=0))[0] == 6


def _jagged(lengths: tuple[int, ...], seed: int = 0) -> Tensor:
    values = dense(sum(lengths), 4, seed=seed)
    return torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()]))


@fact("jagged tensors: other lengths and another batch cost one more specialization")
def _jagged_sizes() -> None:
    region = st.compile(lambda x: x.unflatten(-1, (2, 2)).transpose(1, 2) * 2)
    for lengths in ((2, 1, 3), (4, 2), (1, 5, 3), (6, 1, 2, 2)):
        x = _jagged(lengths).detach().requires_grad_()
        out = region(x)
        assert torch.equal(out.values(), (x.unflatten(-1, (2, 2)).transpose(1, 2) * 2).values())
        out.values().sum().backward()
        assert torch.equal(x.grad.values(), torch.full_like(x.values(), 2.0))
    assert len(region.specializations) == 2


@fact("jagged tensors: a result has the offsets of its input, so that they go together", refused="eager")
def _jagged_offsets() -> None:
    region = st.compile(lambda x: (x.sin(), x.size(1)))
    for lengths in ((2, 1, 3), (1, 5, 3)):
        x = _jagged(lengths)
        out, ragged = region(x)
        assert torch.equal((out + x).values(), (x.sin() + x).values()) and bool(ragged == x.size(1))


@fact(
    "a jagged tensor made of a dense argument, returned",
    differs="it shares the memory and is no view to autograd: a write to one that requires grad is refused",
)
def _jagged_of_dense() -> None:
    v, x = dense(6, 4, seed=0), _jagged((2, 1, 3))
    out = st.compile(lambda v, o: torch.nested.nested_tensor_from_jagged(v, o))(v, x.offsets())
    assert out._values.untyped_storage().data_ptr() == v.untyped_storage().data_ptr()
    assert out._is_view()


@fact("attention of jagged tensors on a CPU", torch="graph break", refused="UnsupportedError")
def _jagged_attention() -> None:
    def attend(x: Tensor) -> Tensor:
        h = x.unflatten(-1, (2, 2)).transpose(1, 2)
        return F.scaled_dot_product_attention(h, h, h)

    st.compile(attend)(_jagged((2, 1, 3)))


same(
    "a 0-dim tensor as an index, or as a start of `narrow`",
    lambda x, i: (x[i] * 1, x[:, i].sin(), x.narrow(0, i, 1) * 3),
    lambda c: Inputs((x := two(4, 3, seed=c).requires_grad_(), torch.tensor(c - 1)), (x,)),
    back=(1, 2),
    torch="graph break",
)
same(
    "a 0-dim tensor as an index that is written to",
    lambda x, i: x.__setitem__(i, 5.0),
    lambda c: (two(4, 3, seed=c), torch.tensor(c + 1)),
    torch="graph break",
)
same("output size from the data, dense (`nonzero`)", lambda x: (x > 0).nonzero() * 2, plain(dense))
same(
    "output size from the data, wrapper",
    lambda x: (x > 0).nonzero(),
    lambda c: (lambda t: TwoTensor(t, t.clone()))(dense(3, seed=c)),
    torch="graph break",
    refused="DataDependentError",
)
same(
    "`if` on a value",
    lambda x: x * 2 if x.sum() > 0 else x,
    plain(dense),
    torch="graph break",
    refused="DataDependentError",
)
same(
    "`.item()` of a plain tensor, used as a number or as a size",
    lambda x: (x * x.sum().item(), x.new_zeros((x > 0).sum().item()).sum()),
    root(dense),
    back=(0,),
    torch="graph break",
)
same("`.tolist()`", lambda x: x.tolist(), plain(dense), torch="graph break")
same(
    "`torch.allclose(x, y)`, `torch.equal(x, y)`: returned",
    lambda x: (torch.allclose(x, x), torch.equal(x, x + 1)),
    plain(dense),
    torch="not in the survey",
    refused="DataDependentError",
)
same(
    "`int(x)` of a tensor of floats, `bool(x)` (`.item()` is a symbol, and so are `float(x)` and `int(i)` from Python 3.11 on)",
    lambda x: x * int(x.sum()),
    plain(dense),
    torch="graph break",
    refused="DataDependentError",
)
same(
    "`torch.tensor([x[0], n])` of tensors and numbers inside tensors",
    lambda x: torch.tensor([x.sum(), x.sum().item(), 2]),
    plain(dense),
    torch="not in the survey",
    refused="UnsupportedError",
)
same(
    "a view or a copy, by a number inside a tensor (`x[:, :n].contiguous()`, `reshape`), returned where eager has a view",
    lambda x, n: x[:, : n.item()].contiguous(),
    lambda c: (dense(3, 3, seed=c), torch.tensor(3)),
    torch="not in the survey",
    differs="it is a copy in each call",
)
same(
    "the same, written while the other one is used afterwards",
    lambda x, n: x[:, : n.item()].contiguous().add_(1),
    lambda c: (dense(3, 3, seed=c), torch.tensor(3)),
    torch="not in the survey",
    refused="eager",
)
same(
    "`.numpy()`",
    lambda x: torch.from_numpy(x.numpy() * 2),
    plain(dense),
    torch="graph break",
    refused="DataDependentError",
)


@fact("`torch.sparse` layouts: arguments, buffers, results", torch="not in the survey", refused="eager")
def _sparse() -> None:
    assert torch.equal(st.compile(lambda m, x: m @ x)(torch.eye(3).to_sparse(), x := dense(3, 3, seed=1)), x)
    assert torch.equal(st.compile(lambda x: x.to_sparse())(torch.eye(3)).to_dense(), torch.eye(3))


same(
    "`.apply_(f)`, `.map_(y, f)`, `.map2_(y, z, f)`",
    lambda x: x.apply_(lambda v: v + 1),
    plain(dense),
    torch="graph break",
    refused="UnsupportedError",
)
same(
    "the memory of a tensor lent: DLPack, `share_memory_`, `pin_memory`, pickle",
    lambda x: torch.from_dlpack(x),
    plain(dense),
    torch="graph break",
    refused="UnsupportedError",
)
same(
    "a check that raises (a singular matrix)",
    lambda x: torch.linalg.inv(x) + 1,
    lambda c: torch.zeros(3, 3) if c else torch.eye(3),
)


def _asserts(x: Tensor) -> Tensor:
    assert x.sum() < 100, "too large"
    assert not x.isnan().any()
    return x * 2


same(
    "`if bad: raise ...` and `assert good, text` of a value: traced as if it held, and a call where it does not runs eagerly",
    _asserts,
    lambda c: torch.full((3,), [1.0, 200.0, float("nan"), 2.0][c % 4]),
    torch="graph break",
)


def _catches(x: Tensor) -> Tensor:
    try:
        assert x.sum() < 100, "too large"
    except AssertionError:
        return x * 3
    return x * 2


same(
    "such an `assert`, caught in the region",
    _catches,
    lambda c: torch.full((3,), [1.0, 200.0][c % 2]),
    torch="another error",
)


@fact(
    "such a check, caught in the region (`try: torch.linalg.inv(x)`, `except RuntimeError:`)",
    torch="differs in the same way",
    differs="the values are looked at in the call, when the function has long run: the error leaves the region; "
    "`torch.linalg.inv_ex` gives the number of the column instead",
)
def _caught_check() -> None:
    def f(x: Tensor) -> Tensor:
        try:
            return torch.linalg.inv(x)
        except RuntimeError:
            return x * 5

    try:
        got = st.compile(f)(torch.zeros(2, 2))
    except torch.linalg.LinAlgError:
        got = None
    assert got is not None and torch.equal(got, f(torch.zeros(2, 2)))


@fact("a call that eager refuses by dtypes or shapes (`x.mul_(1j)` of a real `x`): the same error, also where caught")
def _refused_call() -> None:
    def f(x: Tensor) -> Tensor:
        try:
            return x.mul_(1j)
        except RuntimeError:
            return x * 3

    assert torch.equal(st.compile(f)(torch.ones(2)), f(torch.ones(2)))


same(
    "the text of a tensor, or of a number inside of it",
    lambda x: f"{x.sum()} {x.sum().item():.2f}",
    plain(dense),
    torch="graph break",
    refused="DataDependentError",
)


def _as_for_each_size(f: Callable[[Tensor], Any], specializations: int) -> None:
    region = st.compile(f, dynamic=True)
    for n in (4, 5, 6):
        assert torch.equal(region(torch.ones(n)), f(torch.ones(n)))
    assert len(region.specializations) == specializations


@fact("the text or hash of a size, a size as a key (each size has a specialization)")
def _number_of_a_size() -> None:
    _as_for_each_size(lambda x: x * {"4": 2, "5": 3}.get(str(x.shape[0]), {6: 4}.get(x.shape[0], 5)), 3)


_type = type


@fact("`isinstance(x.shape[0], int)`, `type(x.shape[0]) is int` (one specialization for all sizes)")
def _class_of_a_size() -> None:
    _as_for_each_size(lambda x: x * (2 if isinstance(x.shape[0], int) and type(x.shape[0]) is int else 3), 1)
    _as_for_each_size(lambda x: x * (2 if _type(x.shape[0]) is int else 3), 1)


@fact("a size as an index (one specialization for all sizes)")
def _size_as_index() -> None:
    _as_for_each_size(lambda x: x[x.shape[0] - 1] * x.shape[0], 1)


@fact("`len(x)`, `x.shape.numel()`, `range(n)` (each size has a specialization)")
def _size_in_use() -> None:
    _as_for_each_size(lambda x: x * len(x) + x.shape.numel() + sum(range(x.shape[0])), 3)


same("a constant, asked for", lambda x: x * torch.tensor(3).item() if torch.tensor(2.0) > 1 else x, plain())
same("torch.cond, dense", lambda x: torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,)), plain(dense))
