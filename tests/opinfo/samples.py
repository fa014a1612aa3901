"""One operation that torch describes (OpInfo), on wrapped samples: eager against compiled, forward and backward.

Outcomes: ``ok``; ``eager wrong`` (another value than eager, but that of the operation on each dense leaf: wrappers in eager
drop conj bits); ``refused`` (a typed error of this package); ``wrong`` (another value, type, stride, alias, gradient or random
state than eager); ``crash`` (an error that eager does not have, and not one of ours); ``recompiles`` (right, but the second call
of the same shapes found no specialization); ``eager fails`` (on all samples: nothing to compare with).
"""

from __future__ import annotations

import importlib.util
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "differential"))
import oracle

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
VARIANTS = ("two", "nested", "in-place")
#: from bad to good; an operation counts as the worst of its samples
OUTCOMES = ("crash", "wrong", "recompiles", "refused", "eager wrong", "ok", "eager fails")
#: values of a fresh allocation, or of a generator that is not seeded: only types and sizes can be compared
UNDEFINED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
#: kill the process in eager: torch's kernels read a strided argument as a sparse one
EAGER_DIES = {"sparse.mm.reduce"}


def database() -> dict[str, Any]:
    """All operations by full name."""
    if (
        "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None
    ):  # torch's test base class inherits from it; nothing here uses it
        stub: Any = types.ModuleType("expecttest")
        stub.TestCase, stub.ACCEPT = unittest.TestCase, False
        sys.modules.setdefault("expecttest", stub)
    from torch.testing._internal import common_methods_invocations as invocations

    # Random operations come with a call of torch.manual_seed around them: a Python side effect, not a part of the operation.
    plain = "def wrapper_set_seed(op, *args, **kwargs): return op(*args, **kwargs)"
    exec(compile(plain, invocations.__file__, "exec"), vars(invocations))
    return {full_name(op): op for op in invocations.op_db}


def full_name(op: Any) -> str:
    """Name with the variant, as torch writes it."""
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


# ---------------------------------------------------------------------------------------------- samples
def dtype_of(op: Any) -> torch.dtype | None:
    """float32, or one dtype that is supported."""
    supported = op.supported_dtypes("cpu")
    order = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.int32, torch.uint8)
    return next((d for d in order if d in supported), None)


