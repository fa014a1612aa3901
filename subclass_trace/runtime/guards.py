"""Guards: what a call must look like to be served by a specialization. This module is the readable reference.

`failed_guard` returns the first guard that does not hold as a sentence, or None. `entry_code` emits the same checks as
source; tests compare the two. `Ambient` is the state of the thread that decides a trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import torch_api
from ..capture.aliasing import alias_pattern
from ..capture.facts import failed_fact
from ..capture.inputs import has_gradient
from ..plan import InputPlan, Plan
from ..state.guard_code import Reader
from ..state.source import Call
from ..subclass.context import has_sizes, map_sizes, same_context, without_outer
from ..subclass.flatten import leaves_of
from ..subclass.paths import Path
from ..subclass.protocol import Kind, kind_of
from ..subclass.spec import LeafSpec, OpaqueSpec, Spec, WrapperSpec
from ..subclass.visit import VALUE, inner_values
from .sizes import bind, evaluate, holds

Tensor = torch.Tensor


@dataclass(frozen=True)
class Ambient:
    """Thread state that decides a trace: grad mode, inference mode, autocast, determinism, defaults."""

    grad: bool
    inference: bool
    autocast: tuple[Any, ...]
    deterministic: bool
    dtype: torch.dtype
    devices: tuple[torch.device, ...] = ()  # default devices
    dtensor: torch_api.DTensorModes | None = field(default=None, compare=False)  # compared where a trace met a DTensor
    attention: torch_api.AttentionKernels | None = field(default=None, compare=False)  # where it met attention

    @staticmethod
    def now() -> Ambient:
        """The state of this thread."""
        return Ambient(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch_api.autocast_state(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_default_dtype(),
            torch_api.default_devices() or (),
            torch_api.dtensor_modes(),
            torch_api.attention_kernels(),
        )

    def changes(self, now: Ambient) -> str:
        """The fields that are others now, in words; DTensor's have a sentence of their own."""
        pairs = zip(self._words(), now._words(), strict=True)
        return ", ".join(f"{name}: expected {was}, got {got}" for (name, was), (_, got) in pairs if was != got)

    def _words(self) -> tuple[tuple[str, str], ...]:
        on_off = ("off", "on")
        return (
            ("grad mode", on_off[self.grad]),
            ("inference mode", on_off[self.inference]),
            ("autocast", autocast_text(self.autocast)),
            ("deterministic algorithms", on_off[self.deterministic]),
            ("default dtype", str(self.dtype)),
            ("default device", ", ".join(map(str, self.devices)) or "none"),
        )


def autocast_text(state: tuple[Any, ...]) -> str:
    """``off``, or the dtypes: ``bfloat16 on cpu``."""
    if not state:
        return "off"
    *pairs, cache = state
    dtypes = " and ".join(f"{str(dtype).removeprefix('torch.')} on {device}" for device, dtype in pairs)
    return (dtypes or "on for another device") + ("" if cache else " without its cache")


def eager_reason() -> str | None:
    """Why this call must run eagerly: something around it would not see, or would not be served by, a compiled graph."""
    if torch_api.functorch_active():
        return "a functorch transform (vmap, grad, jvp) is active around the call"
    if torch_api.forward_ad_level() >= 0:
        return "a forward-mode AD level is active around the call"
    if torch_api.dispatch_modes_active():
        return "a __torch_dispatch__ mode is active around the call"
    if torch_api.function_modes_active():
        return "a __torch_function__ mode is active around the call"
    if torch_api.jit_tracing():
        return "torch.jit.trace records the call"
    return None


@dataclass(frozen=True, eq=False)
class Guards:
    """All guards of one specialization that are not in its plan's input specs.

    Attributes:
        ambient: the state of the thread.
        reader: of the Python state: its generated function finds the flat arguments.
        alias: how inputs and leaves share memory, where that decided the trace.
    """

    ambient: Ambient
    reader: Reader
    alias: tuple[Any, ...] | None


