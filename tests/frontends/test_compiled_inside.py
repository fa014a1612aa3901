"""What ``torch.compile`` made is traced inside a region: its own kernels would run on tensors without data."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

import subclass_trace as st
from subclass_trace.zoo import TwoTensor


def wave(x: torch.Tensor) -> torch.Tensor:
    return (x @ x).sin() + 1


@pytest.mark.parametrize("backend", ["inductor", "aot_eager", "eager"])
@pytest.mark.parametrize("fullgraph", [True, False])
def test_a_compiled_function(backend: str, fullgraph: bool) -> None:
    inner = torch.compile(wave, backend=backend, fullgraph=fullgraph)
    region = st.compile(lambda x: inner(x * 2) * 3, backend="eager")
    for _ in range(2):
        x = torch.randn(4, 4, requires_grad=True)
        got, expected = region(x), wave(x * 2) * 3
        torch.testing.assert_close(got, expected)
        torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x) for y in (got, expected)))
    x = TwoTensor(torch.randn(4, 4), torch.randn(4, 4))
    torch.testing.assert_close(region(x).a, wave(x.a * 2) * 3)


def test_one_that_has_run_before() -> None:
    inner = torch.compile(wave, backend="aot_eager")
    x = torch.randn(4, 4)
    inner(x)
    region = st.compile(lambda x: inner(x), backend="eager")
    torch.testing.assert_close(region(x), wave(x))
    torch.testing.assert_close(inner(x), wave(x))


def test_a_compiled_module_and_one_compiled_in_the_region() -> None:
    layer = torch.nn.Linear(4, 4)
    inner = torch.compile(layer)
    region = st.compile(lambda x: torch.compile(wave)(inner(x)), backend="eager")
    x = torch.randn(4, 4)
    got, expected = region(x), wave(layer(x))
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(*(torch.autograd.grad(y.sum(), layer.weight) for y in (got, expected)))


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_flex_attention_as_torch_tells_to_call_it() -> None:
    q, k, v = (torch.randn(1, 2, 16, 16) for _ in range(3))
    compiled = torch.compile(flex_attention)
    region = st.compile(lambda q, k, v: compiled(q, k, v, score_mod=lambda s, b, h, i, j: s + (i - j)), backend="eager")
    with torch.no_grad():
        expected = flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + (i - j))
        torch.testing.assert_close(region(q, k, v), expected, rtol=1e-4, atol=1e-4)


def test_control_flow_makes_its_graphs_still() -> None:
    inner = torch.compile(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)))
    region = st.compile(lambda x: inner(x), backend="eager")
    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(region(x), x.sin() if x.sum() > 0 else x.cos())


def test_other_threads_go_on_compiling() -> None:
    graphs: list[object] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: object) -> object:
        graphs.append(gm)
        return gm.forward

    def function(x: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=torch.compile(wave, backend=backend), args=(torch.ones(2, 2),))
        thread.start()
        thread.join()
        return x * 2

    torch.compiler.reset()
    st.compile(function)(torch.ones(2))
    assert len(graphs) == 1


@pytest.mark.slow
def test_the_first_one_of_a_process() -> None:
    program = """if True:
        import sys, torch, subclass_trace as st
        region = st.compile(lambda x: torch.compile(lambda y: y.sin() + 1)(x), backend="eager")
        assert "torch._dynamo.eval_frame" not in sys.modules
        compile = torch.compile
        x = torch.ones(2, 2)
        torch.testing.assert_close(region(x), x.sin() + 1)
        assert torch.compile is compile and "torch._dynamo.eval_frame" in sys.modules
        assert torch._dynamo.eval_frame._stance.stance == "default"
    """
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
