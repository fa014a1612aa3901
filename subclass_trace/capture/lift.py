"""Real tensors that code comes upon while it is traced: the input that such a one is takes its place.

Stand-ins are put where names lead (`state`), but a real tensor may be met by other ways: a local variable of a caller, an
object of C, the constructor of a class. It is known by identity. One that no source holds is refused: the graph would have
the one of this trace for ever.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from .. import torch_api
from ..subclass.flatten import flatten, leaves_of
from ..subclass.protocol import Kind, is_traceable, kind_of
from ..subclass.visit import rebuild
from .diagnostics import unknown_tensor
from .inputs import Inputs
from .recorder import Recorder

Tensor = torch.Tensor
#: properties that lead to other tensors; what the others say is the real tensor's own
_VIEWS = ("T", "mT", "H", "mH", "data", "real", "imag", "shape")
_OWN = frozenset(
    {"__hash__", "__repr__", "__format__", "__deepcopy__", "__reduce_ex__", "__dir__", "_is_view"}
    | {"register_hook", "register_post_accumulate_grad_hook", "retain_grad", "backward"}
)


class StandIns:
    """The traced tensors for real ones, in one capture."""

    def __init__(self, recorder: Recorder, inputs: Inputs) -> None:
        self.recorder, self.inputs = recorder, inputs
        self._traced: dict[int, Tensor] = {}  # wrappers that were looked at, and are traced

    def swap(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any, dict[int, Tensor]]:
        """The arguments of a call, with stand-ins for real tensors; and which those are, by the ids of the stand-ins."""
        if not self._any_real(args) and not (kwargs and self._any_real(kwargs.values())):
            return args, kwargs, {}
        name = getattr(func, "__name__", "")
        if name in _OWN or (name in ("__get__", "__delete__") and func.__self__.__name__ not in _VIEWS):
            return args, kwargs, {}
        if name == "__set__" and func.__self__.__name__ not in ("data", "requires_grad"):
            return args, kwargs, {}
        back: dict[int, Tensor] = {}

        def one(value: Any) -> Any:
            if isinstance(value, Tensor):
                if not self._is_real(value):
                    return value
                traced = self.stand_in(value)
                back[id(traced)] = value
                return traced
            return type(value)(map(one, value)) if type(value) in (list, tuple) else value

        return tuple(map(one, args)), {k: one(v) for k, v in kwargs.items()}, back

    def _any_real(self, values: Any) -> bool:
        return any(
            self._is_real(v) if isinstance(v, Tensor) else type(v) in (list, tuple) and self._any_real(v)
            for v in values
        )

    def _is_real(self, t: Tensor) -> bool:
        kind = type(t)
        if kind in torch_api.FAKE_TYPES or id(t) in self._traced:
            return False
        if self.inputs.of_real(t) is not None:
            return True
        if kind_of(kind) is Kind.LEAF:
            known = t.layout is torch.strided and not torch_api.is_functorch_wrapped(t)
            return known and not self.recorder.is_constant(t)
        if not is_traceable(t):
            return False
        leaves = leaves_of(t)
        if not leaves or any(map(torch_api.is_fake, leaves)):
            self._traced[id(t)] = t
            return False
        return True

    def known(self, value: Any) -> Any:
        """The traced tensor for a real one that is an input, or the value itself."""
        row = self.inputs.of_real(value) if isinstance(value, Tensor) else None
        return value if row is None else row.traced

    def swapped(self, t: Tensor) -> Tensor:
        """The stand-in for a real tensor; any other tensor itself."""
        return self.stand_in(t) if self._is_real(t) else t

    def stand_in(self, real: Tensor) -> Tensor:
        """The traced tensor for a real one.

        Raises:
            UnsupportedError: no source holds it.
        """
        traced: Tensor = self.known(real)
        if traced is real:
            lifted = self.recorder.lifted_fake(real)
            if lifted is not None:
                return lifted
            if not torch_api.is_jagged_example(real):
                raise unknown_tensor(real, self.recorder.user_line())
            return self._constant(real)
        return traced

    def _constant(self, real: Tensor) -> Tensor:
        """A jagged tensor that torch itself holds, and of which it reads the class alone."""
        with torch.no_grad(), torch_api.no_modes():
            leaves, spec = flatten(real)
        spec = replace(spec, size=self.recorder.symbols.ragged_sizes(spec.size))  # type: ignore[union-attr,arg-type]
        with torch.no_grad():
            traced: Tensor = rebuild(spec, iter([self.recorder.constant(t) for t in leaves]))
        self._traced[id(traced)] = traced
        return traced
