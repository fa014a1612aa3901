"""Guards: what a call must look like to be served by a specialization. This module is the readable reference.

`failed_guard` returns the first guard that does not hold as a sentence, or None. `codegen` emits the same checks as
source; tests compare the two. `Ambient` is the state of the thread that decides a trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import _torch
from ..capture.aliasing import alias_pattern
from ..capture.facts import failed_fact
from ..capture.inputs import has_gradient
from ..capture.user_code import is_library
from ..plan import InputPlan, Plan
from ..subclass.arguments import same_argument
from ..subclass.context import has_sizes, map_sizes, same_context, without_outer
from ..subclass.flatten import leaves_of
from ..subclass.kept import difference
from ..subclass.parts import read_lent
from ..subclass.paths import Path, owner_of
from ..subclass.protocol import Kind, class_of_leaf, kind_of
from ..subclass.spec import LeafSpec, OpaqueSpec, Spec, WrapperSpec, spec_leaves
from ..subclass.visit import inner_values
from .held import ABSENT, Same, as_held, is_log
from .one_object import KnownTensors, OneObject
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
    dtensor: _torch.DTensorModes | None = field(default=None, compare=False)  # compared where a trace met a DTensor
    attention: _torch.AttentionKernels | None = field(default=None, compare=False)  # where it met attention

    @staticmethod
    def now() -> Ambient:
        """The state of this thread."""
        return Ambient(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            _torch.autocast_state(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_default_dtype(),
            _torch.default_devices() or (),
            _torch.dtensor_modes(),
            _torch.attention_kernels(),
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
    if _torch.functorch_active():
        return "a functorch transform (vmap, grad, jvp) is active around the call"
    if _torch.forward_ad_level() >= 0:
        return "a forward-mode AD level is active around the call"
    if _torch.dispatch_modes_active():
        return "a __torch_dispatch__ mode is active around the call"
    if _torch.function_modes_active():
        return "a __torch_function__ mode is active around the call"
    if _torch.jit_tracing():
        return "torch.jit.trace records the call"
    return None


def caches_parametrizations(modules: Iterable[torch.nn.Module]) -> bool:
    """Are there parametrized modules, whose tensors ``torch.nn.utils.parametrize.cached()`` keeps from call to call?"""
    return _torch.parametrizations_cached() and any("parametrizations" in module._modules for module in modules)


#: where a module keeps its hooks
HOOK_TABLES = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


#: set up in each module; tensors, hooks and children have guards of their own
OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))


def compared_attributes(module: torch.nn.Module) -> list[str]:
    """The names of the attributes of a module that guards look at."""
    library = is_library(type(module))
    return [k for k in vars(module) if not (k.startswith("_") if library else k in OF_EVERY_MODULE)]


@dataclass(frozen=True, eq=False)
class ModuleGuard:
    """What of a module decides a trace beside its tensors: which object it is, its training flag, its hooks.

    ``attributes``: those that are no tensors, and an instance's own ``forward``, as `as_held` sees them; of modules of
    torch and of installed libraries the public ones. ``children``: those under their names; one may have several names.
    """

    module: torch.nn.Module
    cls: type
    training: bool
    hooks: tuple[int, ...]
    attributes: tuple[tuple[str, Any], ...] = ()
    children: tuple[tuple[str, torch.nn.Module | None], ...] = ()

    @staticmethod
    def of(module: torch.nn.Module, counters: frozenset[str] = frozenset()) -> ModuleGuard:
        """The guard for a module as it is now; ``counters``: attributes that the region only moves on, or appends to."""
        held = {k: v for k, v in vars(module).items() if k not in counters or not is_log(v)}
        names = [k for k in compared_attributes(module) if k in held]
        rows = [(k, as_held(held[k])) for k in names if not isinstance(held[k], Tensor)]
        hooks = [number for table in HOOK_TABLES for number in vars(module)[table]]  # no two hooks have one number
        own = tuple(row for row in rows if row[0] != "training")
        return ModuleGuard(module, type(module), module.training, tuple(hooks), own, tuple(module._modules.items()))

    def failed(self, now: ModuleGuard) -> str | None:
        """How the module differs now, as a sentence; None if it does not."""
        name = self.cls.__qualname__
        if self.module is not now.module:
            return f"a module {name} is another object"
        if self.cls is not now.cls:
            return f"a module {self.cls.__qualname__} is a {now.cls.__qualname__} now"
        if self.training != now.training:
            return f"a module {name}: expected training={self.training}, got {now.training}"
        if self.hooks != now.hooks:
            return f"a module {name} has other hooks"
        if len(self.children) == len(now.children):  # else it is told what is another object
            for (key, child), (other, is_now) in zip(self.children, now.children, strict=True):
                if key != other or child is not is_now:
                    return f"a module {name}: another module is its {key!r}"
        was, held = dict(self.attributes), dict(now.attributes)
        changed = sorted({*was} ^ {*held} | {k for k in was if k in held and not same_context(was[k], held[k])})
        return f"a module {name}: another value of {', '.join(changed)}" if changed else None


@dataclass(frozen=True, eq=False)
class NameGuard:
    """A closure cell (``key`` None), a global or an attribute that the function names, or a member of a class or function,
    and what it held (`as_held`)."""

    holder: Any
    key: str | None
    value: Any
    path: Path

    def holds(self) -> bool:
        """Does it hold the same?"""
        try:
            now = self.holder.cell_contents if self.key is None else self.holder.get(self.key, ABSENT)
        except ValueError:  # the cell was emptied
            now = ABSENT
        return now is self.value.value if type(self.value) is Same else same_context(self.value, as_held(now))


@dataclass(frozen=True, eq=False)
class Guards:
    """All guards of one specialization that are not in its plan's input specs."""

    ambient: Ambient
    tree: Any
    constants: Mapping[int, Any]  # flat position -> snapshot of a non-tensor argument
    alias: tuple[Any, ...] | None
    modules: tuple[ModuleGuard, ...] = ()
    states: tuple[tuple[int, str, str], ...] = ()
    names: tuple[NameGuard, ...] = ()
    hooks: tuple[int, ...] = ()  # hooks of all modules
    one_object: OneObject = field(default_factory=OneObject)
    tensors: KnownTensors = field(default_factory=KnownTensors)


