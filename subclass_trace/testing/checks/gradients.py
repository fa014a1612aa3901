"""ST4xx: gradients. Autograd runs above the class, with formulas that use whatever operations they
need."""

from __future__ import annotations

from ..rules import rule
from ..script import Script


@rule("ST410", "a write to a computed value is differentiated")
def writes_are_differentiated(t: Script) -> None:
    """`y = x * 1; y[1:].mul_(3)`: the gradient of a write through a view goes through
    `new_empty_strided`, `copy_`, `clone` and the view itself, all of them on the class. A class may
    refuse these; it must not get them wrong.

    Passes: `new_empty_strided`, `copy_`, `clone` and views are right, or refused.
    Fails: `new_empty_strided` gives a dense tensor, into which codes are copied.
    """
    t.wrapper("x", grad=True, min_dims=1)
    t.require("assert copy_works(x)", "its copy_ is another thing")
    t.require(f"d = {t.dense('x')}.detach().clone().requires_grad_()")

    def steps(write: str) -> None:
        t.require("y = x * 1")
        t.require(write)
        t.require(f"dense_y = d * 1\ndense_{write}")
        t.only_if_near(t.project("y"), "dense_y", "its forward is another thing")
        t.require("v = y.detach()")
        t.require("(g,) = torch.autograd.grad(y, x, v)", "it refuses the backward")
        t.require(f"(dense_g,) = torch.autograd.grad(dense_y, d, {t.project('v')})")
        t.expect(t.project("g"), "dense_g", "the gradient of the dense program")

    writes = "y[1:].mul_(3)", "y.mul_(3)", "y[:1].zero_()", "y.view(-1).mul_(2)", "y.t().mul_(3)"
    t.each(writes, steps, "it refuses all")
