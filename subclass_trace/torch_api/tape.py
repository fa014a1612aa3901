"""What `subclass_trace.tape` needs of torch's private API: the engine's compiler slot, autograd
nodes, AOT functions.

Note [One operation namespace per process]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
C++ hands the functional form of each autograd node type to ``bind_function`` once per process, to
whichever compiler captures first. So everybody must keep them in one place: torch's own
``torch._dynamo.compiled_autograd.ops``, which is imported (with Dynamo) when compiled autograd is
first switched on.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

__all__ = ["CompilerFactory"]

CompilerFactory = Callable[[], Any]
_compiler_slot: Any = torch._C._dynamo.compiled_autograd
_Variable: Any = torch.autograd.Variable


# ---- the compiler slot
def set_tape_compiler(factory: CompilerFactory | None, dynamic: bool = False) -> tuple[Any, bool]:
    """Install a compiler factory for the whole process, or none. Returns what was installed before.

    Raises:
        RuntimeError: another thread is inside a backward of the plain engine.
    """
    prior: tuple[Any, bool] = _compiler_slot.set_autograd_compiler(factory, dynamic)
    return prior


def clear_tape_cache() -> None:
    """Forget every captured tape, torch's own ones too."""
    _compiler_slot.clear_cache()


def foreign_captures() -> int:
    """How many tapes torch's own compiled autograd has captured in this process."""
    from torch._dynamo.utils import counters

    return int(counters["compiled_autograd"]["captures"])


call_cpp_tensor_pre_hooks: Callable[[int, Any], Any] = _compiler_slot.call_cpp_tensor_pre_hooks


# ---- operations
def bind_tape_op(
    name: str, function: Callable[..., Any], is_custom: bool, is_traceable: bool
) -> str:
    """Keep the functional form of a node type under a name. See Note [One operation namespace per
    process]."""
    return str(import_tape_ops().ops.add(name, function, is_custom, is_traceable))


def tape_op(name: str) -> Callable[..., Any]:
    """The functional form of a node type, ``f(grads, *packed arguments)``."""
    operation: Callable[..., Any] = import_tape_ops().ops.get(name)
    return operation


def without_layer(operation: Any) -> Any:
    """The C++ function in what `tape_op` returns; anything else as it is."""
    return operation.fn if isinstance(operation, import_tape_ops().Op) else operation


def import_tape_ops() -> Any:
    """The module with torch's namespace of operations; imported first outside of any capture."""
    import torch._dynamo.compiled_autograd as module

    return module


def copy_slices_steps() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """What C++'s ``CopySlices`` (in-place operations on views) does before and after the
    operation's own backward."""
    module = import_tape_ops()
    return module.copy_slices_prologue, module.copy_slices_epilogue


# ---- the engine
def execution_engine() -> Any:
    """The object whose ``run_backward`` every backward of Python code goes through."""
    return _Variable._execution_engine


def replace_execution_engine(engine: Any) -> None:
    """Put another object in its place."""
    _Variable._execution_engine = engine


def set_multithreading(enabled: bool) -> bool:
    """Switch autograd's device threads for this thread's backwards; returns what it was."""
    before = torch._C._is_multithreading_enabled()
    torch._C._set_multithreading_enabled(enabled)
    return before


def gradient_node_of(root: Any) -> Any:
    """The autograd node that a backward from this tensor or gradient edge starts at."""
    node = getattr(root, "node", None)  # GradientEdge
    if node is not None:
        return node
    if root.grad_fn is not None:
        return root.grad_fn
    return torch.autograd.graph.get_gradient_edge(root).node


# ---- Functions
def forward_class(ctx: Any) -> Any:
    """The autograd.Function class whose backward a ctx belongs to."""
    return ctx._forward_cls


def zeros_for(ctx: Any, number: int) -> torch.Tensor:
    """Zeros in the place of an undefined gradient."""
    row = ctx._input_metadata[number]
    return torch.zeros(tuple(row.shape), dtype=row.dtype, device=row.device)


def takes_nested_gradients(node: Any) -> bool:
    """Does this autograd node get, or its leaf have, a gradient that is a NestedTensor?"""
    leaf = getattr(node, "variable", None)
    rows = getattr(node, "_input_metadata", ())
    return (leaf is not None and leaf.is_nested) or any(
        getattr(r, "is_nested_tensor", False) for r in rows
    )


def walk_next(node: Any) -> Iterator[Any]:
    """The nodes that the gradients of this node go to, in order."""
    return (following for following, _ in node.next_functions if following is not None)


def unusual_state() -> bool:
    """Is anything active that decides what an operation does: modes, transforms, autocast,
    determinism?"""
    return bool(
        torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._is_any_autocast_enabled()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.is_inference_mode_enabled()
        or torch.are_deterministic_algorithms_enabled()
    )


# ---- captures
class _Capturing(threading.local):
    """Is a capture under way in this thread, which backwards are part of?"""

    def __init__(self) -> None:
        self.tracing = False


capturing = _Capturing()


@contextlib.contextmanager
def backwards_are_traced() -> Iterator[None]:
    """Inside, backwards of this thread are run by the plain engine, operation by operation:
    somebody records those."""
    outer, capturing.tracing = capturing.tracing, True
    try:
        yield
    finally:
        capturing.tracing = outer
