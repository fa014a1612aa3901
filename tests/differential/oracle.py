"""The oracle: run a program eagerly and compiled from the same inputs, and compare everything a caller can see.

A program is a function of tensors. `Inputs` builds fresh inputs for each run; `check` runs both and raises a `Difference`
that names the first thing that differs. Compared: types, shapes, strides, dtypes, values, requires_grad, is_leaf,
whether there is a history, contexts, the tree of results, identity and shared memory among inputs and results, what is a
view of what, mutations, which version counters moved, gradients, random number state, and whether there is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

import subclass_trace as st

Tensor = torch.Tensor


class Difference(AssertionError):
    """Eager and compiled differ."""


@dataclass
class Inputs:
    """Arguments of one call, and the leaves behind them whose gradients are compared."""

    args: tuple[Any, ...]
    roots: tuple[Tensor, ...] = ()


Make = Callable[[int], Inputs]


@dataclass
class Behaviour:
    """What one run showed, as nested dicts and lists of plain values and dense tensors."""

    seen: dict[str, Any] = field(default_factory=dict)
    error: BaseException | None = None
    stage: str = "call"
    members: tuple[frozenset[str], frozenset[int]] = frozenset(), frozenset()  # labels and places, see `is_member`


# ---------------------------------------------------------------------------------------------- looking at tensors
def tensors(tree: Any) -> list[Tensor]:
    """All tensors of a pytree."""
    return [t for t in pytree.tree_leaves(tree) if isinstance(t, Tensor)]


def leaves(t: Tensor) -> list[Tensor]:
    """Dense leaves, by a recursion of its own: the code under test must not judge itself."""
    if not is_traceable_wrapper_subclass(t):
        return [t]
    inner = [getattr(t, name) for name in t.__tensor_flatten__()[0]]
    return [leaf for i in inner if isinstance(i, Tensor) for leaf in leaves(i)]


def _strides(t: Tensor) -> Any:
    if t.layout is not torch.strided or not t.numel():
        return None
    return [stride if size > 1 else 0 for size, stride in zip(t.shape, t.stride(), strict=True)]


def look(t: Any, *, outer: bool = True, strides: bool = True) -> Any:
    """All that is visible of one value."""
    if not isinstance(t, Tensor):
        return t
    seen: dict[str, Any] = {
        "type": type(t).__name__,
        "shape": list(t.shape),
        "dtype": str(t.dtype),
        "device": str(t.device),
    }
    if strides:
        seen["stride"] = _strides(t)
    if outer:
        seen |= {
            "requires_grad": t.requires_grad,
            "is_leaf": t.is_leaf,
            "has grad_fn": t.grad_fn is not None,
            "inference": t.is_inference(),
        }
    if is_traceable_wrapper_subclass(t):
        names, context = t.__tensor_flatten__()
        seen["names"], seen["context"] = list(names), repr(context)
        for name in names:
            seen[f".{name}"] = look(getattr(t, name), outer=False, strides=strides)
    else:
        seen["value"] = t.detach().clone()
    return seen


def _keys(t: Tensor) -> set[int]:
    """The storages behind a tensor."""
    return {leaf.untyped_storage()._cdata for leaf in leaves(t) if leaf.layout is torch.strided and leaf.numel()}


def relations(labelled: Sequence[tuple[str, Tensor]]) -> dict[str, list[str]]:
    """Which of the tensors are one object, share memory, or are views of one another."""
    same, shared, views = [], [], []
    keys = [_keys(t) for _, t in labelled]
    places = [
        [leaf.storage_offset() for leaf in leaves(t) if leaf.layout is torch.strided and leaf.numel()]
        for _, t in labelled
    ]
    for j, (b, y) in enumerate(labelled):
        for i, (a, x) in enumerate(labelled[:j]):
            if x is y:
                same.append(f"{a} is {b}")
            elif keys[i] & keys[j]:
                shared.append(f"{a} ~ {b} at {places[i]} {places[j]}")
            if y._base is x and y is not x:
                views.append(f"{b}._base is {a}")
            elif x._base is y and y is not x:
                views.append(f"{a}._base is {b}")
            elif y._base is not None and y._base is x._base and x is not y:
                views.append(f"{a}._base is {b}._base")
    return {"identity": same, "shared memory": shared, "views": views}


def family_of(t: Tensor) -> dict[str, Any]:
    """What autograd knows of a result: what it is a view of."""
    base = t._base
    shown = None if base is None else f"{type(base).__name__} {list(base.shape)} {base.requires_grad} {base.is_leaf}"
    return {"is view": t._is_view(), "base": shown}


def is_member(t: Any) -> bool:
    """Is it a member of a split of a wrapper that autograd protects? A region hands those out as protected values."""
    known = is_traceable_wrapper_subclass(t) and t.requires_grad and t._is_view()
    return known and torch._C._autograd._get_creation_meta(t) == torch._C._autograd.CreationMeta.MULTI_OUTPUT_NODE


def leave_out_members(want: Behaviour, got: Behaviour) -> None:
    """What eager's members of splits are views of is not compared, see `is_member`."""
    labels, places = want.members
    for run in (want, got):
        views = run.seen["relations"]["views"]
        kept = [row for row in views if not any(m in row.replace("._base", "").split(" is ") for m in labels)]
        run.seen["relations"]["views"] = kept
        run.seen["family"] = [None if k in places else row for k, row in enumerate(run.seen["family"])]


