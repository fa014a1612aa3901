"""Operations: schemas, the C++ callables behind them, where bindings live."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._library.utils import is_builtin as is_builtin
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch._ops import OperatorBase, OpOverloadPacket
from torch._ops import OpOverload as OpOverload
from torch.utils._python_dispatch import (
    autograd_would_have_decomposed as autograd_would_have_decomposed,
)

from .wrappers import disabled_torch_function

scaled_mm: Callable[..., torch.Tensor] = torch._scaled_mm
#: ``(tensors, sources)``: ``copy_`` of each source
copy_all: Callable[[list[torch.Tensor], list[torch.Tensor]], None] = torch._foreach_copy_

_core: Any = torch._C

BINDING_HOLDERS: tuple[tuple[str, Any], ...] = (
    ("torch", _core._VariableFunctions),
    ("torch.Tensor", _core.TensorBase),
    ("torch._C._nn", _core._nn),
    ("torch._C._linalg", _core._linalg),
    ("torch._C._special", _core._special),
    ("torch._C._fft", _core._fft),
)


def raw_callable(op: OpOverload) -> Callable[..., Any]:
    """The C++ function behind ``op``: ``op(...)`` without its Python layer."""
    return op._op


def overloads_of(key: object) -> list[Any] | None:
    """The operations that a key of a table stands for: itself, or all overloads of a packet; None
    if it is none."""
    if isinstance(key, OpOverloadPacket):
        packet: Any = key
        return [getattr(packet, name) for name in packet.overloads()]
    return [key] if isinstance(key, OperatorBase) else None


def op_name(op: OpOverload) -> str:
    """The name of ``op`` without namespace and overload: ``add`` of ``aten::add.Tensor``."""
    return str(op._schema.name).rpartition("::")[2]


def is_differentiated_inside(op: Any) -> bool:
    """Does autograd see the operations of the kernel of ``op``? It does where that is Python, and
    nobody has registered a derivative (`torch.library.Library.impl` alone)."""
    if not isinstance(op, (OpOverload, OpOverloadPacket)):
        return False
    known: Any = op
    name = known.name() if isinstance(op, OpOverload) else known._qualified_op_name
    at = name.replace("::", "/")
    kernels: Any = torch.library._impls
    if kernels.isdisjoint(f"{at}/{key}" for key in ("CompositeExplicitAutograd", "CPU", "CUDA")):
        return False
    return not any(
        _core._dispatch_has_kernel_for_dispatch_key(name, key)
        for key in ("Autograd", "AutogradCPU", "AutogradCUDA")
    )


def op_packet(op: OpOverload) -> OpOverloadPacket[Any, Any]:
    """All overloads of that name: ``aten.add`` of ``aten.add.Tensor``."""
    return op._overloadpacket


def op_schema(op: OpOverload) -> Any:
    """The schema of ``op``: its arguments (name, type, default, alias information) and returns."""
    return op._schema


#: ``(op, **arguments)``: what ``op`` gives, and what copies of ``_all_bases`` are after it has
# written to them
auto_functionalized: Any = torch.ops.higher_order.auto_functionalized_v2


def is_custom_write(op: Any) -> bool:
    """Does ``op`` write to arguments, by a schema that somebody else than torch has written, so
    that torch knows no functional form of it?"""
    known = not isinstance(op, OpOverload) or is_builtin(op) or not op._schema.is_mutable
    return not known and not _core._dispatch_has_kernel_for_dispatch_key(op.name(), "Functionalize")


def view_form(op: OpOverload) -> OpOverload | None:
    """The view of which ``op`` gives the shape to its first argument, as ``squeeze`` of
    ``squeeze_``; None without one."""
    packet = getattr(torch.ops.aten, op_name(op).removesuffix("_"), None)
    names = (op._overloadname, "int")  # ``transpose_`` has no overloads, ``transpose`` has
    form = next((getattr(packet, name) for name in names if hasattr(packet, name)), None)
    return form if isinstance(form, OpOverload) and form.is_view else None


class StandIn(torch.Tensor):
    """A tensor without data, with the dispatch keys of a real one. It is passed to operations that
    never run."""

    __torch_function__ = disabled_torch_function

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise NotImplementedError(f"{func} ran on a stand-in")

    @staticmethod
    def make(
        size: tuple[int, ...],
        stride: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        layout: torch.layout,
        requires_grad: bool,
        offset: int = 0,
    ) -> torch.Tensor:
        """A stand-in of this metadata."""
        make: Callable[..., torch.Tensor] = torch.Tensor._make_wrapper_subclass
        return make(
            StandIn, size, stride, offset, None, dtype, layout, device, False, requires_grad
        )


def needs_exact_strides(target: object) -> bool:
    """Must the inputs of this operation have the strides that they have in eager mode?"""
    from torch._library.utils import get_layout_constraint_tag

    return (
        isinstance(target, OpOverload)
        and get_layout_constraint_tag(target) is torch.Tag.needs_exact_strides
    )


def is_effectful(op: Any) -> bool:
    """Is an effect registered for it (``torch.library``'s effect tokens), or does it take a script
    object?"""
    from torch._higher_order_ops import effects

    return effects._get_effect(op) is not None


def indexes_by_numbers(op: Any, args: Any) -> bool:
    """Does an operation index by whole numbers alone? They tell the size of its result; masks,
    because of which it says that it waits for values, do not."""
    masks = (torch.bool, torch.uint8)
    return op is torch.ops.aten.index.Tensor and not any(
        i is not None and i.dtype in masks for i in args[1]
    )
