"""Back ends: names, the boxed convention, errors, and inductor below Dynamo."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx as fx
from torch.fx.experimental.proxy_tensor import make_fx

import subclass_trace as st
from subclass_trace.backends import Backend, compile_with, register_backend, resolve_backend
from subclass_trace.backends.eager.graph_code import BoxedGraph
from subclass_trace.errors import BackendError, OptionError, UnsupportedError


def identity(gm: fx.GraphModule, example_inputs: Any) -> Any:
    return gm.forward


def other(gm: fx.GraphModule, example_inputs: Any) -> Any:
    return gm


# ---------------------------------------------------------------------------------------------- names
def test_built_in_names() -> None:
    assert resolve_backend("aot_eager") is resolve_backend("eager")
    assert resolve_backend("eager").decompositions is None
    assert resolve_backend("inductor").decompositions is not None


def test_a_back_end_is_itself_and_a_callable_serves_every_graph() -> None:
    backend = resolve_backend("eager")
    assert resolve_backend(backend) is backend
    assert resolve_backend(identity) == Backend("identity", identity, identity, identity)


def test_compilers_replace_those_of_the_back_end() -> None:
    eager = resolve_backend("eager")
    both = resolve_backend("eager", fw_compiler=identity, bw_compiler=other)
    assert (both.name, both.forward, both.backward, both.inference) == ("identity+other", identity, other, identity)
    forward = resolve_backend("inductor", fw_compiler=identity)
    assert (forward.forward, forward.backward, forward.inference) == (identity, identity, identity)
    backward = resolve_backend("eager", bw_compiler=other)
    assert backward == dataclasses.replace(eager, name="eager+other", backward=other)


def test_registered_names() -> None:
    mine = register_backend("mine", Backend("other", identity, other, identity, dict), replace=True)
    assert resolve_backend("mine") is mine == Backend("mine", identity, other, identity, dict)
    with pytest.raises(OptionError, match="there is a back end 'mine' already"):
        register_backend("mine", other)
    assert register_backend("mine", other, replace=True).forward is other


def test_built_in_names_are_taken() -> None:
    with pytest.raises(OptionError, match=r"(?s)there is a back end 'eager' already.*choose another name$"):
        register_backend("eager", identity, replace=True)


def test_an_unknown_name() -> None:
    with pytest.raises(
        OptionError,
        match=r"(?s)no back end 'Inducter'.*'aot_eager', 'cudagraphs', 'eager', 'inductor'.*register_backend",
    ):
        resolve_backend("Inducter")


@pytest.mark.parametrize(
    ("path", "arguments"),
    [
        ("backend", {"backend": 3}),
        ("fw_compiler", {"backend": "eager", "fw_compiler": "inductor"}),
        ("bw_compiler", {"backend": "eager", "bw_compiler": 1.5}),
    ],
)
def test_what_cannot_be_called_is_no_compiler(path: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(OptionError) as caught:
        resolve_backend(**arguments)
    assert caught.value.path == path and str(caught.value).startswith("a back end's compiler must be callable")


# ---------------------------------------------------------------------------------------------- the boxed convention
def graph(f: Callable[..., Any], *inputs: torch.Tensor, **options: Any) -> tuple[fx.GraphModule, list[Any]]:
    """A dense graph, and its fake example inputs."""
    gm = make_fx(f, **{"tracing_mode": "fake", **options})(*inputs)
    return gm, [n.meta["val"] for n in gm.graph.nodes if n.op == "placeholder"]


X = torch.arange(6.0).view(2, 3)


def run(compiler: Any, f: Callable[..., Any], *inputs: torch.Tensor, is_backward: bool = False) -> Any:
    compiled = compile_with(compiler, *graph(f, *inputs), is_backward=is_backward, name="test")
    boxed = list(inputs)
    with torch.no_grad():
        result = compiled(boxed)
    assert boxed == [] and compiled._boxed_call  # type: ignore[attr-defined]
    return result


def boxed_result(gm: fx.GraphModule, example_inputs: Any) -> Any:
    def function(inputs: list[Any]) -> Any:
        return gm.forward(*inputs)  # leaves the list as it is

    function._boxed_call = True  # type: ignore[attr-defined]
    return function


@pytest.mark.parametrize("compiler", [identity, other, boxed_result, resolve_backend("eager").forward])
def test_results_of_all_kinds_become_boxed(compiler: Any) -> None:
    two, none, same = run(compiler, lambda x: [x + x, None, x], X)
    assert torch.equal(two, X + X) and none is None and same is X


def test_a_single_tensor_is_one_output() -> None:
    (result,) = run(lambda gm, _: lambda x: x.exp(), lambda x: [x.exp()], X)
    assert torch.equal(result, X.exp())
    (result,) = run(identity, lambda x: x.exp(), X)
    assert torch.equal(result, X.exp())


@pytest.mark.parametrize(
    ("result", "got"),
    [([X], "1 values"), ((X, X, X), "3 values"), (X, "a Tensor"), (None, "a NoneType"), ({}, "a dict")],
)
def test_a_wrong_number_of_results_is_an_error(result: Any, got: str) -> None:
    with pytest.raises(BackendError) as caught:
        run(lambda gm, _: lambda x: result, lambda x: [x, x.exp()], X, is_backward=True)
    assert "for the backward graph returned something else" in str(caught.value) and caught.value.got == got


def test_the_compiler_learns_which_graph_it_has() -> None:
    seen = []

    def compiler(gm: fx.GraphModule, example_inputs: Any) -> Any:
        seen.append((gm.meta["is_backward"], [tuple(x.shape) for x in example_inputs]))
        return gm

    for is_backward in (True, False):
        run(compiler, lambda x: [x + 1], X, is_backward=is_backward)
    assert seen == [(True, [(2, 3)]), (False, [(2, 3)])]


def test_the_compiler_may_rewrite_the_graph() -> None:
    def compiler(gm: fx.GraphModule, example_inputs: Any) -> Any:
        result = gm.forward
        for node in reversed(gm.graph.nodes):
            gm.graph.erase_node(node)
        return result

    assert len(run(compiler, lambda x: [x + 1, x], X)) == 2


def test_inputs_are_freed_while_the_graph_runs() -> None:
    gm, examples = graph(lambda x: [x.exp().sin()], X)
    compiled = compile_with(resolve_backend("eager").backward, gm, examples, is_backward=True, name="eager")
    inputs = [X.clone()]
    alive = weakref.ref(inputs[0])
    result = compiled(inputs)
    assert alive() is None and torch.equal(result[0], X.exp().sin())


def test_eager_names_its_functions() -> None:
    gm, examples = graph(lambda x: [x + 1], X)
    for is_backward, name in ((True, "backward"), (False, "forward")):
        gm.meta["is_backward"] = is_backward
        compiled = resolve_backend("eager").inference(gm, examples)
        assert isinstance(compiled, BoxedGraph) and compiled.name == name
        assert (
            compile_with(lambda *_, c=compiled: c, gm, examples, is_backward=is_backward, name="") is compiled.function
        )


# ---------------------------------------------------------------------------------------------- errors of compilers
def test_what_is_returned_must_be_callable() -> None:
    with pytest.raises(BackendError, match="did not return a callable for the forward graph"):
        run(lambda gm, _: "code", lambda x: [x + 1], X)


@pytest.mark.parametrize("which", ["forward", "backward"])
def test_exceptions_of_a_compiler_say_which_graph_it_was(which: str) -> None:
    def compiler(gm: fx.GraphModule, example_inputs: Any) -> Any:
        raise KeyError("lost")

    with pytest.raises(BackendError, match=f"the back end 'test' failed on the {which} graph") as caught:
        run(compiler, lambda x: [x + 1], X, is_backward=which == "backward")
    assert isinstance(caught.value.__cause__, KeyError) and caught.value.got == "KeyError: 'lost'"


def test_our_own_errors_pass() -> None:
    def compiler(gm: fx.GraphModule, example_inputs: Any) -> Any:
        raise UnsupportedError("no", code="graph-node")

    with pytest.raises(UnsupportedError, match=r"^no$"):
        run(compiler, lambda x: [x + 1], X)


# ---------------------------------------------------------------------------------------------- inductor
INDUCTOR = resolve_backend("inductor")


def inductor_graph(f: Callable[..., Any], *inputs: torch.Tensor, **options: Any) -> tuple[fx.GraphModule, list[Any]]:
    assert INDUCTOR.decompositions is not None
    return graph(f, *inputs, decomposition_table=INDUCTOR.decompositions(), **options)


def layer(x: torch.Tensor, w: torch.Tensor) -> list[Any]:
    y = torch.nn.functional.layer_norm(x @ w, (8,)).t()
    return [y, None, x, torch.rand_like(y)]


@pytest.mark.inductor
@pytest.mark.parametrize("role", ["forward", "backward", "inference"])
def test_inductor(role: str) -> None:
    x, w = torch.randn(4, 8), torch.randn(8, 8)
    gm, examples = inductor_graph(layer, x, w)
    text, code = str(gm.graph), gm.code
    compiled = compile_with(getattr(INDUCTOR, role), gm, examples, is_backward=role == "backward", name="inductor")
    assert (str(gm.graph), gm.code) == (text, code)  # inductor rewrote a copy
    shifted = torch.randn(65)[1:].view(8, 8)  # the data are aligned to 4 bytes, those of the example to 64
    for weight in (w, shifted):
        inputs = [x, weight]
        torch.manual_seed(0)
        with torch.no_grad():
            actual = compiled(inputs)
        torch.manual_seed(0)
        expected = layer(x, weight)
        assert inputs == [] and actual[1] is None
        for a, b in zip(actual, expected, strict=True):
            if b is not None:
                torch.testing.assert_close(a, b)
                assert a.stride() == b.stride()
        assert actual[2].data_ptr() == x.data_ptr()


@pytest.mark.inductor
def test_inductor_on_real_examples_and_without_operations() -> None:
    gm, _ = graph(lambda x: [x, None], X)
    compiled = compile_with(INDUCTOR.inference, gm, [X], is_backward=False, name="inductor")
    inputs = [X]
    assert compiled(inputs) == (X, None) or list(compiled([X])) == [X, None]
    assert inputs == []


@pytest.mark.inductor
def test_inductor_gets_the_decompositions_of_higher_order_operators() -> None:
    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.ops.higher_order.out_dtype(torch.ops.aten.mm.default, torch.int32, a, b)

    a, b = (torch.arange(32, dtype=torch.int8).view(s) for s in ((4, 8), (8, 4)))
    assert torch.equal(st.compile(product, backend="inductor", frontend="trace")(a, b), product(a, b))


def test_inductor_refuses_a_generator_that_it_cannot_write() -> None:
    drawn = torch.Generator().manual_seed(0)
    region = st.compile(lambda x: x + torch.rand(2, generator=drawn), backend="inductor", frontend="trace")
    with pytest.raises(st.UnsupportedError, match="no place for a generator of random numbers"):
        region(torch.ones(2))


def test_a_missing_compiler_is_named() -> None:
    from torch._inductor import config

    gm, examples = graph(lambda x: [x + 1], X)
    with config.patch({"cpp.cxx": ("no-such-compiler",)}), pytest.raises(BackendError, match="InvalidCxxCompiler"):
        compile_with(INDUCTOR.forward, gm, examples, is_backward=False, name="inductor")


def test_importing_the_back_ends_imports_no_compiler() -> None:
    import subprocess
    import sys

    code = "import subclass_trace.backends, sys; print({'torch._dynamo', 'torch._inductor'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"


def test_a_back_end_that_rewrites_its_graph() -> None:
    def rewrites(gm: torch.fx.GraphModule, example_inputs: object) -> object:
        for node in [n for n in gm.graph.nodes if n.target is torch.ops.aten.topk.default]:
            with gm.graph.inserting_before(node):
                new = gm.graph.call_function(node.target, node.args, node.kwargs)
            node.replace_all_uses_with(new)
            gm.graph.erase_node(node)
        gm.recompile()
        return gm.forward

    x = torch.randn(5)
    values, indices = st.compile(lambda x: torch.topk(x, 2), backend=rewrites)(x)
    assert torch.equal(values, torch.topk(x, 2).values) and torch.equal(indices, torch.topk(x, 2).indices)


def test_tangents_without_memory_are_given_some() -> None:
    """Autograd makes such zeros; code of inductor's reads memory."""
    seen = []

    def notes(gm: torch.fx.GraphModule, example_inputs: object) -> object:
        def call(*args: torch.Tensor) -> object:
            seen.extend(a._is_zerotensor() for a in args)
            return gm(*args)

        return call

    region, x = st.compile(lambda x: x.sin() * x, backend=notes), torch.ones(3, requires_grad=True)
    for _ in range(2):
        (g,) = torch.autograd.grad(region(x), x, torch._efficientzerotensor((3,)))
        assert not g.any() and seen and not any(seen)


def test_inductor_runs_what_a_kernel_of_torch_keeps_for_its_backward() -> None:
    torch.manual_seed(0)
    model, x = torch.nn.LSTM(4, 5, num_layers=2), torch.randn(2, 3, 4, requires_grad=True)
    found = []
    for run in (model, st.compile(model, backend="inductor", frontend="trace")):
        model.zero_grad()
        (y := run(x)[0]).square().sum().backward()
        found.append([y, *(p.grad for p in model.parameters())])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("grad", [False, True])
def test_inductor_takes_a_number_that_changes(grad: bool) -> None:
    class Counted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.k = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.k += 1
            return x.sin() * self.k

    module = Counted()
    region = st.compile(module, backend="inductor", frontend="trace")
    x = torch.ones(2, 3, requires_grad=grad)
    for k in range(1, 6):
        torch.testing.assert_close(region(x), x.sin() * k)
    assert len(region.specializations) == 2
