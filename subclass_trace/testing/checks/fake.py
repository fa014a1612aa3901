"""ST2xx: fake tensors and symbolic sizes. A tracer runs the class on tensors that have sizes but no
data."""

from __future__ import annotations

from ..rules import Cost, Severity, rule
from ..script import NotApplicable, Script, on

#: Operations that many classes have; each is tried, and what the class refuses is left out.
OPERATIONS = (
    "x * 2", "x + x", "x.clone()", "x.detach()", "x.sum()", "x.view(-1)", "x.t()", "x[:1]",
    "x.unsqueeze(0)",
)  # fmt: skip


@rule("ST201", "a wrapper has a fake twin")
def fake_twin(t: Script) -> None:
    """Tracing starts with `FakeTensorMode.from_tensor`: the wrapper is flattened, its inner tensors
    are replaced by fake ones, and it is unflattened. That must work, give the same class and
    metadata, and every tensor inside must be fake.

    Passes: unflatten that calls `_make_wrapper_subclass` and stores what it is given.
    Fails: a constructor that calls `codes.max().item()` or `codes.data_ptr()`.
    """
    t.wrapper("x")
    t.require("z = rebuild(x)")
    t.only_if("meta(z) == meta(x) and not z.requires_grad", "it does not survive the round trip")
    t.run("mode = faking()")
    t.run("y = faked(mode, x)", "a wrapper of fake tensors can be made")
    t.expect("plain_meta(y)", "plain_meta(x)", "the fake twin looks like the real one")
    t.expect(
        "[is_fake_tensor(v) for v in leaves(y)]",
        "[True for v in leaves(x)]",
        "all inner tensors are fake",
    )


@rule("ST203", "operations on fake tensors are those on real ones", cost=Cost.SEVERAL)
def fake_operations(t: Script) -> None:
    """What the class does must depend on metadata alone. If an operation gives another type, size,
    stride or dtype on fake tensors than on real ones, or works on one kind only, then traced
    programs differ from eager ones.

    A real tensor inside the result of a traced operation is a constant that the graph does not
    know: it is frozen, cannot be moved or differentiated, and mixing it with fake tensors raises in
    the next operation.

    Passes: `cls(func(x.codes), x.scale)`.
    Fails: `if not isinstance(x.codes, FakeTensor): ...`, or `torch.tensor(2.0)` kept from an
    earlier call.
    """
    t.wrapper("x")
    _twin(t)

    def steps(op: str) -> None:
        t.require(f"y = {op}")
        t.run(
            f"with mode:\n    fake_y = {on('fake_x', op)}",
            "what works on real tensors works on fake ones",
        )
        t.expect("plain_meta(fake_y)", "plain_meta(y)", "the same result, up to the data")
        real = "[n for n, v in named_leaves(fake_y) if not is_fake_tensor(v)]"
        t.expect(real, "[]", "no real tensor in a fake result")

    t.each(OPERATIONS, steps, "it refuses all")


@rule(
    "ST205",
    "sizes can be symbols, and stay symbols",
    severity=Severity.WARNING,
    cost=Cost.DEAR,
)
def symbolic_sizes(t: Script) -> None:
    """With dynamic shapes the outer sizes and those of the inner tensors are `torch.SymInt`.
    Flatten, unflatten and operations must take and keep them. `int(size)`, `bool(size > 4)`,
    f-strings of sizes and comparisons with sizes in
    the context make the tracer guard on the number that it sees: the program is compiled again for
    each size, and `mark_dynamic` raises "constraints violated".

    What torch does by itself does not count: `torch.complex` and `torch.polar` of symbolic sizes
    fix them, and a size of 1 is a number to torch, so that of blocks of 32 rows there are at least
    two.

    Passes: `codes.view(m // 32, 32, n)`.
    Fails: `codes.view(int(m) // 32, 32, n)`, or `if codes.shape[0] > 4`.
    """
    t.wrapper("x", min_dims=1)
    _grow(t)
    _twin(t)
    t.run("mode = faking_symbolic()")
    t.run("fake_x = faked(mode, x, dynamic=True)", "a twin with symbolic sizes can be made")
    t.expect("specialised(mode)", "[]", "unflatten is given symbols, and turns none into a number")
    t.only_if(
        "any(isinstance(n, torch.SymInt) for n in fake_x.shape)",
        "its sizes are numbers although dynamic",
    )
    t.expect("numbers(fake_x.shape)", "numbers(x.shape)", "the symbols stand for the real sizes")
    t.run("y = rebuild(fake_x)", "a wrapper with symbolic sizes goes through flatten and unflatten")
    symbols = "[str(n) for n in {}.shape]"
    t.expect(symbols.format("y"), symbols.format("fake_x"), "the rebuilt one has the same symbols")
    t.expect("specialised(mode)", "[]", "no symbol became a number")

    def steps(op: str) -> None:
        t.require(f"real = {op}")
        t.run(
            f"with mode, keeping_symbols():\n    y = {on('fake_x', op)}",
            "what works on real tensors works with symbolic sizes",
        )
        t.expect("specialised(mode)", "[]", "no symbol became a number")
        t.expect("numbers(y.shape)", "numbers(real.shape)", "the sizes of the real result")

    t.each(("x.clone()", "x * 2", "x.detach()", "x + x", "x.sum()"), steps, "it refuses all")


def _grow(t: Script) -> None:
    """Make ``x`` so large that no size inside is 0 or 1 only because it is small."""
    small = "[n < 2 for v in leaves({}) for n in v.shape]"
    for times in (2, 4):
        larger = f"({{0}}).repeat([{times}] * ({{0}}).dim())"
        try:
            t.wrapper("larger", around=larger)
            t.lines.pop()
            if t.value(f"{small.format('x')} == {small.format('larger')}"):
                return
            t.wrapper("x", around=larger)
            del t.lines[-2]
        except NotApplicable:  # not every class has instances of twice the size
            return


def _twin(t: Script) -> None:
    """``mode`` and ``fake_x``, if the class has fake twins (ST201)."""
    t.require("mode = faking()")
    t.require("fake_x = faked(mode, x)", "it has no fake twin")
    t.only_if("all(map(is_fake_tensor, leaves(fake_x)))", "its fake twin holds real tensors")
