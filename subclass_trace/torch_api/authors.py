"""What `authoring/` needs of torch's private names, besides the section "for authors" of the
package itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C import DispatchKey
from torch._ops import OpOverloadPacket as OpOverloadPacket


def is_c10d(op: Any) -> bool:
    """Is it an operation of ``torch.distributed``? Its schema does not say what it writes to."""
    return bool(op.namespace == "c10d")


def is_composite(op: Any) -> bool:
    """Is the operation made of others above dispatch (CompositeImplicitAutograd), so that it never
    arrives itself?"""
    composite = op.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd)
    own = any(
        torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key) for key in ("CPU", "CUDA")
    )
    return bool(composite) and not own


def decomposed(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A composite operation taken apart, in C++ as eager mode does elsewhere: torch's Python forms
    of some differ.

    A tracer has forms of its own (`composites`).
    """
    key = DispatchKey.CompositeImplicitAutograd
    if torch.compiler.is_compiling() or not torch._C._dispatch_has_kernel_for_dispatch_key(
        op.name(), key
    ):
        return op.decompose(*args, **kwargs)
    return op._op_dk(key, *args, **kwargs)


def below_torch_function(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a torch function as if no class had a ``__torch_function__``."""
    with torch._C.DisableTorchFunctionSubclass():
        return function(*args, **kwargs)


def overloads(packet: OpOverloadPacket[Any, Any]) -> list[Any]:
    """The overloads of an operation that its schema lists, such as ``aten.add.Tensor`` and
    ``aten.add.Scalar``."""
    found = [getattr(packet, name) for name in packet.overloads()]  # type: ignore[no-untyped-call]
    # some exist for TorchScript alone
    return [op for op in found if torch._C._dispatch_has_kernel(op.name())]


def below_autograd() -> bool:
    """Are we inside of an operation (or of inference mode), where nothing is recorded for a
    backward?

    Dynamo traces the code above autograd only.
    """
    if torch.compiler.is_dynamo_compiling():
        return False
    return bool(torch._C._dispatch_tls_is_dispatch_key_excluded(DispatchKey.AutogradFunctionality))


def transforms_active() -> bool:
    """Are we inside of a transform of torch.func? (Dynamo traces Functions of either form.)"""
    if torch.compiler.is_dynamo_compiling():
        return False
    return torch._C._are_functorch_transforms_active()


#: collectives in place that move values and compute nothing: the same for every part of a tensor
MOVES = frozenset(
    f"c10d::{name}" for name in ("broadcast_", "scatter_", "allgather_", "send", "recv_")
)


def is_functional_collective(op: Any) -> bool:
    """Is it one of the collectives that DTensor issues?"""
    return bool(op.namespace == "_c10d_functional")


def joined_work(results: list[Any]) -> Any:
    """The handles of collectives as one: the earlier ones are waited for. None if they are no such
    handles."""
    if (
        not all(isinstance(r, torch.ScriptObject) for r in results)
        or not torch.distributed.is_available()
    ):
        return None
    for r in results[:-1]:
        torch.distributed.Work.unbox(r).wait()
    return results[-1]


def running_backward() -> str:
    """Which node of autograd's graph runs in this thread (``MulBackward0``), and the line that made
    it, which torch knows under ``torch.autograd.detect_anomaly()``; "" outside of a backward."""
    node: Any = torch._C._current_autograd_node()
    if node is None:
        return ""
    lines = [
        line
        for text in node.metadata.get("traceback_", ())
        for line in text.splitlines()
        if "File" in line
    ]
    made = (
        f"made at {lines[-1].strip()}"
        if lines
        else "torch.autograd.detect_anomaly() tells which line made it"
    )
    return f"asked for by {node.name()} in a backward ({made})"
