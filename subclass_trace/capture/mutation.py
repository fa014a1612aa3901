"""Mutations, read off the live inputs after the run: data is written back, what changes more than data runs eagerly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from .. import torch_api
from ..errors import NeedsEager, UnsupportedError
from ..plan import MutationPlan
from ..subclass.attributes import attributes_of_wrapper
from ..subclass.flatten import flatten, guarded_spec
from ..subclass.paths import Path
from ..subclass.protocol import is_traceable
from ..subclass.spec import Spec, WrapperSpec, same_contexts, spec_leaves
from .aliasing import family, repeats
from .inputs import Inputs, TracedInput
from .recorder import Recorder

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class Before:
    """State of one traced input before the run.

    ``leaves``: what its inner tensors are; some classes keep ``inner.detach()``, or a copy, instead of what they are given.
    """

    spec: Spec
    leaves: tuple[Tensor, ...]
    memory: tuple[Any, ...]
    attributes: dict[str, Any]
    version: int | None


def state_of(traced: Tensor) -> Before:
    """The state of one traced tensor."""
    leaves, spec = flatten(traced)
    attributes, version = attributes_of_wrapper(traced, spec), None if traced.is_inference() else traced._version
    return Before(guarded_spec(spec), tuple(leaves), tuple(map(_memory, leaves)), attributes, version)


def _memory(t: Tensor) -> Any:
    return torch_api.storage_ref(t) if t.layout is torch.strided else None


def read_mutations(inputs: Inputs, recorder: Recorder, emit: Callable[[Tensor], int]) -> list[MutationPlan]:
    """One plan per input that the region wrote to. ``emit`` adds a live tensor to the forward values.

    Raises:
        NeedsEager: the region changes an input otherwise.
    """
    reals = [row.real() for row in inputs.rows]
    bases = [None if real is None else family(real) for real in reals]  # kept, so that their ids stay theirs
    memory = Counter(map(_memory, inputs.originals))  # inputs in one memory may share a counter
    plans = []
    for number, (row, was) in enumerate(zip(inputs.rows, inputs.before, strict=True)):
        written = _written(row, was, inputs, recorder)
        differentiable = _moved_history(row)
        if differentiable and (sum(base is bases[number] for base in bases) > 1 or _forbidden(row, reals[number])):
            raise _changes(
                row.path, "under autograd, where it is a leaf, or a view that autograd protects or knows others of"
            )
        if written or differentiable:
            alone = isinstance(row.spec, WrapperSpec) or memory[_memory(inputs.originals[row.leaves[0]])] == 1
            moved = row.traced._version - was.version if alone and was.version is not None else None
            plans.append(MutationPlan(number, emit(row.traced), written, differentiable, moved))
    return plans


def _changes(path: Path, how: str) -> NeedsEager:
    return NeedsEager(
        f"the region changes an input {how}",
        path=path,
        expected="writes to the data of inputs; under autograd, to such as are no leaves",
        fix="write to it by x.copy_(y) under torch.no_grad(), or return a new tensor",
    )


def _written(row: TracedInput, was: Before, inputs: Inputs, recorder: Recorder) -> tuple[int, ...]:
    """The leaves of an input that the region has written, by place.

    Raises:
        NeedsEager: it has changed more of it than its data.
    """
    leaves, after = flatten(row.traced, row.path)
    if not _same_names(was.spec, after):
        raise _changes(row.path, "by adding, removing or moving inner tensors")
    data = []
    for k, (now, place) in enumerate(zip(leaves, row.leaves, strict=True)):
        written = recorder.was_written(now) or recorder.was_written(inputs.leaf_values[place])
        moved = _memory(now) != was.memory[k] or (isinstance(row.spec, WrapperSpec) and now is not was.leaves[k])
        if moved or (written and was.memory[k] != _memory(inputs.originals[place])):
            raise _changes(row.path, "to have other memory (x.data = y), or another inner tensor (x.inner = y)")
        odd = (
            repeats(now) or now.is_neg() or (place in inputs.inference_leaves and not torch.is_inference_mode_enabled())
        )
        if written and odd:
            raise _changes(row.path, "that is expanded, an inference tensor, or has a negative bit")
        data += [k] if written else []
    if not _same_layout(was.spec, after):
        raise _changes(row.path, "in its shape")
    # What the class does not set by itself is Python state, which is looked after as such.
    state = attributes_of_wrapper(row.traced, after) if isinstance(row.spec, WrapperSpec) else {}
    other = {k for k, v in state.items() if was.attributes.get(k, was) is not v}
    if not other.isdisjoint(row.own) or not same_but_for_grad(was.spec, after):
        raise _changes(row.path, "in attributes that its class sets, or in its flatten context")
    if row.edge is None and row.traced.requires_grad and row.traced.grad_fn is None:
        raise _changes(row.path, "by requires_grad_()")
    is_leaf = row.traced.grad_fn is None and not hasattr(getattr(row.edge, "node", None), "variable")
    if row.edge is not None and (is_leaf or not row.traced.requires_grad):
        raise detached_in_place(row.path)
    return tuple(data)


def _forbidden(row: TracedInput, real: Any) -> bool:
    """Would eager refuse a write to it that autograd sees, or a backward through that?"""
    if real is None or (real.requires_grad and real.is_leaf) or torch_api.creation_forbids_inplace(real):
        return True
    return row.traced.grad_fn is not None and row.traced.grad_fn.name().endswith("NotImplemented")


#: wrappers, and what their contexts held
Contexts = list[tuple[Path, Any, Spec]]


def contexts_of(values: Iterable[tuple[Path, Any]]) -> Contexts:
    """The wrappers among these values, with what their contexts hold now."""
    with torch_api.plain_dispatch():
        return [(path, value, guarded_spec(flatten(value)[1], path)) for path, value in values if is_traceable(value)]


def check_contexts(before: Contexts, what: str, fix: str) -> None:
    """Traced wrappers have copies of what can be changed in contexts: a region that changes such an object by another name
    would read the old one through the wrapper, and what a backward changes would be changed in the copy.

    Raises:
        UnsupportedError: the context of one of the wrappers holds something else now.
    """
    with torch_api.plain_dispatch():
        for path, value, known in before:
            if not same_but_for_grad(known, now := flatten(value)[1]):
                got = f"{getattr(now, 'context', None)!r:.200}"
                raise UnsupportedError(what, path=path, expected="the context as it was before", got=got, fix=fix)


def _without_grad(spec: Spec) -> Spec:
    """The spec, whose contexts do not repeat whether a wrapper requires grad (as DTensor's does)."""
    if not isinstance(spec, WrapperSpec):
        return spec
    context = spec.context
    if type(context) is tuple:
        context = tuple(None if x is spec.requires_grad else x for x in context)
    return replace(spec, context=context, inners=tuple(map(_without_grad, spec.inners)))


def _same_names(a: Spec, b: Spec) -> bool:
    """At every level, the same inner tensors in the same order?"""
    if not isinstance(a, WrapperSpec) or not isinstance(b, WrapperSpec):
        return True
    return a.names == b.names and all(map(_same_names, a.inners, b.inners))


def same_but_for_grad(a: Spec, b: Spec) -> bool:
    """Are the contexts of two specs of one structure the same, but for what they say of ``requires_grad``?"""
    return same_contexts(_without_grad(a), _without_grad(b))


def places(spec: Spec) -> list[Any]:
    """Shapes and places in memory, of a value and of its leaves."""
    rows: list[Any] = [(s.size, s.stride, s.storage_offset) for s in spec_leaves(spec)]
    return [*rows, spec.size, spec.stride]  # type: ignore[union-attr]


def _same_layout(a: Spec, b: Spec) -> bool:
    return places(a) == places(b)


def _moved_history(row: TracedInput) -> bool:
    """Did an in-place operation that autograd saw give the input another history?"""
    t = row.traced
    if not t.requires_grad or t.grad_fn is None:
        return False
    return row.edge is None or t.grad_fn is not row.edge.node


def detached_in_place(path: Path) -> NeedsEager:
    """The region takes the history of an input."""
    return _changes(path, "by detach_() or requires_grad_(False)")
