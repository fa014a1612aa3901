"""Collectives in place: ``torch.distributed.all_reduce`` and the like become functional ones and copies.

``c10d::allreduce_`` and its siblings say nothing of what they write, and hand a handle out, which no graph can hold.
Each is recorded as what it does to its tensors: the functional collective, the wait for it, and ``copy_`` into the
argument. So the rest of the package sees data that depends on data, and a write. With ``async_op=True`` the wait comes at
once, and the handle is that of a collective which is complete.

The wait is marked as an effect (``meta["effect"]``): the other ranks take part in the collective whether or not this one
reads the result. Collectives to or from a single rank have no functional form, and are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import torch_api
from ..errors import UnsupportedError

Tensor = torch.Tensor
_FIX = (
    "call it outside of the region, or use a collective that every rank takes part in alike (all_reduce, all_gather, "
    "all_gather_into_tensor, reduce_scatter, reduce_scatter_tensor, broadcast, all_to_all, all_to_all_single), or those "
    "of torch.distributed._functional_collectives"
)


def record_collective(recorder: Any, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Record a collective in place, and return what the operation returns.

    Raises:
        UnsupportedError: it has no functional form, or its tensors do not fit each other.
    """
    named = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    call = _Call(recorder, func, named)
    form = _FORMS.get(torch_api.op_name(func))
    if form is None:
        raise call.refusal("has no functional form, so that a graph cannot hold it")
    with recorder:  # what follows is recorded like operations of the user
        written = form(call)
    handle = torch_api.done_work(written)
    return handle if len(func._schema.returns) == 1 else (args[0], handle)


class _Call:
    """One call of a collective, by the names of its schema."""

    def __init__(self, recorder: Any, func: Any, named: dict[str, Any]) -> None:
        self.recorder, self.func, self.named = recorder, func, named
        self.functional = torch_api.functional_collectives()

    def __getitem__(self, name: str) -> Any:
        return self.named[name]

    @property
    def group(self) -> torch_api.Group:
        """The group of ranks.

        Raises:
            UnsupportedError: no name leads to it, as of one that was made by hand.
        """
        group = torch_api.group_of(self.named["process_group"])
        if group is None:
            raise self.refusal("is called on a process group that torch does not know by name")
        return group

    @property
    def reduction(self) -> str:
        """``"sum"``, ``"max"`` and the like."""
        name = torch_api.reduction_of(self.named["reduce_op"])
        if name is None:
            raise self.refusal("reduces in a way that functional collectives do not know")
        return name

    def refusal(self, why: str) -> UnsupportedError:
        """The error for a collective that cannot be recorded."""
        return UnsupportedError(
            f"the region calls the collective {self.func}, which {why}",
            path=self.recorder.user_line(),
            expected="collectives with a functional form, on a process group of torch.distributed",
            got=str(self.func),
            fix=_FIX,
        )

    def wait(self, value: Tensor) -> Tensor:
        """The result of a collective, which is never dropped."""
        done: Tensor = self.functional.wait_tensor(value)
        node = self.recorder.node_of(done)
        node.meta["effect"] = True
        return done

    def write(self, target: Tensor, flat: Tensor) -> Tensor:
        """Copy what came into the argument, whatever its shape. Collectives do not convert, and do not broadcast."""
        if target.dtype != flat.dtype or target.numel() != flat.numel():
            raise self.refusal(
                f"writes {flat.numel()} elements of {flat.dtype} to a tensor of {target.numel()} of {target.dtype}"
            )
        with torch.no_grad():
            target.copy_(flat if flat.shape == target.shape else flat.reshape(target.shape))
        return target

    def same(self, tensors: Sequence[Tensor], like: Tensor) -> None:
        """Refuse tensors that differ in size or dtype: only some back ends can send those, in steps of their own."""
        if any(t.dtype != like.dtype or t.numel() != like.numel() for t in tensors):
            raise self.refusal("is called with tensors of different sizes or dtypes")


def _flat(t: Tensor) -> Tensor:
    return t.contiguous().reshape(-1)


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([_flat(t) for t in tensors])


# ---------------------------------------------------------------------------------------------- the forms
def _all_reduce(call: _Call) -> list[Tensor]:
    reduction, group = call.reduction, call.group
    return [
        call.write(t, call.wait(call.functional.all_reduce(t.contiguous(), reduction, group.name)))
        for t in call["tensors"]
    ]


