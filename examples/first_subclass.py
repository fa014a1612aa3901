"""``python -m examples.first_subclass``: declare a wrapper, give it one operation, and train a
model with it.

`LowRank` stands for a matrix ``left @ right`` that is never put together: a linear layer with it
costs two thin products. The declaration says what is inside; ``st.compile`` then sees two dense
tensors where the user sees one weight.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import subclass_trace as st


class LowRank(st.WrapperTensor, default="dequantize"):
    """The matrix ``left @ right``. What no rule serves is computed on that matrix."""

    left: Tensor
    right: Tensor

    @classmethod
    def outer_metadata(cls, fields: LowRank) -> st.authoring.Outer:
        """What the tensor looks like from outside."""
        return st.authoring.Outer(size=(fields.left.shape[0], fields.right.shape[1]))

    def dequantize(self) -> Tensor:
        """The dense matrix."""
        return self.left @ self.right


class Product(torch.autograd.Function):
    """``x @ weight.t()``; the gradient of the weight is a `LowRank` too, that of its parts."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: LowRank) -> Tensor:
        ctx.save_for_backward(x, weight)
        return (x @ weight.right.t()) @ weight.left.t()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, LowRank]:
        x, weight = ctx.saved_tensors
        thin = grad @ weight.left
        return thin @ weight.right, weight.replace(
            left=grad.t() @ (x @ weight.right.t()), right=thin.t() @ x
        )


@LowRank.implements_torch_function(F.linear)
def _linear(func, x: Tensor, weight: LowRank, bias: Tensor | None = None) -> Tensor:
    out = Product.apply(x, weight)
    return out if bias is None else out + bias


def make_model(width: int, rank: int) -> nn.Sequential:
    """Two linear layers whose weights are `LowRank`."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))
    for layer in (model[0], model[2]):
        thin = torch.randn(2, width, rank) / width**0.5
        layer.weight = nn.Parameter(LowRank(thin[0], thin[1].t().contiguous()))
    return model


def train(model: nn.Module, loss_fn, steps: int, rate: float) -> list[float]:
    """Gradient descent on the parts of each weight."""
    x = torch.randn(64, model[0].in_features, generator=torch.Generator().manual_seed(1))
    target, losses = x.roll(1, 1), []
    for _ in range(steps):
        loss = loss_fn(model, x, target)
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                pairs = (
                    [(p.left, p.grad.left), (p.right, p.grad.right)]
                    if isinstance(p, LowRank)
                    else [(p, p.grad)]
                )
                for value, gradient in pairs:
                    value.sub_(gradient, alpha=rate)
                p.grad = None
        losses.append(loss.item())
    return losses


def loss_fn(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """The region that is compiled."""
    return F.mse_loss(model(x), target)


def main(arguments: list[str] | None = None) -> dict[str, list[float]]:
    """Train, eager and compiled; print both loss curves and what the region made of the weights."""
    parser = argparse.ArgumentParser(prog="python -m examples.first_subclass")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--rank", type=int, default=8)
    options = parser.parse_args(arguments)
    compiled = st.compile(loss_fn)
    curves = {
        name: train(make_model(options.width, options.rank), f, options.steps, rate=3.0)
        for name, f in (("eager", loss_fn), ("compiled", compiled))
    }
    print(f"{'step':>6}{'eager':>12}{'compiled':>12}")
    for step in sorted({0, options.steps // 4, options.steps // 2, options.steps - 1}):
        print(f"{step:>6}{curves['eager'][step]:>12.6f}{curves['compiled'][step]:>12.6f}")
    print("\nwhat the graph takes:")
    x = torch.randn(64, options.width)
    names = st.trace(loss_fn, make_model(options.width, options.rank), x, x).names
    for name in sorted(
        (n for n in names if n.startswith("primals_")), key=lambda n: int(n.split("_")[1])
    ):
        print(f"  {name:<11}{names[name]}")
    return curves


if __name__ == "__main__":
    main()
