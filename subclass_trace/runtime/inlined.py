"""A region's backward for torch's own compiled autograd, which pastes the dense graph into its own instead of calling it.

Torch recognises Functions by what AOTAutograd leaves on their class (`_torch.tape.inlined_attributes`): a prologue that
makes the graph's inputs of the saved tensors and the gradients, the graph, and an epilogue that makes the gradients of
its outputs. The engine asks each node for a key before it captures or runs a tape. That is where the choice is made, for
one backward at a time: ``ctx._forward_cls`` becomes the class with these attributes, or the one without.

A region stays one call where torch's way would lose something:

- its activations are plain references of the node (`function_code.kept_on_node`), which torch cannot take over. From
  then on all regions save theirs through autograd, so that the next step is inlined;
- sizes are symbols, or the backward is to be differentiated (``create_graph``);
- torch 2.11 and 2.12.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.fx as fx

from .. import _torch
from .._torch import tape as _door
from ..errors import TangentError
from ..subclass.context import same_context
from ..subclass.spec import LeafSpec, Spec, WrapperSpec, leaf_count, spec_leaves
from ..subclass.visit import rebuild
from .backward import CompiledBackward
from .function import RegionFunction, changed_since_forward
from .rebuild import fit_strides
from .reference import Program

Function = type[torch.autograd.Function]


def make_inlinable(function: Function, program_of: Callable[[Any], Program], leading: int) -> None:
    """Let torch's compiled autograd paste the backwards of a Function that runs regions.

    Args:
        program_of: what a ctx is a forward of.
        leading: how many arguments without a gradient its ``apply`` takes first.
    """
    made = weakref.WeakKeyDictionary[Program, Function | None]()

    def key(ctx: Any) -> tuple[int, ...]:
        ctx._forward_cls = function
        if _door.torch_captures_tapes() and _may_be_inlined(ctx):
            program = program_of(ctx)
            if program not in made:
                made[program] = _inlined_class(function, program, leading)
            if (found := made[program]) is not None:
                _hand_over(ctx, program)
                ctx._forward_cls = found
                return (found._backward_cls._autograd_function_id,)  # type: ignore[attr-defined]
        return (ctx._autograd_function_id,)

    function._compiled_autograd_key = staticmethod(key)  # type: ignore[method-assign]
    if _door.TORCH_CAN_INLINE and not _door.saves_for_torch and _door.torch_will_capture_tapes():
        _door.saves_for_torch.append(True)


def _may_be_inlined(ctx: Any) -> bool:
    if not _door.TORCH_CAN_INLINE or torch.is_grad_enabled():
        return False
    if getattr(ctx, "kept", None) is None:
        return not any(n is not None for n in getattr(ctx, "numbers", None) or ())
    if not _door.saves_for_torch:
        _door.saves_for_torch.append(True)
    return False


def _hand_over(ctx: Any, program: Program) -> None:
    """What the backward does first with its node, and what torch wants to find there."""
    compared = program.plan.compared_inputs
    if ctx.inputs and tuple([ctx.inputs[k]._version for k in compared]) != ctx.versions:
        changed_since_forward()
    if not _torch.keeps_graph():
        ctx.inputs = ()
    ctx.symints, ctx.opaque_objects = [], []


def _inlined_class(function: Function, program: Program, leading: int) -> Function | None:
    backwards = program.backwards
    if backwards is None or not backwards.compiled or program.plan.symbols:
        return None
    entry = backwards.compiled[0]
    if entry.graph is None or entry.create_graph or entry.contexts:
        return None
    epilogue = Epilogue(entry.grads, leading)
    wrappers = True if any(isinstance(g, WrapperSpec) for g in entry.grads) else None
    attributes = _door.inlined_attributes(_own_graph(entry), Prologue(program, entry), epilogue, wrappers)
    return type(function.__name__, (function,), attributes)


def _own_graph(entry: CompiledBackward) -> fx.GraphModule:
    """A copy of the backward graph: torch changes the graph that it is given."""
    module = entry.graph if isinstance(entry.graph, fx.GraphModule) else entry.graph.module
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return _torch.graph_module(module, graph)


class Prologue:
    """From saved tensors and gradients to the inputs of the backward graph."""

    def __init__(self, program: Program, entry: CompiledBackward) -> None:
        self.entry, self.differentiable = entry, program.plan.differentiable
        rows = [r for r in program.plan.saved if r.is_tensor]
        self.place = {row.name: k for k, row in enumerate(rows)}

    def __call__(self, saved: Sequence[Any], sizes: Any, objects: Any, grads: Sequence[Any]) -> list[Any]:
        """The inputs in order.

        Raises:
            TangentError: a gradient is of another kind than the one that the graph was traced for.
        """
        leaves: list[Any] = []
        for k, spec in zip(self.differentiable, self.entry.tangents, strict=True):
            if spec is not None:
                leaves += _leaves(grads[k], spec, k)
        return [leaves[key] if kind == "tangent" else saved[self.place[key]] for kind, key in self.entry.inputs]


def _leaves(grad: Any, spec: Spec, number: int) -> list[Any]:
    if grad is None:
        wanted = list(spec_leaves(spec))
        return [torch.zeros(s.size, dtype=s.dtype, device=s.device) for s in wanted]
    try:
        return list(_taken_apart(grad, spec))
    except _Other as other:
        raise TangentError(
            "the gradient of a region's result is of another kind than the backward that was pasted into torch's graph",
            path=f"gradient of result {number}",
            expected=str(spec),
            got=str(other),
            fix="run this backward without torch's compiled autograd, or with subclass_trace.compiled_autograd",
        ) from None


class _Other(Exception):
    """A gradient of another kind."""


def _taken_apart(value: Any, spec: Spec) -> Iterator[Any]:
    """Not by the visitor: torch's compiler calls the prologue on its own tensors, which nobody else may look into."""
    if isinstance(spec, WrapperSpec):
        if type(value) is not spec.cls:
            raise _Other(f"an instance of {type(value).__name__}")
        names, context = value.__tensor_flatten__()  # type: ignore[attr-defined]
        if tuple(names) != spec.names or not same_context(context, spec.context):
            raise _Other(f"a {spec.cls.__name__} with {names} and the context {context}")
        for name, inner in zip(names, spec.inners, strict=True):
            yield from _taken_apart(getattr(value, name), inner)
    elif isinstance(spec, LeafSpec):
        if hasattr(value, "__tensor_flatten__") or tuple(value.shape) != spec.size or value.dtype != spec.dtype:
            raise _Other(f"a {type(value).__name__} of size {tuple(value.shape)} and {value.dtype}")
        yield fit_strides(value, spec.stride)


