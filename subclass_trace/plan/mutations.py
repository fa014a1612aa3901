"""What a call changes of tensors among its inputs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class MutationPlan:
    """The region writes to one input.

    Attributes:
        input: number of the input.
        value: number of the forward value that holds its new contents.
        leaves: positions (within the input) of the leaves whose data is written.
        differentiable: autograd saw it, so that the input gets a new history.
        moved: by how much the version counter of the input moves: 0 for a write to ``x.data``, or to an inner tensor. None: by
            what is written, since other inputs may share it.
        writes: how many operations write its memory: what the counter of a dense input moves by where the recorded graph runs.
    """

    input: int
    value: int
    leaves: tuple[int, ...]
    differentiable: bool = False
    moved: int | None = None
    writes: int = 0
