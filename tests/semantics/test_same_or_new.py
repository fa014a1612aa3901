"""Whether a result is its argument itself, a view of it or a new tensor, and how often it was written, is as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
MODES = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}
PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "contiguous": lambda x: x.contiguous(),
    "to": lambda x: x.to(x.dtype),
    "to, copied": lambda x: x.to(x.dtype, copy=True),
    "reshape": lambda x: x.reshape(x.shape),
    "view": lambda x: x.view(x.shape),
    "expand_as": lambda x: x.expand_as(x),
    "dropout of nothing": lambda x: F.dropout(x, 0.0),
    "dropout, not training": lambda x: F.dropout(x, 0.5, training=False),
    "native_dropout, not training": lambda x: torch.native_dropout(x, 0.5, False)[0],
    "clone": lambda x: x.clone(),
    "squeeze": lambda x: x.squeeze(),
    "real": lambda x: x.real,
    "conj": lambda x: x.conj(),
    "conj, twice": lambda x: x.conj().conj(),
    "imag of conj, detached": lambda x: x.conj().imag.detach() if x.is_complex() else x.detach(),
    "resolve_conj": lambda x: x.resolve_conj(),
    "conj_physical": lambda x: x.conj_physical(),
    "pad": lambda x: F.pad(x, (0, 0)),
    "detach": lambda x: x.detach(),
    "atleast_3d": torch.atleast_3d,
    "narrow": lambda x: x.narrow(0, 0, x.shape[0]),
    "slice": lambda x: x[:],
    "chunk": lambda x: x.chunk(1),
    "split": lambda x: x.split(x.shape[0]),
    "flatten": lambda x: x[0].flatten(),
    "twice transposed": lambda x: x.t().t(),
    "cat": lambda x: torch.cat([x]),
    "all three": lambda x: (lambda y: (y, y.contiguous(), F.dropout(y, 0.0), y.view(y.shape)))(x * 2),
}


def _written_detached(x: Tensor) -> Tensor:
    view = x.view(torch.int32)
    x.detach().mul_(2)
    return view


def _written_as_integers(x: Tensor) -> Tensor:
    view = x.view(torch.int32)
    view.add_(1)
    return view


def _beside_its_base(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    return y, y.view(torch.int32), y[0], y.detach()


#: of dense tensors: views of another dtype, which share memory and version counter
OTHER_DTYPES: dict[str, Callable[[Tensor], Any]] = {
    "integers": lambda x: x.view(torch.int32),
    "halves": lambda x: x.view(torch.bfloat16),
    "there and back": lambda x: x.view(torch.int32).view(torch.float32),
    "of a part": lambda x: x[1:].view(torch.int32),
    "a part of it": lambda x: (x.view(torch.int32)[1:], x.view(-1)),
    "detached part": lambda x: x.split(2)[1].detach(),
    "members": lambda x: [t.view(torch.int32) for t in x.split(2)],
    "twice": lambda x: (x.detach(), x.view(torch.int32).detach()[0]),
    "of a value": _beside_its_base,
    "of a value alone": lambda x: (x * 2).view(torch.int32),
    "base written": _written_detached,
    "view written": _written_as_integers,
    "complex": lambda x: torch.view_as_complex(x.view(-1, 2)),
}


def _inside(t: Tensor) -> list[Tensor]:
    return [t, *_inside(t.a), *_inside(t.b)] if isinstance(t, TwoTensor) else [t]


def _dense(ts: list[Tensor]) -> list[Tensor]:
    return [t for t in ts if not isinstance(t, TwoTensor)]


def _seen(x: Tensor, out: Any) -> list[Any]:
    results: list[Tensor] = list(out) if isinstance(out, (tuple, list)) else [out]
    known = [x, *results]
    rows: list[Any] = []
    for t in known:
        parts = _inside(t)
        versions = [None if u.is_inference() else u._version for u in parts]
        kinds = [(u.is_inference(), u._is_view(), u._base is None, u.stride(), u.is_conj(), u.is_neg()) for u in parts]
        rows.append((type(t), t.requires_grad, t.grad_fn is None, t.is_leaf, versions, kinds))
        rows.append([(t is u, t._base is u) for u in known])
        rows.append([[u is v for v in _inside(x)] for u in parts])
        where = [[u.untyped_storage()._cdata == v.untyped_storage()._cdata for v in _dense(_inside(x))] for u in parts]
        rows.append((where, [u.tolist() for u in _dense(parts)]))
    for t in results:
        if t.grad_fn is not None and x.requires_grad:
            (g,) = torch.autograd.grad(t, x, t.detach().clone(), retain_graph=True, allow_unused=True)
            rows.append(None if g is None else [(u.tolist(), u.stride()) for u in _dense(_inside(g))])
    for t in known if type(x) is Tensor else ():  # who shares a counter with whom
        if not t.is_inference():
            with torch.no_grad():
                t.mul_(1)
            rows.append([None if u.is_inference() else u._version for u in known])
    return rows


def _make(kind: str, history: str) -> Tensor:
    torch.manual_seed(0)
    dtype = torch.complex64 if "complex" in kind else torch.float32
    parts = [torch.randn(3, 4, dtype=dtype) for _ in range(4)]
    with torch.inference_mode(history == "inference"):
        parts = [p.clone() for p in parts]
        halves = [TwoTensor(*parts[:2]), TwoTensor(*parts[2:])]
        x = TwoTensor(*halves) if "nested" in kind else halves[0] if "wrapper" in kind else parts[0]
    if history == "part":
        return torch.cat([x, x])[1:4]
    x.requires_grad_(history in ("leaf", "value"))
    return x * 1 if history == "value" else x


KINDS = ["dense", "wrapper", "nested wrapper", "complex", "complex wrapper"]
REFUSED = {"native_dropout": "complex", "imag": "complex wrapper"}  # by eager mode
#: for wrappers inside wrappers and of complex numbers: views, what may be the argument itself, what never is, and several
SAMPLE = (
    "contiguous",
    "conj",
    "imag of conj, detached",
    "resolve_conj",
    "detach",
    "slice",
    "split",
    "twice transposed",
    "cat",
    "all three",
)
CASES = [
    pytest.param(n, k, marks=pytest.mark.slow if " wrapper" in k and n not in SAMPLE else ())
    for n in PROGRAMS
    for k in KINDS
    if not any(a in n and b in k for a, b in REFUSED.items())
    if not (n in ("conj", "conj, twice") and k == "complex wrapper")  # inner tensors with such a bit are refused
    if not (n in ("chunk", "split") and "wrapper" in k)  # under autograd, members are values
] + [pytest.param(n, "dense") for n in OTHER_DTYPES]


@pytest.mark.filterwarnings("ignore:a call of a region runs eagerly")
@pytest.mark.parametrize(("name", "kind"), CASES)
@pytest.mark.sweep(every=4)
def test_the_argument_a_view_or_a_new_tensor(name: str, kind: str) -> None:
    program = {**PROGRAMS, **OTHER_DTYPES}[name]
    region = st.compile(program)
    for history in ("leaf", "value", "plain", "inference", *(["part"] if kind == "dense" else [])):
        for mode in MODES:
            if history == "inference" and mode != "inference" and "wrapper" in kind:
                continue  # what its inner tensors are counted depends on the keys that torch leaves out in a class
            found = []
            for call in (program, region):
                x = _make(kind, history)
                with MODES[mode]():
                    out = call(x)
                found.append(_seen(x, out))
            assert found[0] == found[1], (history, mode)


def test_a_write_to_a_wrapper_inside_is_counted_there() -> None:
    def nested() -> TwoTensor:
        return TwoTensor(TwoTensor(torch.ones(2), torch.ones(2)), TwoTensor(torch.ones(2), torch.ones(2)))

    def write(x: Tensor) -> None:
        x.b.mul_(2)  # type: ignore[attr-defined]

    def several(x: Tensor) -> Tensor:
        x.b.mul_(2)  # type: ignore[attr-defined]
        x.add_(1)
        return x.b + 1  # type: ignore[attr-defined]

    for function in (write, several):
        seen = []
        for call in (function, st.compile(function)):
            x = nested()
            for _ in range(2):
                call(x)
            seen.append([x._version > 0, x.b._version > 0, x.b.a.tolist()])
        assert seen[0] == seen[1]

    x, w = nested(), TwoTensor(torch.ones(2), torch.ones(2)).requires_grad_()
    loss = (x.b * w).sum()
    st.compile(write)(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward(TwoTensor(torch.tensor(1.0), torch.tensor(1.0)))


@pytest.mark.parametrize("dynamic", [False, True])
def test_products_of_batches_are_no_views(dynamic: bool) -> None:
    for function in (lambda x: x @ x.transpose(-1, -2), lambda x: torch.matmul(x[0].expand_as(x), x.transpose(-1, -2))):
        for shape in ((3, 4, 5), (2, 3, 4, 5)):
            region, x = st.compile(function, dynamic=dynamic or None), torch.randn(shape)
            with torch.no_grad():
                mine, theirs = region(x), function(x)
            assert torch.equal(mine, theirs) and mine._is_view() is theirs._is_view()
            mine.add_(torch.ones((), requires_grad=True))
