"""What generated code calls with: the state of one call, and a plan with its compiled graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import UnsupportedError
from ..plan import Plan
from ..subclass.paths import Path
from ..subclass.template import Verified
from .backward import Backwards

Tensor = torch.Tensor
Boxed = Callable[[list[Any]], Sequence[Any]]


@dataclass(eq=False)
class Call:
    """The state of one call: inputs, their dense leaves, values of symbols; the forward fills in
    sizes.

    ``arguments``: (args, kwargs), where a backward reads Python state among them.
    """

    inputs: list[torch.Tensor]
    leaves: list[torch.Tensor]
    env: dict[Any, Any]
    sizes: Sequence[Any] = ()
    arguments: Any = ((), {})


@dataclass(frozen=True, eq=False)
class Program:
    """A plan with its compiled graphs.

    Attributes:
        by_eager: the eager back end has compiled them.
        templates: constructors of wrappers that were verified for the values of this program.
    """

    plan: Plan
    forward: Boxed
    backwards: Backwards | None
    by_eager: bool = True
    templates: Verified = field(default_factory=dict)

    @property
    def frozen(self) -> Any:
        """The `runtime.frozen.FrozenProgram` that the forward is; None where nothing is folded."""
        return self.forward if hasattr(self.forward, "has_other_weights") else None


def watch_contexts(
    same: Callable[..., bool], now: Sequence[Any], paths: Sequence[Path], values: Any
) -> None:
    """A backward has the contexts of its forward: one of these values that is asked for after a
    change of them is refused.

    ``same`` tells whether the objects that are the contexts ``now`` are as they were. The wrappers,
    at ``paths``, are not
    held: one that the region writes leads to the backward.
    """

    def check(_: Any) -> None:
        if not same(*now):
            raise UnsupportedError(
                "a flatten context was changed between forward and backward",
                code="context-changed",
                path=", ".join(map(str, paths)),
                expected="contexts that stay as they are until the backward is done",
                fix="change it after the backward, or give the wrapper a new one",
            )

    every = [values] if isinstance(values, Tensor) else [t for t in values if isinstance(t, Tensor)]
    for node in {t.grad_fn: None for t in every if t.grad_fn is not None}:
        node.register_prehook(check)
