"""Generated source for one specialization: guard, unwrap, call, rewrap, straight down.

An entry is ``(args, kwargs) -> result``, or `MISS` when a guard fails: where `guards.failed_guard` finds a
reason. Print ``specialization.source`` to read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .. import torch_api
from ..state.values import MISSING
from ..subclass.template import Examples
from .call_code import Entry, EntryEmitter
from .emit import symbol_lines, tensor_checks, tuple_code
from .finish import Program
from .guards import Guards
from .value_code import ValueEmitter, emit_effects

Tensor = torch.Tensor


class GuardedEmitter(EntryEmitter):
    """The entry of a region: Python state and thread state are compared first.

    ``flat``: the flat arguments of the call that it is made for; ``examples`` makes fake values of specs, to verify template
    constructors.
    """

    def __init__(self, program: Program, guards: Guards, flat: Sequence[Any], examples: Examples) -> None:
        super().__init__(program, guards.ambient, guards.alias, flat, examples)
        self.guards = guards

    def emit(self) -> Entry:
        """Write the entry from top to bottom."""
        s = self.source
        s.line("def entry(args, kwargs):")
        s.depth = 1
        self._ambient()
        flat, entries = self._read()
        s.line("try:")
        s.depth = 2
        start = len(s.lines)
        inputs = self._inputs(flat)
        leaves = self._unwrap(inputs)
        symbols = symbol_lines(self.plan, s, flat, inputs, leaves)  # of what may be another kind of argument
        if len(s.lines) == start:
            s.line("pass")
        s.depth = 1
        s.line("except (AttributeError, IndexError, KeyError, TypeError, ValueError): return MISS")
        if symbols:  # an expression that has no value for these sizes (a division by 0) holds for none
            s.line("try:")
            s.depth = 2
        checks = tensor_checks(s, self.unwrapper.checks, self.values, symbols, self._env(symbols))
        s.line(f"if not ({checks}): return MISS")
        self._rest_of_guards(inputs, leaves, symbols)
        if symbols:
            s.depth = 1
            s.line("except ArithmeticError: return MISS")
        self._deliver(self._run(flat, inputs, leaves, symbols), entries)
        return Entry(s.build("entry", "entry"), s.text())

    def _read(self) -> tuple[list[str], list[str]]:
        """Find the flat arguments, while the guards on Python state hold."""
        s, state = self.source, self.guards.reader.guards
        flat = [f"x{k}" for k in range(len(state.flat))]
        entries = [f"e{k}" for k in range(len(state.entries))]
        s.line(f"r = {s.bind('read', self.guards.reader.read)}(args, kwargs)")
        s.line("if r is None: return MISS")
        if flat or entries:
            s.line(f"{tuple_code([*flat, *entries])}= r")
        return flat, entries

    def _deliver(self, outputs: Sequence[str], entries: Sequence[str]) -> None:
        """Do the side effects, and return the result."""
        s, plan = self.source, self.plan
        values = ValueEmitter(s, outputs, entries)
        if not plan.side_effects:
            s.line(f"return {values.value(plan.results.recipe)}")
            return
        s.line(f"result = {values.value(plan.results.recipe)}")
        emit_effects(values, plan.side_effects, MISSING)
        s.line("return result")

    def _ambient(self) -> None:
        """Thread state; modes and transforms around the call lead to the slow path, which decides what to do."""
        s, a = self.source, self.ambient
        s.bind("grad_enabled", torch_api.grad_enabled)
        s.bind("inference", torch.is_inference_mode_enabled)
        s.bind("any_autocast", torch_api.any_autocast)
        s.bind("functorch", torch_api.peek_functorch)
        s.bind("dispatch_modes", torch_api.dispatch_stack_length)
        s.bind("function_modes", torch_api.function_stack_length)
        s.bind("default_devices", torch_api.default_devices)
        s.bind("forward_ad", torch_api.forward_ad)
        s.bind("deterministic", torch.are_deterministic_algorithms_enabled)
        s.bind("default_dtype", torch.get_default_dtype)
        parts = [
            f"grad_enabled() is not {a.grad}",
            f"inference() is not {a.inference}",
            "functorch() is not None",
            "dispatch_modes()",
            "function_modes()" if not a.devices else f"default_devices() != {s.constant(a.devices, 'devices')}",
            "forward_ad._current_level >= 0",
            f"deterministic() is not {a.deterministic}",
            f"default_dtype() is not {s.constant(a.dtype)}",
        ]
        if a.autocast:
            s.bind("autocast_state", torch_api.autocast_state)
            parts.append(f"autocast_state() != {s.constant(a.autocast, 'autocast')}")
        else:
            parts.append("any_autocast()")
        if a.dtensor is not None:
            parts.append(
                torch_api.other_dtensor_modes_code(s.bind("dtensor", torch_api.dtensor_dispatcher()), a.dtensor)
            )
        if a.attention is not None:
            parts.append(torch_api.other_attention_code(a.attention, s.bind))
        s.line(f"if ({' or '.join(parts)}): return MISS")
