"""What a region asks of its inputs beside their values: is it a leaf, has it a gradient, where does it start.

A traced stand-in would answer for itself. So `MetadataReads` answers for the input that it stands for, and notes what was
read: that is guarded, and only that. It sees calls through `CapturedFunctions`. What differs in each call is refused; all else
the stand-in answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from .. import torch_api
from ..errors import UnsupportedError
from .inputs import Inputs
from .recorder import Recorder
from .user_code import is_user_code

Tensor = torch.Tensor
#: what an input, or a view of one, would answer otherwise in another call
_OTHERWISE = frozenset(
    (
        "storage",
        "_typed_storage",
        "untyped_storage",
        "_base",
        "_version",
        "_is_view",
        "is_shared",
        "output_nr",
        "retains_grad",
    )
)
#: names of the calls that ask
ASKING = _OTHERWISE | {"__get__", "__set__", "__delete__", "retain_grad", "storage_offset", "is_inference"}
#: the answer of a call that is none of ours
ASIDE = object()


#: what a stand-in does not share with the tensor that it stands for
_FACTS: Mapping[str, Callable[[Tensor], bool]] = {
    "gradient hooks": torch_api.gradient_hooks,
    "accumulation hooks": torch_api.accumulation_hooks,
    "is_inference": lambda t: t.is_inference(),
    "retains_grad": lambda t: t.retains_grad,
}


def failed_fact(facts: Sequence[tuple[str, bool]], t: Tensor) -> str | None:
    """The first of these facts that does not hold for ``t``, as the end of a sentence."""
    failed = (f"{name}: expected {known}, got {not known}" for name, known in facts if _FACTS[name](t) != known)
    return next(failed, None)


class MetadataReads:
    """The questions of one run of a region's function."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self._read: set[tuple[int, str]] = set()
        self._facts: dict[tuple[int, str], bool] = {}
        self.offsets = False  # was a storage offset asked for?

    def asked(self, number: int, name: str) -> bool:
        """Was ``name``, "is_leaf" or "gradient", asked of an input?"""
        return (number, name) in self._read

    def facts(self, number: int) -> tuple[tuple[str, bool], ...]:
        """What else was asked of an input, and the answers."""
        return tuple((name, answer) for (n, name), answer in self._facts.items() if n == number)

    def note(self, number: int, name: str) -> None:
        """``name``, "is_leaf" or "gradient", was asked of an input."""
        self._read.add((number, name))

    def fact(self, number: int, name: str) -> Any:
        """A fact of an input, on which the trace hangs from now on."""
        if (number, name) not in self._facts:
            real = self.inputs.real(number)
            if real is None:
                return ASIDE
            self._facts[number, name] = _FACTS[name](real)
        return self._facts[number, name]

    def depends_on(self, name: str, numbers: Iterable[int] | None = None) -> None:
        """The trace hangs on this fact of each input, or of some."""
        for number in range(len(self.inputs.rows)) if numbers is None else numbers:
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
        if name in _OTHERWISE and is_user_code(caller.f_code):
            self._refuse(name, traced, recorder)
        if row is None:
            return ASIDE
        number = self.inputs.number_of(traced)
        assert number is not None
        if name == "is_inference":
            return self.fact(number, name)
        if func is Tensor.retain_grad:  # a leaf has its gradient anyway
            return self.note(number, "is_leaf") if row.is_leaf else self._refuse(name, traced, recorder)
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
        if not self._lies_in_input(traced):
            return
        raise UnsupportedError(
            f"the region asks for {name} of an input, which differs between calls",
            path=recorder.user_line(),
            fix="ask outside of the region",
        )
