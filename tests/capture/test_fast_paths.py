"""The native kernels that modules of torch take in inference are taken in a region too."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch_features import traces_native_encoder_layers

import subclass_trace as st

MODULES: dict[str, Callable[[], nn.Module]] = {
    "attention": lambda: nn.MultiheadAttention(16, 2, batch_first=True),
    "layer": lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True),
    "encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2),
}
MASK = torch.tensor([[False, False, False, True, True], [False] * 5])


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("trains", [False, True])
def test_as_in_eager(name: str, trains: bool) -> None:
    if name != "attention" and not traces_native_encoder_layers():
        pytest.skip("this torch cannot trace aten._transformer_encoder_layer_fwd")
    torch.manual_seed(0)
    module, x = MODULES[name]().eval(), torch.randn(2, 5, 16)
    args = (x, x, x) if name == "attention" else (x,)
    region = st.compile(module, backend="eager")
    with torch.set_grad_enabled(trains):
        got, expected = ((r[0] if isinstance(r, tuple) else r) for r in (region(*args), module(*args)))
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    assert got.stride() == expected.stride()


@pytest.mark.parametrize("checks", [True, False])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_padding_that_eager_leaves_out(checks: bool) -> None:
    """The layers then see a nested tensor, and what is padded comes out as zeros."""
    torch.manual_seed(0)
    encoder, x = MODULES["encoder"]().eval(), torch.randn(2, 5, 16)
    encoder.mask_check = checks
    region = st.compile(encoder, backend="eager")
    with torch.no_grad(), pytest.warns(UserWarning, match="use_nested_tensor = False"):
        got = region(x, src_key_padding_mask=MASK)
        torch.testing.assert_close(got, encoder(x, src_key_padding_mask=MASK))
    with_gradients = region(x, src_key_padding_mask=MASK)
    torch.testing.assert_close(with_gradients, encoder(x, src_key_padding_mask=MASK))
    encoder.use_nested_tensor = False
    with torch.no_grad():
        torch.testing.assert_close(region(x, src_key_padding_mask=MASK), encoder(x, src_key_padding_mask=MASK))


def test_dynamo_is_as_it_was_after_a_branch_was_traced() -> None:
    """It looks up once in a process which functions say whether it is compiling."""
    tables = importlib.import_module("torch._dynamo.variables.torch")
    tables.tracing_state_functions.cache_clear()
    tables.TorchInGraphFunctionVariable._get_handlers.cache_clear()
    branch = st.compile(lambda x: torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,)))
    branch(torch.ones(3))

    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if torch.compiler.is_compiling() else x

    assert torch.compile(f, backend="eager", fullgraph=True)(torch.ones(2)).tolist() == [2, 2]


def test_dynamo_meets_no_stand_in() -> None:
    """Its tables may be filled for the first time while a region is captured."""
    from torch._dynamo import trace_rules
    from torch._dynamo.variables import torch as tables

    handlers = tables.TorchInGraphFunctionVariable._get_handlers
    for table in (trace_rules.get_torch_obj_rule_map, tables.tracing_state_functions, handlers):
        table.cache_clear()

    def fills(x: torch.Tensor) -> torch.Tensor:
        trace_rules.get_torch_obj_rule_map()
        return x * 2

    st.compile(fills)(torch.ones(2))
    assert torch.compiler.is_compiling in trace_rules.get_torch_obj_rule_map()
    branch = torch.compile(lambda x: x + 1 if torch.compiler.is_compiling() else x - 1, backend="eager")
    assert branch(torch.ones(2)).tolist() == [2.0, 2.0]
