"""The reference interpreter: what a specialization does in one call, step by step, read from its plan.

It is the oracle for the generated code (`codegen`), and what runs when a plan uses something that is not generated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import torch_api
from ..capture.aliasing import byte_range
from ..plan import (
    BasePrimal,
    ConstantOutput,
    GradientOutput,
    InputOutput,
    LeafPrimal,
    MutationPlan,
    OutputPlan,
    Plan,
    Primal,
    RaggedOutput,
    SameOutput,
    SizeOutput,
    ViewOutput,
)
from ..subclass.flatten import leaves_of
from ..subclass.parts import marks_in, read_lent, with_lent
from ..subclass.paths import owner_of
from ..subclass.protocol import REAL
from ..subclass.visit import rebuild
from .backward import Backwards
from .changed_contexts import changeable, watch_contexts
from .function import Protected, RegionFunction
from .rebuild import replay_view, share
from .sizes import bind, evaluate, evaluator
from .writeback import deliver, set_version

Tensor = torch.Tensor
Boxed = Callable[[list[Any]], Sequence[Any]]


@dataclass(eq=False)
class Call:
    """The state of one call: inputs, their dense leaves, symbol values; sizes are filled in by the forward."""

    inputs: list[Tensor]
    leaves: list[Tensor]
    env: dict[Any, int]
    sizes: list[Any] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Program:
    """A plan with its compiled graphs."""

    plan: Plan
    forward: Boxed
    backwards: Backwards | None

    def __call__(self, flat: Sequence[Any]) -> list[Any]:
        """Flat outputs for flat arguments. The guards must hold."""
        call = self.prepare(flat)
        for m in self.plan.mutations:
            if m.starts_grad:
                call.inputs[m.input].requires_grad_()
        if self.plan.trains:  # also under no_grad: the region may enable gradients itself
            differentiated = [call.inputs[i] for i in self.plan.differentiated]
            with torch.enable_grad():
                values = list(torch_api.apply_function(RegionFunction, self, call, *differentiated))
            watch_contexts(self.plan, changeable(self.plan), call.inputs, values)
        else:
            with torch.no_grad():
                values, call.sizes, _ = self.run_forward(call)
        return finish(self.plan, call, values, flat)

    def prepare(self, flat: Sequence[Any]) -> Call:
        """Take the inputs apart."""
        plan = self.plan
        inputs = [row.of(flat) for row in plan.inputs]
        table: list[Any] = [None] * plan.leaf_count
        for row, value in zip(plan.inputs, inputs, strict=True):
            for place, leaf in zip(row.leaves, leaves_of(value), strict=True):
                table[place] = leaf
        env = bind(plan, inputs, table, flat)
        env.update({mark: read_lent(mark, inputs) for mark in plan.lent})
        return Call(inputs, table, env)

    def run_forward(self, call: Call) -> tuple[list[Tensor], list[Any], list[Any]]:
        """Values (rewrapped), symbolic sizes, saved activations (dense)."""
        plan = self.plan
        args = [primal_value(p, call) for p in plan.primals]
        with torch_api.disable_autocast():
            flat = list(self.forward(args))
        for k in plan.detach_values:
            flat[k] = flat[k].detach()
        count = plan.forward_leaves
        if plan.unbacked:
            call.env = {**call.env, **{symbol: flat[count + k] for symbol, k in plan.unbacked}}
        parts, sizes = iter(flat[:count]), evaluator(call.env)
        values = [rebuild(spec, parts, sizes) for spec in plan.values]
        share_values(plan, call, values, within=True)
        return values, flat[count : count + plan.size_outputs], flat[count + plan.size_outputs :]


def primal_value(primal: Primal, call: Call) -> Any:
    """The value of one graph input."""
    if isinstance(primal, LeafPrimal):
        leaf = call.leaves[primal.leaf]
        return leaf
    if isinstance(primal, BasePrimal):
        return base_value(primal, call.leaves, evaluate(primal.numel, call.env))
    return evaluate(primal.size, call.env)


def base_value(primal: BasePrimal, leaves: Sequence[Tensor], numel: int) -> Tensor:
    """A flat view over the memory that the members share; no copy. Its storage starts where it does: a graph makes the
    members of it by their places."""
    width = primal.dtype.itemsize
    start = min(byte_range(leaves[k]).start for k in primal.members)
    leaf = leaves[primal.members[0]]
    storage = leaf.untyped_storage()
    with torch.no_grad():
        flat = torch.empty(0, dtype=primal.dtype, device=leaf.device)
        return flat.set_(storage[start : start + numel * width] if start else storage, 0, (numel,), (1,))


def finish(plan: Plan, call: Call, values: Sequence[Tensor], flat: Sequence[Any]) -> list[Any]:
    """Deliver mutations, then make the results: whatever views an input sees its new contents."""
    values = list(values)
    old = {m.input: leaves_of(call.inputs[m.input]) for m in plan.mutations if not _is_done(m, call)}
    share_values(plan, call, values, within=False)
    for m in plan.mutations:
        new, x = None if m.value is None else values[m.value], call.inputs[m.input]
        # From where it stands now: an input may share its counter with one that was delivered before (x, x.detach()).
        version = None if x.is_inference() else x._version
        if m.input in old:
            deliver(m, plan.inputs[m.input], x, new, old[m.input], call.env)
        if version is not None:
            set_version(x, version + m.version_bumps - m.moved)
    results: list[Any] = []
    for o in plan.outputs:
        if isinstance(o, SameOutput):
            results.append(results[o.result])
        else:
            results.append(make_output(o, call, values, flat))
    for number, output in plan.gradients:
        call.inputs[number].grad = results[output]
    if plan.grad_mode_after is not None:
        torch.set_grad_enabled(plan.grad_mode_after)
    return results


def _is_done(m: MutationPlan, call: Call) -> bool:
    """Has the program written all there is, so that only the version is left? Of dense inputs alone."""
    x = call.inputs[m.input]
    if not m.in_program or m.copied or m.metadata is not None or m.attributes:
        return False
    plain = not m.differentiable and type(x) in REAL
    return plain and (torch.is_inference_mode_enabled() or not x.is_inference())


def share_values(plan: Plan, call: Call, values: list[Tensor], within: bool) -> None:
    """Put what lies in other memory there: values with a history inside the autograd function, others outside of it."""
    for row in plan.aliases:
        if row.within is within:
            values[row.value] = share(row, values[row.value], values, call.inputs, call.leaves, call.env)


def make_output(o: OutputPlan, call: Call, values: Sequence[Tensor], flat: Sequence[Any]) -> Any:
    """One flat result."""
    if isinstance(o, ConstantOutput):
        return with_lent(o.value, call.env) if marks_in((), [o.value]) else o.value
    if isinstance(o, SizeOutput):
        return call.sizes[o.index]
    if isinstance(o, RaggedOutput):
        return evaluate(o.size, call.env)
    if isinstance(o, InputOutput):
        return flat[o.position]
    if isinstance(o, GradientOutput):
        return call.inputs[o.input]
    assert not isinstance(o, SameOutput)
    if isinstance(o, ViewOutput):
        base = call.inputs[o.base] if o.of_input else values[o.base]
        value = replay_view(o, base, call.env)
    else:
        value = values[o.value]
        if o.protected and value.requires_grad:
            value = torch_api.apply_function(Protected, value)
    for name, attribute in o.attributes.items():
        owner, last = owner_of(value, name)
        setattr(owner, last, with_lent(attribute, call.env))
    return value
