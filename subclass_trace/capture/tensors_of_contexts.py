"""Plain tensors in flatten contexts: a traced wrapper has copies, with which a region may compute, and that is all.

For the graph they are values that the guards compare, like numbers, no inputs. So nothing that a region writes to one
reaches the caller's, a gradient of one reaches nobody, and a view of one would show the caller what belongs to the trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import _torch
from ..errors import UnsupportedError
from ..plan import MutationPlan
from ..subclass.changeable import own_contexts
from ..subclass.components import Part, parts_of
from ..subclass.context import Lent
from ..subclass.flatten import leaves_of
from ..subclass.kept_objects import KeptTensor
from ..subclass.noting import unnoted
from ..subclass.paths import Path
from ..subclass.spec import Spec, WrapperSpec
from ..subclass.visit import inner_values
from .closed_over import ClosedOverTensors
from .inputs import TracedInput
from .recorder import Recorder

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class _Copy:
    """A copy in a traced wrapper: where it stands, and the caller's tensor, if there is a call."""

    value: Tensor
    place: tuple[int, tuple[str, ...], tuple[Part, ...]]
    path: Path
    real: Tensor | None


class TensorsOfContexts:
    """Those of the inputs of a capture. Make it before the region runs."""

    def __init__(self, inputs: Sequence[TracedInput], recorder: Recorder) -> None:
        self._recorder = recorder
        with unnoted(), _torch.plain_dispatch():
            rows = [c for k, row in enumerate(inputs) if _has_tensors(row.spec) for c in _copies(k, row)]
        self._copies = {id(row.value): row for row in rows}

    def mark_of(self, value: Any) -> Lent | None:
        """What stands for the tensor of the call, if ``value`` is a copy of it."""
        row = self._copies.get(id(value))
        return None if row is None else Lent("input", *row.place, row.value)

    def check(
        self,
        closed: ClosedOverTensors,
        mutations: Sequence[MutationPlan],
        results: Sequence[Any],
        arguments: Sequence[Tensor],
    ) -> None:
        """Call it when the region has run, with the tensors that it closes over; ``arguments``: the caller's.

        Raises:
            UnsupportedError: it does more than compute with one.
        """
        if not self._copies:
            return
        written = {m.input for m in mutations if m.value is not None}
        memory = {s for k in written if k < len(arguments) for s in _memory(arguments[k])}
        handed_out = {s for o in results if isinstance(o, Tensor) for s in _memory(o)}
        differentiable = any(isinstance(o, Tensor) and o.requires_grad for o in results)
        for number, c in enumerate(closed.rows, closed.first):
            row = self._copies.get(id(c.value))
            if row is None:
                continue
            fake = self._recorder.lifted_fake(c.value)
            if number in written:
                raise _refused(row, "the region writes to", "what a region may write as an inner tensor")
            if fake is not None and handed_out.intersection(_memory(fake)):
                raise _refused(row, "a result shares memory with", "a result with memory of its own: clone()")
            if row.real is not None and memory.intersection(_memory(row.real)):
                raise _refused(row, "the region writes memory of, by an argument,", "memory of its own for each")
            if c.edge is not None and differentiable:
                raise _refused(
                    row, "there would be a gradient of", "what requires grad as an inner tensor, or detached"
                )


def _refused(row: _Copy, what: str, expected: str) -> UnsupportedError:
    return UnsupportedError(
        f"{what} a plain tensor that a flatten context holds",
        path=row.path,
        expected=expected,
        got=f"a tensor of shape {tuple(row.value.shape)} that is no inner tensor",
        fix="let __tensor_flatten__ name it among the inner tensors",
    )


def _memory(t: Tensor) -> Iterator[Any]:
    return (_torch.storage_ref(leaf) for leaf in leaves_of(t) if leaf.layout is torch.strided)


def _has_tensors(spec: Spec) -> bool:
    if not isinstance(spec, WrapperSpec):
        return False
    return _is_or_holds_tensor(spec.context) or any(map(_has_tensors, spec.inners))


def _is_or_holds_tensor(context: Any) -> bool:
    return isinstance(context, (Tensor, KeptTensor)) or any(_is_or_holds_tensor(v) for _, v in parts_of(context))


def _copies(number: int, row: TracedInput) -> Iterator[_Copy]:
    real = row.real()
    found = own_contexts(row.traced)
    theirs = dict(own_contexts(real)) if real is not None else {}
    for names, wrapper in found:
        path = row.path
        for name in names:
            path = path.attr(name)
        other = inner_values(theirs[names])[2] if names in theirs else None
        for steps, copy, original in _pairs(inner_values(wrapper)[2], other, ()):
            if copy is not original:  # a dataclass has the very tensor
                yield _Copy(copy, (number, names, steps), path, original)


def _pairs(mine: Any, theirs: Any, steps: tuple[Part, ...]) -> Iterator[tuple[tuple[Part, ...], Any, Any]]:
    if type(mine) is Tensor and not _torch.is_fake(mine):
        yield steps, mine, theirs if type(theirs) is Tensor else None
    others = dict(parts_of(theirs))
    for part, value in parts_of(mine):
        yield from _pairs(value, others.get(part), (*steps, part))
