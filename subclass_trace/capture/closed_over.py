"""Tensors that a region reaches without its arguments: globals, closure cells, items of containers.

The user function names real tensors. Each call of it is handed traced stand-ins for them, so that autograd never keeps a
real tensor: they are inputs like arguments, and may be written like arguments. What runs below the user's own calls
(inside a wrapper's ``__torch_dispatch__``) is caught later, by `Recorder.lift`.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from .. import _torch
from ..errors import UnsupportedError
from ..plan import MutationPlan
from ..subclass.flatten import flatten, leaves_of
from ..subclass.kept import kept_spec
from ..subclass.paths import Path
from ..subclass.protocol import Kind, is_traceable, kind_of
from ..subclass.spec import Spec
from ..subclass.visit import rebuild
from .facts import ASKED_NOTHING, AskedOf
from .inputs import Argument, TracedInput, TracedInputs
from .mutation import Before, state_of
from .recorder import ClosedOver, Recorder

Tensor = torch.Tensor
#: properties that lead to other tensors; what the others say is the real tensor's own
_VIEWS = ("T", "mT", "H", "mH", "data", "real", "imag")
_OWN: tuple[str, ...] = (
    "__hash__",
    "__repr__",
    "__format__",
    "__deepcopy__",
    "__reduce_ex__",
    "register_hook",
    "retain_grad",
    "backward",
)
_OWN += ("register_post_accumulate_grad_hook", "_is_view", "__dir__")


@dataclass(frozen=True, eq=False)
class StandIn:
    """The traced tensor for ``value``, its gradient edge when it requires grad, and its state before it is used."""

    value: Tensor
    traced: Tensor
    edge: Any
    before: Before


@dataclass(eq=False)
class StandIns:
    """The stand-ins of one capture, by the identity of the real tensor."""

    recorder: Recorder
    of: dict[int, StandIn] = field(default_factory=dict)
    back: dict[int, Tensor] = field(default_factory=dict)  # id of a traced tensor -> the real one
    gradient_of: dict[int, Tensor] = field(default_factory=dict)  # id of a real gradient -> whose it is
    named: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # inputs: id of the real one -> both
    given: dict[int, tuple[Callable[[], Any], Tensor, Callable[[Tensor], None]]] = field(
        default_factory=dict
    )  # arguments
    _traced: dict[int, Tensor] = field(default_factory=dict)  # wrappers that were looked at, and are traced

    def swap(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments of a call, with stand-ins for real tensors."""
        if not self._any_real(args) and not (kwargs and self._any_real(kwargs.values())):
            return args, kwargs
        name = getattr(func, "__name__", "")
        if name == "__get__" and func.__self__.__name__ == "shape":
            return (self._sized(args[0]), *args[1:]), kwargs
        if name in _OWN or (name in ("__get__", "__delete__") and func.__self__.__name__ not in _VIEWS):
            return args, kwargs
        if name == "__set__" and func.__self__.__name__ not in ("data", "requires_grad"):
            return args, kwargs
        return tuple(map(self._one, args)), {k: self._one(v) for k, v in kwargs.items()}

    def _any_real(self, values: Any) -> bool:
        return any(
            self._is_real(v) if isinstance(v, Tensor) else type(v) in (list, tuple) and self._any_real(v)
            for v in values
        )

    def _is_real(self, t: Tensor) -> bool:
        kind = type(t)
        if kind in _torch.FAKE_TYPES or id(t) in self._traced:
            return False
        if id(t) in self.named:
            return True
        if kind_of(kind) is Kind.LEAF:
            return t.layout is torch.strided and not _torch.is_functorch_wrapped(t)
        if not is_traceable(t):
            return False
        leaves = leaves_of(t)
        if not leaves or any(map(_torch.is_fake, leaves)):
            self._traced[id(t)] = t
            return False
        return True

    def is_from_outside(self, t: Tensor) -> bool:
        """Is it a real tensor, or the stand-in of one that the function names or closes over?"""
        return id(t) in self.back or self._is_real(t)

    def swapped(self, t: Tensor) -> Tensor:
        """The stand-in for a real tensor; any other tensor itself."""
        return self.stand_in(t) if self._is_real(t) else t

    def _sized(self, real: Tensor) -> Tensor:
        """Whose sizes a tensor has: those of an input that the function names may be symbols."""
        if id(real) in self.named:
            return self.named[id(real)][1]
        fake = self.recorder.lifted_fake(real)
        return real if fake is None else fake

    def _one(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.stand_in(value) if self._is_real(value) else value
        return type(value)(map(self._one, value)) if type(value) in (list, tuple) else value

    def known(self, value: Any) -> Any:
        """The traced tensor for a real one that is an input, or the value itself."""
        pair = self.named.get(id(value))
        if pair is not None:
            return pair[1]
        alive, traced, tell = self.given.get(id(value), (None, value, None))
        if alive is None or tell is None or alive() is not value:
            return value
        tell(value)
        return traced

    def stand_in(self, real: Tensor) -> Tensor:
        """The traced tensor for a real one."""
        traced: Tensor = self.known(real)
        if traced is not real:
            return traced
        known = self.of.get(id(real))
        if known is None:
            with _torch.no_transforms():
                known = self.of[id(real)] = self._trace(real)
            self.back[id(known.traced)] = real
        return known.traced

    def adopt(self, real: Tensor, traced: Tensor, tell: Callable[[Tensor], None] | None = None) -> None:
        """``real`` is an input: ``traced``. The function has a name for it, or it is an argument; ``tell`` is told of an
        argument that is met otherwise."""
        if tell is not None:
            self.given[id(real)] = weakref.ref(real), traced, tell
            return
        self.named[id(real)] = real, traced
        if id(real) not in self.given:
            self.back[id(traced)] = real
        fakes = leaves_of(traced)
        for leaf, fake in zip(leaves_of(real), fakes, strict=True):
            self.recorder.adopt(leaf, fake)

    def result(self, value: Any) -> Any:
        """What a result is: of an input, or a gradient, the traced tensor, of another closed-over tensor the real one."""
        if (traced := self.known(value)) is not value:
            return traced
        real = self.back.get(id(value), value)
        if id(real) in self.gradient_of:
            return self.of[id(real)].traced
        return value if id(real) in self.named else real

    def _trace(self, real: Tensor) -> StandIn:
        recorder = self.recorder
        with torch.no_grad():
            if not is_traceable(real):
                traced = recorder.lift(real)
                if real.requires_grad:
                    alias = recorder.bare(traced)
                    recorder.alias(alias, traced)
                    traced = alias
            else:
                with _torch.no_modes():
                    leaves, spec = flatten(real)
                    kept_spec(spec, Path(type(real).__qualname__))  # refuses contexts that no guard could compare
                if real.is_nested:
                    spec = replace(spec, size=recorder.symbols.ragged_sizes(spec.size))  # type: ignore[union-attr,arg-type]
                traced = rebuild(spec, iter([recorder.lift(t) for t in leaves]))
                recorder.know_wrapper(traced)
                recorder.close_over_wrapper(real)
                self._traced[id(traced)] = traced
                if traced.requires_grad:
                    traced.requires_grad_(False)
        if real.requires_grad:
            _torch.make_nonleaf(traced)
        edge = torch.autograd.graph.get_gradient_edge(traced) if real.requires_grad else None
        return StandIn(real, traced, edge, state_of(traced))


# ---------------------------------------------------------------------------------------------- as inputs
@dataclass(frozen=True, eq=False)
class ClosedOverInput:
    """A closed-over tensor as an input: the tensor, its spec, the graph inputs of its leaves.

    ``gradient_of``: it is the ``.grad`` of that tensor, where each call finds it; ``asked``: what was asked of it.
    """

    value: Tensor
    path: Path
    spec: Spec
    leaves: tuple[int, ...]  # places in the leaf table
    edge: Any
    gradient_of: Tensor | None = None
    asked: AskedOf = ASKED_NOTHING


def originals_of(recorder: Recorder) -> list[Tensor]:
    """The fakes of the dense tensors that the region closes over, as they came in."""
    return [c.original for c in recorder.closed_over if c.original is not None]


def values_of(recorder: Recorder, stand_ins: StandIns) -> list[ClosedOver]:
    """What the region closes over, each of which is an input: all but the leaves of wrappers that each call finds anew."""
    gradients = [s.value for s in stand_ins.of.values() if id(s.value) in stand_ins.gradient_of]
    inside = {id(leaf) for g in gradients for leaf in leaves_of(g) if leaf is not g}
    return [c for c in recorder.closed_over if id(c.value) not in inside]


class ClosedOverTensors:
    """What a region closes over, once its function has run; from then on there is no more of it."""

    def __init__(
        self, recorder: Recorder, stand_ins: StandIns, inputs: TracedInputs, asked: Mapping[int, AskedOf]
    ) -> None:
        self.recorder, self.stand_ins, self.first = recorder, stand_ins, len(inputs.inputs)
        self.asked = asked  # by the ids of the tensors
        self.inputs = inputs.inputs
        recorder.sealed = True
        self.dense = [c for c in recorder.closed_over if c.primal is not None]
        place = {id(t): k for k, t in enumerate(inputs.leaf_values)}
        place |= {id(recorder.lift(c.value)): len(inputs.originals) + k for k, c in enumerate(self.dense)}
        self.values = values_of(recorder, stand_ins)
        self.rows = [self._row(c, place) for c in self.values]

    def _row(self, c: ClosedOver, place: Mapping[int, int]) -> ClosedOverInput:
        with _torch.no_modes():
            leaves, spec = flatten(c.value)
        known = self.stand_ins.of.get(id(c.value))
        edge = None if known is None else known.edge
        if known is None and c.value.requires_grad:
            edge = torch.autograd.graph.get_gradient_edge(c.value)
        owner = self.stand_ins.gradient_of.get(id(c.value))
        path = c.path if owner is None else self._path_of(owner).attr("grad")
        places = tuple(place[id(self.recorder.lift(t))] for t in leaves)
        return ClosedOverInput(c.value, path, spec, places, edge, owner, self.asked.get(id(c.value), ASKED_NOTHING))

    def _path_of(self, owner: Tensor) -> Path:
        paths = (c.path for c in self.recorder.closed_over if c.value is owner)
        return next(paths, None) or next(i.path for i in self.inputs if i.real() is owner)

    def among(
        self, inputs: TracedInputs, arguments: Sequence[Argument], before: Sequence[Before]
    ) -> tuple[TracedInputs, list[Argument], list[Before | None]]:
        """All inputs, and for each its argument and its state before the run (None: there is no stand-in for it)."""
        rows, everyone, states = list(inputs.inputs), list(arguments), list[Before | None](before)
        for c in self.rows:
            known = self.stand_ins.of.get(id(c.value))
            fake = self.recorder.lifted_fake(c.value)
            traced = known.traced if known is not None else c.value if fake is None else fake
            is_leaf = c.value.is_leaf
            rows.append(TracedInput(c.path, c.spec, c.leaves, is_leaf, traced, c.edge, gradient_of=c.gradient_of))
            everyone.append(Argument(c.value, c.path, None))
            states.append(None if known is None else known.before)
        together = replace(
            inputs,
            inputs=tuple(rows),
            leaf_values=(*inputs.leaf_values, *[self.recorder.lift(c.value) for c in self.dense]),
            originals=(*inputs.originals, *originals_of(self.recorder)),
            leaf_paths=(*inputs.leaf_paths, *[c.path for c in self.dense]),
        )
        return together, everyone, states

    def check(self, results: Sequence[Any]) -> None:
        """Autograd keeps a real tensor that a class reaches by itself; if the region writes it too, no tape can be kept."""
        tracked = any(isinstance(o, Tensor) and o.grad_fn is not None for o in results)
        for _, c, _ in self._written() if tracked else ():
            raise UnsupportedError(
                "a wrapper's operation writes a tensor that it closes over, and the region has differentiable results",
                path=c.path,
                expected="closed-over tensors that are only read, where gradients are wanted",
                got=f"a tensor of shape {tuple(c.value.shape)} that is written in place",
                fix="keep the tensor inside the wrapper, as one of its inner tensors",
            )

    def mutations(
        self, versions: Mapping[int, tuple[Tensor, int]], emit: Callable[[Tensor], int]
    ) -> list[MutationPlan]:
        """What was written of the tensors without a stand-in: their new contents are forward values too."""
        plans = []
        for number, c, fake in self._written():
            bumps = c.value._version - versions[id(c.value)][1] if id(c.value) in versions else 0
            plans.append(MutationPlan(number, emit(fake), (0,), version_bumps=bumps))
        return plans

    def _written(self) -> Iterator[tuple[int, ClosedOver, Tensor]]:
        """Dense tensors that no call of the user's named, which were written: a class or a composite reached them."""
        inside = {id(t) for s in self.stand_ins.of.values() for t in leaves_of(s.value)}
        for k, c in enumerate(self.values):
            fake = None if id(c.value) in inside or c.primal is None else self.recorder.lifted_fake(c.value)
            if fake is not None and self.recorder.was_written(fake):
                yield self.first + k, c, fake


@contextlib.contextmanager
def restored_versions(recorder: Any) -> Iterator[dict[int, tuple[Tensor, int]]]:
    """In-place operations on real tensors move their version counters while traced: move them back.

    Yields id -> (tensor, version before the region touched it).
    """
    versions: dict[int, tuple[Tensor, int]] = {}
    lift = recorder.lift

    def noting(real: Tensor) -> Tensor:
        if id(real) not in versions and not real.is_inference():
            versions[id(real)] = (real, real._version)
        return lift(real)  # type: ignore[no-any-return]

    recorder.lift = noting
    try:
        yield versions
    finally:
        del recorder.lift
        for real, version in versions.values():
            if real._version != version:
                _torch.set_version(real, version)
