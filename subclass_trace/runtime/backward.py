"""Backwards of one specialization, keyed by the tangents that really arrive.

The first is compiled together with the forward; others are traced from the retained tape on demand, without running the
user function, and computed from the same saved activations. See docs/notes/tangents.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx as fx

from .. import torch_api, verify
from ..capture.graphs import drop_outputs, extract, needed, output_args
from ..capture.tape import Tape, TracedBackward
from ..errors import TangentError
from ..state.guard_code import Reader
from ..subclass.flatten import flatten
from ..subclass.protocol import is_traceable
from ..subclass.spec import LeafSpec, Spec, WrapperSpec, spec_leaves
from ..subclass.visit import rebuild
from .rebuild import fit_strides, is_lazy
from .sizes import Env, evaluator, freeze, holds
from .tangent_layouts import contiguous
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
        passed: which gradients are the very object that is ("tangent", number) or ("gradient", number).
        next: the backwards of this backward, when ``create_graph``; ``differentiable``: which gradients they are of.
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
    conditions: tuple[Any, ...] = ()  # on the sizes, beyond those of the specialization
    guards: Reader | None = None  # on the Python state that its code read
    autocast: tuple[Any, ...] = ()  # the state of autocast that it was traced for, as in `Ambient`
    dtensor: torch_api.DTensorModes | None = None  # what was active around DTensors while it was traced, if it met any
    graph: Any = None  # its graph module, or the `Half` that makes it; pasted into tapes of compiled autograd

    def holds(self, env: Env) -> bool:
        """Are the sizes, and the values that the trace read, those that it was traced for?"""
        return all(holds(c, env) for c in self.conditions) and (self.guards is None or self.guards.still_holds())

    def serves(self, tangents: Sequence[Spec | None], create_graph: bool, env: Env) -> bool:
        """Is this the backward for these tangents?"""
        if self.create_graph != create_graph or self.autocast != torch_api.autocast_state() or not self.holds(env):
            return False
        if self.dtensor is not None and self.dtensor != torch_api.dtensor_modes():
            return False
        if create_graph and tuple(map(_requires_grad, tangents)) != tuple(map(_requires_grad, self.tangents)):
            return False  # which gradients require grad depends on it
        return all(matches(known, now, env) for known, now in zip(self.tangents, tangents, strict=True))

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

    def pass_on(self, grads: Sequence[Tensor | None], tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The gradients, with the very tangents and earlier gradients in place of those that are such an object."""
        found = list(grads)
        given = {"tangent": tangents, "gradient": found}
        for k, source in enumerate(self.passed):
            if source is not None:
                found[k] = given[source[0]][source[1]]
        return found


