"""``_StridedShard``: how a DTensor is spread whose sharded dimension was merged with others,
``x.view(b * s, h)``.

Torch makes it in views, and forgets a part of it where tensors are taken apart for tracing, or have
symbolic sizes.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..this_thread import replaced_here
from ..wrappers import is_dtensor


def repaired_unflatten(cls: type) -> Callable[..., torch.Tensor] | None:
    """What to call in the place of ``cls.__tensor_unflatten__``, where torch's own loses something;
    None elsewhere.

    A view of a DTensor that merges a dimension into the sharded one has a ``_StridedShard`` besides
    an explicit order of shards. The constructor of its spec refuses the two together, unless a flag
    says that the order is no reading of the
    placement: DTensor's ``__tensor_flatten__`` leaves that flag out (torch 2.13; older versions
    have none).
    """
    if not is_dtensor(cls):
        return None
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
    from torch.distributed.tensor.placement_types import _StridedShard

    if "use_strided_shard_as_shard_order" not in DTensorSpec.__dataclass_fields__:
        return None
    original: Any = DTensor.__tensor_unflatten__
    make: Any = torch.Tensor._dtensor__new__

    def unflatten(inner: dict[str, Any], context: Any, size: Any, stride: Any) -> torch.Tensor:
        if len(context) == 2:  # torch 2.11: the spec itself, with its flag
            return original(inner, context, size, stride)  # type: ignore[no-any-return]
        placements, meta, order, requires_grad = context
        if order is None or not any(isinstance(p, _StridedShard) for p in placements):
            return original(inner, context, size, stride)  # type: ignore[no-any-return]
        spec = DTensorSpec(
            inner["device_mesh"],
            placements,
            tensor_meta=TensorMeta(size, stride, meta.dtype),
            shard_order=order,
            use_strided_shard_as_shard_order=False,
        )
        made: torch.Tensor = make(
            DTensor, inner["_local_tensor"], spec, requires_grad=requires_grad
        )
        return made

    return unflatten


@contextlib.contextmanager
def numbers_as_split_factors() -> Iterator[None]:
    """While inside, a symbolic size becomes the number that it is (and is guarded) where a
    ``_StridedShard`` holds it.

    Torch 2.13 refuses such views: a list of as many pieces is made in each call. Older versions
    make it a number.
    """
    views: Any = sys.modules.get("torch.distributed.tensor._ops._view_ops")
    known: Any = getattr(views, "_explicit_unbacked_hint", None)
    if views is None or known is None:
        yield
        return
    cls = views._StridedShard
    create = cls.__init__

    def hint(value: Any) -> Any:
        found = known(value)
        backed = found is None and isinstance(value, torch.SymInt) and value.node.has_hint()
        return value.node.hint if backed else found

    def with_number(self: Any, dim: int, *, split_factor: Any = 1, sf: Any = None) -> None:
        given = split_factor if sf is None else sf
        numeric = isinstance(given, torch.SymInt) and given.node.has_hint()
        create(self, dim, split_factor=int(given) if numeric else given)

    with (
        replaced_here(views, "_explicit_unbacked_hint", hint),
        replaced_here(cls, "__init__", with_number),
        replaced_here(cls, "local_shard_size_and_offset", _size_of_even_parts(cls)),
    ):
        yield


def _size_of_even_parts(cls: Any) -> Callable[..., Any]:
    """Of a symbolic size that is spread evenly, each rank has an equal part (that it is even is
    guarded).

    Torch makes a list of all places, which fixes the size.
    """
    original: Any = cls.local_shard_size_and_offset

    def found(
        self: Any, curr_local_size: Any, num_chunks: Any, rank: Any, *mode: Any, **named: Any
    ) -> Any:
        asked = next(iter((*mode, *named.values())), None)
        symbolic = isinstance(curr_local_size, torch.SymInt) and curr_local_size.node.has_hint()
        if symbolic and getattr(asked, "name", None) == "NONE":  # no places, but their number
            if curr_local_size % (self.split_factor * num_chunks) == 0:
                return curr_local_size // num_chunks, None
        return original(self, curr_local_size, num_chunks, rank, *mode, **named)

    return found
