"""Decompositions reach operations that are mutable when they are recorded; keys are operations."""

from __future__ import annotations

import copy

import pytest
import torch

import subclass_trace as st
from subclass_trace.backends import Backend


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("train", [False, True])
def test_batch_norm_is_decomposed(train: bool, dynamic: bool) -> None:
    """Its running statistics make it mutable, so that it becomes functional, and is decomposed, in the replay."""
    torch.manual_seed(0)
    aten = torch.ops.aten
    table = torch._decomp.get_decompositions(
        [
            aten.native_batch_norm,
            aten._native_batch_norm_legit_functional,
            aten._native_batch_norm_legit_no_training,
            aten.native_batch_norm_backward,
        ]
    )
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU()).train(train)
    model.double()  # the gradient of the first bias is rounding alone
    eager = copy.deepcopy(model)
    region = st.compile(model, backend="eager", dynamic=dynamic or None, decompositions=dict(table))
    for n in (6, 5, 6):
        x = torch.randn(n, 8, dtype=torch.float64)
        got, expected = region(x), eager(x)
        torch.testing.assert_close(got, expected)
        got.pow(2).sum().backward()
        expected.pow(2).sum().backward()
    for (name, got), expected in zip(model.named_parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(got.grad, expected.grad, msg=name)
    for (name, got), expected in zip(model.named_buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(got, expected, msg=name)
    for specialization in region.specializations:
        graphs = [specialization.graphs.forward, specialization.graphs.backward]
        targets = {str(n.target) for g in graphs if g is not None for n in g.graph.nodes}
        assert not [t for t in targets if "batch_norm" in t]


def test_a_packet_stands_for_its_overloads_and_an_overload_counts_more() -> None:
    aten = torch.ops.aten

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.nn.functional.gelu(x), torch.pow(x, 3), torch.pow(3, x)])

    table = {
        aten.pow.Scalar: lambda x, n: n * 1000,
        aten.gelu: lambda x, approximate="none": x * 100,
        aten.pow: lambda x, n: x * 10,
    }
    x = torch.ones(3)
    assert st.compile(f, decompositions=table)(x)[:, 0].tolist() == [100, 10, 1000]
    own = Backend("own", *[lambda gm, _: gm] * 3, lambda: {aten.gelu: lambda x, approximate="none": x * 7})
    assert st.compile(f, backend=own)(x)[0, 0] == 7
    assert st.compile(f, backend=own, decompositions=table)(x)[0, 0] == 100


@pytest.mark.parametrize(
    "key", ["aten.gelu.default", torch.nn.functional.gelu, torch.nn.GELU()], ids=["text", "function", "module"]
)
def test_a_key_that_is_no_operation(key: object) -> None:
    function = lambda x: x
    with pytest.raises(st.OptionError, match="decompositions has a key that is no operation") as caught:
        st.compile(function, decompositions={torch.ops.aten.sin.default: function, key: function})
    assert str(caught.value.path).startswith("decompositions[") and repr(key) in str(caught.value.path)
    with pytest.raises(st.OptionError, match="or a value that is no function"):
        st.compile(function, decompositions={torch.ops.aten.sin: 3})