@dataclass(frozen=True, eq=False)
class ModuleView:
    """The modules that a call uses, their state slots (owner id, table, name), and the hooks of all modules."""

    modules: tuple[ModuleGuard, ...] = ()
    states: tuple[tuple[int, str, str], ...] = ()
    hooks: tuple[int, ...] = ()


def failed_module_guard(guards: Guards, now: ModuleView) -> str | None:
    """The first guard on modules that fails, as a sentence; None when all hold."""
    for was, is_now in zip(guards.modules, now.modules, strict=False):
        reason = was.failed(is_now)
        if reason is not None:
            return reason
    if guards.hooks != now.hooks:
        return "there are other hooks of all modules (register_module_forward_hook and the like)"
    if len(guards.modules) != len(now.modules) or guards.states != now.states:
        return "the modules have other parameters, buffers or sub-modules"
    return None


def failed_guard(
    plan: Plan,
    guards: Guards,
    tree: Any,
    flat: Sequence[Any],
    ambient: Ambient,
    modules: ModuleView | None = None,
    given: Sequence[Any] = ((), {}),
) -> str | None:
    """The first guard that fails for this call, as a sentence with a path; None when all hold.

    ``given``: ``args`` and ``kwargs``.
    """
    if ambient != guards.ambient:
        return f"the thread's state: {guards.ambient.changes(ambient)}"
    if guards.ambient.dtensor is not None and ambient.dtensor != guards.ambient.dtensor:
        return f"what is active around DTensors: expected {guards.ambient.dtensor}, got {ambient.dtensor}"
    if guards.ambient.attention is not None and ambient.attention != guards.ambient.attention:
        return f"kernels of scaled_dot_product_attention: expected {guards.ambient.attention}, got {ambient.attention}"
    if tree != guards.tree:
        return f"the structure of the arguments: expected {guards.tree}, got {tree}"
    for name in guards.names:
        if not name.holds():
            return f"{name.path} is bound to another object, or has another value"
    reason = failed_module_guard(guards, modules or ModuleView())
    if reason is not None:
        return reason
    for position, value in guards.constants.items():
        if not same_argument(value, flat[position]):
            return f"flat argument {position}: expected {value!r}, got {flat[position]!r}"
    if not guards.one_object.holds(*given):
        return "other containers are one object than when the specialization was made"
    return _failed_tensor_guard(plan, guards, flat, given)


def _failed_tensor_guard(plan: Plan, guards: Guards, flat: Sequence[Any], given: Sequence[Any]) -> str | None:
    for row in plan.inputs:
        if not isinstance(row.of(flat), Tensor):
            return f"{row.path}: expected a tensor, got {type(row.of(flat)).__qualname__}"
    inputs = [row.of(flat) for row in plan.inputs]
    for position, number in enumerate(plan.positions):
        if number is not None and not _stands_for(flat[position], inputs[number], position in plan.through_base):
            return f"flat argument {position}: expected the same tensor as {plan.inputs[number].path}"
    if len({id(x) for x in inputs}) != len(inputs):
        return "two inputs are one tensor that were two when the specialization was made"
    for row, value in zip(plan.inputs, inputs, strict=True):
        reason = _structure(row.spec, value, row.path)
        reason = reason or failed_metadata(row, value)
        for name, number in row.inside if reason is None else ():
            if getattr(*owner_of(value, name)) is not inputs[number]:
                reason = f"{row.path}.{name}: expected to be the same tensor as {plan.inputs[number].path}"
        if reason is not None:
            return reason
    found = [[read_lent(mark, inputs) for mark in row] for row in plan.configurations]
    if any(v is not row[0] for row in found for v in row) or len({id(row[0]) for row in found}) != len(found):
        return "other inputs have one object in their contexts than when the specialization was made"
    return _failed_leaf_guard(plan, guards, inputs, flat)


