"""Where a trace stands, what it has met, and what rules for operations may ask of the recorder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.fx as fx

from ..torch_api.fake_results import FakeResults
from .symbols import Symbols
from .writes import WrittenMemory

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class CheckpointTag:
    """While a checkpointed part of the function runs: its policy, and the number of the part."""

    policy: Callable[..., Any]
    graph_id: int


@dataclass(frozen=True, eq=False)
class Phase:
    """What holds for the operations that are recorded now; see `Recorder.during`.

    Attributes:
        tag: the part of the graph that is being written, "is_forward" or "is_backward".
        state: the `state.run.StateRun` of the code that runs, whose events are off below it.
        checkpoint: of the part that runs.
        branches: `decided.StateBranches`, while the function runs.
        stop_frame: it, and those above, do not belong to the user function.
        sealed: the user function has run: its inputs are known.
        outliving: in a backward, the storages that are not its own.
        asks_for_numbers: by ``.item()`` or ``.tolist()``, not for the truth of a tensor.
        default_dtype: under which it has begun.
    """

    tag: str = "is_forward"
    state: Any = None
    checkpoint: CheckpointTag | None = None
    branches: Any = None
    stop_frame: Any = None
    sealed: bool = False
    outliving: frozenset[Any] = frozenset()
    asks_for_numbers: bool = False
    default_dtype: torch.dtype = field(default_factory=torch.get_default_dtype)


@dataclass(eq=False)
class Met:
    """What the traces of a recorder have come upon so far.

    Attributes:
        classes: of wrappers that operations ran on.
        attention: a function whose kernels a caller may choose.
        numbers: read by ``.item()``: there are symbols that no input tells.
        ranks: what was read of the rank of this process, and where; a set in order.
        looks_after_writes: at a value, to see whether a branch is taken that the graph does not
            have.
        hooks: on values of the region; ``hooked``: the autograd nodes of these.
        graded: values of the region whose ``.grad`` the region has set, by id.
    """

    classes: set[type] = field(default_factory=set)
    attention: bool = False
    numbers: bool = False
    ranks: dict[str, None] = field(default_factory=dict)
    looks_after_writes: bool = False
    hooks: bool = False
    hooked: set[Any] = field(default_factory=set)
    graded: dict[int, Tensor] = field(default_factory=dict)

    def hook(self, t: Tensor) -> None:
        """A hook on a value of the region."""
        self.hooks = True
        self.hooked.add(t.grad_fn)

    def grad(self, t: Tensor) -> None:
        """The region has set ``t.grad``."""
        self.graded[id(t)] = t


class Recording(Protocol):
    """What a rule for an operation may ask of the recorder, and do to the graph that it writes."""

    mode: Any
    decompositions: dict[Any, Callable[..., Any]]
    graph: fx.Graph
    root: torch.nn.Module
    results: FakeResults
    symbols: Symbols
    numbers: Iterator[int]
    memory: WrittenMemory
    met: Met
    phase: Phase

    @property
    def tag(self) -> str:
        """`Phase.tag`."""

    @property
    def state(self) -> Any:
        """`Phase.state`."""

    def node_of(self, value: Any) -> Any:
        """The node of a traced value."""

    def bare(self, fake: Tensor) -> Tensor:
        """A fake tensor of the same metadata that nobody has touched."""

    def alias(self, value: Tensor, like: Tensor) -> None:
        """``value`` is the very value of ``like``."""

    def lift(self, real: Tensor) -> Tensor:
        """The fake that stands for a real tensor."""

    def annotate(self, node: fx.Node, func: Any = ..., args: Any = ..., kwargs: Any = ...) -> None:
        """Say of a node where it comes from."""

    def knows(self, value: Tensor) -> bool:
        """Has this tensor a node in the graph?"""

    def track_result(self, node: fx.Node, out: Any, args: Any = ...) -> None:
        """``out`` is what a node computes."""

    def user_line(self) -> str | None:
        """``file:line`` of the innermost user frame."""

    def below(self) -> AbstractContextManager[None]:
        """What runs inside is not the user's."""
