"""What each of two gloo processes checks: merged and moved collectives give the same numbers. Run by `test_collectives`."""

from __future__ import annotations

import collections
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import subclass_trace as st
from subclass_trace.errors import PassError
from subclass_trace.passes import JointGraph, bucket_collectives

LAYERS = 6


class Gathered(nn.Module):
    """A linear layer in SimpleFSDP's way: each rank has a part of the weight, and gathers the whole where it is used."""

    def __init__(self, mesh: dist.device_mesh.DeviceMesh) -> None:
        super().__init__()
        self.weight = nn.Parameter(distribute_tensor(torch.randn(8, 8) / 3, mesh, [Shard(0)]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        assert isinstance(weight, DTensor)
        whole = weight.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
        return (x @ whole.t()).tanh()


def model(mesh: dist.device_mesh.DeviceMesh) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[Gathered(mesh) for _ in range(LAYERS)])


def collectives(graph: torch.fx.Graph) -> collections.Counter[str]:
    found = (str(n.target) for n in graph.nodes if "_c10d_functional" in str(n.target) or "bucketing" in str(n.target))
    return collections.Counter(name.split(".")[1] for name in found)


def train(net: nn.Module, region: nn.Module, rank: int) -> list[torch.Tensor]:
    for step in range(2):
        torch.manual_seed(10 * rank + step)
        region(torch.randn(4, 8)).square().sum().backward()
    return [p.grad.to_local() for p in net.parameters()]  # type: ignore[union-attr]


def main(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    eager = model(mesh)
    expected = train(eager, eager, rank)

    order: list[list[int]] = []

    def look(graph: JointGraph) -> None:
        nodes = list(graph.graph.nodes)
        waits = [n for n in nodes if "wait_tensor" in str(n.target)]
        order.append([nodes.index(w) - nodes.index(w.all_input_nodes[0]) for w in waits])

    counts = {}
    for name, passes in {
        "none": [look],
        "buckets": [bucket_collectives()],
        "small": [bucket_collectives(0.0006)],  # two layers' weights
        "overlap": ["overlap_collectives", look],
    }.items():
        ours = model(mesh)
        region = st.compile(ours, passes=passes)
        for a, b in zip(expected, train(ours, region, rank), strict=True):
            torch.testing.assert_close(b, a)
        graphs = region.specializations[0].graphs
        counts[name] = collectives(graphs.forward.graph)
        assert graphs.backward is not None
    gathers = {
        name: count["all_gather_into_tensor"] + count["all_gather_into_tensor_out"] for name, count in counts.items()
    }
    assert gathers == {"none": LAYERS, "buckets": 1, "small": LAYERS // 2, "overlap": LAYERS}, counts
    assert max(order[1]) > max(order[0]) == 1, order  # launched earlier than they are waited for

    def gathers_twice(graph: JointGraph) -> None:
        node = next(n for n in graph.graph.nodes if "all_gather" in str(n.target))
        graph.insert(node.all_input_nodes[0], node.target, *node.args)

    try:
        st.compile(model(mesh), passes=[gathers_twice])(torch.randn(4, 8))
        raise AssertionError("a pass that calls a collective more was not noticed")
    except PassError as error:
        assert "collectives" in error.what, error
    (Path(folder) / f"{rank}.txt").write_text("right", encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
