"""What a call changes of tensors among its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..subclass.spec import Spec


@dataclass(frozen=True, eq=False)
class MutationPlan:
    """What the region did to one input.

    Attributes:
        input: number of the input.
        value: number of the forward value that holds its new contents, or None (metadata alone).
        leaves: positions (within the input) of the leaves whose data is copied back.
        differentiable: autograd saw it, so that the input gets a new history.
        metadata: spec after the call when sizes, strides or offsets changed.
        attributes: Python attributes of the wrapper that the region changed.
        version_bumps: by how much the version counter moves.
        starts_grad: the region called ``requires_grad_()`` on it.
        below: those of ``leaves`` that operations on the wrapper alone have written, which may be inference tensors.
        inner_bumps: wrappers inside, by dotted names -> by how much their counters move.
        leaf_bumps: of a wrapper: position of a leaf -> by how much its own counter moves, less what the program has
            moved it by. An operation on the wrapper does not move it. A leaf that another plan counts is left out.
        in_program: those of ``leaves`` that the program writes itself.
        moved: by how much that has moved the version counter of a dense input.
    """

    input: int
    value: int | None
    leaves: tuple[int, ...]
    differentiable: bool = False
    metadata: Spec | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    version_bumps: int = 0
    starts_grad: bool = False
    below: tuple[int, ...] = ()
    leaf_bumps: Mapping[int, int] | None = None
    inner_bumps: Mapping[str, int] = field(default_factory=dict)
    in_program: tuple[int, ...] = ()
    moved: int = 0

    @property
    def copied(self) -> tuple[int, ...]:
        """The leaves that are still to be written when the program is done."""
        return tuple(k for k in self.leaves if k not in self.in_program)
