"""Running tapes: what stands between ``loss.backward()`` and the C++ engine while compiled autograd
is on.

`Engine` takes the place of the object that every backward of Python code goes through. It knows the
roots of the call (from which a capture finds the order of the nodes), lets one thread at a time
through, and keeps callbacks for the end of the backward. C++ then finds a captured tape or makes
one, and calls `run_tape`.

Note [One backward at a time]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The compiler slot belongs to the process, and C++ refuses to change it, for good, while a thread is
in a backward. So all backwards that begin in Python take one lock while compiled autograd is on in
any thread. In a thread that did not switch it on, the backward runs on the plain engine. While a
tape runs the slot is empty, so that a backward inside a hook or a checkpoint runs on the plain
engine too. In anomaly mode everything does: its checks and messages are the engine's.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import UnsupportedError
from ..runtime.trace_lock import TRACE_LOCK
from ..torch_api import tape as _door
from ..torch_api.autograd import is_batched
from ..torch_api.dynamo import never_compiled
from .graph import EngineTape
from .order import walk
from .program import make_program

Runner = Callable[[EngineTape, list[Any]], Sequence[Any]]


@dataclass
class Stats:
    """What happened since the start of the process, or since `reset`.

    Attributes:
        captures: tapes made.
        runs: tapes run.
        programs: tapes turned into a program: once for each tape and back end.
        segments: aten graphs compiled, over all segments.
    """

    captures: int = 0
    runs: int = 0
    programs: int = 0
    segments: int = 0

    def reset(self) -> None:
        """Set all counters to zero."""
        self.captures = self.runs = self.programs = self.segments = 0


stats = Stats()


@dataclass(frozen=True, eq=False)
class BackwardCall:
    """One backward call of Python code: where it starts, and which gradients it is asked for (None:
    all leaves).

    ``batched``: several gradients at once, ``is_grads_batched``.
    """

    roots: tuple[Any, ...] = ()
    inputs: tuple[Any, ...] | None = None
    batched: bool = False


class _Thread(threading.local):
    """What each thread has switched on, and where it is."""

    def __init__(self) -> None:
        self.runners: list[Runner] = []
        self.call = BackwardCall()
        self.depth = 0  # running tapes
        self.callbacks: list[list[Callable[[], Any]] | None] = []


thread = _Thread()
#: one with the lock of captures: a backward may trace the backward of a region, and tracing a
# region runs a backward
LOCK = TRACE_LOCK
_foreign = [0]  # captures of torch's own compiled autograd that were seen
FACTORY: list[Any] = []  # the compiler class that `context` installs
_tapes: list[weakref.ref[EngineTape]] = []


def current_call() -> BackwardCall:
    """The backward call that is being captured; without roots when C++ began it."""
    return thread.call


def note(tape: EngineTape) -> None:
    """Remember a new tape."""
    _tapes[:] = [r for r in _tapes if r() is not None]
    _tapes.append(weakref.ref(tape))


def known_tapes() -> list[EngineTape]:
    """All tapes that are in torch's cache, oldest first."""
    return [t for r in _tapes if (t := r()) is not None]


def forget_tapes() -> None:
    """Empty torch's cache."""
    _tapes.clear()
    _door.clear_tape_cache()


