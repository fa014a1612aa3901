"""Building wrapper subclasses."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _python_dispatch

return_and_correct_aliasing: Callable[..., Any] = _python_dispatch.return_and_correct_aliasing

make_wrapper_subclass: Callable[..., torch.Tensor] = torch.Tensor._make_wrapper_subclass

disabled_torch_function: Any = torch._C._disabled_torch_function_impl


def build_wrapper(
    cls: type, size: Any, stride: Any, offset: int, dtype: Any, layout: Any, device: Any
) -> torch.Tensor:
    """``Tensor._make_wrapper_subclass`` with positional arguments (a quarter faster than by
    keyword)."""
    return make_wrapper_subclass(
        cls, size, stride, offset, None, dtype, layout, device, False, False
    )


def context_shortcut(cls: type) -> str | None:
    """An attribute of which the flatten context (and any opaque attribute) is a function; None when
    there is none known."""
    return "_spec" if is_dtensor(cls) else None


def is_dtensor(cls: type) -> bool:
    """Is it DTensor itself?"""
    if cls.__name__ != "DTensor" or not cls.__module__.startswith("torch.distributed"):
        return False
    from torch.distributed.tensor import DTensor

    return cls is DTensor


def placement_data(value: object) -> list[Any] | None:
    """A placement of DTensor's by class and numbers; None of anything else."""
    module = sys.modules.get("torch.distributed.tensor.placement_types")
    name = type(value).__name__
    if module is None or vars(module).get(name) is not type(value) or name not in _PLACEMENTS:
        return None
    return [name, *(getattr(value, field) for field in _PLACEMENTS[name])]


def placement_of(name: str, *numbers: Any) -> Any:
    """The placement that was written.

    Raises:
        KeyError: no such class, or DTensor is not loaded.
    """
    cls = vars(sys.modules["torch.distributed.tensor.placement_types"])[name]
    return cls(**dict(zip(_PLACEMENTS[name], numbers, strict=True)))


#: the metaclass of classes of torch's C++ code, and that of their static members
CLASSES_OF_PYBIND: tuple[type, ...] = (
    type(torch._C.DispatchKey),
    type(vars(torch._C.DispatchKey).get("__members__")),
)
#: modules whose functions of C say of no module that they are its own
MODULES_OF_C = (
    "torch",
    "torch._C",
    "torch._C._nn",
    "torch._VF",
    "torch._C._linalg",
    "torch._C._special",
    "torch._C._fft",
)
_PLACEMENTS = {
    "Shard": ("dim",),
    "Replicate": (),
    "Partial": ("reduce_op",),
    "_StridedShard": ("dim", "split_factor"),
}


def is_numpy_scalar(value: object) -> bool:
    """Is it a number of numpy's?"""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic) and not value.dtype.hasobject


def enumeration_data(value: object) -> list[str] | None:
    """A member of an enumeration of torch's C++ code, by class and name; None of anything else."""
    cls = type(value)
    if (
        not isinstance(getattr(cls, "__members__", None), dict)
        or vars(torch._C).get(cls.__name__) is not cls
    ):
        return None
    return [cls.__name__, str(value.name)]  # type: ignore[attr-defined]


def enumeration_of(cls: str, name: str) -> Any:
    """The member of that name.

    Raises:
        KeyError: there is none.
    """
    return vars(torch._C)[cls].__members__[name]


def shortcut_constructor(cls: type) -> Callable[..., torch.Tensor] | None:
    """``make(cls, local tensor, spec, requires_grad=False)`` for DTensor."""
    return torch.Tensor._dtensor__new__ if is_dtensor(cls) else None
