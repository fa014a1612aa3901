"""`bind`: what is bound, what is refused, and that binding is a pure function of the node."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.fx as fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from subclass_trace.backends.eager import bindings
from subclass_trace.backends.eager.bindings import Binding, bind_call

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bindings, "_cache", {})


def node(op: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """A node whose tensor arguments are placeholders with these values as examples."""
    graph = fx.Graph()
    count = itertools.count()

    def lift(value: Any) -> Any:
        if not isinstance(value, (torch.Tensor, torch.SymInt)):
            return value
        placeholder = graph.placeholder(f"x{next(count)}")
        placeholder.meta["val"] = value
        return placeholder

    return graph.call_function(op, *torch.utils._pytree.tree_map(lift, (args, kwargs)))


def bind(node: fx.Node) -> Binding:
    return bind_call(node.target, node.args, node.kwargs)


def fake(*size: int, **options: Any) -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(size, **options)


X, SCALAR = fake(3, 4), fake()
FACTORY = {"dtype": torch.float32, "layout": torch.strided, "device": torch.device("cpu"), "pin_memory": False}

BOUND = {
    "torch.add": node(aten.add.Tensor, X, X),
    "torch.sub": node(aten.sub.Tensor, X, SCALAR, alpha=2),
    "torch.mul": node(aten.mul.Tensor, X, 2.5),
    "torch.pow": node(aten.pow.Tensor_Scalar, X, 2),
    "torch.mm": node(aten.mm.default, X, fake(4, 3)),
    "torch.addmm": node(aten.addmm.default, fake(3), X, fake(4, 3)),
    "torch.Tensor.view": node(aten.view.default, X, [4, 3]),
    "torch.Tensor.expand": node(aten.expand.default, fake(1, 4), [3, 4]),
    "torch.transpose": node(aten.transpose.int, X, 0, 1),
    "torch.permute": node(aten.permute.default, X, [1, 0]),
    "torch.squeeze": node(aten.squeeze.dim, X, 0),
    "torch.sum": node(aten.sum.dim_IntList, X, [0], True),
    "torch.amax": node(aten.amax.default, X, [0]),
    "torch.max": node(aten.max.dim, X, 1),
    "torch.split": node(aten.split.Tensor, X, 2, 1),
    "torch.cat": node(aten.cat.default, [X, X], 1),
    "torch._softmax": node(aten._softmax.default, X, 1, False),
    "torch.native_layer_norm": node(aten.native_layer_norm.default, X, [4], None, None, 1e-5),
    "torch._C._nn.gelu": node(aten.gelu.default, X, approximate="tanh"),
    "torch.embedding": node(aten.embedding.default, X, fake(2, dtype=torch.int64)),
    "torch.where": node(aten.where.self, fake(3, 4, dtype=torch.bool), X, X),
    "torch.full": node(aten.full.default, [2, 3], 1.0, **FACTORY),
    "torch.clone": node(aten.clone.default, X, memory_format=torch.contiguous_format),
    "torch.detach": node(aten.detach.default, X),
    "torch.Tensor.add_": node(aten.add_.Tensor, X, 1),
    "torch.Tensor.copy_": node(aten.copy_.default, X, X),
    "torch.Tensor.bernoulli_": node(aten.bernoulli_.float, X, 0.25),
    "torch.exp": node(aten.exp.out, X, out=X),
    "torch.div": node(aten.div.Tensor_mode, X, X, rounding_mode="floor"),
    "torch._C._linalg.linalg_inv_ex": node(aten.linalg_inv_ex.default, fake(3, 3)),
    "torch.Tensor.new_zeros": node(aten.new_zeros.default, X, [2, 3], **FACTORY),
    "torch.Tensor.to": node(aten._to_copy.default, X, dtype=torch.float64),
    "index": node(aten.index.Tensor, X, [fake(3, dtype=torch.int64), fake(3, 1, dtype=torch.int64)]),
    "torch.Tensor.size": node(aten.sym_size.int, X, 0),
}


@pytest.mark.parametrize("name", BOUND)
def test_bound(name: str) -> None:
    assert bind(BOUND[name]).name == name


REFUSED = {
    "issues view or clone": node(aten.reshape.default, X, [4, 3]),
    "issues nothing or clone": node(aten.contiguous.default, X),
    "issues nothing or _to_copy": node(aten.to.dtype, X, torch.float64),
    "is decomposed": node(aten.linear.default, X, fake(5, 4)),
    "is decomposed, too": node(aten.matmul.default, X, fake(4, 4)),
    "the function takes the Tensor overload": node(aten.mul.Scalar, X, 2.0),
    "the function fills in the device": node(aten.empty.memory_format, [2]),
    "the function fills in the default device": node(aten.full.default, [2], 1.0),
    "the function fills in pin_memory": node(aten.arange.default, 3),
    "issues nothing for this dtype": node(aten._to_copy.default, X, dtype=torch.float32),
    "reads a value": node(aten.index.Tensor, X, [fake(dtype=torch.int64)]),
    "issues unsqueeze": node(aten.index.Tensor, X, [None, fake(2, dtype=torch.int64)]),
    "no function has this name": node(aten.slice.Tensor, X, 0, 0, 2),
    "no function has this name, too": node(aten._unsafe_view.default, X, [4, 3]),
    "not aten": node(torch.ops.prims.convert_element_type.default, X, torch.float64),
    "unknown argument name": node(aten.neg.default, input=X),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused(why: str) -> None:
    op: Any = REFUSED[why].target
    assert bind(REFUSED[why]) == (op._op, str(op))


# ---------------------------------------------------------------------------------------------- the run-time oracle
class Log(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(func)
        return func(*args, **(kwargs or {}))


def transformer(layers: int, **options: Any) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """Forward and backward of a small transformer, and real inputs for it."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    names, params = zip(*model.named_parameters(), strict=True)

    def joint(x: torch.Tensor, *params: torch.Tensor) -> Any:
        out = torch.func.functional_call(model, dict(zip(names, params, strict=True)), (x,))
        return [out, *torch.autograd.grad(out.square().mean(), params)]

    inputs = [torch.randn(2, 3, 8), *params]
    return make_fx(joint, **options)(*inputs), inputs


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_on_real_tensors_bindings_issue_the_operations_of_the_graph(mode: str) -> None:
    gm, inputs = transformer(1, tracing_mode=mode)
    calls = [n for n in gm.graph.nodes if n.op == "call_function"]
    bound = {n: bind(n) for n in calls}
    assert sum(b.name.startswith("torch.") for b in bound.values()) > 0.7 * len(calls)

    values = dict(zip((n for n in gm.graph.nodes if n.op == "placeholder"), inputs, strict=True))
    with torch.no_grad():  # the parameters require grad: bindings must not care
        for n in calls:
            args, kwargs = fx.map_arg((n.args, n.kwargs), values.__getitem__)
            with Log() as log:
                values[n] = bound[n].callable(*args, **kwargs)
            if (
                isinstance(n.target, torch._ops.OpOverload)
                and n.target.namespace == "aten"
                and "sym_" not in str(n.target)
            ):
                assert log.ops == [n.target], (n.format_node(), bound[n])


