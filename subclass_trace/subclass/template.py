"""Template constructors: building a wrapper without running its ``__tensor_unflatten__``.

An unflatten costs 3 to 8 microseconds; ``_make_wrapper_subclass`` and a few ``setattr`` cost one. A
template is used only after it was compared with the author's unflatten, attribute by attribute, on
two sets of inner tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ..torch_api.fakes import fake_mode
from ..torch_api.kinds import dispatch_keys
from ..torch_api.modes import DispatchLog
from ..torch_api.symbols import ShapeEnv
from ..torch_api.wrappers import build_wrapper
from .context import fresh, is_fixed, same_context, with_outer
from .protocol import unflatten_of
from .spec import LeafSpec, OpaqueSpec, SizeExpr, Spec, WrapperSpec

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class Template:
    """How to build one level of a wrapper: metadata of the outer tensor, and attributes that are
    the same in each."""

    dtype: torch.dtype
    layout: torch.layout
    device: torch.device
    storage_offset: int
    constants: tuple[tuple[str, Any], ...]


def template_of(spec: WrapperSpec, example: Callable[[Spec], Any]) -> Template | None:
    """The verified template for this level of ``spec``, or None when its unflatten must run.

    Args:
        example: makes a value of an inner spec (a fake tensor, or a wrapper of fake tensors).
    """
    slots = any(
        getattr(k, "__slots__", ()) for k in spec.cls.__mro__ if k is not Tensor and k is not object
    )
    sized = any(isinstance(n, (SizeExpr, torch.SymInt)) for n in (*spec.size, *spec.stride))
    if slots or sized or any(isinstance(s, OpaqueSpec) for s in spec.inners):
        return None
    inner, other = (
        {n: example(s) for n, s in zip(spec.names, spec.inners, strict=True)} for _ in range(2)
    )
    value, again = _built(spec, inner), _built(spec, other)
    if (
        not _is_usable(spec, value)
        or set(vars(value)) != set(vars(again))
        or not set(spec.names) <= set(vars(value))
    ):
        return None
    constants = {k: v for k, v in vars(value).items() if k not in spec.names}
    if not all(_is_immutable(v) and same_context(v, vars(again)[k]) for k, v in constants.items()):
        return None
    template = Template(
        value.dtype,
        value.layout,
        value.device,
        int(value.storage_offset()),
        tuple(constants.items()),
    )
    return template if _indistinguishable(value, build(template, spec, inner)) else None


def build(template: Template, spec: WrapperSpec, inner: dict[str, Any]) -> Tensor:
    """What the generated code does, for comparison and for the reader."""
    value = build_wrapper(
        spec.cls,
        spec.size,
        spec.stride,
        template.storage_offset,
        template.dtype,
        template.layout,
        template.device,
    )
    for name, held in (*template.constants, *inner.items()):
        setattr(value, name, held)
    return value


def _built(spec: WrapperSpec, inner: dict[str, Any]) -> Tensor:
    context = with_outer(spec.context, spec.size, spec.stride)
    return unflatten_of(spec.cls)(inner, context, torch.Size(spec.size), spec.stride)


def _is_usable(spec: WrapperSpec, value: Tensor) -> bool:
    return (
        type(value) is spec.cls
        and not value.requires_grad
        and hasattr(value, "__dict__")
        and value.is_leaf
    )


def _is_immutable(value: Any) -> bool:
    return all(map(_is_immutable, value)) if isinstance(value, tuple) else is_fixed(value)


def _indistinguishable(a: Tensor, b: Tensor) -> bool:
    mine, theirs = vars(a), vars(b)
    if set(mine) != set(theirs) or not all(same_context(v, theirs[k]) for k, v in mine.items()):
        return False
    # a class with a size or stride policy of its own answers by dispatch
    with DispatchLog() as log:
        same = all(f(a) == f(b) for f in _PROPERTIES)
    return same and not log.operations and dispatch_keys(a) == dispatch_keys(b)


_PROPERTIES: tuple[Callable[[Tensor], Any], ...] = (
    lambda t: tuple(t.shape),
    lambda t: tuple(t.stride()),
    lambda t: t.storage_offset(),
    lambda t: (t.dtype, t.device, t.layout, t.requires_grad, t.is_contiguous()),
    lambda t: t.untyped_storage().nbytes(),
)


#: what decides a template -> a spec that has it, and the template, if there is one
Verified: TypeAlias = dict[Any, tuple[WrapperSpec, Template | None]]


class Examples:
    """Makes fake values of specs under a fake mode, and remembers the templates that were verified
    on them.

    Args:
        hint: turns dynamic sizes into numbers.
        mode: where there is none, one is made when it is needed.
        verified: templates that are known by now; what is found is added.
    """

    def __init__(
        self, hint: Callable[[Any], int], mode: Any = None, verified: Verified | None = None
    ) -> None:
        self._mode, self.hint = mode, hint
        self._verified: Verified = {} if verified is None else verified

    @property
    def mode(self) -> Any:
        """The fake mode."""
        if self._mode is None:
            self._mode = fake_mode(ShapeEnv())
        return self._mode

    def make(self, spec: Spec) -> Any:
        """A value of this spec, of fake leaves."""
        if isinstance(spec, OpaqueSpec):
            return fresh(spec.value)
        size, stride = tuple(map(self.hint, spec.size)), tuple(map(self.hint, spec.stride))
        if isinstance(spec, LeafSpec):
            offset = self.hint(spec.storage_offset)
            with self.mode, torch.no_grad():
                made = torch.empty_strided(size, stride, dtype=spec.dtype, device=spec.device)
                if not offset:
                    return made
                room = offset + made.untyped_storage().nbytes() // made.element_size()
                # some classes repeat it
                return made.set_(made.new_empty(room).untyped_storage(), offset, size, stride)
        inner = {n: self.make(s) for n, s in zip(spec.names, spec.inners, strict=True)}
        return unflatten_of(spec.cls)(
            inner, with_outer(spec.context, size, stride), torch.Size(size), stride
        )

    def template(self, spec: WrapperSpec) -> Template | None:
        """The verified template of one level; equal specs (the layers of a model) are verified
        once."""
        key = template_key(spec)
        if key is None:
            return template_of(spec, self.make)
        if key not in self._verified:
            self._verified[key] = spec, template_of(spec, self.make)
        return self._verified[key][1]


def template_key(spec: Spec) -> Any:
    """What decides a template, hashable; None where a context may not be compared by hash."""
    if isinstance(spec, OpaqueSpec):
        return None
    meta = (spec.size, spec.stride, spec.storage_offset, spec.dtype, spec.device, spec.layout)
    if isinstance(spec, LeafSpec):
        return meta
    inners = tuple(map(template_key, spec.inners))
    if None in inners or not _is_immutable(spec.context):
        return None
    return (spec.cls, spec.names, _typed(spec.context), meta, inners)


def _typed(value: Any) -> Any:
    """A context as a key: 1, 1.0 and True are three, 0.0 and -0.0 are two."""
    if isinstance(value, tuple):
        return (type(value), *map(_typed, value))
    return type(value), repr(value) if isinstance(value, (float, complex)) else value
