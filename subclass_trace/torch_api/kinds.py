"""Kinds of tensors: fake, opaque, inside functorch, dense."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import SymBool, SymFloat
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef

from ..errors import Reason

FAKE_TYPES: tuple[type, ...] = (FakeTensor,)


def is_fake(value: object) -> bool:
    """Is this a dense FakeTensor?"""
    return isinstance(value, FakeTensor)


def asked(t: torch.Tensor, name: str) -> Any:
    """What a method of a real tensor without arguments answers, past all modes."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        return getattr(torch.Tensor, name)(t)


def is_zeros(t: torch.Tensor) -> bool:
    """Are these zeros that take no memory, as forward-mode AD makes them?"""
    return t._is_zerotensor()


def contiguous_strides(size: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor of this size."""
    from torch._prims_common import make_contiguous_strides_for

    return tuple(make_contiguous_strides_for(tuple(size)))


def overrides_torch_dispatch(cls: type) -> bool:
    """Does the class define its own ``__torch_dispatch__``?"""
    own = getattr(cls, "__torch_dispatch__", None)
    return (
        own is not None
        and own is not torch._C._disabled_torch_dispatch_impl
        and own != torch.Tensor.__torch_dispatch__
    )


def is_opaque(value: object) -> bool:
    """Is this an object that torch lets a wrapper list besides its inner tensors, such as a
    DeviceMesh?"""
    return is_opaque_class(type(value)) or _stands_for_opaque(value)


def is_opaque_class(cls: type) -> bool:
    """Are its instances such objects?"""
    if cls not in _OPAQUE_TYPES:
        import torch._library.opaque_object as objects

        # until torch 2.14
        known: Any = getattr(objects, "is_custom_class", None) or objects.is_opaque_type
        _OPAQUE_TYPES[cls] = bool(known(cls))
    return _OPAQUE_TYPES[cls]


_OPAQUE_TYPES: dict[type, bool] = {}


def placement_types() -> Iterator[type]:
    """The classes of DTensor's placements that exist by now."""
    found = [
        getattr(sys.modules.get("torch.distributed.tensor.placement_types"), "Placement", None)
    ]
    for cls in filter(None, found):
        yield cls
        found += type.__subclasses__(cls)


def _stands_for_opaque(value: object) -> bool:
    """Is this torch's stand-in for an opaque object, in a graph?"""
    from torch._opaque_base import OpaqueBase

    return isinstance(value, OpaqueBase)


def storage_ref(t: torch.Tensor | torch.UntypedStorage) -> StorageWeakRef:
    """Equal for tensors that share a storage, and for that storage; does not keep it alive."""
    storage = t if isinstance(t, torch.UntypedStorage) else t.untyped_storage()
    return StorageWeakRef(storage)  # type: ignore[no-untyped-call]


def storage_key(value: object) -> int | None:
    """A number that live tensors share which share a storage; None for what has no single one."""
    strided = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return int(value.untyped_storage()._cdata) if strided else None  # type: ignore[attr-defined]


SYM_TYPES = (torch.SymInt, SymFloat, SymBool)


def is_memo(attribute: str) -> bool:
    """Does torch remember in this attribute what it was asked: a fake tensor a symbol (of
    ``item()``, of ``nonzero()``), a class that says its shape itself (a jagged tensor's) what it
    said last?"""
    return attribute.startswith(_MEMOS)


_MEMOS = (
    *(f"_{name}" for name in vars(FakeTensor) if name.endswith("_memo")),
    # and the same with "_len"
    *("_sizes_capsule", "_strides_capsule", "_sym_sizes_capsule", "_sym_strides_capsule"),
)


def is_dense(t: torch.Tensor) -> bool:
    """Is ``t`` non-overlapping and dense (each element of its range stands once)?"""
    from torch._prims_common import is_non_overlapping_and_dense_or_false

    return t.layout is torch.strided and bool(is_non_overlapping_and_dense_or_false(t))


def is_lazy(t: torch.Tensor) -> bool:
    """Is what is in its memory still to be conjugated, or negated, or are there zeros and no
    memory?"""
    return t.is_conj() or t.is_neg() or t._is_zerotensor()


def resolved(t: torch.Tensor) -> torch.Tensor:
    """The same values, in memory."""
    return torch.zeros_like(t) if t._is_zerotensor() else t.resolve_conj().resolve_neg()


def dispatch_keys(t: torch.Tensor) -> int:
    """The dispatch key set of a tensor as a number."""
    return int(torch._C._dispatch_keys(t).raw_repr())


@functools.cache
def keys_of_device(device: torch.device) -> int:
    """In what the dispatch keys of tensors on ``meta`` differ from those on a device."""
    with FakeTensorMode():  # which has all devices
        there, here = (torch.empty(0, device=d) for d in (device, "meta"))
        return dispatch_keys(there) ^ dispatch_keys(here)


def tensor_guard(
    tensors: list[torch.Tensor], sizes: list[Any], strides: list[Any]
) -> Callable[..., bool]:
    """A C++ check of types, dispatch keys, dtypes, devices, requires_grad, sizes and strides, and
    of distinctness.

    ``sizes`` and ``strides``: per tensor a list of ints, None where a dimension is not checked.
    """
    from torch._C._dynamo.guards import TensorGuards

    check: Callable[..., bool] = TensorGuards(
        *tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides
    ).check
    return check


def failed_tensor_guard(check: Any, paths: list[str], *now: torch.Tensor) -> Reason:
    """Why a `tensor_guard` of tensors at these paths fails."""
    why = str(check.__self__.check_verbose(*now, tensor_check_names=paths))
    path, what, place, known = (
        found.groups() if (found := _MISMATCH.match(why)) else (", ".join(paths), "", "", "")
    )
    return Reason(
        why,
        _AS_CODE.get(what, "check_tensor({path})").format(
            path=path, place=place, known=known.lower()
        ),
    )


#: what torch says of a tensor that fails
_MISMATCH = re.compile(
    r"tensor '(.*?)' ([\w ]+) mismatch(?: at index (\d+))?\. expected "
    r"(?:requires_grad=)?(.+?)(?:, actual|$)"
)
_AS_CODE = {
    "size": "{path}.shape[{place}] == {known}",
    "stride": "{path}.stride({place}) == {known}",
    "rank": "{path}.dim() == {known}",
    "dtype": "{path}.dtype == torch.{known}",
    "requires_grad": "{path}.requires_grad == {known}",
    "dispatch key set": "dispatch_keys({path}) are the same",
}


def is_jagged_example(t: torch.Tensor) -> bool:
    """Is it the jagged tensor that torch itself holds, for the sake of its class?"""
    module = sys.modules.get("torch.nested._internal.nested_tensor")
    return module is not None and t is getattr(module, "_dummy_instance", None)