class Backwards:
    """The compiled backwards of a region (or of a backward of it), and the tape to trace more from.

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
    ) -> None:
        self.symbols = symbols
        self.tape = tape
        self.inputs, self.saved = len(tape.edges), saved
        self.narrow: Callable[[], None] | None = None
        self.of_backward = False
        self.takes_batches = not any(
            map(is_traceable, (*tape.outputs, *tape.inputs))
        )  # of tangents, by `is_grads_batched`
        self.compile_backward, self.output_paths = compile_backward, tuple(output_paths)
        self.compiled: tuple[CompiledBackward, ...] = ()

    def add(self, entry: CompiledBackward) -> None:
        """Add a backward: the first was compiled together with the forward."""
        self.compiled = (*self.compiled, entry)

    def find(self, tangents: Sequence[Spec | None], create_graph: bool, env: Env) -> CompiledBackward:
        """The backward for these tangents, traced now if there is none yet.

        Raises:
            TangentError: it cannot be computed from the saved activations.
        """
        hit = self._lookup(tangents, create_graph, env)
        if hit is None:
            with TRACE_LOCK:
                hit = self._lookup(tangents, create_graph, env)
                if hit is None:
                    hit = self._trace([None if t is None else contiguous(t) for t in tangents], create_graph, env)
                    self.add(hit)
        return hit

    def _lookup(self, tangents: Sequence[Spec | None], create_graph: bool, env: Env) -> CompiledBackward | None:
        return next((entry for entry in self.compiled if entry.serves(tangents, create_graph, env)), None)

    def served(self, tangents: Sequence[Spec | None], env: Env) -> CompiledBackward | None:
        """The backward that is known for these tangents, of static sizes."""
        return self._lookup(tangents, False, env)

    def _trace(
        self,
        tangents: Sequence[Spec | None],
        create_graph: bool,
        env: Env,
    ) -> CompiledBackward:
        cause: Exception | None = None
        try:
            entry = self._trace_of(self.tape, tangents, create_graph, env)
            failed = next((c for c in entry.conditions if not holds(c, env)), None)
            if failed is None:
                return entry
        except Exception as error:  # it may fail for the sizes of the call that was captured alone
            traced_for = torch_api.symbol_values(self.tape.session.shape_env)
            failed = next((c for c in torch_api.equalities(self.symbols, traced_for) if not holds(c, env)), None)
            if failed is None:
                raise
            cause = error
        if self.narrow is not None:
            self.narrow()
        raise self._other_sizes(failed, env) from cause

    def _trace_of(
        self,
        tape: Tape,
        tangents: Sequence[Spec | None],
        create_graph: bool,
        env: Env,
    ) -> CompiledBackward:
        live = [flatten(o)[1] for o in tape.outputs]
        rows = zip(tangents, live, strict=True)
        specs = [None if t is None else symbolic(_grad_alone(t, create_graph), o, env) for t, o in rows]
        shape_env = tape.session.shape_env
        assumed = torch_api.assumptions_of(shape_env)
        before = set(torch_api.shape_conditions(shape_env, self.symbols))
        try:
            traced = tape.trace(specs, create_graph=create_graph, autocast=torch_api.autocast_state())
            entry = self.build(traced, specs, create_graph)
            torch_api.fix_rounded(shape_env, since=len(assumed.guards))
            conditions = tuple(c for c in torch_api.shape_conditions(shape_env, self.symbols) if c not in before)
            met = {s for guard in shape_env.guards[len(assumed.guards) :] for s in guard.expr.free_symbols}
        finally:  # they hold for this backward; the next one that is traced must find out anew
            torch_api.restore_assumptions(shape_env, assumed)
        if not tape.session.recorder.symbols.floats.isdisjoint(met - self.symbols):
            raise TangentError(
                "this backward branches on a number that is computed of a float of the call",
                path=", ".join(self.output_paths) or None,
                fix="compile with automatic_dynamic=False, or pass the float as a tensor",
            )
        if (
            (create_graph or self.of_backward)
            and self.narrow is not None
            and any(torch_api.is_equality(c) for c in conditions)
        ):
            self.narrow()
        modes = tape.session.dtensor_modes()
        return replace(entry, conditions=conditions, autocast=torch_api.autocast_state(), dtensor=modes)

    def _other_sizes(self, condition: Any, env: Env) -> TangentError:
        values = {str(s): env[s] for s in condition.free_symbols}
        return TangentError(
            "this backward takes other operations for other sizes or numbers, and its trace has those of another call",
            path=", ".join(self.output_paths) or None,
            expected=f"sizes or numbers for which {condition}",
            got=str(values),
            fix="compile with automatic_dynamic=False (torch.compile: dynamic=False)"
            if self.narrow is None
            else "call the region again with these sizes (from now on each has a specialization of its own), or compile "
            "with automatic_dynamic=False",
        )

    def build(self, traced: TracedBackward, tangents: Sequence[Spec | None], create_graph: bool) -> CompiledBackward:
        """Compile a traced backward as a program over saved values and tangents."""
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
        if verify.ENABLED:
            verify.verify_joint(traced.joint, num_forward=traced.num_forward, tangents=tuple(have))
            verify.verify_backward(graph, names, {*have, *sizes})
        place = {name: ("tangent", k) for k, name in enumerate(traced.tangents)}
        place |= {name: ("size", symbol) for name, symbol in sizes.items()}
        inputs = tuple(place.get(n, ("saved", n)) for n in names)
        frozen = tuple(None if t is None else freeze(t) for t in tangents)
        following = None
        if traced.next is not None:
            rest = (self.compile_backward, (), self.symbols)
            following = Backwards(traced.next, frozenset(have), *rest)
            following.narrow, following.of_backward, following.takes_batches = self.narrow, True, self.takes_batches
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
            guards=traced.guards,
            graph=graph,
        )

    def _sizes(self, graph: fx.Graph, have: Collection[str]) -> dict[str, Any]:
        """Nodes that are a size symbol of the region: each call knows its value, so nobody has to save it."""
        rest = ((n.name, n.meta.get("val")) for n in graph.nodes if n.name not in have)
        found = {name: torch_api.symbol_among(self.symbols, value) for name, value in rest}
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
