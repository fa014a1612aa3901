"""ST7xx: compiled against eager, with regions of this package and with torch.compile.

Each example compiles the same function with both: one of all programs that the class runs in eager
mode, since these are the dearest rules. Where torch.compile is known to fail for a sound class (a
view as a result, a tangent of another type, a wrapper without inner tensors), only the region is
asked. What a region refuses by a typed error (the class asks for `id`, or for the time) is no fault
of the class: torch.compile alone judges then.
"""

from __future__ import annotations

import contextlib

from ...errors import UnsupportedError
from ..rules import Cost, Severity, rule
from ..script import NotApplicable, Script, on

REGION = "st.compile(f, backend='eager')"
_RUNS = "what runs in eager mode runs compiled"
_REFUSED = "no compiler takes it"
#: (the other partitioner imports inductor)
TORCH = "torch.compile(f, backend='aot_eager_default_partitioner', fullgraph=True)"


@rule("ST701", "a compiled function gives the results of the eager one", cost=Cost.DEAR)
def forward(t: Script) -> None:
    """Class, sizes, strides and values of the result are those of eager mode, in the first call and
    in a second one with other numbers in tensors of the same sizes. Differences come from code in
    the class that behaves otherwise on fake tensors, from state outside of the context, from values
    that were read while tracing, and from a context that holds values and is not compared.

    Passes: `cls(func(x.codes), x.scale)`, on whatever tensors it gets.
    Fails: `self.calls += 1; return x if self.calls > 1 else -x`.
    """
    t.wrapper("x", min_dims=1)
    t.wrapper("z", "y")
    _define(
        t,
        _working(t, "(x * 2).sin() + 1", "x.sinh() * 2", "x.clone()", "x * x", "x.sum()", _LINEAR),
    )
    t.require("expected_x, expected_z = f(x), f(z)")

    def steps(compiler: str) -> None:
        t.run(f"g = {compiler}")
        t.run("y = g(x)", _RUNS, UnsupportedError)
        t.expect("y", "expected_x", "the result of eager mode")
        same = "[plain_meta(v) for v in {}]"
        t.expect(same.format("y"), same.format("expected_x"), "sizes and strides of eager mode")
        t.run("y = g(z)", "a second call runs")
        t.expect("y", "expected_z", "the result of eager mode for other values")

    t.each(_compilers(t), steps, _REFUSED)


@rule("ST702", "compiled gradients are those of eager mode", cost=Cost.DEAR)
def backward(t: Script) -> None:
    """The backward is traced together with the forward: other modes are on, and tensors are fake.
    The gradients must be those of eager mode, and of the same class; also for a tangent of another
    type than the traced one, for which a region traces another backward. (torch.compile refuses
    such tangents, or asks `__coerce_same_metadata_as_tangent__`: it is not asked.)

    Passes: a backward of operations alone.
    Fails: a backward that asks `isinstance(grad, MyTensor)` for the class that it saw in eager
    mode.
    """
    t.wrapper("x", grad=True, min_dims=1)
    ops = _working(t, "(x * 2).sigmoid()", "x.sin() * x", "x.asinh()", "x * 2", _LINEAR, grad=True)
    _define(t, ops)
    t.require("expected_y = f(x)")
    t.require("v = [y.detach() for y in expected_y]")
    t.require("(expected_g,) = torch.autograd.grad(expected_y, x, v)", "it refuses the backward")

    def steps(compiler: str) -> None:
        t.run(f"y = {compiler}(x)", _RUNS, UnsupportedError)
        t.run(
            "(g,) = torch.autograd.grad(y, x, v)",
            "what runs backward in eager mode does so compiled",
        )
        t.expect("g", "expected_g", "the gradient of eager mode")

    t.each(_compilers(t), steps, _REFUSED)
    with contextlib.suppress(NotApplicable):
        _dense_tangents(t, ops)


def _dense_tangents(t: Script, ops: list[str]) -> None:
    """Tangents of another type than the traced ones."""
    t.only_if(
        "all(hasattr(type(y), '__tensor_flatten__') for y in expected_y)", "its results are dense"
    )
    t.require("expected_y = f(x)")
    tangent = "torch.arange(1, x.numel() + 1, dtype=y.dtype)[: y.numel()].reshape(y.shape)"
    t.require(f"v = [{tangent} for y in expected_y]")
    t.require("(expected_g,) = torch.autograd.grad(expected_y, x, v)", "it refuses dense tangents")
    if t.subject.dense is not None:  # a wrong gradient in eager mode is another rule's matter
        t.require(f"d = {t.dense('x')}.detach().clone().requires_grad_()")
        t.require(
            f"(dense_g,) = torch.autograd.grad([{', '.join(on('d', op) for op in ops)}], d, v)"
        )
        t.only_if_near(t.project("expected_g"), "dense_g", "its dense tangents are ignored")
    t.run(f"y = {REGION}(x)", _RUNS, UnsupportedError)
    t.run(
        "(g,) = torch.autograd.grad(y, x, v)",
        "what takes a dense tangent in eager mode does so compiled",
    )
    t.expect("g", "expected_g", "the gradient of eager mode")


