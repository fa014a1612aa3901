"""Switching compiled autograd on and off: nesting, errors, threads, refusals; torch's own; and what a tape looks like, printed."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.compiled_autograd import _enable

import subclass_trace as st
from subclass_trace.subclass.flatten import leaves_of
from subclass_trace.tape import EngineTape, compiled_autograd, runtime
from subclass_trace.zoo import TwoTensor

W = torch.ones(3)


def backward(w: torch.Tensor | None = None, factor: float = 3.0) -> torch.Tensor:
    w = W.clone().requires_grad_() if w is None else w
    (w * w * factor).sin().sum().backward()
    assert w.grad is not None
    return w.grad


EXPECTED = backward()


def test_a_block_and_what_is_left_after_it() -> None:
    with compiled_autograd() as inside:
        assert inside is compiled_autograd and compiled_autograd.enabled
        assert torch.equal(backward(), EXPECTED)
    assert compiled_autograd.stats.runs == 1
    assert torch.equal(backward(), EXPECTED)
    assert compiled_autograd.stats.runs == 1, "a backward after the block went through a tape"


# ---------------------------------------------------------------------------------------------- nesting, errors
def test_nested_back_ends_share_captures_and_compile_once() -> None:
    made = []

    def first(gm: Any, inputs: Any) -> Any:
        made.append("first")
        return gm.forward

    def second(gm: Any, inputs: Any) -> Any:
        made.append("second")
        return gm.forward

    with compiled_autograd(backend=first):
        for _ in range(2):
            torch.testing.assert_close(backward(), EXPECTED)
            with compiled_autograd(backend=second):
                torch.testing.assert_close(backward(), EXPECTED)
        torch.testing.assert_close(backward(), EXPECTED)
    assert made == ["first", "second"] and compiled_autograd.stats.captures == 1


def test_an_unknown_back_end_is_refused_before_anything_changes() -> None:
    with pytest.raises(st.OptionError, match="there is no back end 'egaer'"), compiled_autograd(backend="egaer"):
        pass
    assert not compiled_autograd.enabled


def test_an_error_in_a_hook_leaves_everything_usable() -> None:
    for when in ("first", "later"):
        with compiled_autograd():
            if when == "later":
                backward()
            w = W.clone().requires_grad_()
            y = w * w * 3.0
            y.register_hook(lambda g: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                y.sin().sum().backward()
            assert torch.equal(backward(), EXPECTED)
    assert torch.equal(backward(), EXPECTED)


@pytest.mark.parametrize("bad, error, text", [
    (lambda g: g[:2], RuntimeError, "has changed the size of value"),
    (lambda g: g.double(), RuntimeError, "has changed the type of value"),
    (lambda g: 3, TypeError, "expected Variable, but hook returned"),
])  # fmt: skip
def test_what_a_hook_may_not_return(bad: Any, error: type[Exception], text: str) -> None:
    for on in (False, True):
        w = W.clone().requires_grad_()
        y = w * 2
        y.register_hook(bad)
        with pytest.raises(error, match=text), compiled_autograd() if on else torch.enable_grad():
            y.sum().backward()


# ---------------------------------------------------------------------------------------------- anomaly mode, refusals
@pytest.mark.parametrize("first", [True, False])
def test_anomaly_mode_names_the_node_and_shows_the_forward(first: bool) -> None:
    """Also for a tape that was captured without it: it is no part of torch's cache key."""
    w = torch.zeros(2, requires_grad=True)
    if not first:
        with compiled_autograd():
            (w.sqrt() * 0).sum().backward()
    texts = []
    for on in (False, True):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with torch.autograd.detect_anomaly():
                loss = (w.sqrt() * 0).sum()
                with (
                    pytest.raises(
                        RuntimeError, match="Function 'SqrtBackward0' returned nan values in its 0th output."
                    ),
                    compiled_autograd() if on else torch.enable_grad(),
                ):
                    loss.backward()
        text = next(str(c.message) for c in caught if "Error detected in SqrtBackward0" in str(c.message))
        texts.append(text.split("(Triggered")[0].strip())
    assert texts[0] == texts[1] and "loss = (w.sqrt() * 0).sum()" in texts[1]


def test_jagged_tensors_are_refused_by_name() -> None:
    w = torch.randn(3, requires_grad=True)
    values = [torch.randn(2, 3), torch.randn(4, 3)]
    jagged = torch.nested.nested_tensor(values, layout=torch.jagged, requires_grad=True)
    loss = (jagged * w).values().sum()
    with compiled_autograd():
        with pytest.raises(st.UnsupportedError) as caught:
            loss.backward()
        assert "NestedTensor (jagged or strided)" in str(caught.value) and "MulBackward0" in str(caught.value.path)
        with compiled_autograd.disabled():
            loss.backward()
    assert w.grad is not None


