"""Regions of ``st.compile`` under ``torch.compile``, and code of this package that runs while Dynamo looks at frames."""

from __future__ import annotations

import pytest
import torch
from compare import agree, check, dense, two
from torch._dynamo.testing import CompileCounterWithBackend
from torch_features import dynamo_reads_descriptors_of_instances

import subclass_trace as st
from subclass_trace.authoring import WrapperTensor
from subclass_trace.zoo import TwoTensor

#: Dynamo reads it of every tensor that it meets after a graph break
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")


def product(x, w):
    return torch.sin(x @ w) * x


matrices = {"dense": lambda: (dense(3, 3), dense(3, 3)), "wrapper": lambda: (two(3, 3), two(3, 3))}


# ---------------------------------------------------------------------------------------------- a region inside
@pytest.mark.parametrize("called_before", [False, True])
@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("kind", matrices)
@pytest.mark.sweep(every=4)
def test_a_region_is_a_part_of_the_graph(kind: str, fullgraph: bool, called_before: bool) -> None:
    inner = st.compile(product)
    if called_before:
        inner(*matrices[kind]())
    counter = CompileCounterWithBackend("subclass_trace")

    def outer(x, w):
        return inner(x, w) * 2 + x

    compiled = torch.compile(outer, backend=counter, fullgraph=fullgraph)
    agree(lambda x, w: product(x, w) * 2 + x, compiled, matrices[kind])
    assert counter.frame_count == 1  # no graph break
    assert len(inner.specializations) == called_before


def test_a_region_of_a_module_and_one_that_is_a_method() -> None:
    if not dynamo_reads_descriptors_of_instances():
        pytest.skip("Dynamo of this torch does not find attributes of an instance whose class has __get__")

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = st.compile(torch.nn.Linear(3, 3))
            self.second = torch.nn.Linear(3, 3)

        @st.compile
        def middle(self, x):
            return self.second(x).sin()

        def forward(self, x):
            return self.middle(self.first(x)) * 2

    model = Model()
    compiled = torch.compile(model, backend="subclass_trace", fullgraph=True)
    x = torch.randn(2, 3)
    expected = model.second(model.first.function(x)).sin() * 2
    torch.testing.assert_close(compiled(x), expected)
    compiled(x).sum().backward()
    assert model.first.function.weight.grad is not None
    assert model.second.weight.grad is not None


def test_a_region_is_kept_as_it_is_with_disable() -> None:
    inner = st.compile(product)
    kept = torch.compiler.disable(inner)

    def outer(x, w):
        return kept(x, w) * 2 + x

    check(outer, matrices["wrapper"], fullgraph=False)
    assert len(inner.specializations) == 1
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="disable"):
        torch.compile(outer, backend="subclass_trace", fullgraph=True)(*matrices["wrapper"]())


# ---------------------------------------------------------------------------------------------- frames of ours
class Doubled(WrapperTensor, default="dequantize"):
    """Its torch function runs Python as well."""

    codes: torch.Tensor

    def dequantize(self) -> torch.Tensor:
        return self.codes * 2


@Doubled.implements_torch_function(torch.nn.functional.linear)
def _linear(func, x, w, b=None):
    return (x @ w.dequantize().t()) + (0 if b is None else b)


WRAPPERS = {
    "TwoTensor": lambda: TwoTensor(torch.randn(3, 3), torch.randn(3, 3)),
    "declared, with a torch function": lambda: Doubled(torch.randn(3, 3)),
}


def _breaks(x, w):
    y = torch.nn.functional.linear(x, w)
    with torch.no_grad():
        torch._dynamo.graph_break()  # in a context manager: the rest of the frame runs in eager
        z = torch.nn.functional.linear(y, w) + w.sum()
    return z * 2


@pytest.mark.parametrize("name", WRAPPERS)
def test_dispatch_after_a_graph_break_is_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo offers each Python frame that starts while a compiled function runs to its compiler."""
    module = torch._dynamo.convert_frame
    original, compiled = module._compile, []
    monkeypatch.setattr(module, "_compile", lambda code, *a, **k: (compiled.append(code), original(code, *a, **k))[1])
    w, x = WRAPPERS[name](), torch.randn(2, 3)
    expected = _breaks(x, w)
    got = torch.compile(_breaks, backend="subclass_trace")(x, w)
    for a, b in zip(st.subclass.flatten.leaves_of(expected), st.subclass.flatten.leaves_of(got), strict=True):
        torch.testing.assert_close(a, b)
    files = {code.co_filename for code in compiled}
    assert __file__ in files
    package = st.__path__[0]
    assert not [f for f in files if f.startswith((package, "<subclass_trace"))]
