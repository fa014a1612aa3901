"""Further quantised classes: GGUF, low-bit integers whose attribute names depend on the type, optimum-quanto."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("torchao", reason="torchao is not installed: pip install 'subclass_trace[torchao]'")

import subclass_trace as st
from subclass_trace.frontends.dynamo import register

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def through_dynamo(model: Callable[..., Any], fullgraph: bool = True) -> Callable[..., Any]:
    register()
    torch.compiler.reset()
    return torch.compile(model, backend="subclass_trace", fullgraph=fullgraph)


FRONT_ENDS = {"functional": st.compile, "dynamo": through_dynamo}


def step(call: Callable[..., Any], x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    out = call(x)
    out.float().square().sum().backward()
    return [out.detach(), x.grad]


def check(front_end: str, model: torch.nn.Module, x: torch.Tensor) -> Callable[..., Any]:
    compiled = FRONT_ENDS[front_end](model)
    for scale in (1.0, 2.0):
        for e, g in zip(step(model, x * scale), step(compiled, x * scale), strict=True):
            torch.testing.assert_close(g, e)
    return compiled


# ---------------------------------------------------------------------------------------------- GGUF
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_gguf(front_end: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.prototype.quantization.gguf import GGUFWeightOnlyConfig
        from torchao.quantization import quantize_
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 32), torch.nn.GELU(), torch.nn.Linear(32, 8))
    quantize_(model[0], GGUFWeightOnlyConfig())
    assert type(model[0].weight.data).__name__ == "GGUFQuantizedTensor"
    check(front_end, model, torch.randn(4, 256))
    weight = model[0].weight.detach()
    torch.testing.assert_close(FRONT_ENDS[front_end](lambda w: w.dequantize())(weight), weight.dequantize())


# ---------------------------------------------------------------------------------------------- odd numbers of bits
@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("bits", [3, 4, 6])
def test_attribute_names_that_depend_on_the_type(bits: int, front_end: str) -> None:
    """Three bits are stored as two and one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.prototype.dtypes.uintx.uintx_utils import UintxTensor

    torch.manual_seed(0)
    codes = torch.randint(0, 2**bits, (8, 16), dtype=torch.uint8)
    packed = UintxTensor.from_uint8(codes, getattr(torch, f"uint{bits}"))
    names = packed.__tensor_flatten__()[0]
    assert len(names) == {3: 2, 4: 1, 6: 2}[bits]
    compiled = FRONT_ENDS[front_end](lambda t: t.get_plain() * 2)
    for _ in range(2):
        assert torch.equal(compiled(packed), codes * 2)


# ---------------------------------------------------------------------------------------------- optimum-quanto
@pytest.fixture
def quanto() -> Any:
    return pytest.importorskip("optimum.quanto", reason="optimum-quanto is not installed: pip install optimum-quanto")


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("activations", [False, True])
def test_quanto(quanto: Any, activations: bool, front_end: str) -> None:
    """Its contexts are dicts of strings, ``{"size": "[64, 128]"}``; sizes of the weight cannot be symbols."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32))
    quanto.quantize(model, weights=quanto.qint8, activations=quanto.qint8 if activations else None)
    x = torch.randn(16, 64)
    if activations:
        with torch.no_grad(), quanto.Calibration():
            model(x)
    quanto.freeze(model)
    assert type(model[0].weight.data).__name__ == "WeightQBytesTensor"
    model.eval()
    if activations:
        # Dynamo does not look into the constructor of an activation: it breaks the graph there
        compiled = through_dynamo(model, fullgraph=False) if front_end == "dynamo" else st.compile(model)
        with torch.no_grad():
            for scale in (1.0, 0.5):
                torch.testing.assert_close(_dense(compiled(x * scale)), _dense(model(x * scale)))
        return
    for p in model.parameters():
        p.requires_grad_(False)
    check(front_end, model, x)


def _dense(t: torch.Tensor) -> torch.Tensor:
    return t.dequantize() if hasattr(t, "dequantize") and type(t) is not torch.Tensor else t


def test_a_quanto_weight_as_a_value(quanto: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 32))
    quanto.quantize(model, weights=quanto.qint8)
    quanto.freeze(model)
    w = model[0].weight.detach()
    for f in (lambda w: w.dequantize() * 2, lambda w: w.t(), lambda w: w.detach()):
        e, g = f(w), st.compile(f)(w)
        assert type(e) is type(g)
        torch.testing.assert_close(_dense(g), _dense(e))
