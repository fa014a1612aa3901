"""Exported programs give eager's numbers, here and in a process without this package; names, signature, state, refusals."""

from __future__ import annotations

import copy
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import subclass_trace as st
from subclass_trace.errors import ExportError
from subclass_trace.subclass.flatten import flatten
from subclass_trace.subclass.spec import leaf_paths
from subclass_trace.zoo import TwoTensor
from tests.exporting.models import MODELS, Tied, X, close, dense, two

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning", "ignore:.*functools.*:FutureWarning")


def made(name: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    torch.manual_seed(0)
    make, args, kwargs = MODELS[name]
    return make(), args(), kwargs


# ---------------------------------------------------------------------------------------------- numbers
@pytest.mark.parametrize("name", MODELS)
def test_as_eager(name: str) -> None:
    module, args, kwargs = made(name)
    eager = copy.deepcopy(module)
    exported = st.export(module, args, kwargs)
    run = exported.program.module()
    for _ in range(2):  # buffers move on
        with torch.no_grad():
            expected = eager(*args, **kwargs)
        found = exported.unflatten_outputs(run(*exported.flatten_inputs(*args, **kwargs)))
        assert type(found) is type(expected)
        close(found, expected)
    buffers = {n: b for n, b in eager.named_buffers() if n in eager.state_dict()}
    for key, value in buffers.items():
        torch.testing.assert_close(run.state_dict()[key], value)
    exported.program.run_decompositions()


LOADER = """
import sys, torch
assert "subclass_trace" not in sys.modules
for k in range(int(sys.argv[2])):
    program = torch.export.load(f"{sys.argv[1]}/{k}.pt2")
    inputs, expected = torch.load(f"{sys.argv[1]}/{k}.pt")
    with torch.no_grad():
        found = program.module()(*inputs)
    found = [found] if isinstance(found, torch.Tensor) else list(found)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b) if isinstance(b, torch.Tensor) else (a == b) or sys.exit(f"{k}: {a} {b}")
assert "subclass_trace" not in sys.modules
print("right")
"""


@pytest.mark.slow
def test_in_a_process_without_this_package(tmp_path: Path) -> None:
    for number, name in enumerate(MODELS):
        module, args, kwargs = made(name)
        exported = st.export(module, args, kwargs)
        torch.export.save(exported.program, tmp_path / f"{number}.pt2")
        inputs = [t.detach() for t in exported.flatten_inputs(*args, **kwargs)]
        with torch.no_grad():
            expected = [v for v in dense(module(*args, **kwargs)) if isinstance(v, torch.Tensor)]
        torch.save((inputs, expected), tmp_path / f"{number}.pt")
    script = tmp_path / "load.py"
    script.write_text(LOADER, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(len(MODELS))], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.strip() == "right", done.stderr[-3000:]


@pytest.mark.slow
def test_by_aot_inductor(tmp_path: Path) -> None:
    def make() -> nn.Module:
        return two(nn.Sequential(nn.Linear(16, 16), nn.ReLU()))

    module, x = make(), torch.randn(3, 16)
    exported = st.export(module, (x,))
    package = torch._inductor.aoti_compile_and_package(exported.program, package_path=str(tmp_path / "m.pt2"))
    run = torch._inductor.aoti_load_package(package)
    with torch.no_grad():
        close(exported.unflatten_outputs(run(*exported.flatten_inputs(x))), module(x))
        other = make()
        run.load_constants(exported.flatten_state_dict(other.state_dict()), check_full_update=True)
        close(exported.unflatten_outputs(run(*exported.flatten_inputs(x))), other(x))


# ---------------------------------------------------------------------------------------------- names and signature
def test_names_and_kinds() -> None:
    exported = st.export(two(Tied()), (X,))
    signature = exported.program.graph_signature
    assert list(signature.parameters) == ["first.weight.a", "first.weight.b", "first.bias", "last.bias"]
    assert list(signature.buffers) == ["steps", "mask"] and list(signature.non_persistent_buffers) == ["mask"]
    assert signature.buffers_to_mutate == {signature.output_specs[0].arg.name: "steps"}
    assert list(signature.user_inputs) == ["x"]
    assert exported.state.tied == {"last.weight": "first.weight"}
    assert "p_first_weight_a" in [n.name for n in exported.program.graph.nodes]
    assert "mask" not in exported.program.state_dict and "mask" in exported.program.constants


def test_nodes_say_where_they_come_from() -> None:
    exported = st.export(two(nn.Sequential(nn.Linear(4, 4), nn.ReLU())), (X,))
    stacks = [n.meta.get("nn_module_stack") for n in exported.program.graph.nodes if n.op == "call_function"]
    assert all(stacks) and [*stacks[-1].values()][-1] == ("1", "torch.nn.modules.activation.ReLU")


def test_writes_to_an_argument() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        return x * 2

    exported = st.export(f, (torch.ones(3), torch.ones(3)))
    assert dict(exported.program.graph_signature.user_inputs_to_mutate) == {"add_tensor": "x"}
    x = torch.ones(3)
    assert torch.equal(exported.program.module()(x, torch.ones(3)), torch.full((3,), 4.0)) and x[0] == 2


# ---------------------------------------------------------------------------------------------- state
@pytest.mark.parametrize("name", MODELS)
def test_state_goes_both_ways(name: str) -> None:
    module, args, kwargs = made(name)
    exported = st.export(module, args, kwargs)
    state = module.state_dict()
    flat = exported.flatten_state_dict(state)
    assert all(type(t) is torch.Tensor for t in flat.values())
    back = exported.unflatten_state_dict(flat)
    assert back.keys() == state.keys()
    for key in state:
        assert type(back[key]) is type(state[key]) or isinstance(state[key], nn.Parameter)
        close(back[key], state[key])
    json.dumps(exported.describe())


def test_through_safetensors() -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    exported, other = st.export(two(Tied()), (X,)), two(Tied())
    flat = safetensors.load(safetensors.save(exported.flatten_state_dict(other.state_dict())))
    target = two(Tied())
    st.load_flat_state(target, flat)
    assert target.last.weight is target.first.weight
    close(target.state_dict(), other.state_dict())


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda flat: flat.pop("first.weight.a"), "first.weight.a"),
        (lambda flat: flat.update(more=torch.ones(1)), "more"),
        (lambda flat: flat.update({"first.bias": torch.ones(5)}), "first.bias"),
        (lambda flat: flat.update({"first.bias": torch.ones(4, dtype=torch.int8)}), "first.bias"),
    ],
)
def test_a_wrong_state_names_the_key(change: Any, path: str) -> None:
    module = two(Tied())
    exported = st.export(module, (X,))
    flat, before = exported.flatten_state_dict(module.state_dict()), copy.deepcopy(module.state_dict())
    change(flat)
    for load in (exported.unflatten_state_dict, lambda f: st.load_flat_state(module, f)):
        with pytest.raises(ExportError) as caught:
            load(flat)
        assert caught.value.path == path and caught.value.got
    close(module.state_dict(), before)


