"""ST2xx: fake tensors and symbolic sizes. A tracer runs the class on tensors that have sizes but no data."""

from __future__ import annotations

from ..rules import Severity, rule
from ..script import Script

#: Operations that many classes have; each is tried, and what the class refuses is left out.
OPERATIONS = (
    "x * 2",
    "x + x",
    "x.clone()",
    "x.detach()",
    "x.sum()",
    "x.view(-1)",
    "x.t()",
    "x[:1]",
    "x.unsqueeze(0)",
)


@rule("ST201", "a wrapper has a fake twin")
def fake_twin(t: Script) -> None:
    """Tracing starts with `FakeTensorMode.from_tensor`: the wrapper is flattened, its inner tensors are replaced by fake
    ones, and it is unflattened. That must work, give the same class and metadata, and every tensor inside must be fake.
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


@rule("ST203", "operations on fake tensors are those on real ones")
def fake_operations(t: Script) -> None:
    """What the class does must depend on metadata alone. If an operation gives another type, size, stride or dtype on
    fake tensors than on real ones, or works on one kind only, then traced programs differ from eager ones.

    A real tensor inside the result of a traced operation is a constant that the graph does not know: it is frozen, cannot
    be moved or differentiated, and mixing it with fake tensors raises in the next operation.
    """
    t.wrapper("x")
    op = t.choose(*OPERATIONS)
    _twin(t)
    t.require(f"y = {op}")
    t.run(
        f"with mode:\n    fake_y = {op.replace('x', 'fake_x')}",
        "what works on real tensors works on fake ones",
    )
    t.expect("plain_meta(fake_y)", "plain_meta(y)", "the same result, up to the data")
    real = "[n for n, v in named_leaves(fake_y) if not is_fake_tensor(v)]"
    t.expect(real, "[]", "no real tensor in a fake result")


@rule("ST205", "sizes can be symbols, and stay symbols", severity=Severity.WARNING)
def symbolic_sizes(t: Script) -> None:
    """With dynamic shapes the outer sizes and those of the inner tensors are `torch.SymInt`. Flatten, unflatten and
    operations must take and keep them. `int(size)`, `bool(size > 4)`, f-strings of sizes and comparisons with sizes in
    the context make the tracer guard on the number that it sees: the program is compiled again for each size, and
    `mark_dynamic` raises "constraints violated".
    """
    t.wrapper("x", min_dims=1, min_side=2)
    _twin(t)
    t.run("mode = faking_symbolic()")
    t.run("fake_x = faked(mode, x, dynamic=True)", "a twin with symbolic sizes can be made")
    t.expect("specialised(mode)", "[]", "unflatten is given symbols, and turns none into a number")
    t.only_if(
        "any(isinstance(n, torch.SymInt) for n in fake_x.shape)",
        "its sizes are numbers although dynamic",
    )
    t.require("before = specialised(mode)")
    op = t.choose("", "x.clone()", "x * 2", "x.detach()", "x + x", "x.sum()")
    if not op:
        t.run(
            "y = rebuild(fake_x)",
            "a wrapper with symbolic sizes goes through flatten and unflatten",
        )
        t.expect(
            "[str(n) for n in y.shape]",
            "[str(n) for n in fake_x.shape]",
            "the rebuilt one has the same symbols",
        )
    elif t.attempt(f"real = {op}"):
        fake_op = op.replace("x", "fake_x")
        t.run(
            f"with mode:\n    y = {fake_op}", "what works on real tensors works with symbolic sizes"
        )
    t.expect("specialised(mode)", "before", "no symbol became a number")
    t.expect("numbers(fake_x.shape)", "numbers(x.shape)", "the symbols stand for the real sizes")
    if "real" in t.names:
        t.expect("numbers(y.shape)", "numbers(real.shape)", "the sizes of the real result")


def _twin(t: Script) -> None:
    """``mode`` and ``fake_x``, if the class has fake twins (ST201)."""
    t.require("mode = faking()")
    t.require("fake_x = faked(mode, x)", "it has no fake twin")
    t.only_if("all(map(is_fake_tensor, leaves(fake_x)))", "its fake twin holds real tensors")