def version_of(t: Tensor) -> int | None:
    """An inference tensor has none."""
    return None if t.is_inference() else t._version


# ---------------------------------------------------------------------------------------------- running
def tangent_for(out: Tensor, k: int) -> Tensor:
    """A gradient for an output: its own type, values that tell positions apart."""
    with torch.no_grad():
        if is_traceable_wrapper_subclass(out):
            names, context = out.__tensor_flatten__()
            inner = {n: tangent_for(getattr(out, n), k + 10 * i) for i, n in enumerate(names)}
            return type(out).__tensor_unflatten__(inner, context, out.shape, out.stride())
        if not out.dtype.is_floating_point and not out.dtype.is_complex:
            return out.detach().clone()
        ramp = torch.arange(out.numel(), dtype=torch.float32).reshape(out.shape)
        return ((ramp * 0.7 + k).cos() + 0.1).to(out.dtype)


def observe(
    f: Callable[..., Any],
    inputs: Inputs,
    *,
    seed: int,
    backward: Callable[[list[Tensor]], None] | None,
    strides: bool,
    hooked: bool = False,
) -> Behaviour:
    """Run once and look. ``hooked``: also at which hooks of the leaves run, and how often."""
    seen: dict[str, Any] = {}
    behaviour = Behaviour(seen)
    given = tensors(inputs.args)
    counters = [(t, version) for t in given if (version := version_of(t)) is not None]
    torch.manual_seed(seed)
    fired: list[int] = []
    for k, t in enumerate(inputs.roots if hooked else ()):
        t.register_hook(lambda g, k=k: None if g is None else fired.append(k))
    try:
        out = f(*inputs.args)
        seen["tree"] = str(pytree.tree_structure(out))
        seen["result"] = [look(o, strides=strides) for o in pytree.tree_leaves(out)]
        labelled = [(f"input{k}", t) for k, t in enumerate(given)]
        labelled += [(f"result{k}", t) for k, t in enumerate(pytree.tree_leaves(out)) if isinstance(t, Tensor)]
        seen["relations"] = relations(labelled)
        results = [t for t in pytree.tree_leaves(out) if isinstance(t, Tensor)]
        seen["family"] = [family_of(t) for t in results]
        members = [label for label, t in labelled if label.startswith("result") and is_member(t)]
        behaviour.members = frozenset(members), frozenset(k for k, t in enumerate(results) if is_member(t))
        seen["inputs after"] = [look(t, strides=strides) for t in given]
        seen["version moved"] = [t._version != version for t, version in counters]
        alone = [not any(_keys(t) & _keys(other) for other in given if other is not t) for t, _ in counters]
        seen["version moved by"] = [t._version - n if a else None for (t, n), a in zip(counters, alone, strict=True)]
        behaviour.stage = "backward"
        if backward is not None:
            backward(tensors(out))
            seen["grads"] = [look(t.grad, strides=False) for t in inputs.roots]
            seen["hooks"] = sorted(fired)
            seen["inputs after backward"] = [look(t, strides=strides) for t in given]
        seen["random state"] = torch.get_rng_state()
    except Exception as error:
        behaviour.error = error
    finally:
        torch.set_grad_enabled(True)
    return behaviour


