"""Jagged NestedTensors in regions: their sizes are symbols, their ragged sizes follow the identity of their offsets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import subclass_trace as st
from subclass_trace import verify
from subclass_trace.frontends.dynamo import register

Tensor = torch.Tensor
Lengths = tuple[int, ...]
from_jagged = torch.nested.nested_tensor_from_jagged

#: other sums, numbers, shortest and longest lengths
LENGTHS: list[Lengths] = [(2, 2, 3), (3, 5, 3, 2, 1, 2), (1, 4)]
SAME_NUMBER: list[Lengths] = [(2, 2, 3), (4, 2, 2), (1, 1, 2)]


def offsets(lengths: Lengths) -> Tensor:
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])


def jagged(lengths: Lengths, seed: int = 0, at: Tensor | None = None, known: bool = True) -> Tensor:
    """A leaf that requires grad; ``at``: its offsets; ``known``: it holds its shortest and longest length."""
    values = torch.randn(sum(lengths), 4, generator=torch.Generator().manual_seed(seed))
    at = offsets(lengths) if at is None else at
    bounds = {"min_seqlen": min(lengths), "max_seqlen": max(lengths)} if known else {}
    return from_jagged(values, at, **bounds).detach().requires_grad_()


def dense(*size: int, seed: int = 1) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def two_of_one(lengths: Lengths) -> tuple[Tensor, Tensor]:
    at = offsets(lengths)
    return jagged(lengths, at=at), jagged(lengths, 1, at)


def two(lengths: Lengths) -> tuple[Tensor, Tensor]:
    return jagged(lengths), jagged(tuple(n + 1 for n in lengths), 1)


def heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (2, 2)).transpose(1, 2)


Make = Callable[[Lengths], Sequence[Tensor]]
ONE: Make = lambda n: (jagged(n),)
PROGRAMS: dict[str, tuple[Callable[..., Any], Make]] = {
    "pointwise": (lambda x: x.sin() * 2, ONE),
    "unflatten": (lambda x: x.unflatten(-1, (2, 2)), ONE),
    "heads and back": (lambda x: (heads(x) * 2).transpose(1, 2).flatten(-2), ONE),
    "chunk": (lambda x: x.chunk(2, -1), ONE),
    "linear": (F.linear, lambda n: (jagged(n), dense(3, 4))),
    "same offsets": (lambda x, y: x * y + x, two_of_one),
    "a model": (
        lambda x, w, b: F.layer_norm(F.gelu(F.linear(x, w)), (4,), b) * 2,
        lambda n: (jagged(n), dense(4, 4), dense(4)),
    ),
    "softmax": (lambda x, w: F.softmax(F.linear(x, w), -1), lambda n: (jagged(n), dense(4, 4))),
    "mean over the width": (lambda x, w: F.linear(x, w).mean(-1, keepdim=True) * x, lambda n: (jagged(n), dense(4, 4))),
    "values": (lambda x, w: x.values() @ w, lambda n: (jagged(n), dense(4, 4))),
    "other offsets": (lambda x, y: (x * 2, y.sin()), two),
    "offsets too": (lambda x: (x * 2, x.offsets()), ONE),
    "made again": (lambda x: from_jagged(x.values().sin(), x.offsets()) * x, ONE),
    "padded": (lambda x: torch.nested.to_padded_tensor(x, 0.0) * 2, ONE),
    "sizes": (lambda x: (x * x.size(0), x.size(0), x.dim()), ONE),
    "ragged size": (lambda x: (x * 2, x.size(1)), ONE),
    "dropout": (lambda x: F.dropout(x, 0.5), ONE),
    "written": (lambda x: (lambda y: (y.mul_(2.0), y + 1)[1])(x * 1), ONE),
}
#: sizes of two dense arguments, which change independently
DENSE_IN: dict[str, tuple[Callable[..., Any], Make]] = {
    "made here": (lambda v, o: from_jagged(v, o).sin(), lambda n: (dense(sum(n), 4), offsets(n)))
}


def flat(out: Any) -> list[Any]:
    return [v for o in out for v in flat(o)] if isinstance(out, (tuple, list)) else [out]


def plain(t: Tensor) -> Tensor:
    return t.values() if t.is_nested else t


def seen(f: Callable[..., Any], args: Sequence[Tensor]) -> dict[str, Any]:
    """Results, which input's offsets they have, gradients."""
    torch.manual_seed(0)
    out = flat(f(*args))
    tensors = [o for o in out if isinstance(o, Tensor)]
    roots = [a for a in args if a.requires_grad]
    live = [o for o in tensors if o.requires_grad]
    grads = torch.autograd.grad(sum((plain(o) * 1.5).sum() for o in live), roots) if live else ()  # type: ignore[arg-type]
    nested = [a for a in args if a.is_nested]
    return {
        "numbers": [o for o in out if isinstance(o, int)],
        "ragged": [[bool(o == a.shape[1]) for a in nested] for o in out if isinstance(o, torch.SymInt)],
        "kinds": [(type(t), t.requires_grad, t.is_contiguous() if not t.is_nested else None) for t in tensors],
        "inner": [t.__tensor_flatten__() if t.is_nested else None for t in tensors],  # type: ignore[attr-defined]
        "offsets": [[t._offsets is a._offsets for a in nested] for t in tensors if t.is_nested],  # type: ignore[attr-defined]
        "values": [plain(t).detach() for t in tensors],
        "seqlens": [
            [getattr(t, n).shape[0] for n in t.__tensor_flatten__()[0] if "seqlen" in n]  # type: ignore[attr-defined]
            for t in tensors
            if t.is_nested
        ],
        "grads": [plain(g) for g in grads],
    }


