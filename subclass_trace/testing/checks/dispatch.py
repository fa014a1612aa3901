"""ST3xx, first part: which calls a class takes, and how it computes them: strangers, inference
mode, random numbers, bits."""

from __future__ import annotations

from ..rules import Cost, Severity, rule
from ..script import NotApplicable, Script, on

_BINARY = ("torch.add({0}, {1})", "torch.mul({0}, {1})", "torch.maximum({0}, {1})")


@rule("ST301", "an unknown wrapper in a call is left alone")
def strangers(t: Script) -> None:
    """`x + stranger` asks the class of `x` first, `stranger + x` and `torch.cat([stranger, x])` ask
    it second. If it does not know the stranger it must return `NotImplemented`, so that the other
    class sees the call as it was written, with `x` whole; if nobody knows the other, torch raises a
    TypeError that names both. A class that unwraps itself and goes on
    hands bare inner tensors to the stranger: meaning (a scale, a placement, a mask) is lost without
    an error. What counts is `types`, which has the types of all tensors, not the first argument,
    and not the arguments without those in lists. (Item 7 of PyTorch issue 162964.)

    Passes: `if not all(issubclass(cls, t) for t in types): return NotImplemented`, which lets dense
    tensors through.
    Fails: `func(*tree_map_only(cls, lambda t: t.codes, args))` whatever `types` are.
    """
    call = t.choose(*_BINARY, "torch.cat([{0}, {1}])", "torch.stack([{0}, {1}])")
    order = t.choose(("x", "stranger"), ("stranger", "x"))
    t.wrapper("x", min_dims=1, min_side=2)  # a tensor of one element may pass for a number
    t.require(call.format("x", "x"))  # the class takes it on its own instances
    t.require("stranger = Witness(torch.zeros(x.shape, dtype=x.dtype, device=x.device))")
    t.run(f"try:\n    {call.format(*order)}\nexcept Exception:\n    pass")
    t.expect(
        "[types for types in stranger.seen if type(x) not in types]",
        "[]",
        "an unknown wrapper gets the call as it was written, and no inner tensors",
    )


@rule("ST305", "inference mode gives the same results", cost=Cost.SWEEP)
def inference_mode(t: Script) -> None:
    """Composite operations (`reshape`, `linear`, `matmul`, `contiguous`) are taken apart by
    autograd, above `__torch_dispatch__`; in inference mode nobody does that, and the class meets
    them whole. What works without inference mode must work in it, with the same result. (Item 5 of
    PyTorch issue 162964.) Views in inference mode of a wrapper that
    was made outside are not asked for: torch's own `return_and_correct_aliasing` does not make
    them.

    Passes: `if (out := func.decompose(*args, **kwargs)) is not NotImplemented: return out`.
    Fails: an error for every operation that has no rule of its own, `aten.linear` among them.
    """


@rule(
    "ST308",
    "an inner tensor with a conjugate or negative bit is computed with",
    severity=Severity.WARNING,
)
def lazy_bits(t: Script) -> None:
    """`x.conj()` is lazy: it sets a bit, and operations look at it above `__torch_dispatch__`.
    Below, the bit of an inner tensor is ignored, so that `Wrapper(c.conj()) * 2` is computed
    without the conjugate, silently; `z.conj().imag` has a negative bit, and the same happens to its
    sign. A class may refuse complex tensors; if it takes them it must resolve them. (Item 2 of
    PyTorch issue 162964, PyTorch issue 130646.)

    Passes: `codes.resolve_conj().resolve_neg()` in the constructor.
    Fails: `self.codes = codes` for complex numbers.
    """
    complex_ = t.choose(False, True)
    if complex_:
        t.wrapper("x", around="torch.complex(({0}).float(), ({0}).float()).conj()")
    else:
        t.wrapper("x", floating=True, around="torch._neg_view({0})")
    if not t.value("any(v.is_conj() or v.is_neg() for v in leaves(x))"):
        raise NotApplicable("its constructor resolves lazy bits")
    op = t.choose("x * 2", "x.exp()", "x.sum()", "x + 1", "x * x")
    dense = t.dense("x")
    t.require(f"y = {op}")
    t.require(f"d = {dense}")
    t.expect(t.project("y"), on("d", op), "computed as on the dense value, whose bit is looked at")


@rule("ST310", "operations give the value of the dense program", cost=Cost.SWEEP)
def dense_values(t: Script) -> None:
    """A projection P to dense commutes with operations: `P(op(x)) == op(P(x))`, up to the tolerance
    that was given. A class may refuse an operation, or give a dense result; a wrong value is what
    nobody notices. The calls of the sweep, on other sizes, dtypes and layouts.

    Passes: `(x + y).dequantize()` is `x.dequantize() + y.dequantize()`.
    Fails: `abs` of codes whose zero is not 0.
    """
