"""Whole training steps as one region: forward, backward, AdamW; against the eager step and
``torch.compile(backend="aot_eager")``.

A small LLaMA-shaped model: attention, RMS norm, a gated linear unit, in blocks that may be
checkpointed.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import subclass_trace as st

from .harness import interleaved, memory_events
from .results import Figure, Goal
from .subjects import WrongValues

_FIRST, _STEADY, _PEAK = (
    "first calls / torch.compile's",
    "time of a step / eager's",
    "peak of a step / eager's",
)
Step = Callable[[torch.Tensor], torch.Tensor]


class Block(nn.Module):
    """Attention and a gated linear unit, each behind a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv, self.out = (
            nn.Linear(width, 3 * width, bias=False),
            nn.Linear(width, width, bias=False),
        )
        self.up, self.down = (
            nn.Linear(width, 4 * width, bias=False),
            nn.Linear(2 * width, width, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x``: (batch, length, width)."""
        batch, length, width = x.shape
        q, k, v = (
            self.qkv(self.norms[0](x)).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        gate, value = self.up(self.norms[1](x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * value)


def step_of(layers: int, width: int, *, checkpointed: bool = False) -> Step:
    """A training step of a fresh model."""
    torch.manual_seed(0)
    blocks = nn.ModuleList(Block(width) for _ in range(layers))
    optimizer = torch.optim.AdamW(blocks.parameters(), lr=1e-3)

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x
        for block in blocks:
            y = checkpoint(block, y, use_reentrant=False) if checkpointed else block(y)
        loss = y.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def verify(quick: bool) -> None:
    """Do the compiled steps give eager's losses?"""
    layers, width, x = _size(quick)
    for checkpointed in (False, True):
        eager, ours = (step_of(layers, width, checkpointed=checkpointed) for _ in range(2))
        _same_losses(eager, st.compile(ours), x)


def _same_losses(eager: Step, ours: Step, x: torch.Tensor) -> None:
    for _ in range(4):
        if not torch.allclose(eager(x), ours(x), rtol=1e-4, atol=1e-5):
            raise WrongValues("a whole step gives another loss than eager's")


def run(quick: bool, say: Callable[[str], None]) -> Iterator[Figure]:
    """Measure."""
    verify(quick=True)
    layers, width, x = _size(quick)
    name = f"{layers} layers of {width}, AdamW"
    say(f"whole step, {name}: first calls")
    ours, theirs = _first_calls(layers, width, x)
    yield Figure(
        "whole_step",
        _FIRST,
        name,
        ours / theirs,
        Goal("<=", 0.25),
        {},
        {"ours": ours, "torch.compile": theirs},
    )
    for checkpointed in (False, True):
        case = f"{name}{', checkpoints' * checkpointed}"
        say(f"whole step, {case}")
        eager = step_of(layers, width, checkpointed=checkpointed)
        budgets: dict[str, dict[str, Any]] = {
            "": {},
            ", partitioner default": {"partitioner": "default"},
        }
        if not checkpointed:
            budgets[", budget 0.3"] = {"activation_memory_budget": 0.3}
        for text, options in budgets.items():
            region = st.compile(step_of(layers, width, checkpointed=checkpointed), **options)
            for step in (eager, region):
                for _ in range(3):
                    step(x)
            bound = 0.6 if "budget" in text else 1.1 if checkpointed else 1.0
            peaks = {
                n: float(_peak(functools.partial(f, x)))
                for n, f in {"eager": eager, "ours": region}.items()
            }
            yield Figure(
                "whole_step",
                _PEAK,
                case + text,
                peaks["ours"] / peaks["eager"],
                Goal("<=", bound),
                {},
                peaks,
            )
            if "budget" not in text:
                timed = {"eager": functools.partial(eager, x), "ours": functools.partial(region, x)}
                times = interleaved(timed, rounds=5 if quick else 15, warm_up=3)
                goal = Goal("<=", 1.0) if text else None
                yield Figure(
                    "whole_step",
                    _STEADY,
                    case + text,
                    times.ratio("ours", "eager"),
                    goal,
                    {},
                    times.medians(),
                )


def _size(quick: bool) -> tuple[int, int, torch.Tensor]:
    layers, width = (2, 64) if quick else (12, 256)
    return layers, width, torch.randn(4, 32 if quick else 128, width)


def _first_calls(layers: int, width: int, x: torch.Tensor) -> tuple[float, float]:
    """Seconds until a step with optimizer state is compiled: two calls."""
    seconds = []
    for make in (st.compile, lambda step: torch.compile(step, backend="aot_eager")):
        step = make(step_of(layers, width))
        start = time.perf_counter()
        step(x)
        step(x)
        seconds.append(time.perf_counter() - start)
        torch._dynamo.reset()
    return seconds[0], seconds[1]


def _peak(function: Callable[[], Any]) -> int:
    now = high = 0
    for change in memory_events(function):
        now += change
        high = max(high, now)
    return high
