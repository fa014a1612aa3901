"""Cases: random numbers, modes and numbers."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from case_kit import cases, plain, root, tagged
from runs import Runs
from torch.utils.checkpoint import checkpoint
from wrappers import dense, two

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


# ---------------------------------------------------------------------------------------------- random numbers
same, fact = cases("Random numbers")
same(
    "dropout: the random stream of eager, also after the call", lambda x: F.dropout(x, 0.5, True) * 2, root(), back=(0,)
)
same("two equal random operations are not merged", lambda x: torch.randn_like(x) - torch.randn_like(x), plain())
same(
    "dropout in a checkpoint is not drawn again",
    lambda x: checkpoint(lambda y: F.dropout(y.sin(), 0.5, True), x, use_reentrant=False),
    root(),
    back=(0,),
)
same("rrelu, gumbel_softmax", lambda x: F.gumbel_softmax(F.rrelu(x, training=True)), root(), back=(0,))
same(
    "`torch.manual_seed` in the region",
    lambda x: (torch.manual_seed(3), torch.rand(2) + x)[1],
    plain(dense, 2),
    torch="graph break",
    refused="SideEffectError",
)


# ---------------------------------------------------------------------------------------------- modes and numbers
def _mode(context: Callable[[], Any], f: Callable[..., Any]) -> Callable[..., Any]:
    def inner(*args: Any) -> Any:
        with context():
            return f(*args)

    return inner


@contextlib.contextmanager
def _double_by_default() -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


same, fact = cases("Modes and numbers")
same(
    "autocast in the region", _mode(lambda: torch.autocast("cpu", torch.bfloat16), lambda x: x @ x.sin()), plain(dense)
)
same(
    "one leaf used twice under autocast",
    _mode(lambda: torch.autocast("cpu", torch.bfloat16), lambda x: x @ x),
    root(dense),
    back=(0,),
    torch="differs in the same way",
    differs="each use is cast anew, so gradients add up in float32; eager's cache casts once and adds up in bfloat16",
)
same(
    "default dtype set in the region",
    _mode(_double_by_default, lambda x: x + torch.ones(3)),
    plain(dense),
    refused="eager",
)
same("channels_last", lambda x: x.to(memory_format=torch.channels_last) * 2, plain(two, 2, 3, 4, 4))
same(
    "zero-sized and 0-dim",
    lambda x, y: (x.sum(), y * 2),
    lambda c: (two(0, 3, seed=c), TwoTensor(torch.tensor(1.0), torch.tensor(2.0))),
)


def _computed_in_inference_mode(x: Tensor) -> Any:
    with torch.inference_mode():
        y = x * 2
    return y, y[0]


same(
    "a result that is computed in inference mode is an inference tensor",
    _computed_in_inference_mode,
    root(),
    refused="eager",
)


@fact("the address of an input's memory (`data_ptr()`, also of its storage)", refused="UnsupportedError")
def _address() -> None:
    st.compile(lambda x: x * (x.untyped_storage().data_ptr() % 2 + 1))(dense(3, seed=1))


same(
    "the very class of a dense input (`type(x) is torch.Tensor`)",
    lambda x: (x * 2 if type(x) is torch.Tensor else x, type(x)),
    plain(dense),
)


class _Scale(torch.nn.Parameter):
    def doubled(self) -> torch.Tensor:
        return self * 2


same(
    "a subclass of `nn.Parameter`, its methods and attributes: runs eagerly",
    lambda p: (p.doubled() if isinstance(p, _Scale) else p, type(p)),
    lambda call: _Scale(torch.ones(3) * call),
    torch="not in the survey",
)


@fact(
    "`unsafe_split` and `unsafe_chunk` of a normal tensor in inference mode: are the members views?",
    differs="they share the memory, and are no views, as outside of inference mode",
    torch="not in the survey",
    refused="eager",
)
def _unsafe_members() -> None:
    x = dense(4, seed=1)
    with torch.inference_mode():
        members = [call(lambda x: x.unsafe_chunk(2))(x) for call in (lambda f: f, st.compile)]
    assert members[0][0]._is_view() == members[1][0]._is_view()


@fact("all Python attributes of an input at once (`vars(x)`)", torch="not in the survey")
def _all_attributes() -> None:
    assert "tag" in st.compile(lambda x: list(vars(x)))(tagged(0))


@fact(
    "a differentiable result, made with inference mode turned off inside of it",
    torch="graph break",
    refused="eager",
)
def _out_of_inference_mode() -> None:
    def f(x: Tensor) -> Tensor:
        with torch.inference_mode(False):
            return x * 2

    with torch.inference_mode():
        st.compile(f)(torch.ones(2).requires_grad_())


same(
    "batch norm updates its statistics once",
    lambda x, m, v: F.batch_norm(x, m, v, training=True),
    lambda c: (two(4, 3, seed=c), two(3, seed=1), TwoTensor(torch.ones(3), torch.ones(3))),
)


@fact("grad mode, inference mode, autocast around the call are guards")
def _ambient() -> None:
    region = st.compile(lambda x: x @ x)
    x = dense(2, 2, seed=0)
    with torch.inference_mode():
        assert region(x).is_inference()
    with torch.autocast("cpu", torch.bfloat16):
        assert region(x).dtype is torch.bfloat16
    assert region(x).dtype is torch.float32 and len(region.specializations) == 3


same, fact = cases("Backward")


@fact("inputs that the backward does not read die with their last user")
def _inputs_die() -> None:
    region, x = st.compile(lambda x: x + 1), torch.ones(16, requires_grad=True) * 1
    for _ in range(3):
        before = weakref.ref(x)
        x = region(x)
        assert before() is None


@fact("vmap over a gradient, along any dimension of the tangents")
def _batched_along_the_last() -> None:
    v, found = torch.randn(4, 4, 5), []
    for call in (lambda f: f, st.compile):
        x = dense(3, 4, seed=1).requires_grad_()
        y = call(lambda x: (x.t() @ x).transpose(0, 1))(x)
        grad = lambda t, x=x, y=y: torch.autograd.grad(y, x, t, retain_graph=True)[0]
        found.append(torch.func.vmap(grad, in_dims=2)(v))
    assert torch.allclose(*found, atol=1e-5)


class _Widened(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, w: Tensor) -> Tensor:
        return w.float()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


@fact("a leaf that asks for gradients of another dtype (`grad_dtype`), also between calls", torch="silently wrong")
def _grad_dtype() -> None:
    w = torch.zeros(3, dtype=torch.bfloat16, requires_grad=True)
    region = st.compile(lambda w: _Widened.apply(w) * 1.001)
    for dtype in (torch.bfloat16, torch.float32, torch.bfloat16):
        w.grad, w.grad_dtype = None, dtype
        region(w).sum().backward()
        assert w.grad.dtype is dtype and w.grad[0] == torch.tensor(1.001, dtype=dtype)


@fact("autocast that is on while the backward runs", torch="silently wrong")
def _autocast_around_the_backward() -> None:
    for call in (lambda f: f, st.compile):
        w, x = torch.full((4, 4), 0.01, requires_grad=True), torch.ones(1, 4)
        loss = call(lambda x, w: (x @ w).sum() + (x @ w).sum() * 256)(x, w)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss.backward()
        assert w.grad[0, 0].item() == 257.0


@fact("a custom operation whose backward writes to an input: runs eagerly")
def _backward_that_writes() -> None:
    for backend in ("eager", lambda graph, examples: graph):
        x, y, z = torch.ones(3, requires_grad=True), torch.ones(3), torch.ones(3)
        st.compile(lambda x, y, z: (z.mul_(5), _WritesLate.apply(x, y) + z)[1], backend=backend)(
            x, y, z
        ).sum().backward()
        assert y.tolist() == [0, 0, 0] and x.grad.tolist() == [2, 2, 2]


@fact("an inner tensor that requires grad, taken out of its wrapper: runs eagerly", torch="silently wrong")
def _gradient_of_an_inner_tensor() -> None:
    for outer in (False, True):
        inner = torch.ones(3, requires_grad=True)
        x = TwoTensor(torch.ones(3), torch.ones(3)).requires_grad_(outer)
        x.a = inner  # a constructor that does not detach
        st.compile(lambda x: x.a * 2)(x).sum().backward()
        assert inner.grad.tolist() == [2, 2, 2]


_SEEN = torch.zeros(())


@fact("a custom backward that writes to a tensor of which it alone knows (a global statistic): runs eagerly")
def _backward_that_writes_to_a_global() -> None:
    for backend in ("eager", lambda graph, examples: graph):
        x = torch.ones(3, requires_grad=True)
        _SEEN.zero_()
        for call in range(3):
            st.compile(_Watches.apply, backend=backend)(x).sum().backward()
            assert _SEEN.item() == 3 * (call + 1) and x.grad[0].item() == 2 * (call + 1)


class _Watches(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        _SEEN.add_(g.sum())
        return g * 2


class _WritesLate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.y = y
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        with torch.no_grad():
            ctx.y.zero_()
        return g * 2, None


same, fact = cases("Random numbers")


@fact("the function runs once, while another thread draws random numbers")
def _runs_once() -> None:
    stop, runs = threading.Event(), Runs()
    thread = threading.Thread(target=lambda: [torch.rand(2) for _ in iter(stop.is_set, True)])
    thread.start()

    def f(x: Tensor) -> Tensor:
        runs.note()
        for _ in range(50):
            x = x.sin()
        return x

    try:
        st.compile(f)(torch.ones(3))
    finally:
        stop.set()
        thread.join()
    assert len(runs) == 1


same, fact = cases("Modes and numbers")
same(
    "a number out of a tensor, NaN in a later call, times the constant 0.0",
    lambda x: torch.full((2,), x.item() * 0.0),
    lambda call: torch.tensor(float("nan") if call else 1.0),
    torch="not in the survey",
)
