"""A small byte-level transformer. Nothing in it knows about wrappers: they come in as
parameters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Sizes:
    """What decides the model's size and the batch's."""

    vocabulary: int = 256
    width: int = 96
    heads: int = 4
    layers: int = 2
    length: int = 64
    batch: int = 8


class Attention(nn.Module):
    """Causal attention. How many heads there are is read off the projections: a process may have a
    part."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.head_width = sizes.width // sizes.heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(sizes.width, sizes.width, bias=False) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            project(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two linear layers around a GELU."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.up = nn.Linear(sizes.width, 4 * sizes.width, bias=False)
        self.down = nn.Linear(4 * sizes.width, sizes.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    """Attention and feed-forward, each normalised before and added after."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(sizes.width), Attention(sizes)
        self.feed_forward_norm, self.feed_forward = nn.LayerNorm(sizes.width), FeedForward(sizes)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class LanguageModel(nn.Module):
    """Bytes in, logits of the next byte out."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.token = nn.Embedding(sizes.vocabulary, sizes.width)
        self.position = nn.Parameter(0.02 * torch.randn(sizes.length, sizes.width))
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss_fn(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    """The region that is compiled: forward and loss, a plain scalar."""
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
