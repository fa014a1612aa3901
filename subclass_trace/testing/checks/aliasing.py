"""ST3xx, second part: who shares memory with whom, and who sees which write."""

from __future__ import annotations

from ..rules import Cost, Severity, rule
from ..script import Script


@rule("ST321", "a view shares memory with its base", cost=Cost.SWEEP)
def views_alias(t: Script) -> None:
    """What the schema of an operation calls a view must look at the memory of its input. Autograd
    and compilers believe
    the schema: a copy (often a dequantised one) loses writes without an error. A class that cannot
    make a view of itself should refuse, and let the user dequantise first. (Item 3 of PyTorch issue
    162964.)

    Passes: `cls(x.codes.t(), x.scale.t())` for `aten.t`.
    Fails: `x.dequantize().t()` for `aten.t`.
    """


@rule(
    "ST322", "a view has the outer storage of its base", severity=Severity.WARNING, cost=Cost.SWEEP
)
def views_share_storage(t: Script) -> None:
    """A wrapper has no data, but it has a storage, and functionalization and AOTAutograd compare
    storages to find out which inputs and outputs alias. `return_and_correct_aliasing` gives a view
    the storage of its base.

    Passes: `return return_and_correct_aliasing(func, args, kwargs, out)`.
    Fails: `return cls(x.codes.view(...), x.scale)`, as it is.
    """


@rule("ST323", "an in-place operation returns its first argument", cost=Cost.SWEEP)
def in_place_returns_self(t: Script) -> None:
    """`x.add_(1) is x`. With autograd on, torch returns `self` whatever the class returns; in
    inference mode, under dispatch modes and while tracing the result of `__torch_dispatch__`
    counts. Another object means that a tracer loses the identity of what was written. (Item 4 of
    PyTorch issue 162964.)

    Passes: `x.codes.add_(n); return x`.
    Fails: `return cls(x.codes.add_(n), x.scale)`.
    """


@rule(
    "ST324",
    "a write through a view reaches the base, and one to the base its views",
    cost=Cost.SWEEP,
)
def writes_are_seen(t: Script) -> None:
    """`x[:1].add_(1)` changes `x`, and after `x.add_(1)` a view that was taken before shows the new
    values. In-place operations must write into the inner tensors, not replace them: others keep the
    old ones.

    Passes: `x.codes.copy_(new)`.
    Fails: `x.codes = new`.
    """


@rule(
    "ST326",
    "an operation in place, or with out=, gives the value of the out-of-place one",
    cost=Cost.SWEEP,
)
def in_place_value(t: Script) -> None:
    """Compared through the projection to dense, an in-place operation on a wrapper must do what it
    does to the dense value, up to the tolerance that was given for the class. Every out variant has
    a keyword argument that is written to and is the result; a class may refuse them, it must not
    ignore them.

    Passes: `x.copy_(out_of_place(x, *args))`.
    Fails: `x.codes.add_(n)`, where the value is `codes * scale`.
    """


@rule("ST327", "a write moves the version counter, which a view has from its base", cost=Cost.SWEEP)
def versions_move(t: Script) -> None:
    """Autograd compares version counters to notice that a saved tensor was overwritten. An in-place
    operation that is handled above autograd, in `__torch_function__` or by a method of the class,
    must count as one. A view and its base have one counter, since they have one memory; a view that
    is made above autograd is unknown to it, and gradients through it are lost.

    Passes: `return_and_correct_aliasing` in `__torch_dispatch__`, below autograd.
    Fails: a method `add_` of the class that writes `self.codes` and does not call torch.
    """


@rule("ST331", "the result of an operation that is no view is independent", cost=Cost.SWEEP)
def results_are_fresh(t: Script) -> None:
    """An operation that is neither a view nor in place leaves its operands as they are, now and
    when the result is written to later. Sharing of inner tensors that nobody writes (offsets,
    scales) is fine; sharing of data is not.

    Passes: `cls(-x.codes, x.scale)`.
    Fails: `cls(x.codes, -x.scale)`, which shares the codes with x.
    """
