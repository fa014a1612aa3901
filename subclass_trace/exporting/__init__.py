"""Export: a module over wrapper tensors becomes a `torch.export.ExportedProgram` over the dense
tensors inside of them.

>>> import torch, subclass_trace as st
>>> from subclass_trace.zoo import TwoTensor
>>> model = torch.nn.Linear(2, 3)
>>> model.weight = torch.nn.Parameter(TwoTensor(torch.ones(3, 2), torch.zeros(3, 2)))
>>> exported = st.export(model, (torch.ones(4, 2),))
>>> sorted(exported.program.state_dict)
['bias', 'weight.a', 'weight.b']
>>> x = torch.rand(4, 2)
>>> flat = exported.program.module()(*exported.flatten_inputs(x))
>>> torch.equal(exported.unflatten_outputs(flat).a, model(x).a)
True

The graph is the one that a region would run: there is no second trace. The program needs nothing of
this package: `torch.export.save`, AOTInductor and ``torch.onnx.export(dynamo=True)`` take it. See
docs/deploying.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..capture.capture import Captured
from ..capture.session import Session
from ..capture.tape import TracedBackward
from ..errors import ExportError, SubclassTraceError
from ..frontends.module import freezer_of
from ..frontends.traced_call import traced_call
from ..options import Options
from ..runtime.trace_lock import TRACE_LOCK
from ..torch_api.dynamo import dynamo_lock
from ..torch_api.trees import pytree as torch_pytree
from .exported import Exported
from .exporter import Exporter
from .sizes import history_of, wanted_dims
from .state import FlatState, load_flat_state

__all__ = ["Exported", "export", "export_joint", "export_module", "load_flat_state"]

Tensor = torch.Tensor
pytree = torch_pytree


def export(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    joint: bool = False,
    strict: bool = True,
) -> Exported:
    """Export a module, or a function, as a program over dense tensors. That of a frozen region has
    buffers ``frozen.0``, ... in the place of the weights that it has folded.

    Args:
        args, kwargs: of an example call.
        dynamic_shapes: as of `torch.export.export`: argument -> dimension -> `torch.export.Dim`, or
            one of its hints.
        joint: the program gives gradients, too: of the loss, or for tangents that follow the
            arguments.
        strict: what a call would change besides tensors (an attribute, a list) is an error; else it
            is left out.

    Raises:
        ExportError: it cannot be exported; the path says what, the fix how it can.
    """
    freezer = freezer_of(function)
    _check(args, joint and freezer is not None)
    named, state, called = dict(kwargs or {}), FlatState({}, {}, {}, {}), function
    if isinstance(function, torch.nn.Module):
        state, called = FlatState.of(function), function.forward
    wanted = wanted_dims(called, args, named, dynamic_shapes)
    paths, tree = pytree.tree_flatten_with_path((args, named))
    values = {_path(way): v for way, v in paths if isinstance(v, Tensor)}
    positions = {_path(way): k for k, (way, _) in enumerate(paths)}
    session = Session(dynamic=bool(wanted), decompositions={}, materialise=True)
    history, options = history_of(wanted, values), Options(frontend="trace")
    try:
        with (
            dynamo_lock(),
            TRACE_LOCK,
            torch.set_grad_enabled(joint or torch.is_grad_enabled()),
        ):
            captured, state_read, maker = traced_call(
                function, (args, named), options, history, session, True
            )
            backward = _backward(captured) if joint else None
            graph = (
                captured.forward_graph(in_place=False)[0] if backward is None else backward.joint
            )
    except ExportError:
        raise
    except SubclassTraceError as error:
        parts = {"path": error.path, "expected": error.expected, "got": error.got, "fix": error.fix}
        raise ExportError(f"it cannot be traced: {error.what}", **parts) from error
    read = tuple(row for row in state_read.rows if row.place.moves and not row.place.late)
    exporter = Exporter(captured, graph, state, called, strict, read)
    return exporter.exported(maker.flat, values, positions, tree, wanted, backward, freezer)


def _check(args: Any, frozen_joint: bool) -> None:
    if not isinstance(args, tuple):
        raise ExportError(
            "args is no tuple",
            path="args",
            expected="a tuple of arguments",
            got=type(args).__name__,
        )
    if frozen_joint:
        raise ExportError("a frozen region has no gradients", path="joint", fix="joint=False")


def _backward(captured: Captured) -> TracedBackward:
    """The backward for the tangents that the results suggest.

    Raises:
        ExportError: there is none.
    """
    if captured.tape is None:
        raise ExportError(
            "no result is differentiable",
            path="joint",
            fix="let something require grad, or say joint=False",
        )
    return captured.tape.trace(captured.tape.guess())


def export_module(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Any = None, **options: Any
) -> Exported:
    """`export` under the name that users of AOTAutograd look for (``aot_export_module``);
    ``trace_joint=`` is ``joint=``."""
    if "trace_joint" in options:
        options["joint"] = options.pop("trace_joint")
    return export(module, args, kwargs, **options)


def export_joint(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any = None, **options: Any
) -> Exported:
    """`export` with ``joint=True``: forward and backward in one program
    (``aot_export_joint_simple``)."""
    return export(function, args, kwargs, joint=True, **options)


def _path(way: Any) -> str:
    """``args[0]['mask']``"""
    first, *rest = way
    return f"{('args', 'kwargs')[first.idx]}{pytree.keystr(tuple(rest))}"
