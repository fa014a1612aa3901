"""ST3xx, second part: who shares memory with whom, and who sees which write."""

from __future__ import annotations

from ..rules import Severity, rule
from ..script import Script

#: View operations for any shape; what the class refuses is left out.
VIEWS = ("x[:1]", "x.t()", "x.view(-1)", "x.transpose(0, -1)", "x.unsqueeze(0)", "x.unbind()[0]", "x.split(1)[0]")
#: In-place operations on {0}.
WRITES = ("{0}.add_(1)", "{0}.mul_(2)", "{0}.zero_()")


@rule("ST321", "a view shares memory with its base")
def views_alias(t: Script) -> None:
    """What the schema of an operation calls a view must look at the memory of its input. Autograd and compilers believe
    the schema: a copy (often a dequantised one) loses writes without an error. A class that cannot make a view of itself
    should refuse, and let the user dequantise first. (Item 3 of PyTorch issue 162964.)
    """
    _view(t)
    t.assume(t.value("all(any(v.numel() for v in leaves(z)) for z in (x, y))"))
    t.expect("shares_memory(x, y)", "True", "a view looks at the memory of its base")


@rule("ST322", "a view has the outer storage of its base", severity=Severity.WARNING)
def views_share_storage(t: Script) -> None:
    """A wrapper has no data, but it has a storage, and functionalization and AOTAutograd compare storages to find out which
    inputs and outputs alias. `return_and_correct_aliasing` gives a view the storage of its base.
    """
    _view(t)
    t.require("assert type(y) is type(x) and shares_memory(x, y)", "its views are not views")
    t.expect("outer_storage(y) == outer_storage(x)", "True", "base and view have one storage")


@rule("ST323", "an in-place operation returns its first argument")
def in_place_returns_self(t: Script) -> None:
    """`x.add_(1) is x`. With autograd on, torch returns `self` whatever the class returns; in inference mode, under
    dispatch modes and while tracing the result of `__torch_dispatch__` counts. Another object means that a tracer loses
    the identity of what was written. (Item 4 of PyTorch issue 162964.)
    """
    t.wrapper("x")
    op = t.choose(
        "add_.Tensor(z, 1)", "mul_.Tensor(z, 2)", "zero_.default(z)", "copy_.default(z, x)", "neg_.default(z)"
    )
    t.require(f"with torch.inference_mode():\n    z = x.clone()\n    y = torch.ops.aten.{op}")
    t.assume(t.value("type(z) is type(x)"))
    t.expect("y is z", "True", "the result is the very object that was written")


@rule("ST324", "a write through a view reaches the base, and one to the base its views")
def writes_are_seen(t: Script) -> None:
    """`x[:1].add_(1)` changes `x`, and after `x.add_(1)` a view that was taken before shows the new values. In-place
    operations must write into the inner tensors, not replace them: others keep the old ones.
    """
    view = _view(t)
    t.require("assert shares_memory(x, y)", "its views are not views")
    t.require(t.choose(*WRITES).format(t.choose("y", "x")))
    t.expect("leaves(y)", f"leaves({view})", "base and view show what was written to either")


@rule("ST326", "an operation in place, or with out=, gives the value of the out-of-place one")
def in_place_value(t: Script) -> None:
    """Compared through the projection to dense, an in-place operation on a wrapper must do what it does to the dense value,
    up to the tolerance that was given for the class. Every out variant has a keyword argument that is written to and is
    the result; a class may refuse them, it must not ignore them.
    """
    t.wrapper("x", min_dims=1, min_side=1)
    op = t.choose(*_IN_PLACE)
    t.require("z = x.clone()")
    t.require("assert same(z, x) and not shares_memory(x, z)", "its clone is another thing")
    t.require(f"d = {t.dense('x')}.detach().clone()")
    t.require(f"y = {op.format('z', 'x')}")
    t.require(op.format("d", "d"))
    if "out=" in op:
        t.expect("y is z", "True", "the result is the tensor that was given as out")
    t.expect(t.dense("z"), "d", "what it writes to the dense value")


#: writes to {0}
_IN_PLACE = (
    "{0}.add_(1)", "{0}.mul_(2)", "{0}.zero_()", "{0}.neg_()", "{0}.sub_(1)", "torch.add({1}, 1, out={0})",
    "torch.mul({1}, 2, out={0})", "torch.sub({1}, 1, out={0})",
)  # fmt: skip


@rule("ST327", "a write moves the version counter, which a view has from its base")
def versions_move(t: Script) -> None:
    """Autograd compares version counters to notice that a saved tensor was overwritten. An in-place operation that is
    handled above autograd, in `__torch_function__` or by a method of the class, must count as one. A view and its base have
    one counter, since they have one memory; a view that is made above autograd is unknown to it, and gradients through it
    are lost.
    """
    through_view = t.choose(False, True)
    if through_view:
        _view(t)
        t.require("assert shares_memory(x, y)", "its views are not views")
    else:
        t.wrapper("x")
    name = "y" if through_view else "x"
    t.require(f"before = {name}._version")
    t.require(t.choose(*WRITES, "{0}.neg_()").format(name))
    t.expect(f"{name}._version > before", "True", "a write is counted")
    if through_view:
        t.expect("x._version", "y._version", "base and view have one version counter")


@rule("ST331", "the result of an operation that is no view is independent")
def results_are_fresh(t: Script) -> None:
    """An operation that is neither a view nor in place leaves its operands as they are, now and when the result is written
    to later. Sharing of inner tensors that nobody writes (offsets, scales) is fine; sharing of data is not.
    """
    t.wrapper("x", min_dims=1, min_side=1)
    t.require("before = [v.clone() for v in leaves(x)]")
    t.assume(t.value("len(before) > 0"))
    write = t.choose(*WRITES)

    def fresh(op: str) -> None:
        t.require(f"y = {op}")
        t.expect("leaves(x)", "before", "the operands are as before")
        t.require(write.format("y"))
        t.expect("leaves(x)", "before", "a write to the result does not reach the operands")

    t.each(_FRESH, fresh, f"it refuses {_FRESH[0]} and all others of these operations")


_FRESH = (
    "x * 1", "x * 2", "x + 1", "x - 1", "x / 2", "x + x", "x * x", "-x", "x.abs()", "x.exp()", "x.relu()", "x.cumsum(0)",
    "x.to(x.dtype, copy=True)", "x.sum(0)", "x.masked_fill(x > 1, 0)", "x.softmax(0)", "torch.where(x > 1, x, x)",
    "torch.zeros_like(x)", "torch.ones_like(x)", "torch.empty_like(x)", "torch.full_like(x, 2)", "torch.rand_like(x)",
    "x.new_zeros(x.shape)",
)  # fmt: skip


def _view(t: Script) -> str:
    """``x`` and ``y``, a view of it; returns the source of the view."""
    t.wrapper("x", min_dims=1, min_side=1)
    view = t.choose(*VIEWS)
    t.require(f"y = {view}")
    return view
