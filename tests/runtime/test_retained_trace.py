"""The fake autograd graph of a specialization: how long it is kept, what it keeps, and what happens without it."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from runs import Runs

import subclass_trace as st
from subclass_trace.capture.session import Session
from subclass_trace.capture.tape import Tape
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


class Watch:
    """Weak references to the sessions and tapes that are made."""

    def __init__(self) -> None:
        self.sessions: list[weakref.ref[Session]] = []
        self.tapes: list[weakref.ref[Tape]] = []
        self.traces = 0

    def alive(self) -> tuple[int, int]:
        """Sessions and tapes that somebody holds."""
        gc.collect()
        return sum(r() is not None for r in self.sessions), sum(r() is not None for r in self.tapes)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    seen = Watch()
    gc.freeze()  # a collection is to look at what the test makes
    session, tape, trace = Session.__init__, Tape.__init__, Tape.trace

    def new_session(self: Session, *args: Any, **kwargs: Any) -> None:
        session(self, *args, **kwargs)
        seen.sessions.append(weakref.ref(self))

    def new_tape(self: Tape, *args: Any, **kwargs: Any) -> None:
        tape(self, *args, **kwargs)
        seen.tapes.append(weakref.ref(self))

    def counted(self: Tape, *args: Any, **kwargs: Any) -> Any:
        seen.traces += 1
        return trace(self, *args, **kwargs)

    monkeypatch.setattr(Session, "__init__", new_session)
    monkeypatch.setattr(Tape, "__init__", new_tape)
    monkeypatch.setattr(Tape, "trace", counted)
    yield seen
    gc.unfreeze()


class Counted:
    """A function, and how often its Python code ran."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.log = Runs()

        def run(*args: Any) -> Any:
            self.log.note()
            return function(*args)

        self.run = run

    @property
    def runs(self) -> int:
        return len(self.log)


def two(x: Any, w: Any) -> Any:
    h = x @ w
    return h.sin(), (h * x).tanh()


def _gradients(function: Callable[..., Any], used: tuple[int, ...], make: Callable[[Tensor], Any]) -> list[Any]:
    generator = torch.Generator().manual_seed(5)
    x, w = (make(torch.randn(4, 4, generator=generator)).requires_grad_() for _ in range(2))
    results = function(x, w)
    sum(results[k].sum() for k in used).backward()
    return [x.grad, w.grad]


def _same(found: list[Any], expected: list[Any]) -> None:
    for a, b in zip(found, expected, strict=True):
        assert type(a) is type(b)
        for p, q in [(a.a, b.a), (a.b, b.b)] if isinstance(a, TwoTensor) else [(a, b)]:
            torch.testing.assert_close(p, q)


KINDS: dict[str, Callable[[Tensor], Any]] = {
    "dense": lambda t: t,
    "wrapper": lambda t: TwoTensor(t, t * 0.5),
    "nested": lambda t: TwoTensor(TwoTensor(t, t * 0.5), TwoTensor(t, t * 2)),
}


# ---------------------------------------------------------------------------------------------- kept, and dropped
def test_it_lives_as_long_as_its_specialization(watch: Watch) -> None:
    counted = Counted(two)
    region = st.compile(counted.run)
    for used in ((0, 1), (0,), (1,), (0,)):
        _same(_gradients(region, used, KINDS["wrapper"]), _gradients(two, used, KINDS["wrapper"]))
    assert counted.runs == 1 and watch.traces == 3 and watch.alive() == (1, 1)
    region.reset()
    assert watch.alive() == (0, 0)


def test_a_call_that_is_still_to_be_differentiated_keeps_it(watch: Watch) -> None:
    region = st.compile(two)
    x, w = torch.ones(4, 4), torch.ones(4, 4, requires_grad=True)
    first, _ = region(x, w)
    region.reset()
    assert watch.alive() == (1, 1)
    first.sum().backward()
    del first, _
    assert watch.alive() == (0, 0)


def test_without_a_backward_nothing_is_kept(watch: Watch) -> None:
    region = st.compile(two)
    region(torch.ones(4, 4), torch.ones(4, 4))
    assert len(watch.sessions) == 1 and watch.alive() == (0, 0)


# ---------------------------------------------------------------------------------------------- retain_trace=False
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_dropped_at_once(kind: str, dynamic: bool, watch: Watch) -> None:
    counted = Counted(two)
    region = st.compile(counted.run, retain_trace=False, dynamic=dynamic)
    expected = {used: _gradients(two, used, KINDS[kind]) for used in ((0, 1), (0,), (1,))}
    for used, runs in (((0, 1), 1), ((0, 1), 1), ((0,), 2), ((0,), 2), ((1,), 3), ((0, 1), 3)):
        _same(_gradients(region, used, KINDS[kind]), expected[used])
        assert counted.runs == runs and watch.alive() == (0, 0)
    assert len(region.specializations) == 1


