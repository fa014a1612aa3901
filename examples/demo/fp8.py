"""The model with FP8 weights: every linear layer's weight is a `ScaledFP8`, float8_e4m3fn data with
one scale."""

from __future__ import annotations

import time

import torch
from torch import nn

from subclass_trace.zoo.scaled_fp8 import ScaledFP8, convert_linears

from . import data
from .model import LanguageModel, Sizes
from .side_by_side import Job, Progress, Result, train


class MasterWeights:
    """AdamW on float32 copies of the FP8 weights, which are quantised anew after every step.

    Updates are far smaller than the steps between FP8 numbers; on the FP8 weights themselves they
    would be lost.
    """

    def __init__(self, model: nn.Module, learning_rate: float) -> None:
        parameters = list(model.parameters())
        self.quantised = [parameter for parameter in parameters if isinstance(parameter, ScaledFP8)]
        self.masters = [parameter.detach().dequantize().clone() for parameter in self.quantised]
        plain = [parameter for parameter in parameters if not isinstance(parameter, ScaledFP8)]
        self.adamw = torch.optim.AdamW([*plain, *self.masters], lr=learning_rate)

    @torch.no_grad()
    def step(self) -> None:
        for master, parameter in zip(self.masters, self.quantised, strict=True):
            master.grad, parameter.grad = parameter.grad, None
        self.adamw.step()
        for master, parameter in zip(self.masters, self.quantised, strict=True):
            parameter.copy_(master)

    def zero_grad(self) -> None:
        self.adamw.zero_grad()


def seconds_of_a_product(sizes: Sizes) -> float:
    """How long torch takes to multiply the activations of a step with a weight, in FP8."""
    rows = torch.randn(sizes.batch * sizes.length, sizes.width).to(torch.float8_e4m3fn)
    weight = torch.randn(4 * sizes.width, sizes.width).to(torch.float8_e4m3fn)
    scale = torch.tensor(1.0)
    start = time.perf_counter()
    torch._scaled_mm(rows, weight.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)
    return time.perf_counter() - start


def worker(job: Job, progress: Progress) -> Result:
    """The whole training, in one process."""

    def make_model() -> nn.Module:
        torch.manual_seed(job.seed)
        return convert_linears(LanguageModel(job.sizes), fp8_weight=True)

    return train(
        job,
        data.load(),
        make_model,
        lambda model: MasterWeights(model, job.learning_rate),
        progress,
    )
