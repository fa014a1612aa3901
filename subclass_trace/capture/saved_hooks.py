"""Saved-tensor hooks that the region itself sets: pack runs in the forward graph, unpack in the backward graph.

Pack is traced like other code, unpack with the backward that it belongs to. What differs is
where the graph may be cut: what pack returned is saved, as the user asked, neither its input nor what unpack makes of it.
The recorder marks the nodes (``meta["unpack"]``, and ``meta["packed"]`` on what an unpack hook hands out as it is), and
`partition.hooks` reads the marks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..subclass.flatten import leaves_of
from ..torch_api import saved as _saved
from .recorder import Recorder


@contextlib.contextmanager
def hooks_as_code(recorder: Recorder) -> Iterator[None]:
    """While inside, on this thread, the unpack hooks that are set tell the recorder when they run."""

    def wrapped(pack: _saved.Hook, unpack: _saved.Hook) -> tuple[_saved.Hook, _saved.Hook]:
        recorder.sets_hooks = True
        return lambda t: _saved.Packed(pack(t), t), _traced_unpack(recorder, unpack)

    with _saved.saved_hooks_replaced(wrapped):
        yield


def _traced_unpack(recorder: Recorder, unpack: Callable[[Any], Any]) -> Callable[[_saved.Packed], Any]:
    def unpacking(packed: _saved.Packed) -> Any:
        if recorder.tag != "is_backward":  # a gradient inside the region
            return unpack(packed.value)
        recorder.meets(unpack, packed.value)
        before, recorder.unpacking = recorder.unpacking, True
        try:
            out = unpack(packed.value)
        finally:
            recorder.unpacking = before
        if isinstance(out, torch.Tensor):  # what is handed out as it was packed
            leaves = leaves_of(out)
            for leaf in filter(recorder.knows, leaves):
                recorder.node_of(leaf).meta["packed"] = True
        return out

    return unpacking