def test_dropped_on_demand(watch: Watch) -> None:
    counted = Counted(two)
    region = st.compile(counted.run)
    _gradients(region, (0, 1), KINDS["dense"])
    assert watch.alive() == (1, 1)
    assert region.specializations[0].release_trace()
    assert watch.alive() == (0, 0)
    _same(_gradients(region, (1,), KINDS["dense"]), _gradients(two, (1,), KINDS["dense"]))
    assert counted.runs == 2 and watch.alive() == (0, 0)


def test_double_backward_without_it(watch: Watch) -> None:
    def second(function: Callable[..., Any]) -> list[Tensor]:
        x, w = torch.linspace(0, 1, 16).view(4, 4).requires_grad_(), torch.eye(4).requires_grad_()
        grads = torch.autograd.grad(function(x, w)[1].sum(), (x, w), create_graph=True)
        return list(torch.autograd.grad(sum((g * g).sum() for g in grads), (x, w)))

    counted = Counted(two)
    region = st.compile(counted.run, retain_trace=False)
    for _ in range(2):
        _same(second(region), second(two))
    assert counted.runs == 2  # a backward that can be differentiated keeps its own trace
    assert watch.alive()[0] == 1 and region.specializations[0].release_trace() and watch.alive() == (0, 0)
    _same(second(region), second(two))
    assert counted.runs == 3


class Net(torch.nn.Module):
    def __init__(self, wrapped: bool) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)
        self.norm, self.drop = torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5)
        if wrapped:
            w = self.first.weight.detach()
            self.first.weight = torch.nn.Parameter(TwoTensor(w, w.clone()))

    def forward(self, x: Tensor) -> Any:
        h = self.first(x)
        h = self.drop(h if isinstance(h, TwoTensor) else self.norm(h))
        return self.second(h), h.sum()


@pytest.mark.parametrize("wrapped", [False, True])
def test_modules_random_numbers_and_buffers(wrapped: bool) -> None:
    torch.manual_seed(0)
    nets = [Net(wrapped), Net(wrapped)]
    nets[1].load_state_dict(nets[0].state_dict())
    region = st.compile(nets[1], retain_trace=False)
    for used in (0, 1, 0):
        rows = []
        for net, call in zip(nets, (nets[0], region), strict=True):
            torch.manual_seed(used)
            net.zero_grad()
            call(torch.ones(3, 4))[used].sum().backward()
            rows.append([p.grad for p in net.parameters() if p.grad is not None])
        _same(rows[1], rows[0])
        torch.testing.assert_close(nets[0].norm.running_mean, nets[1].norm.running_mean)
        assert nets[0].norm.num_batches_tracked == nets[1].norm.num_batches_tracked


def test_state_of_the_thread_closures_and_numbers() -> None:
    scale, table = torch.tensor(3.0, requires_grad=True), [torch.tensor(2.0)]
    counted = Runs()

    def f(x: Tensor, power: int, flag: bool) -> Any:
        counted.note()
        h = (x @ x) * scale * table[0]
        return h**power, h.cos() if flag else h

    def gradients(function: Callable[..., Any], used: int) -> list[Any]:
        scale.grad = None
        x = torch.linspace(0, 1, 9).view(3, 3).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            results = function(x, 3, True)
        results[used].float().sum().backward()
        return [x.grad, scale.grad]

    region = st.compile(f, retain_trace=False)
    for used in (0, 1):
        expected = gradients(f, used)
        counted.clear()
        _same(gradients(region, used), expected)
    assert len(counted) == 1 and torch.get_default_dtype() is torch.float32


