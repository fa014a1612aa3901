"""How to build the classes of the score card: of this package, of torch, torchao and quanto.

Each entry is the keyword arguments of `subject.subject_of`, as text, so that counterexamples run on their own.
"""

from __future__ import annotations

from typing import Any

import torch

from subclass_trace.testing.operands import all_shapes

_BF16 = (torch.bfloat16,)
_F32 = (torch.float32,)
_FLOATS = (torch.float32, torch.float64, torch.bfloat16)
_COARSE = (2e-1, 2e-1)  # one more rounding to eight bits
_MATRICES = [(m, n) for m in (2, 3, 4, 1) for n in (2, 4, 6)]


_BLOCKS = [(m, n) for m in (32, 64) for n in (32, 64)]

_FAKE_MESH = """\
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
if not dist.is_initialized():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
mesh = init_device_mesh("cpu", (2,))"""

_HALF = """\
from torch.sparse._semi_structured_conversions import sparse_semi_structured_from_dense_cutlass as compress
from torch.sparse._semi_structured_conversions import sparse_semi_structured_to_dense_cutlass as expand
from torch.sparse._semi_structured_conversions import _sparse_semi_structured_tile as prune
library = torch.library.Library("aten", "IMPL")
library.impl("_sparse_semi_structured_mm", lambda p, m, b, out_dtype=None: expand(p, m) @ b, "CPU")
def make_half(dense):
    dense = prune(dense.clone())
    (p, m), (pt, mt) = compress(dense), compress(dense.t().contiguous())
    return SparseSemiStructuredTensorCUTLASS(
        dense.shape, packed=p, meta=m, packed_t=pt, meta_t=mt, compressed_swizzled_bitmask=None)"""

_OWN = "subclass_trace.zoo."
_TEST = "torch.testing._internal."
_AO = "torchao."
_AOQ = "torchao.quantization"

