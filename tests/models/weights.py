"""What the linear layers of a model may have for weights: pairs, int8, FP8. The head, which may be tied, stays plain."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers.pytorch_utils import Conv1D

from subclass_trace.zoo import TwoTensor
from subclass_trace.zoo.scaled_fp8 import ScaledFP8, to_fp8

HEADS = ("lm_head", "cls", "classifier")
TORCHAO = ("int8", "float8")  # the kinds that need torchao


def _inner_linear(module: torch.nn.Module, name: str) -> bool:
    return isinstance(module, torch.nn.Linear) and name.split(".")[0] not in HEADS


def linear_layers(model: torch.nn.Module) -> list[torch.nn.Linear]:
    """The linear layers, but for the head. There are some."""
    found = [m for n, m in model.named_modules() if _inner_linear(m, n)]
    assert found
    return found


def without_conv1d(model: torch.nn.Module) -> torch.nn.Module:
    """The same model with `torch.nn.Linear` where GPT-2 has its own layer, as quantisers want it."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Conv1D):
                layer = torch.nn.Linear(*child.weight.shape)
                layer.weight, layer.bias = torch.nn.Parameter(child.weight.detach().t().contiguous()), child.bias
                setattr(parent, name, layer)
    return model


def as_pairs(model: torch.nn.Module) -> torch.nn.Module:
    """`TwoTensor` parameters."""
    for layer in linear_layers(model):
        w = layer.weight.detach()
        layer.weight = torch.nn.Parameter(TwoTensor(w, w * 1.25))
    return model


def as_int8(model: torch.nn.Module) -> torch.nn.Module:
    """torchao's `Int8Tensor`, which does not train; everything else does."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(model, Int8WeightOnlyConfig(), filter_fn=_inner_linear)
    assert all(type(layer.weight.data).__name__ == "Int8Tensor" for layer in linear_layers(model))
    return model


def with_float8_layers(model: torch.nn.Module) -> torch.nn.Module:
    """torchao's FP8 training: plain parameters, whose FP8 wrappers live inside the region."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig(emulate=True)
    convert_to_float8_training(model, config=config, module_filter_fn=_inner_linear)
    assert all(type(layer).__name__ == "Float8Linear" for layer in linear_layers(model))
    return model


def as_fp8(model: torch.nn.Module) -> torch.nn.Module:
    """`ScaledFP8` parameters, which train."""
    for layer in linear_layers(model):
        layer.weight = torch.nn.Parameter(to_fp8(layer.weight.detach()))
    assert all(isinstance(layer.weight, ScaledFP8) for layer in linear_layers(model))
    return model


CONVERT: dict[str, Callable[[torch.nn.Module], torch.nn.Module]] = {
    "plain": lambda model: model,
    "pairs": as_pairs,
    "int8": as_int8,
    "float8": with_float8_layers,
    "fp8": as_fp8,
}


def convert(model: torch.nn.Module, kind: str) -> torch.nn.Module:
    """``model``, whose linear layers get weights of that kind."""
    return CONVERT[kind](model if kind == "plain" else without_conv1d(model))
