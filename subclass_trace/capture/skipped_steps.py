"""`GradScaler.step`, which leaves an optimizer's step out where a gradient is not finite.

The graph has the step in each call, and then puts back what it wrote if it was to be left out. So
all that the step does must be writes to tensors that were there before. Nodes say which part they
are (``meta["left_out"]``), so that a back end that runs operation by operation runs none of them
instead (`backends/eager/branches.py`).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable
from typing import Any

import torch

from ..errors import UnsupportedError
from ..subclass.flatten import leaves_of
from ..torch_api.autograd import versions_kept
from ..torch_api.kinds import is_fake, storage_ref
from ..torch_api.operators import OpOverload, op_schema
from ..torch_api.this_thread import replaced_here
from ..torch_api.trees import pytree
from .aliasing import same_elements
from .effects import is_kept
from .phase import Recording
from .writes import written_arguments

Tensor = torch.Tensor


def steps_that_are_left_out(recorder: Recording) -> contextlib.AbstractContextManager[Any]:
    """Inside, what a scaler decides is part of the graph."""

    def step(scaler: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> None:
        found: Any = sum(t.sum() for t in state["found_inf_per_device"].values()) != 0
        last, before = next(iter(reversed(recorder.graph.nodes))), _python_state(recorder)
        rows = sum(map(len, optimizer.state.values()))
        if recorder.state.call(optimizer.step, *args, **kwargs) is not None:
            raise _refused(recorder, "gives a result")
        if _python_state(recorder) != before:
            if sum(map(len, optimizer.state.values())) == rows:
                raise _refused(recorder, "changes Python state")
            raise UnsupportedError(
                "the first step of an optimizer, which makes its state",
                code="makes-state",
                path=recorder.user_line(),
            )
        nodes = list(itertools.takewhile(lambda n: n is not last, reversed(recorder.graph.nodes)))
        if any(
            is_kept(n) or torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ())
            for n in nodes
        ):
            raise _refused(recorder, "draws random numbers, or has other effects")
        writes = _writes(recorder, set(nodes))
        _tag([recorder.node_of(found)], number := next(recorder.numbers), "condition")
        _tag(nodes, number, "step")
        tensors = [t for t in _tensors_of(recorder, optimizer) if storage_ref(t) in writes]
        if not all(
            any(same_elements(t, w) for t in tensors)
            for written in writes.values()
            for _, w in written
        ):
            raise _refused(
                recorder,
                "writes to tensors besides parameters, gradients and the optimizer's state",
            )
        counted = len(recorder.memory.writes)
        with torch.no_grad():
            for t in tensors:
                with recorder.graph.inserting_before(writes[storage_ref(t)][0][0]):
                    was = t.clone()
                with versions_kept(t):
                    t.copy_(torch.where(found.to(t.device), was, t))
        del recorder.memory.writes[counted:]  # which count for versions, and these move none
        made = itertools.takewhile(lambda n: n is not last, reversed(recorder.graph.nodes))
        _tag(set(made) - set(nodes), number, "restore")

    return replaced_here(torch.amp.GradScaler, "_maybe_opt_step", step)


def _tag(nodes: Iterable[Any], number: int, part: str) -> None:
    for node in nodes:
        node.meta["left_out"] = f"{number} {part}"


def _tensors_of(recorder: Recording, optimizer: Any) -> list[Tensor]:
    """The dense tensors that its step may write, as they stand in the trace."""
    groups = pytree.tree_leaves([*optimizer.param_groups, *optimizer.state.values()])
    tensors = [recorder.state.give(t) for t in groups if isinstance(t, Tensor)]
    tensors += [t.grad for t in tensors if t.is_leaf and t.grad is not None]
    return [leaf for t in tensors for leaf in leaves_of(t)]


def _writes(recorder: Recording, nodes: set[Any]) -> dict[Any, list[tuple[Any, Tensor]]]:
    """Storages that were there before these nodes -> (node, what it writes), in order."""
    there, writes = set[Any](), dict[Any, list[tuple[Any, Tensor]]]()
    for node in recorder.graph.nodes:
        if node.op != "call_function" or node not in nodes:
            values = pytree.tree_leaves(node.meta.get("val"))
            there |= {storage_ref(t) for t in values if is_fake(t)}
        elif isinstance(node.target, OpOverload) and op_schema(node.target).is_mutable:
            for t in written_arguments(node.target, node.args, node.kwargs, torch.fx.Node):
                writes.setdefault(storage_ref(t.meta["val"]), []).append((node, t.meta["val"]))
    return {storage: written for storage, written in writes.items() if storage in there}


def _python_state(recorder: Recording) -> Any:
    """What the region has written by now, and what is there."""
    state = recorder.state
    rows = ((row, row.now.items()) for row in state.written.values())
    changed = {
        id(row.thing): [(k, id(v)) for k, v in now if not state.is_as_before(row, k, v)]
        for row, now in rows
    }
    return len(state.printed), {number: keys for number, keys in changed.items() if keys}


def _refused(recorder: Recording, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"an optimizer's step, which a GradScaler may leave out, {what}",
        code="step-left-out",
        path=recorder.user_line(),
    )
