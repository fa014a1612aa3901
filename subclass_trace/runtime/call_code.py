"""Source for a call from inputs to results: unwrap, call, rewrap. Guards on Python state come before it: `entry_code`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import torch_api
from ..capture.aliasing import alias_check
from ..plan import (
    BasePrimal,
    ConstantOutput,
    GradientOutput,
    InputOutput,
    LeafPrimal,
    SameOutput,
    SizeOutput,
    SymbolicView,
    ValueOutput,
    ViewOutput,
    gradient_of,
)
from ..subclass.context import Lent
from ..subclass.parts import mark_source, marks_in, with_lent
from ..subclass.spec import OpaqueSpec, Spec, spec_leaves
from ..subclass.template import Examples
from .changed_contexts import changeable, watch_contexts
from .delivery_code import Delivery, is_plain
from .emit import (
    NotGenerated,
    Unwrapper,
    Wrapper,
    detached_outputs,
    expression_code,
    failed_metadata_code,
    size_code,
    wrapped,
)
from .function_code import FunctionEmitter, needs_extra
from .guards import Ambient
from .rebuild import replay_view
from .reference import Call, Program, base_value, finish, share_values
from .source import Source

Tensor = torch.Tensor


class _Miss:
    def __repr__(self) -> str:
        return "MISS"


#: what an entry returns when the call is not for this specialization
MISS: Any = _Miss()


@dataclass(frozen=True, eq=False)
class Entry:
    """The generated entry, and the source that it was made from."""

    call: Callable[[tuple[Any, ...], dict[str, Any]], Any]
    source: str


def _shortcut_value(values: Mapping[str, Tensor], variable: str) -> Any:
    value = values[variable]
    attribute = torch_api.context_shortcut(type(value))
    assert attribute is not None
    return getattr(value, attribute)


class EntryEmitter:
    """What entries have in common: from flat arguments by local names to flat outputs by expressions."""

    def __init__(
        self,
        program: Program,
        ambient: Ambient,
        alias: tuple[Any, ...] | None,
        flat: Sequence[Any],
        examples: Examples,
        use_cpp: bool,
    ) -> None:
        self.program, self.plan, self.ambient, self.alias = program, program.plan, ambient, alias
        self.flat, self.examples, self.use_cpp = flat, examples, use_cpp
        self.source = Source()
        self.source.bind("MISS", MISS)
        self.unwrapper = Unwrapper(self.source, "return MISS")
        self.values: dict[str, Tensor] = {}
        self.unwrapper.shortcut_value = functools.partial(_shortcut_value, self.values)
        self.real_inputs = [row.of(flat) for row in self.plan.inputs]
        self.simple = self._is_simple()
        self.lent: dict[Lent, str] = {}  # local names of what results have from inputs

    def _inputs(self, flat: Sequence[str]) -> list[str]:
        """A local name for each distinct input; other positions must hold the same tensor."""
        s, plan = self.source, self.plan
        names: list[str] = []
        for number, row in enumerate(plan.inputs):
            if row.of_gradient:
                owner = flat[row.position]
                names.append(f"g{number}")
                others = f"{s.bind('gradient_of', gradient_of)}({owner})"
                s.line(f"{names[-1]} = {owner}.grad if {owner}.is_leaf else {others}")
                s.line(f"if {names[-1]} is None: return MISS")
            else:
                names.append(flat[row.position])
            self.values[names[-1]] = self.real_inputs[number]
        for position, found in enumerate(plan.positions):
            if found is not None and flat[position] != names[found]:
                s.line(f"if {flat[position]} is not {names[found]}: return MISS")
        return names

    def _unwrap(self, inputs: Sequence[str]) -> list[str]:
        """A local name for each dense leaf; a leaf in several places must be one tensor."""
        table: dict[int, str] = {}
        checks = self.unwrapper.checks
        for row, name, value in zip(self.plan.inputs, inputs, self.real_inputs, strict=True):
            start = len(checks.tensors)
            self._register_values(name, row.spec, value)
            leaves = self.unwrapper.unwrap(name, row.spec)
            for place, leaf in zip(row.leaves, leaves, strict=True):
                known = table.setdefault(place, leaf)
                if known != leaf:
                    checks.conditions.append(f"{leaf} is {known}")
                    checks.tensors[start:] = [t for t in checks.tensors[start:] if t[0] != leaf]
        return [table[k] for k in range(self.plan.leaf_count)]

    def _register_values(self, name: str, spec: Spec, value: Any) -> None:
        """Real values for the names that the unwrapper will make for ``value``, in the same order."""
        self.values[name] = value
        self._register_inner(spec, value, self.source._count.get("u", 0))

    def _register_inner(self, spec: Spec, value: Any, counter: int) -> int:
        for attribute, inner in zip(getattr(spec, "names", ()), getattr(spec, "inners", ()), strict=True):
            if isinstance(inner, OpaqueSpec):
                continue
            child = self.values[f"u{counter}"] = getattr(value, attribute)
            counter = self._register_inner(inner, child, counter + 1)
        return counter

    def _rest_of_guards(self, inputs: Sequence[str], leaves: Sequence[str], symbols: dict[Any, str]) -> None:
        s = self.source
        for failed in self._other_conditions(inputs, leaves, symbols):
            s.line(f"if {failed}: return MISS")

    def _other_conditions(
        self, inputs: Sequence[str], leaves: Sequence[str], symbols: dict[Any, str], *, conditions: bool = True
    ) -> list[str]:
        """What, beside the checks of each value, tells that the specialization does not serve the call.

        ``conditions``: on sizes too; else the caller guards these.
        """
        s, plan = self.source, self.plan
        failed = [f"not {expression_code(c, symbols)}" for c in plan.conditions if conditions]
        for row, name in zip(plan.inputs, inputs, strict=True):
            failed += failed_metadata_code(s, row, name)
        asks = [(name, row.grad_dtype) for row, name in zip(plan.inputs, inputs, strict=True) if row.requires_grad]
        if asks:
            known = s.constant(tuple(dtype for _, dtype in asks), "dtypes")
            found = s.bind("grad_dtypes", torch_api.grad_dtypes)
            failed.append(f"{found}(({tuple_code([name for name, _ in asks])})) != {known}")
        if plan.offsets_matter:
            offsets: dict[int, Any] = {}
            for row in plan.inputs:
                own = zip(row.leaves, spec_leaves(row.spec), strict=True)
                offsets.update((k, leaf.storage_offset) for k, leaf in own)
            failed += [f"{leaves[k]}.storage_offset() != {size_code(n, symbols)}" for k, n in offsets.items()]
        if self.alias is not None:
            specs = [leaf for row in plan.inputs for leaf in spec_leaves(row.spec)]
            strided = all(leaf.layout is torch.strided for leaf in specs)
            check = s.bind("alias_check", alias_check(self.alias, strided=strided))
            failed.append(f"not {check}(({tuple_code(inputs)}), ({tuple_code(leaves)}))")
        return failed

    def _constant(self, value: Any) -> str:
        """A result that is no tensor, with the objects of the call in the place of marks."""
        s = self.source
        if isinstance(value, Lent):
            return self.lent[value]
        known = s.constant(value, "result")
        return f"{s.bind('with_lent', with_lent)}({known}, {marks})" if (marks := self._marks_in(value)) else known

    def _marks_in(self, value: Any) -> str:
        """The objects of the call for the marks in a value, as a dict; empty where there are none."""
        rows = [f"{self.source.constant(m, 'lent')}: {self.lent[m]}" for m in marks_in((), [value])]
        return f"{{{', '.join(rows)}}}" if rows else ""

    # ---------------------------------------------------------------- running
    def _run(
        self, flat: Sequence[str], inputs: Sequence[str], leaves: Sequence[str], symbols: dict[Any, str]
    ) -> list[str]:
        """Emit the call; returns an expression for each flat output."""
        s, plan = self.source, self.plan
        for m in plan.mutations:
            if m.starts_grad:
                s.line(f"{inputs[m.input]}.requires_grad_()")
        s.line(f"p = [{', '.join(self._primal(p, leaves, symbols) for p in plan.primals)}]")
        items = [f"{s.constant(k, 'symbol')}: {v}" for k, v in symbols.items()]
        for mark in plan.lent:
            self.lent[mark] = s.name("k")
            value = mark_source(mark, inputs[mark.place[1]], s.constant)
            s.line(f"{self.lent[mark]} = {value}")
            items.append(f"{s.constant(mark, 'lent')}: {self.lent[mark]}")
        env = "{" + ", ".join(items) + "}" if items else "None"
        if plan.trains:
            values, sizes = self._train(inputs, env)
        else:
            values, sizes = self._infer(symbols)
        if not self.simple:
            s.bind("finish", finish)
            s.bind("Call", Call)
            state = f"[{', '.join(inputs)}], [{', '.join(leaves)}], {env if items else '{}'}, [{', '.join(sizes)}]"
            call = f"Call({state})"
            s.line(f"results = finish({s.constant(plan, 'plan')}, {call}, [{', '.join(values)}], [{', '.join(flat)}])")
            return [f"results[{k}]" for k in range(len(plan.outputs))]
        if plan.aliases:
            s.bind("share_values", share_values)
            s.bind("Call", Call)
            s.line(f"w = [{', '.join(values)}]")
            call = f"Call([{', '.join(inputs)}], [{', '.join(leaves)}], {env if items else '{}'})"
            s.line(f"share_values({s.constant(plan, 'plan')}, {call}, w, within=False)")
            values = [f"w[{k}]" for k in range(len(values))]
        delivery = Delivery(s, plan, inputs, leaves)
        delivery.write(values, grad=self.ambient.grad)
        results = []
        for result in self._results(flat, inputs, values, sizes, env):  # each is made once
            results.append(s.name("r"))
            s.line(f"{results[-1]} = {result}")
        delivery.assign(results)
        return results

    def _results(
        self,
        flat: Sequence[str],
        inputs: Sequence[str],
        values: Sequence[str],
        sizes: Sequence[str],
        env: str,
    ) -> list[str]:
        results: list[str] = []
        for o in self.plan.outputs:
            if isinstance(o, ConstantOutput):
                results.append(self._constant(o.value))
            elif isinstance(o, InputOutput):
                results.append(flat[o.position])
            elif isinstance(o, GradientOutput):
                results.append(inputs[o.input])
            elif isinstance(o, ViewOutput):
                results.append(self._view(o, inputs if o.of_input else values, env))
            elif isinstance(o, ValueOutput):
                results.append(values[o.value])
            elif isinstance(o, SizeOutput):
                results.append(sizes[o.index])
            else:
                raise NotGenerated(f"a result {o!r}")
        return results

    def _view(self, o: Any, bases: Sequence[str], env: str) -> str:
        s = self.source
        s.bind("replay_view", replay_view)
        sizes = f", {env}" if isinstance(o.replay, SymbolicView) else ""
        return f"replay_view({s.constant(o, 'view')}, {bases[o.base]}{sizes})"

    def _is_simple(self) -> bool:
        """Is no more to be delivered than is written straight down? The rest is `reference.finish`'s."""
        plan = self.plan
        others = plan.grad_mode_after is not None
        others = others or any(row.within for row in plan.aliases)
        plain = not others and is_plain(plan, self.real_inputs, inference=self.ambient.inference)
        return plain and all(map(self._is_simple_output, plan.outputs))

    def _is_simple_output(self, o: Any) -> bool:
        special = isinstance(o, SameOutput) or getattr(o, "protected", False)
        return not special and not getattr(o, "attributes", ())

    def _primal(self, primal: Any, leaves: Sequence[str], symbols: dict[Any, str]) -> str:
        if isinstance(primal, LeafPrimal):
            return leaves[primal.leaf]
        if isinstance(primal, BasePrimal):
            base = self.source.bind("base_value", base_value)
            known = self.source.constant(primal, "base")
            return f"{base}({known}, [{', '.join(leaves)}], {size_code(primal.numel, symbols)})"
        return size_code(primal.size, symbols)

    def _infer(self, symbols: dict[Any, str]) -> tuple[list[str], list[str]]:
        """Call the graph and rewrap; gradients are off while it runs."""
        s, plan = self.source, self.plan
        s.bind("forward", self.program.forward)
        wants = any(row.requires_grad for row in plan.inputs) or any(m.starts_grad for m in plan.mutations)
        guarded = self.ambient.grad and wants
        if guarded:
            s.bind("set_grad", torch_api.set_grad)
            s.line("set_grad(False)")
            s.line("try:")
            s.depth += 1
        if self.ambient.autocast:
            s.bind("no_autocast", torch_api.disable_autocast)
            s.line("with no_autocast():")
            s.depth += 1
        s.line("o = forward(p)")
        if self.ambient.autocast:
            s.depth -= 1
        flat = detached_outputs(s, plan, plan.forward_leaves + plan.size_outputs, self._left_out())
        parts = iter(flat[: plan.forward_leaves])
        values = wrapped(
            Wrapper(s, self.examples, symbols, self.lent.__getitem__), plan.values, parts, self._left_out()
        )
        if guarded:
            s.line("pass")
            s.depth -= 1
            s.line("finally: set_grad(True)")
        return values, flat[plan.forward_leaves :]

    def _left_out(self) -> Collection[int]:
        """Values that nobody asks for: their contents are where they belong."""
        return self.plan.spent_values if self.simple else ()

    def _train(self, inputs: Sequence[str], env: str) -> tuple[list[str], list[str]]:
        """Apply the generated autograd.Function."""
        s, plan = self.source, self.plan
        if any(row.within for row in plan.aliases):
            raise NotGenerated("a value with a history in memory that is written")
        emitter = FunctionEmitter(self.program, self.ambient, self.examples, self.use_cpp, self._left_out())
        function = emitter.emit()
        s.bind("apply", torch_api.base_apply(function))
        given = [inputs[i] for i in plan.differentiated]
        args = ["p", *given]
        if needs_extra(plan):
            s.line(f"extra = [{env}, ({tuple_code([inputs[i] for i in plan.watched_beside])}), None]")
            args.insert(1, "extra")
        made = f"apply({', '.join(args)})"
        call = f"v = {made}"
        if self.ambient.grad:
            s.line(call)
        else:  # the region enables gradients itself
            s.bind("enable_grad", torch.enable_grad)
            s.line(f"with enable_grad(): {call}")
        if watched := changeable(plan):
            watch = s.bind("watch_contexts", watch_contexts)
            s.line(f"{watch}({s.constant(plan, 'plan')}, {watched}, ({tuple_code(inputs)}), v)")
        values = [f"v[{k}]" for k in range(len(plan.values))] if len(plan.values) != 1 else ["v"]
        return values, [f"extra[2][{k}]" for k in range(plan.size_outputs)]


def tuple_code(names: Sequence[str]) -> str:
    """The items of a tuple display."""
    return "".join(f"{n}, " for n in names)
