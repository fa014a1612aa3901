"""Collectives of ``torch.distributed``: what their operations carry, their functional forms, the handle of a done one."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

#: ``torch.distributed.ReduceOp`` by number, as the functional collectives call it
_REDUCTIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")


class Group(NamedTuple):
    """A process group: its name, by which functional collectives find it, and its number of ranks."""

    name: str
    size: int


def is_collective_in_place(op: Any) -> bool:
    """Is it an operation of ``torch.distributed``? Its schema does not say what it writes to."""
    return bool(op.namespace == "c10d")


def group_of(boxed: Any) -> Group | None:
    """The process group inside a script object; None for one that no name leads to."""
    from torch.distributed import distributed_c10d

    door: Any = distributed_c10d
    group = door.ProcessGroup.unbox(boxed)
    try:
        found = door._resolve_process_group(group.group_name)
    except (RuntimeError, ValueError, KeyError):
        return None
    return Group(group.group_name, group.size()) if found == group else None


def reduction_of(boxed: Any) -> str | None:
    """How a functional collective calls this ``ReduceOp``; None for one that it cannot do (``PREMUL_SUM``)."""
    number = int(boxed.op())
    return _REDUCTIONS[number] if number < len(_REDUCTIONS) else None


def functional_collectives() -> Any:
    """``torch.ops._c10d_functional``, with what torch knows of it in Python (side effects, autograd)."""
    import torch.distributed._functional_collectives

    return torch.ops._c10d_functional


def done(result: Any) -> Any:
    """The boxed handle (``Work``) of a collective that is complete, and has this result."""
    from torch._C import _distributed_c10d

    make: Any = getattr(_distributed_c10d, "_create_work_from_future")  # noqa: B009  # torch's stubs lack it
    future: Any = torch.futures.Future()
    future.set_result(result)
    return make(future).boxed()
