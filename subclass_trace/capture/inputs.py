"""Inputs of a capture: real tensors become traced ones, over fake leaves that are graph inputs.

In: the distinct tensors of a call with their paths, and which sizes are dynamic. Out: `TracedInputs`. Leaves are
deduplicated by identity over all inputs, so ``TwoTensor(a, a)``, and a wrapper beside its own inner tensor, need nothing
else; leaves of one storage become fakes of one storage.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch

from .. import _torch
from ..errors import ProtocolError, UnsupportedError
from ..plan import gradient_of
from ..subclass.context import has_sizes, map_sizes, one_copy_each, same_context, snapshot, with_outer, without_outer
from ..subclass.flatten import flatten, leaf_paths, wrappers_inside
from ..subclass.kept import kept_spec
from ..subclass.numbers import NumberPlace
from ..subclass.parts import Steps, with_parts
from ..subclass.paths import Path, owner_of
from ..subclass.protocol import class_of_leaf, refuse
from ..subclass.spec import LeafSpec, OpaqueSpec, Spec, WrapperSpec, is_ragged, spec_leaves
from ..subclass.visit import inner_values, rebuild
from .aliasing import storage_key
from .session import Dim, Session

Tensor = torch.Tensor


class DynamicDims:
    """What the sizes of the values of a call become, value by value (the outer ones of a wrapper, or those of a leaf).

    Here all are static; `frontends/dynamic.py` has the choice.

    Attributes:
        numbers: Python numbers of the call that become symbols, and what they are in this call.
    """

    numbers: Mapping[NumberPlace, float] = MappingProxyType({})

    def sizes(self, path: Path, t: Tensor) -> Sequence[int]:
        """What each size of the value at a path becomes: see `Dim`."""
        return [Dim.STATIC] * (0 if t.is_nested else t.dim())

    def strides(self, path: Path) -> Sequence[int]:
        """What the strides become; empty where they follow from the sizes or are numbers."""
        return ()

    def parts(self, path: Path) -> Mapping[Steps, int]:
        """Which values of a wrapper's context are which outer size."""
        return {}


@dataclass(frozen=True, eq=False)
class Argument:
    """One distinct tensor of a call; ``static``: it is alive between calls anyway (a parameter or buffer).

    ``position`` is None for a tensor that the function closes over.
    """

    value: Tensor
    path: Path
    position: int | None
    static: bool = False
    take_base: bool = False


class RealInput:
    """The tensor of the call that is captured, until that is done: torch swaps no tensor (``module.to``) while there is a weak
    reference to it, and a capture is a cycle that stays for a while."""

    def __init__(self, real: Tensor) -> None:
        self._reference: Callable[[], Tensor | None] | None = weakref.ref(real)

    def __call__(self) -> Tensor | None:
        """The tensor, while it is alive."""
        return None if self._reference is None else self._reference()

    def forget(self) -> None:
        """Know it no more."""
        self._reference = None


@dataclass(frozen=True, eq=False)
class TracedInput:
    """One input: the real tensor's spec (with symbolic sizes), its leaves' graph inputs, and the traced value."""

    path: Path
    spec: Spec
    leaves: tuple[int, ...]
    is_leaf: bool
    traced: Tensor
    edge: Any  # gradient edge, or None when it does not require grad
    is_parameter: bool = False
    has_gradient: bool = False  # its .grad is a tensor
    real: Callable[[], Tensor | None] = lambda: None  # see `RealInput`
    gradient_of: Tensor | None = None  # it is the .grad of that tensor
    inside: tuple[tuple[str, int], ...] = ()  # see `InputPlan`


@dataclass(frozen=True, eq=False)
class TracedInputs:
    """All inputs of a capture. ``leaf_values[k]`` is the live fake of dense leaf k, ``originals[k]`` stays untouched."""

    inputs: tuple[TracedInput, ...]
    leaf_values: tuple[Tensor, ...]
    originals: tuple[Tensor, ...]
    leaf_paths: tuple[Path, ...]
    sizes: tuple[Any, ...]  # SymInts that no dense leaf carries: graph inputs after the leaves

    def forget(self) -> None:
        """From now on nothing leads to the tensors of the call."""
        for row in self.inputs:
            if isinstance(row.real, RealInput):
                row.real.forget()


