"""Entries for callers that hold the guards themselves, such as Dynamo: unwrap, call, rewrap, and only a few checks.

What is still checked is what such a caller cannot see: how inputs and their inner tensors share memory (where that
decided the trace), offsets that the graph holds, and modes around the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import _torch
from ..capture.aliasing import alias_check
from ..subclass.flatten import leaves_of
from ..subclass.spec import WrapperSpec, spec_leaves
from ..subclass.template import Examples
from .codegen import Entry, Layout, _EntryEmitter
from .delivery_code import Delivery
from .emit import NotGenerated, Unwrapper, failed_metadata_code, size_code, symbol_lines
from .guards import Guards, eager_reason, failed_metadata
from .reference import Program
from .sizes import Env, bind, evaluate
from .trees import unflatten_tree

#: called with the arguments of a call that the specialization does not serve
Other = Callable[..., Any]


def generate_trusted(
    program: Program,
    guards: Guards,
    layout: Layout,
    flat: Sequence[Any],
    examples: Examples,
    other: Other,
    eager: Other,
) -> Entry | None:
    """The entry ``(*arguments) -> results``, or None where the reference interpreter has to serve it.

    Args:
        flat: the flat arguments of the call that it was made for.
        other: serves calls whose inputs share memory in another way.
        eager: serves calls inside a transform or a dispatch mode.
    """
    try:
        return _TrustedEmitter(program, guards, layout, flat, examples, other, eager).emit()
    except NotGenerated:
        return None


class _TrustedUnwrapper(Unwrapper):
    """Takes inputs apart; contexts were compared by the caller, unless they hold what ``==`` cannot compare."""

    def _check_context(self, variable: str, spec: WrapperSpec) -> None:
        if not _compared_by_equality(spec.context):
            super()._check_context(variable, spec)


class _TrustedEmitter(_EntryEmitter):
    def __init__(
        self,
        program: Program,
        guards: Guards,
        layout: Layout,
        flat: Sequence[Any],
        examples: Examples,
        other: Other,
        eager: Other,
    ) -> None:
        super().__init__(program, guards, layout, flat, examples, use_cpp=True)
        if guards.modules or any(row.take_base for row in self.plan.inputs):
            raise NotGenerated("modules or bases among the guards")
        self.names = [f"x{k}" for k in range(layout.user_count)]
        self.miss = f"return other({', '.join(self.names)})"
        self.source.bind("other", other)
        self.source.bind("eager", eager)
        self.unwrapper = _TrustedUnwrapper(self.source, self.miss)

    def emit(self) -> Entry:
        """Write the entry from top to bottom."""
        s = self.source
        s.line(f"def entry({', '.join(self.names)}):")
        s.depth = 1
        s.bind("functorch", _torch.peek_functorch)
        s.bind("dispatch_modes", _torch.dispatch_stack_length)
        s.bind("forward_ad", _torch.forward_ad)
        s.line("if functorch() is not None or dispatch_modes() or forward_ad._current_level >= 0:")
        s.line(f"    return eager({', '.join(self.names)})")
        flat = [*self.names, *self._slots()]
        inputs = self._inputs(flat)
        leaves = self._unwrap(inputs)
        symbols = self._symbols(inputs, leaves)
        self._rest_of_guards(inputs, leaves, symbols)
        self._run(flat, inputs, leaves, symbols)
        return Entry(s.build("entry", "entry"), s.text())

    def _slots(self) -> list[str]:
        """Tensors that the graph itself holds."""
        s, names = self.source, []
        for value in self.flat[self.layout.user_count :]:
            names.append(s.constant(value, "held"))
        return names

    def _symbols(self, inputs: Sequence[str], leaves: Sequence[str]) -> dict[Any, str]:
        return symbol_lines(self.plan, self.source, self.names, inputs, leaves)

    def _rest_of_guards(self, inputs: Sequence[str], leaves: Sequence[str], symbols: dict[Any, str]) -> None:
        s, plan = self.source, self.plan
        known = (
            Delivery(s, plan, inputs, leaves).conditions() if self.simple else []
        )  # the caller sees no inner tensors
        conditions = [f"not ({c})" for c in (*self.unwrapper.checks.conditions, *known)]
        conditions += [
            failed
            for row, name in zip(plan.inputs, inputs, strict=True)
            for failed in failed_metadata_code(s, row, name)
        ]
        if plan.offsets_matter:
            offsets: dict[int, Any] = {}
            for row in plan.inputs:
                own = zip(row.leaves, spec_leaves(row.spec), strict=True)
                offsets.update((k, leaf.storage_offset) for k, leaf in own)
            conditions += [f"{leaves[k]}.storage_offset() != {size_code(n, symbols)}" for k, n in offsets.items()]
        if self.guards.alias is not None:
            check = s.bind("alias_check", alias_check(self.guards.alias))
            conditions.append(f"not {check}(({_tuple(inputs)}), ({_tuple(leaves)}))")
        if conditions and symbols:  # an expression that has no value for these sizes (a division by 0) holds for none
            s.line(f"try: other_call = {' or '.join(conditions)}")
            s.line("except ArithmeticError: other_call = True")
            s.line(f"if other_call: {self.miss}")
        elif conditions:
            s.line(f"if {' or '.join(conditions)}: {self.miss}")


def _compared_by_equality(context: Any) -> bool:
    """Is ``==`` of such contexts a truth value? Arrays and tensors have none, and a caller that asks for it sees none."""
    if isinstance(context, (tuple, list, set)):
        return all(map(_compared_by_equality, context))
    if isinstance(context, dict):
        return all(map(_compared_by_equality, context.values()))
    return not isinstance(context, torch.Tensor) and type(context).__module__ != "numpy"


def _tuple(names: Sequence[str]) -> str:
    return "".join(f"{n}, " for n in names)


def _known(size: Any, env: Env) -> Any:
    """The value of a size in this call; None where there is none (a division by 0)."""
    try:
        return evaluate(size, env)
    except ArithmeticError:
        return None


def interpret_trusted(program: Program, guards: Guards, held: Sequence[Any], other: Other, eager: Other) -> Other:
    """The same entry read from the plan, step by step: where it is not generated, and as its meaning."""
    plan = program.plan
    same_memory = None if guards.alias is None else alias_check(guards.alias)

    def serves(flat: Sequence[Any]) -> bool:
        inputs = [row.of(flat) for row in plan.inputs]
        table: dict[int, Any] = {}
        for row, value in zip(plan.inputs, inputs, strict=True):
            if failed_metadata(row, value) is not None:
                return False
            for place, leaf in zip(row.leaves, leaves_of(value), strict=True):
                if table.setdefault(place, leaf) is not leaf:
                    return False
        leaves = [table[k] for k in range(plan.leaf_count)]
        if plan.offsets_matter:
            env = bind(plan, inputs, leaves, flat)
            for row in plan.inputs:
                for place, spec in zip(row.leaves, spec_leaves(row.spec), strict=True):
                    if leaves[place].storage_offset() != _known(spec.storage_offset, env):
                        return False
        return same_memory is None or same_memory(inputs, leaves)

    def entry(*args: Any) -> Any:
        if eager_reason() is not None:
            return eager(*args)
        flat = [*args, *held]
        if not serves(flat):
            return other(*args)
        return unflatten_tree(plan.out_tree, program(flat))

    return entry
