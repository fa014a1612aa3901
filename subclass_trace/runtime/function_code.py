"""Generated ``autograd.Function`` of one specialization: straight-line forward and backward.

The straight-line backward is written when tangents have come, for such ones. Every other case (another type or context, a
missing tangent, double backward) goes to `function.run_backward`, as does the first call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import torch_api
from ..plan import Plan
from ..subclass.flatten import flatten, leaves_of
from ..subclass.spec import SizeExpr, Spec, WrapperSpec, leaf_count, sizes_in, spec_leaves
from ..subclass.template import Examples
from .backward import CompiledBackward
from .emit import (
    Unwrapper,
    Wrapper,
    detached_outputs,
    dynamic_checks,
    expression_code,
    graph_call,
    sized_checks,
    sizes_code,
    sizes_of_outputs,
    tuple_code,
    wrapped,
)
from .finish import Program
from .function import check_watched, edges, let_go, run_backward, saved_of, watch, written_since
from .guards import Ambient
from .rebuild import fit_strides, is_lazy
from .sizes import Env
from .source import Source

Tensor = torch.Tensor


def needs_call(plan: Plan) -> bool:
    """Does `apply` take the `Call`, too?"""
    beside = set(plan.gradients.watched_inputs) - set(plan.gradients.differentiated)
    return bool(
        plan.inputs.symbols
        or plan.inputs.lent
        or beside
        or plan.results.size_outputs
        or any(row.kind != "value" for row in plan.results.shared.values())
    )


class FastBackward:
    """The straight-line backward of a specialization: for tangents of the kind that came first.

    Others that come twice in a row get it instead.
    """

    def __init__(self, program: Program, write: Callable[[CompiledBackward, Callable[..., bool]], Callable[..., Any]]):
        self.program, self.write = program, write
        self.path: Callable[..., Any] | None = None
        self._last: CompiledBackward | None = None

    def slow(self, ctx: Any, saved: list[Any], grads: tuple[Tensor | None, ...]) -> tuple[Any, ...]:
        """The general backward."""
        plan, backwards = self.program.plan, self.program.backwards
        assert backwards is not None
        values = saved[::-1]
        saved.clear()
        numbers = getattr(ctx, "numbers", None) or (None,) * len(plan.gradients.saved)
        named = {
            row.name: values.pop() if row.is_tensor else n for row, n in zip(plan.gradients.saved, numbers, strict=True)
        }
        tangents = [grads[k] for k in plan.gradients.differentiable]
        result = run_backward(backwards, ctx, named, tangents)
        if not torch.is_grad_enabled() and not any(map(_is_odd, tangents)):
            self._arm(tangents, getattr(ctx, "env", None) or {})
        return (None, None, *result) if needs_call(plan) else (None, *result)

    def _arm(self, tangents: Sequence[Tensor | None], env: Env) -> None:
        assert self.program.backwards is not None
        entry = self.program.backwards.served([None if t is None else flatten(t)[1] for t in tangents], env)
        wanted = entry is not None and not entry.autocast and (self.path is None or entry is self._last)
        if entry is not None and wanted and not _unknown_sizes(self.program.plan, entry):
            check = _tangent_check(entry, tangents)
            self.path = self.path if check is None else self.write(entry, check)
        self._last = entry


def _unknown_sizes(plan: Plan, entry: CompiledBackward) -> set[Any]:
    """Symbols that nothing but the tangents tells."""
    known = {row.symbol for row in plan.inputs.symbols} | {symbol for symbol, _ in plan.results.unbacked}
    sizes = (n for spec in (*entry.tangents, *entry.grads) if spec is not None for n in sizes_in(spec))
    return {s for n in sizes if isinstance(n, SizeExpr) for s in n.expr.free_symbols} - known


def _tangent_check(entry: CompiledBackward, tangents: Sequence[Tensor | None]) -> Callable[..., bool] | None:
    """Compares tangents and their inner tensors with these; None where two of them are one tensor."""
    rows: list[tuple[Tensor, Spec]] = []
    for t, spec in zip(tangents, entry.tangents, strict=True):
        if t is not None and spec is not None:
            rows.append((t, spec))
            rows += zip(leaves_of(t), spec_leaves(spec), strict=True) if isinstance(spec, WrapperSpec) else ()
    tensors = [t for t, _ in rows if not t.is_nested]
    if len(set(map(id, tensors))) != len(tensors) or any(t.requires_grad for t in tensors):
        return None
    sizes = [[n if type(n) is int else None for n in s.size] for t, s in rows if not t.is_nested]  # type: ignore[union-attr]
    return torch_api.tensor_guard(tensors, sizes, [[None] * t.dim() for t in tensors])


class FunctionEmitter:
    """Writes the two methods and makes the class."""

    def __init__(self, program: Program, ambient: Ambient, examples: Examples) -> None:
        assert program.backwards is not None
        self.program, self.plan, self.ambient, self.examples = program, program.plan, ambient, examples
        self.takes_call = needs_call(self.plan)

    def emit(self) -> type[torch.autograd.Function]:
        """The Function: ``apply(graph inputs, *differentiated inputs)``, after the first the `Call` if `needs_call`."""
        forward, backward = self._forward(), self._backward(FastBackward(self.program, self._path))
        members: dict[str, Any] = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        members["program"] = self.program  # compiled autograd finds the backward graph there
        function = type("RegionFunction", (torch.autograd.Function,), members)
        torch_api.call_backward_directly(function)
        return function

    # ---------------------------------------------------------------- forward
    def _forward(self) -> Callable[..., Any]:
        s, plan = Source(), self.plan
        s.bind("graph", self.program.forward)
        s.line(f"def forward(ctx, p, {'call, ' if self.takes_call else ''}*inputs):")
        s.depth = 1
        s.line(graph_call(s, "o = graph(p)", self.ambient.autocast))
        symbols = {row.symbol: str(row.symbol) for row in plan.inputs.symbols}
        for symbol, name in symbols.items():
            s.line(f"{name} = call.env[{s.constant(symbol, 'symbol')}]")
        symbols |= sizes_of_outputs(s, plan)
        flat = detached_outputs(s, plan, [f"call.leaves[{k}]" for k in range(plan.inputs.leaf_count)])
        self._save(s, plan.results.forward_leaves + plan.results.size_outputs)
        s.line(f"ctx.edges = {s.bind('edges', edges)}(inputs)")
        if symbols:
            s.line("ctx.env = call.env")
        wrapper = Wrapper(s, self.examples, symbols, "call.env" if self.takes_call else "{}")
        values = wrapped(wrapper, plan, iter(flat))
        spent = {*plan.gradients.differentiable, *plan.mutations.spent_values}
        fixed = [f"v{k}" for k in range(len(values)) if k not in spent]
        for k, value in enumerate(values):
            s.line(f"v{k} = {value}")
        self._watch(s)
        s.line("ctx.set_materialize_grads(False)")
        if fixed:
            s.line(f"ctx.mark_non_differentiable({', '.join(fixed)})")
        names = [f"v{k}" for k in range(len(values))]
        s.line(f"return {names[0]}" if len(names) == 1 else f"return {', '.join(names)}")
        return s.build("forward", "forward")

    def _save(self, s: Source, first: int) -> None:
        """Keep the saved activations, as `function.saved_of` does it: see Note [What is saved]."""
        plan = self.plan
        places = [k for k, row in enumerate(plan.gradients.saved) if row.is_tensor]
        tensors = [f"o[{first + k}]" for k in places]
        if len(tensors) != len(plan.gradients.saved):
            numbers = ["None" if row.is_tensor else f"o[{first + k}]" for k, row in enumerate(plan.gradients.saved)]
            s.line(f"ctx.numbers = ({tuple_code(numbers)})")
        if not tensors:
            s.line("ctx.saved = []")
            return
        kept = [
            f"{t}.detach()" if k in plan.gradients.saved_results else t for k, t in zip(places, tensors, strict=True)
        ]
        s.bind("saved_tensor_hooks_active", torch_api.saved_tensor_hooks_active)
        s.line("ctx.saved = None")
        s.line("if not saved_tensor_hooks_active():")
        s.line("    try:")
        s.line(f"        ctx.versions = ({_versions(tensors)})")
        s.line(f"        ctx.saved = [{', '.join(kept)}]")
        s.line("    except (RuntimeError, AttributeError): pass  # an inference tensor, or None from a kernel")
        s.line(f"if ctx.saved is None: ctx.save_for_backward({', '.join(tensors)})")

    def _watch(self, s: Source) -> None:
        """Note the versions of wrappers of which a leaf is saved."""
        plan = self.plan
        place = {number: f"inputs[{k}]" for k, number in enumerate(plan.gradients.differentiated)}
        names = [place.get(i, f"call.inputs[{i}]") for i in plan.gradients.watched_inputs]
        names += [f"v{k}" for k in plan.gradients.watched_values]
        s.line(f"ctx.watched = {s.bind('watch', watch)}(({tuple_code(names)}))" if names else "ctx.watched = ()")

    def _unsave(self, s: Source) -> None:
        """``saved``: the saved activations as a list, compared with the forward's versions and released."""
        plan = self.plan
        count = sum(row.is_tensor for row in plan.gradients.saved)
        if not count:
            s.line("saved = []")
            return
        names, known = [f"saved[{k}]" for k in range(count)], s.constant(plan, "plan")
        s.bind("keeps", torch_api.keeps_graph_now)
        s.line("saved = ctx.saved")
        s.line(f"if saved is None: saved = {s.bind('saved_of', saved_of)}(ctx, {known})")
        s.line("else:")
        s.line(
            f"    if ({_versions(names)}) != ctx.versions: raise {s.bind('written_since', written_since)}(ctx, {known})"
        )
        s.line(f"    if ctx.watched: {s.bind('check_watched', check_watched)}(ctx)")
        s.line("    if keeps(): saved = [*saved]")
        s.line(f"    else: {s.bind('let_go', let_go)}(ctx)  # a second backward is for saved_tensors to refuse")

    # ---------------------------------------------------------------- backward
    def _backward(self, fast: FastBackward) -> Callable[..., Any]:
        s = Source()
        s.bind("fast", fast)
        names = "".join(f"g{k}, " for k in range(len(self.plan.results.values)))
        s.line(f"def backward(ctx, {names}):")
        s.depth = 1
        self._unsave(s)
        s.line("if fast.path is not None:")
        s.line(f"    grads = fast.path(ctx, saved, {names})")
        s.line("    if grads is not None: return grads")
        s.line(f"return fast.slow(ctx, saved, ({names}))")
        return s.build("backward", "backward")

    def _path(self, entry: CompiledBackward, check: Callable[..., bool]) -> Callable[..., Any]:
        """``(ctx, saved, *tangents)`` -> gradients, or None where the tangents are not those of ``entry``."""
        s, slow = Source(), "return None"
        s.line(f"def backward(ctx, saved, {''.join(f'g{k}, ' for k in range(len(self.plan.results.values)))}):")
        s.depth = 1
        symbols = self._conditions(s, entry, slow)
        tangents = [(f"g{k}", t) for k, t in zip(self.plan.gradients.differentiable, entry.tangents, strict=True)]
        unwrapper = Unwrapper(
            s, slow, {g: self.examples.make(t) for g, t in tangents if t is not None and _has_shortcut(t)}
        )
        leaves: list[str] = []
        s.line("try:")
        s.depth = 2
        for name, spec in tangents:
            if spec is None:
                s.line(f"if {name} is not None: {slow}")
            else:
                leaves += unwrapper.unwrap(name, spec)
        s.line("pass")
        s.depth = 1
        s.line(f"except AttributeError: {slow}")
        s.bind("check", check)
        env = "ctx.env" if symbols else "{}"
        checks = [f"check({', '.join(self._checked(entry.tangents, leaves))})"]
        for name, spec in unwrapper.checks.tensors:
            checks += dynamic_checks(name, spec, symbols, strides=False)
        checks += sized_checks(s, unwrapper.checks, env)
        s.line(f"if not ({' and '.join(checks)}): {slow}")
        # Under names of their own: a dense leaf may be brought to other strides, and its name goes before the graph runs.
        handed = {source: f"h{k}" for k, source in enumerate(entry.passed) if source and source[0] == "tangent"}
        for (_, place), name in handed.items():
            s.line(f"{name} = {tangents[place][0]}")
        self._fit(s, entry, leaves, symbols)
        args = self._arguments(entry, leaves, symbols)
        s.line(f"p = [{', '.join(args)}]")
        s.line("saved.clear()")  # who called holds the list
        s.line(f"del {', '.join(dict.fromkeys([*leaves, *(name for name, _ in tangents)]))}")
        s.bind("graph", entry.call)
        s.line("r = graph(p)")
        parts = iter([f"r[{k}]" for k in range(sum(leaf_count(g) for g in entry.grads if g is not None))])
        wrapper = Wrapper(s, self.examples, symbols, env)
        grads: list[str] = []
        for made, source in zip(entry.grads, entry.passed, strict=True):
            own = [next(parts) for _ in range(0 if made is None else leaf_count(made))]
            if source is not None:
                grads.append(grads[source[1]] if source[0] == "gradient" else handed[source])
            else:
                grads.append("None" if made is None else wrapper.wrap(made, iter(own)))
        s.line(f"return None, {'None, ' if self.takes_call else ''}{tuple_code(grads)}")
        return s.build("backward", "backward")

    def _conditions(self, s: Source, entry: CompiledBackward, slow: str) -> dict[Any, str]:
        """Emit what is compared beside the tangents; returns the local names of symbols."""
        s.bind("grad_enabled", torch_api.grad_enabled)
        s.bind("any_autocast", torch_api.any_autocast)
        state = ["grad_enabled()", "any_autocast()"]
        if entry.guards is not None:
            state.append(f"not {s.constant(entry.guards.still_holds, 'state')}()")
        if entry.dtensor is not None:
            state.append(
                torch_api.other_dtensor_modes_code(s.bind("dtensor", torch_api.dtensor_dispatcher()), entry.dtensor)
            )
        s.line(f"if {' or '.join(state)}: {slow}")
        symbols = {row.symbol: str(row.symbol) for row in self.plan.inputs.symbols}
        symbols |= {symbol: f"z_{symbol}" for symbol, _ in self.plan.results.unbacked}
        for symbol, name in symbols.items():
            s.line(f"{name} = ctx.env[{s.constant(symbol, 'symbol')}]")
        if entry.conditions:
            holds = " and ".join(f"({expression_code(c, symbols)})" for c in entry.conditions)
            s.line("try:")
            s.line(f"    if not ({holds}): {slow}")
            s.line(f"except ArithmeticError: {slow}")
        return symbols

    def _fit(self, s: Source, entry: CompiledBackward, leaves: Sequence[str], symbols: dict[Any, str]) -> None:
        """Emit bringing the leaves of the tangents to the strides that the graph was traced for."""
        wanted = [leaf.stride for spec in entry.tangents if spec is not None for leaf in spec_leaves(spec)]
        for name, stride in zip(leaves, wanted, strict=True):
            if stride:
                code = sizes_code(stride, symbols)
                s.line(f"if {name}.stride() != {code}: {name} = {s.bind('fit_strides', fit_strides)}({name}, {code})")

    def _arguments(self, entry: CompiledBackward, leaves: Sequence[str], symbols: dict[Any, str]) -> list[str]:
        """The inputs of the backward graph."""
        number = {row.name: k for k, row in enumerate(r for r in self.plan.gradients.saved if r.is_tensor)}
        given: dict[tuple[str, Any], str] = {
            ("saved", row.name): f"ctx.numbers[{k}]"
            for k, row in enumerate(self.plan.gradients.saved)
            if not row.is_tensor
        }
        given |= {("saved", name): f"saved[{k}]" for name, k in number.items()}
        given |= {("size", symbol): name for symbol, name in symbols.items()}
        given |= {("tangent", k): name for k, name in enumerate(leaves)}
        args = [given[key] for key in entry.inputs]
        if args[: len(number)] == [f"saved[{k}]" for k in range(len(number))]:
            args[: len(number)] = ["*saved"]
        return args

    def _checked(self, tangents: Any, leaves: list[str]) -> list[str]:
        """The names that `_tangent_check` takes, in its order."""
        rows, parts = [], iter(leaves)
        for k, spec in zip(self.plan.gradients.differentiable, tangents, strict=True):
            own = [next(parts) for _ in range(0 if spec is None else leaf_count(spec))]
            outer = isinstance(spec, WrapperSpec) and spec.layout is not torch.jagged
            rows += [f"g{k}", *own] if outer else own
        return rows


def _is_odd(t: Tensor | None) -> bool:
    """A tangent that only `run_backward` knows how to take."""
    return t is not None and (torch_api.is_batched(t) or any(map(is_lazy, leaves_of(t))))


def _has_shortcut(spec: Spec) -> bool:
    """Does one attribute tell the context of a value (DTensor's ``_spec``)?"""
    return isinstance(spec, WrapperSpec) and torch_api.context_shortcut(spec.cls) is not None


def _versions(names: Sequence[str]) -> str:
    return tuple_code([f"{n}._version" for n in names])
