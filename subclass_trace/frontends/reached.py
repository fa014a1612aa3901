"""What a walk over the code of a function finds (`reach`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..runtime.held import ABSENT, is_log
from ..subclass.paths import Path

Module = torch.nn.Module


@dataclass(frozen=True, eq=False)
class Slot:
    """A place that the code reads: a closure cell (``key`` None), or ``holder[key]`` of the globals, of the ``__dict__``
    of an object, class or function, or of what an object answers otherwise (`Slotted`: its slots, its class; `Asked`)."""

    holder: Any
    key: str | None
    path: Path
    value: Any

    @property
    def name(self) -> str:
        """The name that stands in the code."""
        return self.path.root if self.key is None else self.key

    def read(self) -> Any:
        """What it holds now, or ABSENT."""
        try:
            return self.holder.cell_contents if self.key is None else self.holder.get(self.key, ABSENT)
        except ValueError:  # the cell was emptied
            return ABSENT


@dataclass(frozen=True, eq=False)
class Reached:
    """What a walk found, in order: slots, the module trees in them, and containers, objects, classes and caches that may
    be changed; ``unbound``: globals that the code names, and that are not set."""

    slots: tuple[Slot, ...]
    modules: tuple[tuple[Module, Path], ...]
    held: tuple[tuple[Any, Path], ...]
    unbound: tuple[Slot, ...] = ()
    optimizers: tuple[tuple[torch.optim.Optimizer, Path], ...] = ()
    counters: frozenset[str] = frozenset()  # names that the code only moves on (``+= 1``, ``.append(x)``)
    stored: frozenset[str] = frozenset()  # attributes that the code assigns
    unread: frozenset[str] = frozenset()  # those of them that it does not read
    late: frozenset[str] = frozenset()  # attributes that only code names which runs in backwards
    hooks_on_nodes: bool = False  # it may register hooks on autograd nodes
    of_libraries: tuple[tuple[Any, Path], ...] = ()  # objects of classes of torch and other libraries, but optimizers
    lessened: frozenset[str] = frozenset()  # counters from which the code takes something (``-=``)

    def only_adds(self, name: str | None, value: Any) -> bool:
        """Does code no more with what a name holds than to move it on, or to add to it? Nobody has to know what it holds."""
        takes = name in self.lessened and isinstance(value, (set, dict))
        return name in self.counters and is_log(value) and not takes
