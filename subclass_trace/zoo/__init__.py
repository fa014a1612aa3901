"""Small, complete wrapper subclasses: examples to start from, and the subjects of this package's
tests.

Read `two.py` first. Each file is one idea.
"""

from .constant import Constant  # one number everywhere, no inner tensors
from .delayed_fp8 import (
    DelayedFP8Linear,  # FP8Linear with scales from the steps before
    advance_gradient_scales,  # after a backward: those of the gradients
)
from .int4 import PackedInt4  # (m, n) floating outside, (m, n // 2) bytes and row scales inside
from .masked import Masked  # data and a bool mask, closed under pointwise operations
from .optional_bias import OptionalBias  # an inner tensor that may be absent
from .scaled_fp8 import (
    FP8Linear,  # nn.Linear in FP8
    ScaledFP8,  # FP8 data and its scale
    convert_linears,  # swap every nn.Linear of a module
    fp8_linear,  # F.linear with its three matmuls in FP8
    to_fp8,  # differentiable quantisation
)
from .two import TwoTensor  # every operation on both inner tensors

__all__ = [
    "Constant",
    "DelayedFP8Linear",
    "FP8Linear",
    "Masked",
    "OptionalBias",
    "PackedInt4",
    "ScaledFP8",
    "TwoTensor",
    "advance_gradient_scales",
    "convert_linears",
    "fp8_linear",
    "to_fp8",
]
