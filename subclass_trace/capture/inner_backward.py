"""``.grad`` while a region runs: what it reads, what it sets, and what ``.backward()`` inside of it
adds. What `torch.autograd.grad` inside of it would do to tensors from outside.

The ``.grad`` of an input is one more input, found through its owner in each call: an optimizer
drops gradients and gets new ones, so that which tensor it is tells nothing. What the region leaves
there is assigned to the owner at the end of a call; an addition to a gradient that is there is a
write in place, as in eager.

``loss.backward()`` is `torch.autograd.grad` for all leaves behind it, and then what the nodes that
accumulate gradients do (``AccumulateGrad`` in torch/csrc/autograd).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from ..errors import UnsupportedError
from ..plan import gradient_of
from ..state.instrument import clone
from ..state.torch_flags import note
from ..subclass.flatten import leaves_of
from ..torch_api.autograd import (
    ACCUMULATION_HOOKS,
    GRADIENT_HOOKS,
    run_when_ready,
    runs_answered_by,
)
from ..torch_api.flags import FLAG_NAMED
from ..torch_api.kinds import is_dense, is_fake
from .input_sizes import DynamicDims
from .inputs import Argument, StandIns, TracedInput
from .metadata import MetadataReads
from .recorder import Recorder
from .tape import leaves_behind, nodes_behind

Tensor = torch.Tensor
#: a gradient that was replaced before anybody asked for it: any may stand there in a call, or none
_UNREAD = object()
_HOOKS = (GRADIENT_HOOKS, ACCUMULATION_HOOKS)


class InnerBackward:
    """The gradients of one run of a region's function."""

    def __init__(
        self,
        recorder: Recorder,
        stand_ins: StandIns,
        reads: MetadataReads,
        functions: AbstractContextManager[Any],
    ) -> None:
        """``functions``: inside of it, calls of functions of torch's are seen."""
        self.functions = functions
        self.recorder, self.stand_ins, self.reads, self.inputs = (
            recorder,
            stand_ins,
            reads,
            reads.inputs,
        )
        # number of an input -> the (traced) gradient that it came with, or `_UNREAD`
        self._before: dict[int, Any] = {}
        self._now: dict[int, Tensor | None] = {}  # and the one that it has
        self.own: dict[
            int, Tensor
        ] = {}  # leaves that the region makes, by their ids, to whose gradients backwards added
        # numbers of the leaves whose hooks the backward that runs calls
        self._hooked: frozenset[int] = frozenset()

    # ---- the attribute
    def access(self, func: Callable[..., Any], args: Sequence[Any]) -> Any:
        """``x.grad``, ``x.grad = g``, ``del x.grad``."""
        number = self.inputs.number_of(self.stand_ins.known(args[0]))
        if number is None:
            known = [self.stand_ins.known(a) for a in args]
            if func.__name__ == "__set__" and isinstance(known[1], Tensor):
                self.recorder.met.grad(known[0])
            return func(*known)
        if func.__name__ == "__get__":
            self._meet(number)
            return self._now[number]
        value = self.stand_ins.known(args[1]) if func.__name__ == "__set__" else None
        if value is not None and not isinstance(value, Tensor):
            return func(args[0], value)  # raises what eager does
        self._before.setdefault(number, _UNREAD)
        self._now[number] = value
        return None

    def _meet(self, number: int) -> None:
        """The gradient of an input is an input from now on (or is guarded not to be there)."""
        if number in self._now:
            return
        self._before[number] = self._now[number] = None
        row, real = self.inputs.rows[number], gradient_of(self.inputs.real(number))
        if real is None:
            self.reads.fact(number, "grad")
            return
        if real.layout is not torch.strided or self.inputs.of_real(real) is not None:
            raise UnsupportedError(
                "the region asks for the gradient of a tensor, and that is sparse, or is also "
                "another of its inputs",
                code="inner-differentiation",
                path=row.path,
                got=f"a gradient of layout {real.layout}",
                fix="pass the gradient as an argument alone",
            )
        place = row.descriptor.place
        argument = Argument(
            real, row.path.attr("grad"), row.position, place, "gradient", gradient_of=number
        )
        (self._before[number],) = self.inputs.add([argument], DynamicDims())
        self._now[number] = self._before[number]

    # ---- backward
    def backward(
        self, roots: Any, tangents: Any, retain: bool, create: bool, inputs: Sequence[Any]
    ) -> bool:
        """Run a backward that adds to ``.grad``; False where nothing of it is the trace's.

        Raises:
            UnsupportedError: it leads out of the region, or to a leaf with hooks.
        """
        if not any(isinstance(t, Tensor) and self._is_traced(t) for t in roots):
            return False
        self._refuse_anomalies()
        roots = list(map(self.stand_ins.known, roots))
        outside = {
            number: row for number, row in enumerate(self.inputs.rows) if row.edge is not None
        }
        edges: list[Any] = [row.edge for row in outside.values()]
        roots_alone = [t for t in roots if t.is_leaf and t.requires_grad]
        made = {id(t): t for t in (*leaves_behind(roots, edges), *roots_alone)}
        own = list(made.values())
        hooked = any(
            getattr(t, ACCUMULATION_HOOKS) or self.inputs.number_of(t) is not None for t in own
        )
        if create or inputs or hooked:
            raise UnsupportedError(
                "the region calls .backward() with create_graph=True or inputs=, or to a leaf "
                "with a hook, or of an input",
                code="inner-backward",
                path=self.recorder.user_line(),
                fix="use torch.autograd.grad",
            )
        edges += own
        self.own |= made

        def runs(leaf: Tensor) -> bool | None:
            row = self.inputs.of_real(leaf)
            if row is None or row.edge is None:
                return None
            return row.edge.node in set(nodes_behind(map(_node_of, roots), []))

        with self._hooks_on(outside) as done, runs_answered_by(runs):
            found = (
                torch.autograd.grad(roots, edges, tangents, retain_graph=retain, allow_unused=True)
                if edges
                else ()
            )
        held = [id(t) for t in (*found, *tangents) if t is not None]
        for leaf, gradient in zip(own, found[len(outside) :], strict=True):
            if gradient is not None:
                leaf.grad = _accumulated(leaf.grad, gradient, leaf, held.count(id(gradient)) == 1)
        for number, gradient in zip(outside, found, strict=False):
            if gradient is not None and number not in done:
                self._check_owner(number)
                self._meet(number)
                owner, alone = self.inputs.rows[number].traced, held.count(id(gradient)) == 1
                self._now[number] = _accumulated(self._now[number], gradient, owner, alone)
        return bool(edges)

    def check_flag(self, t: Tensor, requires_grad: bool = True) -> None:
        """As a GAN's step does with its discriminator.

        Raises:
            UnsupportedError: after a backward a tensor from outside gets another ``requires_grad``.
                Dynamo has one graph for what is before and after, and with that one backward.
        """
        if (
            self._now
            and t.requires_grad is not requires_grad
            and self.inputs.number_of(t) is not None
        ):
            raise UnsupportedError(
                "the region calls .backward(), and changes requires_grad of a tensor from "
                "outside afterwards",
                code="requires-grad-changed",
                path=self.recorder.user_line(),
                fix="make a region of what comes before, and one of what comes after",
            )

    def _refuse_anomalies(self) -> None:
        """Anomaly mode looks for NaN behind each node of the engine.

        Raises:
            UnsupportedError: it is on.
        """
        state, flag = self.recorder.state, FLAG_NAMED["anomaly mode"]
        if state is None:
            return
        note(state, flag)
        if state.flags.outside[flag.name] == (True, True):
            raise UnsupportedError(
                "the region differentiates in anomaly mode, which looks at each gradient",
                code="anomaly-mode",
                path=self.recorder.user_line(),
                fix="torch.autograd.set_detect_anomaly(False)",
            )

    def _is_traced(self, t: Tensor) -> bool:
        return self.stand_ins.known(t) is not t or any(map(is_fake, leaves_of(t)))

    def _check_owner(self, number: int) -> None:
        row = self.inputs.rows[number]
        self.reads.fact(number, "is_leaf")
        if not row.is_leaf:
            raise UnsupportedError(
                "the region calls .backward(), and that leads to a tensor with a history from "
                "outside",
                code="inner-backward",
                path=row.path,
                fix="detach it, or call .backward() on the result outside of the region",
            )
        if self.reads.fact(number, ACCUMULATION_HOOKS) is True:
            raise self._has_hooks(row)

    # ---- hooks of leaves
    @contextlib.contextmanager
    def _hooks_on(self, outside: Mapping[int, TracedInput]) -> Iterator[set[int]]:
        """Inside, where a leaf has hooks, a backward adds to the ``.grad`` of each leaf as soon as
        its gradient is there, and calls its hooks, as eager mode does: a hook may look at what
        other leaves have by then. Yields the numbers of the leaves for which that is done."""
        done, handles, before = set[int](), list[Any](), self._hooked
        leaves = [
            number
            for number, row in outside.items()
            if row.is_leaf and row.traced.grad_fn is row.edge.node
        ]
        hooked = {k for k in leaves if any(self.reads.fact(k, name) for name in _HOOKS)}
        for number in leaves if hooked else ():
            row = outside[number]
            run_when_ready(row.edge.node)
            register: Any = row.traced.register_hook
            handles.append(register(functools.partial(self._ready, number, done)))
        self._hooked = self._hooked | hooked
        try:
            yield done
        finally:
            self._hooked = before
            for handle in handles:
                handle.remove()

    def _ready(self, number: int, done: set[int], gradient: Tensor) -> None:
        """The gradient of a leaf with hooks is there."""
        row = self.inputs.rows[number]
        self.reads.fact(number, "is_leaf")
        before, after = (self._table(row, number, name) for name in _HOOKS)
        with self.functions:  # the engine leaves it behind
            gradient = clone(_CHANGED)(before, gradient)
        self._meet(number)
        # another leaf may get the very gradient
        self._now[number] = _accumulated(self._now[number], gradient, row.traced, alone=False)
        done.add(number)
        with self.functions:
            clone(_CALLED)(after, row.traced)

    def _table(self, row: TracedInput, number: int, name: str) -> Any:
        """The hooks of a leaf, read as Python state."""
        state, real = self.recorder.state, self.inputs.real(number)
        if state is None or not self.reads.fact(number, name):
            return {}
        return state.step(row.traced, "inner", name, getattr(real, name))

    def _has_hooks(self, row: TracedInput) -> UnsupportedError:
        return UnsupportedError(
            "the region differentiates, and a tensor behind that has hooks on its gradient",
            code="inner-differentiation",
            path=row.path,
            got="register_hook, register_post_accumulate_grad_hook or retain_grad was called on it",
            fix="differentiate outside of the region, or register the hook inside of it on x * 1",
        )

    # ---- torch.autograd.grad
    def check(self, roots: Sequence[Any], inputs: Sequence[Any]) -> None:
        """In eager, gradients go on through the graphs that tensors from outside came with, and to
        the hooks that they have, which may be the caller's code.

        Raises:
            UnsupportedError: that may lead to another tensor whose gradient is wanted; or to a
                hook.
        """
        self._refuse_anomalies()
        outside = {
            row.edge.node: number
            for number, row in enumerate(self.inputs.rows)
            if row.edge is not None
        }
        wanted = [outside[n] for x in inputs if (n := _node_of(x)) in outside]
        for k in wanted:
            self.reads.fact(k, "is_leaf")
            row = self.inputs.rows[k]
            names = (GRADIENT_HOOKS,) if row.is_leaf else (GRADIENT_HOOKS, "retains_grad")
            if k not in self._hooked and any(self.reads.fact(k, name) is True for name in names):
                raise self._has_hooks(row)
        if not wanted or len(outside) < 2:
            return
        behind = set(nodes_behind(map(_node_of, roots), []))
        reached = [k for n, k in outside.items() if n in behind and any(w != k for w in wanted)]
        for k in reached:
            self.reads.fact(k, "is_leaf")
        above = [k for k in reached if not self.inputs.rows[k].is_leaf]
        if above:
            raise UnsupportedError(
                "the region differentiates, and may lead through the graph of a tensor from "
                "outside to another one",
                code="inner-differentiation",
                path=self.recorder.user_line(),
                got=", ".join(str(self.inputs.rows[k].path) for k in (*above, *wanted)),
                fix="detach it, or differentiate outside",
            )

    # ---- afterwards
    def changed(self) -> Iterator[tuple[int, Tensor | None]]:
        """(number of the input, ``.grad``) where that is something else than it came with."""
        yield from (
            (number, now) for number, now in self._now.items() if now is not self._before[number]
        )


