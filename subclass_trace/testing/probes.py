"""Helpers that the lines of a rule may use. Each needs only torch, since its source is printed into
counterexamples.

Rules of this file: import nothing but torch and the standard library; what is not ``torch`` is
imported inside of the function; a helper may use other helpers of this file. Private parts of torch
are in `subclass_trace.torch_api.testing`, whose functions are printed in the same way. Lines may
name everything that these two files define.
"""

from __future__ import annotations

from typing import Any

import torch

from ..torch_api.testing import Pair as Pair
from ..torch_api.testing import is_fake_tensor, is_opaque_object
from ..torch_api.testing import outer_storage as outer_storage


def inners(x: Any) -> dict[str, Any]:
    """The inner values of a wrapper by name (one level)."""
    return {name: getattr(x, name) for name in x.__tensor_flatten__()[0]}


def leaves(x: Any) -> list[torch.Tensor]:
    """The dense tensors inside of a wrapper, to any depth, by name; a dense tensor is its own
    leaf."""
    if not hasattr(type(x), "__tensor_flatten__"):
        return [x] if isinstance(x, torch.Tensor) else []
    return [leaf for name in sorted(x.__tensor_flatten__()[0]) for leaf in leaves(getattr(x, name))]


def meta(x: Any) -> dict[str, Any]:
    """What a tensor looks like from outside."""
    strided = x.layout in (torch.strided, torch.jagged)
    return {
        "type": type(x),
        "size": tuple(x.shape),
        "stride": tuple(x.stride()) if strided else None,
        "dtype": x.dtype,
        "device": x.device,
        "layout": x.layout,
        "storage_offset": x.storage_offset() if strided else None,
    }


def named_leaves(x: Any, path: str = "x") -> list[tuple[str, torch.Tensor]]:
    """Path and tensor of each leaf."""
    if not hasattr(type(x), "__tensor_flatten__"):
        return [(path, x)] if isinstance(x, torch.Tensor) else []
    return [
        pair
        for name in x.__tensor_flatten__()[0]
        for pair in named_leaves(getattr(x, name), f"{path}.{name}")
    ]


def plain_meta(x: Any) -> dict[str, Any]:
    """`meta` for comparing a fake tensor with a real one: every dense type is the same, and so are
    jagged sizes. Strides of
    what has no elements are left out: fake kernels choose them otherwise."""

    def number(n: Any) -> Any:
        return "jagged" if isinstance(n, torch.SymInt) else n

    sizes: dict[str, Any] = {
        k: tuple(map(number, v))
        for k, v in meta(x).items()
        if k in ("size", "stride") and v is not None
    }
    if 0 in x.shape:
        sizes["stride"] = None
    kind = type(x).__qualname__ if hasattr(type(x), "__tensor_flatten__") else "dense"
    return {**meta(x), **sizes, "type": kind}


def instance_state(x: Any) -> dict[str, Any]:
    """The attributes of an instance: its ``__dict__`` and its slots."""
    slots = [n for c in type(x).__mro__ for n in getattr(c, "__slots__", ()) if hasattr(x, n)]
    return {**{n: getattr(x, n) for n in slots}, **getattr(x, "__dict__", {})}


def kept_arguments(x: Any) -> dict[str, str]:
    """The numbers, texts, and tuples of them that an instance keeps under the names that its
    constructor takes them by."""
    import inspect

    names = set()
    for function in (type(x).__init__, type(x).__new__):
        if inspect.isfunction(function):
            names |= {
                name
                for own in inspect.signature(function).parameters
                for name in (own, f"_{own}", f"{own}_", own.rstrip("_"))
            }
    state, plain = instance_state(x), (bool, int, float, str)
    return {
        n: repr(state[n])
        for n in sorted(names)
        if type(state.get(n)) in plain
        or (type(state.get(n)) in (tuple, list) and all(type(v) in plain for v in state[n]))
    }


def copied(value: Any) -> Any:
    """A deep copy of a context; the context itself where it cannot be copied."""
    import copy

    try:
        return copy.deepcopy(value)
    except Exception:
        return value


def same_metadata(a: Any, b: Any, cls: Any) -> bool:
    """Are two contexts of a class the same, as torch's guards see it?"""
    guard = getattr(cls, "__metadata_guard__", None)
    equal: bool = guard(a, b) if guard is not None else a == b
    return equal


