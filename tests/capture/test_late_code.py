"""Python code of the user's that runs in backwards: hooks, and the backward of custom functions. Eager is the oracle."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import subclass_trace as st
from subclass_trace import verify
from subclass_trace.errors import UnsupportedError
from subclass_trace.zoo import TwoTensor

LOG: list[Any] = []
TABLE: dict[str, Any] = {"factor": 1.0}
FACTOR = 2.0
TENSOR = torch.ones(3)
Compile = Callable[..., Any]


class Sine(torch.autograd.Function):
    """Its backward counts in an attribute of the class, and logs what it sees."""

    calls = 0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.scale, ctx.size = scale, x.shape[0]
        return x.sin() * scale

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        Sine.calls += 1
        LOG.append((type(g).__name__, type(x).__name__, ctx.size, ctx.needs_input_grad))
        return g * x.cos() * ctx.scale, None


class Factor(torch.autograd.Function):
    """Its backward reads a global number."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * FACTOR


class OfTable(Factor):
    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * TABLE["factor"]


class OfTensor(Factor):
    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * TENSOR


class Branches(Factor):
    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g if g.sum().item() > 4 else g * 3


class Raises(Factor):
    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        LOG.append("ran")
        if len(LOG) > 1:
            raise ValueError("of the user's")
        return g


class NoGradient(Factor):
    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> None:
        LOG.append("ran")


class Differentiates(Factor):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        LOG.append("ran")
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            y = x.sin()
        return torch.autograd.grad(y, x, g)[0]