def difference(a: Any, b: Any, path: str = "") -> str | None:
    """The first difference between two observations."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{path}: {a.dtype}{list(a.shape)} eager, {b.dtype}{list(b.shape)} compiled"
        if not torch.allclose(*(t.to(torch.complex128) for t in (a, b)), rtol=1e-4, atol=1e-5, equal_nan=True):
            return f"{path}: {a.flatten()[:6].tolist()} eager, {b.flatten()[:6].tolist()} compiled"
        return None
    if type(a) is not type(b):
        return f"{path}: {a!r:.150} eager, {b!r:.150} compiled"
    if isinstance(a, dict):
        for key in [*a, *(k for k in b if k not in a)]:
            if key not in a or key not in b:
                return f"{path}: {key} only {'eager' if key in a else 'compiled'}"
            found = difference(a[key], b[key], f"{path}.{key}".lstrip("."))
            if found:
                return found
        return None
    if isinstance(a, list) and a and isinstance(a[0], dict):
        if len(a) != len(b):
            return f"{path}: {len(a)} eager, {len(b)} compiled"
        return next(
            (d for i, (x, y) in enumerate(zip(a, b, strict=True)) if (d := difference(x, y, f"{path}[{i}]"))), None
        )
    if isinstance(a, list) and any(isinstance(x, (Tensor, dict)) for x in (*a, *b)):
        pairs = zip(a, b, strict=True)
        return next((d for i, (x, y) in enumerate(pairs) if (d := difference(x, y, f"{path}[{i}]"))), None)
    same = a == b or (a != a and b != b)
    return None if same else f"{path}: {a!r} eager, {b!r} compiled"


def backward_of(choice: Sequence[int], how: str = "tangent") -> Callable[[list[Tensor]], None]:
    """A backward through the outputs at the places in ``choice`` (modulo their number) that require grad."""

    def backward(outs: list[Tensor]) -> None:
        chosen = [outs[k % len(outs)] for k in dict.fromkeys(k % len(outs) for k in choice)] if outs else []
        chosen = [o for o in chosen if o.requires_grad]
        if not chosen:
            return
        if how == "sum":
            torch.autograd.backward([o.sum() for o in chosen], [tangent_for(o.sum(), 0) for o in chosen])
        else:
            torch.autograd.backward(chosen, [tangent_for(o, k) for k, o in enumerate(chosen)])

    return backward


def check(
    fn: Callable[..., Any],
    make: Make,
    *,
    backward: Callable[[list[Tensor]], None] | None = None,
    calls: int = 2,
    specializations: int | None = None,
    strides: bool = True,
    compiled: Any = None,
    **options: Any,
) -> Any:
    """Compare eager with compiled over several calls (with other values each); returns the region.

    Args:
        make: call number -> fresh inputs.
        specializations: at most so many must serve all calls.
    """
    region = st.compile(fn, **options) if compiled is None else compiled
    for call in range(calls):
        how: dict[str, Any] = {"seed": 7 + call, "backward": backward, "strides": strides}
        how["hooked"] = backward is not None and call % 2 == 1
        want, got = observe(fn, make(call), **how), observe(region, make(call), **how)
        where = f"call {call}: "
        if (want.error is None) != (got.error is None):
            error = want.error or got.error
            which = "eager" if want.error is not None else "compiled"
            what = f"{where}only {which} raises (in the {(want if want.error else got).stage}): {type(error).__name__}: {error}"
            raise Difference(what) from error
        if want.error is not None:
            if want.stage != got.stage and not isinstance(got.error, st.SubclassTraceError):
                raise Difference(
                    f"{where}eager raises in the {want.stage}, compiled in the {got.stage}: {got.error}"
                ) from got.error
            return region
        leave_out_members(want, got)
        # By how much where several inputs share one, nothing hangs on; nor on one more that moves.
        moved = [w.seen.pop("version moved") for w in (want, got)]
        found = difference(want.seen, got.seen)
        if any(eager and not ours for eager, ours in zip(*moved, strict=True)):
            raise Difference(f"{where}version moved: {moved[0]} eager, {moved[1]} compiled")
        if found:
            raise Difference(where + found)
    if specializations is not None and len(region.specializations) > specializations:
        reasons = [s.reason for s in region.specializations]
        raise Difference(f"{len(reasons)} specializations where {specializations} suffice: {reasons}")
    return region