def samples_of(op: Any, dtype: torch.dtype, grad: bool, count: int) -> list[Any]:
    """A few samples, spread over the first fifty."""
    torch.manual_seed(0)
    found = list(islice(op.sample_inputs("cpu", dtype, requires_grad=grad), 50))
    if len(found) <= count:
        return found
    return [found[k * (len(found) - 1) // (count - 1)] for k in range(count)] if count > 1 else found[:1]


def scaled(t: Tensor, factor: float) -> Tensor:
    """Another tensor with the same layout in memory; floating values are multiplied."""
    t = t.detach()
    if t.layout is not torch.strided or t.is_conj() or t.is_neg():
        return t.clone()
    memory = t.untyped_storage().clone()
    if t.dtype.is_floating_point or t.dtype.is_complex:
        torch.empty(0, dtype=t.dtype).set_(memory).mul_(factor)
    return torch.empty(0, dtype=t.dtype).set_(memory, t.storage_offset(), t.shape, t.stride())


def wrap(t: Tensor, depth: int, factor: float, ratio: float) -> Tensor:
    """A TwoTensor, ``depth`` levels deep."""
    if depth == 0:
        return scaled(t, factor)
    return TwoTensor(wrap(t, depth - 1, factor, ratio), wrap(t, depth - 1, factor * ratio**depth, ratio))


def maker(sample: Any, variant: str, grad: bool, ratio: float) -> oracle.Make:
    """call number -> the sample as wrappers; other calls have other values."""
    depth = 2 if variant == "nested" else 1

    def make(call: int) -> oracle.Inputs:
        memo: dict[int, Tensor] = {}
        roots: list[Tensor] = []

        def one(t: Tensor) -> Tensor:
            if id(t) not in memo:
                if t.layout is not torch.strided:
                    memo[id(t)] = t.detach().clone()
                else:
                    new = wrap(t, depth, 1.0 - 0.25 * call, ratio)
                    if grad and t.requires_grad:
                        roots.append(new.requires_grad_())
                    memo[id(t)] = new
            return memo[id(t)]

        tree = pytree.tree_map_only(Tensor, one, (sample.input, tuple(sample.args), dict(sample.kwargs)))
        return oracle.Inputs(tree, tuple(roots))

    return make


# ---------------------------------------------------------------------------------------------- one operation
def program(op: Any, variant: str) -> Callable[..., Any] | None:
    """The region."""
    if variant == "in-place":
        change = op.inplace_variant
        if change is None:
            return None

        def fn(x: Any, args: Any, kwargs: Any) -> Any:
            y = x.clone()
            change(y, *args, **kwargs)
            return y

        return fn
    return lambda x, args, kwargs: op.op(x, *args, **kwargs)


def _dense(seen: Any) -> Any:
    """Sparse values as dense ones, so that they can be compared."""
    if isinstance(seen, Tensor):
        return seen if seen.layout is torch.strided else seen.to_dense()
    if isinstance(seen, dict):
        return {k: _dense(v) for k, v in seen.items()}
    return [_dense(v) for v in seen] if isinstance(seen, list) else seen


def _without_values(seen: Any) -> Any:
    if isinstance(seen, dict):
        return {k: _without_values(v) for k, v in seen.items() if k != "value"}
    return [_without_values(v) for v in seen] if isinstance(seen, list) else seen


def compare(fn: Callable[..., Any], make: oracle.Make, *, backward: bool, values: bool = True) -> tuple[str, str]:
    """Outcome and reason of one sample: two calls of one region."""
    region = st.compile(fn, backend="eager", frontend="trace")
    back = oracle.backward_of(range(8)) if backward else None
    for call in range(2):
        want = oracle.observe(fn, make(call), seed=7 + call, backward=back, strides=True)
        if want.error is not None:
            if call:
                return "ok", ""
            if back is not None and want.stage == "backward":
                return compare(fn, make, backward=False, values=values)
            return "eager fails", _line(want.error)
        got = oracle.observe(region, make(call), seed=7 + call, backward=back, strides=True)
        if got.error is not None:
            kind = "refused" if isinstance(got.error, st.SubclassTraceError) else "crash"
            where = "" if got.stage == "call" else f"in the {got.stage}: "
            return kind, f"{where}{_line(got.error)}"
        oracle.leave_out_members(want, got)
        a, b = _dense(want.seen), _dense(got.seen)
        found = oracle.difference(a, b) if values else oracle.difference(_without_values(a), _without_values(b))
        if found:
            right = backward and ".value" in found and _as_on_dense(fn, make(call), got.seen, back)
            return "eager wrong" if right else "wrong", f"call {call}: {found}"
    if len(region.specializations) > 1:
        return "recompiles", str(region.specializations[-1].reason)
    return "ok", ""


def _leaf(seen: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        seen = seen.get(f".{name}", seen)
    return seen["value"]


def _as_on_dense(fn: Callable[..., Any], inputs: oracle.Inputs, seen: dict[str, Any], back: Any) -> bool:
    """Are all results and gradients those of the operation on the dense leaves?"""

    def along(t: Any, path: tuple[str, ...]) -> Any:
        for name in path:
            t = getattr(t, name) if isinstance(t, TwoTensor) else t
        return t

    depth = max((len(list(_levels(t))) for t in inputs.roots), default=0)
    for number in range(2**depth):
        path = tuple("ab"[number >> d & 1] for d in range(depth))
        memo: dict[int, Tensor] = {}

        def dense(t: Tensor, path: tuple[str, ...] = path, memo: dict[int, Tensor] = memo) -> Tensor:
            if id(t) not in memo:
                memo[id(t)] = along(t, path).detach().clone().requires_grad_(t.requires_grad)
            return memo[id(t)]

        args = pytree.tree_map_only(Tensor, dense, inputs.args)
        outs = list(oracle.tensors(fn(*args)))
        want = [o.detach().clone() for o in outs]
        shift = 10 * path.count("b")
        chosen = [o for o in outs if o.requires_grad][:8]
        torch.autograd.backward(chosen, [oracle.tangent_for(o, k + shift) for k, o in enumerate(chosen)])
        got = [_leaf(r, path) for r in seen["result"] if isinstance(r, dict)]
        got += [None if g is None else _leaf(g, path) for g in seen["grads"]]
        want += [memo[id(t)].grad for t in inputs.roots]
        if oracle.difference({"all": [{"v": w} for w in want]}, {"all": [{"v": g} for g in got]}):
            return False
    return True


def _levels(t: Any) -> Iterator[int]:
    while isinstance(t, TwoTensor):
        t = t.a
        yield 0


def _line(error: BaseException) -> str:
    what = getattr(error, "what", None) or str(error)
    return f"{type(error).__name__}: {' '.join(what.split())[:160]}"


def run_sample(op: Any, sample: Any, variant: str, grad: bool) -> tuple[str, str]:
    """One sample in one variant."""
    fn = program(op, variant)
    if fn is None:
        return "eager fails", "no in-place variant"
    result = ("eager fails", "")
    for ratio in (0.5, 1.0):  # different halves; equal ones where eager asks for that
        result = compare(fn, maker(sample, variant, grad, ratio), backward=grad, values=op.name not in UNDEFINED)
        if result[0] != "eager fails":
            break
    return result


def run(op: Any, count: int = 3, variants: tuple[str, ...] = VARIANTS) -> dict[str, tuple[str, str]]:
    """variant -> the worst outcome of the samples, with its reason."""
    if full_name(op) in EAGER_DIES:
        return dict.fromkeys(variants[:2], ("eager fails", "segmentation fault of torch's kernel"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dtype = dtype_of(op)
        if dtype is None:
            return dict.fromkeys(variants, ("eager fails", "no dtype of this table"))
        grad = bool(op.supports_autograd and (dtype.is_floating_point or dtype.is_complex))
        samples = samples_of(op, dtype, grad, count)
        worst = {}
        for variant in variants:
            if variant == "in-place" and op.inplace_variant is None:
                continue
            rows = [
                (*run_sample(op, s, variant, grad), k)
                for k, s in enumerate(samples[: 1 + (variant != "in-place") * count])
            ]
            outcome, reason, k = min(rows, key=lambda r: OUTCOMES.index(r[0]), default=("eager fails", "no samples", 0))
            worst[variant] = (outcome, f"sample {k}: {reason}" if reason and len(samples) > 1 else reason)
    return worst
