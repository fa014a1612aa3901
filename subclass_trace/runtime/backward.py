"""Backwards of one specialization, keyed by the tangents that really arrive.

The first is compiled together with the forward; others are traced from the retained tape on demand, without running the
user function, and computed from the same saved activations. See docs/notes/tangents.md.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
import torch.fx as fx

from .. import _torch, verify
from ..capture.graphs import drop_outputs, extract, needed, output_args
from ..capture.late_code import NO_LATE_CODE, Late
from ..capture.tape import Tape, TracedBackward
from ..errors import TangentError
from ..partition.half import Half
from ..partition.hooks import merge_twins, unpack_late
from ..plan import Reach
from ..subclass.flatten import flatten
from ..subclass.protocol import is_traceable
from ..subclass.spec import LeafSpec, Spec, WrapperSpec, spec_leaves
from ..subclass.visit import rebuild
from .rebuild import fit_strides, is_lazy
from .sizes import Env, concrete, evaluator, freeze, holds
from .tangent_layouts import MOST_LAYOUTS, comparable, copies_into, follows, known_layout, layout_like, same_layouts
from .tangent_sizes import matches, symbolic, with_unbacked

Tensor = torch.Tensor
Boxed = Callable[[list[Any]], Sequence[Any]]
CompileBackward = Callable[[fx.GraphModule], Boxed]
#: captures and later traces share process-wide state (fake modes, patched checkpoint), so they are serialised
TRACE_LOCK = threading.RLock()


@dataclass(frozen=True, eq=False)
class CompiledBackward:
    """One backward program.

    Attributes:
        tangents: spec of each tangent (None: absent); leaves are brought to its strides.
        create_graph: traced to be differentiated again.
        inputs: for each graph input ("saved", name), ("tangent", leaf number) or ("size", symbol).
        call: the boxed program.
        grads: spec of each gradient, in the order of the differentiated inputs.
        passed: which gradients are the very object that is ("tangent", number), ("input", number) or ("gradient", number).
        next: the backwards of this backward, when ``create_graph``; ``differentiable``: which gradients they are of.
        reach: which of those lead to which inputs of ``next``; None: all to all.
    """

    tangents: tuple[Spec | None, ...]
    create_graph: bool
    inputs: tuple[tuple[str, Any], ...]
    call: Boxed
    grads: tuple[Spec | None, ...]
    next: Backwards | None
    differentiable: tuple[int, ...]
    tangent_names: tuple[str, ...]
    passed: tuple[tuple[str, int] | None, ...]
    reach: Reach | None = None
    conditions: tuple[Any, ...] = ()  # on the sizes, beyond those of the specialization
    by_layout: bool = (
        False  # code of a class asked how a tensor is laid out: other layouts are no matter of strides alone
    )
    user_code: Late = NO_LATE_CODE  # what user code in it hangs on
    dtensor: _torch.DTensorModes | None = None  # what was active around DTensors while it was traced, if it met any
    graph: Any = None  # its graph module, or the `Half` that makes it; pasted into tapes of compiled autograd

    def holds(self, env: Env) -> bool:
        """Are the sizes, and the values that the trace read, those that it was traced for?"""
        return all(holds(c, env) for c in self.conditions) and self.user_code.holds()

    def serves(self, tangents: Sequence[Spec | None], create_graph: bool, env: Env) -> bool:
        """Is this the backward for these tangents?"""
        if self.create_graph != create_graph or not self.holds(env):
            return False
        if self.dtensor is not None and self.dtensor != _torch.dtensor_modes():
            return False
        if create_graph and tuple(map(_requires_grad, tangents)) != tuple(map(_requires_grad, self.tangents)):
            return False  # which gradients require grad depends on it
        return all(matches(known, now, env) for known, now in zip(self.tangents, tangents, strict=True))

    def has_gradients(self, traced: TracedBackward) -> bool:
        """Are these its gradients, with the same strides?"""
        rows = zip(self.grads, traced.grads, self.passed, strict=True)
        same = (p is not None or same_layouts([a], [None if b is None else freeze(b)], {}) for a, b, p in rows)
        return self.passed == traced.passed and self.differentiable == traced.differentiable and all(same)

    def run(self, saved: dict[str, Any], tangents: Sequence[Tensor], env: Env) -> list[Tensor | None]:
        """Gradients from saved values (which are consumed) and the dense leaves of the tangents."""
        wanted = [s for t in self.tangents if t is not None for s in spec_leaves(t)]
        # Traced tangents have no such bit, and some kernels take none that has.
        tangents = [t.resolve_conj().resolve_neg() if is_lazy(t) else t for t in tangents]
        env = with_unbacked(wanted, [t.shape for t in tangents], env)
        sizes = evaluator(env)
        leaves = [fit_strides(t, sizes(s.stride)) for t, s in zip(tangents, wanted, strict=True)]
        given = {"saved": saved, "tangent": leaves, "size": env}
        args = [given[kind][key] for kind, key in self.inputs]  # type: ignore[index]
        if not self.create_graph:  # the program frees each value after its last use; nothing else may hold it
            saved.clear()
        with torch.no_grad():
            flat = iter(self.call(args))
        return [None if g is None else rebuild(g, flat, sizes) for g in self.grads]

    def pass_on(
        self, grads: Sequence[Tensor | None], tangents: Sequence[Tensor | None], inputs: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """The gradients, with the very tangents, inputs and earlier gradients in place of those that are such an object."""
        found = list(grads)
        given = {"tangent": tangents, "input": inputs, "gradient": found}
        for k, source in enumerate(self.passed):
            if source is not None:
                found[k] = given[source[0]][source[1]]
        return found


class Backwards:
    """The compiled backwards of a region (or of a backward of it), and the tape to trace more from.

    ``again`` makes the tape a second time, by running the user function on fakes (of the sizes of one call, where it is
    given their symbols' values); with it, `release` may drop the tape.
    ``inputs`` says how many inputs are differentiated. ``narrow`` is told when a backward that is differentiated again
    fixes sizes: calls with others get a specialization of their own.
    """

    def __init__(
        self,
        tape: Tape,
        saved: frozenset[str],
        compile_backward: CompileBackward,
        output_paths: Sequence[str],
        symbols: frozenset[Any] = frozenset(),
        twins: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.symbols, self.twins = symbols, twins
        self.tape: Tape | None = tape
        self.inputs, self.saved = len(tape.edges), saved
        self.again: Callable[[Env | None], Tape] | None = None
        self.narrow: Callable[[tuple[Any, ...]], None] | None = None
        self.of_backward = False
        self.row_by_row = any(map(is_traceable, (*tape.outputs, *tape.inputs)))  # for batched tangents: see `batched`
        self.is_freed = False  # the region itself ran backwards that free what these would need
        self.compile_backward, self.output_paths = compile_backward, tuple(output_paths)
        self.compiled: tuple[CompiledBackward, ...] = ()
        self._layouts: tuple[tuple[Sequence[Spec | None], CompiledBackward], ...] = ()

    def add(self, entry: CompiledBackward) -> None:
        """Add a backward: the first was compiled together with the forward."""
        self.compiled = (*self.compiled, entry)
        self._layouts = (*self._layouts, (entry.tangents, entry))

    def release(self) -> bool:
        """Drop the tape, and the tapes of backwards that can be differentiated; False where it can be made only once."""
        with TRACE_LOCK:
            if self.again is None:
                return False
            self.tape = None
            self.compiled = tuple(entry for entry in self.compiled if entry.next is None)
            self._layouts = tuple(row for row in self._layouts if row[1].next is None)
            return True

    def find(self, tangents: Sequence[Spec | None], create_graph: bool, env: Env) -> CompiledBackward:
        """The backward for these tangents, traced now if there is none yet.

        Raises:
            TangentError: it cannot be computed from the saved activations.
        """
        tangents = [None if t is None else known_layout(t, bool(self.symbols)) for t in tangents]
        hit = self._lookup(tangents, create_graph, env)
        if hit is None:
            with TRACE_LOCK:
                hit = self._lookup(tangents, create_graph, env) or self._of_other_layout(tangents, create_graph, env)
                if hit is None:
                    hit = self._trace(tangents, create_graph, env)
                    self.add(hit)
        return hit

    def _lookup(self, tangents: Sequence[Spec | None], create_graph: bool, env: Env) -> CompiledBackward | None:
        for layout, entry in self._layouts:
            if entry.serves(tangents, create_graph, env) and same_layouts(layout, tangents, env):
                return entry
        return None

    def served(self, tangents: Sequence[Spec | None], env: Env) -> CompiledBackward | None:
        """The backward that is known for these tangents, of static sizes."""
        return self._lookup(tangents, False, env)

    def _of_other_layout(
        self, tangents: Sequence[Spec | None], create_graph: bool, env: Env
    ) -> CompiledBackward | None:
        """The backward for tangents that differ from known ones in their strides alone; None where there are none."""
        known = [e for e in self.compiled if e.serves(tangents, create_graph, env) and copies_into(e.tangents, env)]
        if not known:
            return None
        by_layout = any(e.by_layout for e in known)
        if len(self._layouts) >= MOST_LAYOUTS and not by_layout:
            return known[0]
        entry = first = known[0]
        half = Half.of_module(first.graph) if isinstance(first.graph, fx.GraphModule) else first.graph
        grads = [(g, p is not None) for g, p in zip(first.grads, first.passed, strict=True)]
        if create_graph or by_layout or follows(half, first.inputs, tangents, grads):
            # Where no class asks for a layout, nothing but strides hangs on it.
            with contextlib.suppress(*() if by_layout else (TangentError,)):
                twins = known if comparable(first.grads) and not by_layout else ()
                entry = self._trace(tangents, create_graph, env, twins)
        if entry not in known:
            self.add(entry)
        else:
            rows = zip(tangents, entry.tangents, strict=True)
            layout = tuple(None if t is None or k is None else layout_like(t, k) for t, k in rows)
            self._layouts = (*self._layouts, (layout, entry))
        return entry

    def _trace(
        self,
        tangents: Sequence[Spec | None],
        create_graph: bool,
        env: Env,
        known: Sequence[CompiledBackward] = (),
    ) -> CompiledBackward:
        """A new backward; or one of ``known``, for other layouts of such tangents, if it has the same gradients."""
        tape = self.tape
        if tape is None:
            assert self.again is not None
            tape = self.again(None)
        failed: Any = None
        try:
            entry = self._trace_of(tape, tangents, create_graph, env, known)
            failed = next((c for c in entry.conditions if not holds(c, env)), None)
            if failed is None:
                return entry
        except Exception as error:  # it may fail for the sizes of the call that was captured alone
            traced_for = _torch.symbol_values(tape.session.shape_env)
            failed = next((c for c in _torch.equalities(self.symbols, traced_for) if not holds(c, env)), None)
            if failed is None:
                raise
            if self.again is None:
                raise self._other_sizes(failed, env) from error
        if self.again is None:
            if self.narrow is not None:
                self.narrow((failed,))
            raise self._other_sizes(failed, env)
        entry = self._trace_of(self.again(env), tangents, create_graph, env)
        return replace(entry, conditions=_torch.equalities(self.symbols, env))

    def _trace_of(
        self,
        tape: Tape,
        tangents: Sequence[Spec | None],
        create_graph: bool,
        env: Env,
        known: Sequence[CompiledBackward] = (),
    ) -> CompiledBackward:
        live = [flatten(o)[1] for o in tape.outputs]
        rows = zip(tangents, live, strict=True)
        specs = [None if t is None else symbolic(_grad_alone(t, create_graph), o, env) for t, o in rows]
        shape_env = tape.session.shape_env
        assumed = _torch.assumptions_of(shape_env)
        before = set(_torch.shape_conditions(shape_env, self.symbols))
        try:
            traced = tape.trace(specs, create_graph=create_graph)
            for twin in known:
                assumes = set(_torch.shape_conditions(shape_env, self.symbols)) - before
                if twin.has_gradients(traced) and assumes <= set(twin.conditions):
                    return twin
            entry = self.build(traced, specs, create_graph)
            _torch.fix_rounded(shape_env, since=len(assumed.guards))
            conditions = tuple(c for c in _torch.shape_conditions(shape_env, self.symbols) if c not in before)
            met = {s for guard in shape_env.guards[len(assumed.guards) :] for s in guard.expr.free_symbols}
        finally:  # they hold for this backward; the next one that is traced must find out anew
            _torch.restore_assumptions(shape_env, assumed)
        if not tape.session.recorder.symbols.floats.isdisjoint(met - self.symbols):
            raise TangentError(
                "this backward branches on a number that is computed of a float of the call",
                path=", ".join(self.output_paths) or None,
                fix="compile with automatic_dynamic=False, or pass the float as a tensor",
            )
        if (
            (create_graph or self.of_backward)
            and self.narrow is not None
            and any(_torch.is_equality(c) for c in conditions)
        ):
            self.narrow(conditions)
        modes = tape.session.dtensor_modes()
        return replace(entry, conditions=conditions, dtensor=modes)

    def _other_sizes(self, condition: Any, env: Env) -> TangentError:
        values = {str(s): env[s] for s in condition.free_symbols}
        return TangentError(
            "this backward takes other operations for other sizes or numbers, and its trace has those of another call",
            path=", ".join(self.output_paths) or None,
            expected=f"sizes or numbers for which {condition}",
            got=str(values),
            fix="compile with automatic_dynamic=False (torch.compile: dynamic=False)"
            if self.narrow is None
            else "call the region again with these sizes (they have a specialization of their own from now on), or compile "
            "with automatic_dynamic=False",
        )

    def build(self, traced: TracedBackward, tangents: Sequence[Spec | None], create_graph: bool) -> CompiledBackward:
        """Compile a traced backward as a program over saved values and tangents."""
        merge_twins(traced.joint.graph, self.twins)
        outputs = output_args(traced.joint.graph)[traced.num_forward :]
        # What the first backward computes of inputs alone may be saved as well; only that trace knows it by its name.
        late = {n.name for n in traced.joint.graph.nodes if n.meta.get("partitioner_tag") == "is_backward"}
        have = (self.saved - late) | set(traced.tangents)
        sizes = self._sizes(traced.joint.graph, have)
        nodes, missing = needed(outputs, {*have, *sizes})
        if missing:
            raise self._not_computable(tangents, missing)
        names = [n.name for n in traced.joint.graph.nodes if n in nodes and (n.name in have or n.name in sizes)]
        graph = extract(traced.joint, outputs, names)
        drop_outputs(graph.graph, traced.late)
        unpack_late(graph.graph)
        if verify.ENABLED:
            verify.verify_joint(traced.joint, num_forward=traced.num_forward, tangents=tuple(have))
            verify.verify_backward(graph, names, {*have, *sizes})
        place = {name: ("tangent", k) for k, name in enumerate(traced.tangents)}
        place |= {name: ("size", symbol) for name, symbol in sizes.items()}
        inputs = tuple(place.get(n, ("saved", n)) for n in names)
        frozen = tuple(None if t is None else freeze(t) for t in tangents)
        following = None
        if traced.next is not None:
            rest = (self.compile_backward, (), self.symbols, self.twins)
            following = Backwards(traced.next, frozenset(have), *rest)
            following.narrow, following.of_backward, following.row_by_row = self.narrow, True, self.row_by_row
            following.again = self._again_for(traced, frozen)
        grads = tuple(None if g is None else freeze(g) for g in traced.grads)
        call = self.compile_backward(graph)
        return CompiledBackward(
            frozen,
            create_graph,
            inputs,
            call,
            grads,
            following,
            traced.differentiable,
            traced.tangents,
            traced.passed,
            traced.reach,
            user_code=traced.user_code,
            by_layout=traced.by_layout,
            graph=graph,
        )

    def _again_for(
        self, traced: TracedBackward, tangents: Sequence[Spec | None]
    ) -> Callable[[Env | None], Tape] | None:
        """Makes the tape of a backward a second time, for the sizes of one call."""
        if self.again is None:
            return None
        again, names, live = self.again, traced.tangents, traced.differentiable

        def run(env: Env | None) -> Tape:
            assert env is not None  # a backward that can be differentiated again keeps its own tape
            specs = [None if t is None else concrete(t, env) for t in tangents]
            with again(env).named(names) as tape:
                found = tape.trace(specs, create_graph=True)
            if found.next is None or found.tangents != names or found.differentiable != live:
                raise TangentError(
                    "the backward does something else when it is traced again for these sizes",
                    path=", ".join(self.output_paths) or None,
                    expected=f"tangents {names}, gradients {live}",
                    got=f"tangents {found.tangents}, gradients {found.differentiable}",
                    fix="compile with automatic_dynamic=False (torch.compile: dynamic=False)",
                )
            return found.next

        return run

    def _sizes(self, graph: fx.Graph, have: Collection[str]) -> dict[str, Any]:
        """Nodes that are a size symbol of the region: each call knows its value, so nobody has to save it."""
        rest = ((n.name, n.meta.get("val")) for n in graph.nodes if n.name not in have)
        found = {name: _torch.symbol_among(self.symbols, value) for name, value in rest}
        return {name: symbol for name, symbol in found.items() if symbol is not None}

    def _not_computable(self, tangents: Sequence[Spec | None], missing: set[str]) -> TangentError:
        present = [p for p, t in zip(self.output_paths, tangents, strict=False) if t is not None]
        return TangentError(
            "the backward for these tangents cannot be computed from the saved activations",
            path=", ".join(present) or None,
            expected="tangents for which the partitioner kept what is needed",
            got=f"needed but not saved: {sorted(missing)}",
            fix="compile with partitioner='default', or give the output a __coerce_tangent_metadata__ that says "
            "which tangent it expects",
        )


def _grad_alone(spec: Spec, create_graph: bool) -> Spec:
    """A tangent without what does not matter: its place, and what requires grad where nothing is differentiated again."""
    if isinstance(spec, LeafSpec):
        return replace(spec, storage_offset=0, requires_grad=create_graph and spec.requires_grad)
    if isinstance(spec, WrapperSpec):
        inners = tuple(_grad_alone(s, create_graph) for s in spec.inners)
        return replace(spec, inners=inners, requires_grad=create_graph and spec.requires_grad)
    return spec


def _requires_grad(spec: Spec | None) -> bool:
    return bool(getattr(spec, "requires_grad", False))
