"""``python -m examples.keep_activations``: a partitioner of one's own decides what the forward
saves for the backward.

A partitioner takes the joint graph and splits it. This one keeps the results of operations that it
is told, once those of matrix products and once those of sigmoids, and lets the backward compute the
rest again. Torch's own partitioner does the split; ours says what to keep through the tags that
activation checkpointing uses.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch import fx, nn
from torch.utils.checkpoint import CheckpointPolicy

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

aten = torch.ops.aten


def keep(*operations: Any) -> Callable[..., tuple[fx.GraphModule, fx.GraphModule]]:
    """A partitioner that saves the results of ``operations``, and nothing else that can be computed
    from them."""

    def partitioner(joint: fx.GraphModule, inputs: list[Any], *, num_fwd_outputs: int) -> Any:
        for node in joint.graph.nodes:
            if node.op == "call_function" and node.meta.get("partitioner_tag") != "is_backward":
                kept = node.target in operations
                node.meta["recompute"] = (
                    CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE
                )
        return min_cut_rematerialization_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs)

    return partitioner


PARTITIONERS: dict[str, Any] = {
    "default": "default",
    "min_cut": "min_cut",
    "keep products": keep(aten.mm.default, aten.addmm.default),
    "keep sigmoids": keep(aten.sigmoid.default),
}


def make_model(layers: int, width: int) -> nn.Sequential:
    """Linear layers with activations that eager mode has to save; weights are pairs."""
    torch.manual_seed(0)
    blocks = [
        m
        for _ in range(layers)
        for m in (nn.Linear(width, width, bias=False), nn.GELU(), nn.Sigmoid())
    ]
    model = nn.Sequential(*blocks)
    for layer in model:
        if isinstance(layer, nn.Linear):
            w = layer.weight.detach()
            layer.weight = nn.Parameter(TwoTensor(w, 2 * w))
    return model


def main(arguments: list[str] | None = None) -> dict[str, tuple[int, float]]:
    """A training step with each partitioner: saved bytes, and the largest difference of a gradient
    from eager mode."""
    parser = argparse.ArgumentParser(prog="python -m examples.keep_activations")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=256)
    options = parser.parse_args(arguments)
    x = torch.randn(options.batch, options.width)

    def gradients(model: nn.Module, call: Callable[..., Any]) -> list[Any]:
        out = call(x).square().mean()
        out.backward(torch.ones_like(out))
        return [half for p in model.parameters() for half in (p.grad.a, p.grad.b)]

    eager = make_model(options.layers, options.width)
    expected, found = gradients(eager, eager), {}
    print(f"{'partitioner':<16}{'saved KiB':>10}{'tensors':>9}{'gradients differ by':>22}")
    for name, partitioner in PARTITIONERS.items():
        model = make_model(options.layers, options.width)
        region = st.compile(model, partitioner=partitioner)
        got = gradients(model, region)
        rows = [row for row in region.specializations[0].saved if row.bytes]
        size = sum(row.bytes for row in rows)
        worst = max(float((a - b).abs().max()) for a, b in zip(got, expected, strict=True))
        print(f"{name:<16}{size / 1024:>10.0f}{len(rows):>9}{worst:>22.1e}")
        found[name] = (size, worst)
    print("\nwhat 'keep sigmoids' saves:")
    for row in rows:
        print(
            f"  {row.name:<19}{row.dtype:<10}{list(row.shape)!s:<12}{row.bytes / 1024:>6.0f} KiB "
            f" {row.path or ''}"
        )
    return found


if __name__ == "__main__":
    main()
