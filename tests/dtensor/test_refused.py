"""Distributed tensors and modules that a region refuses, and what works in their place."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import subclass_trace as st
from subclass_trace.errors import DataDependentError, ProtocolError, UnsupportedError


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_sharded_tensor(process_group) -> None:
    spec = ChunkShardingSpec(dim=0, placements=[f"rank:{k}/cpu" for k in range(4)])
    value = sharded_tensor.ones(spec, 8, 4)
    with pytest.raises(ProtocolError, match="ShardedTensor is a tensor subclass that cannot be traced") as caught:
        st.compile(lambda x: x * 2)(value)
    assert caught.value.path == "args[0]"


def model(mesh) -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    for layer in (layers[0], layers[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(layers, mesh=mesh)


@pytest.mark.parametrize("how", ["the module", "a function of the module", "a layer of it"])
def test_a_module_of_fsdp2_inside_a_region(mesh, how: str) -> None:
    layers = model(mesh)
    region = {
        "the module": st.compile(layers),
        "a function of the module": st.compile(lambda x: layers(x).sin()),
        "a layer of it": st.compile(lambda x: layers[0](x)),
    }[how]
    with pytest.raises(UnsupportedError, match="the region calls a module that torch manages in Python") as caught:
        region(torch.randn(2, 8))
    assert "layer.forward = subclass_trace.compile(layer.forward)" in str(caught.value.fix)
    assert all(isinstance(p, DTensor) for p in layers.parameters())
    layers(torch.randn(2, 8)).sum().backward()  # the model is as it was


def test_sharded_parameters_of_fsdp2_may_be_inputs(mesh) -> None:
    """As long as no hook runs, they are DTensors like others."""
    weight = model(mesh)[0].weight
    out = st.compile(lambda w: w * 2)(weight)
    assert torch.equal(out.to_local(), weight.to_local() * 2)


CPU = {"device_id": torch.device("cpu")}


def replicated() -> nn.Module:
    from torch.distributed._composable.replicate import replicate

    return replicate(nn.Linear(8, 8))


MANAGED = {
    "DDP": lambda: st.compile(DistributedDataParallel(nn.Linear(8, 8))),
    "DDP inside": lambda: st.compile(nn.Sequential(nn.ReLU(), DistributedDataParallel(nn.Linear(8, 8)))),
    "the forward of DDP": lambda: st.compile(DistributedDataParallel(nn.Linear(8, 8)).forward),
    "replicate": lambda: st.compile(replicated()),
    "FSDP1": lambda: st.compile(nn.Sequential(FullyShardedDataParallel(nn.Linear(8, 8), **CPU))),
}


@pytest.mark.parametrize("build", MANAGED.values(), ids=MANAGED)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_modules_with_python_of_their_own_in_each_call(process_group, build) -> None:
    # The parameters of FSDP1 are views of memory that is gone, which no trace gets past.
    with pytest.raises(
        UnsupportedError, match="a module that torch manages in Python|Output 0 of View(Backward0)? is a view"
    ):
        build()(torch.randn(2, 8))


def object_of_one(x):
    dist.broadcast_object_list([1, 2])
    return x


@pytest.mark.parametrize(
    "f",
    [object_of_one, lambda x: dist.init_device_mesh("cpu", (2, 2))],
    ids=["broadcast_object_list", "init_device_mesh"],
)
def test_calls_that_read_values_in_python(process_group, f) -> None:
    with pytest.raises(UnsupportedError) as caught:
        st.compile(f)(torch.ones(2))
    assert __file__ in str(caught.value.path)


def test_checks_and_sends_of_dtensors(mesh) -> None:
    x = torch.ones(4, 2)
    with pytest.raises(UnsupportedError):
        st.compile(lambda x: distribute_tensor(x, mesh, [Shard(0)]))(x)
    with pytest.raises(UnsupportedError, match="c10d.send"):
        st.compile(lambda x: (distribute_tensor(x, mesh, [Replicate()], src_data_rank=None), dist.send(x, 0)))(x)


NUMBERS_INSIDE = {
    "clamp": lambda x, s: x.clamp(max=s.item()),
    "compare": lambda x, s: x > s.item(),
    "subtract from": lambda x, s: s.item() - x,
    "power": lambda x, s: x ** s.item(),
    "lerp": lambda x, s: x.lerp(x * 2, s.item()),
    "masked_fill": lambda x, s: x.masked_fill(x > 0, s.item()),
}


@pytest.mark.parametrize("f", NUMBERS_INSIDE.values(), ids=NUMBERS_INSIDE)
def test_a_number_from_inside_a_tensor_that_the_class_would_compare(mesh, f) -> None:
    """DTensor looks such an operation up by the values of its numbers: refused, unless it is one on each element."""
    x = distribute_tensor(torch.randn(4, 2), mesh, [Shard(0)], src_data_rank=None)
    region = st.compile(f)
    for number in (0.5, 0.1):
        try:
            found = region(x, torch.tensor(number))
        except DataDependentError:
            assert not region.specializations
        else:
            expected = f(x, torch.tensor(number)).to_local()
            torch.testing.assert_close(found.to_local(), expected, rtol=0, atol=0, equal_nan=True)


def test_a_number_from_inside_a_tensor_that_decides_placements(mesh) -> None:
    """Of a norm, which is gathered in another way for each order."""
    x = distribute_tensor(torch.randn(4, 2), mesh, [Shard(0)], src_data_rank=None)
    with pytest.raises(DataDependentError):
        st.compile(lambda x, s: torch.linalg.vector_norm(x, s.item()))(x, torch.tensor(2.0))