@rule(
    "ST703", "one compiled function serves several sizes", severity=Severity.WARNING, cost=Cost.DEAR
)
def dynamic_sizes(t: Script) -> None:
    """With `dynamic=True` sizes are symbols. The class must compute outer sizes from them, and not
    from numbers that it
    remembers: a second call with other sizes gives the result of eager mode.

    Passes: `x.codes.view(x.shape[0], -1)`.
    Fails: `x.codes.view(self.rows, -1)`, with the rows of the instance that was traced.
    """
    t.wrapper("x", min_dims=1)
    t.larger("z")
    _define(t, _working(t, "(x * 2).sin()", "x.clone()", "x * x", "x.sum()", _LINEAR))
    t.require("expected_x, expected_z = f(x), f(z)")

    def steps(compiler: str) -> None:
        t.run(f"g = {compiler.replace('f,', 'f, dynamic=True,')}")
        t.run("y = g(x)", "it can be compiled for symbolic sizes", UnsupportedError)
        t.expect("y", "expected_x", "the result of eager mode")
        t.run("y = g(z)", "the compiled function serves other sizes")
        t.expect("y", "expected_z", "the result of eager mode for other sizes")

    t.each(_compilers(t, dynamic=True), steps, _REFUSED)


@rule("ST704", "a compiled function writes what the eager one writes", cost=Cost.DEAR)
def mutation(t: Script) -> None:
    """A write to an argument inside of a compiled function must be in the argument after the call.
    Tracers follow in-place operations on the inner tensors; replacing an attribute in
    `__torch_dispatch__` changes the traced instance only.

    torch.compile writes the result back by `copy_` of one wrapper into the other, of which each
    inner tensor must be copied
    by itself: a `copy_` that quantises anew, or computes with the whole value, fails here. For a
    class of the kit that is `MyTensor.implements_per_inner(aten.copy_.default)`.

    Passes: `x.codes.add_(n); return x`.
    Fails: `x.codes = x.codes + n; return x`.
    """
    t.wrapper("x", min_dims=1)
    t.require("z = x.clone()")
    t.require("assert same(z, x) and not shares_memory(x, z)", "its clone is another thing")
    t.require("assert copy_works(x)", "its copy_ is another thing")
    op = "; ".join(
        _working(t, "x.sub_(1)", "x.mul_(2)", "x.add_(1)", "x.copy_(x * 2)", subject="x.clone()")
    )
    t.run("torch.compiler.reset()")
    t.require(f"def f(x):\n    {op}\n    return x * 1")
    t.require("torch.manual_seed(1)\nexpected_y = f(z)", "it refuses x * 1")

    def steps(compiler: str) -> None:
        t.require("w = x.clone()")
        t.run(f"torch.manual_seed(1)\ny = {compiler}(w)", _RUNS, UnsupportedError)
        t.expect("y", "expected_y", "the result of eager mode")
        t.expect("w", "z", "the argument after the call is that of eager mode")

    t.each(_compilers(t), steps, _REFUSED)


# ---- inside
_LINEAR = "torch.nn.functional.linear(torch.ones(2, x.shape[-1], dtype=x.dtype), x)"


def _working(t: Script, *programs: str, grad: bool = False, subject: str = "x") -> list[str]:
    """The programs that run in eager mode."""
    runs = []
    for program in programs:
        try:
            y = t.value(on(subject, program))
            if not grad or y.requires_grad:
                runs.append(program)
        except Exception:
            continue
    if not runs:
        raise NotApplicable(f"it refuses {programs[0]} and all others of these programs")
    return runs


def _define(t: Script, ops: list[str]) -> None:
    t.run("torch.compiler.reset()")
    t.run(f"def f(x):\n    return [{', '.join(ops)}]")


def _compilers(t: Script, dynamic: bool = False) -> tuple[str, ...]:
    """What to compile with, if the class can be traced at all: the rules on the protocol and on
    fake tensors hold.

    torch.compile does not take wrappers without inner tensors.
    """
    t.require("import subclass_trace as st")
    t.require("assert rebuilds(x)", "it does not come back from flatten and unflatten")
    mode = "faking_symbolic()" if dynamic else "faking()"
    t.require(f"faked({mode}, x, dynamic={dynamic})", "it has no fake twin")
    return (REGION, TORCH) if t.value("leaves(x)") else (REGION,)