def tensors_within(value: Any, path: str = "context", seen: Any = None) -> list[str]:
    """Where tensors are in a context: paths through containers and the attributes of objects."""
    seen = set() if seen is None else seen
    if isinstance(value, torch.Tensor):
        return [path]
    if (
        id(value) in seen
        or isinstance(value, (str, bytes, int, float, type, torch.Size))
        or is_opaque_object(value)
    ):
        return []
    seen.add(id(value))
    if isinstance(value, dict):
        return [p for k, v in value.items() for p in tensors_within(v, f"{path}[{k!r}]", seen)]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [p for k, v in enumerate(value) for p in tensors_within(v, f"{path}[{k}]", seen)]
    state = getattr(value, "__dict__", {}) if not callable(value) else {}
    return [p for k, v in state.items() for p in tensors_within(v, f"{path}.{k}", seen)]


def rebuild(x: Any, function: Any = lambda t: t) -> Any:
    """Flatten a wrapper and unflatten it, with ``function`` applied to each dense tensor inside."""
    if not hasattr(type(x), "__tensor_flatten__"):
        return function(x) if isinstance(x, torch.Tensor) else x
    names, context = x.__tensor_flatten__()
    inner = {name: rebuild(getattr(x, name), function) for name in names}
    return type(x).__tensor_unflatten__(inner, context, x.size(), x.stride())


def rebuilds(x: Any) -> bool:
    """Does a wrapper come back from flatten and unflatten: metadata, context and the very inner
    tensors?"""
    import copy

    y = rebuild(x)
    contexts = y.__tensor_flatten__()[1], copy.deepcopy(x.__tensor_flatten__()[1])
    first, second = (list(x.__tensor_flatten__()[0]) for _ in range(2))
    identical = first == second and all(a is b for a, b in zip(leaves(y), leaves(x), strict=True))
    return (
        identical
        and meta(y) == meta(x)
        and y.requires_grad <= x.requires_grad
        and same_metadata(*contexts, type(x))
    )


def copy_works(x: Any) -> bool:
    """Does ``copy_`` write into the inner tensors of its destination?"""
    y = x.detach().clone()
    before = [v.data_ptr() for v in leaves(y)]
    y.copy_(x.detach())
    return [v.data_ptr() for v in leaves(y)] == before and same(leaves(y), leaves(x))


def shares_memory(x: Any, y: Any) -> bool:
    """Does some dense tensor inside of ``x`` share its storage with one inside of ``y``?"""
    pointers = {t.untyped_storage().data_ptr() for t in leaves(x) if t.numel()}
    return any(t.untyped_storage().data_ptr() in pointers for t in leaves(y) if t.numel())


def same(x: Any, y: Any, rtol: float = 0.0, atol: float = 0.0) -> bool:
    """Are two values the same? Wrappers: type, outer metadata and leaves; tensors: sizes, dtype and
    numbers."""
    if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
        if type(x) is not type(y) or x.shape != y.shape or x.dtype != y.dtype:
            return False
        xs, ys = ([t.detach().resolve_conj().resolve_neg() for t in leaves(v)] for v in (x, y))
        if [(t.dtype, t.shape) for t in xs] != [(t.dtype, t.shape) for t in ys]:
            return False
        return all(is_fake_tensor(a) or near(a, b, rtol, atol) for a, b in zip(xs, ys, strict=True))
    if type(x) is not type(y):
        return False
    if isinstance(x, (list, tuple)):
        return len(x) == len(y) and all(same(a, b, rtol, atol) for a, b in zip(x, y, strict=True))
    if isinstance(x, dict):
        return x.keys() == y.keys() and all(same(v, y[k], rtol, atol) for k, v in x.items())
    return bool(x == y) or (x != x and y != y)


def near(a: torch.Tensor, b: torch.Tensor, rtol: float = 0.0, atol: float = 0.0) -> bool:
    """Are the numbers of two dense tensors the same, up to a tolerance? NaN is NaN."""
    if a.is_floating_point() and a.dtype.itemsize == 1:  # torch.equal does not know float8
        return torch.equal(a.view(torch.uint8), b.view(torch.uint8))
    if torch.equal(a, b):
        return True
    if a.shape != b.shape or not (a.is_floating_point() or a.is_complex()):
        return False
    if (rtol or atol) and a.is_floating_point() and a.dtype.itemsize == 2:
        # two right orders of summation differ by roundings of the largest number
        finite = [t[t.isfinite()].abs() for t in (a, b)]
        largest = max((float(t.max()) for t in finite if t.numel()), default=0.0)
        slack = 4 * torch.finfo(a.dtype).eps
        rtol, atol = max(rtol, slack), max(atol, slack * largest)
    wide = torch.complex128 if a.is_complex() else torch.float64
    return torch.allclose(a.to(wide), b.to(wide), rtol, atol, equal_nan=True)