# ---------------------------------------------------------------------------------------------- gradients
class Loss(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (self.model(x) - y).square().mean()


def run_graph(exported: Any, *inputs: torch.Tensor) -> list[Any]:
    program = exported.program
    state = {**program.state_dict, **program.constants}
    given = [state[s.target] for s in program.graph_signature.input_specs if s.target is not None]
    with torch.no_grad():
        return list(torch.fx.Interpreter(program.graph_module).run(*given, *inputs))


@pytest.mark.parametrize("wrap", [lambda m: m, two], ids=["dense", "wrapped"])
def test_joint(wrap: Any) -> None:
    torch.manual_seed(0)
    module = Loss(wrap(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))))
    y = torch.zeros(5, 4)
    exported = st.export_joint(module, (X, y))
    assert exported.tangents == ()
    outputs = run_graph(exported, *exported.flatten_inputs(X, y))
    loss = module(X, y)
    loss.backward(torch.ones_like(loss))
    gradients = dict(zip(exported.gradients, outputs[-len(exported.gradients) :], strict=True))
    close(exported.unflatten_outputs(outputs), loss.detach())
    expected = {n: p.grad for n, p in module.named_parameters()}
    flat = {}
    for name, value in expected.items():
        leaves, spec = flatten(value)
        flat |= dict(zip(leaf_paths(spec, name), leaves, strict=True))
    assert gradients.keys() == flat.keys()
    for name in flat:
        torch.testing.assert_close(gradients[name], flat[name])