def failed_ambient(guards: Guards, ambient: Ambient) -> str | None:
    """What of the thread's state is another one now."""
    if ambient != guards.ambient:
        return f"the thread's state: {guards.ambient.changes(ambient)}"
    if guards.ambient.dtensor is not None and ambient.dtensor != guards.ambient.dtensor:
        return f"what is active around DTensors: expected {guards.ambient.dtensor}, got {ambient.dtensor}"
    if guards.ambient.attention is not None and ambient.attention != guards.ambient.attention:
        return f"kernels of scaled_dot_product_attention: expected {guards.ambient.attention}, got {ambient.attention}"
    return None


def failed_guard(plan: Plan, guards: Guards, call: Call, ambient: Ambient) -> str | None:
    """The first guard that fails for this call, as a sentence with a path; None when all hold."""
    reason = failed_ambient(guards, ambient) or guards.reader.failed(call)
    if reason is not None:
        return reason
    flat = [source.read(call) for source in guards.reader.guards.flat]
    return failed_tensor_guard(plan, guards.alias, flat)


def failed_tensor_guard(plan: Plan, alias: tuple[Any, ...] | None, flat: Sequence[Any]) -> str | None:
    """The first guard on tensors that fails for these flat arguments."""
    inputs = [row.of(flat) for row in plan.inputs.rows]
    for row, value in zip(plan.inputs.rows, inputs, strict=True):
        if not isinstance(value, Tensor):
            return f"{row.path}: expected a tensor, got {type(value).__qualname__}"
    for position, number in enumerate(plan.inputs.positions):
        if number is not None and flat[position] is not inputs[number]:
            return f"flat argument {position}: expected the same tensor as {plan.inputs.rows[number].path}"
    if len({id(x) for x in inputs}) != len(inputs):
        return "two inputs are one tensor that were two when the specialization was made"
    for row, value in zip(plan.inputs.rows, inputs, strict=True):
        reason = _structure(row.spec, value, row.path)
        reason = reason or failed_metadata(row, value)
        if reason is not None:
            return reason
    return _failed_leaf_guard(plan, alias, inputs, flat)


def failed_metadata(row: InputPlan, value: Tensor) -> str | None:
    """What the region asked of an input beside its values, or needs to know where it writes it."""
    if row.is_leaf is not None and value.is_leaf != row.is_leaf:
        return f"{row.path}: expected is_leaf={row.is_leaf}"
    if isinstance(value, torch.nn.Parameter) != row.is_parameter:
        return f"{row.path}: expected {'a' if row.is_parameter else 'no'} nn.Parameter"
    if row.requires_grad and torch_api.grad_dtype(value) is not row.grad_dtype:
        return f"{row.path}.grad_dtype: expected {row.grad_dtype}, got {torch_api.grad_dtype(value)}"
    if row.no_gradient and has_gradient(value):
        return f"{row.path}.grad: expected None"
    failed = failed_fact(row.facts, value)
    return None if failed is None else f"{row.path}.{failed}"


def _failed_leaf_guard(
    plan: Plan, alias: tuple[Any, ...] | None, inputs: Sequence[Tensor], flat: Sequence[Any]
) -> str | None:
    table: dict[int, Tensor] = {}
    for row, value in zip(plan.inputs.rows, inputs, strict=True):
        for place, leaf in zip(row.leaves, leaves_of(value), strict=True):
            if table.setdefault(place, leaf) is not leaf:
                return f"{row.path}: an inner tensor is expected to be the same tensor as another one"
    if len({id(t) for t in table.values()}) != plan.inputs.leaf_count:
        return "two inner tensors are one that were two when the specialization was made"
    leaves = [table[k] for k in range(plan.inputs.leaf_count)]
    env = bind(plan, inputs, leaves, flat)
    for m in plan.mutations.rows if not torch.is_inference_mode_enabled() else ():
        if any(leaves[plan.inputs.rows[m.input].leaves[k]].is_inference() for k in m.leaves):
            return f"{plan.inputs.rows[m.input].path}: what the region writes is an inference tensor"
    for condition in plan.inputs.conditions:
        if not holds(condition, env):
            return f"sizes: {condition} with {env}"
    for row, value in zip(plan.inputs.rows, inputs, strict=True):
        try:
            reason = _sizes(row.spec, value, row.path, env, plan.inputs.offsets_matter)
        except ArithmeticError as error:
            return f"{row.path}: {error}"
        if reason is not None:
            return reason
    if alias is not None and alias_pattern(inputs, leaves) != alias:
        return "the inputs share memory in another way"
    return None


