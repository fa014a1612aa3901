"""`torch.distributed.all_reduce(t)` and its siblings, which write to their arguments, as functional
collectives copied back.

Autograd does not see them in eager mode, and version counters do not move: so it is here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch

from .autograd import versions_kept
from .kinds import is_fake

#: (what is written, its new contents)
_Rows: TypeAlias = Iterable[tuple[torch.Tensor, torch.Tensor]]
_WRITTEN = ("tensor_list", "output_tensor", "output")
_READ = ("tensor", "input_tensor", "input", "input_list")
#: which take tensors without dimensions, such as a loss
_OF_SCALARS = ("all_reduce", "broadcast", "all_gather")


def collective_in_place(func: Any, args: Any, kwargs: Any) -> Any:
    """A call of one of `COLLECTIVES`, on traced tensors; as it is where no functional one does the
    same."""
    given = inspect.signature(func).bind(*args, **kwargs)
    given.apply_defaults()
    rows = _rows(func.__name__, given.arguments)
    if rows is None:
        return func(*args, **kwargs)
    with torch.no_grad():
        for t, new in rows:
            with versions_kept(t):
                t.copy_(new)
    return None


def is_collective(func: Any) -> bool:
    """Is it one of `COLLECTIVES`, and no operation of the same name?"""
    return getattr(func, "__module__", None) == "torch.distributed.distributed_c10d"


def _rows(name: str, given: dict[str, Any]) -> _Rows | None:
    from torch.distributed import distributed_c10d as c10d
    from torch.distributed._functional_collectives import REDUCE_OP_TO_STR

    values = [(n, given[n]) for n in _WRITTEN + _READ if n in given]
    tensors = [(n, t) for n, v in values for t in (v if isinstance(v, list) else [v])]
    group = given["group"] or c10d._get_default_group()
    if (
        given["async_op"]
        or group in c10d._world.pg_coalesce_state
        or c10d._rank_not_in_group(group)
    ):
        return None
    if not all(is_fake(t) and t.is_contiguous() and not t.is_complex() for _, t in tensors):
        return None
    if name not in _OF_SCALARS and not all(t.dim() for _, t in tensors):
        return None
    if torch.is_grad_enabled() and any(
        t.requires_grad for n, t in tensors if n in _READ and len(tensors) > 1
    ):
        return None  # gloo computes some of these with operations that autograd sees
    reduction = REDUCE_OP_TO_STR.get(given["op"]) if "op" in given else ""
    if reduction is None:
        return None
    return COLLECTIVES[name](given, reduction, group)


def _call(name: str, *args: Any) -> torch.Tensor:
    functional: Any = torch.ops._c10d_functional
    out: torch.Tensor = functional.wait_tensor(getattr(functional, name)(*args))
    return out


def _all_reduce(given: dict[str, Any], reduction: str, group: Any) -> _Rows:
    return [(given["tensor"], _call("all_reduce", given["tensor"], reduction, group.group_name))]


def _broadcast(given: dict[str, Any], reduction: str, group: Any) -> _Rows:
    source = given.get("group_src")
    if source is None:
        source = torch.distributed.get_group_rank(group, given["src"])
    return [(given["tensor"], _call("broadcast", given["tensor"], source, group.group_name))]


def _all_gather_single(given: dict[str, Any], reduction: str, group: Any) -> _Rows:
    out = given["output_tensor"]
    new = _call("all_gather_into_tensor", given["input_tensor"], group.size(), group.group_name)
    return [(out, new.view(out.shape))]


def _all_gather(given: dict[str, Any], reduction: str, group: Any) -> _Rows | None:
    outs, t = given["tensor_list"], given["tensor"]
    if len(outs) != group.size() or any(o.shape != t.shape or o.dtype != t.dtype for o in outs):
        return None
    new = _call("all_gather_into_tensor", t.unsqueeze(0), group.size(), group.group_name)
    return zip(outs, new.unbind(), strict=True)


def _reduce_scatter_single(given: dict[str, Any], reduction: str, group: Any) -> _Rows | None:
    out, t = given["output"], given["input"]
    if t.shape[0] % group.size() != 0:
        return None
    new = _call("reduce_scatter_tensor", t, reduction, group.size(), group.group_name)
    return [(out, new.view(out.shape))]


def _reduce_scatter(given: dict[str, Any], reduction: str, group: Any) -> _Rows | None:
    out, parts = given["output"], given["input_list"]
    if len(parts) != group.size() or any(
        p.shape != out.shape or p.dtype != out.dtype for p in parts
    ):
        return None
    new = _call(
        "reduce_scatter_tensor", torch.stack(parts), reduction, group.size(), group.group_name
    )
    return [(out, new.view(out.shape))]


def _all_to_all_single(given: dict[str, Any], reduction: str, group: Any) -> _Rows | None:
    out, t, count = given["output"], given["input"], group.size()
    splits = []
    for tensor, sizes in ((out, given["output_split_sizes"]), (t, given["input_split_sizes"])):
        if not sizes and tensor.shape[0] % count != 0:
            return None
        splits.append(list(sizes) if sizes else [tensor.shape[0] // count] * count)
    return [(out, _call("all_to_all_single", t, *splits, group.group_name).view(out.shape))]


#: by name; two of them have had another one
COLLECTIVES: dict[str, Callable[[dict[str, Any], str, Any], _Rows | None]] = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    **dict.fromkeys(("all_gather_single", "all_gather_into_tensor"), _all_gather_single),
    **dict.fromkeys(("reduce_scatter_single", "reduce_scatter_tensor"), _reduce_scatter_single),
    "reduce_scatter": _reduce_scatter,
    "all_to_all_single": _all_to_all_single,
}
