"""ST4xx: gradients. Autograd runs above the class, with formulas that use whatever operations they
need."""

from __future__ import annotations

from ..rules import Cost, rule
from ..script import Script


@rule("ST401", "what is computed from a wrapper that requires grad requires grad", cost=Cost.SWEEP)
def keeps_requires_grad(t: Script) -> None:
    """`requires_grad` must survive operations. It gets lost where a class takes over above autograd
    (`__torch_function__`, methods of its own) and computes on detached values.

    Passes: `__torch_dispatch__` computes, and autograd sees the call.
    Fails: `__torch_function__` returns `func(x.codes.detach())`.
    """


@rule("ST402", "gradients are those of the dense program", cost=Cost.SWEEP)
def gradients(t: Script) -> None:
    """With a projection P to dense (`P(op(x)) == op(P(x))`), the gradient for a wrapper, projected,
    is the gradient for the dense value. A wrong one nearly always comes from an operation of a
    backward formula that the class computes wrongly.

    Passes: `sigmoid_backward` of the dense values.
    Fails: `sigmoid_backward` of the codes.
    """


@rule("ST405", "a second derivative is that of the dense program", cost=Cost.SWEEP)
def second_derivatives(t: Script) -> None:
    """Gradient penalties and Hessians differentiate the backward (`create_graph=True`). A formula
    of one's own that computes on detached values in its backward has the right gradient, and a
    second one of zero. It may be refused, as `once_differentiable` does.

    Passes: `return grad * 2 * x`, of saved tensors.
    Fails: `return grad * 2 * x.detach()`.
    """


@rule("ST406", "a dense tangent gives the right gradient or is refused", cost=Cost.SWEEP)
def dense_tangents(t: Script) -> None:
    """The tangent that comes in need not be of the class: losses that dequantise,
    `y.backward(torch.ones(...))` and autograd's own zeros are dense. Mixed operations must compute
    the right value, or refuse (DTensor does).

    Passes: `mul` of a dense tangent and a wrapper computes with `wrapper.dequantize()`.
    Fails: it takes the tangent for codes, and multiplies with the scale once more.
    """


@rule("ST407", "a write to what a formula has saved is noticed", cost=Cost.SWEEP)
def saved_operands(t: Script) -> None:
    """`save_for_backward` remembers the version of a tensor, and the backward raises if somebody
    has written to it since. A formula that keeps its operand on `ctx`, or an inner tensor of it,
    computes the gradient with the new numbers, silently.

    Passes: `ctx.save_for_backward(x)`.
    Fails: `ctx.x = x.detach()`.
    """


@rule("ST410", "a write to a computed value is differentiated")
def writes_are_differentiated(t: Script) -> None:
    """`y = x * 1; y[1:].mul_(3)`: the gradient of a write through a view goes through
    `new_empty_strided`, `copy_`, `clone` and the view itself, all of them on the class. A class may
    refuse these; it must not get them wrong.

    Passes: `new_empty_strided`, `copy_`, `clone` and views are right, or refused.
    Fails: `new_empty_strided` gives a dense tensor, into which codes are copied.
    """
    t.wrapper("x", grad=True, min_dims=1, min_side=2)
    write = t.choose(
        "y[1:].mul_(3)", "y.mul_(3)", "y[:1].zero_()", "y.view(-1).mul_(2)", "y.t().mul_(3)"
    )
    t.require("assert copy_works(x)", "its copy_ is another thing")
    t.require("y = x * 1")
    t.require(write)
    t.require(f"d = {t.dense('x')}.detach().clone().requires_grad_()")
    t.require(f"dense_y = d * 1\ndense_{write}")
    _agree(t)
    t.require("v = y.detach()")
    t.require("(g,) = torch.autograd.grad(y, x, v)", "it refuses the backward")
    t.require(f"(dense_g,) = torch.autograd.grad(dense_y, d, {t.project('v')})")
    t.expect(t.project("g"), "dense_g", "the gradient of the dense program")


# ---- inside
def _agree(t: Script) -> None:
    """The forward is right: if it is not, that is another rule's matter."""
    t.only_if_near(t.project("y"), "dense_y", "its forward is another thing")
