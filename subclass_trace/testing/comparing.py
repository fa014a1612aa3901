"""How results of a wrapper are compared with those of the dense program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from . import probes

if TYPE_CHECKING:
    from .sweep import Call, Sweep


class Difference(NamedTuple):
    """What differs.

    Attributes:
        rule: which rule that breaks; "" where that depends on the call.
        what: what should hold.
        got, expected: both sides.
        step: the source of the way from the result to the tensor: ``[1]``.
        look, dense_look: the source of what to look at, with a gap for either tensor.
    """

    rule: str
    what: str
    got: Any
    expected: Any
    step: str = ""
    look: str = "{}"
    dense_look: str = "{}"


def flat(value: Any) -> list[Any]:
    """The values in lists and tuples."""
    return [t for v in value for t in flat(v)] if isinstance(value, (list, tuple)) else [value]


def layout_of(x: torch.Tensor) -> torch.layout:
    """The layout of a tensor."""
    return x.layout


def differences(sweep: Sweep, call: Call, got: Any, expected: Any, step: str = "") -> Difference | None:
    """The first difference of a result from that of the dense program."""
    if isinstance(expected, (list, tuple)):
        if not isinstance(got, (list, tuple)) or len(got) != len(expected):
            what = "it gives as many tensors"
            return Difference("ST313", what, f"{len(flat(got))}", f"{len(flat(expected))}", step, "len({})", "len({})")
        each = (differences(sweep, call, a, b, f"{step}[{k}]") for k, (a, b) in enumerate(zip(got, expected, strict=True)))
        return next((d for d in each if d is not None), None)
    if isinstance(expected, torch.Tensor):
        return _tensors(sweep, call, got, expected, step)
    judged = sweep.operands.judged and not call.drawn and not has_gaps(sweep, call, got)
    if isinstance(expected, (bool, int)) or not isinstance(expected, float):
        same = not judged or got == expected
    else:
        rtol, atol = sweep.subject.tolerance
        same = not judged or abs(got - expected) <= atol + rtol * abs(expected) or (got != got and expected != expected)
    return None if same else Difference("", "the value of the dense program", got, expected, step)


def _tensors(sweep: Sweep, call: Call, got: Any, expected: torch.Tensor, step: str) -> Difference | None:
    if not isinstance(got, torch.Tensor):
        return Difference("ST313", "it gives a tensor", type(got), torch.Tensor, step, "type({})", "type({})")
    rule = call.rule if call.rule == "ST503" else "ST313"
    if got.shape != expected.shape and (sweep.operands.judged or "nonzero" not in call.text):
        sides = tuple(got.shape), tuple(expected.shape)
        return Difference(rule, "the sizes of the dense program", *sides, step, "{}.shape", "{}.shape")
    if got.dtype != expected.dtype:
        return Difference(rule, "the dtype of the dense program", got.dtype, expected.dtype, step, "{}.dtype", "{}.dtype")
    if call.drawn or not sweep.operands.judged or has_gaps(sweep, call, got):
        return None
    return _values(sweep, call, got, expected, step)


def has_gaps(sweep: Sweep, call: Call, got: Any) -> bool:
    """Does the value depend on elements that mean nothing?"""
    if sweep.subject.valid is None or isinstance(got, sweep.subject.cls):
        return False
    masks = (sweep.meaningful(sweep.operands.shared[n]) for n in call.names & sweep.operands.wrappers)
    return any(mask is not None and not bool(mask.all()) for mask in masks)


def _values(sweep: Sweep, call: Call, got: Any, expected: torch.Tensor, step: str) -> Difference | None:
    wrapped = isinstance(got, sweep.subject.cls)
    look = sweep.subject.dense or "{}" if wrapped else "{}"
    what = "the value of the dense program"
    try:
        value = sweep.value(got)
    except Exception as error:
        return Difference("", "its result has a dense value", f"{type(error).__name__}: {error}", expected, step, look)
    if value.shape != expected.shape:
        return Difference("", "its result has a dense value of its size", value, expected, step, look)
    if wrapped and value.dtype != got.dtype and sweep.operands.agree:
        what = "the dense value of a result has its dtype"
        return Difference("ST313", what, value.dtype, got.dtype, step, f"{look}.dtype", "{}.dtype")
    if sweep.close(got, value.detach(), expected.detach(), *sweep.subject.tolerance):
        return None
    return Difference("", what, value, expected, step, look)


def same_twice(sweep: Sweep, a: Any, b: Any, tolerance: tuple[float, float] = (0.0, 0.0)) -> bool:
    """Are two results of the same call the same: types, metadata, and numbers up to the tolerance?

    What is inside of a class that draws random numbers may differ; its dense value counts.
    """
    xs, ys = flat(a), flat(b)
    if len(xs) != len(ys):
        return False
    if sweep.subject.random and any(tolerance) and sweep.operands.judged:
        if [type(x) for x in xs] != [type(y) for y in ys]:
            return False
        xs, ys = ([sweep.value(v) for v in vs] for vs in (xs, ys))
    return all(probes.same(x, y, *tolerance) for x, y in zip(xs, ys, strict=True))
