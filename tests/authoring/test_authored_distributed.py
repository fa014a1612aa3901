"""Declared wrappers under DTensor (a fake group of four) and FSDP2 (gloo, one rank and two)."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from authored import MAKERS, Pair, assert_equal, randn
from torch import Tensor, nn

import subclass_trace as st
from subclass_trace import authoring
from subclass_trace.authoring import WrapperTensor

if not dist.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

aten = torch.ops.aten


class Rows(WrapperTensor, default="dequantize"):
    """One scale for each row: what FSDP2 cuts, it can put together."""

    codes: Tensor
    scale: Tensor

    def dequantize(self) -> Tensor:
        return self.codes * self.scale

    def requantize_(self, value: Tensor) -> None:
        self.codes.copy_(value / self.scale)


Rows.implements_per_inner(aten.empty_like.default)
Rows.implements_per_inner(authoring.collectives)
Rows.implements_per_inner(aten.copy_.default)  # rows own their scale: copying it changes no other row


@Rows.implements(aten.split.Tensor, aten.slice.Tensor, aten.t.default)
def _rows(func, x, *args):
    """Rows of the codes go with rows of the scale."""
    codes, scale = func(x.codes, *args), func(x.scale, *args)
    if isinstance(codes, Tensor):
        return x.replace(codes=codes, scale=scale)
    return [x.replace(codes=c, scale=s) for c, s in zip(codes, scale, strict=True)]


@Rows.implements(aten.new_zeros.default)
def _new_zeros(func, x, size, **kwargs):
    return x.replace(codes=func(x.codes, size, **kwargs), scale=func(x.scale, (size[0], 1), **kwargs))


@Rows.implements(aten.view.default)
def _flat(func, x, size):
    if tuple(size) == tuple(x.shape):
        return x.replace()
    return x.replace(codes=func(x.codes, size), scale=func(x.scale, size))  # FSDP2 keeps view(-1), and does not read it


def rows(*size: int) -> Rows:
    return Rows(randn(*size), randn(size[0], 1, seed=1).abs() + 1)


# ------------------------------------------------------------------------------------------------------------- DTensor
@pytest.fixture
def mesh():
    """Four ranks in one process; nothing is sent."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield dist.device_mesh.init_device_mesh("cpu", (4,))
    dist.destroy_process_group()


def local(x: Tensor, mesh: Any, placement: Any) -> DTensor:
    return DTensor.from_local(x, mesh, [placement], run_check=False)


@pytest.mark.parametrize("name", ["pair", "scaled", "shifted", "function"])
def test_dtensor_of_a_wrapper(name, mesh) -> None:
    def layer(x: Tensor, w: Tensor) -> Tensor:
        return nn.functional.linear(x, w).relu()

    sides = []
    for f in (layer, st.compile(layer)):
        w = nn.Parameter(local(MAKERS[name](), mesh, Shard(0)))
        assert type(w) is DTensor and type(w._local_tensor) is type(MAKERS[name]())
        out = f(local(randn(2, 4), mesh, Replicate()), w)
        out.backward(out.detach())
        sides.append((out.detach(), w.grad))
        assert out.shape == (2, 16)
        assert isinstance(out._local_tensor, Pair) == isinstance(w.grad._local_tensor, Pair) == (name == "pair")
    for a, b in zip(*sides, strict=True):
        assert (a.placements, a.shape) == (b.placements, b.shape)
        assert_equal(a._local_tensor, b._local_tensor)


def test_distribute_and_redistribute(mesh) -> None:
    for w in (MAKERS["pair"](), rows(8, 4)):
        sharded = distribute_tensor(w, mesh, [Shard(0)])
        assert type(sharded._local_tensor) is type(w) and sharded._local_tensor.shape[0] == w.shape[0] // 4
        whole = sharded.redistribute(mesh, [Replicate()])
        assert type(whole.to_local()) is type(w) and whole.to_local().shape == w.shape
        assert type(distribute_tensor(w, mesh, [Replicate()])._local_tensor) is type(w)
    moved = distribute_tensor(MAKERS["scaled"](), mesh, [Replicate()])
    assert_equal(moved._local_tensor, MAKERS["scaled"]())


def test_collectives_in_place_never_write_into_a_copy(mesh) -> None:
    x = MAKERS["scaled"]()
    with pytest.raises(st.UnsupportedError, match="Scaled has no rule for c10d.allreduce_"):
        dist.all_reduce(x)
    with pytest.raises(st.UnsupportedError, match="would write a Scaled into a plain tensor") as error:
        dist.all_gather([torch.empty(4, 4)] * 4, x)
    assert "Scaled.implements_per_inner(authoring.factories)" in error.value.fix
    dist.broadcast(x, 0)
    dist.all_reduce(MAKERS["pair"]())


# --------------------------------------------------------------------------------------------------------------- FSDP2
class Model(nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6, bias=False)
        self.first.weight = nn.Parameter(weight)
        self.second = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


def train(model: nn.Module, shard: Any) -> list[Any]:
    """Three steps; what can be compared of them."""
    shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    found = []
    for step in range(3):
        out = model(randn(3, 4, seed=step))
        out.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(out.detach().clone())
    return found


def fsdp_worker(rank: int, world: int, folder: str) -> None:
    """One rank of FSDP2 over gloo; leaves what it found in a file."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    mesh = dist.device_mesh.init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    start = Model(rows(6, 4))
    want = train(copy.deepcopy(start), lambda m: None)

    def shard(model: nn.Module) -> None:
        fully_shard(model.first, mesh=mesh)
        fully_shard(model, mesh=mesh)
        assert type(model.first.weight) is DTensor and type(model.first.weight._local_tensor) is Rows

    got = train(start, shard)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
    uneven = nn.Linear(4, 5, bias=False)  # the last rank has fewer rows, and pads
    uneven.weight = nn.Parameter(Pair(randn(5, 4), randn(5, 4, seed=1)), requires_grad=False)
    want_uneven = uneven(randn(3, 4))
    fully_shard(uneven, mesh=mesh)
    assert_equal(uneven(randn(3, 4)), want_uneven)
    assert_equal(uneven(randn(3, 4)), want_uneven)
    dist.destroy_process_group()
    (Path(folder) / f"{rank}.ok").touch()


@pytest.mark.parametrize("world", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_fsdp2(world, tmp_path) -> None:
    if world == 1:
        fsdp_worker(0, 1, str(tmp_path))
    else:
        torch.multiprocessing.spawn(fsdp_worker, (world, str(tmp_path)), nprocs=world)
    assert sorted(p.name for p in tmp_path.glob("*.ok")) == [f"{r}.ok" for r in range(world)]


def test_fsdp2_refuses_what_cannot_be_derived() -> None:
    x = MAKERS["scaled"]()
    with pytest.raises(st.UnsupportedError, match="the all-gather of Scaled cannot be derived: scale") as error:
        _pre(x)
    assert error.value.path == "Scaled.scale" and "fsdp_post_all_gather" in error.value.fix


def _pre(x: Any) -> Any:
    class Mesh:
        def size(self) -> int:
            return 2

    return x.fsdp_pre_all_gather(Mesh(), torch.Size((8, 4)), (4, 1), None, None)