KNOWN: dict[str, dict[str, Any]] = {
    _OWN + "two.TwoTensor": {"factory": "TwoTensor({0}, {1})", "to_dense": "{0}.a"},
    _OWN + "masked.Masked": {"factory": "Masked({0}, {0} > 1)", "dtypes": _FLOATS},
    _OWN + "optional_bias.OptionalBias": {"factory": "OptionalBias({0}, {1})", "dtypes": _FLOATS},
    _OWN + "int4.PackedInt4": {
        "factory": "PackedInt4.quantize({0})",
        "to_dense": "{0}.dequantize()",
        "sizes": _MATRICES,
        "dtypes": _F32,
        "tolerance": (0.5, 0.5),
    },
    _OWN + "scaled_fp8.ScaledFP8": {
        "factory": "to_fp8({0})",
        "to_dense": "{0}.dequantize()",
        "imports": ("from subclass_trace.zoo import to_fp8",),
        "dtypes": _FLOATS,
        "tolerance": _COARSE,
    },
    _OWN + "constant.Constant": {
        "factory": "Constant(2.0, {0}.shape, dtype={0}.dtype, stride={0}.stride())",
        "dtypes": _FLOATS,
    },
    _TEST + "two_tensor.TwoTensor": {"factory": "TwoTensor({0}, {1})", "to_dense": "{0}.a"},
    _TEST + "subclasses.WrapperSubclass": {"factory": "WrapperSubclass({0})", "to_dense": "{0}.a"},
    _TEST + "custom_tensor.ConstantExtraMetadataTensor": {
        "factory": "ConstantExtraMetadataTensor({0})",
        "to_dense": "{0}.elem",
    },
    _TEST + "custom_tensor.CustomTensorPlainOut": {"factory": "CustomTensorPlainOut({0}, {1})"},
    _TEST + "common_subclass.SubclassWithTensorFactory": {
        "factory": "SubclassWithTensorFactory({0})",
        "to_dense": "{0}.src",
        "dtypes": _F32,  # it multiplies others by a float32 tensor
    },
    "torch._subclasses.complex_tensor._core.ComplexTensor": {"factory": "ComplexTensor({0}, {1})", "dtypes": _F32},
    "torch.distributed.tensor.DTensor": {
        "factory": "DTensor.from_local({0}, mesh, [Replicate()])",
        "to_dense": "{0}.to_local()",
        "imports": ("from torch.distributed.tensor import Replicate",),
        "setup": _FAKE_MESH,
        "sizes": [
            size for size in all_shapes() if 0 not in size
        ],  # a view of one with a side of 0 does not come to an end in torch 2.13
    },
    "torch.distributed._functional_collectives.AsyncCollectiveTensor": {
        "factory": "AsyncCollectiveTensor({0})",
        "to_dense": "{0}.elem",
    },
    "torch.nested._internal.nested_tensor.NestedTensor": {
        "factory": "torch.nested.nested_tensor([{0}, {0}[:1]], layout=torch.jagged)",
        "sizes": [(2, 3), (3, 2), (4, 1)],
        "dtypes": _FLOATS,
    },
    "torch.sparse.semi_structured.SparseSemiStructuredTensorCUTLASS": {
        "factory": "make_half({0})",
        "imports": ("from torch.sparse import SparseSemiStructuredTensorCUTLASS",),
        "setup": _HALF,
        "sizes": [(64, 64), (32, 64)],
        "dtypes": _BF16,
    },
    _AO + "quantization.quantize_.workflows.int8.int8_tensor.Int8Tensor": {
        "factory": "Int8Tensor.from_hp({0}, granularity=PerRow())",
        "imports": (f"from {_AOQ} import PerRow",),
    },
    _AO + "quantization.quantize_.workflows.float8.float8_tensor.Float8Tensor": {
        "factory": "Float8Tensor.from_hp({0}, granularity=PerRow())",
        "imports": (f"from {_AOQ} import PerRow",),
    },
    _AO + "quantization.quantize_.workflows.intx.intx_unpacked_to_int8_tensor.IntxUnpackedToInt8Tensor": {
        "factory": "IntxUnpackedToInt8Tensor.from_hp({0}, (1, 32), torch.int4)"
    },
    _AO + "float8.float8_training_tensor.Float8TrainingTensor": {
        "factory": "hp_tensor_to_float8_dynamic({0}, torch.float8_e4m3fn, config, gemm_input_role=GemmInputRole.INPUT)",
        "imports": (
            "from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic",
            "from torchao.float8.float8_training_tensor import GemmInputRole, LinearMMConfig, ScaledMMConfig",
        ),
        "setup": "config = LinearMMConfig(*[ScaledMMConfig(True, True, False, False)] * 3)",
        "to_dense": "{0}.to_original_precision()",
        "dtypes": (torch.float32, torch.bfloat16),
    },
    _AO + "quantization.quantize_.workflows.nf4.nf4_tensor.NF4Tensor": {
        "factory": "to_nf4({0}, 32, 2)",
        "imports": ("from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import to_nf4",),
        "to_dense": "{0}.get_original_weight()",
    },
    _AO + "prototype.mx_formats.mx_tensor.MXTensor": {"factory": "MXTensor.to_mx({0}, torch.float8_e4m3fn, 32)"},
    _AO + "prototype.mx_formats.nvfp4_tensor.NVFP4Tensor": {"factory": "NVFP4Tensor.to_nvfp4({0})"},
    _AO + "prototype.quantized_training.int8.Int8QuantizedTrainingLinearWeight": {
        "factory": "Int8QuantizedTrainingLinearWeight.from_float({0})"
    },
    _AO + "prototype.quantized_training.int8_mixed_precision.Int8MixedPrecisionTrainingLinearWeight": {
        "factory": "Int8MixedPrecisionTrainingLinearWeight({0}, Int8MixedPrecisionTrainingConfig())",
        "to_dense": "{0}._data",
        "imports": (
            "from torchao.prototype.quantized_training.int8_mixed_precision import Int8MixedPrecisionTrainingConfig",
        ),
    },
    _AO + "optim.subclass_8bit.OptimState8bit": {
        "factory": "OptimState8bit.zeros({0}.shape, True, 32).copy_({0})",
        "to_dense": "{0}.dequantize()",
    },
    _AO + "optim.subclass_4bit.OptimState4bit": {
        "factory": "OptimState4bit.zeros({0}.shape, True, 32).copy_({0})",
        "to_dense": "{0}.dequantize()",
    },
    _AO + "optim.subclass_fp8.OptimStateFp8": {
        "factory": "OptimStateFp8.zeros({0}.shape, 32).copy_({0})",
        "to_dense": "{0}.dequantize()",
    },
    "optimum.quanto.tensor.weights.qbytes.WeightQBytesTensor": {
        "factory": "quantize_weight({0}, qint8, 0, {0}.abs().amax(dim=1, keepdim=True) / 127)",
        "imports": ("from optimum.quanto import qint8, quantize_weight",),
    },
}

for _name, _options in KNOWN.items():
    if _name.startswith((_AO, "optimum.")):
        _options.setdefault("sizes", _BLOCKS)
        _options.setdefault("dtypes", (torch.float32,) if ".optim." in _name else _BF16)
        _options.setdefault("tolerance", _COARSE)
        if "to_dense" not in _options:
            _options["to_dense"] = "{0}.dequantize()"
