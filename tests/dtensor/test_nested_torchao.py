"""torchao's wrappers inside of DTensors: FP8 tensor parallelism, and the deepest nesting that occurs by itself."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from spmd import check, values
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import parallelize_module

pytest.importorskip("torchao", reason="torchao is not installed: pip install 'subclass_trace[torchao]'")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    from torchao.float8.float8_linear import LinearMMConfig
    from torchao.float8.float8_tensor_parallel import Float8ColwiseParallel, Float8RowwiseParallel
    from torchao.float8.fsdp_utils import WeightWithDynamicFloat8CastTensor
    from torchao.quantization import Float8Tensor

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def test_fp8_tensor_parallel_training(mesh) -> None:
    """Inside the region: a DTensor of a Float8TrainingTensor. Parameters and gradients are DTensors."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32, bias=False), nn.GELU(), nn.Linear(32, 16, bias=False))
    convert_to_float8_training(model, config=Float8LinearConfig(emulate=True))
    plan = {"0": Float8ColwiseParallel(), "2": Float8RowwiseParallel()}
    parallelize_module(model, mesh, plan, src_data_rank=None)

    def make():
        model.zero_grad()
        x = values(16, 16).requires_grad_()
        return (model, x), [x, *model.parameters()]

    region = check(lambda model, x: model(x) * 2, make)
    assert type(model[0].weight) is DTensor
    operations = {str(n.target) for n in region.specializations[0].graphs.forward.graph.nodes}
    assert "_c10d_functional.all_reduce.default" in operations


def test_a_quantised_weight_in_a_dtensor(mesh) -> None:
    def make():
        inner = Float8Tensor.from_hp(values(8, 16, seed=1).bfloat16())
        w = DTensor.from_local(inner, mesh, [Shard(0)], run_check=False)
        x = DTensor.from_local(values(4, 16).bfloat16(), mesh, [Replicate()], run_check=False)
        return (x, w), ()

    region = check(lambda x, w: w.to_local().dequantize() @ x.to_local().t(), make, backward=False)
    assert region.specializations[0].plan.inputs.leaf_count == 3  # x, codes, scale


def test_the_deepest_nesting(mesh) -> None:
    """FSDP shards the weights of FP8 training: DTensor over torchao's wrapper over dense rows. Here with one more between."""
    from subclass_trace.zoo import TwoTensor

    mm = LinearMMConfig()

    def cast(seed: int) -> torch.Tensor:
        return WeightWithDynamicFloat8CastTensor(values(4, 8, seed=seed), mm, torch.float32)

    def make():
        inner = TwoTensor(cast(1), cast(2))
        w = DTensor.from_local(inner, mesh, [Shard(0)], run_check=False).requires_grad_()
        return (w,), (w,)

    region = check(lambda w: (w * 2).sin(), make)
    (row,) = region.specializations[0].plan.inputs.rows
    depth, spec = 0, row.spec
    while hasattr(spec, "inners"):
        depth, spec = depth + 1, spec.inners[0]
    assert depth == 3


def test_sharded_rows_of_fp8_training(mesh) -> None:
    def make():
        w = DTensor.from_local(
            WeightWithDynamicFloat8CastTensor(values(4, 8, seed=1), LinearMMConfig(), torch.float32),
            mesh,
            [Shard(0)],
            run_check=False,
        ).requires_grad_()
        x = DTensor.from_local(values(2, 8), mesh, [Replicate()], run_check=False).requires_grad_()
        return (x, w), (x, w)

    check(F.linear, make)
