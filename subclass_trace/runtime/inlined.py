"""A region's backward for torch's own compiled autograd, which pastes the dense graph into its own instead of calling it.

Torch recognises Functions by what AOTAutograd leaves on their class (`torch_api.tape.inlined_attributes`): a prologue that
makes the graph's inputs of the saved tensors and the gradients, the graph, and an epilogue that makes the gradients of
its outputs. The engine asks each node for a key before it captures or runs a tape. That is where the choice is made, for
one backward at a time: ``ctx._forward_cls`` becomes the class with these attributes, or the one without.

A region stays one call where torch's way would lose something:

- its activations are plain references of the node (`function.save`): torch cannot take them over. From then on all
  regions save theirs through autograd, so that the next step is inlined;
- the backward is to be differentiated (``create_graph``);
- a size is no plain number (a jagged tensor's), or depends on values inside tensors;
- torch 2.11 and 2.12.

Note [Sizes in torch's graph]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
What follows the class in a node's key are its dynamic sizes: saved ones, then the region's symbols. Torch reads them in
each run and gives them to the prologue (for the tangents) and to the first inputs of the graph. The epilogue is not
given any, and a wrapper needs them to be built: the graph has the symbols among its outputs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.fx as fx

from .. import torch_api
from ..errors import TangentError
from ..subclass.context import SizeValue, map_sizes, same_context, without_outer
from ..subclass.spec import LeafSpec, SizeExpr, Spec, WrapperSpec, leaf_count, spec_leaves
from ..subclass.visit import map_spec, rebuild
from ..torch_api import tape as _door
from .backward import CompiledBackward
from .function import RegionFunction, check_watched
from .rebuild import fit_strides
from .reference import Program
from .source import EXPRESSION_GLOBALS

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
            sizes = _sizes_of(ctx, program)
            if sizes is not None:
                if program not in made:
                    made[program] = _inlined_class(function, program, leading)
                if (found := made[program]) is not None:
                    check_watched(ctx)
                    ctx.symints, ctx.opaque_objects = sizes, []
                    ctx._forward_cls = found
                    return (found._backward_cls._autograd_function_id, *sizes)  # type: ignore[attr-defined]
        elif _door.asking.ours and not hasattr(function, "program"):
            ctx._forward_cls = found = _of_one_program(function, program_of(ctx))
            return (found._backward_cls._autograd_function_id,)  # type: ignore[attr-defined]
        return (ctx._autograd_function_id,)

    function._compiled_autograd_key = staticmethod(key)  # type: ignore[method-assign]
    if _door.TORCH_CAN_INLINE and not _door.saves_for_torch and _door.torch_will_capture_tapes():
        _door.saves_for_torch.append(True)


def _may_be_inlined(ctx: Any) -> bool:
    if not _door.TORCH_CAN_INLINE or torch.is_grad_enabled():
        return False
    if not ctx.saved:
        return True
    if not _door.saves_for_torch:
        _door.saves_for_torch.append(True)
    return False


def _sizes_of(ctx: Any, program: Program) -> list[int] | None:
    """The sizes of this call, as `Sizes` takes them; None where the backward graph cannot be pasted with them."""
    if program.backwards is None or not program.backwards.compiled:
        return None
    env = getattr(ctx, "env", None) or {}
    if not program.backwards.compiled[0].holds(env):
        return None
    numbers = [n for n in getattr(ctx, "numbers", None) or () if n is not None]
    values = [*numbers, *(env[row.symbol] for row in program.plan.symbols)]
    return values if all(type(v) is int for v in values) else None


def _inlined_class(function: Function, program: Program, leading: int) -> Function | None:
    assert program.backwards is not None
    entry, sizes = program.backwards.compiled[0], Sizes(program)
    if entry.autocast:
        return None
    if entry.graph is None or entry.create_graph or not sizes.tell(entry):
        return None
    epilogue = Epilogue(entry.grads, leading, sizes)
    wrappers = True if any(isinstance(g, WrapperSpec) for g in entry.grads) else None
    graph, inputs = _own_graph(entry, sizes, wrappers is not None)
    attributes = _door.inlined_attributes(graph, Prologue(program, entry, sizes, inputs), epilogue, wrappers)
    return type(function.__name__, (function,), attributes)


def _of_one_program(function: Function, program: Program) -> Function:
    """The Function that all programs share, as one of this program alone: tapes of ours are told apart by it."""
    found = _served.get(program)
    if found is None:
        found = _served[program] = type(function.__name__, (function,), {"program": program})
    return found


_served = weakref.WeakKeyDictionary[Program, Function]()


class Sizes:
    """What follows the class in a node's key, and the sizes that are computed from it, numbers or torch's SymInts.

    Attributes:
        keys: ("saved", name) of each saved size, ("size", symbol) of each symbol.
    """

    def __init__(self, program: Program) -> None:
        numbers = [("saved", row.name) for row in program.plan.saved if not row.is_tensor]
        self.keys: list[tuple[str, Any]] = [*numbers, *(("size", row.symbol) for row in program.plan.symbols)]
        self.symbols = [row.symbol for row in program.plan.symbols]
        self._names = {symbol: f"s{k}" for k, symbol in enumerate(self.symbols)}
        self._functions: dict[Any, Callable[..., Any]] = {}

    def tell(self, entry: CompiledBackward) -> bool:
        """Are all sizes of the tangents and of the gradients computed from the symbols?"""
        found: list[Any] = []

        def note(size: Any) -> Any:
            found.append(size)
            return size

        for spec in (*entry.tangents, *entry.grads):
            if spec is not None:
                map_spec(spec, lambda sizes: list(map(note, sizes)), lambda c: map_sizes(c, note))
        rows = [n for n in found if isinstance(n, SizeValue)]
        return all(isinstance(n, SizeExpr) and n.expr.free_symbols <= self._names.keys() for n in rows)

    def at(self, values: Sequence[Any]) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """Maps recorded sizes to those of a run; ``values`` are those of the symbols."""
        return lambda sizes: tuple([self._value(n, values) for n in sizes])

    def _value(self, size: Any, values: Sequence[Any]) -> Any:
        if not isinstance(size, SizeExpr):
            return size
        function = self._functions.get(size.expr)
        if function is None:  # a SymInt cannot be put into an expression: Python computes with it
            source = f"lambda {', '.join(self._names.values())}: {torch_api.expression_source(size.expr, self._names)}"
            function = self._functions[size.expr] = eval(source, dict(EXPRESSION_GLOBALS))
        return function(*values)


def _own_graph(
    entry: CompiledBackward, sizes: Sizes, with_symbols: bool
) -> tuple[fx.GraphModule, list[tuple[str, Any]]]:
    """A copy of the backward graph, which torch changes, with all sizes as its first inputs; and what its inputs are.

    ``with_symbols``: the values of symbols are outputs as well.
    """
    module = entry.graph if isinstance(entry.graph, fx.GraphModule) else entry.graph.module
    graph = fx.Graph()
    given: dict[Any, fx.Node] = {}
    for kind, key in sizes.keys:
        given[kind, key] = graph.placeholder(f"size_{len(given)}")
    old = dict(zip(module.graph.find_nodes(op="placeholder"), entry.inputs, strict=True))
    inputs = [*sizes.keys, *(key for key in entry.inputs if key not in given)]
    new = {n: given[key] if key in given else graph.node_copy(n) for n, key in old.items()}
    outputs: Any = graph.graph_copy(module.graph, new)
    symbols = [given["size", symbol] for symbol in sizes.symbols] if with_symbols else []
    graph.output([*outputs, *symbols])
    return torch_api.graph_module(module, graph), inputs


class Prologue:
    """From saved tensors and gradients to the inputs of the backward graph."""

    def __init__(self, program: Program, entry: CompiledBackward, sizes: Sizes, inputs: list[tuple[str, Any]]) -> None:
        self.tangents, self.differentiable = entry.tangents, program.plan.differentiable
        self.sizes, self.inputs = sizes, inputs[len(sizes.keys) :]
        rows = [r for r in program.plan.saved if r.is_tensor]
        self.place = {row.name: k for k, row in enumerate(rows)}

    def __call__(self, saved: Sequence[Any], sizes: Any, objects: Any, grads: Sequence[Any]) -> list[Any]:
        """The inputs in order.

        Raises:
            TangentError: a gradient is of another kind than the one that the graph was traced for.
        """
        leaves: list[Any] = []
        now = self.sizes.at(sizes[len(sizes) - len(self.sizes.symbols) :])
        for k, spec in zip(self.differentiable, self.tangents, strict=True):
            if spec is not None:
                leaves += _leaves(grads[k], map_spec(spec, now, lambda c: map_sizes(c, lambda n: now((n,))[0])), k)
        return [*sizes, *(leaves[key] if kind == "tangent" else saved[self.place[key]] for kind, key in self.inputs)]


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
        now = without_outer(context, tuple(value.shape), tuple(value.stride()))
        if tuple(names) != spec.names or not same_context(now, without_outer(spec.context, spec.size, spec.stride)):
            raise _Other(f"a {spec.cls.__name__} with {names} and the context {context}")
        for name, inner in zip(names, spec.inners, strict=True):
            yield from _taken_apart(getattr(value, name), inner)
    elif isinstance(spec, LeafSpec):
        if hasattr(value, "__tensor_flatten__") or tuple(value.shape) != spec.size or value.dtype != spec.dtype:
            raise _Other(f"a {type(value).__name__} of size {tuple(value.shape)} and {value.dtype}")
        yield fit_strides(value, spec.stride)


class Epilogue:
    """From the outputs of the backward graph to one gradient for each argument of the Function."""

    def __init__(self, specs: Sequence[Spec | None], leading: int, sizes: Sizes) -> None:
        self.specs, self.leading, self.sizes = specs, leading, sizes

    def __call__(self, outs: Sequence[Any], make_subclass_override: Any = None) -> tuple[Any, ...]:
        """``make_subclass_override(recipe, is_runtime, leaves)``: how torch's capture makes a wrapper."""
        symbols = list(outs[len(outs) - len(self.sizes.symbols) :])
        flat = iter(outs)
        grads: list[Any] = []
        for spec in self.specs:
            if spec is None:
                grads.append(None)
            elif isinstance(spec, LeafSpec):
                grads.append(next(flat))
            else:
                leaves = [*(next(flat) for _ in range(leaf_count(spec))), *symbols]
                recipe = Recipe(spec, self.sizes)
                grads.append(
                    recipe.creation_fn(leaves, is_runtime=True)
                    if make_subclass_override is None
                    else make_subclass_override(recipe, True, leaves)
                )
        return (*[None] * self.leading, *grads)


class Recipe:
    """How to make a wrapper, in the form in which torch asks for it."""

    def __init__(self, spec: Spec, sizes: Sizes) -> None:
        self.spec, self.sizes = spec, sizes

    def creation_fn(self, values: Sequence[Any], *, is_runtime: bool) -> Any:
        """The wrapper over dense leaves, which the values of symbols follow."""
        leaves = leaf_count(self.spec)
        return rebuild(self.spec, iter(values[:leaves]), self.sizes.at(values[leaves:]))


make_inlinable(RegionFunction, lambda ctx: ctx.program, 2)
