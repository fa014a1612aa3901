"""The generated entry: which calls it serves, what it says where it does not, and what it does for many parameters."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import subclass_trace as st
from subclass_trace.runtime.entry_code import MISS
from subclass_trace.zoo import Masked, OptionalBias, PackedInt4, TwoTensor


def two(*shape: int, grad: bool = False, seed: int = 0) -> TwoTensor:
    g = torch.Generator().manual_seed(seed)
    t = TwoTensor(torch.randn(shape, generator=g), torch.randn(shape, generator=g))
    return t.requires_grad_() if grad else t


def dense(*shape: int, grad: bool = False, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_(grad)


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


MODULE = module()

# function, arguments it is compiled for, other calls (served or not)
PROGRAMS: list[tuple[str, Callable[..., Any], tuple[Any, ...], list[tuple[Any, ...]]]] = [
    (
        "two",
        lambda x, y: (x * y).sin(),
        (two(3), two(3, seed=1)),
        [
            (two(3, seed=2), two(3)),
            (two(4), two(4)),
            (dense(3), two(3)),
            (two(3, grad=True), two(3)),
            (two(3),),
            (two(3), 2),
        ],
    ),
    (
        "dense",
        lambda x: x.cos() + 1,
        (dense(3, 4),),
        [
            (dense(4, 3).t(),),
            (dense(3, 4).double(),),
            (nn.Parameter(dense(3, 4)),),
            (dense(3, 4, grad=True),),
            (None,),
            ((dense(3, 4),),),
        ],
    ),
    (
        "same twice",
        lambda x, y: x * y,
        (lambda t: (t, t))(two(3)),
        [(two(3), two(3)), (lambda t: (t, t))(two(3, seed=4))],
    ),
    (
        "leaf twice",
        lambda x: x * 2,
        (lambda a: (TwoTensor(a, a),))(dense(3)),
        [(two(3),), (lambda a: (TwoTensor(a, a),))(dense(3, seed=3))],
    ),
    (
        "nested",
        lambda x: x.sin(),
        (TwoTensor(two(2, 3), two(2, 3, seed=1)),),
        [(TwoTensor(two(2, 3), dense(2, 3)),), (two(2, 3),)],
    ),
    (
        "numbers",
        lambda x, n, s: x * n if s == "a" else x + n,
        (two(3), 2, "a"),
        [(two(3), 3, "a"), (two(3), 2.0, "a"), (two(3), True, "a"), (two(3), 2, "b")],
    ),
    ("structure", lambda d, *, k: {"o": [d["x"] + k[0]]}, (), []),
    ("optional", lambda x: x.sin(), (OptionalBias(dense(3)),), [(OptionalBias(dense(3), dense(3, seed=1)),)]),
    ("masked", lambda x: x * 2, (Masked(dense(3), dense(3) > 0),), [(Masked(dense(3), dense(3) > 5),)]),
    (
        "packed",
        lambda w, x: nn.functional.linear(x, w),
        (PackedInt4.quantize(dense(4, 6)), dense(2, 6)),
        [(PackedInt4.quantize(dense(4, 8)), dense(2, 8))],
    ),
    (
        "mutated",
        lambda x, y: x.add_(y).sum(),
        (dense(3), dense(3, seed=1)),
        [(lambda t: (t, t[:]))(dense(3)), (lambda t: (t, t))(dense(3))],
    ),
    ("train", lambda x, y: (x @ y).relu(), (two(2, 3, grad=True), dense(3, 2, grad=True)), [(two(2, 3), dense(3, 2))]),
    ("module", lambda m, x: m(x), (MODULE, dense(5, 3)), [(module(), dense(5, 3)), (MODULE, dense(5, 3, grad=True))]),
    (
        "shares memory",
        lambda x, y: x + y,
        (lambda t: (t[:2], t[1:]))(dense(3)),
        [(dense(2), dense(2)), (lambda t: (t[1:], t[:2]))(dense(3))],
    ),
]
KEYWORDS: dict[str, list[dict[str, Any]]] = {
    "structure": [
        {"d": {"x": two(3)}, "k": (dense(3),)},
        {"d": {"x": two(3)}, "k": [dense(3)]},
        {"d": {"y": two(3)}, "k": (dense(3),)},
        {"d": {"x": two(3), "y": 1}, "k": (dense(3),)},
    ]
}


def compiled(name: str, fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    kwargs = KEYWORDS[name][0] if name in KEYWORDS else {}
    if name == "structure":
        args, kwargs = (kwargs["d"],), {"k": kwargs["k"]}
    region = st.compile(fn)
    region(*args, **kwargs)
    return region, args, kwargs


@pytest.mark.parametrize(("name", "fn", "args", "others"), PROGRAMS, ids=[p[0] for p in PROGRAMS])
def test_an_entry_serves_or_says_why_not(
    name: str, fn: Any, args: tuple[Any, ...], others: list[tuple[Any, ...]]
) -> None:
    region, args, kwargs = compiled(name, fn, args)
    entry = region.specializations[0]
    calls = [(args, kwargs), *[(o, {}) for o in others], *[((k["d"],), {"k": k["k"]}) for k in KEYWORDS.get(name, [])]]
    reasons = [entry.failed(a, k) for a, k in calls]
    assert reasons[0] is None
    for (a, k), reason in zip(calls, reasons, strict=True):
        result = entry.run(a, k)
        assert (result is MISS) == (reason is not None), (a, reason)


def test_every_part_of_the_threads_state_is_guarded() -> None:
    region = st.compile(lambda x: x.sin())
    x = two(3)
    region(x)
    serve = region.specializations[0].run
    assert serve((x,), {}) is not MISS
    for state in (
        torch.no_grad(),
        torch.inference_mode(),
        torch.autocast("cpu", dtype=torch.bfloat16),
        torch.utils._python_dispatch.TorchDispatchMode(),
        torch.autograd.forward_ad.dual_level(),
    ):
        with state:
            assert serve((x,), {}) is MISS, state
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert serve((x,), {}) is MISS
    finally:
        torch.set_default_dtype(before)
    torch.use_deterministic_algorithms(True)
    try:
        assert serve((x,), {}) is MISS
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.func.vmap(lambda t: torch.zeros(()) if serve((x,), {}) is MISS else t)(torch.ones(2)).sum() == 0


def test_module_guards() -> None:
    net = module()
    x = dense(5, 3)
    region = st.compile(net)
    region(x)
    serve = region.specializations[0].run
    assert serve((x,), {}) is not MISS
    net.eval()  # no layer asks
    assert serve((x,), {}) is not MISS
    net.train()
    handle = net[0].register_forward_hook(lambda m, a, o: o * 2)
    assert serve((x,), {}) is MISS
    handle.remove()
    assert serve((x,), {}) is not MISS
    net[0].register_buffer("extra", torch.zeros(1))  # which nothing reads
    assert serve((x,), {}) is not MISS
    del net[0].extra
    bias, net[0].bias = net[0].bias, None
    assert serve((x,), {}) is MISS
    net[0].bias = bias
    old, net[2] = net[2], nn.Linear(4, 2)  # which is alike
    assert serve((x,), {}).equal(net(x))
    net[2] = old
    net[0].weight = nn.Parameter(torch.ones(4, 3))  # another tensor of the same kind is read, not baked in
    torch.testing.assert_close(serve((x,), {}), net(x))


def test_backward_goes_fast_after_the_first_and_falls_back_for_other_tangents(monkeypatch: pytest.MonkeyPatch) -> None:
    region = st.compile(lambda x, w: x @ w)
    x, w = two(2, 3, grad=True), dense(3, 2, grad=True)
    region(x, w)
    from subclass_trace.runtime import function_code

    slow = []
    original = function_code.run_backward
    monkeypatch.setattr(function_code, "run_backward", lambda *a: slow.append(1) or original(*a))
    for step in range(4):
        out = region(x, w)
        grads = torch.autograd.grad(out, [x, w], torch.ones_like(out) * (step + 1))
        expected = torch.autograd.grad(x @ w, [x, w], torch.ones_like(out) * (step + 1))
        for g, e in zip(grads, expected, strict=True):
            assert type(g) is type(e)
            torch.testing.assert_close(g.a, e.a)
            torch.testing.assert_close(g.b, e.b)
    assert len(slow) == 1
    out = region(x, w)
    tangent = torch.ones_like(out)
    expanded = TwoTensor(torch.ones(1, 1).expand(2, 2), torch.ones(1, 1).expand(2, 2))
    grads = torch.autograd.grad(out, [x, w], expanded)
    torch.testing.assert_close(grads[0].a, torch.autograd.grad(x @ w, [x, w], tangent)[0].a)
    assert len(slow) == 1  # it is copied to the strides of the trace


def swap(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    t = x.clone()
    x.copy_(y)
    y.copy_(t)
    return x + y


def add_and_view(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.add_(y).mul_(2.0)
    return x * 2, x[0]


@pytest.mark.parametrize("fn", [swap, add_and_view])
@pytest.mark.parametrize("make", [two, dense])
@pytest.mark.parametrize("backend", ["eager", lambda graph, _: graph])
def test_written_inputs(fn: Any, make: Any, backend: Any) -> None:
    region = st.compile(fn, backend=backend)
    for _ in range(2):
        expected, got = [make(3, 2), make(3, 2, seed=1)], [make(3, 2), make(3, 2, seed=1)]
        versions = [t._version for t in got]
        want, have = fn(*expected), region(*got)
        for a, b in zip(st_leaves([*expected, want]), st_leaves([*got, have]), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
        assert [t._version - v for t, v in zip(got, versions, strict=True)] == [
            t._version - v for t, v in zip(expected, versions, strict=True)
        ]


def st_leaves(values: Any) -> list[torch.Tensor]:
    from subclass_trace.subclass.flatten import leaves_of

    return [leaf for v in torch.utils._pytree.tree_leaves(values) for leaf in leaves_of(v)]


def test_source_is_readable_and_stands_in_tracebacks() -> None:
    region = st.compile(lambda x, y: x + y)
    region(two(3), two(3))
    source = region.specializations[0].source
    assert "u0 = x0.a" in source and "return MISS" in source and source.startswith("def entry(args, kwargs):")


# -------------------------------------------- the code of a training step over many parameters, beside eager's own work
Tensor = torch.Tensor
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda ps: torch.optim.SGD(ps, lr=0.1),
    "SGD with momentum": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, foreach=True),
    "Adam": lambda ps: torch.optim.Adam(ps, lr=0.1, foreach=True),
    "AdamW": lambda ps: torch.optim.AdamW(ps, lr=0.1, foreach=False),
}


def _dense(k: int) -> Tensor:
    return torch.randn(3, generator=torch.Generator().manual_seed(k))


def _two(k: int) -> Tensor:
    return TwoTensor(_dense(k), _dense(-k))


def _step(kind: Callable[[int], Tensor], optimizer: str, *, count: int = 3) -> tuple[Any, Any]:
    """A step, and what it leaves: values and versions of parameters, gradients, and the optimizer's state."""
    parameters = [torch.nn.Parameter(kind(k)) for k in range(count)]
    made = OPTIMIZERS[optimizer](parameters)
    x = kind(9)

    def step() -> Any:
        made.zero_grad()
        total = sum((p.sin() * x).sum() for p in parameters)  # of p * p, autograd adds up two gradients in place
        total.backward()  # type: ignore[union-attr]
        made.step()
        return total

    def left() -> list[Any]:
        states = [t for p in parameters for t in made.state[p].values() if isinstance(t, Tensor)]
        tensors = [*parameters, *[p.grad for p in parameters], *states]
        inner = [i for t in tensors if isinstance(t, TwoTensor) for i in (t.a, t.b)]
        dense = [t for t in tensors if not isinstance(t, TwoTensor)]
        return [[t.tolist() for t in (*dense, *inner)], [p._version for p in parameters]]

    return step, left