def _all_reduce_coalesced(call: _Call) -> list[Tensor]:
    tensors = call["tensors"]
    sent = [t.contiguous() for t in tensors]
    found = [call.wait(t) for t in call.functional.all_reduce_coalesced(sent, call.reduction, call.group.name)]
    return [call.write(t, f) for t, f in zip(tensors, found, strict=True)]


def _broadcast(call: _Call) -> list[Tensor]:
    group, root = call.group, call["root_rank"]
    return [
        call.write(t, call.wait(call.functional.broadcast(t.contiguous(), root, group.name))) for t in call["tensors"]
    ]


def _all_gather(call: _Call) -> list[list[Tensor]]:
    group = call.group
    for outputs, t in zip(call["output_tensors"], call["input_tensors"], strict=True):
        call.same(outputs, t)
        found = call.wait(call.functional.all_gather_into_tensor(_flat(t), group.size, group.name))
        for output, part in zip(outputs, found.view(group.size, t.numel()).unbind(), strict=True):
            call.write(output, part)
    return call["output_tensors"]  # type: ignore[no-any-return]


def _all_gather_base(call: _Call) -> list[Tensor]:
    group = call.group
    sent = _flat(call["input_tensor"])
    found = call.wait(call.functional.all_gather_into_tensor(sent, group.size, group.name))
    return [call.write(call["output_tensor"], found)]


def _all_gather_coalesced(call: _Call) -> list[Tensor]:
    group = call.group
    sent = [_flat(t) for t in call["inputs"]]
    found = [call.wait(t) for t in call.functional.all_gather_into_tensor_coalesced(sent, group.size, group.name)]
    return [call.write(t, f) for t, f in zip(call["outputs"], found, strict=True)]


def _reduce_scatter(call: _Call) -> list[Tensor]:
    reduction, group = call.reduction, call.group
    written = []
    for output, inputs in zip(call["output_tensors"], call["input_tensors"], strict=True):
        call.same(inputs, output)
        found = call.functional.reduce_scatter_tensor(_joined(inputs), reduction, group.size, group.name)
        written.append(call.write(output, call.wait(found)))
    return written


def _reduce_scatter_base(call: _Call) -> list[Tensor]:
    group = call.group
    sent = _flat(call["input_tensor"])
    found = call.functional.reduce_scatter_tensor(sent, call.reduction, group.size, group.name)
    return [call.write(call["output_tensor"], call.wait(found))]


def _reduce_scatter_coalesced(call: _Call) -> list[Tensor]:
    group = call.group
    sent = [_flat(t) for t in call["inputs"]]
    results = call.functional.reduce_scatter_tensor_coalesced(sent, call.reduction, group.size, group.name)
    found = [call.wait(t) for t in results]
    return [call.write(t, f) for t, f in zip(call["outputs"], found, strict=True)]


def _all_to_all(call: _Call) -> list[Tensor]:
    outputs, inputs = call["output_tensors"], call["input_tensors"]
    received, sent = ([t.numel() for t in row] for row in (outputs, inputs))
    found = call.wait(call.functional.all_to_all_single(_joined(inputs), received, sent, call.group.name))
    return [call.write(t, f) for t, f in zip(outputs, torch.split(found, received), strict=True)]


def _all_to_all_base(call: _Call) -> list[Tensor]:
    output, sent, group = call["output"], call["input"], call.group
    splits = []
    for t, given in ((output, call["output_split_sizes"]), (sent, call["input_split_sizes"])):
        rows = t.shape[0] if t.dim() else 1
        if not given and rows % group.size:
            raise call.refusal(f"splits {rows} rows for {group.size} ranks")
        splits.append(list(given) or [rows // group.size] * group.size)
    return [call.write(output, call.wait(call.functional.all_to_all_single(sent.contiguous(), *splits, group.name)))]


_FORMS: dict[str, Callable[[_Call], Any]] = {
    "allreduce_": _all_reduce,
    "allreduce_coalesced_": _all_reduce_coalesced,
    "broadcast_": _broadcast,
    "allgather_": _all_gather,
    "_allgather_base_": _all_gather_base,
    "allgather_into_tensor_coalesced_": _all_gather_coalesced,
    "reduce_scatter_": _reduce_scatter,
    "_reduce_scatter_base_": _reduce_scatter_base,
    "reduce_scatter_tensor_coalesced_": _reduce_scatter_coalesced,
    "alltoall_": _all_to_all,
    "alltoall_base_": _all_to_all_base,
}