# ---------------------------------------------------------------------------------------------- threads
def test_threads_each_with_their_own_back_end() -> None:
    errors: list[BaseException] = []
    barrier = threading.Barrier(4)

    def work(k: int) -> None:
        try:
            barrier.wait()
            for n in range(10):
                w = W.clone().requires_grad_()
                expected = backward(factor=float(k))  # in half of the threads on the plain engine
                if k % 2:
                    with compiled_autograd(backend=None if k == 1 else "eager"):
                        got = backward(w, float(k))
                else:
                    got = backward(w, float(k))
                torch.testing.assert_close(got, expected)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    with compiled_autograd():
        for t in threads:
            t.start()
        for n in range(10):
            assert torch.equal(backward(), EXPECTED)
        for t in threads:
            t.join(60)
    assert not errors


def test_a_block_that_ends_in_another_order_than_it_began() -> None:
    inside, leave = threading.Event(), threading.Event()

    def work() -> None:
        with compiled_autograd():
            inside.set()
            leave.wait(60)
            backward()

    with compiled_autograd():
        t = threading.Thread(target=work)
        t.start()
        inside.wait(60)
    leave.set()
    t.join(60)
    assert compiled_autograd.stats.runs == 1
    backward()
    assert compiled_autograd.stats.runs == 1


# ---------------------------------------------------------------------------------------------- torch's own
@pytest.fixture
def torch_ca() -> Any:
    from torch._dynamo import compiled_autograd as theirs

    made: list[torch.fx.GraphModule] = []

    def compiler(gm: torch.fx.GraphModule) -> Any:
        made.append(gm)
        return gm

    theirs.made = made
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield lambda: theirs._enable(compiler), made


def test_torchs_compiled_autograd_after_ours(torch_ca: Any) -> None:
    enable, made = torch_ca
    with compiled_autograd():
        assert torch.equal(backward(), EXPECTED)
    with enable():
        for _ in range(3):  # the first one may find our tape; it is as right
            assert torch.equal(backward(), EXPECTED)
    assert len(made) == 1, "torch never made a tape of its own"
    with compiled_autograd():
        assert torch.equal(backward(), EXPECTED)
    assert torch.equal(backward(), EXPECTED)


def test_ours_inside_torchs(torch_ca: Any) -> None:
    enable, made = torch_ca
    with enable():
        backward(factor=7.0)
        with compiled_autograd():
            assert torch.equal(backward(), EXPECTED)
        assert compiled_autograd.stats.runs == 1
        assert torch.equal(backward(factor=7.0), backward(factor=7.0))
    assert compiled_autograd.stats.runs == 1


def test_the_graph_of_a_tape_runs_by_itself() -> None:
    given = []

    def spy(tape: EngineTape, values: list[Any]) -> Any:
        given.append(list(values))
        return runtime.run_as_is(tape, values)

    w = W.clone().requires_grad_()
    with compiled_autograd():
        runtime.thread.runners[-1] = spy
        torch.autograd.grad((w * 2).exp().sum(), w)
    tape = compiled_autograd.tapes[-1]
    (got,) = tape.graph(*given[0])
    assert torch.equal(got, (w * 2).exp().detach() * 2)


@pytest.mark.inductor
def test_segments_compiled_by_inductor() -> None:
    model, seen = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)), []
    expected: list[torch.Tensor] = []
    for around in (torch.enable_grad, lambda: compiled_autograd(backend="inductor")):
        for _ in range(2):
            model.zero_grad()
            h = model[1](model[0](torch.ones(3, 4)))
            h.register_hook(lambda g: seen.append(g.shape))
            with around():
                model[2](h).pow(2).sum().backward()
            grads = [p.grad for p in model.parameters()]
            for a, b in zip(grads, expected, strict=False):
                torch.testing.assert_close(a, b)
            expected = grads
    assert seen == [(3, 4)] * 4 and compiled_autograd.stats.segments == 2


@pytest.mark.parametrize("backend", [None, "eager"])
def test_retain_grad_where_no_gradient_comes(backend: Any) -> None:
    """The C++ hook behind `retain_grad` may not be given an undefined gradient: the process would die."""

    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> None:
            return None

    for _ in range(4):
        results = []
        for on in (False, True):
            w = W.clone().requires_grad_()
            y, z = w * 2, w * 3
            y.retain_grad()
            z.retain_grad()
            with compiled_autograd(backend=backend) if on else torch.enable_grad():
                (Nothing.apply(y).sum() + z.sum()).backward()
            results.append((w.grad, y.grad, z.grad))
        assert results[0][1] is results[1][1] is None
        assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][2], results[1][2])


