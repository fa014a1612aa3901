"""What `frontends/dynamo.py` needs of torch's private API: Dynamo's tracing context, its sources, its operators.

Nothing here imports Dynamo when it is imported: the functions run inside a compilation, where Dynamo is loaded.
"""

from __future__ import annotations

import contextlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import torch
from torch._guards import TracingContext
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import DimDynamic, SubclassSymbolicContext
from torch.utils._sympy.symbol import SymT, symbol_is_type

from .symbols import symbol_values


def compile_alone(function: Callable[..., Any], **options: Any) -> Any:
    """``torch.compile`` with our back end, and with a limit of recompilations of its own.

    Otherwise (before torch 2.15) all that are compiled of one code object count as one, and run eagerly beyond the limit.
    """
    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        options["isolate_recompiles"] = True
    register_our_backend()
    return torch.compile(function, backend=OUR_BACKEND, **options)


def tracing_context() -> Any:
    """The context of the compilation that is going on, with ``fake_mode`` and ``tensor_to_context``; None if there is none."""
    context = TracingContext.try_get()
    return None if context is None or context.fake_mode is None else context


def symbolic_context(context: Any, value: torch.Tensor) -> Any:
    """Which sizes of a graph input Dynamo made symbols of, and which ones; None where it made none."""
    return context.tensor_to_context.get(value)


def inner_context(outer: Any, name: str) -> Any:
    """The same for the inner tensor ``name`` of a wrapper."""
    return outer.inner_contexts.get(name) if isinstance(outer, SubclassSymbolicContext) else None


def has_symbols(context: Any) -> bool:
    """Did Dynamo make a symbol of any size, stride or offset of this dense tensor or of this wrapper itself?"""
    if context is None:
        return False
    kinds = (*context.dynamic_sizes, *context.dynamic_strides)
    return any(k not in (DimDynamic.STATIC, DimDynamic.INFER_STRIDE) for k in kinds)


def placeholder_source(node: torch.fx.Node) -> Any:
    """Where Dynamo found the value of a placeholder; None for a graph of another maker."""
    source = getattr(node, "_dynamo_source", None)
    if source is None and "grapharg" in node.meta:
        source = node.meta["grapharg"].source
    return source


def attribute_source(source: Any, name: str) -> Any:
    """The source of attribute ``name`` of a value."""
    from torch._dynamo.source import AttrSource

    return AttrSource(source, name)


def source_text(source: Any) -> str:
    """``L['x']._parameters['weight']`` and the like."""
    return str(source.name)


def fake_input(mode: Any, value: torch.Tensor, source: Any, context: Any, number: Any = None) -> torch.Tensor:
    """A fake tensor with the symbols that Dynamo made for ``value``.

    ``number`` is the one for the number inside. Torch would make another one, of which Dynamo knows nothing: what a trace
    takes for true of it would be no guard.
    """
    fake: torch.Tensor = mode.from_tensor(value, static_shapes=False, source=source, symbolic_context=context)
    if isinstance(fake, FakeTensor):
        fake.item_memo = number
    return fake


def known_item(fake: object) -> Any:
    """The symbol that stands for the number in an input without dimensions; None where there is none.

    One that is known in the call (Dynamo makes them of Python floats), not one of a value inside a tensor.
    """
    number = fake.item_memo if isinstance(fake, FakeTensor) else None
    return None if number is None or number.node.hint is None else number


def placeholder_number(node: torch.fx.Node) -> Any:
    """`known_item` of what Dynamo traced with for a placeholder."""
    return known_item(node.meta.get("example_value"))


def float_arguments(env: Any) -> frozenset[str]:
    """The symbols of the floats that came in as tensors, by name."""
    return frozenset(str(s) for s in symbol_values(env) if symbol_is_type(s, SymT.FLOAT))


def trace_again_with_numbers(names: Collection[str]) -> None:
    """Make Dynamo trace anew, with these floats as numbers that it guards; returns if it has been told before.

    As torch's own pass ``tensorify_python_scalars`` does with what it cannot turn into tensors.
    """
    from torch._dynamo.exc import TensorifyScalarRestartAnalysis
    from torch._dynamo.symbolic_convert import TensorifyState

    new = [n for n in names if not TensorifyState.should_specialize(n)]
    for name in new:
        TensorifyState.specialize(name)
    if new:
        raise TensorifyScalarRestartAnalysis(restart_reason="a float argument becomes a number")


def is_of_dynamo(error: Exception) -> bool:
    """Does Dynamo raise it of its own, or does an assertion of its fail?"""
    from torch._dynamo.exc import TorchDynamoException

    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    place = "" if where is None else where.tb_frame.f_globals.get("__name__", "")
    return isinstance(error, TorchDynamoException) or (
        isinstance(error, AssertionError) and place.startswith("torch._dynamo.")
    )


#: our back end, as the entry point of the package names it
OUR_BACKEND = "subclass_trace"
_WHERE = "subclass_trace.frontends.dynamo:subclass_trace"


def register_our_backend() -> None:
    """Let ``torch.compile`` find our back end by its name, where the package is on the path without being installed."""
    from torch._dynamo.backends import registry

    if OUR_BACKEND not in registry.list_backends(exclude_tags=()):
        registry.register_backend(compiler_fn=pkgutil.resolve_name(_WHERE), name=OUR_BACKEND)


_F = TypeVar("_F", bound=Callable[..., Any])


def never_compiled(function: _F) -> _F:
    """Dynamo leaves calls of this function alone, and all that they call.

    Without it, a backward or a region that runs while a ``torch.compile`` further out is active would be compiled.
    """
    frames: Any = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    return function


def higher_order_name(target: object) -> str | None:
    """The name of a higher order operator; None for any other target of a node."""
    operator: Any = target
    return str(operator.name()) if isinstance(target, HigherOrderOperator) else None


def dynamo_lock() -> Any:
    """Dynamo's lock around compilations, which comes before ours; nothing where Dynamo is not loaded."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    lock = getattr(frames, "compile_lock", None)
    return contextlib.nullcontext() if lock is None else lock
