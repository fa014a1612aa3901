"""``python -m examples.tensor_parallel``: a transformer block split over two processes, eager and
compiled.

Its weights are DTensors (``parallelize_module``), its collectives run over gloo. Started alone, it
starts itself with ``torchrun --nproc-per-node=2``; each process then compiles its own graph, with
the collectives in it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import subclass_trace as st

PLAN = {n: ColwiseParallel() for n in ("query", "key", "value", "up")} | {
    n: RowwiseParallel() for n in ("out", "down")
}


class Block(nn.Module):
    """Attention and feed-forward. How many heads a process has is read off its projections."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.head_width = width // heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` is (batch, length, width)."""
        parts = [
            p(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for p in (self.query, self.key, self.value)
        ]
        x = x + self.out(
            F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2)
        )
        return x + self.down(F.gelu(self.up(x)))


def train(
    block: nn.Module, call: Callable[[Tensor], Tensor], steps: int, width: int
) -> tuple[list[float], float]:
    """Losses, and the median milliseconds of forward and backward."""
    split = [p for p in block.parameters() if isinstance(p, DTensor)]
    optimizer = torch.optim.AdamW(split, lr=0.01)
    losses, times = [], []
    for seed in range(steps):
        x = torch.randn(8, 16, width, generator=torch.Generator().manual_seed(seed))
        start = time.perf_counter()
        loss = F.mse_loss(call(x), x.roll(1, 1))
        loss.backward()
        times.append(time.perf_counter() - start)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, 1e3 * sorted(times)[len(times) // 2]


def worker(steps: int, width: int) -> dict[str, list[float]]:
    """What each process runs; the first one prints."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh, found, milliseconds = init_device_mesh("cpu", (dist.get_world_size(),)), {}, {}
    for name in ("eager", "compiled"):
        torch.manual_seed(0)
        block = parallelize_module(Block(width), mesh, PLAN)
        region: Any = st.compile(block)
        found[name], milliseconds[name] = train(
            block, block if name == "eager" else region, steps, width
        )
    if dist.get_rank() == 0:
        print(
            f"{dist.get_world_size()} processes; loss of the first and last step, forward and "
            "backward:"
        )
        for name, losses in found.items():
            print(f"{name:<9}{losses[0]:>10.6f}{losses[-1]:>10.6f}{milliseconds[name]:>8.2f} ms")
        graphs = region.specializations[0].graphs
        for kind in ("forward", "backward"):
            nodes = Counter(str(n.target) for n in getattr(graphs, kind).graph.nodes)
            print(
                f"{kind}: "
                + ", ".join(f"{k} {n}" for n, k in nodes.items() if "_c10d_functional" in n)
            )
        weight = block.query.weight
        print(
            f"query.weight is {tuple(weight.shape)}; here {tuple(weight.to_local().shape)}, "
            f"{weight.placements[0]}"
        )
    dist.barrier()
    dist.destroy_process_group()
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run under torchrun, or start it."""
    parser = argparse.ArgumentParser(prog="python -m examples.tensor_parallel")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--width", type=int, default=64)
    options = parser.parse_args(arguments)
    if not dist.is_torchelastic_launched():
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
        ]
        rest = [f"--steps={options.steps}", f"--width={options.width}"]
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        return subprocess.run(
            [*command, "-m", "examples.tensor_parallel", *rest], env=environment
        ).returncode
    warnings.filterwarnings("ignore")
    curves = worker(options.steps, options.width)
    return int(
        not torch.allclose(
            torch.tensor(curves["eager"]), torch.tensor(curves["compiled"]), rtol=1e-4
        )
    )


if __name__ == "__main__":
    sys.exit(main())
