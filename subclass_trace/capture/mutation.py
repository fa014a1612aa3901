"""Mutations, read off the live inputs after the run: data, metadata, Python attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from .. import torch_api
from ..errors import AliasingError, NeedsEager, UnsupportedError
from ..plan import MutationPlan
from ..subclass.attributes import attributes_of_wrapper
from ..subclass.context import numbers_in
from ..subclass.flatten import flatten, guarded_spec, wrappers_inside
from ..subclass.paths import Path, owner_of
from ..subclass.protocol import is_traceable
from ..subclass.spec import LeafSpec, Spec, WrapperSpec, same_contexts, spec_leaves
from .aliasing import family
from .diagnostics import kept_number
from .facts import refuse_traced
from .inputs import Inputs, TracedInput
from .recorder import Recorder

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class Before:
    """State of one traced input before the run.

    ``leaves``: what its inner tensors are; some classes keep ``inner.detach()`` instead of what they are given.
    ``memory``: whose storage those have; a class that keeps copies has storages of its own.
    """

    spec: Spec
    leaves: tuple[Tensor, ...]
    memory: tuple[Any, ...]
    version: int | None
    attributes: dict[str, Any]
    versions: tuple[int | None, ...]  # of the leaves
    inner: tuple[tuple[str, Tensor, int], ...] = ()  # wrappers inside, by dotted names, with their versions


def state_of(traced: Tensor) -> Before:
    """The state of one traced tensor."""
    leaves, spec = flatten(traced)
    attributes = attributes_of_wrapper(traced, spec)
    spec = guarded_spec(spec)
    memory = tuple(torch_api.storage_ref(t) if t.layout is torch.strided else None for t in leaves)
    inside = wrappers_inside(traced)
    inner = tuple((".".join(names), t, t._version) for names, t in inside if not t.is_inference())
    return Before(spec, tuple(leaves), memory, _version(traced), attributes, tuple(map(_version, leaves)), inner)


def _inner_bumps(row: TracedInput, was: Before) -> dict[str, int]:
    """By how much the counters of wrappers inside have moved that are still there."""
    moved = {name: t._version - version for name, t, version in was.inner if t._version != version}
    held = {name: t for name, t, _ in was.inner}
    return {name: n for name, n in moved.items() if getattr(*owner_of(row.traced, name), None) is held[name]}


def _version(t: Tensor) -> int | None:
    return None if t.is_inference() else t._version


def read_mutations(
    inputs: Inputs,
    recorder: Recorder,
    emit: Callable[[Tensor], int],
) -> list[MutationPlan]:
    """One plan per input that the region changed.

    ``emit`` adds a live tensor to the forward values.

    Raises:
        RuntimeError: eager would refuse too (a leaf that requires grad is written in place).
        UnsupportedError: the set of inner tensors changed.
    """
    families: dict[int, set[int]] = {}
    reals = real_values(inputs)
    bases = [family(real) for real in reals]  # kept: asked again, torch may make another object for a base
    for real, base in zip(reals, bases, strict=True):
        families.setdefault(id(base), set()).add(id(real))
    plans = []
    for number, (row, was) in enumerate(zip(inputs.inputs, inputs.before, strict=True)):
        real = reals[number]
        change = _change(row, was, inputs, recorder)
        differentiable = _moved_history(row)
        starts = row.edge is None and row.traced.requires_grad and row.traced.grad_fn is None
        is_leaf = row.traced.grad_fn is None and not hasattr(getattr(row.edge, "node", None), "variable")
        if row.edge is not None and (is_leaf or not row.traced.requires_grad):
            raise detached_in_place(row.path)
        bumps = 0 if was.version is None else row.traced._version - was.version
        changed = change.data or change.metadata or change.attributes
        inner = _inner_bumps(row, was)
        if not (
            changed or differentiable or starts or bumps or inner
        ):  # the shape of a view of it may have changed: bumps
            continue
        related = len(families[id(bases[number])]) > 1
        if differentiable:
            _refuse_as_eager(row, real)
            _refuse_without_derivative(row)
        of_views = starts and real is family(real)  # its views require grad as well from now on
        if related and (differentiable or of_views):
            raise NeedsEager(
                "the region changes a view under autograd, and another tensor of its base is an input as well",
                path=row.path,
                expected="one tensor of a base among the inputs, or writes under no_grad",
                fix="pass the base, and make the views inside of the region",
            )
        _refuse_lost_elements(row, was, change, recorder)
        value = emit(row.traced) if change.data or differentiable else None
        plans.append(
            MutationPlan(
                number,
                value,
                change.data,
                differentiable,
                change.metadata,
                change.attributes,
                bumps,
                starts,
                below=_written_below(was, change),
                inner_bumps=inner,
            )
        )
    return _with_counts(plans, inputs)


def real_values(inputs: Inputs) -> list[Tensor]:
    """The tensors of the call, which are alive while it is captured."""
    values = [row.real() for row in inputs.inputs]
    assert all(t is not None for t in values)
    return values  # type: ignore[return-value]


def _with_counts(plans: Sequence[MutationPlan], inputs: Inputs) -> list[MutationPlan]:
    """The same, with the version counters of the leaves of wrappers. One that is an input of its own counts there."""
    seen = {row.leaves[0] for m in plans if not isinstance((row := inputs.inputs[m.input]).spec, WrapperSpec)}
    found = []
    laid_out: set[int] = set()
    for m in plans:
        row, was = inputs.inputs[m.input], inputs.before[m.input]
        if m.metadata is not None:
            moved = zip(row.leaves, spec_leaves(was.spec), spec_leaves(m.metadata), strict=True)
            if not laid_out.isdisjoint(row.leaves):
                raise NeedsEager("the region changes the shape of two inputs over one tensor", path=row.path)
            laid_out.update(place for place, a, b in moved if _place(a) != _place(b))
        if isinstance(row.spec, WrapperSpec):
            counts = {}
            for k, place in enumerate(row.leaves):
                now, then = _version(was.leaves[k]), was.versions[k]
                if now is not None and then is not None and place not in seen and (now != then or k in m.leaves):
                    counts[k] = now - then
                    seen.add(place)
            m = replace(m, leaf_bumps=counts)
        found.append(m)
    return found


def _written_below(was: Before, change: _Change) -> tuple[int, ...]:
    """Leaves that no code has written by itself: their counters stand where they did, as in an operation of a wrapper."""
    inner = isinstance(was.spec, WrapperSpec)
    return tuple(k for k in change.data if inner and _version(was.leaves[k]) == was.versions[k])


def _refuse_lost_elements(row: TracedInput, was: Before, change: _Change, recorder: Recorder) -> None:
    """Leaves that were written and then got another layout: that may leave out some of what was written.

    (Of an ``out=`` argument that gets another size, the graph knows no more than that.)
    """
    if change.metadata is None:
        return
    rows = list(zip(spec_leaves(was.spec), spec_leaves(change.metadata), strict=True))
    kept = [k for k in change.data if was.memory[k] not in recorder.resized]
    if not all(_covers(rows[k][1], rows[k][0]) for k in kept):
        raise NeedsEager(
            "the region writes to an input, and gives it another layout afterwards",
            path=row.path,
            expected="a write, or another layout",
            fix="write to it last, or return the new tensor",
        )


def _covers(after: LeafSpec, before: LeafSpec) -> bool:
    """Has a tensor the elements that it had? Surely where it is as large, and is the same transposed."""
    rows = [
        [d for d in zip(s.size, s.stride, strict=True) if type(d[0]) is not int or d[0] != 1] for s in (after, before)
    ]
    dims = [sorted(row, key=str) for row in rows]
    return dims[0] == dims[1] and after.storage_offset == before.storage_offset


@dataclass(frozen=True, eq=False)
class _Change:
    data: tuple[int, ...]
    metadata: Spec | None
    attributes: dict[str, Any]


def _change(row: TracedInput, was: Before, inputs: Inputs, recorder: Recorder) -> _Change:
    leaves, after = flatten(row.traced, row.path)
    originals = [inputs.leaf_values[k] for k in row.leaves]
    _check_inner_names(row, was.spec, after)
    for k, (now, place) in enumerate(zip(leaves, row.leaves, strict=True)):
        other = isinstance(row.spec, WrapperSpec) and now is not was.leaves[k]
        if not other and now.layout is torch.strided and not _same_storage(now, inputs.originals[place]):
            other = torch_api.storage_ref(now) != was.memory[k] or recorder.was_written(now)  # else an untouched copy
        if other:
            raise NeedsEager(
                "the region gives an input other memory (x.data = y), or another inner tensor (x.inner = y)",
                path=row.path,
                expected="writes to the memory that it has",
                fix="x.copy_(y), or return a new tensor",
            )
    written = [recorder.was_written(t) or recorder.was_written(now) for t, now in zip(originals, leaves, strict=True)]
    data = tuple(k for k, was_written in enumerate(written) if was_written)
    # What the class does not set by itself is Python state, which is looked after as such.
    state = attributes_of_wrapper(row.traced, after) if isinstance(row.spec, WrapperSpec) else {}
    assigned = {k: v for k, v in state.items() if was.attributes.get(k, was) is not v}
    symbolic = (Tensor, *torch_api.SYM_TYPES)
    attributes = {k: v for k, v in assigned.items() if k in row.own and not isinstance(v, symbolic)}
    refuse_traced(attributes, row.path)
    _check_contexts(row, was.spec, after, assigned)
    metadata = None if same_layout(after, was.spec) else after
    return _Change(data, metadata, attributes)


def _check_contexts(row: TracedInput, before: Spec, after: Spec, assigned: Mapping[str, Any]) -> None:
    """Another context is due to ``assigned`` attributes. A number that differs between calls may not be among them: calls
    assign it when views of the input have been made, which take it over."""
    numbers = {k: v for k, v in assigned.items() if isinstance(v, torch_api.SYM_TYPES)}
    plain = any(not isinstance(v, (Tensor, *torch_api.SYM_TYPES)) for v in assigned.values())
    if (plain and not numbers) or same_contexts(_without_grad(before), _without_grad(after)):
        return
    for name, number in numbers.items():
        if any(number is n for n in _numbers_in_contexts(after)):
            raise kept_number(number, row.path.attr(name))
    if not plain:
        raise UnsupportedError(
            "the region changes the flatten context of an input in place",
            path=row.path,
            expected="the context as it was before the call",
            got=f"{getattr(after, 'context', None)!r:.200}",
            fix="assign a new object to the attribute, or return a new wrapper",
        )


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
            if not same_contexts(known, now := flatten(value)[1]):
                got = f"{getattr(now, 'context', None)!r:.200}"
                raise UnsupportedError(what, path=path, expected="the context as it was before", got=got, fix=fix)


def _numbers_in_contexts(spec: Spec) -> Iterator[Any]:
    """The symbolic numbers that the contexts of a wrapper, and of those inside it, hold."""
    if isinstance(spec, WrapperSpec):
        yield from numbers_in(spec.context)
        for inner in spec.inners:
            yield from _numbers_in_contexts(inner)


def _without_grad(spec: Spec) -> Spec:
    """The spec, whose context does not repeat whether the wrapper requires grad (as DTensor's does)."""
    if not isinstance(spec, WrapperSpec) or type(spec.context) is not tuple:
        return spec
    return replace(spec, context=tuple(None if x is spec.requires_grad else x for x in spec.context))


def _check_inner_names(row: TracedInput, before: Spec, after: Spec) -> None:
    """At every level, the same inner tensors in the same order as before the call."""
    if not isinstance(before, WrapperSpec) or not isinstance(after, WrapperSpec):
        return
    if before.names != after.names:
        same = sorted(before.names) == sorted(after.names)
        raise UnsupportedError(
            f"the region changed the {'order' if same else 'set'} of inner tensors of an input",
            path=row.path,
            expected=f"those of before the call, {', '.join(before.names) or 'none'}",
            got=", ".join(after.names) or "none",
            fix="let __tensor_flatten__ name them in one order, whatever the attributes say"
            if same
            else "return a new wrapper instead of adding or removing inner tensors in place",
        )
    for one, other in zip(before.inners, after.inners, strict=True):
        _check_inner_names(row, one, other)


def same_layout(a: Spec, b: Spec) -> bool:
    """Sizes, strides and places of a value and of all its inner tensors."""
    offsets = [x.storage_offset == y.storage_offset for x, y in zip(spec_leaves(a), spec_leaves(b), strict=True)]
    outer = a.size == b.size and a.stride == b.stride  # type: ignore[union-attr]
    leaves = all(x.size == y.size and x.stride == y.stride for x, y in zip(spec_leaves(a), spec_leaves(b), strict=True))
    return outer and leaves and all(offsets)


def _place(s: LeafSpec) -> tuple[Any, ...]:
    return s.size, s.stride, s.storage_offset


def _same_storage(a: Tensor, b: Tensor) -> bool:
    return bool(torch_api.storage_ref(a) == torch_api.storage_ref(b))


def _moved_history(row: TracedInput) -> bool:
    """Did an in-place operation that autograd saw give the input another history?"""
    t = row.traced
    if not t.requires_grad or t.grad_fn is None:
        return False
    return row.edge is None or t.grad_fn is not row.edge.node


def _refuse_as_eager(row: TracedInput, t: Tensor) -> None:
    if t.requires_grad and t.is_leaf:
        raise AliasingError(
            "a leaf Variable that requires grad is being used in an in-place operation.",
            path=row.path,
            expected="a tensor that is not a leaf, or that does not require grad",
            got="a leaf that requires grad, written in place under grad mode",
            fix="write to it under torch.no_grad(), or to a clone",
        )
    if torch_api.creation_forbids_inplace(t):
        raise multi_view_error(row.path)


def _refuse_without_derivative(row: TracedInput) -> None:
    """Such a history leads nowhere; in eager a backward that comes there fails."""
    if row.traced.grad_fn is not None and row.traced.grad_fn.name().endswith("NotImplemented"):
        raise UnsupportedError(
            "an argument is changed in place under autograd by an operation that has no derivative",
            path=row.path,
            expected="in-place operations with a derivative, or under torch.no_grad()",
            got="a history that no backward gets through, as of x.set_(y) where y requires grad",
            fix="write under torch.no_grad(), or detach what is written: x.set_(y.detach())",
        )


def detached_in_place(path: Path) -> NeedsEager:
    """The region takes the history of an input."""
    return NeedsEager(
        "the region detaches an input in place, by detach_() or requires_grad_(False)",
        path=path,
        expected="x.detach(), which is another tensor",
        fix="call it on the argument before the region",
    )


def multi_view_error(path: Path) -> AliasingError:
    """The error for an in-place operation that autograd tracks on a view that eager protects."""
    return AliasingError(
        "Output of a function that returns several views (such as split) is modified in place; eager refuses it too.",
        path=path,
        got="a member of a multi-output view, or a view made inside a custom autograd.Function",
        fix="write to a clone of it",
    )
