"""ST3xx, first part: which calls a class takes, and how it computes them: strangers, inference
mode, random numbers, bits."""

from __future__ import annotations

from ..rules import Cost, Severity, rule
from ..script import Script, on

_JOINS = (
    "torch.add({0}, {1})", "torch.mul({0}, {1})", "torch.maximum({0}, {1})",
    "torch.cat([{0}, {1}])", "torch.stack([{0}, {1}])",
)  # fmt: skip


@rule("ST301", "an unknown wrapper in a call is left alone", cost=Cost.SEVERAL)
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
    t.wrapper("x", min_dims=1)  # a tensor of one element may pass for a number

    def steps(call: str) -> None:
        t.require(call.format("x", "x"))  # the class takes it on its own instances
        t.require("stranger = Witness(torch.zeros(x.shape, dtype=x.dtype, device=x.device))")
        for order in (("x", "stranger"), ("stranger", "x")):
            t.run(f"try: {call.format(*order)}\nexcept Exception: pass")
            t.expect(
                "[types for types in stranger.seen if type(x) not in types]",
                "[]",
                "an unknown wrapper gets the call as it was written, and no inner tensors",
            )

    t.each(_JOINS, steps, "it refuses all")


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

    def steps(op: str) -> None:
        t.require(f"y = {op}")
        what = "computed as on the dense value, whose bit is looked at"
        t.expect(t.project("y"), on("d", op), what)

    def lazy(around: str) -> None:
        t.wrapper("x", around=around)
        bits = "any(v.is_conj() or v.is_neg() for v in leaves(x))"
        t.only_if(bits, "its constructor resolves lazy bits")
        t.require(f"d = {t.dense('x')}")
        t.each(("x * 2", "x.exp()", "x.sum()", "x + 1", "x * x"), steps, "it refuses all")

    bits = "torch._neg_view({0})", "torch.complex(({0}).float(), ({0}).float()).conj()"
    t.each(bits, lazy, "it takes no lazy bits")
