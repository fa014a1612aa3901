"""Mutations, read off the live inputs after the run: data is written back, what changes more than
data runs eagerly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..errors import UnsupportedError
from ..plan import MutationPlan
from ..subclass.attributes import attributes_of_wrapper
from ..subclass.flatten import flatten, guarded_spec
from ..subclass.paths import Path
from ..subclass.spec import Spec, WrapperSpec, same_contexts, spec_leaves
from ..torch_api.autograd import creation_forbids_inplace
from ..torch_api.kinds import storage_ref
from .aliasing import family, repeats
from .inputs import Inputs, TracedInput
from .recorder import Recorder

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class Before:
    """State of one traced input before the run.

    ``leaves``: what its inner tensors are; some classes keep ``inner.detach()``, or a copy, instead
    of what they are given.
    """

    spec: Spec
    leaves: tuple[Tensor, ...]
    memory: tuple[Any, ...]
    attributes: dict[str, Any]
    version: int | None


def state_of(traced: Tensor) -> Before:
    """The state of one traced tensor."""
    leaves, spec = flatten(traced)
    attributes, version = (
        attributes_of_wrapper(traced, spec),
        None if traced.is_inference() else traced._version,
    )
    return Before(
        guarded_spec(spec), tuple(leaves), tuple(map(_memory, leaves)), attributes, version
    )


def _memory(t: Tensor) -> Any:
    return storage_ref(t) if t.layout is torch.strided else None


def read_mutations(
    inputs: Inputs, recorder: Recorder, emit: Callable[[Tensor], int]
) -> list[MutationPlan]:
    """One plan per input that the region wrote to. ``emit`` adds a live tensor to the forward
    values.

    Raises:
        UnsupportedError: the region changes an input otherwise.
    """
    reals = [inputs.real(number) for number in range(len(inputs.rows))]
    # kept, so that their ids stay theirs
    bases = [None if real is None else family(real) for real in reals]
    memory = Counter(map(_memory, inputs.originals))  # inputs in one memory may share a counter
    writes = Counter(storage for storage, _ in recorder.memory.writes)
    plans = []
    for number, (row, was) in enumerate(zip(inputs.rows, inputs.before, strict=True)):
        written, t = _written(row, was, inputs, recorder), row.traced
        new_history = (
            t.requires_grad
            and t.grad_fn is not None
            and (row.edge is None or t.grad_fn is not row.edge.node)
        )
        if new_history and (
            sum(base is bases[number] for base in bases) > 1 or _forbidden(row, reals[number])
        ):
            raise _changes(
                row.path,
                "under autograd, where it is a leaf, or a view that autograd protects or knows "
                "others of",
            )
        if written or new_history:
            alone = (
                isinstance(row.spec, WrapperSpec)
                or memory[_memory(inputs.originals[row.leaves[0]])] == 1
            )
            moved = t._version - was.version if alone and was.version is not None else None
            count = writes[_memory(inputs.originals[row.leaves[0]])]
            plans.append(MutationPlan(number, emit(t), written, new_history, moved, count))
    return plans


def _changes(path: Path, how: str) -> UnsupportedError:
    return UnsupportedError(
        f"the region changes an input {how}",
        code="input-changed",
        path=path,
        expected="writes to the data of inputs; under autograd, to such as are no leaves",
        fix="write to it by x.copy_(y) under torch.no_grad(), or return a new tensor",
    )


def _written(row: TracedInput, was: Before, inputs: Inputs, recorder: Recorder) -> tuple[int, ...]:
    """The leaves of an input that the region has written, by place.

    Raises:
        UnsupportedError: it has changed more of it than its data.
    """
    t, (leaves, after) = row.traced, flatten(row.traced, row.path)
    data, wrapper = [], isinstance(row.spec, WrapperSpec)
    if len(leaves) != len(was.leaves) or not same_but_for_grad(was.spec, after):
        raise _changes(row.path, "in its inner tensors or its flatten context")
    if places(was.spec) != places(after):
        raise _changes(row.path, "in its shape")
    for k, (now, place) in enumerate(zip(leaves, row.leaves, strict=True)):
        written = recorder.memory.touches(now) or recorder.memory.touches(inputs.leaf_values[place])
        moved = _memory(now) != was.memory[k] or (wrapper and now is not was.leaves[k])
        if moved or (written and was.memory[k] != _memory(inputs.originals[place])):
            raise _changes(
                row.path, "to have other memory (x.data = y), or another inner tensor (x.inner = y)"
            )
        odd = place in inputs.inference_leaves and not torch.is_inference_mode_enabled()
        if written and (odd or repeats(now) or now.is_neg()):
            raise _changes(row.path, "that is expanded, an inference tensor, or has a negative bit")
        data += [k] if written else []
    # What the class does not set by itself is Python state, which is looked after as such.
    state = attributes_of_wrapper(t, after) if wrapper else {}
    if any(was.attributes.get(k, was) is not v for k, v in state.items() if k in row.own):
        raise _changes(row.path, "in attributes that its class sets")
    made_leaf = t.grad_fn is None and not hasattr(getattr(row.edge, "node", None), "variable")
    if (
        (made_leaf or not t.requires_grad)
        if row.edge is not None
        else t.requires_grad and t.grad_fn is None
    ):
        raise _changes(row.path, "by detach_() or requires_grad_()")
    return tuple(data)


def _forbidden(row: TracedInput, real: Any) -> bool:
    """Would eager refuse a write to it that autograd sees, or a backward through that?"""
    if real is None or (real.requires_grad and real.is_leaf) or creation_forbids_inplace(real):
        return True
    return row.traced.grad_fn is not None and row.traced.grad_fn.name().endswith("NotImplemented")


def same_but_for_grad(a: Spec, b: Spec) -> bool:
    """Have two specs inner tensors of the same names, and the same contexts but for what these say
    of ``requires_grad``?"""
    return _names(a) == _names(b) and same_contexts(_without_grad(a), _without_grad(b))


def _names(spec: Spec) -> Any:
    return (spec.names, [*map(_names, spec.inners)]) if isinstance(spec, WrapperSpec) else None


def _without_grad(spec: Spec) -> Spec:
    """The spec, whose contexts do not repeat whether a wrapper requires grad (as DTensor's
    does)."""
    if not isinstance(spec, WrapperSpec):
        return spec
    context = spec.context
    if type(context) is tuple:
        context = tuple(None if x is spec.requires_grad else x for x in context)
    return replace(spec, context=context, inners=tuple(map(_without_grad, spec.inners)))


def places(spec: Spec) -> list[Any]:
    """Shapes and places in memory, of a value and of its leaves."""
    rows: list[Any] = [(s.size, s.stride, s.storage_offset) for s in spec_leaves(spec)]
    return [*rows, spec.size, spec.stride]  # type: ignore[union-attr]
