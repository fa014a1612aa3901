"""torchao's tensors, compiled, compared with eager: outputs, gradients of inputs and of every parameter."""

from __future__ import annotations

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


SCALED_BY_ROWS = ("float8 dynamic", "float8 training, rowwise", "float8 training, rowwise_with_gw_hp")
FRONT_ENDS = {"functional": functional, "dynamo": through_dynamo}


def step(call: Call, model: torch.nn.Module, subject: Subject, seed: int) -> dict[str, torch.Tensor | None]:
    """One call, and its backward if the subject has one: everything that came out, by name."""
    torch.manual_seed(seed)
    x = torch.randn(32, WIDTH, dtype=subject.dtype, requires_grad=subject.gradient != "none")
    out = call(x)
    rows: dict[str, torch.Tensor | None] = {"out": out.detach(), "requires_grad": torch.tensor(out.requires_grad)}
    if subject.gradient != "none":
        out.float().square().sum().backward()
        rows["gradient of x"] = x.grad
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
        # A step of mx training leaves an inner tensor of the weight with a history: such a call runs eagerly.
        assert len(compiled.specializations) == (0 if name == "mx training" else 1)
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
    if name == "mx inference":  # inductor has no CPU code for the type of its scales, from torch.compile either
        with pytest.raises(Exception, match="float8_e8m0fnu"):
            step(compiled, model, subject, 1)
        return
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


# ---------------------------------------------------------------------------------------------- optimizer states
def _state(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    from torchao.optim.subclass_4bit import OptimState4bit
    from torchao.optim.subclass_8bit import OptimState8bit
    from torchao.optim.subclass_fp8 import OptimStateFp8

    make = {
        "8bit": lambda: OptimState8bit.zeros((16, 256), True, 256),
        "4bit": lambda: OptimState4bit.zeros((16, 256), True, 128),
        "fp8": lambda: OptimStateFp8.zeros((16, 256), 256),
    }[kind]
    torch.manual_seed(0)
    return make(), torch.randn(16, 256)


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("kind", ["8bit", "4bit", "fp8"])
def test_an_optimizer_state_is_changed_in_place(kind: str, front_end: str) -> None:
    def update(state, gradient):
        moved = state.dequantize().lerp(gradient, 0.5)
        state.copy_(moved)
        return moved * 2

    expected, got = _state(kind), _state(kind)
    codes = got[0].codes
    compiled = FRONT_ENDS[front_end](update, "eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(*got), update(*expected))
        torch.testing.assert_close(got[0].dequantize(), expected[0].dequantize())
    assert got[0].codes is codes
    assert got[0].dequantize().abs().sum() > 0


# ---------------------------------------------------------------------------------------------- values as numbers
@pytest.mark.filterwarnings("ignore:index_reduce:UserWarning")
def test_a_class_that_reads_a_number_of_its_inner_tensors() -> None:
    from torchao.prototype.quantization.codebook import CodebookQuantizedTensor

    torch.manual_seed(0)
    weight = CodebookQuantizedTensor.from_float(torch.randn(8, 8), [1, 8], torch.uint8, scale_block_size=8)
    torch.testing.assert_close(st.compile(lambda w: w.dequantize())(weight), weight.dequantize())
