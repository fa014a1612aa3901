"""What each output of the user function is, read off the live tensors: docs/notes/views.md explains the kinds."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import _torch
from ..plan import (
    ConstantOutput,
    InputOutput,
    MutationPlan,
    OutputPlan,
    SameOutput,
    SizeOutput,
    ValueOutput,
    ViewOutput,
)
from ..subclass.flatten import flatten, leaves_of, map_leaves
from ..subclass.protocol import is_traceable
from ..subclass.spec import Spec, WrapperSpec, spec_leaves
from ..subclass.visit import rebuild
from .inputs import TracedInputs
from .recorder import Recorder

Tensor = torch.Tensor


class OutputClassifier:
    """Classifies outputs one by one; ``emit`` adds a live tensor to the forward values and returns its number."""

    def __init__(
        self,
        inputs: TracedInputs,
        handed: Sequence[Any],
        mutations: Sequence[MutationPlan],
        recorder: Recorder,
        results: Sequence[Any],
        emit: Callable[[Tensor], int],
    ) -> None:
        self.recorder, self.emit = recorder, emit
        self.sizes: list[Any] = []
        self._input_of = {id(i.traced): n for n, i in enumerate(inputs.inputs)}
        self._position_of = {id(t): k for k, t in reversed(list(enumerate(handed))) if isinstance(t, Tensor)}
        self._reshaped = {m.input for m in mutations if m.metadata is not None or m.replaced}
        self._leaf_of: dict[Any, int] = {}
        self._offsets = [t.storage_offset() if t.layout is torch.strided else 0 for t in inputs.originals]
        for k, t in enumerate(inputs.originals):
            if t.layout is torch.strided:
                self._leaf_of.setdefault(_torch.storage_ref(t), k)
        tensors = [o for o in results if isinstance(o, Tensor)]
        self._output_ids = {id(o) for o in tensors}
        views = {id(o): o for o in tensors if o._base is not None}
        self._base_users = collections.Counter(id(o._base) for o in views.values())
        several = [o for o in {id(o): o for o in tensors}.values() if _torch.is_multi_output_view(o)]
        self._edges = [i.edge for i in inputs.inputs if i.edge is not None]
        self._refuses_zeros: dict[type, bool] = {}
        self._siblings = collections.Counter(o.grad_fn for o in several)
        self._emitted: dict[int, int] = {}
        self._result_of: dict[int, int] = {}
        self._count = 0

    def classify(self, o: Any) -> OutputPlan:
        """The plan of one output. Call it for the outputs in order."""
        plan = self._classify(o)
        if isinstance(plan, (ViewOutput, ValueOutput)):
            first = self._result_of.setdefault(id(o), self._count)
            if first != self._count:
                plan = SameOutput(first)
        self._count += 1
        return plan

    def _classify(self, o: Any) -> OutputPlan:
        if isinstance(o, _torch.SYM_TYPES):
            self.sizes.append(o)
            return SizeOutput(len(self.sizes) - 1)
        if not isinstance(o, Tensor) or not self._is_traced(o):
            return ConstantOutput(o)
        if id(o) in self._position_of:
            return InputOutput(self._position_of[id(o)])
        leaves, spec = flatten(o)
        base = o._base
        if base is not None and not _torch.is_custom_function_output(o):
            number = self._input_of.get(id(base))
            if self._needs_siblings(o):
                return self._value(o, leaves, spec)
            if number is not None and (number not in self._reshaped or self._replays_on(base, o, spec)):
                return self._view(o, number, True, leaves, spec)
            shared = self._base_users[id(base)] > 1 or id(base) in self._output_ids
            if number is None and shared:
                return self._view(o, self._emit_once(base), False, leaves, spec)
        return self._value(o, leaves, spec)

    def _replays_on(self, base: Tensor, o: Tensor, spec: Spec) -> bool:
        """The base has another shape than when it came in: was the view made of it as it is now?"""
        with _torch.without_tracing(), torch.no_grad():
            try:
                again = flatten(_torch.view_function(o)(base))[1]
            except (RuntimeError, IndexError, ValueError):
                return False
        places = [[(s.size, s.stride, s.storage_offset) for s in spec_leaves(x)] for x in (again, spec)]
        return places[0] == places[1]

    def _needs_siblings(self, o: Tensor) -> bool:
        """Must the gradients of several members of one ``split`` meet in one node?

        Replayed one by one, each gets a node of its own, which fills in dense zeros for its siblings. A class that
        cannot mix those with its own tensors (DTensor) refuses; its members are values of the region's autograd node
        then, and do not keep their ``_base`` (docs/semantics.md).
        """
        if o.grad_fn is None or _torch.is_fake(o) or self._siblings[o.grad_fn] < 2:
            return False
        if type(o) not in self._refuses_zeros:
            self._refuses_zeros[type(o)] = self._backward_alone_fails(o)
        return self._refuses_zeros[type(o)]

    def _backward_alone_fails(self, o: Tensor) -> bool:
        with _torch.without_tracing(), torch.no_grad():
            tangent = map_leaves(torch.empty_like, o)
            if tangent.requires_grad:
                tangent.requires_grad_(False)
            try:
                torch.autograd.grad([o], self._edges, [tangent], retain_graph=True, allow_unused=True)
            except Exception:  # whatever the class raises, eager would raise it too for one member alone
                return True
        return False

    def _value(self, o: Tensor, leaves: list[Tensor], spec: Spec) -> ValueOutput:
        starts_grad = o.requires_grad and o.grad_fn is None
        value = self._emit_once(o)
        return ValueOutput(value, spec, self._aliases(leaves), self._attributes(o, leaves, spec), starts_grad)

    def _view(self, o: Tensor, base: int, of_input: bool, leaves: list[Tensor], spec: Spec) -> ViewOutput:
        replay, attributes = _torch.view_function(o), self._attributes(o, leaves, spec)
        several = _torch.is_multi_output_view(o)
        starts_grad = o.requires_grad and o.grad_fn is None and o._base is not None and not o._base.requires_grad
        return ViewOutput(base, of_input, replay, o.grad_fn is not None, spec, attributes, several, starts_grad)

    def _attributes(self, o: Tensor, leaves: list[Tensor], spec: Spec) -> dict[str, Any]:
        """Python attributes that a freshly rebuilt value would not have: the region set them."""
        with _torch.without_tracing(), torch.no_grad():
            fresh = rebuild(spec, iter(leaves)) if isinstance(spec, WrapperSpec) else self.recorder.bare(o)
        own = getattr(fresh, "__dict__", {})
        return {k: v for k, v in getattr(o, "__dict__", {}).items() if k not in own and not isinstance(v, Tensor)}

    def _is_traced(self, o: Tensor) -> bool:
        if not is_traceable(o):
            return _torch.is_fake(o)
        leaves = leaves_of(o)
        return not leaves or any(map(_torch.is_fake, leaves))

    def _emit_once(self, t: Tensor) -> int:
        if id(t) not in self._emitted:
            self._emitted[id(t)] = self.emit(t)
        return self._emitted[id(t)]

    def _aliases(self, leaves: Sequence[Tensor]) -> tuple[tuple[int, Any] | None, ...]:
        rows: list[tuple[int, Any] | None] = []
        for t in leaves:
            k = self._leaf_of.get(_torch.storage_ref(t)) if t.layout is torch.strided else None
            rows.append(None if k is None else (k, t.storage_offset() - self._offsets[k]))
        return tuple(rows) if any(r is not None for r in rows) else ()
