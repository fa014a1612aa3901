"""torchao's tensors, compiled, compared with eager: outputs, gradients of inputs and of every parameter."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_features import scaled_mm_by_rows

pytest.importorskip("torchao", reason="torchao is not installed: pip install 'subclass_trace[torchao]'")

with warnings.catch_warnings():  # torchao 0.18 deprecates parts of itself
    warnings.simplefilter("ignore")
    from subjects import SUBJECTS, WIDTH, Subject

import subclass_trace as st
from subclass_trace.frontends.dynamo import register

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]
Call = Callable[..., Any]


def functional(model: Call, backend: str) -> Call:
    return st.compile(model, backend=backend)


def through_dynamo(model: Call, backend: str) -> Call:
    register()
    torch.compiler.reset()
    return torch.compile(model, backend="subclass_trace", fullgraph=True, options={"backend": backend})


SCALED_BY_ROWS = ("float8 training, rowwise", "float8 training, rowwise_with_gw_hp")
FRONT_ENDS = {"functional": functional, "dynamo": through_dynamo}


def step(call: Call, model: torch.nn.Module, subject: Subject, seed: int) -> dict[str, torch.Tensor | None]:
    """One call, and its backward: everything that came out, by name."""
    torch.manual_seed(seed)
    x = torch.randn(32, WIDTH, dtype=subject.dtype, requires_grad=True)
    out = call(x)
    out.float().square().sum().backward()
    rows: dict[str, torch.Tensor | None] = {"out": out.detach(), "gradient of x": x.grad}
    for name, p in model.named_parameters():
        rows[f"gradient of {name}"], p.grad = p.grad, None
    return rows


def compare(expected: dict[str, torch.Tensor | None], got: dict[str, torch.Tensor | None], **tolerance: float) -> None:
    assert list(expected) == list(got)
    for name, value in expected.items():
        found = got[name]
        assert type(value) is type(found), name
        if value is not None:
            torch.testing.assert_close(found, value, msg=lambda m, n=name: f"{n}: {m}", **tolerance)


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.sweep(every=3)
def test_eager_back_end(name: str, front_end: str) -> None:
    subject = SUBJECTS[name]
    if name in SCALED_BY_ROWS and not scaled_mm_by_rows():
        pytest.skip("torch._scaled_mm of this torch takes one scale alone on a CPU")
    eager, model = subject.build(), subject.build()
    weight = model[0].weight
    assert type(weight.data).__name__ == subject.weight
    compiled = FRONT_ENDS[front_end](model, "eager")
    for seed in (1, 2):
        got = step(compiled, model, subject, seed)
        compare(step(eager, eager, subject, seed), got)
    assert (got.get("gradient of 0.weight") is not None) == (subject.gradient == "all")
    if front_end == "functional":
        assert len(compiled.specializations) == 1
        inner = [getattr(m[0].weight, "_data", m[0].weight) for m in (eager, model)]
        assert inner[0].requires_grad == inner[1].requires_grad


@pytest.mark.slow
@pytest.mark.inductor
@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("name", SUBJECTS)
def test_inductor(name: str, front_end: str) -> None:
    subject = SUBJECTS[name]
    eager, model = subject.build(), subject.build()
    compiled = FRONT_ENDS[front_end](model, "inductor")
    expected, got = step(eager, eager, subject, 1), step(compiled, model, subject, 1)
    loose = 1e-4 if subject.dtype is torch.float32 and "float8" not in name else 0.1
    assert list(expected) == list(got)
    for row, value in expected.items():
        found = got[row]
        assert type(value) is type(found), row
        if value is not None:  # fused code rounds elsewhere, and a value may fall into the next quantisation step
            a, b = value.float(), found.float()
            assert (a - b).norm() <= loose * a.norm(), row


# ---------------------------------------------------------------------------------------------- weights as values
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_views_and_copies_of_a_quantised_weight(front_end: str) -> None:
    weight = SUBJECTS["int8 weight only"].build()[0].weight.detach()
    for function in (lambda w: w[:4], lambda w: w.detach(), lambda w: w.clone(), lambda w: w.dequantize()):
        expected, got = function(weight), FRONT_ENDS[front_end](function, "eager")(weight)
        assert type(got) is type(expected)
        if type(got) is not torch.Tensor:
            assert got.requires_grad == expected.requires_grad
            shared = [
                t.qdata.untyped_storage().data_ptr() == weight.qdata.untyped_storage().data_ptr()
                for t in (expected, got)
            ]
            assert shared[0] == shared[1]
            expected, got = expected.dequantize(), got.dequantize()
        torch.testing.assert_close(got, expected)


# ---------------------------------------------------------------------------------------------- what a CPU cannot do
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