def trace_inputs(session: Session, arguments: Sequence[Argument], dynamic: DynamicDims) -> TracedInputs:
    """Make graph inputs and traced values for ``arguments``. Call it inside ``session.modes()``.

    Raises:
        ProtocolError: a class breaks the protocol; or a leaf inside a wrapper requires grad.
    """
    index: dict[int, int] = {}
    originals: list[Tensor] = []
    paths: list[Path] = []
    rows = []
    for argument in arguments:
        with torch.no_grad(), _torch.no_modes():  # real tensors: nothing here is part of the trace
            leaves, spec = flatten(argument.value, argument.path)
            kept_spec(spec, argument.path)  # refuses contexts that no guard could compare
            paths_here = leaf_paths(argument.value, argument.path)
            aliases = [t.detach() if t.layout is torch.strided else t for t in leaves]
        places = []
        for leaf, alias, path in zip(leaves, aliases, paths_here, strict=True):
            _check_leaf(leaf, path, argument)
            if id(leaf) not in index:
                index[id(leaf)] = len(originals)
                originals.append(session.fake(alias, str(path), dynamic.sizes(path, leaf), dynamic.strides(path)))
                paths.append(path)
                session.recorder.primal(originals[-1], untouched=True)
            places.append(index[id(leaf)])
        rows.append((argument, spec, tuple(places)))
    if dynamic.numbers:
        session.numbers(dynamic.numbers)
    symbols = _Symbols(session, dynamic)
    with _torch.no_modes():
        specs = [symbols.spec(a.value, spec, a.path, iter([originals[k] for k in ks])) for a, spec, ks in rows]
    extra = symbols.unbound(specs, originals)
    for size in extra:
        session.recorder.primal(size)
    values = tuple(session.tracked(fake) for fake in originals)
    reals = [a.value for a in arguments]
    with torch.no_grad(), _torch.no_modes():
        facts = [(isinstance(t, torch.nn.Parameter), has_gradient(t), RealInput(t)) for t in reals]
    inputs = []
    for number, ((argument, _, own), spec) in enumerate(zip(rows, specs, strict=True)):
        # In inference mode too, a view of an input is as the input is.
        inference = torch.is_inference_mode_enabled() and argument.value.is_inference()
        traced = traced_value(session, number, spec, [values[k] for k in own], argument.path, inference)
        edge = torch.autograd.graph.get_gradient_edge(traced) if traced.requires_grad else None
        if session.dynamic:
            spec = _with_sizes(spec, flatten(traced)[1])
        real = argument.value
        inputs.append(TracedInput(argument.path, spec, own, real.is_leaf, traced, edge, *facts[number]))
    inputs = [replace(row, inside=_join(row, real, inputs, reals)) for row, real in zip(inputs, reals, strict=True)]
    return TracedInputs(tuple(inputs), values, tuple(originals), tuple(paths), tuple(extra))


def _join(
    row: TracedInput, real: Tensor, inputs: Sequence[TracedInput], reals: Sequence[Tensor]
) -> tuple[tuple[str, int], ...]:
    """Let the wrappers inside of an input that are inputs be these: what changes one changes the other.

    But for those that autograd tracks, which it does not relate to what they are in.
    """
    if not isinstance(row.spec, WrapperSpec) or not any(isinstance(s, WrapperSpec) for s in row.spec.inners):
        return ()
    numbers = {id(t): n for n, t in enumerate(reals) if not t.requires_grad}
    found = []
    for names, inner in wrappers_inside(real):
        number, name = numbers.get(id(inner)), ".".join(names)
        if number is not None:
            with contextlib.suppress(AttributeError):  # of a class that does not let it be set
                setattr(*owner_of(row.traced, name), inputs[number].traced)
                found.append((name, number))
    return tuple(found)


def has_gradient(x: Tensor) -> bool:
    """Is its ``.grad`` a tensor?"""
    return gradient_of(x) is not None


def _check_leaf(leaf: Tensor, path: Path, argument: Argument) -> None:
    if leaf is not argument.value and class_of_leaf(leaf) is not Tensor:
        raise refuse(leaf, path)  # nobody answers for its class
    if leaf is not argument.value and leaf.requires_grad and not argument.value.requires_grad:
        raise ProtocolError(
            "an inner tensor of a wrapper requires grad but the wrapper does not; autograd runs on the wrapper, "
            "so this gradient would be lost",
            path=path,
            expected="requires_grad=False on inner tensors",
            got=f"requires_grad=True on a tensor of shape {tuple(leaf.shape)}",
            fix="build the wrapper from inner.detach(), and call requires_grad_() on the wrapper",
        )
    if _torch.is_fake(leaf):
        raise UnsupportedError("a region was called with a FakeTensor", path=path, fix="call it with real tensors")


