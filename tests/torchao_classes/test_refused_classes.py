"""torchao's classes that cannot be compiled, on this machine or at all: the error says which class and what to do."""

from __future__ import annotations

import traceback
import warnings

import pytest
import torch

pytest.importorskip("torchao", reason="torchao is not installed: pip install 'subclass_trace[torchao]'")

import subclass_trace as st
from subclass_trace.errors import DataDependentError

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def test_an_observer_that_counts_batches() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.prototype.gptq.observer import GPTQObserverTensor

    weight = GPTQObserverTensor.from_hp(torch.randn(64, 64))
    x = torch.randn(2, 64)
    with pytest.raises(DataDependentError, match="depend on the values"):
        st.compile(torch.nn.functional.linear)(x, weight)
    assert int(weight.total_batches) == 0  # nothing was observed
    torch.nn.functional.linear(x, weight)
    assert int(weight.total_batches) == 1


def test_a_kernel_that_the_cpu_does_not_have() -> None:
    """The fake kernel of ``_scaled_mm`` takes NVFP4's block scales; that of the CPU does not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, QuantizeTensorToNVFP4Kwargs

    kwargs = QuantizeTensorToNVFP4Kwargs(use_triton_kernel=False)
    weight = NVFP4Tensor.to_nvfp4(torch.randn(64, 64, dtype=torch.bfloat16), act_quant_kwargs=kwargs)
    x = torch.randn(32, 64, dtype=torch.bfloat16)

    def project(x, w):
        return torch.nn.functional.linear(x, w)

    with pytest.raises(Exception) as eager:
        project(x, weight)
    with pytest.raises(type(eager.value)) as caught:
        st.compile(project)(x, weight)
    assert str(caught.value).splitlines()[0] == str(eager.value).splitlines()[0]
    found = "".join(traceback.format_exception(caught.value))
    assert "# aten._scaled_mm.default, " in found and "nvfp4_tensor.py" in found
