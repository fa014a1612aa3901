"""Hugging Face models: a training step and inference as in eager, with plain, TwoTensor, int8 and float8 weights.

By default the functional front end runs every model, and Dynamo, which takes ten times as long to trace them, one; the
rest is among the slow tests.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")

import tiny

import subclass_trace as st
from subclass_trace.frontends.dynamo import register
from subclass_trace.zoo import TwoTensor

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
Call = Callable[..., Any]


def functional(model: Call, backend: str) -> Call:
    return st.compile(model, backend=backend)


def through_dynamo(model: Call, backend: str) -> Call:
    register()
    torch.compiler.reset()
    return torch.compile(model, backend="subclass_trace", options={"backend": backend})


FRONT_ENDS = {"functional": functional, "dynamo": through_dynamo}
SLOW = (pytest.mark.slow,)


def cases() -> list[Any]:
    rows = []
    for name in tiny.BUILD:
        for attention in ("eager", "sdpa"):
            quick = attention == "sdpa"
            rows.append(pytest.param(name, attention, "functional", marks=() if quick else SLOW))
            quick = quick and name == "llama"
            rows.append(pytest.param(name, attention, "dynamo", marks=() if quick else SLOW))
    return rows


def train(call: Call, model: torch.nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(1)
    out = call(**inputs)
    out.loss.backward()
    gradients = {f"gradient of {n}": p.grad for n, p in model.named_parameters()}
    return {"type": type(out), "loss": out.loss.detach(), "logits": out.logits.detach(), **gradients}


def compare(expected: dict[str, Any], got: dict[str, Any], **tolerance: float) -> None:
    assert list(expected) == list(got)
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert type(got[name]) is type(value), name
            for part in ("a", "b") if isinstance(value, TwoTensor) else (None,):
                pair = (value, got[name]) if part is None else (getattr(value, part), getattr(got[name], part))
                torch.testing.assert_close(pair[1], pair[0], msg=lambda m, n=name: f"{n}: {m}", **tolerance)
        else:
            assert got[name] is value, name


@pytest.mark.parametrize(("name", "attention", "front_end"), cases())
def test_training_and_inference(name: str, attention: str, front_end: str) -> None:
    eager = tiny.make(name, attention).train()
    model = copy.deepcopy(eager)
    compiled = FRONT_ENDS[front_end](model, "eager")
    inputs = tiny.INPUTS[name]()
    expected = train(eager, eager, inputs)
    compare(expected, train(compiled, model, inputs))
    eager.eval(), model.eval()
    with torch.no_grad():
        out = compiled(**inputs)
        assert type(out) is expected["type"]
        torch.testing.assert_close(out.logits, eager(**inputs).logits)
    if front_end == "functional":
        assert len(compiled.specializations) == 2


@pytest.mark.slow
@pytest.mark.inductor
@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("name", tiny.BUILD)
def test_inductor(name: str, front_end: str) -> None:
    eager = tiny.make(name).train()
    model = copy.deepcopy(eager)
    compiled = FRONT_ENDS[front_end](model, "inductor")
    inputs = tiny.INPUTS[name]()
    compare(train(eager, eager, inputs), train(compiled, model, inputs), atol=1e-5, rtol=1e-4)


# ---------------------------------------------------------------------------------------------- wrappers as weights
def linear_layers(model: torch.nn.Module) -> list[torch.nn.Linear]:
    return [m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and "lm_head" not in n]


def as_pairs(model: torch.nn.Module) -> torch.nn.Module:
    for layer in linear_layers(model):
        w = layer.weight.detach()
        layer.weight = torch.nn.Parameter(TwoTensor(w, w.clone()))
    return model


def as_int8(model: torch.nn.Module) -> torch.nn.Module:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(
        model, Int8WeightOnlyConfig(), filter_fn=lambda m, n: isinstance(m, torch.nn.Linear) and "lm_head" not in n
    )
    return model


def with_float8_layers(model: torch.nn.Module) -> torch.nn.Module:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig(emulate=True)
    return convert_to_float8_training(model, config=config, module_filter_fn=lambda m, n: "lm_head" not in n)


WEIGHTS = {"pairs": as_pairs, "int8": as_int8, "float8": with_float8_layers}


@pytest.mark.parametrize("front_end", ["functional", pytest.param("dynamo", marks=SLOW)])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_llama_with_other_weights(weights: str, front_end: str) -> None:
    if weights != "pairs":
        pytest.importorskip("torchao", reason="torchao is not installed: pip install 'subclass_trace[torchao]'")
    eager, model = WEIGHTS[weights](tiny.make("llama")), WEIGHTS[weights](tiny.make("llama"))
    compiled = FRONT_ENDS[front_end](model, "eager")
    ids = tiny.tokens()

    def step(call: Call, model: torch.nn.Module) -> dict[str, Any]:
        logits = call(input_ids=ids, use_cache=False).logits
        tangent = torch.ones(logits.shape)
        logits.backward(TwoTensor(tangent, tangent) if isinstance(logits, TwoTensor) else tangent)
        return {"logits": logits.detach(), **{n: p.grad for n, p in model.named_parameters()}}

    expected = step(eager, eager)
    assert sum(g is not None for g in expected.values()) > 4
    compare(expected, step(compiled, model))