class Step(Tensor):
    """Has a counter in its context, which its operations do not read."""

    a: Tensor
    step: int

    @staticmethod
    def __new__(cls, a: Tensor, step: int) -> Any:
        return Tensor._make_wrapper_subclass(cls, a.shape, strides=a.stride(), dtype=a.dtype, device=a.device)

    def __init__(self, a: Tensor, step: int) -> None:
        self.a, self.step = a, step

    def __tensor_flatten__(self) -> Any:
        return ["a"], {"step": self.step}

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return Step(inner["a"], context["step"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*[a.a if isinstance(a, Step) else a for a in args], **(kwargs or {}))


def test_context_values_that_no_guard_holds() -> None:
    region = st.compile(lambda x, w: ((x * w).sin(), (x * w).cos()), retain_trace=False)
    for step, used in enumerate((0, 1, 1, 0)):
        w = torch.ones(3, requires_grad=True)
        region(Step(torch.full((3,), 2.0), step), w)[used].sum().backward()
        two = torch.full((3,), 2.0)
        torch.testing.assert_close(w.grad, 2 * two.cos() if used == 0 else -2 * two.sin())
    assert len(region.specializations) == 1 and region.specializations[0].plan.unread


# ---------------------------------------------------------------------------------------------- where it cannot be
def test_a_module_that_changed_since() -> None:
    net = Net(False)
    region = st.compile(net, retain_trace=False)
    _, h = region(torch.ones(3, 4))
    net.eval()
    with pytest.raises(st.TangentError, match="expected training=True, got False") as caught:
        h.backward()
    assert "retain_trace=True" in str(caught.value)
    net.train()
    region(torch.ones(3, 4))[1].backward()


def test_a_function_that_does_something_else() -> None:
    runs = Runs()

    def f(x: Tensor) -> Any:
        runs.note()
        return x.sin(), x.cos() if len(runs) == 1 else x.tanh()

    region = st.compile(f, retain_trace=False)
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(st.TangentError, match="something else when it is traced again"):
        region(x)[1].sum().backward()


def test_a_name_that_is_bound_to_something_else() -> None:
    def make() -> tuple[Callable[..., Any], Callable[[Any], None]]:
        scale: Any = torch.tensor(2.0)

        def f(x: Tensor) -> Any:
            return x * scale, x.sin()

        def bind(value: Any) -> None:
            nonlocal scale
            scale = value

        return f, bind

    f, bind = make()
    region = st.compile(f, retain_trace=False)
    x = torch.ones(3, requires_grad=True)
    results = region(x)
    bind(3)
    with pytest.raises(st.TangentError, match="bound to another object"):
        results[1].sum().backward()


def test_where_a_second_run_cannot_replace_it_the_trace_stays(watch: Watch) -> None:
    def f(x: Tensor, y: Tensor) -> Any:
        x.mul_(2)
        return x.sin(), y.cos()

    def gradients(function: Callable[..., Any], used: int) -> list[Any]:
        base = torch.ones(4, requires_grad=True)
        whole = base * 1
        function(whole[:2], whole[1:])[used].sum().backward()
        return [base.grad]

    region = st.compile(f, retain_trace=False)
    for used in (0, 1):
        _same(gradients(region, used), gradients(f, used))
    assert not region.specializations[0].release_trace() and watch.alive()[1] == 1


def test_the_option_is_checked() -> None:
    with pytest.raises(st.OptionError, match="retain_trace"):
        st.compile(two, retain_trace="no")


# ---------------------------------------------------------------------------------------------- threads
@pytest.mark.parametrize("retain", [True, False])
def test_two_threads_that_both_miss(retain: bool, watch: Watch) -> None:
    """One of them traces the backward, and both use it."""
    counted = Counted(two)
    region = st.compile(counted.run, retain_trace=retain)
    _gradients(region, (0, 1), KINDS["wrapper"])
    before = watch.traces
    start = threading.Barrier(4)
    rows: dict[int, list[Any]] = {}

    def work(k: int) -> None:
        start.wait(20)
        rows[k] = _gradients(region, (k % 2,), KINDS["wrapper"])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not any(t.is_alive() for t in threads)
    for k in range(4):
        _same(rows[k], _gradients(two, (k % 2,), KINDS["wrapper"]))
    assert watch.traces == before + 2 and counted.runs == (1 if retain else 3)


def test_a_backward_while_another_thread_traces() -> None:
    """A miss waits for the lock of traces and for nothing else."""
    inside, miss = threading.Event(), threading.Event()

    def slow(x: Tensor) -> Tensor:
        inside.set()
        assert miss.wait(20)
        return x.sin()

    region, other = st.compile(two), st.compile(slow)
    x = torch.ones(4, 4, requires_grad=True)
    results = region(x, x)

    def differentiate() -> None:
        assert inside.wait(20)
        miss.set()
        results[0].sum().backward()

    thread = threading.Thread(target=differentiate)
    thread.start()
    y = other(torch.ones(2, requires_grad=True))
    thread.join(60)
    assert not thread.is_alive() and y.requires_grad
    torch.testing.assert_close(x.grad, _gradient_of_first())


def _gradient_of_first() -> Tensor:
    x = torch.ones(4, 4, requires_grad=True)
    two(x, x)[0].sum().backward()
    assert x.grad is not None
    return x.grad


class GradientOfCube(torch.autograd.Function):
    """Its derivative takes another way for more than six rows."""

    @staticmethod
    def forward(ctx, g, x):
        ctx.save_for_backward(g, x)
        return g * x * x

    @staticmethod
    def backward(ctx, grad):
        g, x = ctx.saved_tensors
        factor = 2.0 if x.shape[0] > 6 else 3.0
        return grad * x * x * factor, grad * g * x * factor


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        return GradientOfCube.apply(g, ctx.saved_tensors[0])


@pytest.mark.parametrize("retain_trace", [True, False])
def test_a_second_backward_for_sizes_that_the_trace_of_the_first_has_not(retain_trace: bool) -> None:
    """The first backward was traced at four rows; the second is asked for at eight, where it takes another way."""
    region = st.compile(lambda x: Cube.apply(x * 2), dynamic=True, retain_trace=retain_trace)
    for rows, order in ((4, 1), (8, 2), (4, 2), (5, 2), (9, 2)):
        x = torch.randn(rows, 3, dtype=torch.float64, requires_grad=True)
        found = []
        for f in (lambda x: Cube.apply(x * 2), region):
            out = f(x)
            (g,) = torch.autograd.grad((out * out).sum(), x, create_graph=True)
            found.append(g if order == 1 else torch.autograd.grad((g * g).sum(), x)[0])
        torch.testing.assert_close(found[1], found[0])
    assert len(region.specializations) == 1
