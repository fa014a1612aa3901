"""Tensor and sequence parallel modules on a fake process group of four, eager against compiled, bit for bit."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from spmd import REPLICATE, check, collectives, run_model, whole
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


class Attention(nn.Module):
    def __init__(self, width: int, head_width: int) -> None:
        super().__init__()
        self.head_width = head_width
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        parts = (p(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2) for p in (self.query, self.key, self.value))
        return self.out(F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(width), Attention(width, width // 4)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Transformer(nn.Module):
    def __init__(self, width: int = 16, layers: int = 2, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, width)
        self.register_buffer("scale", torch.full((1,), 1.5))
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, 20, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens) * self.scale
        for block in self.blocks:
            x = block(x)
        return self.head(x)


PLAN = {
    **{f"blocks.*.attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
    "blocks.*.attention.out": RowwiseParallel(),
    "blocks.*.up": ColwiseParallel(),
    "blocks.*.down": RowwiseParallel(),
}


def transformer(mesh: DeviceMesh, plan: Any, **options: Any) -> Transformer:
    torch.manual_seed(5)
    return parallelize_module(Transformer(**options), mesh, plan, src_data_rank=None)


def test_tensor_parallel_transformer(mesh) -> None:
    plan = {**PLAN, "head": ColwiseParallel(output_layouts=Replicate())}

    def make():
        model = transformer(mesh, plan)
        return (model, torch.arange(24).reshape(2, 12) % 20), list(model.parameters())

    # Modules are guarded by identity, so that each call here would make a specialization.
    model = make()[0][0]

    def same_model():
        model.zero_grad()
        return (model, torch.arange(24).reshape(2, 12) % 20), list(model.parameters())

    region = check(run_model, same_model)
    (only,) = region.specializations
    paths = {str(row.path) for row in only.plan.inputs.rows}
    names = [*(n for n, _ in model.named_parameters()), *(n for n, _ in model.named_buffers())]
    assert len(paths) == len(names) + 1
    assert "args[0].blocks[1].attention.out.weight" in paths and "args[0].scale" in paths
    assert only.plan.mutations.rows == ()
    # Each of the two row-wise layers of each block adds up over the ranks, and the head is gathered.
    assert collectives(only.graphs.forward) == ["all_reduce"] * 4 + ["all_gather_into_tensor"]


def test_sequence_parallel_block(mesh) -> None:
    plan = {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        **{f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
        "attention.out": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    }
    torch.manual_seed(5)
    model = parallelize_module(Block(16), mesh, plan, src_data_rank=None)

    def make():
        model.zero_grad()
        x = whole(mesh, 2, 8, 16, placements=[Shard(1)], grad=True)
        return (model, x), [x, *model.parameters()]

    region = check(run_model, make)
    found = collectives(region.specializations[0].graphs.forward)
    assert set(found) == {"all_gather_into_tensor", "reduce_scatter_tensor"}


def test_tied_parameters(mesh) -> None:
    model = transformer(mesh, PLAN, tied=True)
    tied = nn.Parameter(distribute_tensor(model.head.weight.detach(), mesh, REPLICATE, src_data_rank=None))
    model.embedding.weight = model.head.weight = tied

    def f(model, tokens):
        tokens = DTensor.from_local(tokens, mesh, REPLICATE, run_check=False)
        x = model.embedding(tokens)
        return model.head(x)

    def make():
        model.zero_grad()
        return (model, torch.arange(24).reshape(2, 12) % 20), [model.head.weight]

    region = check(f, make)
    paths = [str(row.path) for row in region.specializations[0].plan.inputs.rows]
    assert [p for p in paths if p.endswith(("head.weight", "embedding.weight"))] == ["args[0].embedding.weight"]
    assert model.head.weight is tied and model.embedding.weight is tied