def _changed_by(hooks: dict[int, Any], gradient: Tensor) -> Tensor:
    """What the hooks of `Tensor.register_hook` make of a gradient. (Of an error, eager mode has the
    right text.)"""
    for hook in hooks.values():
        other = hook(gradient)
        if other is not None:
            if (
                not isinstance(other, Tensor)
                or other.shape != gradient.shape
                or other.dtype is not gradient.dtype
            ):
                raise RuntimeError("hook has changed the type or the size of value")
            gradient = other
    return gradient


def _call_each(hooks: dict[int, Any], leaf: Tensor) -> None:
    """Those of `Tensor.register_post_accumulate_grad_hook`."""
    for hook in hooks.values():
        if hook(leaf) is not None:
            raise RuntimeError("Tensor post accumulate grad hooks should return None.")


#: they run as clones
_CHANGED: Any = _changed_by
_CALLED: Any = _call_each


def _node_of(x: Any) -> Any:
    """Where gradients of a tensor, or of a gradient edge, come from; None for a leaf."""
    return x.grad_fn if isinstance(x, Tensor) else x.node


def _accumulated(old: Tensor | None, gradient: Tensor, owner: Tensor, alone: bool) -> Tensor:
    """What ``owner.grad`` is after ``gradient`` was added to ``old``.

    ``alone``: nobody else holds the gradient, so that it can become ``.grad`` without a copy.
    """
    with torch.no_grad():
        if old is not None:
            return old.add_(gradient)
        if alone and _has_layout_of(gradient, owner):
            return gradient.detach()
        if is_dense(owner):
            return gradient.new_empty_strided(owner.shape, owner.stride()).copy_(gradient)
        return gradient.clone(memory_format=torch.contiguous_format)


def _has_layout_of(gradient: Tensor, owner: Tensor) -> bool:
    """Does the gradient have the strides that autograd gives to gradients of ``owner``?"""
    if not is_dense(owner):
        return gradient.is_contiguous()
    rows = zip(gradient.shape, gradient.stride(), owner.stride(), strict=True)
    return all(mine == theirs if size != 1 else mine != 0 for size, mine, theirs in rows)
