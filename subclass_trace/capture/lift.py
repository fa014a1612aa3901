"""Real tensors that code comes upon while it is traced: the input that such a one is takes its place.

Stand-ins are put where names lead (`state`), but a real tensor may be met by other ways: an object of C, the constructor of a
class. It is known by identity. One that no source holds is refused, by the recorder: the graph would have the one of this trace
for ever.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from .. import torch_api
from ..subclass.flatten import flatten
from ..subclass.visit import rebuild
from .inputs import Inputs
from .recorder import Recorder

Tensor = torch.Tensor
#: what is asked of a real tensor itself
_OWN = frozenset(
    {"__get__", "__set__", "__delete__", "__hash__", "__repr__", "__format__", "__deepcopy__", "__reduce_ex__"}
)


class StandIns:
    """The traced tensors for real ones, in one capture."""

    def __init__(self, recorder: Recorder, inputs: Inputs) -> None:
        self.recorder, self.inputs = recorder, inputs

    def swap(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments of a call, with stand-ins for real tensors."""
        if getattr(func, "__name__", "") in _OWN:
            return args, kwargs
        return tuple(map(self.swapped, args)), {k: self.swapped(v) for k, v in kwargs.items()}

    def swapped(self, value: Any) -> Any:
        """The stand-in for a real tensor, also inside of lists and tuples; anything else itself."""
        if isinstance(value, Tensor):
            traced = self.known(value)
            return self._constant(value) if traced is value and torch_api.is_jagged_example(value) else traced
        return type(value)(map(self.swapped, value)) if type(value) in (list, tuple) else value

    def known(self, value: Any) -> Any:
        """The traced tensor for a real one that is an input, or the value itself."""
        row = self.inputs.of_real(value) if isinstance(value, Tensor) else None
        return value if row is None else row.traced

    def _constant(self, real: Tensor) -> Tensor:
        """A jagged tensor that torch itself holds, and of which it reads the class alone."""
        with torch.no_grad(), torch_api.no_modes():
            leaves, spec = flatten(real)
        spec = replace(spec, size=self.recorder.symbols.ragged_sizes(spec.size))  # type: ignore[union-attr,arg-type]
        with torch.no_grad():
            traced: Tensor = rebuild(spec, iter([self.recorder.constant(t) for t in leaves]))
        return traced