def traced_value(
    session: Session, number: int, spec: Spec, leaves: list[Tensor], path: Path, inference: bool = False
) -> Tensor:
    """Input ``number`` as the user function sees it: made of traced leaves, and no autograd leaf.

    Raises:
        ProtocolError: the class builds something else than an instance of itself.
    """
    if isinstance(spec, LeafSpec):
        # Two inputs never are one leaf (duplicates are removed before), but an inner leaf can be an input as well:
        # then autograd relates them no more than in eager, so each gets an alias of its own.
        traced = leaves[0] if not spec.requires_grad else session.tracked(leaves[0])
    else:
        grad = torch.is_grad_enabled()
        with torch.inference_mode(inference), torch.set_grad_enabled(grad):
            with one_copy_each(session.copies):
                traced = rebuild(spec, iter(leaves))
            sized = _sized_by_context(spec, traced)
            if sized is not spec:
                spec, traced = sized, rebuild(sized, iter(leaves))
        if isinstance(spec, WrapperSpec) and type(traced) is not spec.cls:
            raise ProtocolError(
                f"{spec.cls.__qualname__}.__tensor_unflatten__ built a {type(traced).__qualname__}",
                path=path,
                expected=f"an instance of {spec.cls.__qualname__}",
                got=f"an instance of {type(traced).__qualname__}",
                fix="make __tensor_unflatten__ a classmethod that builds `cls`",
            )
        session.recorder.know_wrapper(traced)
    if traced.requires_grad:  # some classes set it themselves
        traced.requires_grad_(False)
    if spec.requires_grad:  # type: ignore[union-attr]
        _torch.make_nonleaf(traced)
    return traced


def _sized_by_context(spec: Spec, traced: Any) -> Spec:
    """With the symbols of the outer size in a context that repeats it: there, the class would find the numbers of this call.

    (But where it makes its context anew of the outer size that it is given, as DTensor does.)
    """
    if not isinstance(spec, WrapperSpec) or not isinstance(traced, Tensor):
        return spec
    pairs = [(s, _sized_by_context(s, getattr(traced, n, None))) for n, s in zip(spec.names, spec.inners, strict=True)]
    context = spec.context
    if any(isinstance(n, torch.SymInt) and not is_ragged(n) for n in spec.size):
        now = inner_values(traced, Path("value"))[2]
        size, stride = (tuple(n if type(n) is int else _hint(n) for n in ns) for ns in (spec.size, spec.stride))
        if not same_context(now, without_outer(now, size, stride)):
            context = with_outer(without_outer(context, size, stride), spec.size, spec.stride)
    if context is spec.context and all(new is old for old, new in pairs):
        return spec
    return replace(spec, context=context, inners=tuple(new for _, new in pairs))


def _with_sizes(spec: Spec, traced: Spec) -> Spec:
    """Where a class takes numbers of its context from the sizes of its inner tensors, they are symbols."""
    if not isinstance(spec, WrapperSpec) or not isinstance(traced, WrapperSpec):
        return spec
    context = spec.context
    if has_sizes(traced.context) and same_context(map_sizes(traced.context, _hint), map_sizes(context, _hint)):
        context = snapshot(traced.context)
    return replace(spec, context=context, inners=tuple(map(_with_sizes, spec.inners, traced.inners)))


def _hint(n: Any) -> Any:
    return n if is_ragged(n) else n.node.hint


