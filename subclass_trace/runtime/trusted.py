"""Entries for callers that hold the guards themselves, such as Dynamo: unwrap, call, rewrap, and only a few checks.

What is still checked is what such a caller cannot see: how inputs and their inner tensors share memory (where that
decided the trace), offsets that the graph holds, and modes around the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import torch_api
from ..subclass.spec import WrapperSpec
from ..subclass.template import Examples
from .call_code import Entry, EntryEmitter
from .delivery_code import Delivery
from .emit import Unwrapper, sized_checks, symbol_lines
from .finish import Program
from .guards import Ambient
from .value_code import ValueEmitter

#: called with the arguments of a call that the specialization does not serve
Other = Callable[..., Any]


class _TrustedUnwrapper(Unwrapper):
    """Takes inputs apart; contexts were compared by the caller, unless they hold what ``==`` cannot compare."""

    def _check_context(self, variable: str, spec: WrapperSpec) -> None:
        if not _compared_by_equality(spec.context):
            super()._check_context(variable, spec)


class TrustedEmitter(EntryEmitter):
    """The entry ``(*arguments) -> results``.

    Args:
        alias: how the inputs share memory, where that decided the trace.
        flat: the flat arguments of the call that it was made for, of which the first ``count`` are arguments.
        other: serves calls whose inputs share memory in another way.
        eager: serves calls inside a transform or a dispatch mode.
    """

    def __init__(
        self,
        program: Program,
        alias: tuple[Any, ...] | None,
        flat: Sequence[Any],
        count: int,
        examples: Examples,
        other: Other,
        eager: Other,
    ) -> None:
        super().__init__(program, Ambient.now(), alias, flat, examples)
        self.names = [f"x{k}" for k in range(count)]
        self.miss = f"return other({', '.join(self.names)})"
        self.source.bind("other", other)
        self.source.bind("eager", eager)
        self.unwrapper = _TrustedUnwrapper(self.source, self.miss, self.values)

    def emit(self) -> Entry:
        """Write the entry from top to bottom."""
        s = self.source
        s.line(f"def entry({', '.join(self.names)}):")
        s.depth = 1
        s.bind("functorch", torch_api.peek_functorch)
        s.bind("dispatch_modes", torch_api.dispatch_stack_length)
        s.bind("forward_ad", torch_api.forward_ad)
        s.line("if functorch() is not None or dispatch_modes() or forward_ad._current_level >= 0:")
        s.line(f"    return eager({', '.join(self.names)})")
        held = [s.constant(value, "held") for value in self.flat[len(self.names) :]]  # tensors of the graph itself
        flat = [*self.names, *held]
        inputs = self._inputs(flat)
        leaves = self._unwrap(inputs)
        symbols = symbol_lines(self.plan, s, flat, inputs, leaves)
        self._rest_of_guards(inputs, leaves, symbols)
        outputs = self._run(flat, inputs, leaves, symbols)
        s.line(f"return {ValueEmitter(s, outputs, ()).value(self.plan.results.recipe)}")
        return Entry(s.build("entry", "entry"), s.text())

    def _rest_of_guards(self, inputs: Sequence[str], leaves: Sequence[str], symbols: dict[Any, str]) -> None:
        s, checks = self.source, self.unwrapper.checks
        # The caller sees no inner tensors.
        inference = self.ambient.inference
        known = [] if inference else Delivery(s, self.plan, inputs, leaves).conditions()
        failed = [f"not ({c})" for c in (*checks.conditions, *known, *sized_checks(s, checks, self._env(symbols)))]
        failed += self._other_conditions(inputs, leaves, symbols, conditions=False)
        if failed and symbols:  # an expression that has no value for these sizes (a division by 0) holds for none
            s.line(f"try: other_call = {' or '.join(failed)}")
            s.line("except ArithmeticError: other_call = True")
            s.line(f"if other_call: {self.miss}")
        elif failed:
            s.line(f"if {' or '.join(failed)}: {self.miss}")


def _compared_by_equality(context: Any) -> bool:
    """Is ``==`` of such contexts a truth value? Arrays and tensors have none, and a caller that asks for it sees none."""
    if isinstance(context, (tuple, list, set)):
        return all(map(_compared_by_equality, context))
    if isinstance(context, dict):
        return all(map(_compared_by_equality, context.values()))
    return not isinstance(context, torch.Tensor) and type(context).__module__ != "numpy"
