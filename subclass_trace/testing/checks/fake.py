"""ST2xx: fake tensors and symbolic sizes. A tracer runs the class on tensors that have sizes but no data."""

from __future__ import annotations

from ..rules import Severity, rule
from ..script import NotApplicable, Script

FAMILY = "fake"

#: Operations that many classes have; each is tried, and what the class refuses is left out.
OPERATIONS = ("x * 2", "x + x", "x.clone()", "x.detach()", "x.sum()", "x.view(-1)", "x.t()", "x[:1]", "x.unsqueeze(0)")


@rule(
    "ST201",
    "a wrapper has a fake twin",
    family=FAMILY,
    wrong="""
    def __init__(self, data, scale):
        self.scale_value = scale.item()  # needs data
    """,
    right="""
    def __init__(self, data, scale):
        self.scale = scale
    """,
)
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
    t.expect("[is_fake_tensor(v) for v in leaves(y)]", "[True for v in leaves(x)]", "all inner tensors are fake")


@rule(
    "ST202",
    "it can be built from fake tensors",
    family=FAMILY,
    severity=Severity.WARNING,
    wrong="""
    @classmethod
    def from_dense(cls, dense):
        if dense.abs().max() == 0:  # control flow on data
            raise ValueError("all zero")
    """,
    right="""
    @classmethod
    def from_dense(cls, dense):
        scale = dense.abs().amax().clamp(min=1e-12)
    """,
)
def built_from_fake(t: Script) -> None:
    """A region that builds the wrapper from dense tensors (quantising an activation, wrapping a gradient) runs the
    constructor on fake tensors. It must not read values, and must not use real tensors that it kept from elsewhere.
    """
    if t.subject.strategy is not None:
        raise NotApplicable("it is not built from dense tensors here")
    t.wrapper("x")
    line = t.lines[-1].replace("x = ", "y = ", 1)
    t.run(f"with faking():\n    {line}", "the constructor must work on fake tensors")
    t.expect("plain_meta(y)", "plain_meta(x)", "the fake one looks like the real one")
    t.expect("all(is_fake_tensor(v) for v in leaves(y))", "True", "all inner tensors are fake")


@rule(
    "ST203",
    "operations on fake tensors give the sizes and types of real ones",
    family=FAMILY,
    wrong="""
    if func is aten.view.default:
        size = args[1] if x.data.data_ptr() else x.shape  # asks where the data is
    """,
    right="""
    if func is aten.view.default:
        size = args[1]
    """,
)
def fake_operations(t: Script) -> None:
    """What the class does must depend on metadata alone. If an operation gives another type, size, stride or dtype on
    fake tensors than on real ones, or works on one kind only, then traced programs differ from eager ones.
    """
    t.wrapper("x")
    op = t.choose(*OPERATIONS)
    _twin(t)
    t.require(f"y = {op}")
    t.run(f"with mode:\n    fake_y = {op.replace('x', 'fake_x')}", "what works on real tensors works on fake ones")
    t.expect("plain_meta(fake_y)", "plain_meta(y)", "the same result, up to the data")


@rule(
    "ST204",
    "operations on fake tensors use fake tensors only",
    family=FAMILY,
    wrong="""
    ONE = torch.ones(())  # a real tensor

    if func is aten.mul.Tensor:
        return Scaled(x.data, ONE)  # ends up in the result as a constant
    """,
    right="""
    if func is aten.mul.Tensor:
        return Scaled(x.data, torch.ones_like(x.scale))
    """,
)
def no_real_leaves(t: Script) -> None:
    """A real tensor inside the result of a traced operation is a constant that the graph does not know: it is frozen,
    cannot be moved or differentiated, and mixing it with fake tensors raises in the next operation.
    """
    t.wrapper("x")
    op = t.choose(*OPERATIONS)
    _twin(t)
    t.require(f"with mode:\n    y = {op.replace('x', 'fake_x')}")
    t.expect("[n for n, v in named_leaves(y) if not is_fake_tensor(v)]", "[]", "no real tensor in a fake result")


