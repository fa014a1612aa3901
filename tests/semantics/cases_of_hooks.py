"""Hooks, and custom backwards that have effects."""

from __future__ import annotations

from typing import Any

import torch
from case_kit import cases, nonleaf
from wrappers import dense, two

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor

same, fact = cases("Backward")


@fact("tensor hooks and post-accumulate-grad hooks")
def _hooks() -> None:
    seen: list[Any] = []
    x = two(3, seed=1).requires_grad_()
    x.register_hook(lambda g: seen.append(type(g)))
    x.register_post_accumulate_grad_hook(lambda t: seen.append(t is x))
    y = st.compile(lambda x: x * 2)(x)
    y.backward(y.detach())
    assert seen == [TwoTensor, True]


@fact(
    "the order in which hooks of several leaves run",
    differs="all run when the backward of the region is done, in the order of the inputs; eager's run in the midst of it",
    torch="differs in the same way",
)
def _order_of_hooks(call: Any) -> Any:
    leaves = [dense(3, seed=k).requires_grad_() for k in (1, 2, 3)]
    order: list[int] = []
    for k, leaf in enumerate(leaves):
        leaf.register_hook(lambda g, k=k, order=order: order.append(k))
    call(lambda x, y, z: ((x * y).sin() * z).exp())(*leaves).sum().backward()
    return order


class _Logged(torch.autograd.Function):
    """Its backward keeps the gradient, and multiplies it by a number that anybody may change."""

    seen: list[Any] = []
    factor = 1.0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        _Logged.seen.append(g)
        return g * _Logged.factor


def _hooked(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda g: _Logged.seen.append(g))
    return _Logged.apply(y).sin()  # type: ignore[no-untyped-call, no-any-return]


@fact(
    "hooks and custom backwards that log, count, or keep gradients; numbers that they read and that change",
    refused="eager",
)
def _late_effects() -> None:
    found = []
    for call in (_hooked, st.compile(_hooked)):
        _Logged.seen.clear()
        for k in range(3):
            x = two(3, seed=k).requires_grad_()
            _Logged.factor = 1.0
            y = call(x)
            _Logged.factor = k + 1.0
            y.backward(y.detach())
            _Logged.seen.append(x.grad)
        found.append([t for g in _Logged.seen for t in (g.a, g.b)])
    assert len(found[0]) == 18
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@fact("the same in a backward that is differentiated again", refused="eager", torch="refused")
def _late_effects_twice() -> None:
    x = dense(3, seed=1).requires_grad_()
    torch.autograd.grad(st.compile(_hooked)(x).sum(), x, create_graph=True)


@fact(
    "`register_hook` in the region, on an input or a closed-over tensor: stays there in each call",
    refused="UnsupportedError",
)
def _hook_on_input() -> None:
    found = []
    for compile in (lambda f: f, st.compile):
        w, x = (dense(3, seed=k).requires_grad_() for k in (1, 2))

        def f(x: Tensor, w: Tensor = w) -> Tensor:
            for t in (x, w):
                t.register_hook(lambda g: g * 10)
            return x * w

        call = compile(f)
        for _ in range(2):
            (call(x) + x * w).sum().backward()
        found += [x.grad, w.grad]
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])


def _hooked_view(x: Tensor) -> Any:
    v = x.view(-1)
    v.register_hook(lambda g: g * 10)
    return v[1:], v * 2


same(
    "a view with a hook, which another view and another result are made of: runs eagerly",
    _hooked_view,
    nonleaf(dense),
    back=(0, 1),
    torch="not in the survey",
    refused="eager",
)


@fact(
    "a hook on the node that adds to the `.grad` of a leaf (`get_gradient_edge`), a backward inside of the region",
    differs="it is not called: nobody can ask a node for its hooks",
)
def _hook_of_an_accumulation(call: Any) -> Any:
    w = dense(3, seed=1).requires_grad_()
    node = torch.autograd.graph.get_gradient_edge(w).node  # which lives as long as somebody holds it
    node.register_prehook(lambda grads: (grads[0] * 2,))
    call(lambda x: (w * x).sum().backward())(dense(3, seed=2))
    return w.grad
