"""The region as an autograd.Function, and the backward as one (for double backward of any order).

`run_backward` is what generated code falls back to when tangents are not the expected ones.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from ..errors import UnsupportedError
from ..subclass.flatten import flatten, leaves_of
from ..subclass.protocol import is_traceable
from ..torch_api.autograd import (
    apply_function,
    are_leaves,
    are_plain_leaves,
    base_apply,
    is_batched,
    is_legacy_batched,
    outside_of_vmap,
    says_spent,
)
from ..torch_api.dynamo import never_compiled
from ..torch_api.modes import disable_autocast
from .backward import NO_CALL, Backwards, CompiledBackward
from .sizes import Env

Tensor = torch.Tensor


def run_backward(
    backwards: Backwards, ctx: Any, saved: dict[str, Any], tangents: Sequence[Tensor | None]
) -> tuple[Sequence[Tensor | None], CompiledBackward | None]:
    """Gradients for whatever tangents arrive, and what has computed them.

    Args:
        ctx: of the node: its ``env``, and where it leads to.
        saved: name -> saved value; consumed, unless the backward is differentiated twice.
        tangents: one per differentiable output; None where the caller uses that output not at all.
    """
    if all(t is None for t in tangents):
        return [None] * backwards.inputs, None
    if any(map(is_batched, tangents)) and not backwards.takes_batches:
        raise UnsupportedError(
            "the backward of a region with wrappers, or of a compiler, gets several gradients at "
            "once",
            code="batched-gradients",
            expected="one gradient, or a region of dense tensors with backend='eager'",
            got="is_grads_batched=True, or a vectorized jacobian",
            fix="call the backward once for each",
        )
    create_graph, env = torch.is_grad_enabled(), getattr(ctx, "env", None) or {}
    rows = [None if t is None else flatten(t) for t in tangents]
    with outside_of_vmap(any(map(is_legacy_batched, tangents))):
        specs = [None if r is None else r[1] for r in rows]
        entry = backwards.find(specs, create_graph, env, getattr(ctx, "call", NO_CALL))
    with disable_autocast():
        if not create_graph:
            leaves = [leaf for r in rows if r is not None for leaf in r[0]]
            return entry.pass_on(entry.run(saved, leaves, env), tangents), entry
        return entry.pass_on(_with_history(entry, ctx, saved, tangents, env), tangents), entry


def _with_history(
    entry: CompiledBackward,
    ctx: Any,
    saved: dict[str, Any],
    tangents: Sequence[Tensor | None],
    env: Env,
) -> Sequence[Tensor | None]:
    """Gradients that can be differentiated."""
    present = [(t, spec) for t, spec in zip(tangents, entry.tangents, strict=True) if t is not None]
    wanted = (t for t, spec in present if spec.requires_grad)  # type: ignore[union-attr]
    tracked = [*edges_of(ctx), *wanted]
    leaves = [leaf for t, _ in present for leaf in leaves_of(t)]
    found = entry.run(saved, leaves, env)
    kept = saved | dict(zip(entry.tangent_names, leaves, strict=True))
    grads = [
        None if g is None or source is not None else g
        for g, source in zip(found, entry.passed, strict=True)
    ]
    views = [k for k, g in enumerate(grads) if g is not None and g._is_view()]
    for k in views:  # a Function's own views cannot be written
        grads[k] = grads[k].detach()  # type: ignore[union-attr]
    watched = (*ctx.watched, *watch([t for t, _ in present if is_traceable(t)]))
    made: Sequence[Any] = apply_function(
        DifferentiableBackward, entry, env, kept, grads, watched, *tracked
    )
    return [g.view_as(g) if k in views else g for k, g in enumerate(made)]


# ---- where a node leads to
class Edge(torch.autograd.Function):
    """A tensor without memory of its own that has the history, and the metadata, of another one.

    A backward that is differentiated twice leads where the inputs of the region came from. The node
    of the region knows that; a tensor with such a history keeps nobody's values alive, and what is
    written to the input later, which gives it another history, does not concern it.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """One element stands for all of them."""
        ctx.set_materialize_grads(False)
        if x.is_nested:  # its size belongs to its offsets
            return x.detach()
        return torch.empty_strided(x.shape, (0,) * x.dim(), dtype=x.dtype, device=x.device)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> Tensor | None:
        """It all belongs to ``x``."""
        return grad


