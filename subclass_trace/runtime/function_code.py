"""Generated ``autograd.Function`` of one specialization: straight-line forward and backward.

The straight-line backward of a `CompiledBackward` is written when it has run once, by
`function.run_backward`, for such tangents. What is rare (double backward, batched tangents) is run
there in each call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from .. import policy
from ..plan import Plan
from ..subclass.flatten import leaves_of
from ..subclass.spec import SizeExpr, leaf_count, sizes_in, spec_leaves
from ..subclass.template import Examples
from ..subclass.visit import VALUE
from ..torch_api.autograd import call_backward_directly, is_batched, is_last_backward, is_leaf
from ..torch_api.dtensor_modes import dtensor_dispatcher, other_dtensor_modes_code
from ..torch_api.kinds import is_lazy
from ..torch_api.modes import any_autocast, grad_enabled
from ..torch_api.symbols import expression_source
from .backward import CompiledBackward, OnFirstUse
from .emit import (
    Unwrapper,
    Wrapper,
    detached_outputs,
    graph_call,
    sizes_code,
    sizes_of_outputs,
    tensor_checks,
    tuple_code,
    wrapped,
)
from .function import check_watched, edges, run_backward, watch, with_reason
from .guards import Ambient
from .program import Program
from .rebuild import fit_strides
from .source import Code
from .state_code import tried

Tensor = torch.Tensor


def needs_call(plan: Plan) -> bool:
    """Does `apply` take the `Call`, too?"""
    besides = set(plan.gradients.watched_inputs) - set(plan.gradients.differentiated)
    return bool(
        plan.inputs.symbols
        or besides
        or plan.results.size_outputs
        or any(row.kind != "value" for row in plan.results.shared.values())
    )


class FunctionEmitter:
    """Writes the two methods and makes the class."""

    def __init__(self, program: Program, ambient: Ambient, examples: Examples, quiet: bool) -> None:
        """``quiet``: no class is asked for an attribute of the inputs that require grad."""
        self.quiet = quiet
        assert program.backwards is not None
        self.program, self.plan, self.ambient, self.examples = (
            program,
            program.plan,
            ambient,
            examples,
        )
        self.backwards = program.backwards
        self.takes_call = needs_call(self.plan) or self.backwards.keeps_call
        self.paths: tuple[Callable[..., Any], ...] = ()
        self._known: list[CompiledBackward] = []  # those that have a path, or can have none

    def emit(self) -> type[torch.autograd.Function]:
        """The Function: ``apply(graph inputs, *differentiated inputs)``, after the first the `Call`
        if `needs_call`."""
        members: dict[str, Any] = {
            "forward": staticmethod(self._forward()),
            "backward": staticmethod(self._backward()),
        }
        members["program"] = self.program  # compiled autograd finds the backward graph there
        function = type("RegionFunction", (torch.autograd.Function,), members)
        call_backward_directly(function)
        return function

    # ---- forward
    def _forward(self) -> Callable[..., Any]:
        s, plan = Code(), self.plan
        s.bind("graph", self.program.forward)
        s.line(f"def forward(ctx, p, {'call, ' if self.takes_call else ''}*inputs):")
        s.depth = 1
        s.line(graph_call(s, "o = graph(p)", self.ambient.autocast))
        symbols = {row.symbol: str(row.symbol) for row in plan.inputs.symbols}
        for symbol, name in symbols.items():
            s.line(f"{name} = call.env[{s.constant(symbol, 'symbol')}]")
        symbols |= sizes_of_outputs(s, plan)
        flat = detached_outputs(
            s, plan, [f"call.leaves[{k}]" for k in range(plan.inputs.leaf_count)]
        )
        self._save(s, plan.results.forward_leaves + plan.results.size_outputs)
        found = f"{s.bind('edges', edges)}(inputs)"
        if self.quiet:
            none = s.constant((None,) * len(plan.gradients.differentiated))
            found = f"{found} if False in map({s.bind('is_leaf', is_leaf)}, inputs) else {none}"
        s.line(f"ctx.edges = {found}")
        if symbols:
            s.line("ctx.env = call.env")
        if self.backwards.keeps_call:
            s.line("ctx.call = call.arguments")
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

    def _save(self, s: Code, first: int) -> None:
        rows = self.plan.gradients.saved
        outputs = [f"o[{first + k}]" for k in range(len(rows))]
        numbers = ["None" if row.is_tensor else o for row, o in zip(rows, outputs, strict=True)]
        tensors = [o for row, o in zip(rows, outputs, strict=True) if row.is_tensor]
        if len(tensors) < len(rows):
            s.line(f"ctx.numbers = ({tuple_code(numbers)})")
        if tensors:
            s.line(f"ctx.save_for_backward({', '.join(tensors)})")

    def _watch(self, s: Code) -> None:
        """Note the versions of wrappers of which a leaf is saved."""
        plan = self.plan
        place = {number: f"inputs[{k}]" for k, number in enumerate(plan.gradients.differentiated)}
        names = [place.get(i, f"call.inputs[{i}]") for i in plan.gradients.watched_inputs]
        names += [f"v{k}" for k in plan.gradients.watched_values]
        s.line(
            f"ctx.watched = {s.bind('watch', watch)}(({tuple_code(names)}))"
            if names
            else "ctx.watched = ()"
        )

    def _check_watched(self, s: Code) -> None:
        """Compare these versions. A wrapper with a reference to it cannot be swapped
        (``module.half()``), so they go with what autograd has saved."""
        gradients = self.plan.gradients
        if not gradients.watched_inputs and not gradients.watched_values:
            return
        s.bind("check_watched", check_watched)
        s.line("for t, version in ctx.watched:")
        s.line("    if (t := t()) is not None and t._version != version: check_watched(ctx)")
        s.line("t = None")
        s.line(f"if {s.bind('is_last_backward', is_last_backward)}(): ctx.watched = ()")

    # ---- backward
    def _backward(self) -> Callable[..., Any]:
        s = Code()
        names = "".join(f"g{k}, " for k in range(len(self.plan.results.values)))
        s.line(f"def backward(ctx, {names}):")
        s.depth = 1
        if any(row.is_tensor for row in self.plan.gradients.saved):
            s.line("try: saved = list(ctx.saved_tensors)")
            s.line(
                f"except RuntimeError as error: raise {s.bind('with_reason', with_reason)}(error)"
            )
            s.line("ctx.maybe_clear_saved_tensors()  # unless the graph is retained")
        else:
            s.line("saved = []")
        self._check_watched(s)
        s.line(f"for path in {s.bind('emitter', self)}.paths:")
        s.line(f"    grads = path(ctx, saved, {names})")
        s.line("    if grads is not None: return grads")
        s.line(f"return emitter.slow(ctx, saved, ({names}))")
        return s.build("backward", "backward")

    def slow(self, ctx: Any, saved: list[Any], grads: tuple[Tensor | None, ...]) -> tuple[Any, ...]:
        """The general backward."""
        rows = self.plan.gradients.saved
        values, numbers = saved[::-1], getattr(ctx, "numbers", None) or (None,) * len(rows)
        saved.clear()
        named = {
            row.name: values.pop() if row.is_tensor else n
            for row, n in zip(rows, numbers, strict=True)
        }
        tangents = [grads[k] for k in self.plan.gradients.differentiable]
        result, entry = run_backward(self.backwards, ctx, named, tangents)
        if entry is not None and entry not in self._known and len(self.paths) < policy.POLICY.paths:
            odd = any(
                t is not None and (is_batched(t) or any(map(is_lazy, leaves_of(t))))
                for t in tangents
            )
            if not odd and not entry.when.create_graph and not entry.when.autocast:
                self._known.append(entry)
                if not self._unknown_sizes(entry):
                    self.paths = (*self.paths, self._path(entry, tangents))
        return (None, None, *result) if self.takes_call else (None, *result)

    def _symbols(self) -> dict[Any, str]:
        """The local names of the symbols that ``ctx.env`` has."""
        symbols = {row.symbol: str(row.symbol) for row in self.plan.inputs.symbols}
        return symbols | {symbol: f"z_{symbol}" for symbol, _ in self.plan.results.unbacked}

    def _told(self, entry: CompiledBackward) -> dict[Any, tuple[int, int]]:
        """Symbols that the tangents alone tell, see `with_unbacked`: number of a leaf,
        dimension."""
        leaves = [leaf for spec in entry.tangents if spec is not None for leaf in spec_leaves(spec)]
        places = [(n, (k, d)) for k, leaf in enumerate(leaves) for d, n in enumerate(leaf.size)]
        told = {
            n.expr: place
            for n, place in places[::-1]
            if isinstance(n, SizeExpr) and n.expr.is_Symbol
        }
        return {symbol: place for symbol, place in told.items() if symbol not in self._symbols()}

    def _unknown_sizes(self, entry: CompiledBackward) -> bool:
        """Are there symbols that nothing tells?"""
        sizes = (
            n
            for spec in (*entry.tangents, *entry.grads)
            if spec is not None
            for n in sizes_in(spec)
        )
        known = {*self._symbols(), *self._told(entry)}
        return (
            not {s for n in sizes if isinstance(n, SizeExpr) for s in n.expr.free_symbols} <= known
        )

    def _path(self, entry: CompiledBackward, given: Sequence[Tensor | None]) -> Callable[..., Any]:
        """``(ctx, saved, *tangents)`` -> gradients, or None where the tangents are not those of
        ``entry``, as ``given`` are."""
        s, symbols = Code("None"), self._symbols()
        names, env = (
            [f"g{k}" for k in self.plan.gradients.differentiable],
            "ctx.env" if symbols else "{}",
        )
        unwrapper = Unwrapper(
            s, {name: t for name, t in zip(names, given, strict=True) if t is not None}
        )
        leaves: list[str] = []
        with tried(
            s,
            "def backward(ctx, saved, "
            f"{''.join(f'g{k}, ' for k in range(len(self.plan.results.values)))}):",
        ):
            self._circumstances(s, entry, symbols)
            for name, spec in zip(names, entry.tangents, strict=True):
                if spec is None:
                    s.line(f"if {name} is not None: return None")
                else:
                    leaves += unwrapper.unwrap(name, spec, VALUE)
            for symbol, (k, d) in self._told(entry).items():
                symbols[symbol] = f"t_{symbol}"
                s.line(f"t_{symbol} = {leaves[k]}.shape[{d}]")
            if entry.when.conditions:
                hold = " and ".join(
                    f"({expression_source(c, symbols)})" for c in entry.when.conditions
                )
                s.line(f"if not ({hold}): return None")
            # Of any strides: they are brought to those that the graph was traced for.
            tensors: Any = unwrapper.tensors
            tensors[:] = [
                (n, replace(t, stride=(None,) * len(t.size)), path) for n, t, path in tensors
            ]
            tensor_checks(unwrapper, unwrapper.examples, symbols, env)
        # Under names of their own: a dense leaf may be brought to other strides, and its name goes
        # before the graph runs.
        handed = {
            source: f"h{k}"
            for k, source in enumerate(entry.passed)
            if source and source[0] == "tangent"
        }
        for (_, place), name in handed.items():
            s.line(f"{name} = {names[place]}")
        _fit(s, entry, leaves, symbols)
        s.line(f"p = [{', '.join(self._arguments(entry, leaves, symbols))}]")
        s.line("saved.clear()  # who called holds the list")
        s.line(f"del {', '.join(dict.fromkeys([*leaves, *names]))}")
        graph = entry.call.program() if isinstance(entry.call, OnFirstUse) else entry.call
        s.line(f"r = {s.bind('graph', graph)}(p)")
        grads = self._grads(entry, handed, Wrapper(s, self.examples, symbols, env))
        s.line(f"return None, {'None, ' if self.takes_call else ''}{tuple_code(grads)}")
        return s.build("backward", "backward")

    def _circumstances(self, s: Code, entry: CompiledBackward, symbols: dict[Any, str]) -> None:
        """Emit what is compared besides the tangents, and the symbols' values."""
        s.bind("grad_enabled", grad_enabled)
        s.bind("any_autocast", any_autocast)
        other = ["grad_enabled()", "any_autocast()"]
        if entry.when.state is not None:
            call = "getattr(ctx, 'call', ((), {}))" if self.backwards.keeps_call else "((), {})"
            other.append(f"not {s.constant(entry.when.state, 'state')}({call})")
        if entry.when.dtensor is not None:
            dispatcher = s.bind("dtensor", dtensor_dispatcher())
            other.append(other_dtensor_modes_code(dispatcher, entry.when.dtensor))
        s.line(f"if {' or '.join(other)}: return None")
        for symbol, name in symbols.items():
            s.line(f"{name} = ctx.env[{s.constant(symbol, 'symbol')}]")

    def _arguments(
        self, entry: CompiledBackward, leaves: Sequence[str], symbols: dict[Any, str]
    ) -> list[str]:
        """The inputs of the backward graph."""
        rows = self.plan.gradients.saved
        tensors = [row.name for row in rows if row.is_tensor]
        given: dict[tuple[str, Any], str] = {}
        given |= {
            ("saved", row.name): f"ctx.numbers[{k}]"
            for k, row in enumerate(rows)
            if not row.is_tensor
        }
        given |= {("saved", name): f"saved[{k}]" for k, name in enumerate(tensors)}
        given |= {("size", symbol): name for symbol, name in symbols.items()}
        given |= {("tangent", k): name for k, name in enumerate(leaves)}
        args = [given[key] for key in entry.inputs]
        if args[: len(tensors)] == [f"saved[{k}]" for k in range(len(tensors))]:
            args[: len(tensors)] = ["*saved"]
        return args

    def _grads(
        self, entry: CompiledBackward, handed: dict[Any, str], wrapper: Wrapper
    ) -> list[str]:
        """Emit making the gradients of the outputs ``r``, or handing on the very tangents."""
        parts = iter(
            [f"r[{k}]" for k in range(sum(leaf_count(g) for g in entry.grads if g is not None))]
        )
        grads: list[str] = []
        for made, source in zip(entry.grads, entry.passed, strict=True):
            own = [next(parts) for _ in range(0 if made is None else leaf_count(made))]
            if source is not None:
                grads.append(grads[source[1]] if source[0] == "gradient" else handed[source])
            else:
                grads.append("None" if made is None else wrapper.wrap(made, iter(own)))
        return grads


def _fit(s: Code, entry: CompiledBackward, leaves: Sequence[str], symbols: dict[Any, str]) -> None:
    """Bring tangents to the strides that the graph was traced for."""
    given = [spec for spec in entry.tangents if spec is not None]
    wanted = [leaf.stride for spec in given for leaf in spec_leaves(spec)]
    for name, stride in zip(leaves, wanted, strict=True):
        if stride:
            code = sizes_code(stride, symbols)
            s.line(
                f"if {name}.stride() != {code}: {name} = "
                f"{s.bind('fit_strides', fit_strides)}({name}, {code})"
            )
