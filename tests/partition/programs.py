"""Random differentiable programs: matrix products, views, reductions, dropout, in-place operations, several outputs."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor
N = 8

STEPS: list[Callable[[Tensor, Tensor, Tensor], Tensor]] = [
    lambda a, b, c: a + b,
    lambda a, b, c: a * b,
    lambda a, b, c: a.sin(),
    lambda a, b, c: a.relu() * b,
    lambda a, b, c: (a @ b) / N,
    lambda a, b, c: a.softmax(-1),
    lambda a, b, c: F.layer_norm(a, (N,)),
    lambda a, b, c: a.t(),
    lambda a, b, c: torch.cat([a, b])[:N],
    lambda a, b, c: a.tanh().sum(-1, keepdim=True) * b,
    lambda a, b, c: a.reshape(-1).view(N, N),
    lambda a, b, c: F.gelu(a),
    lambda a, b, c: torch.where(a > 0, b, c),
    lambda a, b, c: a.chunk(2, 0)[0].repeat(2, 1),
    lambda a, b, c: a.cumsum(0) / N,
    lambda a, b, c: F.dropout(a.contiguous(), 0.3),  # the functional draw of strided memory has another order
    lambda a, b, c: a.mean(0) + b,
    lambda a, b, c: (a + b).tanh() * (b - c),
    lambda a, b, c: a.clone().mul_(b),
    lambda a, b, c: a.sort(-1)[0],
    lambda a, b, c: a.expand(2, N, N)[1] * c,
    lambda a, b, c: a.detach() * b,
    lambda a, b, c: torch.addmm(a, b, c) / N,
    lambda a, b, c: a.to(torch.bfloat16).to(torch.float32),
    lambda a, b, c: a.unbind(0)[1] + b,
    lambda a, b, c: torch.sigmoid(a).unsqueeze(0).transpose(1, 2).squeeze(0),
]
_DROPOUT = 15


def program(seed: int, steps: int = 60, draws: bool = True) -> tuple[Callable[..., Any], Callable[[], list[Tensor]]]:
    """A function of four tensors, and what makes them: three require grad. ``draws``: with random numbers."""
    choose = random.Random(seed)
    plan = [
        (choose.randrange(len(STEPS)), *[choose.random() for _ in range(3)]) for _ in range(choose.randrange(4, steps))
    ]

    def function(*inputs: Tensor) -> tuple[Tensor, ...]:
        pool = list(inputs)

        def pick(u: float) -> Tensor:  # late values more often
            return pool[int(u**0.5 * len(pool)) if u < 0.7 else int(u * len(pool))]

        for step, u, v, w in plan:
            if draws or step != _DROPOUT:
                pool.append(STEPS[step](pick(u), pick(v), pick(w)))
        return pool[-1], (pool[-2] * pool[len(pool) // 2]).sum(), pool[-3]

    def make() -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return [torch.randn(N, N, generator=generator).requires_grad_(k < 3) for k in range(4)]

    return function, make
