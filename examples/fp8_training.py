"""``python -m examples.fp8_training``: train in FP8, and let one region hold the whole step.

Linear layers compute in float8 with a scale per tensor: dynamic (from the tensor itself) or delayed
(from the steps before, kept in a buffer; of a gradient, the history that follows comes out as the
gradient of that buffer). The region is
forward, backward and AdamW: parameters, optimizer state and histories are its inputs, and come back
changed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.adamw import adamw

import subclass_trace as st
from subclass_trace.zoo import DelayedFP8Linear, FP8Linear, convert_linears

LAYERS = {"bf16": None, "dynamic": FP8Linear, "delayed": DelayedFP8Linear}


def make_model(kind: str, width: int) -> nn.Module:
    """Four linear layers in bfloat16, or their FP8 counterparts."""
    torch.manual_seed(0)
    sizes = [(width, 4 * width), (4 * width, width)] * 2
    model = nn.Sequential(
        *[m for size in sizes for m in (nn.Linear(*size), nn.GELU())][:-1]
    ).bfloat16()
    return model if LAYERS[kind] is None else convert_linears(model, layer=LAYERS[kind])


def make_step(model: nn.Module) -> Callable[..., Tensor]:
    """One whole training step: what is compiled."""

    def step(
        x: Tensor, target: Tensor, means: list[Tensor], squares: list[Tensor], counts: list[Tensor]
    ) -> Tensor:
        parameters = list(model.parameters())
        histories = [b for b in model.buffers() if b.requires_grad]
        loss = F.mse_loss(model(x).float(), target)
        gradients = list(torch.autograd.grad(loss, [*parameters, *histories]))
        numbers = {"lr": 3e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01, "eps": 1e-8}
        with torch.no_grad():  # a captured step counts in tensors, an eager one on a CPU in numbers
            flags = {
                "foreach": True,
                "capturable": torch.compiler.is_compiling(),
                "amsgrad": False,
                "maximize": False,
            }
            for history in reversed(histories):
                history.copy_(gradients.pop())
            adamw(parameters, gradients, means, squares, [], counts, **flags, **numbers)
        return loss.detach()

    return step


@dataclass
class Outcome:
    """Losses, and the median milliseconds of a step."""

    losses: list[float]
    milliseconds: float


def train(model: nn.Module, step: Callable[..., Tensor], steps: int, width: int) -> Outcome:
    """Same batches for all."""
    parameters = list(model.parameters())
    means, squares = (
        [torch.zeros_like(p, requires_grad=False) for p in parameters] for _ in range(2)
    )
    counts, losses, times = [torch.tensor(0.0) for _ in parameters], [], []
    for seed in range(steps):
        x = torch.randn(256, width, generator=torch.Generator().manual_seed(seed)).bfloat16()
        start = time.perf_counter()
        losses.append(step(x, x.roll(1, 1).float().tanh(), means, squares, counts).item())
        times.append(time.perf_counter() - start)
    return Outcome(losses, 1e3 * sorted(times)[len(times) // 2])


def saved_bytes(model: nn.Module, width: int) -> dict[str, int]:
    """dtype -> bytes of the activations that forward and loss as a region would save, computing
    nothing again."""
    x = torch.randn(256, width).bfloat16()
    found = st.Tracer(partitioner="default")(lambda x: F.mse_loss(model(x).float(), x.float()), x)
    totals: dict[str, int] = {}
    for row in found.saved:
        if row.bytes > 64:
            totals[row.dtype] = totals.get(row.dtype, 0) + row.bytes
    return totals


def main(arguments: list[str] | None = None) -> dict[str, tuple[Outcome, Outcome]]:
    """Train each kind, eager and compiled, and print both."""
    parser = argparse.ArgumentParser(prog="python -m examples.fp8_training")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--width", type=int, default=64)
    options = parser.parse_args(arguments)
    print(
        f"{'':<9}{'first loss':>11}{'last loss':>11}{'compiled':>11}"
        f"{'eager ms':>10}{'compiled ms':>13}  saved KiB"
    )
    found = {}
    for kind in LAYERS:
        model, other = make_model(kind, options.width), make_model(kind, options.width)
        eager = train(model, make_step(model), options.steps, options.width)
        compiled = train(other, st.compile(make_step(other)), options.steps, options.width)
        saved = ", ".join(
            f"{n / 1024:.0f} {dtype}" for dtype, n in saved_bytes(model, options.width).items()
        )
        losses = f"{eager.losses[0]:>11.5f}{eager.losses[-1]:>11.5f}{compiled.losses[-1]:>11.5f}"
        print(
            f"{kind:<9}{losses}{eager.milliseconds:>10.2f}{compiled.milliseconds:>13.2f}  {saved}"
        )
        found[kind] = (eager, compiled)
    return found


if __name__ == "__main__":
    main()
