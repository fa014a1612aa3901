"""Models with torchao's tensors, built on a CPU. Each subject says which class its first weight has, and what trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torchao.prototype.quantized_training as low_precision
from torch import nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training
from torchao.quantization import (
    Float8WeightOnlyConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    PerGroup,
    PerRow,
    quantize_,
)

WIDTH = 64


def mlp(dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)).to(dtype)


def each_weight(model: nn.Module, make: Callable[[torch.Tensor], torch.Tensor], trains: bool) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight = nn.Parameter(make(module.weight.detach()), requires_grad=trains)
    return model


def quantized(config: Callable[[], Any], dtype: torch.dtype) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        model = mlp(dtype)
        quantize_(model, config())
        return model

    return build


def float8_dynamic() -> nn.Module:
    """The public configuration refuses a CPU; the class itself does not."""
    from torchao.float8.inference import Float8MMConfig
    from torchao.quantization import Float8Tensor
    from torchao.quantization.quantize_.common import KernelPreference
    from torchao.quantization.quantize_.workflows import QuantizeTensorToFloat8Kwargs

    how = {
        "granularity": PerRow(),
        "mm_config": Float8MMConfig(use_fast_accum=True),
        "kernel_preference": KernelPreference.TORCH,
    }
    activations = QuantizeTensorToFloat8Kwargs(**how)
    return each_weight(
        mlp(torch.bfloat16), lambda w: Float8Tensor.from_hp(w, act_quant_kwargs=activations, **how), trains=False
    )


def nf4() -> nn.Module:
    from torchao.quantization.quantize_.workflows import to_nf4

    return each_weight(mlp(torch.float32), lambda w: to_nf4(w, 32, 2), trains=False)


def mx_inference() -> nn.Module:
    from torchao.prototype.mx_formats import MXDynamicActivationMXWeightConfig
    from torchao.quantization.quantize_.common import KernelPreference

    model = mlp(torch.bfloat16)
    float8 = torch.float8_e4m3fn
    config = MXDynamicActivationMXWeightConfig(
        activation_dtype=float8, weight_dtype=float8, kernel_preference=KernelPreference.EMULATED
    )
    quantize_(model, config)
    return model


def mx_training() -> nn.Module:
    from torchao.prototype.moe_training.config import MXFP8TrainingOpConfig
    from torchao.prototype.moe_training.tensor import MXFP8TrainingWeightWrapperTensor
    from torchao.quantization.quantize_.common import KernelPreference

    config = MXFP8TrainingOpConfig(kernel_preference=KernelPreference.EMULATED)
    return each_weight(mlp(torch.bfloat16), lambda w: MXFP8TrainingWeightWrapperTensor(w, config), trains=True)


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
    "int8 dynamic": Subject(quantized(Int8DynamicActivationInt8WeightConfig, BF16), BF16, "Int8Tensor", "none"),
    "intx weight only": Subject(
        quantized(lambda: IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)), F32),
        F32,
        "IntxUnpackedToInt8Tensor",
        "inputs",
    ),
    "float8 weight only": Subject(quantized(Float8WeightOnlyConfig, BF16), BF16, "Float8Tensor", "inputs"),
    "float8 dynamic": Subject(float8_dynamic, BF16, "Float8Tensor", "none"),
    "nf4": Subject(nf4, F32, "NF4Tensor", "inputs"),
    "mx inference": Subject(mx_inference, BF16, "MXTensor", "none"),
    "mx training": Subject(mx_training, BF16, "MXFP8TrainingWeightWrapperTensor", "all"),
    "float8 training, emulated": Subject(float8_training(None, F32), F32, "Tensor", "all"),
    "float8 training, tensorwise": Subject(float8_training("tensorwise", F32), F32, "Tensor", "all"),
    "float8 training, rowwise": Subject(float8_training("rowwise", BF16), BF16, "Tensor", "all"),
    "float8 training, rowwise_with_gw_hp": Subject(float8_training("rowwise_with_gw_hp", BF16), BF16, "Tensor", "all"),
    "int8 weights that train": Subject(
        quantized(low_precision.int8_weight_only_quantized_training, F32),
        F32,
        "Int8QuantizedTrainingLinearWeight",
        "all",
    ),
    "int8 mixed precision": Subject(
        quantized(low_precision.int8_mixed_precision_training, F32),
        F32,
        "Int8MixedPrecisionTrainingLinearWeight",
        "all",
    ),
    "bitnet": Subject(quantized(low_precision.bitnet_training, F32), F32, "BitNetTrainingLinearWeight", "all"),
}
