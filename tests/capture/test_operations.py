"""Operations that come again, are taken apart, or are taken whole: as in eager."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_features import traces_native_encoder_layers

import subclass_trace as st
from subclass_trace import verify
from subclass_trace.backends import Backend
from subclass_trace.zoo import TwoTensor


# ------------------------------ operations that come again get their results without the fake kernel, and the same ones
def test_a_view_has_the_storage_of_its_own_argument():
    def f(x, y):
        a, b = x.t(), y.t()
        b.add_(1)
        return a * b, a, b

    x, y = torch.ones(2, 3), torch.ones(2, 3)
    expected = f(x.clone(), y.clone())
    got = st.compile(f, backend="eager")(x, y)
    for a, b in zip(expected, got, strict=True):
        assert torch.equal(a, b)
    assert got[1]._base is x
    assert got[2]._base is y


def test_numbers_of_another_type_are_other_operations():
    x = torch.arange(3)
    got = st.compile(lambda x: (x + 1, x + 1.0, x + True), backend="eager")(x)
    assert [t.dtype for t in got] == [torch.int64, torch.float32, torch.int64]


@pytest.mark.parametrize("stride", [(3, 1), (7, 1), (1, 1), (2, 2)])
@pytest.mark.parametrize("shape", [(1, 3), (3, 1), (1, 1, 3), (3,)])
def test_views_have_the_strides_of_eager(shape, stride):
    """Those of dimensions of size 1, too: a graph that asks for them goes on with these."""
    asked = []

    def f(x):
        y = x.view(shape)
        asked.append(
            (y.stride(), y.unsqueeze(0).stride(), y.t().stride() if y.dim() < 3 else y.transpose(0, 2).stride())
        )
        return y + 1

    x = torch.empty_strided((1, 3), stride).fill_(1)
    assert torch.equal(f(x), st.compile(f, backend="eager")(x))
    assert asked[0] == asked[1]


def test_strides_of_single_elements_are_nobodys() -> None:
    """The copy of a column has other ones than a fake kernel gives the column itself."""

    def f(x: torch.Tensor) -> torch.Tensor:
        column = x[[0, 1]][1:].t().relu()
        return column.copy_(column)

    x = torch.randn(3, 3)
    with verify.enabled():
        out = st.compile(f)(x)
    assert torch.equal(out, f(x)) and out.stride() == f(x).stride()


# ------------------------- decompositions reach operations that are mutable when they are recorded; keys are operations
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


# -------------- what torch takes apart in Python where sizes are symbols: values, gradients and random numbers of eager
def run(function, x, seed=7):
    """Results, gradient and the state of the random numbers behind them."""
    x = x.detach().clone().requires_grad_(x.is_floating_point())
    torch.manual_seed(seed)
    results = torch.utils._pytree.tree_leaves(function(x))
    state = torch.get_rng_state()
    grad = torch.autograd.grad(sum(r.sum() for r in results), x)[0]
    return [*results, grad, state]


def compare(function, *inputs, dynamic=True):
    compiled = st.compile(function, dynamic=dynamic or None)
    for x in inputs:
        torch.testing.assert_close(run(compiled, x), run(function, x))


@pytest.mark.parametrize(("p", "train"), [(0.0, True), (0.3, True), (1.0, True), (0.3, False)])
def test_dropout(p, train):
    compare(lambda x: F.dropout(x.t(), p, train), torch.randn(3, 4), torch.randn(5, 2))
    compiled, x = st.compile(lambda x: F.dropout(x, p, train), dynamic=True), torch.randn(3, 4)
    assert (compiled(x) is x) is (F.dropout(x, p, train) is x)
    assert F.dropout(x * 1, p, train) is not x  # torch's own form is back
    written = lambda x: (y := x * 1, F.dropout(y, p, train).add_(1))
    compare(written, torch.randn(3, 4))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_multilabel_margin_loss(reduction):
    target = torch.tensor([[3, 0, -1, 1], [-1, 2, 2, 2], [0, 1, 2, 3]])
    for rows in (slice(None), 0):
        compare(
            lambda x, rows=rows: F.multilabel_margin_loss(x, target.expand(3, 4)[rows], reduction=reduction),
            torch.randn(3, 4)[rows],
        )


def test_multi_margin_loss_of_changing_sizes_has_eagers_bits():
    region = st.compile(F.multi_margin_loss)
    for n in (3, 5, 7):
        x, target = torch.randn(n, n + 2), torch.arange(n) % 3
        assert region(x, target, p=2, margin=0.7).equal(F.multi_margin_loss(x, target, p=2, margin=0.7))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_interpolation_of_bytes_rounds_as_the_kernel(mode):
    compiled = st.compile(lambda x: F.interpolate(x, scale_factor=1.7, mode=mode), dynamic=True)
    for height in (5, 8):
        x = torch.randint(0, 256, (2, 3, height, 7), dtype=torch.uint8)
        assert torch.equal(compiled(x), F.interpolate(x, scale_factor=1.7, mode=mode))
    assert len(compiled.specializations) == 1
    compare(lambda x: F.interpolate(x, size=(4, 9), mode=mode), torch.randn(2, 3, 5, 7))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    "how", [{"scale_factor": 1.7}, {"size": 7}, {"scale_factor": 2.0, "recompute_scale_factor": True}], ids=str
)
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_interpolation_of_changing_sizes_has_eagers_bits(mode, how, channels_last):
    def function(x):
        return F.interpolate(x, mode=mode, **how)

    region = st.compile(function)
    for height in (4, 5, 6):
        x = torch.randn(2, 3, height, height + 1)
        x = x.contiguous(memory_format=torch.channels_last) if channels_last else x
        leaves = [x.clone().requires_grad_() for _ in range(2)]
        want, got = (call(leaf) for call, leaf in zip((function, region), leaves, strict=True))
        (want.sin() * want).sum().backward()
        (got.sin() * got).sum().backward()
        assert got.equal(want) and got.stride() == want.stride()
        assert leaves[0].grad.equal(leaves[1].grad)
    assert len(region.specializations) <= 2


@pytest.mark.parametrize(
    ("dims", "mode"), [(3, "linear"), (4, "nearest-exact"), (4, "bilinear"), (4, "bicubic"), (5, "trilinear")]
)
@pytest.mark.sweep(every=4)
def test_interpolation_of_a_wrapper_whose_size_changes(dims, mode):
    def function(x):
        return F.interpolate(x, scale_factor=1.7, mode=mode)

    region = st.compile(function)
    for size in (4, 6):
        seen = []
        for call in (function, region):
            torch.manual_seed(0)
            parts = [torch.randn(2, 3, *[size] * (dims - 2)).transpose(1, -1) for _ in range(2)]
            x = TwoTensor(*parts).requires_grad_()
            out = call(x)
            (out.sin() * out).sum().backward(TwoTensor(torch.tensor(1.0), torch.tensor(2.0)))
            seen.append([t for value in (out.detach(), x.grad) for t in (value.a, value.b)])
        for a, b in zip(*seen, strict=True):
            assert a.equal(b) and a.stride() == b.stride()


# --------------------------------- the native kernels that modules of torch take in inference are taken in a region too
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


def test_a_copy_to_the_device_where_it_is() -> None:
    """Torch's fake kernel gives the tensor itself, so that a write to the copy would be one to the argument."""

    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.ops.aten._to_copy(x, device=x.device, dtype=x.dtype)
        y.add_(1)
        return y

    x = torch.zeros(3)
    assert torch.equal(st.compile(f)(x), torch.ones(3)) and torch.equal(x, torch.zeros(3))


@pytest.mark.parametrize("value", [0.25, 3, torch.tensor(0.5)])
def test_a_write_where_one_bool_says_so(value: object) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, z = x[0], x * 2
        y[y > 0.5] = value  # of no dimensions: torch asks for the bool
        z[x.sum() > 1] = value
        return y, z

    region = st.compile(f)
    for start in (0.1, 0.7):
        a, b = torch.full((3,), start), torch.full((3,), start)
        for found, expected in zip(region(a), f(b), strict=True):
            assert torch.equal(found, expected)
        assert torch.equal(a, b) and a._version == b._version