def test_joint_with_tangents() -> None:
    x = X.clone().requires_grad_()
    exported = st.export_joint(lambda x, y: (x.sin() * y, x.detach()), (x, X))
    assert len(exported.tangents) == 1 and exported.gradients == ("x",)
    tangent = torch.rand_like(X)
    outputs = run_graph(exported, x.detach(), X, tangent)
    (expected,) = torch.autograd.grad(x.sin() * X, x, tangent)
    torch.testing.assert_close(outputs[-1], expected)


def test_joint_needs_something_to_differentiate() -> None:
    with pytest.raises(ExportError, match="no result is differentiable"):
        st.export_module(nn.ReLU(), (X,), trace_joint=True)


def test_a_whole_step() -> None:
    torch.manual_seed(0)
    model = two(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            loss = self.model(x).square().mean()
            grads = torch.autograd.grad(loss, [*self.model.parameters()], torch.ones_like(loss))
            with torch.no_grad():
                for p, g in zip(self.model.parameters(), grads, strict=True):
                    p.sub_(g * 0.1) if type(p) is type(g) else None
            return loss.detach()

    step = Step()
    exported = st.export(step, (X,))
    assert optimizer is not None and {"model.weight.a", "model.weight.b"} <= set(
        exported.program.graph_signature.buffers_to_mutate.values()
    )


# ---------------------------------------------------------------------------------------------- refusals
STATE: list[int] = []


def _grows(x: torch.Tensor) -> torch.Tensor:
    STATE.append(1)
    return x * 2


def test_python_state_is_no_program() -> None:
    with pytest.raises(ExportError, match="changes Python state") as caught:
        st.export(_grows, (X,))
    assert "STATE" in str(caught.value.path) and "strict=False" in str(caught.value.fix)
    exported = st.export(_grows, (X,), strict=False)
    assert torch.equal(exported.program.module()(X), X * 2) and STATE == []


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda x: x if x.sum() > 0 else -x, "it cannot be traced"),
        (lambda x: x * len(list(iter(range(int(x.sum().item()))))), "it cannot be traced"),
    ],
)
def test_what_cannot_be_traced_says_so(function: Any, what: str) -> None:
    with pytest.raises(ExportError, match=what) as caught:
        st.export(function, (X,))
    assert caught.value.path and "test_export.py" in str(caught.value.path)


def test_arguments_that_do_not_fit() -> None:
    exported = st.export(nn.Linear(4, 4), (TwoTensor(X, X + 1),))
    with pytest.raises(ExportError, match="another kind") as caught:
        exported.flatten_inputs(X)
    assert caught.value.path == "input"
    with pytest.raises(ExportError, match="another structure"):
        exported.flatten_inputs([X])
    of_two = st.export(lambda x, y: x - y, (), {"x": X, "y": X + 1})
    assert torch.equal(*(of_two.flatten_inputs(**named)[0] for named in ({"y": X + 1, "x": X}, {"x": X, "y": X + 1})))
    with pytest.raises(ExportError, match="no part of an argument"):
        st.export(lambda d: d["a"] + 1, ({"a": X},), dynamic_shapes={"d": {"A": {0: Dim.DYNAMIC}}})
    for args in ((TwoTensor(X, X), X + 1), (X, X)):
        with pytest.raises(ExportError, match="are one object"):
            st.export(lambda x, y: x * y, args)
    with pytest.raises(ExportError, match="no tuple"):
        st.export(nn.Linear(4, 4), X)  # type: ignore[arg-type]


@dataclasses.dataclass
class _Unregistered:
    a: torch.Tensor


def test_what_pytrees_do_not_see_is_no_constant() -> None:
    with pytest.raises(ExportError, match="do not take apart") as caught:
        st.export(lambda d: d.a * 2, (_Unregistered(X),))
    assert caught.value.path == "args[0].a"


def test_numbers_and_texts_are_in_the_program() -> None:
    def f(x: torch.Tensor, n: int, mode: str = "a", name: str = "") -> torch.Tensor:
        return x * n if mode == "a" else x

    exported = st.export(f, (X, 3), {"mode": "a", "name": "first"})
    exported.flatten_inputs(X, 3, mode="a", name="second")  # nobody reads it
    for args, kwargs in (((X, 4), {"mode": "a", "name": ""}), ((X, 3), {"mode": "b", "name": ""})):
        with pytest.raises(ExportError, match="not what it was exported with"):
            exported.flatten_inputs(*args, **kwargs)


