"""The retained fake autograd graph: traces a backward for any set of tangents without running the
user function again.

`Tape.trace` appends the backward's operations to the recorder's graph and returns a finished joint
graph whose outputs are ``[*forward outputs, *leaves of the gradients]``. See
docs/notes/tangents.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx as fx

from ..errors import UnsupportedError
from ..plan.descriptors import AnyDescriptor, GradientOf, TangentOf, gradients_of, tangents_of
from ..state.guards import StateGuards
from ..state.run import backward_state
from ..subclass.flatten import flatten, guarded_spec, leaves_of, map_leaves
from ..subclass.paths import Path
from ..subclass.spec import Spec, spec_leaves
from ..subclass.visit import rebuild
from ..torch_api.autograd import (
    autograd_sequence_number,
    make_nonleaf,
    node_sequence_number,
    says_no_derivative,
    watched_engine,
)
from ..torch_api.fakes import DATA_DEPENDENT_ERRORS, NO_FAKE_KERNEL
from ..torch_api.kinds import is_dense, storage_ref
from ..torch_api.modes import autocast_as, plain_dispatch, without_tracing
from .diagnostics import refusal_of_data
from .effects import CHECKS, is_kept
from .graphs import TracedForward, finish, placeholders
from .mutation import same_but_for_grad
from .session import Session

Tensor = torch.Tensor
aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class TracedBackward:
    """One backward: the joint graph it is part of, the names of its tangents, the specs of its
    gradients.

    The first ``num_forward`` outputs of ``joint`` are the forward's; the last ``draws`` of them are
    random numbers that nothing reads, kept because drawing them moves the generator, or of
    operations with effects.

    ``grads[k]`` is None where input k gets no gradient. ``next`` is the tape of the backward itself
    (only when traced with ``create_graph``), and ``differentiable`` tells which gradients are its
    outputs: those with a history of their own. ``passed[k]``: gradient k is the very object that is
    ("tangent", number of the output) or ("gradient", k), or None.
    ``guards``: on the Python state that its code read.
    """

    joint: fx.GraphModule
    num_forward: int
    draws: int
    tangents: tuple[str, ...]
    grads: tuple[Spec | None, ...]
    next: Tape | None
    differentiable: tuple[int, ...]
    passed: tuple[tuple[str, int] | None, ...]
    guards: StateGuards | None = None


@dataclass(frozen=True, eq=False)
class Tape:
    """Differentiable outputs, the gradient edges of the inputs, and the session that they were
    traced in.

    Attributes:
        described: what each output is.
        inputs: those that the edges are of; ``of``: what each is.
    """

    session: Session
    outputs: tuple[Tensor, ...]
    described: tuple[AnyDescriptor, ...]
    edges: tuple[Any, ...]
    inputs: tuple[Tensor, ...]
    of: tuple[AnyDescriptor, ...]
    forward: TracedForward

    def guess(self) -> list[Spec]:
        """The tangents that the live outputs suggest, one per output; the author hook is
        honoured."""
        specs = []
        with self.session.modes(), without_tracing(), torch.no_grad():
            for out in self.outputs:
                # A jagged tangent has the very offsets of its output.
                fresh = map_leaves((lambda t: t) if out.is_nested else _fresh_like, out)
                if fresh.requires_grad:  # a context may repeat it (DTensor's does)
                    fresh.requires_grad_(False)
                coerce = getattr(fresh, "__coerce_tangent_metadata__", None)
                specs.append(flatten(fresh if coerce is None else coerce())[1])
        return specs

    def trace(
        self,
        tangents: Sequence[Spec | None],
        *,
        create_graph: bool = False,
        autocast: Sequence[Any] = (),
    ) -> TracedBackward:
        """Trace the backward for these tangents (None: this output has none).

        With ``create_graph``, the tangents whose spec requires grad are inputs of the next tape,
        after the region's own.
        ``autocast``: the state under which the engine runs the backward, see
        `torch_api.modes.autocast_state`.
        """
        recorder = self.session.recorder
        present = [k for k, spec in enumerate(tangents) if spec is not None]
        values, names, tracked = list[Tensor](), list[str](), list[Tensor]()
        known = set(recorder.graph.nodes)
        with (
            self.session.modes(),
            torch.set_grad_enabled(create_graph),
            autocast_as(autocast),
        ):
            for k in present:
                spec = tangents[k]
                assert spec is not None
                value, made = self._tangent(k, spec)
                if create_graph and spec.requires_grad:  # type: ignore[union-attr]
                    make_nonleaf(value)
                    tracked.append(value)
                values.append(value)
                names += made
            edges = [*map(torch.autograd.graph.get_gradient_edge, tracked)]
            grads, guards = self._run([self.outputs[k] for k in present], values, known)
            self._check_layouts(grads)
            flat = [None if g is None else flatten(g) for g in grads]
            nodes = [recorder.node_of(leaf) for row in flat if row is not None for leaf in row[0]]
            described = gradients_of(self.of, [None if row is None else row[1] for row in flat])
            joint = finish(recorder, self.forward, nodes, described, passes=self.session.passes)
        untouched = {
            k: t
            for k, t in zip(present, values, strict=True)
            if not any(map(recorder.memory.touches, leaves_of(t)))
        }
        passed = _passed(grads, untouched)
        live, following = dict[int, Tensor](), None
        if create_graph:  # what is passed on has a history of its own
            own = {k: g for k, g in enumerate(grads) if g is not None and passed[k] is None}
            live = {k: g for k, g in own.items() if g.requires_grad}
            rows = zip(present, values, strict=True)
            new = [TangentOf(self.described[k]) for k, t in rows if any(t is x for x in tracked)]
            following = self._following(live, edges, tracked, new)
        hidden = joint.meta["draws"]
        specs = tuple(None if r is None else r[1] for r in flat)
        counts = (len(self.forward.outputs) + hidden, hidden)
        return TracedBackward(
            joint, *counts, tuple(names), specs, following, tuple(live), passed, guards
        )

    def _run(
        self, outs: Sequence[Tensor], values: Sequence[Tensor], known: Collection[fx.Node]
    ) -> tuple[Sequence[Tensor | None], StateGuards | None]:
        """The gradients, and guards on what their code read. ``known``: the nodes before it; those
        of a trace that fails go."""
        recorder = self.session.recorder
        contexts = [guarded_spec(now) for _, now in self._contexts()]
        start = autograd_sequence_number()

        def inside(roots: Sequence[Tensor], *_: Any) -> bool:
            self._check_inside(state, roots, start)
            return False

        during = recorder.during(
            tag="is_backward",
            outliving=self._outliving(),
            default_dtype=torch.get_default_dtype(),
        )
        try:
            with during, backward_state(recorder) as state, watched_engine(inside, _unasked):
                grads = self._differentiate(outs, values)
            self._check_contexts(contexts)
            _refuse_effects([n for n in recorder.graph.nodes if n not in known])
        except BaseException:
            recorder.erase([n for n in reversed(recorder.graph.nodes) if n not in known])
            raise
        return grads, state.guards

    def _check_inside(self, state: Any, roots: Sequence[Tensor], start: int) -> None:
        """A hook or a custom backward calls ``.backward()``. ``start``: the number of the last
        autograd node before it.

        Raises:
            UnsupportedError: that adds to the gradient of a tensor from outside.
        """
        behind = [n for n in nodes_behind(roots, []) if getattr(n, "variable", None) is None]
        leaves = leaves_behind(roots, [])
        # those that inputs came with have no number
        if any(not start < node_sequence_number(n) < 2**63 for n in behind) or any(
            state.place_of(t) is not None for t in leaves
        ):
            state.refuse(
                UnsupportedError(
                    "a hook or a custom backward calls .backward(), which adds to the gradient of "
                    "a tensor from outside",
                    code="backward-changes-state",
                    path=self.session.recorder.user_line(),
                    fix="use torch.autograd.grad, and return the gradients",
                )
            )

    def _following(
        self,
        grads: Mapping[int, Tensor],
        edges: Sequence[Any],
        tracked: Sequence[Tensor],
        of: Sequence[AnyDescriptor],
    ) -> Tape:
        """The tape of a backward: its gradients, by input, over the tangents of it that are
        tracked."""
        return replace(
            self,
            outputs=tuple(grads.values()),
            described=tuple(GradientOf(self.of[k]) for k in grads),
            edges=(*self.edges, *edges),
            inputs=(*self.inputs, *tracked),
            of=(*self.of, *of),
        )

    def _contexts(self) -> list[tuple[Path, Spec]]:
        with plain_dispatch():
            return [(path, flatten(wrapper)[1]) for path, wrapper in self.session.wrappers]

    def _check_contexts(self, before: Sequence[Spec]) -> None:
        """Traced wrappers have copies of what can be changed in contexts: what a backward changes
        would be changed in those."""
        for known, (path, now) in zip(before, self._contexts(), strict=True):
            if not same_but_for_grad(known, now):
                raise UnsupportedError(
                    "a custom backward or a hook changes the flatten context of an input",
                    code="context-changed",
                    path=path,
                )

    def _check_layouts(self, grads: Sequence[Tensor | None]) -> None:
        """Refuse sparse gradients, as `nn.Embedding` makes them: a graph has strided results."""
        for k, g in enumerate(grads):
            if g is not None and g.layout not in (torch.strided, torch.jagged):
                raise UnsupportedError(
                    "the gradient of an input is a sparse tensor",
                    code="sparse-gradient",
                    path=str(self.of[k]),
                    fix="make it with sparse=False, or call that layer outside of the region",
                )

    def _tangent(self, number: int, spec: Spec) -> tuple[Tensor, list[str]]:
        recorder, out = self.session.recorder, self.outputs[number]
        with without_tracing(), torch.no_grad():
            leaves = [
                torch.empty_strided(s.size, s.stride, dtype=s.dtype, device=s.device)
                for s in spec_leaves(spec)
            ]
        described = tangents_of([self.described[number]], [spec])
        names = [recorder.tangent(leaf, d) for leaf, d in zip(leaves, described, strict=True)]
        if out.is_nested:  # a jagged tangent has the very offsets of its output
            own, spec = flatten(out)
            leaves = [leaves[0], *own[1:]]
        value = rebuild(spec, iter(leaves))
        if value.requires_grad:
            value.requires_grad_(False)
        return value, names

    def _outliving(self) -> frozenset[Any]:
        """The storages of inputs, results and tangents: what a backward writes there, others would
        see."""
        inputs = placeholders(self.session.recorder.graph)
        values = [
            n.meta.get("val") for n in (*inputs, *self.forward.outputs) if isinstance(n, fx.Node)
        ]
        strided = [v for v in values if isinstance(v, Tensor) and v.layout is torch.strided]
        return frozenset(map(storage_ref, strided))

    def _differentiate(
        self, outs: Sequence[Tensor], tangents: Sequence[Tensor]
    ) -> Sequence[Tensor | None]:
        if not outs or not self.edges:
            return [None] * len(self.edges)
        try:
            return torch.autograd.grad(
                outs,
                self.edges,
                tangents,
                allow_unused=True,
                retain_graph=True,
                create_graph=torch.is_grad_enabled(),
            )
        except DATA_DEPENDENT_ERRORS as error:
            raise refusal_of_data(error) from error
        except (NO_FAKE_KERNEL, NotImplementedError) as error:
            if says_no_derivative(error):  # so does eager
                raise
            raise UnsupportedError(
                f"the backward uses an operation that cannot be traced: {error}",
                code="backward-operation",
                expected="operations with a fake kernel, which wrappers implement",
                fix="register one (torch.library.register_fake), or compile with dynamic=False",
            ) from error


def _unasked(roots: Sequence[Any], inputs: Sequence[Any]) -> None:
    """`torch.autograd.grad`, as it is."""


def _passed(
    grads: Sequence[Tensor | None], tangents: Mapping[int, Tensor]
) -> tuple[tuple[str, int] | None, ...]:
    """Gradients that are a tangent itself, or an earlier gradient.

    Autograd accumulates by reference what nobody else holds. Two objects made of the same leaves
    would end as two ``.grad`` in one memory.
    """
    known = {id(t): ("tangent", k) for k, t in tangents.items()}
    rows = []
    for k, g in enumerate(grads):
        rows.append(None if g is None else known.get(id(g)))
        known.setdefault(id(g), ("gradient", k))
    return tuple(rows)


def _refuse_effects(nodes: Sequence[fx.Node]) -> None:
    """Refuse what a backward calls for what it does; a check of the values that were checked in the
    forward is left out."""
    for node in nodes:
        if is_kept(node) and node.target not in CHECKS:
            raise UnsupportedError(
                "the backward calls an operation that has effects",
                code="backward-effect",
                got=node.target,
                fix="call it in the forward",
            )


def _fresh_like(t: Tensor) -> Tensor:
    # Dense strides are kept; anything else becomes contiguous, and the run time brings real
    # tangents to it.
    if is_dense(t):
        return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)
    return torch.empty(t.shape, dtype=t.dtype, device=t.device)


def saved_by_autograd(outputs: Sequence[Tensor], edges: Sequence[Any]) -> list[Tensor]:
    """The dense tensors that the autograd nodes behind ``outputs`` hold: whatever eager could serve
    a tangent from."""
    return [
        leaf
        for node in nodes_behind(outputs, edges)
        for t in _saved_of(node)
        for leaf in leaves_of(t)
    ]


def leaves_behind(outputs: Sequence[Tensor], edges: Sequence[Any]) -> list[Tensor]:
    """The autograd leaves that ``outputs`` were computed from, besides what the edges lead to."""
    found = (getattr(node, "variable", None) for node in nodes_behind(outputs, edges))
    return [t for t in found if isinstance(t, Tensor)]


def connected(outputs: Sequence[Tensor], rows: Sequence[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """Those of the rows (input number, gradient edge) that the histories of ``outputs`` lead to.

    An input that the region only overwrites (a module's ``self.aux = loss``) brings the graph of
    the last step along,
    which is freed by now: as in eager, no backward may lead there.
    """
    reached = set(nodes_behind(outputs, []))
    return [row for row in rows if row[1].node in reached]


def saves_out_of_sight(outputs: Sequence[Tensor], edges: Sequence[Any]) -> bool:
    """Is there a node that does not tell what it holds? That of an in-place operation on a view
    holds another node."""
    return any(node.name().endswith("CopySlices") for node in nodes_behind(outputs, edges))


def nodes_behind(nodes: Iterable[Any], edges: Sequence[Any]) -> Iterator[Any]:
    """These nodes of the autograd graph, or those of tensors, and all behind them, as far as the
    edges."""
    seen: set[Any] = {None, *(e.node for e in edges)}
    todo: list[Any] = [n.grad_fn if isinstance(n, Tensor) else n for n in nodes]
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo += [n for n, _ in node.next_functions]
            yield node


def _saved_of(node: Any) -> list[Tensor]:
    try:
        names = ("saved_tensors",) if hasattr(node, "saved_tensors") else _saved_names(type(node))
        values = [getattr(node, name) for name in names]
    except RuntimeError:  # already freed, or not readable: then eager could not use it either
        return []
    flat = [v for value in values for v in (value if isinstance(value, (list, tuple)) else [value])]
    return [v for v in flat if isinstance(v, Tensor)]


_SAVED_NAMES: dict[type, tuple[str, ...]] = {}


def _saved_names(cls: type) -> tuple[str, ...]:
    """Where a node holds tensors. To read a number that it holds would make one of a symbol."""
    if cls not in _SAVED_NAMES:
        names = dir(cls)
        _SAVED_NAMES[cls] = tuple(
            n for n in names if n.startswith("_saved_") and f"_raw{n}" in names
        )
    return _SAVED_NAMES[cls]
