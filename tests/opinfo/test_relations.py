"""Every operation that torch describes: what its results are views of, what they share, and how often they were written.

Dense samples and TwoTensors, floating and whole numbers, with gradients and without, in each grad mode and in inference mode.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from samples import EAGER_DIES, database, samples_of, scaled
from torch.utils import _pytree as pytree

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
MODES = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}
#: in inference mode, members of an "unsafe" split of a normal tensor are views of it with counters of their own, in eager
#: alone; and dropout that drops nothing gives another TwoTensor around the same inner tensors
OTHER_RELATIONS = {
    ("dense", "nn.functional.instance_norm", "inference"),  # its statistics are written, and their counters stay
    ("dense", "unsafe_chunk", "inference"),
    ("dense", "unsafe_split", "inference"),
    ("two", "nn.functional.dropout", "inference"),
}


def _modes(op: Any) -> Iterator[tuple[torch.dtype, bool, str]]:
    for dtype in (torch.float32, torch.int64):
        if dtype in op.supported_dtypes("cpu"):
            grad = dtype.is_floating_point and op.supports_autograd
            yield from ((dtype, grad, "grad"), (dtype, grad, "no_grad"), (dtype, False, "inference"))
            if grad:
                yield dtype, False, "grad"


def _leaves(t: Tensor) -> list[Tensor]:
    return [*_leaves(t.a), *_leaves(t.b)] if isinstance(t, TwoTensor) else [t]


def _keys(t: Tensor) -> set[int]:
    return {u.untyped_storage()._cdata for u in _leaves(t) if u.layout is torch.strided and u.numel()}


def _strides(t: Tensor) -> list[int] | None:
    if t.layout is not torch.strided or not t.numel():
        return None
    return [stride if size > 1 else 0 for size, stride in zip(t.shape, t.stride(), strict=True)]


def _version(t: Tensor) -> int | None:
    return None if t.is_inference() else t._version


def _relations(given: Sequence[Tensor], results: Sequence[Tensor]) -> list[Any]:
    everything, rows = [*given, *results], []
    for number, t in enumerate(everything):
        base = t._base
        known = [k for k, u in enumerate(everything) if u is base or (base is not None and u._base is base)]
        shown = None if base is None else (known, tuple(base.shape), _strides(base), base.requires_grad, base.is_leaf)
        shared = [k for k, u in enumerate(everything) if _keys(t) & _keys(u)]
        same = [k for k, u in enumerate(everything) if u is t]
        layout = (t.dtype, tuple(t.shape), [_strides(u) for u in (t, *_leaves(t))], t.requires_grad, t.is_leaf)
        rows.append(
            (
                type(t).__name__,
                t._is_view(),
                shown,
                shared,
                same,
                _version(t) if number < len(given) else None,  # those of results are not always eager's
                t.is_inference(),
                layout,
            )
        )
    return rows


def _run(call: Callable[..., Any], sample: Any, kind: str, grad: bool, mode: str) -> list[Any]:
    memo: dict[int, Tensor] = {}

    def fresh(t: Tensor) -> Tensor:
        if t.layout is torch.strided and id(t) not in memo:
            made = scaled(t, 1.0) if kind == "dense" else TwoTensor(scaled(t, 1.0), scaled(t, 1.0))
            memo[id(t)] = made.requires_grad_() if grad and t.requires_grad else made
        return memo.get(id(t), t)

    parts = (sample.input, *sample.args), dict(sample.kwargs)
    args, kwargs = pytree.tree_map_only(Tensor, fresh, parts)
    given = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    torch.manual_seed(0)
    with MODES[mode]():
        out = call(*args, **kwargs)
        return _relations(given, [t for t in pytree.tree_leaves(out) if isinstance(t, Tensor)])


def _differences(kind: str, name: str, op: Any, count: int) -> Iterator[str]:
    for dtype, grad, mode in _modes(op):
        try:
            samples = samples_of(op, dtype, grad, count)
        except (RuntimeError, NotImplementedError):  # no samples of this dtype
            continue
        for sample in samples:
            try:
                want = _run(op.op, sample, kind, grad, mode)
            except Exception:  # eager refuses it, for a wrapper or in this mode: nothing to compare with
                continue
            try:
                got = _run(st.compile(lambda *args, **kwargs: op.op(*args, **kwargs)), sample, kind, grad, mode)
            except st.SubclassTraceError:  # refused, see test_opinfo
                continue
            several = kind == "two" and len(want) > 2 and grad  # members of a split of a wrapper are values
            if want != got and not several and (kind, name, mode) not in OTHER_RELATIONS:
                yield f"{kind} {name} {dtype} {mode}: {want} eager, {got} compiled"


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "count"), [("dense", 1), ("two", 1)])
def test_relations(kind: str, count: int) -> None:
    ops = {n: op for n, op in database().items() if n not in EAGER_DIES}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [row for name, op in ops.items() for row in _differences(kind, name, op, count)]
    assert not found, "\n".join(found)