# -------------------------- backwards of regions under torch's own compiled autograd: each is one call in torch's graph
Tensor = torch.Tensor


def torchs() -> Any:
    """Torch's compiled autograd with a compiler that runs the graph as it is."""
    return _enable(lambda gm: gm, dynamic=False)


def layers(x: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(x @ w).sin() @ w


def leaf(wrapper: bool = False) -> Tensor:
    parts = [torch.randn(4, 4, generator=torch.Generator().manual_seed(k)) for k in range(2)]
    return (TwoTensor(*parts) if wrapper else parts[0]).requires_grad_()


def gradients(f: Callable[..., Any], w: Tensor, around: Callable[[], Any], rows: int = 3) -> list[Tensor]:
    x = torch.linspace(-1, 1, 4 * rows).reshape(rows, 4).requires_grad_()
    w.grad = None
    y = f(x, w)
    ones = torch.ones(rows, 4)
    with around():
        y.backward(TwoTensor(ones, ones * 2) if isinstance(y, TwoTensor) else ones)
    return [t for g in (x.grad, w.grad) for t in leaves_of(g)]


@pytest.mark.parametrize("wrapper", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.usefixtures("own_backward")
@pytest.mark.sweep(every=4)
def test_gradients_in_each_step(wrapper: bool, dynamic: bool) -> None:
    region, w = st.compile(layers, dynamic=dynamic or None), leaf(wrapper)
    for rows in (3, 3, 5, 7, 3):
        expected = gradients(region, w, torch.enable_grad, rows)
        for around in (torchs, compiled_autograd, torchs):
            assert all(map(torch.equal, gradients(region, w, around, rows), expected))


@pytest.mark.usefixtures("own_backward")
def test_under_dynamo() -> None:
    torch._dynamo.reset()
    region, w = st.compile(layers), leaf()
    expected = gradients(region, w, torch.enable_grad)
    for _ in range(3):
        got = gradients(region, w, lambda: _enable(torch.compile(backend="aot_eager"), dynamic=False))
        torch.testing.assert_close(got, expected)
    torch._dynamo.reset()


@pytest.mark.usefixtures("own_backward")
def test_a_second_backward_and_one_that_is_differentiated() -> None:
    region, w = st.compile(layers), leaf()
    loss = region(torch.ones(3, 4), w).sum()
    with torchs():
        loss.backward(retain_graph=True)
    first = w.grad.clone()
    with torchs():
        loss.backward()
    torch.testing.assert_close(w.grad, first * 2)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    results = []
    for around in (torch.enable_grad, torchs):
        x = torch.ones(3, 4, requires_grad=True)
        with around():
            (g,) = torch.autograd.grad(region(x, w).sum(), x, create_graph=True)
        results.append((g.detach(), *torch.autograd.grad((g * g).sum(), x)))
    torch.testing.assert_close(*results)


# -------------------------------------------------------------------------------------- what a tape looks like, printed
def small(hooked: bool = True) -> torch.Tensor:
    w = torch.ones(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        y = w.sin()
    y.register_hook(lambda g: None)
    y.retain_grad()
    y.grad_fn.register_hook(lambda out, grads: None)
    w.register_post_accumulate_grad_hook(lambda p: None)
    return (y * 2 + y).sum()


def captured(make: Any = small, **options: Any) -> Any:
    loss = make()
    with compiled_autograd(**options):
        loss.backward()
    return compiled_autograd.tapes[-1]


def test_text() -> None:
    text = str(captured())
    first = int(re.search(r"SinBackward0 +(\d+)", text).group(1))
    shape = re.sub(r" +", " ", text)
    assert shape == (
        "tape of 6 autograd nodes, 4 hooks, 1 unpacking\n"
        " node seq_nr\n"
        " GraphRoot\n"
        f" SumBackward0 {first + 3}\n"
        f" AddBackward0 {first + 2}\n"
        f" MulBackward0 {first + 1}\n"
        " sum of gradients\n"
        f" SinBackward0 {first}\n"
        " tensor hook hooks[0]\n"
        " retain_grad\n"
        " unpack packed[0] with hooks[2]\n"
        " node post-hook hooks[1]\n"
        " AccumulateGrad\n"
        " into inputs[2].grad\n"
        " post-accumulate-grad hook hooks[3]"
    )


def test_segments_are_listed() -> None:
    text = str(captured(backend="eager"))
    assert "segments for the back end 'eager'" in text
    assert re.search(r"segment_0: \d+ operations of the tape, aten graphs of \[\d+\] operations", text)
