"""Operations that may return their argument itself: what comes out is that, a view of it or a new tensor, as in eager."""

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
    return rows


def _make(kind: str, history: str) -> Tensor:
    torch.manual_seed(0)
    dtype = torch.complex64 if "complex" in kind else torch.float32
    parts = [torch.randn(3, 4, dtype=dtype) for _ in range(4)]
    with torch.inference_mode(history == "inference"):
        parts = [p.clone() for p in parts]
        halves = [TwoTensor(*parts[:2]), TwoTensor(*parts[2:])]
        x = TwoTensor(*halves) if "nested" in kind else halves[0] if "wrapper" in kind else parts[0]
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
    if (n, k) != ("conj", "complex wrapper")  # inner tensors with such a bit are refused
    if not (n in ("chunk", "split") and "wrapper" in k)  # under autograd, members are values
]


@pytest.mark.filterwarnings("ignore:a call of a region runs eagerly")
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_the_argument_a_view_or_a_new_tensor(name: str, kind: str) -> None:
    region = st.compile(PROGRAMS[name])
    for history in ("leaf", "value", "plain", "inference"):
        for mode in MODES:
            if history == "inference" and mode != "inference" and "wrapper" in kind:
                continue  # what its inner tensors are counted depends on the keys that torch leaves out in a class
            found = []
            for call in (PROGRAMS[name], region):
                x = _make(kind, history)
                with MODES[mode]():
                    out = call(x)
                found.append(_seen(x, out))
            assert found[0] == found[1], (history, mode)
