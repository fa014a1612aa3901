"""``torch.utils.checkpoint`` inside a region only tags the recorded nodes; the partitioner then
does the recomputing.

No saved-tensor hooks and no second run. A selective policy is asked for each operation, and further
backwards can be traced (PyTorch's generator would refuse a second one). Random numbers are saved,
or the state that they come from (docs/notes/partitioner.md).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.checkpoint as checkpoint

from ..torch_api.autograd import CHECKPOINT_GENERATOR, checkpoint_contexts
from ..torch_api.this_thread import replaced_here
from .phase import CheckpointTag
from .recorder import Recorder


@contextlib.contextmanager
def checkpoint_as_tags(recorder: Recorder) -> Iterator[None]:
    """While inside, on this thread, checkpoint tags nodes of ``recorder``. Captures are
    serialised."""
    numbers = itertools.count()

    def tagging(context_fn: Any) -> Iterator[None]:
        part = CheckpointTag(_policy(context_fn), next(numbers))
        with recorder.during(checkpoint=part):
            yield

    def nonreentrant(fn: Any, *positional: Any, **named: Any) -> Iterator[None]:
        return tagging(checkpoint_contexts(positional, named))

    def reentrant(fn: Any, preserve_rng_state: bool, *args: Any) -> Any:
        """As in eager: without an argument that requires grad nothing is differentiated."""
        tracked = any(isinstance(a, torch.Tensor) and a.requires_grad for a in args)
        tagged = contextlib.contextmanager(tagging)(checkpoint.noop_context_fn)
        with tagged, torch.set_grad_enabled(torch.is_grad_enabled() and tracked):
            return fn(*args)

    with (
        replaced_here(checkpoint, CHECKPOINT_GENERATOR, nonreentrant),
        replaced_here(checkpoint.CheckpointFunction, "apply", reentrant),
    ):
        yield


def _policy(context_fn: Any) -> Any:
    prefer = checkpoint.CheckpointPolicy.PREFER_RECOMPUTE
    forward = None if context_fn is checkpoint.noop_context_fn else context_fn()[0]
    policy = getattr(forward, "policy_fn", None)
    if policy is None:
        return lambda func, args, kwargs: prefer
    context = checkpoint.SelectiveCheckpointContext(is_recompute=False)

    def asked(func: Any, args: Any, kwargs: Any) -> Any:
        found = policy(context, func, *args, **kwargs)
        if isinstance(found, checkpoint.CheckpointPolicy):
            return found
        # as torch understands it
        return checkpoint.CheckpointPolicy.MUST_SAVE if found is True else prefer

    return asked