# ---- the engine
class Engine:
    """Stands in for torch's engine object while compiled autograd is on."""

    def __init__(self, real: Any) -> None:
        self.real = real

    @never_compiled
    def run_backward(
        self,
        roots: Any,
        grads: Any,
        keep_graph: bool,
        create_graph: bool,
        inputs: Any = (),
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """``backward`` and ``grad``, as torch's Python code calls them."""
        with LOCK:
            if thread.depth:  # inside a tape: a hook, a checkpoint
                thread.callbacks.append(None)
                try:
                    return self.real.run_backward(
                        roots, grads, keep_graph, create_graph, inputs, *args, **kwargs
                    )
                finally:
                    thread.callbacks.pop()
            outer, threads = thread.call, _door.set_multithreading(False)
            thread.call = BackwardCall(
                tuple(roots), tuple(inputs) if inputs else None, any(map(is_batched, grads))
            )
            found = _door.set_tape_compiler(None)
            captures = (
                thread.runners and not _door.capturing.tracing and not torch.is_anomaly_enabled()
            )
            # values that hooks unpack get their history in the engine alone
            captures = captures and not create_graph
            if captures:
                if found[0] is FACTORY[0]:
                    self._part_from_foreign_tapes()
                _door.set_tape_compiler(*found)
            try:
                return self.real.run_backward(
                    roots, grads, keep_graph, create_graph, inputs, *args, **kwargs
                )
            except RuntimeError as error:  # also NotImplementedError
                refusal = _refusal(error, thread.call)
                if refusal is None:
                    raise
                raise refusal from error
            finally:
                thread.call = outer
                _door.set_multithreading(threads)
                if not captures:
                    _door.set_tape_compiler(*found)

    def _part_from_foreign_tapes(self) -> None:
        """Torch's own compiled autograd keeps its tapes in the same cache; they would be run in
        place of ours."""
        captures = _door.foreign_captures()
        if captures != _foreign[0]:
            _foreign[0] = captures
            forget_tapes()

    def queue_callback(self, callback: Callable[[], Any]) -> None:
        """Run ``callback`` at the end of the backward."""
        if thread.callbacks and thread.callbacks[-1] is not None:
            thread.callbacks[-1].append(callback)
        else:
            self.real.queue_callback(callback)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


def _refusal(error: RuntimeError, call: BackwardCall) -> UnsupportedError | None:
    """What to raise where the engine cannot walk the tape: it names what torch stumbled over. None
    for other errors."""
    if "not compatible with C++ DDP Reducer" in str(error):
        return UnsupportedError(
            "compiled autograd cannot capture a backward through DistributedDataParallel's C++ "
            "reducer",
            code="ddp-reducer",
            expected="the reducer that is written in Python",
            got=str(error).splitlines()[0],
            fix='set torch._dynamo.config.optimize_ddp = "python_reducer" before the model is '
            "wrapped",
        )
    if not isinstance(error, NotImplementedError):
        return None
    nested = "NestedTensor" in str(error)
    node = (
        next(filter(_door.takes_nested_gradients, walk(call.roots, call.inputs).nodes[1:]), None)
        if nested
        else None
    )
    return UnsupportedError(
        "compiled autograd cannot capture this backward: torch's engine refuses it",
        code="engine-refuses",
        path=None if node is None else node.name(),
        expected="tensors and wrapper subclasses, and nodes of eager operations, Functions or "
        "torch.compile",
        got="a NestedTensor (jagged or strided)" if nested else str(error).splitlines()[0],
        fix="run this backward outside of compiled_autograd, or under compiled_autograd.disabled()",
    )


# ---- running
def run_tape(
    tape: EngineTape,
    inputs: list[Any],
    sizes: Sequence[int],
    scalars: Sequence[Any],
    hooks: Sequence[Any],
    packed: Any,
) -> Sequence[Any]:
    """What C++ calls in each backward, with everything that the tape takes. It owns nothing of it
    but ``inputs``."""
    prior = _door.set_tape_compiler(None)
    foreign = prior[0] is not FACTORY[0]
    try:
        values = [*inputs, *sizes, *scalars, *hooks[: tape.hooks], *packed[: tape.packed]]
        inputs.clear()
        stats.runs += 1
        tape.runs += 1
        thread.depth += 1
        callbacks: list[Callable[[], Any]] = []
        thread.callbacks.append(callbacks)
        try:
            run = thread.runners[-1] if thread.runners and not foreign else run_as_is
            results = run(tape, values)
            for callback in callbacks:  # a callback may queue another one
                callback()
        finally:
            thread.callbacks.pop()
            thread.depth -= 1
        return list(results)
    finally:
        _door.set_tape_compiler(*prior)
        # torch's own compiled autograd found our tape in the cache: next time it shall make its own
        if foreign:
            forget_tapes()


def run_as_is(tape: EngineTape, values: list[Any]) -> Sequence[Any]:
    """Run the tape's own graph: a call for each thing that the backward does."""
    program = tape.programs.get(None)
    if program is None:
        stats.programs += 1
        program = tape.programs[None] = make_program(tape.graph, [n.name for n in tape.nodes])
    return program(values)
