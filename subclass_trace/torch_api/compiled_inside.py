"""Functions of ``torch.compile`` inside a region: what they compile is traced, their own compiled
code is not run.

That code would compute on tensors without data, and its kernels are called past every mode that
could see them.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch._library.custom_ops

from .this_thread import replaced_here


def not_compiled_code() -> Any:
    """The code of what torch wraps its own functions in that Dynamo shall not compile;
    ``__wrapped__`` is the function."""
    return torch._compile._disable_dynamo(lambda: None).__code__


#: back ends of ``torch.compile`` that run the operations one by one
_PLAIN = (
    "eager",
    "aot_eager",
    "eager_noexcept",
    "eager_debug",
    "aot_eager_decomp_partition",
    "subclass_trace",
)


def is_compiled(f: types.FunctionType) -> bool:
    """Is it a function of ``torch.compile``, which closes over what it compiles (``fn``) and how
    (``callback``)?"""
    return "_torchdynamo_orig_callable" in f.__dict__ and {"callback", "fn"} <= {
        *f.__code__.co_freevars
    }


@dataclass(frozen=True, eq=False)
class CompiledBy:
    """One call of a function of ``torch.compile``: its name, and its back end."""

    name: str
    backend: Callable[..., Any]


def backend_of_compiled(f: types.FunctionType) -> tuple[str, Callable[..., Any]] | None:
    """The name of the back end of a function of ``torch.compile``, and the back end; None where it
    has no code of its own to lose."""
    from torch._dynamo.eval_frame import innermost_backend

    cells = f.__closure__ or ()
    callback = cells[f.__code__.co_freevars.index("callback")]
    backend: Any = innermost_backend(callback.cell_contents)
    name = str(
        getattr(backend, "compiler_name", None)
        or getattr(backend, "__name__", type(backend).__name__)
    )
    return None if name in _PLAIN else (name, backend)


def owners_of_c_functions() -> dict[int, Any]:
    """What the functions of torch's in C are methods of: id -> it."""
    names = ("VariableFunctions", "nn", "fft", "linalg", "special")
    tables = (*(getattr(torch._C, f"_{name}") for name in names), torch._C)
    functions = (getattr(table, name) for table in tables for name in dir(table))
    owners = (
        getattr(f, "__self__", None) for f in functions if type(f) is types.BuiltinFunctionType
    )
    return {id(owner): owner for owner in owners if owner is not None}


def is_library_operator(f: Any) -> bool:
    """Is it an operator that a library has added to torch, which may have kernels in Python?"""
    if isinstance(f, torch._library.custom_ops.CustomOpDef):
        return True
    if isinstance(f, torch._ops.OpOverloadPacket):
        return f._qualified_op_name.partition("::")[0] not in _OWN_OPERATORS
    return isinstance(f, torch._ops.OpOverload) and f.namespace not in _OWN_OPERATORS


_OWN_OPERATORS = (
    "aten",
    "prims",
    "prim",
    "c10d",
    "_c10d_functional",
    "_dtensor",
    "inductor",
    "debugprims",
    "rngprims",
)


@contextlib.contextmanager
def functions_of_operators(wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Inside, the Python functions of custom operators that autograd calls are ``wrap`` of them."""
    before = []
    for definition in list(torch._library.custom_ops.OPDEFS.values()):
        for name in ("_backward_fn", "_setup_context_fn"):
            function = getattr(definition, name, None)
            if function is not None:
                before.append((definition, name, function))
                setattr(definition, name, wrap(function))
    try:
        yield
    finally:
        for row in before:
            setattr(*row)


@contextlib.contextmanager
def compiled_functions_run_eagerly() -> Iterator[None]:
    """Inside, in this thread, a compiled function calls the function that it was made of.

    ``torch.cond`` and the like start a compilation of their own, to turn their branches into
    graphs: it goes on.
    """
    with contextlib.ExitStack() as stack:
        if "torch._dynamo.eval_frame" in sys.modules:
            stack.enter_context(_stance_of_this_thread())
            yield
            return
        before = torch.compile
        first: list[bool] = []

        def compile(*args: Any, **kwargs: Any) -> Any:
            if not first:  # in this process
                first.append(True)
                importlib.import_module("torch._dynamo.eval_frame")
                stack.enter_context(_stance_of_this_thread())
            return before(*args, **kwargs)

        with replaced_here(torch, "compile", compile):
            yield


@contextlib.contextmanager
def _stance_of_this_thread() -> Iterator[None]:
    frames: Any = sys.modules["torch._dynamo.eval_frame"]
    before, mine = frames._stance, _Stance(frames)
    callback_of = frames._callback_from_stance

    def callback_from_stance(callback: Any) -> Any:
        """Most calls are of functions that are never compiled, whatever the stance: torch's fake
        tensors are such."""
        return None if callback is None else callback_of(callback)

    frames._stance, frames._callback_from_stance = mine, callback_from_stance
    # Counting already, as for a compilation inside of another one: that ``fullgraph=True`` compiled
    # nothing is no matter.
    set_count: Callable[[int], int] = getattr(
        frames, "set_fullgraph_compiled_frame_count", lambda count: count
    )
    count = set_count(0)
    try:  # the same but for a warning about hooks: a capture has its own
        with replaced_here(frames.OptimizedModule, "__call__", torch.nn.Module.__call__):
            yield
    finally:
        set_count(count)
        frames._callback_from_stance = callback_of
        if frames._stance is mine:  # else somebody has set another one meanwhile
            frames._stance = before


class _Stance:
    """What Dynamo asks before it compiles a frame: ``force_eager`` in the thread that made it, the
    former one elsewhere."""

    def __init__(self, frames: Any) -> None:
        from torch._higher_order_ops.utils import _in_hop_compile

        self._before, self._thread = frames._stance, threading.get_ident()
        self._makes_graphs: Callable[[], bool] = _in_hop_compile

    @property
    def stance(self) -> str:
        """The name of the stance."""
        if threading.get_ident() != self._thread or self._makes_graphs():
            return str(self._before.stance)
        return "force_eager"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._before, name)
