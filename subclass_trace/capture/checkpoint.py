"""``torch.utils.checkpoint`` inside a region only tags the recorded nodes; the partitioner then does the recomputing.

No saved-tensor hooks and no second run. A selective policy is asked for each operation, and further backwards can be
traced (PyTorch's generator would refuse a second one). Random numbers are saved, or the state that they come from
(docs/notes/partitioner.md).
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.checkpoint as checkpoint

from .. import torch_api
from .recorder import CheckpointTag, Recorder


@contextlib.contextmanager
def checkpoint_as_tags(recorder: Recorder) -> Iterator[None]:
    """While inside, on this thread, checkpoint tags nodes of ``recorder``. Captures are serialised."""
    thread, numbers = threading.get_ident(), itertools.count()

    def tagging(
        fn: Any, preserve_rng_state: bool = True, context_fn: Any = checkpoint.noop_context_fn, *a: Any, **k: Any
    ) -> Any:
        before = recorder.checkpoint
        recorder.checkpoint = CheckpointTag(_policy(context_fn), next(numbers))
        try:
            yield
        finally:
            recorder.checkpoint = before

    reentrant = checkpoint.CheckpointFunction

    class Tagging(reentrant):  # type: ignore[misc,valid-type]
        """What reentrant checkpoint applies."""

        @classmethod
        def apply(cls, fn: Any, preserve_rng_state: bool, *args: Any) -> Any:
            if threading.get_ident() != thread:
                return reentrant.apply(fn, preserve_rng_state, *args)  # type: ignore[no-untyped-call]
            steps = tagging(fn, preserve_rng_state)
            next(steps)
            tracked = any(isinstance(a, torch.Tensor) and a.requires_grad for a in args)
            try:  # as in eager: without such an argument nothing is differentiated
                with torch.set_grad_enabled(torch.is_grad_enabled() and tracked):
                    return fn(*args)
            finally:
                steps.close()

    with torch_api.replaced_here(checkpoint, torch_api.CHECKPOINT_GENERATOR, tagging):
        checkpoint.CheckpointFunction = Tagging  # type: ignore[misc]
        try:
            yield
        finally:
            checkpoint.CheckpointFunction = reentrant  # type: ignore[misc]


def _policy(context_fn: Any) -> Any:
    prefer = checkpoint.CheckpointPolicy.PREFER_RECOMPUTE
    if context_fn is checkpoint.noop_context_fn:
        return lambda func, args, kwargs: prefer
    forward, _ = context_fn()
    policy = getattr(forward, "policy_fn", None)
    if policy is None:
        return lambda func, args, kwargs: prefer
    context = checkpoint.SelectiveCheckpointContext(is_recompute=False)

    def asked(func: Any, args: Any, kwargs: Any) -> Any:
        found = policy(context, func, *args, **kwargs)
        if isinstance(found, checkpoint.CheckpointPolicy):
            return found
        return checkpoint.CheckpointPolicy.MUST_SAVE if found is True else prefer  # as torch understands it

    return asked