def failed_value(spec: Spec, value: Any, env: Mapping[Any, Any]) -> str | None:
    """What of one value is not as its spec says, with the sizes of this call."""
    return _structure(spec, value, VALUE) or _sizes(spec, value, VALUE, env, offsets=False)


def _structure(spec: Spec, value: Any, path: Path) -> str | None:
    """Types, attribute names, contexts, dtypes, devices, requires_grad."""
    if isinstance(spec, OpaqueSpec):
        return None if same_context(spec.value, value) else f"{path}: expected {spec.value!r}, got {value!r}"
    if isinstance(spec, LeafSpec):
        if not isinstance(value, Tensor) or kind_of(type(value)) is not Kind.LEAF:
            return f"{path}: expected a dense tensor, got {type(value).__qualname__}"
    elif type(value) is not spec.cls:
        return f"{path}: expected {spec.cls.__qualname__}, got {type(value).__qualname__}"
    for name in ("dtype", "device", "layout", "requires_grad"):
        if getattr(value, name) != getattr(spec, name):
            return f"{path}.{name}: expected {getattr(spec, name)}, got {getattr(value, name)}"
    if not value.is_nested and value.dim() != len(spec.size):  # its sizes cannot be read before this is known
        return f"{path}.shape: expected {_shape_text(spec.size)}, got {tuple(value.shape)}"
    if isinstance(spec, LeafSpec):
        lazy = (value.is_conj(), value.is_neg())
        return None if lazy == spec.lazy else f"{path}: expected (is_conj(), is_neg()) {spec.lazy}, got {lazy}"
    names, values, context = inner_values(value, path)
    if names != spec.names:
        return f"{path}: expected inner tensors {spec.names}, got {names}"
    # What sizes tell is compared with them, later.
    if not has_sizes(spec.context) and not _same_beside_outer(spec, spec.context, value, context):
        return f"{path}: context: expected {spec.context!r:.200}, got {context!r:.200}"
    for name, inner, inner_spec in zip(names, values, spec.inners, strict=True):
        reason = _structure(inner_spec, inner, path.attr(name))
        if reason is not None:
            return reason
    return None


def _shape_text(sizes: Iterable[Any]) -> str:
    """As Python shows a tuple of numbers; symbols by their names."""
    names = [str(n) for n in sizes]
    return f"({', '.join(names)}{',' if len(names) == 1 else ''})"


def _same_beside_outer(spec: WrapperSpec, expected: Any, value: Tensor, context: Any) -> bool:
    """Is the context as expected, where markers stand for copies of a dynamic outer size?"""
    if spec.has_dynamic_size:
        if same_context(expected, without_outer(context, tuple(value.shape), tuple(value.stride()))):
            return True
    return same_context(expected, context)


def _sizes(spec: Spec, value: Any, path: Path, env: Mapping[Any, int], offsets: bool) -> str | None:
    if isinstance(spec, OpaqueSpec):
        return None
    expected = tuple(evaluate(s, env) for s in spec.size)
    if not value.is_nested and tuple(value.shape) != expected:
        return f"{path}.shape: expected {_shape_text(spec.size)}, got {tuple(value.shape)}"
    if not value.is_nested and value.layout is torch.strided:
        strides = tuple(evaluate(s, env) for s in spec.stride)
        if tuple(value.stride()) != strides:
            return f"{path}.stride(): expected {strides}, got {tuple(value.stride())}"
        if offsets and isinstance(spec, LeafSpec) and value.storage_offset() != evaluate(spec.storage_offset, env):
            return f"{path}.storage_offset(): expected {spec.storage_offset}, got {value.storage_offset()}"
    if isinstance(spec, WrapperSpec):
        if has_sizes(spec.context):
            context = inner_values(value, path)[2]
            expected = map_sizes(spec.context, lambda n: evaluate(n, env))
            if not _same_beside_outer(spec, expected, value, context):
                return f"{path}: expected context {expected!r}, got {context!r}"
        for name, inner in zip(spec.names, spec.inners, strict=True):
            reason = _sizes(inner, getattr(value, name), path.attr(name), env, offsets)
            if reason is not None:
                return reason
    return None
