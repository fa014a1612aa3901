"""The state that an optimizer of ``torch.optim`` keeps for each parameter: moments, counts of steps.

Code of torch is not walked (`reach`), so what it stores there is looked after here: the tensors are inputs, like buffers of
a module, numbers are guarded or become symbols, and what the first step creates is stored by each call that is a first step.
"""

from __future__ import annotations

import array
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import _torch
from ..capture.facts import holds_traced
from ..errors import UnsupportedError
from ..plan import ItemPlan
from ..runtime.held import is_simple
from ..subclass.paths import Path
from .asked import Asked
from .reached import Reached, Slot


def slots_of(optimizer: torch.optim.Optimizer, path: Path) -> Iterator[Slot]:
    """Where the state of an optimizer lies, and one more place that tells whether it still is the same places."""
    path = path.attr("state")
    for number, held in enumerate(_tables(optimizer)):
        for key, value in held.items():
            if isinstance(key, str):
                yield Slot(held, key, path.item(number).item(key), value)
    outline = Asked(lambda _: _outline(optimizer))
    yield Slot(outline, "outline", path, _outline(optimizer))


def hooks_around_steps(optimizer: torch.optim.Optimizer | None, path: Path) -> tuple[Slot, list[Any]]:
    """The hooks that run around the ``step()`` of an optimizer, or of all (None), and a place that tells which they are: by
    their numbers, as no two hooks have one."""

    def tables() -> Sequence[dict[int, Any]]:
        return _torch.GLOBAL_STEP_HOOKS if optimizer is None else _torch.step_hooks(optimizer)

    numbers = Asked(lambda _: tuple(n for table in tables() for n in table))
    row = Slot(numbers, "step hooks", path.attr("step hooks"), numbers["step hooks"])
    return row, [hook for table in tables() for hook in table.values()]


def _tables(optimizer: torch.optim.Optimizer) -> Iterator[dict[str, Any]]:
    return (held for held in optimizer.state.values() if type(held) is dict)


def _outline(optimizer: torch.optim.Optimizer) -> bytes:
    """Which tables there are, and how long they are: as bytes, which each call makes and compares."""
    tables = optimizer.state.values()
    return array.array("Q", [n for t in tables if type(t) is dict for n in (id(t), len(t))]).tobytes()


@dataclass(frozen=True, eq=False)
class Stored:
    """``state[parameter][key] = value``."""

    state: Any
    parameter: Any
    key: str
    value: Any

    def plan(self, result: int) -> ItemPlan:
        """The same with the value of a call, which is number ``result``."""
        return ItemPlan(self.state, self.parameter, self.key, result)


@contextlib.contextmanager
def stored_by(reached: Reached, real: Callable[[Any], Any]) -> Iterator[list[Stored]]:
    """Inside, the function runs. Afterwards the state of its optimizers is as it was.

    Yields a list that is filled on the way out: what was stored. ``real``: the parameter that a traced one stands for.

    Raises:
        UnsupportedError: something else than tensors and numbers was stored, or something was deleted.
    """
    rows = [(o, path, _content(o)) for o, path in reached.optimizers]
    found: list[Stored] = []
    wrong: list[Path] = []
    try:
        yield found
    finally:
        for optimizer, path, was in rows:
            now, state = _content(optimizer), optimizer.state
            for parameter, held in now.items():
                before = was.get(parameter, {})
                for key, value in held.items():
                    if key not in before or not _is_same(before[key], value):
                        found.append(Stored(state, real(parameter), key, value))
                        if not _may_be_stored(key, value):
                            wrong.append(path.attr("state").item(key))
                if before.keys() - held.keys():
                    wrong.append(path.attr("state"))
            if was.keys() - now.keys():
                wrong.append(path.attr("state"))
            _restore(state, was)
    if wrong:
        raise UnsupportedError(
            "an optimizer deletes some of its state in the region, or keeps what is neither tensor nor number",
            path=wrong[0],
            expected="tensors, numbers and strings, by name",
            got="something else",
            fix="call step() outside of the region",
        )


def _content(optimizer: torch.optim.Optimizer) -> dict[Any, dict[Any, Any]]:
    return {parameter: dict(held) for parameter, held in optimizer.state.items() if type(held) is dict}


def _is_same(was: Any, now: Any) -> bool:
    return was is now or (is_simple(now) and type(was) is type(now) and bool(was == now))


def _may_be_stored(key: Any, value: Any) -> bool:
    one = isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat)) or is_simple(value)
    return isinstance(key, str) and (one or not holds_traced(value))


def _restore(state: Any, was: dict[Any, dict[Any, Any]]) -> None:
    for parameter in [p for p, held in state.items() if type(held) is dict and p not in was]:
        del state[parameter]
    for parameter, items in was.items():
        held = state.setdefault(parameter, {})
        if [*map(id, held.values())] != [*map(id, items.values())]:
            held.clear()
            held.update(items)