class Everything(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} was seen")


AMBIENT = {
    "inference mode": torch.inference_mode,
    "gradients": torch.enable_grad,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "default device": lambda: torch.device("meta"),
    "function mode": Everything,
}


@pytest.mark.parametrize("state", AMBIENT)
def test_the_ambient_state_does_not_matter(state: str) -> None:
    with AMBIENT[state]():
        found = {name: bind(n).name for name, n in BOUND.items()}
        refused = {why: bind(n).name for why, n in REFUSED.items()}
    assert found == {name: name for name in BOUND}
    assert refused == {why: str(n.target) for why, n in REFUSED.items()}


# ---------------------------------------------------------------------------------------------- the cache key
def test_constants_that_compare_equal_are_different_patterns() -> None:
    for count, value in enumerate((1, 1.0, True, 0.0, -0.0, float("nan"), 1 + 0j), start=1):
        bind(node(aten.full.default, [2], value, **FACTORY))
        assert len(bindings._cache) == count
    bind(node(aten.full.default, [2], float("nan"), **FACTORY))
    assert len(bindings._cache) == count


# ---------------------------------------------------------------------------------------------- the proof itself
def _twice(x: Any, y: Any) -> Any:
    torch.add(x, y)
    return torch.add(x, y)


LIARS = {
    "another operation": lambda x, y: torch.sub(x, y),
    "twice": _twice,
    "nothing": lambda x, y: x,
    "swapped": lambda x, y: torch.add(y, x),
    "another argument": lambda x, y: torch.add(x, x),
    "an extra argument": lambda x, y: torch.add(x, y, alpha=2),
    "another result": lambda x, y: (torch.add(x, y), x)[1],
    "also something else": lambda x, y: (torch.add(x, y), torch.neg(x))[0],
    "depends on sizes": lambda x, y: torch.add(x, y) if x.numel() == 1 else torch.add(y, x),
    "depends on strides": lambda x, y: torch.add(x, y) if x.is_contiguous() else x,
    "depends on requires_grad": lambda x, y: torch.add(x, y) if not x.requires_grad else x.detach(),
    "raises": lambda x, y: 1 / 0,
}


@pytest.mark.parametrize("liar", LIARS)
def test_a_function_that_does_something_else_is_refused(liar: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Holder:
        add = staticmethod(LIARS[liar])

    monkeypatch.setattr(bindings, "_BINDING_TYPES", (type(_twice),))
    monkeypatch.setattr(bindings, "BINDING_HOLDERS", (("test", Holder),))
    assert bind(node(aten.add.Tensor, X, X)).name == "aten.add.Tensor"