def _forward(region: Any) -> str:
    return inspect.getsource(inspect.unwrap(region.specializations[-1].program.forward))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", [_dense, _two])
def test_a_call_delivers_straight_down(kind: Callable[[int], Tensor], optimizer: str) -> None:
    step, _ = _step(kind, optimizer)
    region = st.compile(step)
    for _ in range(3):
        region()
    source = region.specializations[-1].source
    assert "copy" not in source and "make_wrapper" not in source
    assert source.count(".grad = ") == 3
    assert source.count("move_versions(") <= (2 if kind is _two else 0)  # a dense tensor's own write moves its counter
    assert ".detach()" not in _forward(region)


def _calls(function: Callable[[], Any]) -> int:
    """How many Python functions run in a call, but for the arithmetic on numbers that the graph asks for."""
    seen: list[str] = []

    def note(frame: types.FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name not in ("_check_scalar", "fn"):
            seen.append(getattr(frame.f_code, "co_qualname", frame.f_code.co_name))  # Python 3.10 has none

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return len(seen)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", [_dense, _two])
@pytest.mark.sweep(every=4)
def test_no_python_function_runs_for_each_parameter(kind: Callable[[int], Tensor], optimizer: str) -> None:
    found = []
    for count in (2, 4):
        step, _ = _step(kind, optimizer, count=count)
        region = st.compile(step)
        for _ in range(3):
            region()
        assert len(region.specializations) == 1
        found.append(_calls(region))
    assert found[0] == found[1]


WRITES: dict[str, Callable[[list[Tensor]], Any]] = {
    "foreach on data": lambda ps: torch._foreach_add_([p.data for p in ps], 1.0),
    "foreach": lambda ps: torch._foreach_add_(ps, 1.0),
    "twice": lambda ps: [p.add_(1).mul_(2) for p in ps] and None,
    "by copies": lambda ps: [p.mul_(2).add_(torch.ones(3).double()) for p in ps] and None,  # which promotes
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("kind", [_dense, _two])
def test_writes(kind: Callable[[int], Tensor], name: str) -> None:
    def run(ps: list[Tensor]) -> None:
        with torch.no_grad():
            WRITES[name](ps)

    seen, region = [], st.compile(run)
    for function in (run, region):
        ps = [torch.nn.Parameter(kind(k)) for k in range(3)]
        for _ in range(3):
            function(ps)
        inner = [i for p in ps if isinstance(p, TwoTensor) for i in (p.a, p.b)]
        seen.append(([t.tolist() for t in inner or ps], [t._version for t in ps]))
    assert seen[0] == seen[1]
    source = region.specializations[0].source
    assert source.count("move_versions(") <= 2


def test_what_several_results_have_left() -> None:
    def step(x: Tensor, w: Tensor, *, free: bool) -> tuple[Tensor, Tensor]:
        y = x * w
        loss, other = (y * y).sum(), (y * 2 if free else x * w * x).sum()
        loss.backward()
        with torch.no_grad():
            x.mul_(2)
        return loss, other

    for free in (True, False):
        seen = []
        for function in (step, st.compile(step)):
            x, w = torch.ones(3, requires_grad=True), torch.full((3,), 2.0)
            loss, other = function(x, w, free=free)
            with pytest.raises(RuntimeError, match="second time" if free else "second time|modified by an inplace"):
                other.backward()
            seen.append((loss.item(), other.item(), x.tolist(), x._version, x.grad.tolist()))  # type: ignore[union-attr]
        assert seen[0] == seen[1]


@pytest.mark.parametrize("kind", [_dense, _two])
def test_results_in_the_memory_of_inputs(kind: Callable[[int], Tensor]) -> None:
    def run(ps: list[Tensor]) -> list[Tensor]:
        out = [p.data for p in ps]
        torch._foreach_add_(out, 1.0)
        return out

    seen, region, calls = [], st.compile(run), []
    for function in (run, region):
        ps = [torch.nn.Parameter(kind(k)) for k in range(3)]
        out = function(function(ps))
        out[0].mul_(2)
        seen.append([getattr(t, "a", t).tolist() for t in (*ps, *out)])
    assert seen[0] == seen[1]
    for count in (20, 40):
        ps = [torch.nn.Parameter(kind(k)) for k in range(count)]
        region(ps)
        calls.append(_calls(lambda ps=ps: region(ps)))  # type: ignore[misc]
    assert calls[1] < 2 * calls[0]  # for each result what it takes to make it, whatever their number
