"""Declared wrappers inside compiled regions: the results, gradients and writes of eager, by our regions and by torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from authored import MAKERS, Grid, Halves, Pair, Rounding, Scaled, Shifted, assert_equal, leaves, randn, structure
from torch import Tensor, nn
from torch.nn import functional as F
from torch_features import compiled_wrappers_have_strides_of_symbols

import subclass_trace as st

LINEAR = ["pair", "tagged", "scaled", "scaled double", "function", "shifted", "unshifted", "pair of scaled"]


def program(x: Tensor, w: Tensor) -> Tensor:
    """A layer: the wrapper is its weight."""
    return F.linear(x.to(w.dtype), w).relu() + 1


def both(function: Any, arguments: Any, **options: Any) -> tuple[list[Any], list[Any], Any]:
    """What eager and compiled give: results, inputs after the call, gradients; and the region."""
    region = st.compile(function, **options)
    found = []
    for f in (function, region):
        args = arguments()
        out = f(*args)
        outs = out if isinstance(out, (list, tuple)) else [out]
        row = list(outs)
        if any(isinstance(o, Tensor) and o.requires_grad for o in outs):
            torch.autograd.backward([o for o in outs if o.requires_grad], [o.detach() for o in outs if o.requires_grad])
            row += [a.grad for a in args if isinstance(a, Tensor) and a.is_leaf]
        found.append([*row, *args])
    return found[0], found[1], region


def assert_both(function: Any, arguments: Any, **options: Any) -> Any:
    eager, compiled, region = both(function, arguments, **options)
    for a, b in zip(compiled, eager, strict=True):
        if isinstance(a, Tensor):
            assert structure(a)[:3] == structure(b)[:3]
            for x, y in zip(leaves(a), leaves(b), strict=True):
                torch.testing.assert_close(x, y)
        else:
            assert a is b is None or a == b
    return region


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.sweep(every=4)
def test_linear(name, training, dynamic) -> None:
    def arguments() -> Any:
        return randn(3, 4).requires_grad_(training), MAKERS[name]().requires_grad_(training)

    region = assert_both(program, arguments, dynamic=dynamic or None)
    assert len(region.specializations) == 1
    if dynamic:
        region(randn(7, 4), MAKERS[name]().requires_grad_(training))
        assert len(region.specializations) <= 2, region.explain()


PROGRAMS: dict[str, tuple[Any, Any]] = {
    "write": (lambda x, y: x.mul_(2).add_(y), lambda: (MAKERS["scaled"](), randn(4, 4))),
    "write a view": (lambda x: x[1:].t()[0].zero_(), lambda: (MAKERS["scaled"](),)),
    "view": (lambda x: x.t()[1:], lambda: (MAKERS["shifted"](),)),
    "pair views": (lambda x: x.t().mul_(3).split(2)[1], lambda: (MAKERS["pair"](),)),
    "rule with context": (lambda x: x.cos() * 2, lambda: (MAKERS["tagged"](),)),
    "wrapper around wrappers": (lambda x, y: x @ y + 1, lambda: (MAKERS["scaled pair"](), MAKERS["scaled pair"]())),
    "made inside": (lambda a: Scaled(a * 2, a.sum()) @ a, lambda: (randn(4, 4),)),
    "returned": (lambda a: Scaled(a * 2, a.amax(), torch.float64), lambda: (randn(4, 4),)),
    "taken apart": (lambda x: x.codes * x.scale + x.dequantize(), lambda: (MAKERS["scaled"](),)),
    "replaced": (lambda x: x.replace(codes=x.codes + 1), lambda: (MAKERS["scaled"](),)),
    "optional appears": (lambda x: x.replace(shift=x.data_ * 2) + 1, lambda: (MAKERS["unshifted"](),)),
    "dequantize": (lambda x: x.dequantize().sin(), lambda: (MAKERS["halves"]().requires_grad_(),)),
    "halves": (lambda x: torch.ones(3, 4) @ x, lambda: (MAKERS["halves"]().requires_grad_(),)),
    "no inner tensors": (lambda x: x.detach(), lambda: (MAKERS["empty"](),)),
    "strict": (lambda x: x.sin().add_(1), lambda: (MAKERS["strict"](),)),
    "random": (lambda x: F.dropout(x, 0.5, training=True) * 0, lambda: (MAKERS["pair"](),)),
}


@pytest.mark.parametrize("function, arguments", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.sweep(every=4)
def test_programs(function, arguments, dynamic) -> None:
    assert_both(function, arguments, dynamic=dynamic or None)


def test_autograd_functions_above_dispatch() -> None:
    region = assert_both(program, lambda: (randn(3, 4).requires_grad_(), MAKERS["function"]().requires_grad_()))
    x, w = randn(3, 4).requires_grad_(), MAKERS["function"]().requires_grad_()
    region(x, w).sum().backward()
    dense = randn(3, 4).requires_grad_()
    program(dense, w.detach().dequantize()).sum().backward()
    torch.testing.assert_close(x.grad, dense.grad * 10)  # the author's own derivative


def test_context_is_guarded() -> None:
    region = st.compile(lambda x: x.dequantize() if x.grid.rounding is Rounding.DOWN else x.data_ * 1)
    x, y = (Shifted(torch.ones(2), torch.ones(2), Grid(8, r)) for r in (Rounding.DOWN, Rounding.NEAREST))
    assert region(x).tolist() == [2, 2] and region(y).tolist() == [1, 1] and region(x).tolist() == [2, 2]
    assert region(Shifted(torch.ones(2), None, Grid(8, Rounding.DOWN))).tolist() == [1, 1]
    assert len(region.specializations) == 3


# ------------------------------------------------------------------------------------------------------- torch.compile
@pytest.fixture
def dynamo() -> Any:
    torch._dynamo.reset()
    yield torch.compile
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["pair", "tagged", "scaled", "function", "shifted"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.sweep(every=3)
def test_torch_compile(name, dynamic, dynamo) -> None:
    if dynamic and name in ("pair", "tagged") and not compiled_wrappers_have_strides_of_symbols():
        pytest.skip("with dynamic sizes, torch.compile of this torch gives wrappers the strides of another size")
    compiled = dynamo(program, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    sides = []
    for f in (program, compiled):
        x, w = randn(3, 4).requires_grad_(), MAKERS[name]().requires_grad_()
        out = f(x, w)
        out.backward(out.detach())
        sides.append((out.detach(), x.grad, w.grad))
    for a, b in zip(*sides, strict=True):
        assert_equal(a, b)


def test_torch_compile_makes_and_takes_apart(dynamo) -> None:
    def f(a: Tensor, b: Tensor) -> Any:
        x = Scaled(a, b.sum())
        y = Halves(a, b)
        return x.dequantize() + x.codes, y @ torch.ones(8, 2), Pair(a, b) * 2, x.replace(codes=b)

    args = randn(4, 4), randn(4, 4, seed=1)
    for a, b in zip(dynamo(f, backend="aot_eager")(*args), f(*args), strict=True):
        assert_equal(a, b)


@pytest.mark.parametrize("name", ["pair", "scaled", "shifted", "halves", "strict"])
def test_torch_compile_writes_inputs(name, dynamo) -> None:
    def f(x: Tensor) -> Tensor:
        x.mul_(2).add_(1)
        return x + 1

    sides = []
    for run in (f, dynamo(f, backend="aot_eager", fullgraph=True)):
        x = MAKERS[name]()
        inner = leaves(x)
        out = run(x)
        assert all(a is b for a, b in zip(leaves(x), inner, strict=True)) and x._version > 0
        sides.append((out, x))
    for a, b in zip(*sides, strict=True):
        assert type(a) is type(b)
        for s, t in zip(leaves(a), leaves(b), strict=True):
            torch.testing.assert_close(s, t)


def test_autograd_cache_key(dynamo) -> None:
    from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCachePickler

    mode = torch._subclasses.FakeTensorMode()
    with torch._functorch.config.patch(enable_autograd_cache=True):
        gm = torch.fx.symbolic_trace(lambda x: x + 1)
        pickler = AOTAutogradCachePickler(gm)
        keys = {pickler.get_hash(mode.from_tensor(MAKERS[n]())) for n in ("pair", "scaled", "pair")}
    assert len(keys) == 2


@pytest.mark.parametrize("name", ["pair", "scaled"])
def test_torch_export_of_a_module_with_a_wrapped_weight(name) -> None:
    module = nn.Linear(4, 4, bias=False)
    module.weight = nn.Parameter(MAKERS[name]())
    exported = torch.export.export(module, (randn(3, 4),), strict=False)
    assert "linear" in str(exported.graph) or "mm" in str(exported.graph)


class Refuses(st.WrapperTensor, default="refuse"):
    data_: torch.Tensor


def test_what_a_class_refuses_is_refused_as_in_eager() -> None:
    """Code may catch it; Dynamo is not asked."""

    def caught(x: Refuses) -> torch.Tensor:
        try:
            return x * 2
        except st.UnsupportedError:
            return x.data_ + 1

    x = Refuses(torch.ones(2))
    assert torch.equal(st.compile(caught, frontend="auto")(x), caught(x))
    with pytest.raises(st.UnsupportedError, match="Refuses has no rule for aten.mul.Tensor"):
        st.compile(lambda x: x * 2, frontend="auto")(x)
