"""Functions of ``torch.distributed`` that read values in Python: refused by name, with what to do instead.

Their own code would be refused too, for a comparison or a read deep inside of it, which tells a user nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple

from .. import _torch
from ..errors import DataDependentError, UnsupportedError
from .user_code import tracebacks, user_line


class _Call(NamedTuple):
    """Why a function has no place in a region, and what to do instead."""

    why: str
    fix: str


_OBJECTS = _Call(
    "sends pickled Python objects",
    "call it outside of the region, and pass what came as an argument; for tensors use all_gather, broadcast and the like",
)
_CALLS = {
    **dict.fromkeys(
        ("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
        _OBJECTS,
    ),
    **dict.fromkeys(("send_object_list", "recv_object_list"), _OBJECTS),
    "from_local": _Call(
        "compares the tensors of all ranks, with run_check=True",
        "pass run_check=False (the default), and check outside of the region",
    ),
    "distribute_tensor": _Call(
        "sends the tensor of one rank to the others",
        "pass src_data_rank=None, where every rank has the same tensor, or call it outside of the region",
    ),
    "init_device_mesh": _Call("makes process groups", "make the mesh outside of the region, where it is made once"),
}
#: of all functions with such a name, those of these modules
_PLACES = ("torch.distributed.distributed_c10d", "torch.distributed.tensor._api", "torch.distributed.device_mesh")


@contextlib.contextmanager
def named_distributed_calls() -> Iterator[None]:
    """What is raised inside of such a function is an error about the function.

    Raises:
        UnsupportedError: names the function and the user's line.
    """
    try:
        yield
    except (DataDependentError, UnsupportedError, *_torch.DATA_DEPENDENT_ERRORS) as error:
        names = [f.f_code.co_name for tb in tracebacks(error) if _is_listed(f := tb.tb_frame)]
        if not names:
            raise
        call = _CALLS[names[0]]
        raise UnsupportedError(
            f"the region calls torch.distributed's {names[0]}, which {call.why}",
            path=user_line(error),
            expected="operations and collectives on tensors",
            got=str(error).partition("\n")[0][:200],
            fix=call.fix,
        ) from error


def _is_listed(frame: FrameType) -> bool:
    name, given = frame.f_code.co_name, frame.f_locals
    if name not in _CALLS or frame.f_globals.get("__name__") not in _PLACES:
        return False
    harmless = (name == "from_local" and not given.get("run_check")) or given.get("src_data_rank", 0) is None
    return not harmless
