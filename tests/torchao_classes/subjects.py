"""Models with torchao's tensors, built on a CPU. Each subject says which class its first weight has, and what trains.

Each of torchao's classes by itself is a row of tests/torch_classes/class_table.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training
from torchao.prototype.quantized_training import int8_weight_only_quantized_training
from torchao.quantization import Int8WeightOnlyConfig, quantize_

WIDTH = 64


def mlp(dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)).to(dtype)


def quantized(config: Callable[[], Any], dtype: torch.dtype) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        model = mlp(dtype)
        quantize_(model, config())
        return model

    return build


def float8_training(recipe: str | None, dtype: torch.dtype) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        emulated = Float8LinearConfig(emulate=True)
        config = emulated if recipe is None else Float8LinearConfig.from_recipe_name(recipe)
        return convert_to_float8_training(mlp(dtype), config=config)

    return build


@dataclass(frozen=True)
class Subject:
    """``weight``: name of the class of the first weight. ``gradient``: what gets one: "inputs" (of the model), "all"."""

    build: Callable[[], nn.Module]
    dtype: torch.dtype
    weight: str
    gradient: str


BF16, F32 = torch.bfloat16, torch.float32
SUBJECTS = {
    "int8 weight only": Subject(quantized(Int8WeightOnlyConfig, BF16), BF16, "Int8Tensor", "inputs"),
    "float8 training, emulated": Subject(float8_training(None, F32), F32, "Tensor", "all"),
    "float8 training, tensorwise": Subject(float8_training("tensorwise", F32), F32, "Tensor", "all"),
    "float8 training, rowwise": Subject(float8_training("rowwise", BF16), BF16, "Tensor", "all"),
    "float8 training, rowwise_with_gw_hp": Subject(float8_training("rowwise_with_gw_hp", BF16), BF16, "Tensor", "all"),
    "int8 weights that train": Subject(
        quantized(int8_weight_only_quantized_training, F32), F32, "Int8QuantizedTrainingLinearWeight", "all"
    ),
}
