"""Generated source for one specialization: guard, unwrap, call, rewrap, straight down.

An entry is ``(args, kwargs) -> result``, or `MISS` when a check fails; a function made of the same
lines says which. Print ``specialization.source`` to read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from ..capture.aliasing import alias_check
from ..errors import Reason
from ..plan import (
    ConstantOutput,
    InputOutput,
    LeafPrimal,
    Plan,
    SameOutput,
    SizeOutput,
    ValueOutput,
    ViewOutput,
    gradient_of,
)
from ..plan.values import entries_in
from ..state.guards import StateGuards
from ..state.place import Place
from ..subclass.spec import RaggedSize, SizeExpr, spec_leaves
from ..subclass.template import Examples
from ..torch_api.attention import other_attention_code
from ..torch_api.autograd import ask_no_class, asked_grad_dtype, base_apply, grad_dtypes, is_leaf
from ..torch_api.dtensor_modes import dtensor_dispatcher, other_dtensor_modes_code
from ..torch_api.dynamo import eager_is_forced_code
from ..torch_api.modes import (
    any_autocast,
    autocast_state,
    default_devices,
    deterministic_algorithms,
    dispatch_stack_length,
    forward_ad,
    function_stack_length,
    grad_enabled,
    peek_functorch,
)
from ..torch_api.symbols import expression_source
from ..torch_api.trees import pytree
from .delivery_code import Delivery
from .emit import (
    Unwrapper,
    Wrapper,
    detached_outputs,
    gradients_off,
    graph_call,
    metadata_checks,
    same_code,
    size_code,
    sizes_of_outputs,
    symbol_lines,
    tensor_checks,
    tuple_code,
    wrapped,
)
from .function import protected
from .function_code import FunctionEmitter, needs_call
from .guards import Ambient
from .pins import Pins
from .program import Call, Program, watch_contexts
from .rebuild import replay_view, steps_of
from .source import Code
from .state_code import StateEmitter, tried
from .value_code import ValueEmitter, emit_effects

Tensor = torch.Tensor


#: what an entry returns when the call is not for this specialization
MISS: Any = object()


def _places_of(plan: Plan) -> list[Place]:
    """The places that the delivery of a call names: what is written, and what its recipes take."""
    found = [effect.place for effect in plan.side_effects if isinstance(effect.place, Place)]
    recipes = [plan.results.recipe, *(v for effect in plan.side_effects for v in effect.values)]
    return found + [entry.place for recipe in recipes for entry in entries_in(recipe)]


#: the entry, the source that it was made from, and the function that says why it misses (None: it
# does not)
Emitted: TypeAlias = tuple[Callable[..., Any], Code, Callable[..., Reason | None]]


class EntryEmitter:
    """The entry of a region.

    Args:
        state: guards of Python state, which find the flat arguments; ``ambient``: the state of the
            thread.
    """

    def __init__(self, program: Program, ambient: Ambient, state: StateGuards) -> None:
        self.program, self.plan, self.ambient, self.state = program, program.plan, ambient, state
        self.pins = Pins(state, _places_of(self.plan))
        self.source = Code()
        self.source.bind("MISS", MISS)
        self.values: dict[str, Tensor] = {}
        self.unwrapper = Unwrapper(self.source, self.values)
        frozen = program.frozen
        self.folded = [] if frozen is None else frozen.bind(self.plan)
        self.erasable = [] if frozen is None else frozen.erasable

    def emit(self, flat_arguments: Sequence[Any], examples: Examples) -> Emitted:
        """Write the entry from top to bottom.

        Args:
            flat_arguments: those of the call that it is made for.
            examples: makes fake values of specs, to verify template constructors.
        """
        s, self.examples = self.source, examples
        self.real_inputs = [row.of(flat_arguments) for row in self.plan.inputs.rows]
        with tried(s, "def entry(args, kwargs):"):
            state, flat = self._state_part()
            inputs = self._inputs(flat)
            leaves = self._unwrap(inputs)
            s.names = {"flat": flat, "input": inputs, "leaf": leaves}
            symbols = symbol_lines(self.plan, s, flat, inputs, leaves)
            tensor_checks(self.unwrapper, self.values, symbols, self._env(symbols))
            self._other_conditions(inputs, leaves, symbols)
        failed = s.why("entry")
        self._deliver(self._run(flat, inputs, leaves, symbols), state.read)
        return s.build("entry", "entry"), s, failed

    def _state_part(self) -> tuple[StateEmitter, list[str]]:
        self._ambient()
        state = StateEmitter(self.source, self.state, self.pins)
        return state, state.emit()

    def _deliver(self, outputs: Sequence[str], read: Callable[[Any], str]) -> None:
        """Do the side effects, and return the result."""
        s, plan = self.source, self.plan
        values = ValueEmitter(s, outputs, read)
        if not plan.side_effects:
            s.line(f"return {values.value(plan.results.recipe)}")
            return
        s.line(f"result = {values.value(plan.results.recipe)}")
        emit_effects(values, plan.side_effects)
        if written := self.pins.written_by_calls(plan.side_effects):
            names = tuple_code([*dict.fromkeys(read(effect.place) for effect in written)])
            s.line(f"{s.bind('pin_written', self.pins.pin_written)}(({names}))")
        s.line("return result")

    def _ambient(self) -> None:
        """Thread state; modes and transforms around the call lead to the slow path, which decides
        what to do."""
        s, a = self.source, self.ambient
        devices, autocast = s.constant(a.devices, "devices"), s.constant(a.autocast, "autocast")
        parts = [
            eager_is_forced_code(s.bind),
            f"{s.bind('grad_enabled', grad_enabled)}() is not {a.grad}",
            f"{s.bind('inference', torch.is_inference_mode_enabled)}() is not {a.inference}",
            f"{s.bind('functorch', peek_functorch)}() is not None",
            f"{s.bind('dispatch_modes', dispatch_stack_length)}()",
            f"{s.bind('default_devices', default_devices)}() != {devices}"
            if a.devices
            else f"{s.bind('function_modes', function_stack_length)}()",
            f"{s.bind('forward_ad', forward_ad)}._current_level >= 0",
            f"{s.bind('deterministic', deterministic_algorithms)}() is not {a.deterministic}",
            f"{s.bind('default_dtype', torch.get_default_dtype)}() is not "
            f"{s.constant(a.dtype, 'dtype')}",
            f"{s.bind('autocast_state', autocast_state)}() != {autocast}"
            if a.autocast
            else f"{s.bind('any_autocast', any_autocast)}()",
        ]
        if a.dtensor is not None:
            parts.append(
                other_dtensor_modes_code(s.bind("dtensor", dtensor_dispatcher()), a.dtensor)
            )
        if a.attention is not None:
            parts.append(other_attention_code(a.attention, s.bind))
        changes = f"{s.held(a.changes, 'why_thread')}({s.bind('Ambient', Ambient)}.now())"
        s.check(f"if ({' or '.join(parts)})", changes, "modes of the thread are what they were")

    def _inputs(self, flat: Sequence[str]) -> list[str]:
        """A local name for each input."""
        s, plan = self.source, self.plan
        names: list[str] = []
        for number, row in enumerate(plan.inputs.rows):
            if row.of_gradient:
                owner = flat[row.position]
                names.append(f"g{number}")
                others = f"{s.bind('gradient_of', gradient_of)}({owner})"
                s.line(f"{names[-1]} = {owner}.grad if {owner}.is_leaf else {others}")
                s.check(
                    f"if {names[-1]} is None",
                    repr(f"{row.path} is None"),
                    f"{row.path} is not None",
                )
            else:
                names.append(flat[row.position])
            self.values[names[-1]] = self.real_inputs[number]
        return names

    def _unwrap(self, inputs: Sequence[str]) -> list[str]:
        """A local name for each dense leaf. (One in several places must be one tensor: see
        `tensor_checks`.)"""
        table: dict[int, str] = {}
        unwrapper = self.unwrapper
        for row, name in zip(self.plan.inputs.rows, inputs, strict=True):
            if row in self.erasable:
                table.update(dict.fromkeys(row.leaves, "None"))
                continue
            for place, leaf in zip(
                row.leaves, unwrapper.unwrap(name, row.spec, row.path), strict=True
            ):
                table.setdefault(place, leaf)
        return [table[k] for k in range(self.plan.inputs.leaf_count)]

    def _differentiated(self) -> list[torch.Tensor]:
        """The inputs that require grad, as they are in the call that was traced."""
        return [
            x
            for row, x in zip(self.plan.inputs.rows, self.real_inputs, strict=True)
            if row.requires_grad and row not in self.erasable
        ]

    def _other_conditions(
        self, inputs: Sequence[str], leaves: Sequence[str], symbols: dict[Any, str]
    ) -> None:
        """What, besides the checks of each value, tells that the specialization does not serve the
        call."""
        s, plan = self.source, self.plan
        for c in plan.inputs.conditions:
            s.check(f"if not {expression_source(c, symbols)}", repr(f"sizes: not {c}"), str(c))
        for row, name in zip(plan.inputs.rows, inputs, strict=True):
            metadata_checks(s, row, name)
        asks = [
            (name, row.grad_dtype)
            for row, name in zip(plan.inputs.rows, inputs, strict=True)
            if row.requires_grad and row not in self.erasable
        ]
        if asks:
            known = s.constant(tuple(dtype for _, dtype in asks), "dtypes")
            found, of = (
                s.bind("grad_dtypes", grad_dtypes),
                tuple_code([name for name, _ in asks]),
            )
            failed = f"if {found}(({of})) != {known}"
            if ask_no_class(self._differentiated()):
                leaf, asked = (
                    s.bind("is_leaf", is_leaf),
                    s.bind("asked", asked_grad_dtype),
                )
                s.line(f"i = ({of})")
                failed = (
                    f"if (False in map({leaf}, i) or (*map({asked}, i),) != {known}) and "
                    f"{found}(i) != {known}"
                )
            s.check(failed, "'another grad_dtype'", "grad_dtype of the inputs is the same")
        if plan.inputs.offsets_matter:
            offsets: dict[int, Any] = {}
            for row in plan.inputs.rows:
                own = zip(row.leaves, spec_leaves(row.spec), strict=True)
                offsets.update((k, leaf.storage_offset) for k, leaf in own)
            for k, n in offsets.items():
                s.check(
                    f"if {leaves[k]}.storage_offset() != {size_code(n, symbols)}",
                    f"'a storage_offset() is not {n}'",
                    f"storage_offset() == {n}",
                )
        if plan.inputs.alias is not None:
            check = s.bind("alias_check", alias_check(plan.inputs.alias))
            failed = f"if not {check}(({tuple_code(inputs)}), ({tuple_code(leaves)}))"
            s.check(
                failed,
                "'the inputs share memory in another way'",
                "the inputs share memory as they did",
            )
        if self.folded:
            other = s.bind("has_other_weights", self.program.frozen.has_other_weights)
            failed = f"if {other}({', '.join(inputs[k] for k in self.folded)})"
            s.check(failed, "'weights of another kind'", "the weights are as they were frozen")

    # ---- running
    def _run(
        self,
        flat: Sequence[str],
        inputs: Sequence[str],
        leaves: Sequence[str],
        symbols: dict[Any, str],
    ) -> list[str]:
        """Emit the call; returns an expression for each flat output."""
        s, plan = self.source, self.plan
        primals = [
            leaves[p.leaf] if isinstance(p, LeafPrimal) else size_code(p.size, symbols)
            for p in plan.inputs.primals
        ]
        if (frozen := self.program.frozen) is not None:
            constants = s.held(frozen.constants, "constants")
            primals = [*map(primals.__getitem__, frozen.folded.live), f"*{constants}"]
        s.line(f"p = [{', '.join(primals)}]")
        env = self._env(symbols)
        state = f"{s.bind('Call', Call)}([{', '.join(inputs)}], [{', '.join(leaves)}], {env})"
        if self._takes_call():
            s.line(f"call = {state}")
            env = "call.env"
            if self.program.backwards is not None and self.program.backwards.keeps_call:
                s.line("call.arguments = args, kwargs")
        delivery = Delivery(s, plan, inputs, leaves)
        delivery.keep_versions()
        values = (
            self._infer(symbols, env, leaves)
            if not plan.trains or plan.gradients.by_autograd
            else self._train(inputs)
        )
        delivery.write(values, grad=self.ambient.grad, inference=self.ambient.inference)
        results: list[str] = []
        for o in plan.results.outputs:  # each is made once
            made = self._result(o, flat, inputs, values, results, env)
            results.append(s.name("r"))
            s.line(f"{results[-1]} = {made}")
        for number, output in plan.mutations.gradients:
            s.line(f"{inputs[number]}.grad = {results[output]}")
        return results

    def _takes_call(self) -> bool:
        backwards = self.program.backwards
        return needs_call(self.plan) or (backwards is not None and backwards.keeps_call)

    def _result(
        self,
        o: Any,
        flat: Sequence[str],
        inputs: Sequence[str],
        values: Sequence[str],
        results: Sequence[str],
        env: str,
    ) -> str:
        """The expression of one flat output."""
        s = self.source
        if isinstance(o, ConstantOutput):
            return s.constant(o.value, "result")
        if isinstance(o, SameOutput):
            return results[o.result]
        if isinstance(o, InputOutput):
            return flat[o.position]
        if isinstance(o, ViewOutput):
            named = [n for step in o.steps for n in pytree.tree_leaves((step.args, step.kwargs))]
            sizes = f", {env}" if any(isinstance(n, (SizeExpr, RaggedSize)) for n in named) else ""
            given = (
                f"{s.constant(steps_of(o), 'view')}, {o.requires_grad}, "
                f"{(inputs if o.of_input else values)[o.base]}"
            )
            return f"{s.bind('replay_view', replay_view)}({given}{sizes})"
        if isinstance(o, ValueOutput) and o.parameter:
            return f"{s.bind('Parameter', torch.nn.Parameter)}({values[o.value]}, False)"
        if isinstance(o, ValueOutput):
            return (
                f"{s.bind('protected', protected)}({values[o.value]})"
                if o.protected
                else values[o.value]
            )
        assert isinstance(o, SizeOutput)
        return f"call.sizes[{o.index}]"

    def _env(self, symbols: dict[Any, str]) -> str:
        rows = [f"{self.source.constant(k, 'symbol')}: {v}" for k, v in symbols.items()]
        return f"{{{', '.join(rows)}}}"

    def _infer(self, symbols: dict[Any, str], env: str, leaves: Sequence[str]) -> list[str]:
        """Call the graph and rewrap; gradients are off while it runs."""
        s, plan = self.source, self.plan
        frozen = self.program.frozen
        s.bind("forward", self.program.forward if frozen is None else frozen.rest)
        tracked = self.ambient.grad and not plan.gradients.by_autograd
        with gradients_off(s, tracked and any(row.requires_grad for row in plan.inputs.rows)):
            s.line(graph_call(s, "o = forward(p)", self.ambient.autocast))
            symbols = symbols | sizes_of_outputs(s, plan)
            flat = detached_outputs(s, plan, leaves)
            return wrapped(Wrapper(s, self.examples, symbols, env), plan, iter(flat))

    def _train(self, inputs: Sequence[str]) -> list[str]:
        """Apply the generated autograd.Function."""
        s, plan = self.source, self.plan
        quiet = ask_no_class(self._differentiated())
        emitter = FunctionEmitter(self.program, self.ambient, self.examples, quiet)
        s.bind("apply", base_apply(emitter.emit()))
        given = [inputs[i] for i in plan.gradients.differentiated]
        made = f"apply(p, {', '.join(['call', *given] if self._takes_call() else given)})"
        if self.ambient.grad:
            s.line(f"v = {made}")
        else:  # the region enables gradients itself
            s.bind("enable_grad", torch.enable_grad)
            s.line(f"with enable_grad(): v = {made}")
        if changing := self.unwrapper.changing:
            names = [name for name, *_ in changing]
            with tried(check := Code("False"), f"def same({', '.join(names)}):"):
                for name, context, _ in changing:
                    check.line(f"if not ({same_code(check, name, context)}): return False")
            check.line("return True")
            paths, same = [path for *_, path in changing], check.build("same", "contexts")
            watch = s.bind("watch_contexts", watch_contexts)
            s.line(
                f"{watch}({s.held(same, 'same')}, ({tuple_code(names)}), "
                f"{s.held(paths, 'paths')}, v)"
            )
        return (
            [f"v[{k}]" for k in range(len(plan.results.values))]
            if len(plan.results.values) != 1
            else ["v"]
        )