@rule(
    "ST205",
    "sizes can be symbols",
    family=FAMILY,
    severity=Severity.WARNING,
    wrong="""
    @staticmethod
    def __tensor_unflatten__(inner, context, outer_size, outer_stride):
        return Scaled(inner["data"], inner["scale"], [int(n) for n in outer_size])
    """,
    right="""
    @staticmethod
    def __tensor_unflatten__(inner, context, outer_size, outer_stride):
        return Scaled(inner["data"], inner["scale"], outer_size)
    """,
)
def symbolic_twin(t: Script) -> None:
    """With dynamic shapes the outer sizes and those of the inner tensors are `torch.SymInt`. Unflatten must take and keep
    them: no `int()`, no sizes as text, no comparison with the sizes in the context.
    """
    t.wrapper("x", min_dims=1, min_side=2)
    _twin(t)
    t.run("mode = faking_symbolic()")
    t.run("y = faked(mode, x, dynamic=True)", "a twin with symbolic sizes can be made")
    t.expect("numbers(y.shape)", "numbers(x.shape)", "the symbols stand for the real sizes")


@rule(
    "ST206",
    "flatten and unflatten keep symbolic sizes symbolic",
    family=FAMILY,
    severity=Severity.WARNING,
    wrong="""
    def __tensor_flatten__(self):
        return ["data"], {"rows": int(self.shape[0])}  # the size is a number from here on
    """,
    right="""
    def __tensor_flatten__(self):
        return ["data"], None  # sizes come as outer_size
    """,
)
def stays_symbolic(t: Script) -> None:
    """`int(size)`, `bool(size > 4)` and f-strings of sizes make the tracer guard on the number that it sees: the program
    is compiled again for each size, and `mark_dynamic` raises "constraints violated".
    """
    t.wrapper("x", min_dims=1, min_side=2)
    _twin(t)
    t.require("mode = faking_symbolic()")
    t.require("fake_x = faked(mode, x, dynamic=True)", "it has no twin with symbolic sizes")
    t.expect("specialised(mode)", "[]", "unflatten is given symbols, and turns none into a number")
    t.only_if("any(isinstance(n, torch.SymInt) for n in fake_x.shape)", "its sizes are numbers although dynamic")
    t.require("before = specialised(mode)")
    t.run("y = rebuild(fake_x)", "a wrapper with symbolic sizes goes through flatten and unflatten")
    t.expect("specialised(mode)", "before", "no symbol became a number")
    t.expect("[str(n) for n in y.shape]", "[str(n) for n in fake_x.shape]", "the rebuilt one has the same symbols")


@rule(
    "ST207",
    "operations keep symbolic sizes symbolic",
    family=FAMILY,
    severity=Severity.WARNING,
    wrong="""
    if func is aten.clone.default:
        rows = int(x.shape[0])  # a guard on the number
    """,
    right="""
    if func is aten.clone.default:
        ...  # the same for every size
    """,
)
def symbolic_operations(t: Script) -> None:
    """An operation that asks for the number behind a symbolic size costs a recompilation for each size (see ST206). It
    must also give the same sizes as on real tensors.
    """
    t.wrapper("x", min_dims=1, min_side=2)
    op = t.choose("x.clone()", "x * 2", "x.detach()", "x + x", "x.sum()")
    _twin(t)
    t.require(f"real = {op}")
    t.require("mode = faking_symbolic()")
    t.require("fake_x = faked(mode, x, dynamic=True)", "it has no twin with symbolic sizes")
    t.require("before = specialised(mode)")
    t.run(f"with mode:\n    y = {op.replace('x', 'fake_x')}", "what works on real tensors works with symbolic sizes")
    t.expect("specialised(mode)", "before", "no symbol became a number")
    t.expect("numbers(y.shape)", "numbers(real.shape)", "the sizes of the real result")


def _twin(t: Script) -> None:
    """``mode`` and ``fake_x``, if the class has fake twins (ST201)."""
    t.require("mode = faking()")
    t.require("fake_x = faked(mode, x)", "it has no fake twin")
    t.only_if("all(map(is_fake_tensor, leaves(fake_x)))", "its fake twin holds real tensors")