def test_run_gives_gradients() -> None:
    w = torch.ones(4, requires_grad=True)
    exported = st.export_joint(lambda x, w: (x * w).sum(), (X, w))
    result, gradients = exported.run(X * 2, torch.ones(4))
    torch.testing.assert_close(result, (X * 2).sum())
    torch.testing.assert_close(gradients, {"w": (X * 2).sum(0)})
    with pytest.raises(ExportError, match="tangents"):
        exported.run(X, torch.ones(4), tangents=[X])


def test_sizes_that_depend_on_values(tmp_path: Path) -> None:
    exported = st.export(lambda x: x[x > 0] * 2, (torch.randn(6),))
    torch.export.save(exported.program, tmp_path / "m.pt2")
    x = torch.tensor([1.0, -1.0, 2.0, -2.0, 3.0, 0.5])
    torch.testing.assert_close(torch.export.load(tmp_path / "m.pt2").module()(x), x[x > 0] * 2)


def _lstm() -> tuple[nn.Module, torch.Tensor]:
    return nn.LSTM(4, 4, batch_first=True).eval(), torch.randn(2, 3, 4)


def test_operations_are_torchs() -> None:
    """The program is loaded where this package is not."""
    module, x = _lstm()
    with torch.no_grad():
        exported = st.export(module, (x,))
        expected = module(x)[0]
    targets = {str(n.target) for n in exported.program.graph.nodes if n.op == "call_function"}
    assert "aten.mkldnn_rnn_layer.default" in targets
    assert not any(t.startswith("subclass_trace") for t in targets)
    close(exported.program.module()(x)[0], expected)


def test_operations_of_ours_are_refused() -> None:
    module, x = _lstm()

    def loss(x: torch.Tensor) -> torch.Tensor:
        return module(x)[0].sum()

    def checked(x: torch.Tensor) -> torch.Tensor:
        if torch.isnan(x).any():
            raise ValueError("nan")
        return x * 2

    for fn, joint in (loss, True), (checked, False):
        with pytest.raises(ExportError, match="only this package has"):
            st.export(fn, (x,), joint=joint)


class Counted(nn.Module):
    n: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(4, 3)
        self.register_buffer("n", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        return self.l(x).sum() * self.n


@pytest.mark.parametrize("joint", [False, True])
def test_a_run_writes_what_the_program_writes(joint: bool) -> None:
    module, x = Counted(), torch.ones(2, 4)
    exported = st.export(copy.deepcopy(module), (x,), joint=joint)
    for _ in range(3):
        found = exported.run(x)
        close(found[0] if joint else found, module(x))
    assert exported.program.state_dict["n"].item() == module.n.item() == 3


def test_a_run_writes_to_arguments() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * y

    def given() -> tuple[torch.Tensor, torch.Tensor]:
        return TwoTensor(torch.ones(3), torch.zeros(3)), torch.ones(3) * 2

    inputs = [given() for _ in range(2)]
    exported = st.export(f, given())
    for _ in range(2):
        close(exported.run(*inputs[0]), f(*inputs[1]))
        close(inputs[0], inputs[1])


def _by_size(x: torch.Tensor) -> torch.Tensor:
    return x * 100 if x.shape[0] > 3 else x


def test_a_dim_is_asked_for_as_a_whole() -> None:
    with pytest.raises(ExportError, match=r"fewer sizes than were asked for(.|\n)*n from 0 to 10(.|\n)*from 2 to 3"):
        st.export(_by_size, (torch.ones(2),), dynamic_shapes=({0: Dim("n", max=10)},))
    for dim in (Dim("n", max=3), Dim.DYNAMIC):
        assert st.export(_by_size, (torch.ones(2),), dynamic_shapes=({0: dim},)).run(torch.ones(3)).tolist() == [1] * 3


@pytest.mark.parametrize("shapes", [None, ({0: Dim.DYNAMIC},)])
def test_a_run_is_for_the_sizes_of_the_program(shapes: Any) -> None:
    exported = st.export(_by_size, (torch.ones(2),), dynamic_shapes=shapes)
    for wrong in (torch.ones(5), torch.ones(2, 2), torch.ones(2).double()):
        with pytest.raises(ExportError):
            exported.run(wrong)