def hooked(hook: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.register_hook(hook)
        return y.sin()

    return f


def keeps_gradients(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.register_hook(lambda g: LOG.append(g))
    return y.sin()


def halves_large(g: torch.Tensor) -> torch.Tensor | None:
    LOG.append(g.sum().item())
    return g * 0.5 if g.norm().item() > 2 else None


def of_the_region(x: torch.Tensor) -> torch.Tensor:
    y, mask, n = x * 2, x > 0.5, x.shape[0]
    y.register_hook(lambda g: (LOG.append((int(mask.sum()), n)), g * mask)[1])
    return y.sin()


def in_order(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.register_hook(lambda g: LOG.append(1))
    y.register_hook(lambda g: (LOG.append(2), g * 2)[1])
    z = y.sin()
    z.register_hook(lambda g: LOG.append(3))
    return z


def logs(g: torch.Tensor) -> None:
    logging.getLogger("late_code").info("gradient %s", [round(n, 3) for n in torch.Tensor.tolist(g)])


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        LOG.append(record.getMessage())


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "counts and logs": lambda x: Sine.apply(x * 2, 3.0),
    "keeps gradients": keeps_gradients,
    "uses values": hooked(halves_large),
    "branches on values": lambda x: Branches.apply(x * 1),
    "closes over tensors of the region": of_the_region,
    "several hooks": in_order,
    "a logger": hooked(logs),
    "raises at times": lambda x: Raises.apply(x * 1),
    "no gradient": lambda x: NoGradient.apply(x) + x,
    "differentiates": lambda x: Differentiates.apply(x * 1),
}


def steps(f: Callable[[torch.Tensor], torch.Tensor], inputs: list[torch.Tensor]) -> tuple[list[Any], list[Any], int]:
    """Gradients, log and count of some backwards."""
    LOG.clear()
    Sine.calls = 0
    found: list[Any] = []
    for k, value in enumerate(inputs):
        x = value.clone().requires_grad_()
        try:
            (f(x) * (k + 1)).sum().backward()
        except ValueError as error:
            found.append(str(error))
        else:
            found.append(x.grad)
    return found, list(LOG), Sine.calls


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return type(a) is type(b) and torch.allclose(a, b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == (pytest.approx(b) if isinstance(b, float) else b)


@pytest.mark.parametrize("sizes", [(3, 3, 3), (3, 4, 5)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_often_and_as_in_eager(name: str, sizes: tuple[int, ...]) -> None:
    logger, handler = logging.getLogger("late_code"), _Handler()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    inputs = [torch.arange(float(n)) for n in sizes]
    try:
        wanted = steps(FUNCTIONS[name], inputs)
        with verify.enabled():
            got = steps(st.compile(FUNCTIONS[name]), inputs)
    finally:
        logger.removeHandler(handler)
    assert same(wanted, got), (wanted, got)
    assert wanted[1] or name == "branches on values"


@pytest.mark.parametrize("name", ["counts and logs", "uses values"])
@pytest.mark.parametrize("options", [{}, {"partitioner": "default"}], ids=str)
def test_wrappers(name: str, options: dict[str, Any]) -> None:
    inputs = [TwoTensor(torch.arange(float(n)), torch.ones(n)) for n in (3, 4)]
    LOG.clear()

    def run(f: Any) -> Any:
        found, log, calls = steps(f, inputs)
        return [(type(g).__name__, g.a, g.b) for g in found], log, calls

    if name == "uses values":  # a wrapper has no values to use
        f = hooked(lambda g: (LOG.append(type(g).__name__), g * 2)[1])
    else:
        f = FUNCTIONS[name]
    assert same(run(f), run(st.compile(f, **options)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["counts and logs", "keeps gradients"])
def test_inductor(name: str) -> None:
    inputs = [torch.arange(float(n)) for n in (3, 3, 4)]
    assert same(steps(FUNCTIONS[name], inputs), steps(st.compile(FUNCTIONS[name], backend="inductor"), inputs))


def test_compiled_autograd() -> None:
    def run(f: Any) -> Any:
        with st.compiled_autograd():
            return steps(f, [torch.arange(3.0)] * 4)

    f = FUNCTIONS["counts and logs"]
    assert same(steps(f, [torch.arange(3.0)] * 4), run(st.compile(f)))
    f = st.compile(lambda x: Factor.apply(x))
    found = []
    for value in (2.0, 2.0, 2.0, 3.0):
        _set_factor(2.0)
        x = torch.ones(3, requires_grad=True)
        y = f(x).sum()
        _set_factor(value)
        with st.compiled_autograd():
            y.backward()
        found.append(float(x.grad[0]))  # type: ignore[index]
    _set_factor(2.0)
    assert found == [2.0, 2.0, 2.0, 3.0]


@pytest.mark.parametrize("copied", [False, True])
def test_what_is_kept_is_nobody_elses_memory(copied: bool) -> None:
    def compiler(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        return gm.forward

    f = st.compile(keeps_gradients, backend=compiler) if copied else st.compile(keeps_gradients)
    steps(f, [torch.zeros(2), torch.zeros(2)])
    assert [t.tolist() for t in LOG] == [[1, 1], [2, 2]]
    assert all(type(t) is torch.Tensor for t in LOG)


def test_vmapped_gradients() -> None:
    found = []
    f = FUNCTIONS["counts and logs"]
    for g in (f, st.compile(f)):
        LOG.clear()
        x = torch.arange(3.0, requires_grad=True)
        (row,) = torch.autograd.grad(g(x), x, torch.eye(3), is_grads_batched=True)
        found.append((row, list(LOG)))
    assert same(found[0], found[1])


# ---------------------------------------------------------------------------------------------- what it reads
def reading(function: type[torch.autograd.Function], change: Callable[[int], Any], reset: Callable[[], Any]) -> Any:
    def run(compile: Compile) -> tuple[list[float], Any]:
        f = compile(lambda x: function.apply(x))
        found = []
        for k in range(4):
            reset()
            x = torch.ones(3, requires_grad=True)
            y = f(x).sum()
            change(k)
            y.backward()
            found.append(float(x.grad[0]))  # type: ignore[index]
        reset()
        return found, f

    wanted, _ = run(lambda f: f)
    got, region = run(st.compile)
    assert got == wanted
    assert len(set(wanted)) == 4
    assert len(region.specializations) == 1
    assert len(region.specializations[0].program.backwards.compiled) <= 2
    return region


def _set_factor(value: float) -> None:
    global FACTOR
    FACTOR = value


def test_a_number_that_changes_between_forward_and_backward() -> None:
    reading(Factor, lambda k: _set_factor(2.0 + k), lambda: _set_factor(2.0))
    reading(OfTable, lambda k: TABLE.update(factor=1.0 + k), lambda: TABLE.update(factor=1.0))


def test_a_tensor_that_is_written_between_forward_and_backward() -> None:
    reading(OfTensor, lambda k: TENSOR.fill_(k + 1), lambda: TENSOR.fill_(1))


def test_a_tensor_that_is_replaced() -> None:
    def bind(k: int) -> None:
        global TENSOR
        TENSOR = torch.full((3,), k + 1.0)

    reading(OfTensor, bind, lambda: bind(0))


def test_code_without_effects_is_traced() -> None:
    f = st.compile(lambda x: Factor.apply(x))
    f(torch.ones(3, requires_grad=True)).sum().backward()
    entry = f.specializations[0].program.backwards.compiled[0]
    assert entry.user_code.names
    assert not entry.user_code.calls


# ---------------------------------------------------------------------------------------------- modules
class Cam(nn.Module):
    """Keeps the gradient of its features."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.gradient: Any = None
        self.norms: dict[int, float] = {}

    def save(self, gradient: torch.Tensor) -> None:
        self.gradient = gradient
        self.norms[len(self.norms)] = gradient.norm().item()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        y.register_hook(self.save)
        return y.relu()


def test_a_module_that_keeps_gradients() -> None:
    found = []
    for compile in (lambda m: m, st.compile):
        torch.manual_seed(0)
        module = Cam()
        f = compile(module)
        for k in range(5):
            f(torch.full((1, 2), float(k))).sum().backward()
        found.append((module.gradient, list(module.norms.values())))
    assert same(found[0], found[1])
    assert len(f.specializations) <= 2


def test_backward_hooks_of_modules() -> None:
    found = []
    for compile in (lambda m: m, st.compile):
        torch.manual_seed(0)
        seen: list[Any] = []
        module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
        module[1].register_full_backward_hook(lambda m, gi, go: (seen.append((m, go[0])), (gi[0] * 2,))[1])  # noqa: B023
        module[0].register_full_backward_pre_hook(lambda m, go: (seen.append("pre"), (go[0] * 3,))[1])  # noqa: B023
        module[0].register_full_backward_hook(lambda m, gi, go: setattr(m, "last", go[0].norm()))
        f = compile(module)
        for k in range(3):
            f(torch.ones(1, 3, requires_grad=True) * k).sum().backward()
        names = [s if isinstance(s, str) else (s[0] is module[1], s[1]) for s in seen]
        found.append((names, module[0].last, [p.grad for p in module.parameters()]))
    assert same(found[0], found[1])


# ---------------------------------------------------------------------------------------------- tensors from outside
def test_a_hook_on_a_tensor_from_outside_stays_there() -> None:
    def inside(w: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        def f(x: torch.Tensor) -> torch.Tensor:
            w.register_hook(lambda g: g * 10)
            return x * w

        return f

    def run(compile: Compile) -> list[Any]:
        found: list[Any] = []
        w = torch.ones(2, requires_grad=True)
        f = compile(inside(w))
        for _ in range(3):
            w.grad = None
            (f(torch.ones(2)).sum() + w.sum()).backward()
            found.append((w.grad, len(w._backward_hooks)))  # type: ignore[attr-defined]
        x = torch.ones(2, requires_grad=True)
        argument = compile(lambda x: (x.register_hook(lambda g: g * 10), x * 2)[1])
        for value in (x, x * 1):
            (argument(value).sum() + value.sum()).backward()
        module = nn.Linear(2, 2)
        nn.init.ones_(module.weight)
        calls: list[int] = []
        late = compile(
            lambda x: (module.weight.register_post_accumulate_grad_hook(lambda p: calls.append(1)), module(x))[1]
        )
        for _ in range(2):
            late(torch.ones(1, 2)).sum().backward()
        return [found, x.grad, module.weight.grad, list(calls)]

    assert same(run(lambda f: f), run(st.compile))


def test_a_hook_on_a_tensor_from_outside_that_is_removed_again() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        handle = x.register_hook(lambda g: g * 10)
        handle.remove()
        with x.register_hook(lambda g: g * 100):
            (g,) = torch.autograd.grad((x * x).sum(), x, create_graph=True)
        return x * 2 + g

    found = []
    for g in (f, st.compile(f)):
        x = torch.ones(2, requires_grad=True)
        g(x).sum().backward()
        found.append((x.grad, len(x._backward_hooks or ())))  # type: ignore[attr-defined]
    assert same(found[0], found[1])


# ---------------------------------------------------------------------------------------------- refused
def refused(f: Callable[..., Any], *args: Any, create_graph: bool = False) -> str:
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(UnsupportedError) as caught:
        torch.autograd.grad(st.compile(f)(x, *args).sum(), x, create_graph=create_graph)
    return str(caught.value)


def test_refused_by_name() -> None:
    count = Sine.calls
    text = refused(lambda x: Sine.apply(x, 1.0), create_graph=True)
    assert "create_graph=True" in text
    assert "test_late_code.py" in text
    assert Sine.calls == count

    def changes_argument(x: torch.Tensor, log: list[Any]) -> torch.Tensor:
        y = x * 2
        y.register_hook(lambda g: log.append(1))
        return y.sin()

    log: list[Any] = []
    assert "changes a container among the arguments" in refused(changes_argument, log)
    assert log == []

    def on_node(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.grad_fn.register_hook(lambda gi, go: LOG.append(1))  # type: ignore[union-attr]
        return y.sin()

    LOG.clear()
    assert "a hook on an autograd node" in refused(on_node)
    assert LOG == []

    def several(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch.autograd.graph.register_multi_grad_hook((y,), lambda grads: LOG.append(1))
        return y.sin()

    assert "register_multi_grad_hook" in refused(several)


def test_a_hook_that_the_region_registers_on_what_it_writes_is_refused() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.register_hook(lambda g: g * 10)
        x.mul_(2)
        return x.sin()

    x = torch.ones(3, requires_grad=True) * 1
    with pytest.raises(UnsupportedError, match="registers a hook on a tensor from outside"):
        st.compile(f)(x)


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        DECORATED.append(float(grad.sum()))
        return grad * 2 * ctx.saved_tensors[0]


class Cast(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * ctx.saved_tensors[0].cos() * 3


DECORATED: list[float] = []


@pytest.mark.parametrize("function", [Once, Cast])
def test_backwards_with_a_decorator_of_torch(function: type[torch.autograd.Function]) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return function.apply(x * 1.5) + x**2

    found = []
    for call in (f, st.compile(f)):
        DECORATED.clear()
        x = torch.tensor([0.5, 2.0]).requires_grad_()
        grads = [torch.autograd.grad(call(x).sum(), x)[0].tolist() for _ in range(3)]
        found.append((grads, list(DECORATED)))
    assert found[0] == found[1] and len(DECORATED) == (3 if function is Once else 0)


def _hook_and_forward_read(scale: list[float]) -> Callable[[torch.Tensor], torch.Tensor]:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = (x * scale[0]).sin()
        y.register_hook(lambda g: g * scale[0])
        return y.exp()

    return function


def _backward_and_forward_read(scale: list[float]) -> Callable[[torch.Tensor], torch.Tensor]:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * scale[0]

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * scale[0]

    return lambda x: Scaled.apply(x).exp()


@pytest.mark.parametrize("make", [_hook_and_forward_read, _backward_and_forward_read])
def test_a_number_that_the_forward_reads_too_and_that_changes_in_between(make: Callable[..., Any]) -> None:
    found = []
    for call in (lambda f: f, st.compile):
        scale, grads = [1.0], []
        function = call(make(scale))
        for _ in range(5):
            x = torch.ones(3, requires_grad=True)
            y = function(x).sum()
            scale[0] += 0.5
            y.backward()
            grads.append(x.grad)
        found.append(torch.stack(grads))
    torch.testing.assert_close(*found)
    assert len(function.specializations) == 2


@pytest.mark.parametrize("logs", [False, True])
def test_a_backward_that_moves_a_number_of_its_ctx_on(logs: bool) -> None:
    """A second backward would read what the first one has left there."""
    log: list[int] = []

    class Moves(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            ctx.calls = 0
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            ctx.calls += 1
            if logs:
                log.append(ctx.calls)
            return grad * ctx.calls

    x = torch.ones(2, requires_grad=True)
    with pytest.raises(st.UnsupportedError, match=r"ctx\.calls"):
        st.compile(lambda x: Moves.apply(x))(x).sum().backward()
    assert x.grad is None
