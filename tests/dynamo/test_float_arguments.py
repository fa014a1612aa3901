"""Python numbers that change between calls of ``torch.compile(..., backend="subclass_trace")``.

Dynamo hands a float over in a tensor, with a symbol for the number inside. Values, gradients, changed inputs and the
state of the random generator are those of eager for each of several numbers, one after the other.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from compare import agree, dense, two
from torch._dynamo.testing import CompileCounterWithBackend

import subclass_trace as st
from subclass_trace.frontends import region

FLOATS = (0.5, 0.3, 0.1, 0.7)
INTS = (1, 2, 4, 3)
CLASSES = torch.tensor([0, 1])
#: the first group: kernels, or backwards, that take a number; then composite functions; then in-place operations
FUNCTIONS = {
    "add": (lambda x, p: torch.add(x, x.sin(), alpha=p), FLOATS),
    "clamp": (lambda x, p: x.clamp(-p, p), FLOATS),
    "elu": (F.elu, FLOATS),
    "leaky_relu": (F.leaky_relu, FLOATS),
    "pow": (lambda x, p: x.abs() ** p, FLOATS),
    "rpow": (lambda x, p: (p + 1) ** x, FLOATS),
    "mul": (lambda x, p: x * p, FLOATS),
    "foreach": (lambda x, p: torch._foreach_add([x], [x.sin()], alpha=p)[0], FLOATS),
    "dropout": (F.dropout, FLOATS),
    "gumbel_softmax": (lambda x, p: F.gumbel_softmax(x, tau=p), FLOATS),
    "label_smoothing": (lambda x, p: F.cross_entropy(x, CLASSES, label_smoothing=p), FLOATS),
    "momentum": (lambda x, p: F.batch_norm(x, torch.zeros(3), torch.ones(3), training=True, momentum=p), FLOATS),
    "mul_": (lambda x, p: x.sin().mul_(p), FLOATS),
    "lerp_": (lambda x, p: x.sin().lerp_(x, 1 - p), FLOATS),
    "branch": (lambda x, p: x * p if p > 0.2 else x.sin(), FLOATS),
    "of other order": (lambda x, p: x.clamp(max=p * 2 + 1 - p / 3), FLOATS),  # sympy adds up in another one
    "of math": (lambda x, p: x * round(math.cos(p) * 7, 1) + math.floor(p * 9), FLOATS),
    "place": (lambda x, k: x.select(1, k - 2), INTS),  # the place alone is a symbol
    "integer power": (lambda x, k: x**k, INTS),  # torch has no derivative for a symbol here
    "integer slope": (F.leaky_relu, INTS),
    "quotient": (lambda x, k: x.clamp(max=k / 3.0), INTS),
}
QUICK = ("clamp", "rpow", "foreach", "dropout", "mul_", "of other order", "of math", "place", "integer power")


def follow(function, make, numbers=FLOATS, **options) -> None:
    """Compare with eager for one number after the other."""
    compiled = torch.compile(function, backend="subclass_trace", **options)
    for n in numbers:
        agree(*(lambda *args, f=f, n=n: f(*args, n) for f in (function, compiled)), make)


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in FUNCTIONS])
@pytest.mark.sweep(every=3)
def test_numbers_that_change(name: str) -> None:
    function, numbers = FUNCTIONS[name]

    def with_stream(x, n):
        return function(x, n), torch.rand(1)

    follow(with_stream, lambda: (dense(2, 3),), numbers)


@pytest.mark.parametrize(
    "name", ["clamp", *[pytest.param(n, marks=pytest.mark.slow) for n in ("add", "pow", "mul_", "place")]]
)
def test_of_wrappers(name: str) -> None:
    follow(FUNCTIONS[name][0], lambda: (two(2, 3),), FUNCTIONS[name][1])


def test_in_an_attribute_of_a_module() -> None:
    class Limited(torch.nn.Module):
        limit = 0.0

        def forward(self, x):
            return F.dropout(x, self.limit).clamp(max=self.limit)

    model = Limited()
    compiled = torch.compile(model, backend="subclass_trace", fullgraph=True)
    for model.limit in FLOATS:
        agree(model, compiled, lambda: (dense(2, 3),))


def test_one_that_may_stay_a_symbol_is_compiled_for_once() -> None:
    counter = CompileCounterWithBackend("subclass_trace")
    compiled = torch.compile(lambda x, p: x.sin().mul_(p), backend=counter)
    for p in FLOATS:
        x = dense(3)
        torch.testing.assert_close(compiled(x, p), x.sin() * p)
    assert counter.frame_count == 2


def test_a_difference_of_two_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its graph reads the numbers alone: that of a resumed function which stores how long something took."""
    made, compile_call = [], region.compile_call
    monkeypatch.setattr(
        region, "compile_call", lambda *args, **kwargs: made.append(compile_call(*args, **kwargs)) or made[-1]
    )
    compiled = torch.compile(lambda x, p: (torch.scalar_tensor(p - 0.2), x), backend="subclass_trace")
    for p in (*FLOATS, 0.9, 0.8):
        assert compiled(x := dense(3), p)[0] == torch.scalar_tensor(p - 0.2), x
    assert len(made) == 2


