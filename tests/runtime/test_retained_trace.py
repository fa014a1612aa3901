"""The fake autograd graph of a specialization: how long it is kept, what it keeps, and what happens without it."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

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
    region = st.compile(two)
    for used in ((0, 1), (0,), (1,), (0,)):
        _same(_gradients(region, used, KINDS["wrapper"]), _gradients(two, used, KINDS["wrapper"]))
    assert len(watch.sessions) == 1 and watch.traces == 3 and watch.alive() == (1, 1)
    region.reset()
    assert watch.alive() == (0, 0)


@pytest.mark.usefixtures("own_backward")
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


# ---------------------------------------------------------------------------------------------- threads
def test_two_threads_that_both_miss(watch: Watch) -> None:
    """One of them traces the backward, and both use it."""
    region = st.compile(two)
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
    assert watch.traces == before + 2 and len(watch.sessions) == 1


def test_a_backward_while_another_thread_traces() -> None:
    """A miss waits for the lock of traces and for nothing else."""
    inside, miss = threading.Event(), threading.Event()

    def slow(x: Tensor) -> Tensor:
        inside.set()
        assert miss.wait(20)
        return torch.cos(x)

    table = {torch.ops.aten.sin.default: slow}
    region, other = st.compile(two), st.compile(torch.sin, decompositions=table)
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


def test_a_second_backward_for_sizes_that_the_trace_of_the_first_has_not() -> None:
    """The first backward was traced at four rows; the second is asked for at eight, where it takes another way."""

    def second(f: Callable[[Tensor], Tensor], rows: int) -> Tensor:
        x = torch.linspace(0, 1, rows * 3, dtype=torch.float64).view(rows, 3).requires_grad_()
        out = f(x)
        (g,) = torch.autograd.grad((out * out).sum(), x, create_graph=True)
        return torch.autograd.grad((g * g).sum(), x)[0]

    region = st.compile(lambda x: Cube.apply(x * 2), dynamic=True)
    torch.testing.assert_close(second(region, 4), second(lambda x: Cube.apply(x * 2), 4))
    with pytest.raises(st.TangentError, match="for other sizes"):
        second(region, 8)
    torch.testing.assert_close(second(region, 8), second(lambda x: Cube.apply(x * 2), 8))
