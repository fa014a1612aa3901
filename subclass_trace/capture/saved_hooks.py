"""Saved-tensor hooks that the region itself sets: pack runs in the forward graph, unpack in the backward graph.

Both are traced like other code. What differs is where the graph may be cut: what pack returned is saved, as the user
asked, neither its input nor what unpack makes of it. The recorder marks the nodes (``meta["unpack"]``, and
``meta["packed"]`` on what an unpack hook hands out as it is), and `partition.hooks` reads the marks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .._torch import saved as _saved
from ..subclass.flatten import leaves_of
from .noting import unnoted
from .recorder import Recorder


@contextlib.contextmanager
def hooks_as_code(recorder: Recorder) -> Iterator[None]:
    """While inside, on this thread, the unpack hooks that are set tell the recorder when they run."""

    def wrapped(unpack: Callable[[Any], Any]) -> Callable[[Any], Any]:
        recorder.sets_hooks = True
        return _traced_unpack(recorder, unpack)

    with _saved.unpack_hooks_replaced(wrapped):
        yield


def _traced_unpack(recorder: Recorder, unpack: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def unpacking(packed: Any) -> Any:
        if recorder.tag != "is_backward":  # a gradient inside the region
            return unpack(packed)
        before, recorder.unpacking = recorder.unpacking, True
        try:
            out = unpack(packed)
        finally:
            recorder.unpacking = before
        if isinstance(out, torch.Tensor):  # what is handed out as it was packed
            with unnoted():
                leaves = leaves_of(out)
            for leaf in filter(recorder.knows, leaves):
                recorder.node_of(leaf).meta["packed"] = True
        return out

    return unpacking
