"""``python -m examples.custom_backend``: a back end is a function from a graph to a callable.

This one replaces every ``relu`` by a cheaper-to-read spelling, counts operations, and runs the
graph module as it is.
It never sees a wrapper: the model's weights are pairs of tensors, its graphs are dense.
"""

from __future__ import annotations

import argparse
from collections import Counter

import torch
from torch import fx, nn

import subclass_trace as st
from subclass_trace.backends import register_backend
from subclass_trace.zoo import TwoTensor

aten = torch.ops.aten
seen: list[Counter[str]] = []


# ---- the back end: 20 lines with the blank ones
def counting(graph: fx.GraphModule, example_inputs: list[torch.Tensor]):
    """Rewrite, count, run."""
    graph = fx.GraphModule(graph, graph.graph)
    for node in graph.graph.nodes:
        if node.target is aten.relu.default:
            node.target, node.args = aten.clamp_min.default, (*node.args, 0)
    graph.recompile()
    seen.append(Counter(str(n.target) for n in graph.graph.nodes if n.op == "call_function"))
    return graph.forward


register_backend("counting", counting, replace=True)
# ------------------------------------------------------------------------------------------


def make_model(width: int) -> nn.Sequential:
    """A small network of `TwoTensor` weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
    for layer in (model[0], model[2]):
        for name, p in list(layer.named_parameters()):
            setattr(layer, name, nn.Parameter(TwoTensor(p.detach(), 2 * p.detach())))
    return model


def main(arguments: list[str] | None = None) -> float:
    """A training step, eager and compiled; the largest difference of a gradient."""
    parser = argparse.ArgumentParser(prog="python -m examples.custom_backend")
    parser.add_argument("--width", type=int, default=32)
    width = parser.parse_args(arguments).width
    seen.clear()
    x, gradients = torch.randn(8, width), {}
    for name in ("eager", "counting"):
        model = make_model(width)
        call = model if name == "eager" else st.compile(model, backend="counting")
        out = call(x).square().mean()
        out.backward(torch.ones_like(out))
        gradients[name] = [p.grad for p in model.parameters()]
        print(f"{name:>9}: loss {out.a.item():.6f} and {out.b.item():.6f}")
    for kind, counts in zip(("forward", "backward"), seen, strict=True):
        print(
            f"{kind:>9}: "
            + ", ".join(f"{n} {op.removeprefix('aten.')}" for op, n in sorted(counts.items()))
        )
    pairs = zip(*gradients.values(), strict=True)
    largest = max(
        float((getattr(a, half) - getattr(b, half)).abs().max()) for a, b in pairs for half in "ab"
    )
    print(f"largest difference of a gradient: {largest:.1e}")
    return largest


if __name__ == "__main__":
    main()
