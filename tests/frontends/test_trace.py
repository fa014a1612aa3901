"""`st.trace`: the graphs and what their inputs and outputs are; nothing runs, nothing changes."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from runs import Runs

import subclass_trace as st
from subclass_trace import verify
from subclass_trace.subclass.flatten import leaves_of
from subclass_trace.zoo import TwoTensor

aten = torch.ops.aten


def two(*size: int) -> TwoTensor:
    return TwoTensor(torch.rand(size), torch.rand(size))


def product(x: torch.Tensor, w: torch.Tensor) -> dict[str, torch.Tensor]:
    y = x * w
    return {"y": y.sin()}


def test_the_whole_text() -> None:
    found = st.trace(product, torch.rand(3), two(3).requires_grad_())
    first = product.__code__.co_firstlineno
    text = "\n".join(line for line in str(found).splitlines() if "test_trace.py" not in line)
    head, *graphs = re.split(r"\ndef (joint|forward|backward)\(", text)
    assert head.startswith("trace of product\n\ninputs: 2, dense leaves: 3\n  args[0]    primals_1  float32[3]\n")
    assert head.endswith("\nbackward: from result['y'] to args[1]\n") and graphs[::2] == [
        "joint",
        "forward",
        "backward",
    ]
    joint, forward, backward = graphs[1::2]
    assert "tangents_1,  # float32[3]  tangent of result['y'].a" in joint
    assert re.search(r"mul_tensor_\d,  # gradient of args\[1\]\.a\n", joint)
    assert "mul_tensor = aten.mul.Tensor(primals_1, primals_2)  # float32[3]\n" in forward
    assert "sin_default_1,  # result['y'].b\n        primals_1,  # saved: args[0]\n" in forward
    assert "primals_2,  # float32[3]  args[1].a\n" in backward
    assert f"test_trace.py:{first + 1}  y = x * w" in str(found)
    assert f'test_trace.py:{first + 2}  return {{"y": y.sin()}}' in str(found)


def test_the_graphs_compute_what_eager_does() -> None:
    x, w = torch.rand(3), two(3).requires_grad_()
    found = st.trace(product, x, w)
    expected = product(x, w)["y"]
    assert found.joint is not None and found.backward is not None
    a, b, *saved = found.forward(x, *leaves_of(w))
    assert torch.equal(a, expected.a) and torch.equal(b, expected.b)
    tangent = two(3)
    expected.backward(tangent)
    grads = found.backward(*saved, *leaves_of(tangent))
    assert all(map(torch.equal, grads, leaves_of(w.grad)))
    joint = found.joint(x, *leaves_of(w), *leaves_of(tangent))
    assert all(map(torch.equal, joint, [a, b, *grads]))
    assert "sin" in found.forward.code


def test_nothing_changes_and_nothing_runs() -> None:
    runs, kept = Runs(), list[type]()

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        runs.note()
        kept.append(x.a.__class__)
        x.mul_(2)
        return torch.nn.functional.dropout(x * w)

    x, w = two(3), two(3).requires_grad_()
    before = [t.clone() for t in (*leaves_of(x), *leaves_of(w))]
    random = torch.get_rng_state()
    found = st.trace(f, x, w)
    assert len(runs) == 1 and kept == []
    assert all(map(torch.equal, before, (*leaves_of(x), *leaves_of(w))))
    assert torch.equal(random, torch.get_rng_state())
    assert (x._version, w._version, w.grad, w.grad_fn, w.is_leaf, x.requires_grad) == (0, 0, None, None, True, False)
    assert [str(found.plan.inputs.rows[m.input].path) for m in found.plan.mutations.rows] == ["args[0]"]


def test_without_a_backward() -> None:
    found = st.trace(lambda x, *, k: (x + k, None), two(3), k=2)
    assert found.joint is None and found.backward is None
    assert list(found.graphs) == ["forward"] and found.saved == () and found.gradients == ()
    assert str(found).endswith("result[0].b\n    )")
    assert repr(found).startswith("<Trace of ") and repr(found).endswith(": forward>")


def test_specs_by_path() -> None:
    found = st.trace(product, torch.rand(3), two(3).requires_grad_())
    assert list(found.spec) == ["args[0]", "args[1]", "result['y']"]
    assert found.spec["result['y']"].cls is TwoTensor


def test_modules_and_keyword_arguments() -> None:
    module = torch.nn.Linear(3, 2)
    module.weight = torch.nn.Parameter(two(2, 3))
    found = st.trace(module, input=two(4, 3))
    assert found.function == "Linear"
    assert list(found.names.values())[:3] == ["kwargs['input'].a", "kwargs['input'].b", "self.weight.a"]
    assert isinstance(module.weight, torch.nn.Parameter) and module.weight.grad is None


def test_options() -> None:
    called: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        called.append(graph)

    def doubled(x: torch.Tensor, *_: Any) -> torch.Tensor:
        return x + x

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).sin().cos()

    x = two(3).requires_grad_()
    decompositions = {aten.relu.default: doubled}
    found = st.Tracer(backend=backend, partitioner="default", decompositions=decompositions)(f, x)
    targets = {n.target for n in found.forward.graph.nodes}
    assert aten.add.Tensor in targets and aten.relu.default not in targets
    assert called == []
    assert len(found.saved) > len(st.trace(f, x).saved) - 1
    with pytest.raises(st.OptionError, match="did you mean 'partitioner'"):
        st.Tracer(partitoner="default")


def test_dynamic_sizes_and_size_results() -> None:
    found = st.Tracer(dynamic=True)(lambda x: (x * 2, x.shape[0]), two(5, 3))
    symbol = str(found.plan.inputs.symbols[0].symbol)
    assert f"primals_1,  # float32[{symbol}, " in found.code("forward")
    assert found.results[-1] == "size 0"


def test_refused_where_it_would_run_eagerly() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        st.trace(torch.sin, x)
        return x

    with pytest.raises(st.UnsupportedError, match="this call would run eagerly"):
        torch.func.vmap(f)(torch.rand(2, 3))


def test_refusals_are_those_of_a_region() -> None:
    with pytest.raises(TypeError):
        st.trace(product, torch.rand(3))
    with pytest.raises(st.DataDependentError):
        st.trace(lambda x: x if x.sum() > 0 else -x, torch.rand(3))


def test_constants_branches_and_verification() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda t: t * 2, lambda t: t.sin(), (x + torch.tensor([1.0, 2.0]),))

    with verify.enabled():
        found = st.trace(f, torch.rand(2))
    assert "self._constant" in found.code("forward") and "cond(" in found.code("forward")


# ---------------------------------------------------------------------------------------------- pages


def test_what_is_no_function() -> None:
    with pytest.raises(st.errors.OptionError, match="nothing to compile"):
        st.trace(3)  # type: ignore[arg-type]