def test_inputs_that_share_memory_go_to_a_region_with_the_number() -> None:
    def function(x, y, z, p):
        y.mul_(p)
        return x.clamp(max=p) * z

    compiled = torch.compile(function, backend="subclass_trace")
    for shared in (False, True):
        for p in FLOATS:

            def make(shared=shared):
                y = dense(3, grad=False)
                return dense(3), y, y.view(3) if shared else y.clone()

            agree(*(lambda *args, f=f, p=p: f(*args, p) for f in (function, compiled)), make)


# An eager double backward of a jagged tensor leaves a history on a tensor that torch keeps for all views of such.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_a_jagged_graph_gets_the_number() -> None:
    def make():
        values = [torch.ones(2, 3), torch.ones(3, 3)]
        return (torch.nested.nested_tensor(values, layout=torch.jagged),)

    compiled = torch.compile(F.dropout, backend="subclass_trace")
    for p in FLOATS[:3]:
        found = []
        for f in (F.dropout, compiled):
            torch.manual_seed(0)
            found.append(f(*make(), p).values())
        assert torch.equal(*found)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_the_number_in_a_tensor_of_the_user(dtype: torch.dtype) -> None:
    def function(x, t):
        return x.clamp(max=t.item())

    compiled = torch.compile(function, backend="subclass_trace", fullgraph=True)
    for n in (1, 2, 0):
        agree(function, compiled, lambda n=n: (dense(9), torch.tensor(n, dtype=dtype)))


@pytest.mark.parametrize("function", [lambda x: (x.abs() + 1) ** x.shape[0], lambda x: x.clamp(max=x.shape[0] / 3.0)])
def test_numbers_computed_of_sizes(function) -> None:
    compiled = torch.compile(function, backend="subclass_trace", dynamic=True)
    for n in (2, 3, 5, 2):
        agree(function, compiled, lambda n=n: (dense(n, 2),))


@pytest.fixture
def _pair_operation() -> object:
    """``(x * k, x)``; its backward branches on k where the second result has no tangent."""
    library = torch.library.Library("float_arguments", "DEF")
    library.define("pair(Tensor x, Scalar k) -> (Tensor, Tensor)")
    library.impl("pair", lambda x, k: (x * k, x.clone()), "CompositeExplicitAutograd")
    torch.library.register_fake(
        "float_arguments::pair", lambda x, k: (torch.empty_like(x), torch.empty_like(x)), lib=library
    )

    def setup(ctx, inputs, output):
        ctx.k = inputs[1]
        ctx.set_materialize_grads(False)

    def backward(ctx, first, second):
        if second is not None:
            return first * ctx.k + second, None
        return (first * ctx.k * 2 if ctx.k > 0.4 else first * ctx.k * 3), None

    torch.library.register_autograd("float_arguments::pair", backward, setup_context=setup, lib=library)
    yield
    library._destroy()


@pytest.mark.usefixtures("_pair_operation")
def test_what_a_later_backward_assumes_of_a_number() -> None:
    def function(x, p):
        return torch.ops.float_arguments.pair(x, p)

    def gradients(f, p, results):
        x = torch.ones(2, requires_grad=True)
        found = f(x, p)[:results]
        return torch.autograd.grad(found, x, [torch.ones(2)] * results)[0]

    compiled = torch.compile(function, backend="subclass_trace", fullgraph=True)
    refused = []
    for p in (0.9, 0.3, 0.2, 0.35, 0.7, 0.25, 0.8):
        for results in (2, 1):
            try:
                found = gradients(compiled, p, results)
            except st.TangentError:  # asks to call again: from now on it is a number
                refused.append(p)
                found = gradients(compiled, p, results)
            assert torch.equal(found, gradients(function, p, results))
    assert refused == [0.7]
