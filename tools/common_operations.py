"""Count which operations training steps use, and write subclass_trace/testing/common_operations.txt.

    python -m tools.common_operations

One training step (forward, loss, backward, clipping, optimizer) of each model in MODELS runs on dense tensors. Counted are
the calls of torch functions and methods (what `__torch_function__` sees) and the operations below autograd, those of the
backward and the optimizer included (what `__torch_dispatch__` sees), under the names of OpInfos. An operation that a
wrapper class lacks matters the more, the more models use it, and the more often: that is the order in which reports name
what is missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import subclass_trace
from subclass_trace._torch.testing import opinfo_database

FILE = Path(subclass_trace.__file__).parent / "testing" / "common_operations.txt"


# ------------------------------------------------------------------------------------------------------------- models
class Decoder(nn.Module):
    """A language model as they are today: rotary positions, grouped causal attention, RMSNorm, a gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 32), nn.Linear(32, 50, bias=False)
        self.q, self.kv, self.o = nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False), nn.Linear(32, 32)
        self.gate, self.up, self.down = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 32)
        self.norms = nn.ModuleList(nn.RMSNorm(32) for _ in range(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.embed(ids)
        for _ in range(2):
            x = x + self.attend(self.norms[0](x))
            h = self.norms[1](x)
            x = x + self.down(F.silu(self.gate(h)) * self.up(h))
        out: torch.Tensor = self.head(self.norms[2](x))
        return out

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        """Four query heads, two key and value heads."""
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, 4, 8).transpose(1, 2)
        k, v = (t.view(batch, length, 2, 8).transpose(1, 2) for t in self.kv(x).chunk(2, dim=-1))
        angles = torch.outer(torch.arange(length), 1 / 10000 ** (torch.arange(0, 8, 2) / 8))
        angles = torch.cat([angles, angles], dim=-1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        q, k = (t * cos + torch.cat([-t[..., 4:], t[..., :4]], dim=-1) * sin for t in (q, k))
        k, v = (t[:, :, None].expand(batch, 2, 2, length, 8).reshape(batch, 4, length, 8) for t in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(out.transpose(1, 2).contiguous().view(batch, length, 32))


class Written(nn.Module):
    """Attention written out, with a mask, dropout and learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(50, 32), nn.Parameter(torch.zeros(8, 32))
        self.qkv, self.out, self.norm = nn.Linear(32, 96), nn.Linear(32, 50), nn.LayerNorm(32)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.embed(ids) + self.places[: ids.shape[1]]
        q, k, v = self.qkv(self.norm(x)).split(32, dim=2)
        scores = torch.matmul(q, k.transpose(-2, -1)) / 32**0.5
        mask = torch.tril(torch.ones(ids.shape[1], ids.shape[1])) == 0
        weights = F.dropout(F.softmax(scores.masked_fill(mask, float("-inf")), dim=-1), 0.1, self.training)
        out: torch.Tensor = self.out(F.gelu(x + torch.matmul(weights, v)))
        return out


class Residual(nn.Module):
    """A convolutional network with batch norm and a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norms, self.head = nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(8)]), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = F.relu(self.norms[0](self.first(x)))
        x = F.max_pool2d(x, 2)
        x = F.relu(self.norms[1](self.second(x)) + x)
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class UNet(nn.Module):
    """Down, up, group norm and SiLU, as in diffusion models."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.down, self.leave = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, 2, 1), nn.Conv2d(16, 3, 1)
        self.norm, self.time = nn.GroupNorm(2, 8), nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The noise."""
        time = torch.stack([f(torch.arange(1.0, 3.0)) for f in (torch.sin, torch.cos)], dim=-1).flatten().unsqueeze(0)
        h = self.enter(x)
        low = F.silu(self.norm(self.down(h) + self.time(time)[:, :, None, None]))
        up = F.interpolate(low, scale_factor=2.0, mode="nearest")
        return self.leave(torch.cat([h, up], dim=1))


class Gated(nn.Module):
    """Recurrence, written with gates, and a mean over time."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(16, 16), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        state = (torch.zeros(x.shape[0], 16), torch.zeros(x.shape[0], 16))
        seen = []
        for step in x.unbind(1):
            state = self.cell(step, state)
            seen.append(state[0])
        return self.head(torch.tanh(torch.stack(seen, dim=1).mean(dim=1)))


def ids() -> torch.Tensor:
    """Two sentences."""
    return torch.arange(16).reshape(2, 8) % 50


def classes(out: torch.Tensor) -> torch.Tensor:
    """Cross entropy with some classes."""
    flat = out.reshape(-1, out.shape[-1])
    return F.cross_entropy(flat, torch.arange(flat.shape[0]) % flat.shape[1])


def zeros(out: torch.Tensor) -> torch.Tensor:
    """Distance from zeros."""
    return F.mse_loss(out, torch.zeros_like(out))


#: name -> model, its input, its loss
MODELS: dict[
    str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]
] = {
    "decoder": (Decoder, ids, classes),
    "written attention": (Written, ids, classes),
    "encoder": (lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), lambda: torch.randn(2, 8, 32), zeros),
    "pre-norm encoder": (
        lambda: nn.TransformerEncoderLayer(32, 4, 64, activation="gelu", norm_first=True),
        lambda: torch.randn(8, 2, 32),
        zeros,
    ),
    "residual": (Residual, lambda: torch.randn(2, 3, 8, 8), classes),
    "unet": (UNet, lambda: torch.randn(2, 3, 8, 8), zeros),
    "gated": (Gated, lambda: torch.randn(2, 4, 16), classes),
}


# ----------------------------------------------------------------------------------------------------------- counting
def step(model: nn.Module, x: torch.Tensor, loss: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """One training step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    loss(model(x)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
    optimizer.step()
    optimizer.zero_grad()


def counts() -> dict[str, tuple[int, int]]:
    """OpInfo -> in how many models a training step uses it, and how often in all."""
    found: Counter[str] = Counter()
    models: Counter[str] = Counter()
    functions, operations = _names()

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found[functions.get(func, "")] += 1
            return func(*args, **(kwargs or {}))

    class Operations(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found[operations.get(func.overloadpacket.__name__.rstrip("_"), "")] += 1
            return func(*args, **(kwargs or {}))

    for build, example, loss in MODELS.values():
        torch.manual_seed(0)
        model, x, before = build(), example(), found.copy()
        with Functions(), Operations():
            step(model, x, loss)
        models.update((found - before).keys())
    del found[""]
    return {name: (models[name], count) for name, count in found.items()}


def _names() -> tuple[dict[Any, str], dict[str, str]]:
    """The OpInfo of a Python function, and of an operation below autograd."""
    functions: dict[Any, str] = {}
    operations: dict[str, str] = {}
    for name, op in opinfo_database().items():
        kinds = (op.op, op.method_variant, op.inplace_variant, op.operator_variant, op.inplace_operator_variant)
        for function in (*kinds, *(a.op for a in op.aliases)):
            functions.setdefault(function, name)
        operations.setdefault(op.aten_name, name)
    return functions, operations


def text() -> str:
    """The file: name, models, uses; the most used first."""
    head = (
        f"# OpInfo, how many of the {len(MODELS)} models of tools/common_operations.py use it in a training step, "
        f"how often (torch {torch.__version__.partition('+')[0]})"
    )
    rows = sorted(counts().items(), key=lambda row: (-row[1][0], -row[1][1], row[0]))
    return "\n".join([head, *(f"{name} {models} {count}" for name, (models, count) in rows)]) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    print(f"wrote {FILE}")
