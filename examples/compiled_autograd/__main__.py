"""``python -m examples.compiled_autograd``: the same training loop on the eager engine and under
compiled autograd.

Parameters are DTensors, each has a hook that clips its gradient, and activations are kept off the
device between forward and backward (here: as numpy arrays). Printed are losses, time and peak
memory of the backwards, and the tape.

It runs as one process; under ``torchrun --nproc-per-node=2 -m examples.compiled_autograd``
parameters are sharded.
"""

from __future__ import annotations

import argparse
import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import subclass_trace as st
from examples.compiled_autograd.memory import peak_bytes

VARIANTS: dict[str, Callable[[], Any]] = {
    "eager engine": contextlib.nullcontext,
    "tape": st.compiled_autograd,
    "segments": lambda: st.compiled_autograd(backend="eager"),
}


class Model(torch.nn.Module):
    """Linear layers with DTensor weights, sharded by rows."""

    def __init__(self, mesh: DeviceMesh, layers: int, width: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        weights = [
            torch.randn(width, width, generator=generator) / width**0.5 for _ in range(layers)
        ]
        self.weights = torch.nn.ParameterList(
            torch.nn.Parameter(distribute_tensor(w, mesh, [Shard(0)])) for w in weights
        )

    def forward(self, x: DTensor) -> torch.Tensor:
        """The mean square of the result."""
        for w in self.weights:
            x = torch.tanh(x @ w)
        return x.square().mean()


class Offload(saved_tensors_hooks):
    """Keeps activations as numpy arrays; weights stay where they are."""

    def __init__(self, keep: torch.nn.Module) -> None:
        weights = {p.data_ptr() for w in keep.parameters() for p in [w.to_local()]}

        def pack(t: torch.Tensor) -> Any:
            local = t.to_local() if isinstance(t, DTensor) else t
            if local.data_ptr() in weights or local.numel() < 1024:
                return t
            return local.detach().numpy().copy(), (
                t.device_mesh,
                t.placements,
                t.shape,
                t.stride(),
            ) if isinstance(t, DTensor) else None

        def unpack(packed: Any) -> torch.Tensor:
            if isinstance(packed, torch.Tensor):
                return packed
            array, layout = packed
            local = torch.tensor(array)
            if layout is None:
                return local
            mesh, placements, shape, stride = layout
            return DTensor.from_local(
                local, mesh, placements, run_check=False, shape=shape, stride=stride
            )

        super().__init__(pack, unpack)


def clip(largest: float, log: list[float]) -> Callable[[torch.Tensor], torch.Tensor]:
    """A hook that scales a gradient down to a norm of ``largest``."""

    def hook(grad: torch.Tensor) -> torch.Tensor:
        norm = grad.norm()
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        log.append(float(norm))
        return grad * min(1.0, largest / max(float(norm), 1e-6))

    return hook


@dataclass
class Outcome:
    """What a training loop gives: losses, norms that the hooks saw, seconds and peak bytes of its
    backwards."""

    losses: list[float]
    norms: list[float]
    seconds: float
    peak: int


def train(
    mesh: DeviceMesh, around: Callable[[], Any], steps: int, layers: int, width: int, batch: int
) -> Outcome:
    """Train; ``around`` makes the context of each backward."""
    model, norms = Model(mesh, layers, width), []
    for w in model.weights:
        w.register_hook(clip(1e-3, norms))
    optimizer = torch.optim.SGD(model.parameters(), lr=50.0)
    losses, seconds, peak = [], [], 0
    for step in range(steps):
        local = torch.randn(batch, width, generator=torch.Generator().manual_seed(step))
        x = distribute_tensor(local, mesh, [Replicate()])
        optimizer.zero_grad()
        with Offload(model):
            loss = model(x)
        with around():
            start = time.perf_counter()
            if step < steps - 1:
                loss.backward()
            else:
                peak = peak_bytes(loss.backward)
        if 2 <= step < steps - 1:  # the first ones capture and trace
            seconds.append(time.perf_counter() - start)
        optimizer.step()
        loss = loss.detach()
        losses.append(float(loss.full_tensor() if isinstance(loss, DTensor) else loss))
    return Outcome(losses, norms, sorted(seconds)[len(seconds) // 2], peak)


@contextlib.contextmanager
def process_group() -> Iterator[DeviceMesh]:
    """The ranks that torchrun started, or this process alone."""
    alone = not dist.is_torchelastic_launched()
    dist.init_process_group(
        "gloo", **({"store": dist.HashStore(), "rank": 0, "world_size": 1} if alone else {})
    )
    try:
        yield init_device_mesh("cpu", (dist.get_world_size(),))
    finally:
        dist.destroy_process_group()


def main(arguments: list[str] | None = None) -> dict[str, Outcome]:
    """Run and print all variants."""
    parser = argparse.ArgumentParser(prog="python -m examples.compiled_autograd")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--tape", type=int, default=16, help="how many lines of the tape to print")
    options = vars(parser.parse_args(arguments))
    shown = options.pop("tape")
    warnings.filterwarnings("ignore", category=FutureWarning)
    found = {}
    with process_group() as mesh:
        for name, around in VARIANTS.items():
            found[name] = train(mesh, around, **options)
        first = found["eager engine"]
        if dist.get_rank() == 0:
            print(f"{'':<14}{'last loss':>12}{'hooks':>7}{'ms / backward':>15}{'peak KiB':>10}")
            for name, o in found.items():
                row = f"{o.losses[-1]:>12.6f}{len(o.norms):>7}{o.seconds * 1e3:>15.2f}"
                print(f"{name:<14}{row}{o.peak / 1024:>10.0f}")
            same = all(o.losses == first.losses and o.norms == first.norms for o in found.values())
            print(f"losses and clipped norms are {'the same, bit for bit' if same else 'close'}\n")
            text = str(st.compiled_autograd.tapes[-1]).splitlines()
            print("\n".join([*text[:shown], "  ..."] if len(text) > shown else text))
    return found


if __name__ == "__main__":
    main()
