"""Compiled backwards: one per set of tangents that has come, traced on demand from the retained
autograd graph.

A backward is a program over the saved values and the dense leaves of the tangents. The first is
traced together with the forward; more are traced from the `Tape` and read the same saved
activations. See docs/notes/tangents.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from .. import policy, verify
from ..capture.graphs import extract, needed, output_args, placeholders
from ..capture.tape import Tape, TracedBackward
from ..errors import TangentError
from ..stages import working
from ..state.guards import StateGuards
from ..subclass.flatten import flatten
from ..subclass.protocol import is_traceable
from ..subclass.spec import Spec, spec_leaves
from ..subclass.visit import rebuild
from ..torch_api.dtensor_modes import DTensorModes, dtensor_modes
from ..torch_api.dynamo import dynamo_lock
from ..torch_api.kinds import is_lazy, resolved
from ..torch_api.modes import autocast_state
from ..torch_api.symbols import (
    assumptions_of,
    equalities,
    fix_rounded,
    is_one_size,
    restore_assumptions,
    shape_conditions,
    symbol_among,
    symbol_values,
)
from .rebuild import fit_strides
from .sizes import Env, evaluator, freeze, holds
from .state_code import state_holds
from .tangents import matches, traced_as, with_unbacked
from .trace_lock import TRACE_LOCK

Tensor = torch.Tensor
Boxed = Callable[[list[Any]], Sequence[Any]]
CompileBackward = Callable[[fx.GraphModule], Boxed]
#: the arguments of a call that no backward asks for
NO_CALL: Any = ((), {})


@dataclass(frozen=True, eq=False)
class Circumstances:
    """What a backward was traced in, besides its tangents.

    Attributes:
        create_graph: it can be differentiated twice.
        conditions: on sizes and numbers, beyond those of the specialization.
        state: tells of the arguments of the forward's call whether the Python state that its code
            read is as it was.
        autocast: the state of autocast, as in `Ambient`.
        dtensor: what was active around DTensors, if it met any.
        ranks: what its trace, and those before it, have read of the rank of this process.
    """

    create_graph: bool = False
    conditions: tuple[Any, ...] = ()
    state: Callable[[Any], bool] | None = None
    autocast: tuple[Any, ...] = ()
    dtensor: DTensorModes | None = None
    ranks: tuple[str, ...] = ()

    def hold(self, create_graph: bool, env: Env, call: Any) -> bool:
        """Are they those of now?"""
        return (
            self.create_graph == create_graph
            and self.autocast == autocast_state()
            and all(holds(c, env) for c in self.conditions)
            and (self.state is None or self.state(call))
            and (self.dtensor is None or self.dtensor == dtensor_modes())
        )


class OnFirstUse:
    """A program that is compiled when it first runs: that of the backward for the tangents that the
    results suggest.

    Others may come (of a loss and logits, the loss alone has one), and a compiler takes long.
    """

    def __init__(self, compiler: Callable[[], Boxed]) -> None:
        self._compiler = compiler
        self._compiled: Boxed | None = None

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        """Run it."""
        return self.program()(args)

    def program(self) -> Boxed:
        """What is compiled, now if need be."""
        with dynamo_lock(), TRACE_LOCK:
            if self._compiled is None:
                with working("backward"):
                    self._compiled = self._compiler()
            return self._compiled


@dataclass(frozen=True, eq=False)
class CompiledBackward:
    """One backward program.

    Attributes:
        tangents: spec of each tangent (None: absent); leaves are brought to its strides.
        tangent_names: of their leaves in the graph.
        inputs: for each graph input ("saved", name), ("tangent", leaf number) or ("size", symbol).
        call: the boxed program.
        grads: spec of each gradient, in the order of the differentiated inputs.
        passed: which gradients are the very object that is ("tangent", number) or ("gradient",
            number).
        when: the circumstances in which it serves.
        next: the backwards of this backward, if it can be differentiated twice.
        reads: the Python state that its code reads.
        graph: its graph module, or the `Half` that makes it; pasted into tapes of compiled
            autograd.
    """

    tangents: tuple[Spec | None, ...]
    tangent_names: tuple[str, ...]
    inputs: tuple[tuple[str, Any], ...]
    call: Boxed
    grads: tuple[Spec | None, ...]
    passed: tuple[tuple[str, int] | None, ...]
    when: Circumstances
    next: Backwards | None
    reads: StateGuards | None
    graph: Any

    @classmethod
    def of(
        cls,
        traced: TracedBackward,
        tangents: Sequence[Spec | None],
        inputs: Sequence[tuple[str, Any]],
        call: Boxed,
        when: Circumstances,
        following: Backwards | None,
        graph: Any,
    ) -> CompiledBackward:
        """A traced backward with its program."""
        specs = tuple(None if t is None else freeze(t) for t in tangents)
        grads = tuple(None if g is None else freeze(g) for g in traced.grads)
        return cls(
            specs,
            traced.tangents,
            tuple(inputs),
            call,
            grads,
            traced.passed,
            when,
            following,
            traced.guards,
            graph,
        )

    def serves(
        self, tangents: Sequence[Spec | None], create_graph: bool, env: Env, call: Any
    ) -> bool:
        """Is this the backward for these tangents?"""
        if not self.when.hold(create_graph, env, call):
            return False
        if create_graph and [*map(_requires_grad, tangents)] != [
            *map(_requires_grad, self.tangents)
        ]:
            return False  # which gradients require grad depends on it
        return all(
            matches(known, now, env) for known, now in zip(self.tangents, tangents, strict=True)
        )

    def run(
        self, saved: dict[str, Any], tangents: Sequence[Tensor], env: Env
    ) -> list[Tensor | None]:
        """Gradients from saved values (which are consumed) and the dense leaves of the tangents."""
        wanted = [s for t in self.tangents if t is not None for s in spec_leaves(t)]
        env = with_unbacked(wanted, [t.shape for t in tangents], env)
        sizes = evaluator(env)
        # Traced tangents have no such bit, and some kernels take none that has.
        tangents = [resolved(t) if is_lazy(t) else t for t in tangents]
        leaves = [fit_strides(t, sizes(s.stride)) for t, s in zip(tangents, wanted, strict=True)]
        given = {"saved": saved, "tangent": leaves, "size": env}
        args = [given[kind][key] for kind, key in self.inputs]  # type: ignore[index]
        # the program frees each value after its last use; nothing else may hold it
        if not self.when.create_graph:
            saved.clear()
        with torch.no_grad():
            flat = iter(self.call(args))
        return [None if g is None else rebuild(g, flat, sizes) for g in self.grads]

    def pass_on(
        self, grads: Sequence[Tensor | None], tangents: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """The gradients, with the very tangents and earlier gradients in place of those that are
        such an object."""
        found = list(grads)
        given = {"tangent": tangents, "gradient": found}
        for k, source in enumerate(self.passed):
            if source is not None:
                found[k] = given[source[0]][source[1]]
        return found


class Backwards:
    """The compiled backwards of a region (or of a backward of it), and the tape to trace more from.

    Attributes:
        saved: `trace_name` of each value that is there -> what it is.
        inputs: how many inputs are differentiated.
        tape: the retained autograd graph; None until `again` has traced the call once more.
        again: makes the tape of a call where there is none (that of a description is in another
            process).
        forward_nodes: the forward as it was recorded; ``trace``: what it was like, where that was
            in another process.
        origin: the same for these and for the backwards of them.
        takes_batches: of tangents, by ``is_grads_batched``.
        of: where it is of a backward: which gradients of that the tangents are of.
        narrow: are told when a backward does not hold for the sizes of a call.
        is_shared: several modules have this program.
    """

    def __init__(
        self,
        tape: Tape | None,
        saved: Mapping[str, Any],
        compile_backward: CompileBackward,
        output_paths: Sequence[str],
        symbols: frozenset[Any] = frozenset(),
        again: Callable[[Any], Tape] | None = None,
    ) -> None:
        self.tape, self.saved, self.compile_backward = tape, saved, compile_backward
        self.output_paths, self.symbols, self.again = tuple(output_paths), symbols, again
        self.origin: object = self
        self.forward_nodes: tuple[fx.Node, ...] = ()
        self.trace = ""
        self.inputs, self.takes_batches = 0, False
        if tape is not None:
            self.inputs = len(tape.edges)
            self.takes_batches = not any(map(is_traceable, (*tape.outputs, *tape.inputs)))
        self.of: tuple[int, ...] | None = None
        self.narrow: list[Callable[[], Callable[[Any, str | None], None] | None]] = []
        self.is_shared = False
        self.compiled: tuple[CompiledBackward, ...] = ()

    def add(self, entry: CompiledBackward) -> None:
        """Add a backward: the first was traced together with the forward."""
        self.compiled = (*self.compiled, entry)

    @property
    def rank_reads(self) -> Iterator[str]:
        """What later traces have read of the rank of this process."""
        return (what for b in self.compiled for what in b.when.ranks)

    @property
    def keeps_call(self) -> bool:
        """May a backward ask for the arguments of its call, which the forward has to keep for
        it?"""
        return self.again is not None or any(
            b.reads is not None and b.reads.moves for b in self.compiled
        )

    def share(self) -> bool:
        """Another module shall have these too: none of them may read what belongs to the first
        one."""
        free = not any(b.reads is not None and b.reads.of_function_alone for b in self.compiled)
        self.is_shared = self.is_shared or free
        return free

    def find(
        self, tangents: Sequence[Spec | None], create_graph: bool, env: Env, call: Any = NO_CALL
    ) -> CompiledBackward:
        """The backward for these tangents, traced now if there is none yet.

        Raises:
            TangentError: it cannot be computed from the saved activations.
        """
        hit = self._lookup(tangents, create_graph, env, call)
        if hit is None:
            with dynamo_lock(), TRACE_LOCK:
                hit = self._lookup(tangents, create_graph, env, call)
                if hit is None:
                    hit = self._trace(tangents, create_graph, env, call)
                    self.add(hit)
                    self._check_count()
        return hit

    def _check_count(self) -> None:
        """Python state that each backward finds changed: the region runs eagerly from now on."""
        if sum(b.when.state is not None for b in self.compiled) > policy.POLICY.of_state:
            self._narrow("each of its backwards reads another value of Python state")

    def _lookup(
        self, tangents: Sequence[Spec | None], create_graph: bool, env: Env, call: Any
    ) -> CompiledBackward | None:
        return next(
            (entry for entry in self.compiled if entry.serves(tangents, create_graph, env, call)),
            None,
        )

    @working("another backward")
    def _trace(
        self, tangents: Sequence[Spec | None], create_graph: bool, env: Env, call: Any
    ) -> CompiledBackward:
        if self.tape is None:
            assert self.again is not None
            self.tape = self.again(call)
        tape, shape_env = self.tape, self.tape.session.shape_env
        live = [flatten(o)[1] for o in tape.outputs]
        rows = zip(tangents, live, strict=True)
        specs = [None if t is None else traced_as(t, o, create_graph, env) for t, o in rows]
        assumed = assumptions_of(shape_env)
        before = set(shape_conditions(shape_env, self.symbols))
        autocast = autocast_state()
        try:
            traced = tape.trace(specs, create_graph=create_graph, autocast=autocast)
            program = self._compile(traced, tangents)
            fix_rounded(shape_env, since=len(assumed.guards))
            conditions = tuple(
                c for c in shape_conditions(shape_env, self.symbols) if c not in before
            )
            met = {
                s
                for guard in shape_env.guards[len(assumed.guards) :]
                for s in guard.expr.free_symbols
            }
        except Exception as error:  # it may fail for the sizes of the call that was captured alone
            there = equalities(self.symbols, symbol_values(shape_env))
            failed = next((c for c in there if not holds(c, env)), None)
            if failed is None:
                raise
            raise self._other_sizes(failed, env) from error
        # they hold for this backward; the next one that is traced must find out for itself
        finally:
            restore_assumptions(shape_env, assumed)
        if not tape.session.recorder.symbols.floats.isdisjoint(met - self.symbols):
            raise TangentError(
                "this backward branches on a number that is computed of a float of the call",
                path=", ".join(self.output_paths) or None,
                fix="compile with dynamic=False, or pass the float as a tensor",
            )
        failed = next((c for c in conditions if not holds(c, env)), None)
        if failed is not None:
            raise self._other_sizes(failed, env)
        if any(is_one_size(c) for c in conditions):  # before a call with another one has run
            self._narrow()
        state = check_of(traced)
        if state is not None and not (self._may_read(traced) and state(call)):
            raise TangentError(
                "this backward reads Python state that belongs to one module, or one call, of "
                "several that it would serve",
                path=", ".join(self.output_paths) or None,
            )
        session = tape.session
        known = (session.dtensor_modes(), session.rank_reads())
        when = Circumstances(create_graph, conditions, state, autocast, *known)
        return CompiledBackward.of(traced, specs, *program[:2], when, *program[2:])

    def _may_read(self, traced: TracedBackward) -> bool:
        """May the Python state that a backward reads be told of each module and each call that have
        it?"""
        reads = traced.guards
        assert reads is not None
        return not (self.is_shared and reads.of_function_alone) and (
            self.keeps_call or not reads.moves
        )

    def _narrow(self, reason: str | None = None) -> None:
        for found in self.narrow:
            if (narrow := found()) is not None:
                narrow(self.origin, reason)

    def _other_sizes(self, condition: Any, env: Env) -> TangentError:
        self._narrow()
        return TangentError(
            "this backward takes other operations for other sizes or numbers, and its trace has "
            "those of another call",
            path=", ".join(self.output_paths) or None,
            expected=f"sizes or numbers for which {condition}",
            got=str({str(s): env[s] for s in condition.free_symbols}),
            fix="call the region again (such sizes have their own specializations now), or say "
            "dynamic=False",
        )

    def _compile(
        self, traced: TracedBackward, tangents: Sequence[Spec | None]
    ) -> tuple[list[tuple[str, Any]], Boxed, Backwards | None, fx.GraphModule]:
        """The inputs of a program over saved values and tangents, the program, the backwards of it,
        and its graph."""
        outputs = output_args(traced.joint.graph)[traced.num_forward :]
        known = {
            n.name: key
            for n in traced.joint.graph.nodes
            if (key := n.meta.get("trace_name")) in self.saved
        }
        have = {*known, *traced.tangents}
        sizes = self._sizes(traced.joint.graph, have)
        nodes, missing = needed(outputs, {*have, *sizes})
        if missing:
            present = [
                p for p, t in zip(self.output_paths, tangents, strict=False) if t is not None
            ]
            raise TangentError(
                "the backward for these tangents cannot be computed from the saved activations",
                path=", ".join(present) or None,
                got=f"needed but not saved: {sorted(missing)}",
                fix="compile with partitioner='default', or give the output a "
                "__coerce_tangent_metadata__"
                if self.tape is None or self.tape.session.passes is None
                else (
                    "a pass has put something in the place of a value: it has to say "
                    "graph.replace(old, new)"
                ),
            )
        names = [
            n.name
            for n in traced.joint.graph.nodes
            if n in nodes and (n.name in have or n.name in sizes)
        ]
        graph = extract(traced.joint, outputs, names)
        for node, name in zip(placeholders(graph.graph), names, strict=True):
            if name in known and "descriptor" not in node.meta:
                node.meta["descriptor"] = self.saved[known[name]]
        graph.meta["descriptors"] = traced.joint.meta["descriptors"][traced.num_forward :]
        if verify.ENABLED:
            verify.verify_joint(traced.joint, traced.num_forward, self.saved)
        place: dict[str, tuple[str, Any]] = {
            name: ("tangent", k) for k, name in enumerate(traced.tangents)
        }
        place |= {name: ("size", symbol) for name, symbol in sizes.items()}
        inputs = [place.get(n, ("saved", known.get(n, n))) for n in names]
        return inputs, self.compile_backward(graph), self._following(traced), graph

    def _following(self, traced: TracedBackward) -> Backwards | None:
        """The backwards of a backward."""
        if traced.next is None:
            return None
        there = {
            n.name: n.meta["descriptor"]
            for n in placeholders(traced.joint.graph)
            if n.name in traced.tangents
        }
        saved = {**self.saved, **there}
        made = Backwards(traced.next, saved, self.compile_backward, (), self.symbols)
        made.of, made.narrow, made.origin = traced.differentiable, self.narrow, self.origin
        made.takes_batches = self.takes_batches
        return made

    def _sizes(self, graph: fx.Graph, have: Collection[str]) -> dict[str, Any]:
        """Nodes that are a size symbol of the region: each call knows its value, so nobody has to
        save it."""
        rest = ((n.name, n.meta.get("val")) for n in graph.nodes if n.name not in have)
        found = {name: symbol_among(self.symbols, value) for name, value in rest}
        return {name: symbol for name, symbol in found.items() if symbol is not None}


def check_of(traced: TracedBackward) -> Callable[[Any], bool] | None:
    """See `Circumstances.state`."""
    return None if traced.guards is None else state_holds(traced.guards)


def _requires_grad(spec: Spec | None) -> bool:
    return bool(getattr(spec, "requires_grad", False))
