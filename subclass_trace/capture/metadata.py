"""What a region asks of its inputs beside their values: is it a leaf, has it a gradient, where does it start.

A traced stand-in would answer for itself. So `MetadataReads` answers for the input that it stands for, and notes what was
read: that is guarded, and only that. It sees calls through `CapturedFunctions`. What differs in each call is refused; all else
the stand-in answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from .. import torch_api
from ..errors import UnsupportedError
from .facts import NAMES, ReadsOf, fact_of
from .inputs import Inputs, TracedInput
from .mutation import detached_in_place
from .recorder import Recorder
from .user_code import is_user_code

Tensor = torch.Tensor
_STORAGES = ("storage", "_typed_storage", "untyped_storage")
#: names of the calls that ask
ASKING = frozenset({"__get__", "__set__", "__delete__", "retain_grad", "storage_offset", *_STORAGES}) | NAMES
#: the answer of a call that is none of ours
ASIDE = object()


class MetadataReads:
    """The questions of one run of a region's function."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self._read: set[tuple[int, str]] = set()
        self._facts: dict[tuple[int, str], Any] = {}
        self.offsets = False  # was a storage offset asked for?

    def of(self, number: int) -> ReadsOf:
        """What was asked of input ``number``."""
        facts = tuple((name, answer) for (n, name), answer in self._facts.items() if n == number)
        is_leaf, gradient = ((number, n) in self._read for n in ("is_leaf", "gradient"))
        return ReadsOf(is_leaf, gradient, facts)

    def note(self, number: int, name: str) -> None:
        """``name`` of `ReadsOf` was asked of an input."""
        self._read.add((number, name))

    def fact(self, number: int, name: str) -> Any:
        """A fact of an input, on which the trace hangs from now on."""
        if (number, name) not in self._facts:
            real = self.inputs.inputs[number].real()
            if real is None:
                return ASIDE
            self._facts[number, name] = fact_of(real, name)
        return self._facts[number, name]

    def depends_on(self, name: str, numbers: Iterable[int] | None = None) -> None:
        """The trace hangs on this fact of each input, or of some."""
        for number in range(len(self.inputs.inputs)) if numbers is None else numbers:
            self.fact(number, name)

    # ---------------------------------------------------------------- answers
    def answer(self, func: Any, traced: Any, recorder: Recorder, caller: Any) -> Any:
        """The answer to a call on a stand-in, by the frame ``caller``, or `ASIDE`.

        Raises:
            UnsupportedError: the region lets an input that is no leaf retain its gradient, or asks for what neither an
                answer nor a guard can be given.
        """
        owner, get = getattr(func, "__self__", None), func.__name__ == "__get__"
        row = self.inputs.row_of(traced)
        name = func.__self__.__name__ if get else func.__name__
        if name == "storage_offset":
            self.offsets = self.offsets or self._lies_in_input(traced)
            return ASIDE
        if owner is Tensor.nbytes:  # torch's own asks for numbers, where sizes are symbols
            return traced.numel() * traced.element_size() if get and traced.layout is torch.strided else ASIDE
        if name in ("_base", "_version", *_STORAGES) and is_user_code(caller.f_code):
            self._refuse(name, traced, recorder)
        if row is None:
            return ASIDE
        number = self.inputs.number_of(traced)
        assert number is not None
        if name in NAMES:
            return self.fact(number, name)
        if func is Tensor.retain_grad:
            return self._retain_grad(number, row, recorder)
        moved = (
            row.edge is None or row.traced.grad_fn is not row.edge.node
        )  # another history than it came with, or none
        if get and not moved and owner in (Tensor.is_leaf, Tensor.grad_fn):
            self.note(number, "is_leaf")
            return row.is_leaf if owner is Tensor.is_leaf else None if row.is_leaf else ASIDE
        return ASIDE

    def _lies_in_input(self, t: Any) -> bool:
        if not torch_api.is_fake(t) or t.layout is not torch.strided:
            return self.inputs.row_of(t) is not None
        mine, leaves = torch_api.storage_ref(t), self.inputs.leaf_values
        return any(leaf.layout is torch.strided and torch_api.storage_ref(leaf) == mine for leaf in leaves)

    def _refuse(self, name: str, traced: Any, recorder: Recorder) -> None:
        """What an input, or a view of one, would answer otherwise in another call."""
        base = traced._base if isinstance(traced, Tensor) and traced._is_view() else None
        numbers = [n for n in map(self.inputs.number_of, (traced, base)) if n is not None]
        if name == "_base" and all(self.fact(n, "_is_view") is False for n in numbers):
            return
        if name == "_version" and not numbers and not self._lies_in_input(traced):
            return
        raise UnsupportedError(
            f"the region asks for {name} of an input, which differs between calls",
            path=recorder.user_line(),
            expected="questions whose answer is the same in each call that a specialization serves",
            got="a traced tensor, which does not know",
            fix="ask outside of the region",
        )

    def sets_requires_grad(self, traced: Any, value: bool) -> bool:
        """``requires_grad_(value)`` on a leaf that requires grad, whose stand-in is none. False: it is none of ours.

        Raises:
            UnsupportedError: it gives its gradient up.
        """
        row, number = self.inputs.row_of(traced), self.inputs.number_of(traced)
        if row is None or number is None or row.edge is None or not row.is_leaf:
            return False
        if row.traced.grad_fn is not row.edge.node:
            return False
        self.note(number, "is_leaf")
        if not value:
            raise detached_in_place(row.path)
        return True

    def refuse_to_detach(self, traced: Any) -> None:
        """``detach_()`` of an input, also of one that does not require grad: of a view, eager refuses it."""
        row = self.inputs.row_of(traced)
        if row is not None:
            raise detached_in_place(row.path)

    def _retain_grad(self, number: int, row: TracedInput, recorder: Recorder) -> Any:
        if not row.is_leaf:
            raise UnsupportedError(
                "the region calls retain_grad() on an input that is no leaf",
                path=recorder.user_line(),
                expected="retain_grad() outside of the region",
                got=f"{row.path}, of shape {tuple(row.traced.shape)}",
                fix="call it on the argument before the region",
            )
        self.note(number, "is_leaf")
        return None  # a leaf has its gradient anyway
