"""``subclass_trace.compiled_autograd``: switching it on and off."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from ..torch_api import tape as _door
from ..torch_api.dynamo import never_compiled
from . import runtime
from .capture import TapeCapture
from .graph import EngineTape
from .runtime import LOCK, Engine, Stats, run_as_is, stats, thread


class _Process:
    """What is installed in torch while compiled autograd is on in any thread."""

    def __init__(self) -> None:
        self.users = 0
        self.threads: dict[int, int] = {}
        self.base: tuple[Any, bool] = (None, False)
        self.engine: Any = None

    @never_compiled
    def enter(self, dynamic: bool) -> tuple[Any, bool]:
        """Install; returns what was in the compiler slot."""
        with LOCK:
            _door.import_tape_ops()
            prior = _door.set_tape_compiler(TapeCapture, dynamic)
            if not self.users:
                self.base = prior
                self.engine = _door.execution_engine()
                _door.replace_execution_engine(Engine(self.engine))
            self.users += 1
            me = threading.get_ident()
            self.threads[me] = self.threads.get(me, 0) + 1
            return prior

    @never_compiled
    def leave(self, prior: tuple[Any, bool]) -> None:
        """Take out what `enter` put in, unless another thread still needs it."""
        with LOCK:
            self.users -= 1
            me = threading.get_ident()
            self.threads[me] -= 1
            if not self.threads[me]:
                del self.threads[me]
            if not self.users:
                _door.set_tape_compiler(*self.base)
                _door.replace_execution_engine(self.engine)
            elif prior[0] is TapeCapture or (
                prior[0] is not None and not (self.threads.keys() - {me})
            ):
                _door.set_tape_compiler(*prior)
            # torch's own is on again: it shall not find our tapes
            if prior[0] not in (None, TapeCapture):
                runtime.forget_tapes()


_process = _Process()
runtime.FACTORY.append(TapeCapture)


class CompiledAutograd:
    """The autograd tape as a graph:
    ``with compiled_autograd(backend="inductor"): loss.backward()``.

    Inside, each backward (``backward`` and ``torch.autograd.grad`` alike) is captured once and then
    run from its tape: all hooks run in the eager engine's order, and tensors saved under
    ``saved_tensors_hooks`` are unpacked one by one, next to their use. See
    docs/notes/compiled_autograd.md.

    >>> import torch
    >>> w = torch.ones(2, requires_grad=True)
    >>> with compiled_autograd():
    ...     (w * w).sum().backward()
    >>> w.grad
    tensor([2., 2.])
    >>> print(compiled_autograd.tapes[-1].nodes[1].name)
    SumBackward0
    """

    @contextlib.contextmanager
    def __call__(self, *, backend: Any = None, dynamic: bool = False) -> Iterator[CompiledAutograd]:
        """Switch it on for this thread, until the end of the ``with`` block. Blocks nest: the inner
        back end wins.

        Enter it while no other thread is in a backward: torch refuses to change engines then, for
        good.

        Args:
            backend: None runs the tape node by node, with gradients bitwise those of the eager
                engine. A name or a callable, as in `compile`, is given the dense aten graphs of the
                segments between hooks.
            dynamic: all sizes are dynamic from the first capture on, instead of those that changed.

        Raises:
            OptionError: an unknown back end.
        """
        runner = _runner(backend)
        prior = _process.enter(dynamic)
        thread.runners.append(runner)
        try:
            yield self
        finally:
            runners = thread.runners  # blocks may end in another order than they began
            last = max((k for k, r in enumerate(runners) if r is runner), default=-1)
            del runners[last]
            _process.leave(prior)

    @contextlib.contextmanager
    def disabled(self) -> Iterator[None]:
        """Inside, backwards of this thread run on the plain engine."""
        runners, thread.runners = thread.runners, []
        try:
            yield
        finally:
            thread.runners = runners

    @property
    def enabled(self) -> bool:
        """Is it on in this thread?"""
        return bool(thread.runners)

    @property
    def tapes(self) -> list[EngineTape]:
        """The tapes that are in torch's cache, oldest first."""
        return runtime.known_tapes()

    @property
    def stats(self) -> Stats:
        """Counters of captures, runs and compiled programs."""
        return stats

    def reset(self) -> None:
        """Forget all tapes, torch's own ones too, and the counters."""
        with LOCK:
            runtime.forget_tapes()
            stats.reset()

    def __repr__(self) -> str:
        return f"<compiled autograd, {'on' if self.enabled else 'off'}, {len(self.tapes)} tapes>"


def _runner(backend: Any) -> runtime.Runner:
    if backend is None:
        return run_as_is
    from .segments import segmented

    return segmented(backend)


compiled_autograd = CompiledAutograd()
