"""Hugging Face models: a training step and inference as in eager, for each kind of weight.

With the eager back end, the tests are the whole matrix of 7 models x eager and sdpa attention x 5 kinds of weights x 2
front ends. With inductor, for which a C++ compiler takes half a minute, they are every model with every kind of weights;
over these, attention and front end change so that each model, and each kind, meets every combination of the two.
By default a sample runs; the rest is among the slow tests. Models have two layers in the slow tests with the eager back
end, else one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'subclass_trace[transformers]'")

import tiny
import weights

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
SAMPLE = {  # what runs by default: each model, attention, kind of weights and front end
    ("llama", "sdpa", "pairs", "functional", "eager"),
    ("llama", "eager", "plain", "functional", "eager"),
    ("bert", "eager", "plain", "functional", "eager"),
    ("gpt2", "sdpa", "int8", "functional", "eager"),
    ("qwen2", "sdpa", "float8", "functional", "eager"),
    ("bert", "sdpa", "fp8", "functional", "eager"),
    ("vit", "sdpa", "pairs", "functional", "eager"),
    ("t5", "sdpa", "int8", "functional", "eager"),
    ("mixtral", "sdpa", "plain", "functional", "eager"),
    ("llama", "sdpa", "plain", "dynamo", "eager"),
    ("bert", "sdpa", "fp8", "dynamo", "eager"),
}


Case = tuple[str, str, str, str, str]
ATTENTION = ("eager", "sdpa")


def matrix() -> list[Case]:
    """All cases: model, attention, kind of weights, front end, back end."""
    found: list[Case] = [
        (*row, "eager") for row in itertools.product(tiny.BUILD, ATTENTION, weights.CONVERT, FRONT_ENDS)
    ]
    for (m, name), (k, kind) in itertools.product(enumerate(tiny.BUILD), enumerate(weights.CONVERT)):
        front_end = list(FRONT_ENDS)[(m // 2 + k // 2) % 2]
        found.append((name, ATTENTION[(m + k) % 2], kind, front_end, "inductor"))
    return found


def cases() -> list[Any]:
    rows = []
    for case in matrix():
        marks = [] if case in SAMPLE else [pytest.mark.slow]
        marks += [pytest.mark.inductor] if case[-1] == "inductor" else []
        rows.append(pytest.param(*case, marks=marks, id="-".join(case)))
    return rows


def build(name: str, attention: str, kind: str, layers: int) -> torch.nn.Module:
    if kind in weights.TORCHAO:
        pytest.importorskip("torchao", reason="torchao is not installed: pip install 'subclass_trace[torchao]'")
    return weights.convert(tiny.make(name, attention, layers=layers), kind)


def train(call: Call, model: torch.nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """One training step: what the call returned, and every gradient. They are cleared afterwards.

    Dynamo cannot trace a module where a plain parameter has a wrapper for its gradient, as with pairs.
    """
    torch.manual_seed(1)
    out = call(**inputs)
    out.loss.backward()
    gradients = {f"gradient of {n}": p.grad for n, p in model.named_parameters()}
    model.zero_grad()
    return {"type": type(out), "keys": list(out), "loss": out.loss, "logits": out.logits, **gradients}


def infer(call: Call, inputs: dict[str, Any]) -> dict[str, Any]:
    with torch.no_grad():
        out = call(**inputs)
    return {"type": type(out), "keys": list(out), "logits": out.logits}


def dense(value: torch.Tensor) -> list[torch.Tensor]:
    value = value.detach()
    if isinstance(value, TwoTensor):
        return [value.a, value.b]
    return [value if type(value) is torch.Tensor else value.dequantize()]


def compare(expected: dict[str, Any], got: dict[str, Any], check: Callable[..., None]) -> None:
    assert list(expected) == list(got)
    for name, value in expected.items():
        if not isinstance(value, torch.Tensor):
            assert got[name] == value, name
            continue
        assert type(got[name]) is type(value), name
        assert got[name].requires_grad == value.requires_grad, name
        for right, found in zip(dense(value), dense(got[name]), strict=True):
            check(found, right, name)


def close(**tolerance: float) -> Callable[..., None]:
    def check(found: torch.Tensor, right: torch.Tensor, name: str) -> None:
        torch.testing.assert_close(found, right, msg=lambda m: f"{name}: {m}", **tolerance)

    return check


def near(found: torch.Tensor, right: torch.Tensor, name: str) -> None:
    """Fused code rounds elsewhere, and a value may fall into the next FP8 step."""
    assert found.dtype == right.dtype and (found - right).norm() <= 0.1 * right.norm() + 1e-6, name


@pytest.mark.parametrize(("name", "attention", "kind", "front_end", "backend"), cases())
@pytest.mark.sweep(every=3)
def test_a_training_step_and_inference(name: str, attention: str, kind: str, front_end: str, backend: str) -> None:
    layers = 1 if backend == "inductor" or (name, attention, kind, front_end, backend) in SAMPLE else 2
    eager, model = (build(name, attention, kind, layers).train() for _ in range(2))
    compiled = FRONT_ENDS[front_end](model, backend)
    inputs = tiny.INPUTS[name]()
    check = close() if backend == "eager" else near if "8" in kind and kind != "int8" else close(atol=1e-5, rtol=1e-4)
    expected = train(eager, eager, inputs)
    trained = sum(p.requires_grad for p in eager.parameters())
    assert sum(isinstance(v, torch.Tensor) for v in expected.values()) == 2 + trained > 4  # loss, logits, gradients
    compare(expected, train(compiled, model, inputs), check)
    eager.eval(), model.eval()
    compare(infer(eager, inputs), infer(compiled, inputs), check)
    if front_end == "functional":
        assert len(compiled.specializations) == 2 - (name == "mixtral")  # its first call runs eagerly


def test_buffers_are_inputs_of_the_graphs() -> None:
    """Also those that are not in the state: a call sees the buffer that the module holds then."""
    model = tiny.make("llama").eval()
    compiled = st.compile(model)
    inputs = tiny.INPUTS["llama"]()
    with torch.no_grad():
        before = compiled(**inputs).logits
        rotary = model.model.rotary_emb
        rotary.inv_freq = rotary.inv_freq * 2
        torch.testing.assert_close(compiled(**inputs).logits, model(**inputs).logits)
        assert not torch.equal(compiled(**inputs).logits, before)
    assert len(compiled.specializations) == 1
    assert "inv_freq" in str(compiled.specializations[0].report())
