"""``x.set_(...)``: from then on ``x`` is another value of the trace, as after ``x.data = y``. No node of the graph."""

from __future__ import annotations

from typing import Any

import torch

from .. import torch_api

Tensor = torch.Tensor
aten = torch.ops.aten
SETS = frozenset({aten.set_.default, aten.set_.source_Tensor, aten.set_.source_Storage_storage_offset})


def record_set(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Run ``func`` (of `SETS`) on a traced tensor; its node is from then on that of what it became.

    Returns NotImplemented where no traced tensor of its dtype has the storage.
    """
    x = args[0]
    source: Any = args[1] if func is aten.set_.source_Tensor else None
    if func is aten.set_.source_Storage_storage_offset:
        source = _holder(recorder, x, args[1])
        if source is None:
            return NotImplemented
    recorder.node_of(x)
    recorder.keep_metadata([x])
    func(*args, **kwargs)
    with torch.no_grad(), recorder:
        if func is aten.set_.default:
            source = torch.empty(0, dtype=x.dtype, device=x.device)
        elif func is aten.set_.source_Storage_storage_offset:
            source = source.as_strided(x.shape, x.stride(), x.storage_offset())
    recorder.alias(x, source)
    return x


def _holder(recorder: Any, x: Tensor, storage: Any) -> Tensor | None:
    """A traced tensor of the dtype of ``x`` in this storage."""
    key = torch_api.storage_ref(storage)
    for t in recorder.traced_tensors():
        if t.layout is torch.strided and t.dtype == x.dtype and torch_api.storage_ref(t) == key:
            return t  # type: ignore[no-any-return]
    return None
