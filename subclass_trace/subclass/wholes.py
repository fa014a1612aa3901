"""What a call with another container, array or dtype in a context is served by, though the trace has not read it.

Nobody can tell what code does with such a value while it builds a wrapper: it may ask ``type(v) is list``, take it apart by a
pattern, hand it to C code. So nothing is tried with other ones beforehand. A call that has another one is served after a
look at what a wrapper that is built of that very one keeps. See docs/notes/contexts.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .components import Steps, value_at
from .context import same_context, snapshot
from .protocol import unflatten_of
from .visit import inner_values


class Wholes:
    """Those in the context of one input that the trace has not read.

    A trace knows a context by the attributes of its wrapper alone. So other ones lead to the same trace if a wrapper that
    is built with them keeps the rest of the context as the traced one does.

    Attributes:
        input: the number of the input; ``names``: the attributes that lead from it to the wrapper.
        steps: where they are in the context, and ``traced``, what the trace had there.
        others: where numbers and strings are that it has not read.
        attributes: of the wrapper, that are copies of other values of the context: name -> where these are.
    """

    def __init__(
        self,
        input: int,
        names: Sequence[str],
        steps: Sequence[Steps],
        others: Sequence[Steps],
        attributes: Mapping[str, Steps],
        context: Any,
    ) -> None:
        self.input, self.names, self.attributes = input, tuple(names), dict(attributes)
        self.steps, self.others = tuple(steps), tuple(others)
        self.traced = _values(snapshot(context), self.steps)
        self._seen: Any = None  # what was found to be right last; threads may put in what they saw

    def holds(self, value: Any) -> bool:
        """Does the wrapper in this input keep the rest of its context as the traced one does?"""
        for name in self.names:
            value = getattr(value, name)
        names, inners, context = inner_values(value)
        if same_context(self.traced, _values(context, self.steps)):
            return True
        if same_context(self._seen, _values(context, (*self.steps, *self.others))):
            return True
        own = snapshot(context)
        if not self._keeps(value, dict(zip(names, inners, strict=True)), own):
            return False
        self._seen = snapshot(_values(own, (*self.steps, *self.others)))
        return True

    def _keeps(self, wrapper: torch.Tensor, inner: dict[str, Any], context: Any) -> bool:
        try:
            with torch.no_grad():
                built = unflatten_of(type(wrapper))(inner, context, wrapper.shape, tuple(wrapper.stride()))
        except Exception:  # an author's code may raise anything; the call then says what is wrong
            return False
        kept = vars(built)
        rows = self.attributes.items()
        return all(name in kept and same_context(value_at(context, steps), kept[name]) for name, steps in rows)


def _values(context: Any, places: Sequence[Steps]) -> list[Any]:
    return [value_at(context, steps) for steps in places]