def check(f: Callable[..., Any], compiled: Any, make: Make, lengths: Lengths) -> None:
    mine, theirs = seen(compiled, make(lengths)), seen(f, make(lengths))
    for key in ("values", "grads"):
        torch.testing.assert_close(mine.pop(key), theirs.pop(key))
    assert mine == theirs


DYNAMIC = ["pointwise", "same offsets", "padded"]
RUNS = [pytest.param(n, d, id=f"{n}{', dynamic' * d}") for d in (False, True) for n in (DYNAMIC if d else PROGRAMS)]


@pytest.mark.filterwarnings("ignore:a call of a region runs eagerly")
@pytest.mark.parametrize(("name", "dynamic"), RUNS)
@pytest.mark.sweep(every=4)
def test_sizes_change(name: str, dynamic: bool) -> None:
    f, make = PROGRAMS[name]
    compiled = st.compile(f, dynamic=dynamic or None)
    with verify.enabled():
        for lengths in LENGTHS:
            check(f, compiled, make, lengths)
    limit = 1 if dynamic else 2
    assert len(compiled.specializations) <= limit, compiled.explain()
    for found in compiled.specializations:
        backwards = found.program.backwards
        assert backwards is None or len(backwards.compiled) == 1, compiled.explain()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning")
@pytest.mark.parametrize("name", ["a model", "padded", "mean over the width", "values"])
def test_through_dynamo(name: str) -> None:
    f, make = PROGRAMS[name]
    register()
    torch.compiler.reset()
    compiled = torch.compile(f, backend="subclass_trace", fullgraph=True)
    for lengths in LENGTHS:
        check(f, compiled, make, lengths)


@pytest.mark.parametrize("name", DENSE_IN)
def test_made_in_the_region(name: str) -> None:
    f, make = DENSE_IN[name]
    compiled = st.compile(f)
    with verify.enabled():
        for lengths in SAME_NUMBER:
            check(f, compiled, make, lengths)
    assert len(compiled.specializations) <= 2


@pytest.mark.parametrize("name", ["unflatten", "same offsets"])
def test_static_sizes(name: str) -> None:
    f, make = PROGRAMS[name]
    compiled = st.compile(f, dynamic=False)
    for lengths in [*LENGTHS[:2], *LENGTHS[:2]]:  # the same sizes again, with offsets of their own
        check(f, compiled, make, lengths)
    assert len(compiled.specializations) == 2


def test_what_torch_remembers_of_the_sizes() -> None:
    """It keeps the answers of a jagged tensor in attributes of it: whether it has asked yet is no matter."""
    f = lambda x: x.sin() * len(x.shape)
    compiled = st.compile(f, dynamic=False)
    for asked in (True, False, True, False):
        x = jagged(LENGTHS[0])
        if asked:
            (x * 2).numel(), x.stride(), x.numel(), torch.empty_like(x)
        assert torch.equal(compiled(x).values(), f(x).values())
    assert len(compiled.specializations) == 1


