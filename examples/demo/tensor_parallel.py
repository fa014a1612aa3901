"""The model with its linear layers split over processes: every weight is a DTensor."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from . import data
from .model import LanguageModel
from .side_by_side import Job, Progress, Result, train

PLAN = {
    "blocks.*.attention.query": ColwiseParallel(),
    "blocks.*.attention.key": ColwiseParallel(),
    "blocks.*.attention.value": ColwiseParallel(),
    "blocks.*.attention.out": RowwiseParallel(),
    "blocks.*.feed_forward.up": ColwiseParallel(),
    "blocks.*.feed_forward.down": RowwiseParallel(),
    "head": ColwiseParallel(output_layouts=Replicate()),
}


def worker(job: Job, progress: Progress) -> Result:
    """One rank's part. The embedding and the norms stay plain and replicated."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))

    def make_model() -> nn.Module:
        torch.manual_seed(job.seed)
        return parallelize_module(LanguageModel(job.sizes), mesh, PLAN)

    def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
        split = [parameter for parameter in model.parameters() if isinstance(parameter, DTensor)]
        whole = [
            parameter for parameter in model.parameters() if not isinstance(parameter, DTensor)
        ]
        # AdamW updates a group at once and cannot mix the two
        groups = [{"params": split}, {"params": whole}]
        return torch.optim.AdamW(groups, lr=job.learning_rate)

    return train(job, data.load(), make_model, make_optimizer, progress)