class Epilogue:
    """From the outputs of the backward graph to one gradient for each argument of the Function."""

    def __init__(self, specs: Sequence[Spec | None], leading: int) -> None:
        self.specs, self.leading = specs, leading

    def __call__(self, outs: Sequence[Any], make_subclass_override: Any = None) -> tuple[Any, ...]:
        """``make_subclass_override(recipe, is_runtime, leaves)``: how torch's capture makes a wrapper."""
        flat = iter(outs)
        grads: list[Any] = []
        for spec in self.specs:
            if spec is None:
                grads.append(None)
            elif isinstance(spec, LeafSpec):
                grads.append(next(flat))
            else:
                leaves = [next(flat) for _ in range(leaf_count(spec))]
                recipe = Recipe(spec)
                grads.append(
                    recipe.creation_fn(leaves, is_runtime=True)
                    if make_subclass_override is None
                    else make_subclass_override(recipe, True, leaves)
                )
        return (*[None] * self.leading, *grads)


class Recipe:
    """How to make a wrapper, in the form in which torch asks for it."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec

    def creation_fn(self, leaves: Sequence[Any], *, is_runtime: bool) -> Any:
        """The wrapper over these dense leaves."""
        return rebuild(self.spec, iter(leaves))


make_inlinable(RegionFunction, lambda ctx: ctx.program, 2)