def failed_metadata(row: InputPlan, value: Tensor) -> str | None:
    """What the region asked of an input beside its values, or needs to know where it writes it."""
    if row.is_leaf is not None and value.is_leaf != row.is_leaf:
        return f"{row.path}: expected is_leaf={row.is_leaf}"
    if row.is_parameter is not None and isinstance(value, torch.nn.Parameter) != row.is_parameter:
        return f"{row.path}: expected {'a' if row.is_parameter else 'no'} nn.Parameter"
    if row.no_gradient and has_gradient(value):
        return f"{row.path}.grad: expected None"
    failed = failed_fact(row.facts, value)
    return None if failed is None else f"{row.path}.{failed}"


def _stands_for(value: Any, expected: Tensor, through_base: bool) -> bool:
    if through_base:
        return isinstance(value, Tensor) and value._base is expected
    return value is expected


def _failed_leaf_guard(plan: Plan, guards: Guards, inputs: Sequence[Tensor], flat: Sequence[Any]) -> str | None:
    table: dict[int, Tensor] = {}
    for row, value in zip(plan.inputs, inputs, strict=True):
        for place, leaf in zip(row.leaves, leaves_of(value), strict=True):
            if table.setdefault(place, leaf) is not leaf:
                return f"{row.path}: an inner tensor is expected to be the same tensor as another one"
    if len({id(t) for t in table.values()}) != plan.leaf_count:
        return "two inner tensors are one that were two when the specialization was made"
    leaves = [table[k] for k in range(plan.leaf_count)]
    env = bind(plan, inputs, leaves, flat)
    for m in plan.mutations if not torch.is_inference_mode_enabled() else ():
        if any(leaves[plan.inputs[m.input].leaves[k]].is_inference() for k in m.in_program):
            return f"{plan.inputs[m.input].path}: what the program writes is an inference tensor"
    for condition in plan.conditions:
        if not holds(condition, env):
            return f"sizes: {condition} with {env}"
    for row, value in zip(plan.inputs, inputs, strict=True):
        try:
            reason = _sizes(row.spec, value, row.path, env, plan.offsets_matter)
        except ArithmeticError as error:
            return f"{row.path}: {error}"
        if reason is not None:
            return reason
    for position, spec in plan.through_base.items():
        number = plan.positions[position]
        assert number is not None
        reason = failed_view(spec, plan.inputs[number], flat[position], inputs[number], env)
        if reason is not None:
            return f"flat argument {position}, {reason}"
    for above, wanted in plan.apart:
        if _torch.leads_to([inputs[k] for k in above], [inputs[k] for k in wanted]):
            return "one input was computed of another, and was not when the specialization was made"
    if not guards.tensors.holds(inputs, leaves):
        return "other inputs are tensors that stand in containers too"
    if guards.alias is not None and alias_pattern(inputs, leaves) != guards.alias:
        return "the inputs share memory in another way"
    return None


def failed_view(spec: Spec, row: InputPlan, value: Tensor, base: Tensor, env: Mapping[Any, int]) -> str | None:
    """Is a view of an input, which stands for it, laid out as it was?

    Args:
        spec: of the view that was traced.
        row: the plan of the input ``base``.
    """
    path = row.path.attr("view")
    reason = _structure(spec, value, path) or _sizes(spec, value, path, env, offsets=False)
    if reason is not None:
        return reason
    known = zip(spec_leaves(spec), spec_leaves(row.spec), strict=False)
    found = zip(leaves_of(value), leaves_of(base), strict=False)
    for (view, whole), (now, of) in zip(known, found, strict=True):
        start = evaluate(view.storage_offset, env) - evaluate(whole.storage_offset, env)
        if now.storage_offset() - of.storage_offset() != start:
            return f"{path}: expected to start {start} elements after its base"
    return None


def _structure(spec: Spec, value: Any, path: Path) -> str | None:
    """Types, attribute names, contexts, dtypes, devices, requires_grad."""
    if isinstance(spec, OpaqueSpec):
        return None if same_context(spec.value, value) else f"{path}: expected {spec.value!r}, got {value!r}"
    if isinstance(spec, LeafSpec):
        if not isinstance(value, Tensor) or kind_of(type(value)) is not Kind.LEAF:
            return f"{path}: expected a dense tensor, got {type(value).__qualname__}"
        if class_of_leaf(value) is not spec.cls:
            return f"{path}: expected {spec.cls.__qualname__}, got {type(value).__qualname__}"
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
        return f"{path}: {difference(spec.context, context)}"
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
