"""Programs over DTensors on a fake process group of four, eager against compiled, bit for bit: one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from spmd import (
    COLUMNS,
    REPLICATE,
    ROWS,
    VERSION,
    check,
    collectives,
    column,
    of_local,
    on_its_way,
    operations,
    values,
    whole,
)
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor import zeros as dtensor_zeros
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.distributed.tensor.experimental import local_map
from torch.distributed.tensor.parallel import loss_parallel
from torch.utils.checkpoint import checkpoint

import subclass_trace as st

PARTIAL = [Partial()]


@dataclass(frozen=True)
class Row:
    """A program, its arguments over a mesh, the collectives of its forward if they are told, the placements of its result."""

    f: Callable[..., Any]
    arguments: Callable[[Any], tuple[Any, ...]]
    collectives: list[str] | None = None
    result: tuple[Any, ...] = ()
    mesh: str = "mesh"
    version: tuple[int, int] = (2, 11)  # eager mode refuses it before
    tolerance: float = 0.0


def _leaf(*shape: int, placements: Any = REPLICATE, seed: int = 0) -> Callable[[Any], DTensor]:
    return lambda mesh: whole(mesh, *shape, placements=placements, seed=seed, grad=True)


def _local(*shape: int, placements: Any) -> Callable[[Any], DTensor]:
    return lambda mesh: of_local(mesh, *shape, placements=placements)


def _of(*leaves: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    return lambda mesh: tuple(leaf(mesh) for leaf in leaves)


def _with_loss_parallel(x: Any) -> Any:
    with loss_parallel():
        target = DTensor.from_local(torch.arange(8), x.device_mesh, REPLICATE)
        return F.cross_entropy(x.redistribute(placements=COLUMNS), target)


def _autocast(x: Any, w: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return F.linear(x, w)


def _flat(x: Any) -> Any:
    return x.flatten(0, 1)


def _linear(x: Any, w: Any) -> Row:
    return Row(F.linear, _of(_leaf(8, 16, placements=x), _leaf(12, 16, placements=w, seed=1)), [])


def _moved(before: Any, after: Any, names: list[str] | None) -> Row:
    return Row(lambda x: (x * 2).redistribute(placements=after).sin(), _of(_local(8, 8, placements=before)), names)


ROW_BY_ROW: dict[str, Row] = {
    # ------------------------------------------------------------------------------------------ linear layers
    "linear, replicated": _linear(REPLICATE, REPLICATE),
    "linear, by columns": _linear(REPLICATE, ROWS),
    "linear, by rows": _linear(COLUMNS, COLUMNS),
    "linear, batch": _linear(ROWS, REPLICATE),
    "column then row with biases": Row(
        lambda x, w1, b1, w2, b2: F.linear(F.gelu(F.linear(x, w1, b1)), w2).redistribute(placements=REPLICATE) + b2,
        _of(
            _leaf(4, 16),
            _leaf(32, 16, placements=ROWS, seed=1),
            _leaf(32, placements=ROWS, seed=2),
            _leaf(16, 32, placements=COLUMNS, seed=3),
            _leaf(16, seed=4),
        ),
        ["all_reduce"],
    ),
    "autocast": Row(_autocast, _of(_leaf(4, 8), _leaf(8, 8, placements=ROWS))),
    # ------------------------------------------------------------------------------------------ redistribute
    "rows to whole": _moved(ROWS, REPLICATE, ["all_gather_into_tensor"]),
    "columns to whole": _moved(COLUMNS, REPLICATE, ["all_gather_into_tensor"]),
    "partial to whole": _moved(PARTIAL, REPLICATE, ["all_reduce"]),
    "partial to rows": _moved(PARTIAL, ROWS, ["reduce_scatter_tensor"]),
    "partial average to whole": _moved([Partial("avg")], REPLICATE, ["all_reduce"]),
    "whole to rows": _moved(REPLICATE, ROWS, []),
    "rows to rows": _moved(ROWS, ROWS, []),
    "rows to columns": _moved(ROWS, COLUMNS, None),
    "uneven: 10 over 4 is 3, 3, 3, 1": Row(
        lambda x, w: F.linear(x, w).redistribute(placements=REPLICATE).sin(),
        _of(_leaf(5, 8), _leaf(10, 8, placements=ROWS, seed=1)),
    ),
    "uneven: with 3 the last rank has none": Row(
        lambda x, w: F.linear(x, w).redistribute(placements=REPLICATE).sin(),
        _of(_leaf(5, 8), _leaf(3, 8, placements=ROWS, seed=1)),
    ),
    "uneven reduce-scatter of 10": Row(
        lambda x: x.redistribute(placements=ROWS) * 2, _of(_local(10, 4, placements=PARTIAL))
    ),
    "uneven reduce-scatter of 3": Row(
        lambda x: x.redistribute(placements=ROWS) * 2, _of(_local(3, 4, placements=PARTIAL))
    ),
    # ------------------------------------------------------------------------------------------ two mesh dimensions
    "two dimensions": Row(
        lambda x, w1, w2: F.linear(F.relu(F.linear(x, w1)), w2).redistribute(placements=[Shard(0), Replicate()]),
        _of(
            _leaf(8, 16, placements=[Shard(0), Replicate()]),
            _leaf(12, 16, placements=[Replicate(), Shard(0)], seed=1),
            _leaf(16, 12, placements=[Replicate(), Shard(1)], seed=2),
        ),
        ["all_reduce"],
        mesh="mesh_2d",
    ),
    "SimpleFSDP: weights that are gathered in the region": Row(
        lambda x, w: F.linear(x, w.redistribute(placements=[Replicate(), Shard(0)])),
        _of(_leaf(8, 16, placements=[Shard(0), Replicate()]), _leaf(12, 16, placements=[Shard(1), Shard(0)], seed=1)),
        ["all_gather_into_tensor"],
        mesh="mesh_2d",
    ),
    "a strided shard of two dimensions": Row(
        lambda x: _flat(x).cos(), _of(_local(4, 2, 6, placements=[Shard(0), Shard(1)])), mesh="mesh_2d", version=(2, 13)
    ),
    # ------------------------------------------------------------------------------------------ strided shards
    "a sequence parallel activation, flattened": Row(_flat, _of(_local(8, 1, 6, placements=COLUMNS)), version=(2, 12)),
    "flattened, and back": Row(
        lambda x: (_flat(x) * 2).unflatten(0, x.shape[:2]).sin(),
        _of(_local(8, 1, 6, placements=COLUMNS)),
        version=(2, 12),
    ),
    "a loss of a flattened one": Row(
        lambda x, w: F.linear(x.view(-1, 6), w).relu().sum(),
        _of(_local(8, 1, 6, placements=COLUMNS), _leaf(5, 6, seed=1)),
        version=(2, 12),
    ),
    # ------------------------------------------------------------------------------------------ local tensors
    "to_local": Row(lambda x: x.to_local().cos(), _of(_local(4, 8, placements=ROWS))),
    "to_local with split gradients": Row(
        lambda x: x.to_local(grad_placements=ROWS).cos(), _of(_local(4, 8, placements=ROWS))
    ),
    "to_local with partial gradients": Row(
        lambda x: x.to_local(grad_placements=PARTIAL).cos(), _of(_local(4, 8, placements=REPLICATE))
    ),
    "from_local": Row(
        lambda x, w: F.linear(DTensor.from_local(x, w.device_mesh, REPLICATE, run_check=False), w),
        _of(lambda mesh: values(4, 8).requires_grad_(), _leaf(8, 8, placements=ROWS)),
    ),
    "an input, a view of one, a dense tensor, a number, a placement": Row(
        lambda x: (x, x.t(), x.to_local() * 2, x.shape[0], x.placements[0], (x + 1, x.device_mesh.size())),
        _of(_leaf(8, 8, placements=ROWS)),
        tolerance=1e-6,  # gradients of several results are added up in another order
    ),
    # ------------------------------------------------------------------------------------------ on their way
    "an AsyncCollectiveTensor": Row(
        lambda x, w: (x @ w).sin(),
        _of(lambda mesh: on_its_way(mesh, 2, 4), lambda mesh: values(4, 4, seed=1).requires_grad_()),
    ),
    "an AsyncCollectiveTensor inside of a DTensor": Row(
        lambda x, w: x @ w,
        _of(
            lambda mesh: DTensor.from_local(on_its_way(mesh, 2, 4), mesh, REPLICATE, run_check=False),
            _leaf(4, 4, placements=COLUMNS, seed=1),
        ),
    ),
}


def _mapped(x: Any) -> Any:
    kinds = {"out_placements": ROWS, "in_placements": (ROWS,), "device_mesh": x.device_mesh}
    return local_map(lambda a: (a * 2).sin(), **kinds)(x)


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "local_map": _mapped,
    "from_local of a value": lambda x: DTensor.from_local(x.to_local() + 2, x.device_mesh, ROWS, run_check=False),
    "softmax over a split dimension": lambda x: F.softmax(x.redistribute(placements=COLUMNS), -1),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "sum": lambda x: x.sum(),
    "mean, gathered": lambda x: x.mean().full_tensor(),
    "norm": lambda x: torch.linalg.vector_norm(x),
    "view and transpose": lambda x: x.view(4, 2, 8).transpose(0, 1),
    "cat": lambda x: torch.cat([x, x * 2], 1),
    "stack": lambda x: torch.stack([x, x * 2]),
    "where": lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
    "zeros made in the region": lambda x: x + dtensor_zeros((8, 8), device_mesh=x.device_mesh, placements=ROWS),
    "two casts": lambda x: x.to(torch.bfloat16).float(),
    "in place on a value": lambda x: (x * 1).relu_(),
    "value and its detached self": lambda x: (x * 2, x.detach()),
    "loss_parallel": _with_loss_parallel,
    "asynchronous redistribute": lambda x: x.redistribute(placements=REPLICATE, async_op=True).sin(),
    "checkpoint": lambda x: checkpoint(lambda y: (y * 2).sin().cos(), x, use_reentrant=False),
}
ROW_BY_ROW |= {name: Row(f, _of(_leaf(8, 8, placements=ROWS))) for name, f in OPERATIONS.items()}


@pytest.mark.parametrize("name", ROW_BY_ROW)
@pytest.mark.sweep(every=4)
def test_as_in_eager(request: pytest.FixtureRequest, name: str) -> None:
    row = ROW_BY_ROW[name]
    if row.version > VERSION:
        pytest.skip(f"eager mode refuses it before torch {row.version}")
    mesh = request.getfixturevalue(row.mesh)

    def make() -> Any:
        arguments = row.arguments(mesh)
        return arguments, [t for t in arguments if t.requires_grad]

    region = check(row.f, make, tolerance=row.tolerance)
    forward = region.specializations[0].graphs.forward
    if row.collectives is not None:
        assert collectives(forward) == row.collectives
        assert operations(forward).count("_c10d_functional.wait_tensor") == len(row.collectives)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_inference(mesh: Any, mode: Any) -> None:
    with mode():
        check(column, lambda: ((whole(mesh, 4, 8), whole(mesh, 8, 8, placements=ROWS, grad=True)), ()), backward=False)


# --------------------------- operations that DTensor has no rule for: it follows a decomposition, on tensors of its own
DECOMPOSED_OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "cauchy_": lambda x: x * x.detach().clone().cauchy_(),
    "geometric_": lambda x: x * x.detach().clone().geometric_(0.5),
    "deg2rad": lambda x: torch.deg2rad(x) * 2,
    "logit": lambda x: torch.special.logit(x, 0.1),
}


def _outcome(f: Callable[[Any], Any], mesh: Any, size: int, placement: Any) -> Any:
    torch.manual_seed(0)
    x = DTensor.from_local(torch.rand(size, 3), mesh, [placement], run_check=False).requires_grad_()
    try:
        out = f(x)
        out.sum().backward()
    except (NotImplementedError, st.UnsupportedError):
        return "refused"
    assert x.grad is not None
    return out.to_local().tolist(), out.placements, out.shape, x.grad.to_local().tolist(), torch.rand(1)


@pytest.mark.parametrize("placement", [Shard(0), Replicate()], ids=str)
@pytest.mark.parametrize("name", DECOMPOSED_OPERATIONS)
def test_decomposed_as_in_eager(mesh: Any, name: str, placement: Any) -> None:
    """Also where nothing is in DTensor's caches, and with symbolic sizes."""
    region = st.compile(DECOMPOSED_OPERATIONS[name])
    _clear_sharding_prop_cache()
    decompositions = getattr(DTensor._op_dispatcher.sharding_propagator, "decomp_strategy", None)
    if decompositions is not None:  # from torch 2.12 on
        decompositions._fake_meshes.clear()
    for size in (4, 5, 6):
        got = _outcome(region, mesh, size, placement)
        assert got == _outcome(DECOMPOSED_OPERATIONS[name], mesh, size, placement)
    assert len(region.specializations) <= 2