def test_a_weight_that_takes_the_batch_apart() -> None:
    """The gradient of a matrix that a jagged tensor is multiplied by goes over its rows one by one."""
    compiled = st.compile(lambda x, w: x @ w)
    for lengths in SAME_NUMBER:
        check(lambda x, w: x @ w, compiled, lambda n: (jagged(n), dense(4, 5)), lengths)
    assert len(compiled.specializations) == 1


def test_offsets_that_become_one() -> None:
    """Which inputs have the same offsets is guarded: what is allowed depends on it."""
    f = lambda x, y: x.sin().values().sum() + y.cos().values().sum()
    compiled = st.compile(f)
    for make in (two, two_of_one, two, two_of_one):
        for lengths in LENGTHS[:2]:
            check(f, compiled, make, lengths)


def test_other_offsets_do_not_go_together() -> None:
    compiled = st.compile(lambda x, y: x + y)
    with pytest.raises(RuntimeError, match="cannot call binary pointwise function add"):
        compiled(jagged((2, 3)), jagged((2, 3), 1))
    x, y = two_of_one((2, 3))
    torch.testing.assert_close(compiled(x, y).values(), (x + y).values())


def test_a_closed_over_jagged_tensor() -> None:
    at = offsets((2, 3))
    y = jagged((2, 3), 1, at).detach()
    f = lambda x: x * y
    compiled = st.compile(f)
    for seed in range(2):
        check(f, compiled, lambda n, seed=seed: (jagged(n, seed, at),), (2, 3))  # type: ignore[misc]


def test_a_differentiated_backward_for_the_rows_of_another_call_is_refused() -> None:
    layer = torch.nn.Linear(4, 4)
    region = st.compile(lambda x: layer(x), dynamic=True)

    def twice(*lengths: int) -> torch.Tensor:
        x = torch.nested.nested_tensor([torch.ones(n, 4) for n in lengths], layout=torch.jagged, requires_grad=True)
        out = region(x)
        (g,) = torch.autograd.grad(out.values().pow(2).sum(), x, create_graph=True)
        return torch.autograd.grad(g.values().pow(2).sum(), x)[0]

    region(torch.nested.nested_tensor([torch.ones(2, 4)] * 3, layout=torch.jagged, requires_grad=True))
    with pytest.raises(st.TangentError, match="sizes or numbers for which"):
        twice(2, 3)
    twice(2, 3)  # has a specialization of its own now


@pytest.mark.filterwarnings("ignore:a call of a region runs eagerly")
@pytest.mark.parametrize(
    ("beside", "dynamic"), [(torch.sgn, False), (lambda h: h.sum(-1), False), (lambda h: h.sum(1), True)]
)
def test_beside_a_result_whose_backward_cannot_be_traced(beside: Callable[[Tensor], Tensor], dynamic: bool) -> None:
    """The backward of a product with a weight has an operation for each row, also where no guess tells."""
    w = dense(4, 3)
    f = lambda x: (lambda h: (h.values().pow(2).sum(), beside(h)))(x @ w)
    region = st.compile(f, dynamic=dynamic or None)
    many: list[Lengths] = [(2, 3), (3, 1, 2), (4,), (3, 1, 2)]
    for one, other in itertools.pairwise(many):
        found = []
        for call in (f, region):
            x, y = jagged(one), jagged(other, 1)
            losses = [call(x)[0], call(y)[0]]  # both forwards, before there is any backward
            for loss in losses:
                loss.backward()
            found.append([x.grad.values(), y.grad.values(), w.grad])  # type: ignore[union-attr]
            w.grad = None
        torch.testing.assert_close(*found)


def test_the_first_one_of_a_process_is_made_in_a_region() -> None:
    """What torch makes once for their views must be no tensor of a trace."""
    from torch.nested._internal import nested_tensor

    at, of_a_trace = offsets((2, 3)), from_jagged(dense(5, 4), offsets((2, 3))).detach()
    of_a_trace._values = torch._subclasses.FakeTensorMode().from_tensor(of_a_trace._values)
    for nested_tensor._dummy_instance in (None, of_a_trace):
        x = dense(5, 4)
        region = st.compile(lambda v, at: from_jagged(v, at).softmax(-1).values())
        assert region(x, at).equal(x.softmax(-1))
        assert type(nested_tensor._dummy_instance._values) is Tensor
