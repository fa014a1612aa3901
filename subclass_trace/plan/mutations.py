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
        unseen: the version counter of the input stays where it is (``x.data``, or an inner tensor was written).
    """

    input: int
    value: int
    leaves: tuple[int, ...]
    differentiable: bool = False
    unseen: bool = False
