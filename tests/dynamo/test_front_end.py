"""``torch.compile(..., backend="subclass_trace")``: finding it, options, graph breaks, sizes, aliasing, modules."""

from __future__ import annotations

import copy
import gc
import os
import subprocess
import sys
import textwrap
import weakref
from pathlib import Path

import pytest
import torch
import torch._dynamo
from compare import check, dense, two
from torch._dynamo.testing import CompileCounterWithBackend

import subclass_trace as st
from subclass_trace.frontends import dynamo
from subclass_trace.zoo import TwoTensor

#: Dynamo reads it of every tensor that it meets after a graph break
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
Tensor = torch.Tensor


def product(x, w):
    return torch.sin(x @ w) * x


# ---------------------------------------------------------------------------------------------- finding it
def test_a_fresh_process_finds_the_entry_point(tmp_path: Path) -> None:
    """Installed packages are found through their metadata: here that of this source tree, and torch alone is imported."""
    root = Path(st.__file__).parent.parent
    project = (root / "pyproject.toml").read_text()
    section = project.split("[project.entry-points.torch_dynamo_backends]\n")[1].split("\n\n")[0]
    info = tmp_path / "subclass_trace-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: subclass_trace\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[torch_dynamo_backends]\n{section.replace(chr(34), '')}\n")
    code = """
        import sys, torch
        assert "subclass_trace" in torch.compiler.list_backends(), torch.compiler.list_backends()
        assert "subclass_trace" not in sys.modules
        f = torch.compile(lambda x: x.sin() * 2, backend="subclass_trace", fullgraph=True)
        x = torch.ones(3, requires_grad=True)
        f(x).sum().backward()
        torch.testing.assert_close(x.grad, 2 * x.detach().cos())
        print("found")
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(root)])}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.stdout.strip() == "found", done.stderr


# ---------------------------------------------------------------------------------------------- options
def test_options_are_those_of_compile() -> None:
    graphs = []

    def noting(graph, example_inputs):
        graphs.append((graph.meta["is_backward"], [n.target for n in graph.graph.nodes if n.op == "call_function"]))
        return graph.forward

    check(product, lambda: (two(3, 3), two(3, 3)), options={"backend": noting, "partitioner": "default"})
    assert [backward for backward, _ in graphs] == [False, True]
    assert torch.ops.aten.sin.default in graphs[0][1]
    assert torch.ops.aten.sin.default not in graphs[1][1]  # "default" saves it


def test_decompositions() -> None:
    seen = []

    def noting(graph, example_inputs):
        seen.extend(n.target for n in graph.graph.nodes)
        return graph.forward

    table = {torch.ops.aten.silu.default: lambda x: x * x.sigmoid()}
    options = {"backend": noting, "decompositions": table}
    f = torch.compile(torch.nn.functional.silu, backend="subclass_trace", options=options)
    x = torch.randn(4)
    torch.testing.assert_close(f(x), torch.nn.functional.silu(x))
    assert torch.ops.aten.silu.default not in seen
    assert torch.ops.aten.sigmoid.default in seen


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "egaer"}, "there is no back end 'egaer'"),
        ({"partitoner": "default"}, "did you mean 'partitioner'"),
        ({"dynamic": True}, "what decides before a back end is asked"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(Exception, match=message) as caught:
        torch.compile(product, backend="subclass_trace", options=options)(torch.ones(2, 2), torch.ones(2, 2))
    assert "OptionError" in str(caught.value)


def test_a_mode_is_ignored_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="ignores mode='max-autotune'; instead choose by options="):
        check(product, lambda: (dense(3, 3), dense(3, 3)), mode="max-autotune")


@pytest.mark.inductor
@pytest.mark.parametrize("dynamic", [False, True])
def test_inductor(dynamic: bool) -> None:
    check(product, lambda: (two(3, 3), two(3, 3)), options={"backend": "inductor"}, dynamic=dynamic or None)


# ---------------------------------------------------------------------------------------------- graphs
def test_graph_breaks() -> None:
    def broken(x, w):
        y = x @ w
        torch._dynamo.graph_break()
        return y.sin() + x

    check(broken, lambda: (two(3, 3), dense(3, 3)), fullgraph=False)
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(broken, backend="subclass_trace", fullgraph=True)(two(3, 3), dense(3, 3))


def test_a_whole_step_with_breaks_compiles_no_code_of_ours() -> None:
    """The backward runs while Dynamo looks at frames: it must leave generated code alone."""
    from torch.testing._internal.two_tensor import TwoTensor as Pair  # Dynamo leaves its dispatch alone

    compiled = []
    model = torch.nn.Linear(3, 3)
    model.weight = torch.nn.Parameter(Pair(torch.eye(3), torch.eye(3)))
    tangent = Pair(torch.ones(2, 3), torch.ones(2, 3))

    def step(x):
        y = model(x).sin()
        y.backward(tangent)
        return y

    with pytest.MonkeyPatch.context() as patch:
        module = torch._dynamo.convert_frame
        original = module._compile
        patch.setattr(module, "_compile", lambda code, *a, **k: (compiled.append(code), original(code, *a, **k))[1])
        x = torch.randn(2, 3)
        torch.compile(step, backend="subclass_trace")(x)
    got = model.weight.grad
    model.weight.grad = None
    step(x)
    torch.testing.assert_close(got.a, model.weight.grad.a)
    files = {code.co_filename for code in compiled}
    assert __file__ in files
    assert not [f for f in files if "subclass_trace" in f and f != __file__]


def test_nodes_carry_the_users_lines() -> None:
    seen = []

    def noting(graph, example_inputs):
        seen.extend(graph.graph.nodes)
        return graph.forward

    torch.compile(product, backend="subclass_trace", options={"backend": noting})(torch.ones(2, 2), torch.ones(2, 2))
    sin = next(n for n in seen if n.target is torch.ops.aten.sin.default)
    assert "in product\n    return torch.sin(x @ w) * x" in sin.meta["stack_trace"]


# ---------------------------------------------------------------------------------------------- sizes


def test_sizes_that_changed_become_symbols() -> None:
    counter = CompileCounterWithBackend("subclass_trace")
    f = torch.compile(product, backend=counter)
    for n in (3, 4, 5, 6):
        x, w = two(n, n), two(n, n)
        torch.testing.assert_close(f(x, w).a, product(x, w).a)
    assert counter.frame_count == 2


def test_what_our_trace_assumes_of_sizes_is_guarded() -> None:
    """The wrapper branches on its size in ``__torch_dispatch__``, which Dynamo does not look into."""

    class Branching(TwoTensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            out = super().__torch_dispatch__(func, types, args, kwargs)
            if func is torch.ops.aten.sin.default and args[0].shape[0] > 5:
                return out * 100
            return out

    f = torch.compile(lambda x: x.sin() + 1, backend="subclass_trace", dynamic=True)
    for n in (3, 4, 8, 9):
        x = Branching(torch.ones(n), torch.ones(n))
        torch.testing.assert_close(f(x).a, (x.sin() + 1).a)


def test_numbers_as_arguments() -> None:
    counter = CompileCounterWithBackend("subclass_trace")
    f = torch.compile(lambda x, k: x * k + x.shape[0], backend=counter, dynamic=True)
    x = torch.randn(3)
    for k in (3, 7, 11):
        torch.testing.assert_close(f(x, k), x * k + 3)
    assert counter.frame_count == 1
    for k in (0.5, 2.5):
        torch.testing.assert_close(f(x, k), x * k + 3)
    assert counter.frame_count == 2


@pytest.fixture
def _data_dependent():
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        yield


@pytest.mark.usefixtures("_data_dependent")
def test_data_dependent_sizes() -> None:
    def narrowed(n, x):
        k = (n + 1).item()
        torch._check(k >= 0)
        torch._check(k <= 4)
        return x.narrow(0, 0, k) * 2

    compiled = check(narrowed, lambda: (torch.tensor(2), dense(4)))
    assert compiled(torch.tensor(0), torch.ones(4)).shape == (1,)
    check(lambda x: x.nonzero().float() * 2, lambda: (torch.tensor([1.0, 0.0, 2.0]),))


# ---------------------------------------------------------------------------------------------- memory and mutation
def test_inputs_changed_in_place() -> None:
    def change(x, y):
        x.mul_(2)
        y.a.add_(1)
        return x + y

    check(change, lambda: (two(3, grad=False), two(3, grad=False)))


def test_views_of_inputs() -> None:
    check(lambda x: (x.t(), x[1], x * 2), lambda: (two(3, 4),))
    check(lambda x: (x.view(-1), x.sin()), lambda: (dense(3, 4),))


def test_aliasing_that_appears_later() -> None:
    """Dynamo does not see that two wrappers share an inner tensor; the entry compares the memory of written calls."""

    def change(x, y):
        x.add_(1)
        return y * 2

    f = torch.compile(change, backend="subclass_trace", fullgraph=True)
    a, b, c, d = (torch.zeros(3) for _ in range(4))
    torch.testing.assert_close(f(TwoTensor(a, b), TwoTensor(c, d)).a, torch.zeros(3))
    shared = torch.zeros(3)
    out = f(TwoTensor(shared, torch.zeros(3)), TwoTensor(shared, torch.zeros(3)))
    torch.testing.assert_close(out.a, torch.full((3,), 2.0))
    torch.testing.assert_close(out.b, torch.zeros(3))


def test_the_call_that_was_compiled_for_is_not_kept_alive() -> None:
    f = torch.compile(product, backend="subclass_trace", fullgraph=True)
    x, w = two(3, 3), two(3, 3)
    f(x, w).sum()
    held = [weakref.ref(t) for t in (x, w, x.a, w.b)]
    del x, w
    gc.collect()
    assert [r() for r in held] == [None] * 4


def test_transforms_and_modes_around_the_call_run_the_graph() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    f = torch.compile(lambda x: x @ x, backend="subclass_trace")
    x = torch.randn(4, 4)
    f(x)
    with FlopCounterMode(display=False) as counter:
        f(x)
    assert counter.get_total_flops() == 2 * 4**3


# ---------------------------------------------------------------------------------------------- modules and training
def test_a_module_trains_as_in_eager() -> None:
    layers = (
        torch.nn.Linear(4, 8),
        torch.nn.BatchNorm1d(8),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(8, 2),
    )
    eager = torch.nn.Sequential(*layers)
    twin = copy.deepcopy(eager)
    losses = []
    for model in (eager, torch.compile(twin, backend="subclass_trace", fullgraph=True)):
        torch.manual_seed(0)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        rows = []
        for _ in range(5):
            loss = model(torch.randn(6, 4)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            rows.append(loss.item())
        losses.append(rows)
    torch.testing.assert_close(losses[1], losses[0])
    for (name, p), q in zip(eager.state_dict().items(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(q, p, msg=name)


def test_parameters_that_are_replaced_are_read_anew() -> None:
    model = torch.nn.Linear(3, 3)
    f = torch.compile(model, backend="subclass_trace", fullgraph=True)
    x = torch.randn(2, 3)
    f(x)
    model.weight = torch.nn.Parameter(TwoTensor(torch.eye(3), torch.eye(3)))
    torch.testing.assert_close(f(x).a, model(x).a)
    model.weight.data = TwoTensor(2 * torch.eye(3), torch.eye(3))
    torch.testing.assert_close(f(x).a, model(x).a)


def test_a_gradient_of_another_type_than_guessed() -> None:
    f = torch.compile(lambda x: (x.sin(), x.cos()), backend="subclass_trace", fullgraph=True)
    x = two(3)
    f(x)[0].backward(torch.ones(3))
    got, x.grad = x.grad, None
    x.sin().backward(torch.ones(3))
    torch.testing.assert_close(got.a, x.grad.a)


def test_a_graph_that_dynamo_did_not_make() -> None:
    graph = torch.fx.symbolic_trace(product)
    f = dynamo.subclass_trace(graph, [torch.ones(2, 2), torch.ones(2, 2)])
    x = two(3, 3)
    torch.testing.assert_close(f(x, x).a, product(x, x).a)


class _Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.k = k
        return x.sin() * k

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.cos() * ctx.k, None


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # which Dynamo does
def test_a_custom_function_of_sizes_that_change() -> None:
    def f(x):
        return _Sine.apply(x.reshape(-1, x.shape[-1]), x.shape[0]) + 1

    compiled = torch.compile(f, backend="subclass_trace", fullgraph=True)
    for n in (2, 3, 4):
        grads = []
        for call in (f, compiled):
            x = torch.linspace(0, 1, n * n * 3).reshape(n, n, 3).requires_grad_()
            call(x).square().sum().backward()
            grads.append(x.grad)
        torch.testing.assert_close(grads[1], grads[0])