class _Symbols:
    """Gives the outer sizes of wrappers their symbols, and finds those that no leaf carries."""

    def __init__(self, session: Session, dynamic: DynamicDims) -> None:
        self.session, self.dynamic = session, dynamic

    def spec(self, value: Any, spec: Spec, path: Path, fakes: Iterator[Tensor]) -> Spec:
        """The spec of ``value`` with symbolic sizes."""
        if isinstance(spec, OpaqueSpec):
            return spec
        if isinstance(spec, LeafSpec):
            fake = next(fakes)
            strided = fake.layout is torch.strided
            stride, offset = (tuple(fake.stride()), fake.storage_offset()) if strided else ((), 0)
            meta = (tuple(fake.shape), stride, offset, spec.dtype, spec.device, spec.layout, spec.requires_grad)
            return LeafSpec(*meta, spec.cls, spec.lazy)
        inners = tuple(
            self.spec(getattr(value, n), s, path.attr(n), fakes) for n, s in zip(spec.names, spec.inners, strict=True)
        )
        size, stride = spec.size, spec.stride
        if spec.layout is torch.jagged:
            return self._jagged(replace(spec, inners=inners))
        dims = self.dynamic.sizes(path, value)
        if any(dims):
            size = self.session.outer_size(value, path, dims)
            stride = symbolic_strides(spec.size, spec.stride, size)
        loose = self.dynamic.strides(path)
        if any(loose):
            stride = _strides_of_leaves(stride, loose, inners)
        parts = {part: size[d] for part, d in self.dynamic.parts(path).items()}
        rest = (spec.storage_offset, spec.dtype, spec.device, spec.layout, spec.requires_grad)
        return WrapperSpec(spec.cls, spec.names, inners, with_parts(spec.context, parts), size, stride, *rest)

    def _jagged(self, spec: WrapperSpec) -> Spec:
        """The outer sizes of a jagged tensor follow from its inner ones, and its ragged size from its offsets."""
        size = self.session.recorder.symbols.ragged_sizes(spec.size)
        with self.session.mode, _torch.without_tracing():
            made = rebuild(replace(spec, size=size), map(_like, spec_leaves(spec)))
        return replace(spec, size=tuple(made.shape), stride=tuple(made.stride()))

    def unbound(self, specs: Sequence[Spec], originals: Sequence[Tensor]) -> list[Any]:
        """Sizes, and arguments that are sizes, whose symbol is the size, stride or offset of no dense leaf.

        Leaves of one storage may become one graph input, which does not tell their sizes.
        """
        overlapping = _of_one_storage(originals) if self.session.dynamic else set()
        known: set[Any] = {None}
        for k, fake in enumerate(originals):
            if k not in overlapping:
                known.update(map(_torch.size_symbol, _numbers_of(fake)))
        extra: dict[Any, Any] = {}
        for k in sorted(overlapping):
            for s in _numbers_of(originals[k]):
                if _torch.size_symbol(s) not in known:
                    extra.setdefault(_torch.size_symbol(s), s)

        def look(spec: Spec) -> None:
            if isinstance(spec, WrapperSpec):
                for s in spec.size:
                    if _torch.size_symbol(s) not in known:
                        extra.setdefault(_torch.size_symbol(s), s)
                for inner in spec.inners:
                    look(inner)

        for spec in specs:
            look(spec)
        for size in self.session.arguments.values():
            if _torch.size_symbol(size) not in known:
                extra.setdefault(_torch.size_symbol(size), size)
        return list(extra.values())


def _of_one_storage(leaves: Sequence[Tensor]) -> set[int]:
    storages: dict[int, list[int]] = {}
    for k, t in enumerate(leaves):
        if t.layout is torch.strided:
            storages.setdefault(storage_key(t), []).append(k)
    return {k for members in storages.values() if len(members) > 1 for k in members}


def _numbers_of(fake: Tensor) -> tuple[Any, ...]:
    """Sizes, strides and offset."""
    strided = fake.layout is torch.strided
    return (*fake.shape, *((*fake.stride(), fake.storage_offset()) if strided else ()))


def _like(spec: LeafSpec) -> Tensor:
    return torch.empty_strided(spec.size, spec.stride, dtype=spec.dtype, device=spec.device)


def _strides_of_leaves(stride: Sequence[Any], loose: Sequence[int], inners: Sequence[Spec]) -> tuple[Any, ...]:
    """Outer strides that differ between calls, as the symbols that equal ones of dense leaves have; else numbers."""
    known = {n.node.hint: n for s in inners for leaf in spec_leaves(s) for n in leaf.stride if _torch.size_symbol(n)}
    return tuple(known.get(n, n) if free and type(n) is int else n for n, free in zip(stride, loose, strict=True))


def symbolic_strides(size: Sequence[int], stride: Sequence[int], symbolic: Sequence[Any]) -> tuple[Any, ...]:
    """Strides as products of symbolic sizes, where the numbers say so; other strides stay numbers."""
    out: list[Any] = list(stride)
    order = sorted(range(len(size)), key=lambda d: (stride[d], size[d] != 1, -d))
    expected, symbol = 1, 1
    for d in order:
        if stride[d] == expected:
            out[d] = symbol
            expected, symbol = size[d] * expected, symbolic[d] * symbol
    return tuple(out)
