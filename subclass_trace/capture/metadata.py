"""What a region asks of its inputs besides their values: is it a leaf, has it a gradient, where
does it start.

A traced stand-in would answer for itself. So `MetadataReads` answers for the input that it stands
for, and notes what was read: that is guarded, and only that. It sees calls through
`CapturedFunctions`. What differs in each call is refused; all else the stand-in answers.
"""

from __future__ import annotations

from typing import Any

import torch

from ..errors import UnsupportedError
from ..plan import gradient_of
from ..torch_api.kinds import is_fake, storage_ref
from ..torch_api.lines import is_user_code
from .inputs import Inputs
from .recorder import Recorder

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
#: of these Dynamo takes what the first call tells for constant
_DYNAMO_IS_WRONG = ("output_nr", "_base")
#: names of the calls that ask
ASKING = _OTHERWISE | {
    "__get__",
    "__set__",
    "__delete__",
    "retain_grad",
    "storage_offset",
    "is_inference",
}
#: the answer of a call that is none of ours
ASIDE = object()


def fact_code(name: str, x: str) -> str:
    """How a call asks for a fact: an attribute that a stand-in does not share with the tensor that
    it stands for."""
    codes = {"grad": f"gradient_of({x}) is not None", "is_inference": f"{x}.is_inference()"}
    return codes.get(name, f"{x}.{name}")


class MetadataReads:
    """The questions of one run of a region's function."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self._facts: dict[tuple[int, str], bool] = {}
        self.offsets = False  # was a storage offset asked for?

    def facts(self, number: int) -> tuple[tuple[str, bool], ...]:
        """What was asked of an input, and the answers."""
        return tuple((name, answer) for (n, name), answer in self._facts.items() if n == number)

    def fact(self, number: int, name: str) -> Any:
        """A fact of an input, on which the trace hangs from now on."""
        if (number, name) not in self._facts:
            real = self.inputs.real(number)
            if real is None:
                return ASIDE
            answer: Any = gradient_of(real) is not None if name == "grad" else getattr(real, name)
            self._facts[number, name] = bool(answer() if name == "is_inference" else answer)
        return self._facts[number, name]

    # ---- answers
    def answer(self, func: Any, traced: Any, recorder: Recorder, caller: Any) -> Any:
        """The answer to a call on a stand-in, by the frame ``caller``, or `ASIDE`.

        Raises:
            UnsupportedError: the region lets an input that is no leaf retain its gradient, or asks
                for what neither an answer nor a guard can be given.
        """
        owner, get = getattr(func, "__self__", None), func.__name__ == "__get__"
        row = self.inputs.row_of(traced)
        name = func.__self__.__name__ if get else func.__name__
        if name == "storage_offset":
            self.offsets = self.offsets or self._lies_in_input(traced)
            return ASIDE
        if owner is Tensor.nbytes:  # torch's own asks for numbers, where sizes are symbols
            return (
                traced.numel() * traced.element_size()
                if get and traced.layout is torch.strided
                else ASIDE
            )
        if name in _OTHERWISE and is_user_code(caller.f_code):
            self._refuse(name, traced, recorder)
        if row is None:
            return ASIDE
        number = self.inputs.number_of(traced)
        assert number is not None
        if name == "is_inference":
            return self.fact(number, name)
        if func is Tensor.retain_grad:  # a leaf has its gradient anyway
            if not self.fact(number, "is_leaf"):
                self._refuse(name, traced, recorder)
            return None
        # another history than it came with, or none
        moved = row.edge is None or row.traced.grad_fn is not row.edge.node
        if get and not moved and owner in (Tensor.is_leaf, Tensor.grad_fn):
            leaf = self.fact(number, "is_leaf")
            return leaf if owner is Tensor.is_leaf else None if leaf else ASIDE
        return ASIDE

    def _lies_in_input(self, t: Any) -> bool:
        if not is_fake(t) or t.layout is not torch.strided:
            return self.inputs.row_of(t) is not None
        mine, leaves = storage_ref(t), self.inputs.leaf_values
        return any(leaf.layout is torch.strided and storage_ref(leaf) == mine for leaf in leaves)

    def _refuse(self, name: str, traced: Any, recorder: Recorder) -> None:
        """What an input, or a view of one, would answer otherwise in another call."""
        if not self._lies_in_input(traced):
            return
        raise UnsupportedError(
            f"the region asks for {name} of an input, which differs between calls",
            code="address" if name in _DYNAMO_IS_WRONG else "unstable-metadata",
            path=recorder.user_line(),
            fix="ask outside of the region",
        )