def edges(inputs: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """What a node keeps of its inputs: an `Edge` for each, or None for a leaf, which the node knows
    (`edges_of`)."""
    if are_plain_leaves(inputs) or False not in (leaves := are_leaves(inputs)):
        return (None,) * len(inputs)
    with torch.enable_grad():
        return tuple([None if leaf else _edge(x) for x, leaf in zip(inputs, leaves, strict=True)])


_edge = base_apply(Edge)


def edges_of(ctx: Any) -> list[Tensor]:
    """Tensors that have the history of the inputs of the node ``ctx``.

    Raises:
        UnsupportedError: a leaf among them does not require grad any more.
    """
    found: list[Tensor] = []
    for kept, (node, _) in zip(ctx.edges, ctx.next_functions, strict=True):
        x = kept if kept is not None else getattr(node, "variable", None)
        if x is None or not x.requires_grad:
            raise UnsupportedError(
                "a backward is differentiated twice, after an input of the region was detached "
                "in place",
                code="detached-input",
                expected="inputs that require grad, as in the call",
                got=f"number {len(found)} of those that get a gradient, which does not",
                fix="detach a clone of it, or do it inside of the region",
            )
        found.append(x)
    return found


# ---- what is saved
# Autograd keeps what the backward reads, and compares its versions (``save_for_backward``).
# Operations on a wrapper do not move
# the counters of its leaves: ``ctx.watched`` has the versions of wrappers of which a leaf is saved,
# behind weak references: one that nobody holds is not written.
def watch(values: Sequence[Tensor]) -> tuple[tuple[Any, int], ...]:
    """References to wrappers, which keep none of them alive, with their versions."""
    return tuple([(weakref.ref(t), t._version) for t in values if not t.is_inference()])


def check_watched(ctx: Any) -> None:
    """Raise what autograd raises if a wrapper of which a leaf is saved was written since
    `watch`."""
    for reference, version in ctx.watched:
        t = reference()
        if t is not None and t._version != version:
            kind = f"a {t.dtype} {type(t).__qualname__} of shape {[*t.shape]}".replace("torch.", "")
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                "inplace operation: "
                f"{kind} whose inner tensor the backward reads, was written after the forward. "
                "Write to a clone of it."
            )


# ---- Functions
class DifferentiableBackward(torch.autograd.Function):
    """The backward as a differentiable region. Its own backward is traced from the tape of the
    backward when it runs."""

    @staticmethod
    def forward(
        ctx: Any,
        entry: CompiledBackward,
        env: Env,
        kept: dict[str, Any],
        grads: Sequence[Tensor | None],
        watched: tuple[tuple[Any, int], ...],
        *tracked: Tensor,
    ) -> tuple[Any, ...]:
        """The gradients.

        Args:
            kept: what the next backward may read: saved values, and leaves of tangents, by their
                names.
            watched: wrappers of which a leaf is among that, see `watch`.
            tracked: what the gradients are differentiated for, the region's inputs and then
                tangents.
        """
        ctx.set_materialize_grads(False)
        ctx.entry, ctx.env, ctx.watched, ctx.edges = entry, env, watched, edges(tracked)
        ctx.numbers = {n: v for n, v in kept.items() if not isinstance(v, Tensor)}
        tensors = {n: v for n, v in kept.items() if isinstance(v, Tensor)}
        # The very tensor where it can be: a ragged size belongs to the offsets that it came with.
        tensors = {n: v.detach() if v.requires_grad else v for n, v in tensors.items()}
        ctx.names = tuple(tensors)
        ctx.save_for_backward(*tensors.values())
        assert entry.next is not None and entry.next.of is not None
        fixed = [g for k, g in enumerate(grads) if g is not None and k not in entry.next.of]
        ctx.mark_non_differentiable(*fixed)
        return tuple(grads)

    @staticmethod
    @never_compiled
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """One order higher, by the same machinery."""
        following: Backwards = ctx.entry.next
        assert following.of is not None
        check_watched(ctx)
        saved = {**ctx.numbers, **dict(zip(ctx.names, ctx.saved_tensors, strict=False))}
        found, _ = run_backward(following, ctx, saved, [grads[k] for k in following.of])
        return (None, None, None, None, None, *found)


def with_reason(error: RuntimeError) -> RuntimeError:
    """The error that saved values are freed, where eager mode may have nodes that nobody has
    used."""
    if not says_spent(error, freed=True):
        return error
    return RuntimeError(
        f"{error}\nA compiled region is one node: all its results have one backward. Detach what "
        "is kept from call to call "
        "(`self.total = self.total + loss.detach()`), and call backward once for the sum of the "
        "results."
    )


class Protected(torch.autograd.Function):
    """A value that nobody may write to under autograd."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        """A view that is made in a custom Function."""
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """It all belongs to the value."""
        return grad


def protected(value: Tensor) -> Tensor:
    """The value, which nobody may write to under autograd."""
    return apply_function(Protected, value) if value.requires_grad else value
