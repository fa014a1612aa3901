"""Random training steps in one region: forwards with views, writes in place, checkpoints and dropout; backwards; updates."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

WIDTH, ROWS = 64, 300  # values of more bytes than the eager back end keeps in any case
Layer = Callable[[torch.Tensor], torch.Tensor]


class Norm(nn.Module):
    """Writes statistics in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


class Counted(nn.Module):
    """Writes a buffer that it has read."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * (self.scale.clone() + 0.5)  # what a copy in the backward would read is written by then
        with torch.no_grad():
            self.scale.mul_(1.125)
        return y.exp().clamp(max=3.0)


def _in_place(x: torch.Tensor) -> torch.Tensor:
    y = x * 2.0
    y.add_(1.0).tanh_()
    return y * x


def _through_a_view(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, ::2].mul_(0.5)
    return y.sigmoid() * x


def _halves(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, dim=1)
    return torch.cat([a * b.sigmoid(), b.cos()], dim=1)


FUNCTIONS: list[Layer] = [
    F.gelu,
    torch.sin,
    _in_place,
    _through_a_view,
    _halves,
    lambda x: F.dropout(x, 0.25),
    lambda x: x.softmax(-1) * x,
    lambda x: F.layer_norm(x, (WIDTH,)),
    lambda x: x.t().reshape(x.shape) + x,
    lambda x: torch.where(x > 0, x, x.expm1()),
]


def _selective() -> Any:
    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        dear = op in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
        return CheckpointPolicy.MUST_SAVE if dear else CheckpointPolicy.MUST_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


class Program:
    """One random step: ``step(x)`` trains ``model`` with ``optimizer``."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        torch.manual_seed(seed)
        self.layers = nn.ModuleList()
        self.parts: list[tuple[str, list[Layer]]] = []
        for _ in range(draw.randint(2, 4)):
            part: list[Layer] = []
            for _ in range(draw.randint(1, 4)):
                kind = draw.choice(["linear", "norm", "counted", *["function"] * 4])
                if kind == "function":
                    part.append(draw.choice(FUNCTIONS))
                    continue
                made = {"linear": lambda: nn.Linear(WIDTH, WIDTH), "norm": Norm, "counted": Counted}[kind]()
                self.layers.append(made)
                part.append(made)
            # In eager a part that writes state runs twice where it is checkpointed, which no compiler repeats.
            writes = any(isinstance(layer, (Norm, Counted)) for layer in part)
            how = draw.choice(["plain", "plain", "checkpoint", "reentrant", "selective"])
            self.parts.append(("plain" if writes else how, part))
        self.layers.append(nn.Linear(WIDTH, WIDTH))
        parameters = list(self.layers.parameters())
        # A gradient that is 0 but for rounding (a bias before a batch norm) shall not become a step of 1.
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.SGD(parameters, lr=0.01)
            if draw.random() < 0.5
            else torch.optim.AdamW(parameters, lr=0.01, eps=1e-2)
        )
        self.batches, self.updates_between = draw.choice([1, 1, 2]), draw.random() < 0.5
        self.budget = draw.choice([None, None, 0.0, 0.4])
        self.penalty = draw.random() < 0.2 and all(how != "reentrant" for how, _ in self.parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers[-1](x)
        for how, part in self.parts:

            def run(y: torch.Tensor, part: list[Layer] = part) -> torch.Tensor:
                for layer in part:
                    y = layer(y)
                return y

            if how == "plain":
                x = run(x)
            elif how == "reentrant":
                x = checkpoint(run, x, use_reentrant=True)
            else:
                chosen = {"context_fn": _selective} if how == "selective" else {}
                x = checkpoint(run, x, use_reentrant=False, **chosen)
        return x

    def step(self, x: torch.Tensor) -> torch.Tensor:
        losses = []
        for batch in x.chunk(self.batches):
            loss = self.forward(batch).square().mean()
            if self.penalty:
                (grad,) = torch.autograd.grad(loss, [self.layers[-1].weight], retain_graph=True)
                loss = loss + grad.detach().square().sum()
            loss.backward()
            losses.append(loss.detach())
            if self.updates_between:
                self.optimizer.step()
                self.optimizer.zero_grad()
        if not self.updates_between:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return torch.stack(losses)

    def state(self) -> list[torch.Tensor]:
        """All that a step writes, and the random state."""
        return [*self.layers.parameters(), *self.layers.buffers(), torch.get_rng_state()]
