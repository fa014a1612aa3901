"""ST6xx: inside another wrapper, around another wrapper, and memory formats."""

from __future__ import annotations

from ..rules import Cost, rule
from ..script import NotApplicable, Script, on

_DIFFERENTIATED = ("x.sin()", "x * 2", "x * x", "x.sum()", "x.exp()")
_OPERATIONS = (
    "x * 2", "x.sin()", "x.clone()", "x.t()", "x.sum()", "x[:1]", "x.view(-1)", "x + x",
    "x.clone().add_(1)",
)  # fmt: skip


@rule("ST601", "inside another wrapper it computes as alone", cost=Cost.SEVERAL)
def inside_another(t: Script) -> None:
    """DTensor holds local tensors, and other wrappers hold inner tensors, of any class. An outer
    wrapper calls ATen operations on them from its own `__torch_dispatch__`. What works at the top
    level must work there, with the same value: rules that exist for `torch.Tensor` methods only are
    not reached.

    Autograd sees the outermost wrapper only. Its backward formulas run on it, and through it on the
    wrapper inside; the gradient of a pair must be the pair of the gradients. (Wrong in
    torch.compile until PyTorch issue 124878.)

    Passes: rules are those of `__torch_dispatch__`.
    Fails: `F.relu` has a rule in `__torch_function__`, and `aten.relu` none, or another one.
    """
    t.wrapper("x")
    t.wrapper("z", "y")
    t.require("p = Pair(x.clone(), z.clone())", "another wrapper cannot hold it")
    if not t.value("same(leaves(p), leaves(x) + leaves(z)) and meta(p.a) == meta(x)"):
        raise NotApplicable("its clone is another thing")

    def steps(op: str) -> None:
        t.require(f"torch.manual_seed(1)\na, b = {on('x.clone()', op)}, {on('z.clone()', op)}")
        t.run(
            f"torch.manual_seed(1)\nq = {on('p', op)}",
            "what works on each of two works on a pair of them",
        )
        t.expect("[q.a, q.b]", "[a, b]", "a pair of results")

    def backward(op: str) -> None:
        for name in "xz":
            t.require(f"{name}_y = {on(f'{name}.requires_grad_()', op)}")
            grad = f"({name}_g,) = torch.autograd.grad({name}_y, {name}, {name}_y.detach())"
            t.require(grad, "it refuses the backward")
        t.require(f"q = {on('p.requires_grad_()', op)}")
        t.run(
            "(g,) = torch.autograd.grad(q, p, q.detach())", "a pair of them can be differentiated"
        )
        t.expect("[g.a, g.b]", "[x_g, z_g]", "the pair of the gradients")

    t.each(_OPERATIONS, steps, "it refuses all")
    if t.value("x.is_floating_point()"):
        t.each(_DIFFERENTIATED, backward, "it refuses all")
