"""Placements with symbolic sizes: those that eager chooses for the sizes of each call, and no slice that eager does not make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from spmd import COLUMNS, REPLICATE, ROWS, difference, seen, whole
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

import subclass_trace as st
from subclass_trace import DataDependentError


def _written(x: Any) -> Any:
    out = x * 1
    out[:, : x.shape[1] // 2].mul_(3)
    return out


#: programs, and how many specializations the sizes below need with rows split: eager decides otherwise at 8 rows
PROGRAMS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "a column": (lambda x: x[:, 1], 2),
    "columns": (lambda x: x[:, 1:], 2),
    "a column at a size": (lambda x: x[:, x.shape[1] // 2] * 2, 2),
    "rows at a size": (lambda x: x[0 : x.shape[0], 1:], 2),
    "columns, written": (_written, 2),
    "all rows": (lambda x: x[:], 2),
    "rows as a length": (lambda x: x.narrow(0, 0, x.shape[0]).sin(), 2),
    "some rows": (lambda x: x[:8] * 2, 3),
    "some rows of a column": (lambda x: x[:8, 1] * 2, 3),
}


def _of(f: Callable[..., Any], x: torch.Tensor) -> list[Any]:
    out = f(x)
    out.backward(torch.ones_like(out))
    return [seen(out), seen(x.grad)]


@pytest.mark.parametrize(
    ("placements", "dynamic"),
    [(ROWS, True), *(pytest.param(p, False, marks=pytest.mark.slow) for p in (ROWS, COLUMNS))],
    ids=str,
)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.sweep(every=3)
def test_as_in_eager(mesh: Any, name: str, placements: Any, dynamic: bool) -> None:
    function, count = PROGRAMS[name]
    region = st.compile(function, dynamic=dynamic or None)
    for rows in (12, 16, 8, 5):  # of five rows some ranks have more than others
        if rows == 5 and placements == ROWS:
            assert len(region.specializations) <= count
        want, got = (_of(f, whole(mesh, rows, 8, placements=placements, grad=True)) for f in (function, region))
        assert difference(want, got) is None, difference(want, got)


@pytest.mark.slow
@pytest.mark.parametrize("placements", [[Shard(0), Shard(1)], [Replicate(), Shard(0)], [Shard(0), Shard(0)]], ids=str)
def test_on_a_plane(mesh_2d: Any, placements: Any) -> None:
    for name in ("columns", "some rows of a column"):
        function, _ = PROGRAMS[name]
        region = st.compile(function)
        for rows in (12, 16, 8):
            want, got = (_of(f, whole(mesh_2d, rows, 8, placements=placements, grad=True)) for f in (function, region))
            assert difference(want, got) is None, difference(want, got)


class _Seen(torch.Tensor):
    """A wrapper that notes the operations that its class is asked for."""

    log: list[str] = []

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> _Seen:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, strides=inner.stride(), dtype=inner.dtype)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], context: None, size: Any, stride: Any) -> _Seen:
        return _Seen(inner["inner"])

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.log.append(str(func))
        args, kwargs = torch.utils._pytree.tree_map_only(_Seen, lambda t: t.inner, (args, kwargs or {}))
        return torch.utils._pytree.tree_map_only(torch.Tensor, _Seen, func(*args, **kwargs))


INDICES: list[Callable[[Any], Any]] = [
    lambda x: x[:, 1],
    lambda x: x[:6, 1:],
    lambda x: x[1:, None, : x.shape[1]],
    lambda x: x[: x.shape[0], x.shape[1] // 2],
    lambda x: x[..., :6],
    lambda x: x[:, :6, torch.tensor([0, 1])] if x.dim() > 2 else x[:6, torch.tensor([0, 1])],
]


@pytest.mark.parametrize("k", range(len(INDICES)))
@pytest.mark.sweep(every=4)
def test_a_class_sees_the_operations_of_eager(k: int) -> None:
    function = INDICES[k]
    for rows, columns in ((8, 4), (6, 9), (5, 5), (7, 6)):
        x = torch.arange(1.0 * rows * columns).reshape(rows, columns)
        logs = []
        for f in (function, st.compile(function, dynamic=True)):
            _Seen.log.clear()
            out = f(_Seen(x))
            assert torch.equal(out.inner, function(x))
            logs.append({name for name in _Seen.log if "detach" not in name and "alias" not in name})
        assert logs[0] == logs[1]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("placements", [ROWS, REPLICATE], ids=str)
@pytest.mark.parametrize("f", [lambda x: x[x > 0], torch.nonzero], ids=["mask", "nonzero"])
def test_sizes_from_data_are_refused_and_not_remembered(mesh: Any, f: Any, placements: Any, dynamic: bool) -> None:
    _clear_sharding_prop_cache()
    x = DTensor.from_local(torch.arange(6.0).reshape(2, 3), mesh, placements, run_check=False)
    for _ in range(2):
        with pytest.raises(DataDependentError, match="Sharding propagation failed"):
            st.compile(f, dynamic=dynamic or None)(x)
        with pytest.raises((RuntimeError, NotImplementedError)):  # eager would find a size of the trace in a cache
            f(x)


@pytest.mark.parametrize("placements", [ROWS, COLUMNS], ids=str)
def test_places_that_this_rank_begins_with(mesh: Any, placements: Any) -> None:
    region = st.compile(lambda x: x.argmax(1))
    for columns in (4, 8, 12):
        x = whole(mesh, 8, columns, placements=placements)
        assert difference(seen(x.argmax(1)), seen(region(x))) is None
