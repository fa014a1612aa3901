"""The region as an autograd.Function, and the backward as one (for double backward of any order).

`run_backward` is what both the reference interpreter and the generated code fall back to when tangents are not the
expected ones.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from .. import _torch
from .._torch.dynamo import never_compiled
from .._torch.tape import saves_for_torch
from ..capture.aliasing import storage_key
from ..errors import UnsupportedError
from ..plan import Plan, Replay, SavedValue
from ..subclass.flatten import flatten, leaves_of
from ..subclass.protocol import is_traceable
from .backward import Backwards, CompiledBackward
from .batched import row_by_row
from .sizes import Env

Tensor = torch.Tensor


#: refuses to lead to some of a node's inputs: see `check_histories`
Check: TypeAlias = Callable[[Collection[int]], None]


def run_backward(
    backwards: Backwards,
    inputs: Sequence[Tensor],
    saved: dict[str, Any],
    tangents: Sequence[Tensor | None],
    env: Env,
    check: Check,
) -> Sequence[Tensor | None]:
    """Gradients for whatever tangents arrive.

    Args:
        check: called with the numbers of the inputs that gradients which are differentiated again lead to.
        inputs: the differentiated inputs; used (for their history) only when the backward is differentiated again.
        saved: name -> saved value; consumed, unless the backward is differentiated again.
        tangents: one per differentiable output; None where the caller uses that output not at all.
    """
    if all(t is None for t in tangents):
        return [None] * backwards.inputs
    batched = any(map(_torch.is_batched, tangents))
    if batched and backwards.row_by_row:
        return row_by_row(lambda own: run_backward(backwards, inputs, dict(saved), own, env, check), tangents)
    create_graph = torch.is_grad_enabled()
    rows = [None if t is None else flatten(t) for t in tangents]
    with _torch.outside_of_vmap() if batched else contextlib.nullcontext():
        entry = backwards.find([None if r is None else r[1] for r in rows], create_graph, env)
    if not create_graph:
        leaves = [leaf for r in rows if r is not None for leaf in r[0]]
        return entry.pass_on(entry.run(saved, leaves, entry.with_tangents(tangents, env)), tangents, inputs)
    check(range(len(inputs)))
    grads = _with_history(entry, inputs, saved, tangents, env)
    return entry.pass_on(grads, tangents, inputs)


def check_histories(ctx: Any, inputs: Mapping[int, Tensor], path: Callable[[int], Any], asked: Collection[int]) -> None:
    """Refuse to differentiate a backward again where an input has another history than when the node ``ctx`` was made.

    Eager's nodes keep the history of then; here it is gone with the first write, or with ``detach_()``.

    Args:
        inputs: what the node leads to, in order, by number. ``path``: of such a one. ``asked``: those that matter.

    Raises:
        UnsupportedError: one was written, under autograd, since.
    """
    for (k, x), (node, number) in zip(inputs.items(), getattr(ctx, "next_functions", ()), strict=False):
        if node is None or k not in asked:
            continue
        with _torch.without_dispatch():
            if x.is_leaf:
                same = x.requires_grad and hasattr(node, "variable")  # its ``AccumulateGrad``
            else:
                same = x.grad_fn is node and x.output_nr == number
        if not same:
            raise UnsupportedError(
                "a backward is differentiated again, after an input of the region was written or detached in place",
                path=str(path(k)),
                expected=f"the history that it had in the call, {node.name()}",
                got=f"{x.grad_fn.name() if x.grad_fn is not None else 'none'}",
                fix="write to (or detach) a clone of it, or do it inside of the region",
            )


def check_of(ctx: Any, plan: Plan) -> Check:
    """`check_histories` of the node of a region."""
    inputs = dict(enumerate(ctx.inputs))
    return functools.partial(check_histories, ctx, inputs, lambda k: plan.inputs[plan.differentiated[k]].path)


def _with_history(
    entry: CompiledBackward,
    inputs: Sequence[Tensor],
    saved: dict[str, Any],
    tangents: Sequence[Tensor | None],
    env: Env,
) -> Sequence[Tensor | None]:
    """Gradients that can be differentiated."""
    present = [(t, spec) for t, spec in zip(tangents, entry.tangents, strict=True) if t is not None]
    tracked = [*inputs, *(t for t, spec in present if spec.requires_grad)]  # type: ignore[union-attr]
    around = [*inputs, *(t for t, _ in present)]
    leaves = [leaf for t, _ in present for leaf in leaves_of(t)]
    found = entry.run(saved, leaves, entry.with_tangents(tangents, env))
    kept = saved | dict(zip(entry.tangent_names, leaves, strict=True))
    grads = [None if g is None or source is not None else g for g, source in zip(found, entry.passed, strict=True)]
    views = [k for k, g in enumerate(grads) if g is not None and g._is_view()]
    for k in views:  # a Function's own views cannot be written
        grads[k] = grads[k].detach()  # type: ignore[union-attr]
    made: Sequence[Any] = _torch.apply_function(
        DifferentiableBackward, entry, env, kept, grads, around, *tracked
    )
    return [g.view_as(g) if k in views else g for k, g in enumerate(made)]


#: names of the saved activations that a backward reads; None: all of them
Read: TypeAlias = Callable[[], Collection[str] | None]


def read_for(backwards: Backwards, tangents: Sequence[Tensor | None], env: Env) -> Collection[str] | None:
    """What the backward for these tangents reads: not what the results without a tangent would need."""
    if all(t is not None for t in tangents) or any(map(_torch.is_batched, tangents)):
        return None
    entry = backwards.find([None if t is None else flatten(t)[1] for t in tangents], torch.is_grad_enabled(), env)
    return {key for kind, key in entry.inputs if kind == "saved"}


def changed_since_forward(
    plan: Plan | None = None, was: Sequence[int] = (), now: Sequence[int] = (), read: Read = lambda: None
) -> None:
    """Raise what autograd raises for a saved tensor that was written between forward and backward, with its path.

    As in eager mode, that is no fault where the backward of the results in question does not read it.

    Args:
        was, now: versions of what is saved, or of the inputs that are compared alone (`Plan.compared_inputs`).
    """
    what = "a tensor that the backward reads, or a wrapper around one"
    if plan is not None:
        compared = [(None, _input_text(plan, plan.differentiated[k])) for k in plan.compared_inputs]
        saved = [(row.name, _saved_text(row)) for row in plan.saved if row.is_tensor]
        texts = [*saved, *[(None, _input_text(plan, k)) for k in plan.kept_inputs], *compared]
        rows = zip(texts[len(texts) - len(was) :], was, now, strict=True)
        written = [text for text, old, new in rows if old != new]
        if written and all(name is not None for name, _ in written):
            names = read()
            written = [row for row in written if names is None or row[0] in names]
            if not written:
                return
        what = next((text for _, text in written), what)
    raise changed(what)


def watch(values: Sequence[Tensor]) -> tuple[tuple[Any, int], ...]:
    """References to results, which keep none of them alive, with their versions."""
    return tuple([(weakref.ref(t), t._version) for t in values])


def check_watched(
    rows: Sequence[tuple[Any, int]], names: Sequence[Collection[str]] = (), read: Read = lambda: None
) -> None:
    """Raise what autograd raises if a result that eager's backward reads was written since `watch`.

    Args:
        names: of the saved activations that each result consists of, see `Plan.watched_names`.
    """
    for k, (reference, version) in enumerate(rows):
        t = reference()
        if t is not None and t._version != version:
            own, theirs = (names[k], read()) if names and names[k] else ((), None)
            if theirs is not None and not any(name in theirs for name in own):
                continue
            raise changed(
                f"a result of the region, a {t.dtype} {type(t).__qualname__} of shape {[*t.shape]}".replace(
                    "torch.", ""
                )
            )


def changed(what: str) -> RuntimeError:
    """What autograd raises for a tensor that was written between forward and backward."""
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"{what}, was written after the forward. Write to a clone of it."
    )


def _saved_text(row: SavedValue) -> str:
    kind = f"a {row.dtype} tensor of shape {[*row.shape]} that the backward reads"
    if row.path is not None:
        return f"{row.path}, {kind}"
    return f"{kind}, which {row.operation}{f' at {row.where}' if row.where else ''} has made"


def _input_text(plan: Plan, number: int) -> str:
    row = plan.inputs[number]
    return f"{row.path}, a {getattr(row.spec, 'cls', Tensor).__qualname__} whose inner tensor the backward reads"


# ---------------------------------------------------------------------------------------------- saved variables
class SavedBeside(torch.autograd.Function):
    """A node that no backward runs through, so that the engine does not free what it has saved."""

    @staticmethod
    def forward(ctx: Any, origin: Tensor, saved: Sequence[Tensor | None]) -> Tensor:
        """Who holds the result holds ``saved``; ``origin`` requires grad."""
        ctx.save_for_backward(*saved)
        return torch.empty_like(origin)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None]:
        """It leads nowhere."""
        return None, None


def save(ctx: Any, plan: Plan, saved: Sequence[Tensor | None]) -> None:
    """Save activations as autograd's own variables, for which the hooks run that are active.

    Where eager mode has other nodes for some of the results, their backward may come later: the variables must outlive
    this one. (Torch's compiled autograd finds only those of the node itself.)
    """
    if not plan.independent:
        ctx.save_for_backward(*saved)
        return
    ctx.done = frozenset()
    if saves_for_torch:
        ctx.save_for_backward(*saved)
        return
    places = [k for k, row in enumerate(plan.saved) if row.is_tensor]
    own = {n for n, k in enumerate(places) if k in plan.saved_results}  # they lead back to this node: saved as aliases
    rows = [t.detach() if n in own and t is not None else t for n, t in enumerate(saved)]
    with torch.enable_grad():
        origin = torch.empty((), device="cpu", requires_grad=True)
        ctx.beside = _torch.apply_function(SavedBeside, origin, rows)


def saved_of(ctx: Any, plan: Plan, keep: bool, present: Sequence[bool]) -> tuple[list[Any], bool]:
    """What `save` has saved, and whether it stays; else it is free after its last use. ``keep``, ``present``: see `pending`."""
    if getattr(ctx, "beside", None) is None:
        saved = list(ctx.saved_tensors)
        ctx.maybe_clear_saved_tensors()
        return saved, keep
    keep = pending(ctx, plan, keep, present)
    saved = list(ctx.beside.grad_fn.saved_tensors)
    if not keep:
        ctx.beside = None
    return saved, keep


def pending(ctx: Any, plan: Plan, keep: bool, present: Sequence[bool]) -> bool:
    """Must the saved activations stay: for a retained graph, or for results that eager mode has other nodes for?

    Args:
        keep: the graph is retained.
        present: which differentiable values have a tangent.

    Raises:
        RuntimeError: autograd's, for a second backward of the same results.
    """
    now = {g for g, members in enumerate(plan.independent) if any(present[k] for k in members)}
    if now & ctx.done:
        _ = ctx.saved_tensors  # refuses
    if keep:
        return True
    ctx.done = ctx.done | now
    return len(ctx.done) < len(plan.independent)


# ---------------------------------------------------------------------------------------------- Functions
class DifferentiableBackward(torch.autograd.Function):
    """The backward as a differentiable region. Its own backward is traced from the tape of the backward when it runs."""

    @staticmethod
    def forward(
        ctx: Any,
        entry: CompiledBackward,
        env: Env,
        kept: dict[str, Any],
        grads: Sequence[Tensor | None],
        around: Sequence[Tensor],
        *tracked: Tensor,
    ) -> tuple[Any, ...]:
        """The gradients.

        Args:
            kept: what the next backward may read: saved values, and leaves of tangents, by their names.
            around: all inputs and tangents.
            tracked: what the gradients are differentiated for, the region's inputs and then tangents.
        """
        ctx.set_materialize_grads(False)
        ctx.entry, ctx.env, ctx.tracked = entry, env, tracked
        ctx.numbers = {n: v for n, v in kept.items() if not isinstance(v, Tensor)}
        tensors = {n: v for n, v in kept.items() if isinstance(v, Tensor)}
        # The very tensor where it can be: a ragged size belongs to the offsets that it came with.
        tensors = {n: v.detach() if v.requires_grad else v for n, v in tensors.items()}
        ctx.names = tuple(tensors)
        ctx.save_for_backward(*tensors.values(), *_wrappers_around(tensors.values(), around))
        fixed = [g for k, g in enumerate(grads) if g is not None and k not in entry.differentiable]
        ctx.mark_non_differentiable(*fixed)
        return tuple(grads)

    @staticmethod
    @never_compiled
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """One order higher, by the same machinery."""
        entry: CompiledBackward = ctx.entry
        assert entry.next is not None
        tangents = [grads[k] for k in entry.differentiable]
        saved = {**ctx.numbers, **dict(zip(ctx.names, ctx.saved_tensors, strict=False))}
        leads = dict(enumerate(ctx.tracked))
        check = functools.partial(check_histories, ctx, leads, lambda k: "an input of the region, or a tangent")
        found = run_backward(entry.next, ctx.tracked, saved, tangents, ctx.env, check)
        return (None, None, None, None, None, *found)


def _wrappers_around(saved: Iterable[Tensor], given: Sequence[Tensor]) -> list[Tensor]:
    """Those of ``given`` of which a leaf is saved: autograd compares their versions too, which operations on them move."""
    storages = {storage_key(t) for t in saved if t.layout is torch.strided}
    rows = [(t, leaves_of(t)) for t in given if is_traceable(t)]
    return [t for t, own in rows if any(x.layout is torch.strided and storage_key(x) in storages for x in own)]


class KeptHistory(torch.autograd.Function):
    """A tensor with the history that another one has now: what is written to that one gives it a new history.

    Eager's nodes keep the history that their inputs had (``SavedVariable``). A backward that is differentiated again
    leads there, so the Function of a region is given such a tensor for each input that the region writes to.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Another tensor in the same memory, which is no view for autograd."""
        ctx.set_materialize_grads(False)
        return x.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> Tensor | None:
        """It all belongs to ``x``."""
        return grad


def with_kept_history(inputs: Sequence[Tensor], places: Collection[int]) -> list[Tensor]:
    """What the Function of a region is given for its differentiated inputs; ``places``: see `Plan.rewritten`."""
    return [_torch.apply_function(KeptHistory, x) if k in places else x for k, x in enumerate(inputs)]


class Dangling(torch.autograd.Function):
    """Gives a value a history that leads nowhere: it was computed from an autograd leaf that nobody else sees."""

    @staticmethod
    def forward(ctx: Any, origin: Tensor, box: Sequence[Tensor]) -> Tensor:
        """The value in ``box``, which gets the history; ``origin`` requires grad."""
        return box[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None]:
        """There is nobody to give a gradient to."""
        return None, None


class RelatedView(torch.autograd.Function):
    """A view of a tensor with the history of another value: what a custom Function makes whose result is a view."""

    @staticmethod
    def forward(ctx: Any, base: Tensor, value: Tensor, replay: Replay) -> Tensor:
        """The view. Autograd refuses to write it in place, as it does for the Function of the user."""
        return replay(base)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None]:
        """It all belongs to the value."""
        return None, grad, None


class RegionFunction(torch.autograd.Function):
    """The forward of a specialization with a backward: the reference, which `codegen` specialises."""

    @staticmethod
    def forward(ctx: Any, program: Any, call: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
        """``inputs`` are the differentiated inputs; ``call`` carries the graph's inputs in and its sizes out."""
        plan = program.plan
        values, call.sizes, saved = program.run_forward(call)
        ctx.program, ctx.env, ctx.inputs = program, call.env, inputs
        ctx.set_materialize_grads(False)
        # A kernel may give no tensor where its signature has one (mkldnn's workspace): None is saved like a tensor.
        tensors = [s for s, row in zip(saved, plan.saved, strict=True) if row.is_tensor]
        ctx.numbers = [None if row.is_tensor else s for s, row in zip(saved, plan.saved, strict=True)]
        ctx.versions = tuple(inputs[k]._version for k in plan.compared_inputs)
        ctx.watched = watch([values[k] for k in plan.watched_results])
        save(ctx, plan, [*tensors, *[call.inputs[i] for i in plan.kept_inputs]])
        ctx.mark_non_differentiable(*[v for k, v in enumerate(values) if k not in plan.differentiable])
        return tuple(values)

    @staticmethod
    @never_compiled
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        """Gradients of the differentiated inputs."""
        plan = ctx.program.plan
        program, given = ctx.program, [grads[k] for k in plan.differentiable]
        versions = tuple(ctx.inputs[k]._version for k in plan.compared_inputs) if ctx.inputs else ctx.versions
        if versions != ctx.versions:
            changed_since_forward(plan, ctx.versions, versions)
        check_watched(ctx.watched, plan.watched_names, lambda: read_for(program.backwards, given, ctx.env))
        saved, keep = saved_of(ctx, plan, _torch.keeps_graph(), [t is not None for t in given])
        saved.reverse()
        names = [row.name for row in plan.saved]
        named = {n: saved.pop() if v is None else v for n, v in zip(names, ctx.numbers, strict=True)}
        saved.clear()
        result = run_backward(program.backwards, ctx.inputs, named, given, ctx.env, check_of(ctx, plan))
        if not keep:
            ctx.inputs = ()
        return (None, None, *result)
