"""What a capture writes down: one `Step` for each thing that a backward does.

A step is lighter than an fx node (a capture makes thousands), and is moved freely until the order
is known; then `graph.py` writes each that is needed into an fx graph, once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, Literal

Kind = Literal[
    "input",  # a tensor, size, scalar, hook or packed value that the engine hands to each run
    "op",  # the functional form of a built-in node
    "backward",  # backward() of a Python autograd.Function
    "aten",  # an operation that C++ ran during the capture: zeros for an undefined gradient, ...
    "validate",  # the engine's check of a node's results: sum_to_size, casts, errors
    "sum",  # two gradients for one place
    "part",  # one of several results
    "size",  # arithmetic on sizes
    "hook",  # a tensor hook, a node's pre- or post-hook, a retain_grad
    "unpack",  # the unpack hook of one saved tensor
    "accumulate",  # into a leaf's .grad
    "post_accumulate",  # a post-accumulate-grad hook
]
#: computed where the first step that reads them stands; the others stand where the engine runs them
ON_DEMAND = frozenset({"input", "part", "size", "unpack"})


class Step:
    """One call. ``args`` may hold steps, also inside lists, tuples and dicts.

    Attributes:
        call: number of the autograd node that it belongs to, in capture order; -1 before the first.
        number: when it was captured.
        note: for people: the kind of hook, the name of an input.
    """

    __slots__ = ("args", "call", "kind", "kwargs", "meta", "note", "number", "target")

    def __init__(
        self,
        kind: Kind,
        target: Callable[..., Any] | None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        call: int = -1,
        number: int = 0,
        note: str = "",
        meta: dict[str, Any] | None = None,
    ) -> None:
        self.kind, self.target, self.args, self.kwargs = kind, target, args, kwargs or {}
        self.call, self.number, self.note, self.meta = call, number, note, meta

    def reads(self) -> Iterator[Step]:
        """The steps among the arguments, in order."""
        yield from _steps_in(self.args)
        if self.kwargs:
            yield from _steps_in(tuple(self.kwargs.values()))

    def __repr__(self) -> str:
        name = getattr(self.target, "__name__", self.note or "?")
        return f"<{self.kind} {name} of node {self.call}>"


def _steps_in(value: Any) -> Iterator[Step]:
    for item in value:
        if isinstance(item, Step):
            yield item
        elif isinstance(item, (list, tuple)):
            yield from _steps_in(item)
        elif isinstance(item, dict):
            yield from _steps_in(item.values())


def replace_steps(value: Any, new: Callable[[Step], Any]) -> Any:
    """``value`` with each step in it mapped by ``new``."""
    if isinstance(value, Step):
        return new(value)
    if type(value) is list:
        return [replace_steps(v, new) for v in value]
    if isinstance(value, tuple):
        return tuple([replace_steps(v, new) for v in value])
    if isinstance(value, dict):
        return {k: replace_steps(v, new) for k, v in value.items()}
    return value


class SizeNode:
    """A size or scalar that is known only by its step: the smallest symbolic number that C++
    accepts.

    C++ asks it what it is, computes with it (offsets of views), and reads ``hint`` where it needs a
    number to allocate.
    """

    def __init__(self, step: Step, hint: Any, write: Callable[..., Step]) -> None:
        self.step, self.hint, self.write = step, hint, write

    def is_int(self) -> bool:
        return isinstance(self.hint, int)

    def is_float(self) -> bool:
        return isinstance(self.hint, float)

    def is_bool(self) -> bool:
        return False

    def is_nested_int(self) -> bool:
        return False

    def is_constant(self) -> bool:
        return False

    def is_symbolic(self) -> bool:
        return True

    def has_hint(self) -> bool:
        return True

    def maybe_as_int(self) -> int | None:
        return None

    def nested_int(self) -> int | None:
        return None

    def int_(self) -> Any:
        return self.hint

    def guard_int(self, file: str = "", line: int = 0) -> Any:
        return self.hint

    def guard_float(self, file: str = "", line: int = 0) -> Any:
        return self.hint

    def clone(self) -> SizeNode:
        return self

    def wrap_int(self, value: int) -> Constant:
        return Constant(value)

    def str(self) -> str:
        return f"size<{self.hint}>"

    def _with(self, other: Any, operation: Callable[[Any, Any], Any]) -> SizeNode:
        right = other.hint if isinstance(other, Constant) else other.step
        return SizeNode(
            self.write("size", operation, (self.step, right)),
            operation(self.hint, other.hint),
            self.write,
        )

    def add(self, other: Any) -> SizeNode:
        return self._with(other, operator.add)

    def sub(self, other: Any) -> SizeNode:
        return self._with(other, operator.sub)

    def mul(self, other: Any) -> SizeNode:
        return self._with(other, operator.mul)


class Constant(SizeNode):
    """A plain number on the other side of an operation with a size."""

    def __init__(self, value: int) -> None:
        self.hint = value

    def _with(self, other: Any, operation: Callable[[Any, Any], Any]) -> SizeNode:
        if isinstance(other, Constant):
            return Constant(operation(self.hint, other.hint))
        step = other.write("size", operation, (self.hint, other.step))
        return SizeNode(step, operation(self.hint, other.hint), other.write)
