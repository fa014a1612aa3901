"""Objects in the contexts of results that are those of inputs ("device mesh in, device mesh out", PyTorch PR 173270).

A class often hands its context on (``cls(out, x.config)``). In eager mode the result then has the very object of the input, so
that what changes one changes the other. A traced wrapper has a copy of what can be changed in place; where a result has that
very copy, its spec has a mark (`OfInput`) there, and a call hands on the object of its own input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from .. import torch_api
from ..errors import NeedsEager, ProtocolError
from ..subclass.context import (
    OfInput,
    has_own_equality,
    has_sizes,
    is_atom,
    is_copied,
    is_object,
    map_parts,
    parts_of,
)
from ..subclass.flatten import wrappers_inside
from ..subclass.protocol import flattens_alike, is_traceable
from ..subclass.spec import OpaqueSpec, Spec, WrapperSpec
from ..subclass.visit import inner_values

Tensor = torch.Tensor


class HandedOn:
    """The objects in the contexts of traced inputs that results may have, by their marks; ``used``: those that have one."""

    def __init__(self, shape_env: Any, inputs: Sequence[Any]) -> None:
        """What a class makes anew each time stays alive."""
        self.used: dict[OfInput, None] = {}
        self._objects: dict[OfInput, Any] = {}
        aside = torch_api.unbound_symbols_set_aside(shape_env)  # a class may compute its context
        with aside, torch_api.without_tracing(), torch.no_grad():
            for number, value in enumerate(inputs):
                self._objects |= {OfInput(number, code, held): held for code, held in _objects_of(value)}
        self._marks = {id(value): mark for mark, value in reversed(self._objects.items())}

    def marked(self, spec: Spec) -> Spec:
        """The spec of a result, with marks in the place of what it has from an input."""
        if isinstance(spec, OpaqueSpec):
            return OpaqueSpec(self.in_place_of(spec.value))
        if not isinstance(spec, WrapperSpec):
            return spec
        return replace(spec, inners=tuple(map(self.marked, spec.inners)), context=self.in_place_of(spec.context))

    def in_place_of(self, value: Any) -> Any:
        """A context, or a part of it, with marks."""
        mark = self._marks.get(id(value))
        if mark is None:
            return map_parts(value, self.in_place_of)
        self.used[mark] = None
        return mark

    def refuse_attributes(self, rows: Iterable[Any]) -> None:
        """Refuse attributes of ``rows`` that the region sets to such objects.

        Raises:
            NeedsEager: there is one.
        """
        for row in rows:
            for name, value in getattr(row, "attributes", {}).items():
                if self.in_place_of(value) is not value:
                    raise NeedsEager(
                        "the region sets an attribute of a wrapper to an object from the context of another",
                        path=name,
                        expected="numbers, strings and objects of its own",
                        fix="build a new wrapper",
                    )


def _objects_of(value: Any) -> Iterator[tuple[str, Any]]:
    """The objects in the contexts of a wrapper, and of those inside of it, that other calls may have others for, each with the
    code that leads there."""
    if not isinstance(value, Tensor) or not is_traceable(value):
        return
    try:
        for names, wrapper in (((), value), *wrappers_inside(value)):
            if torch_api.context_shortcut(type(wrapper)) is not None:
                continue
            at = ".".join(("{}", *names))
            inner, values, context = inner_values(wrapper)
            opaque = [(f"{at}.{n}", v) for n, v in zip(inner, values, strict=True) if not isinstance(v, Tensor)]
            yield from opaque
            if opaque or not flattens_alike(type(wrapper)):
                yield from _held(context, f"{at}.__tensor_flatten__()[1]")
    except ProtocolError:  # a class computes its context of numbers that a trace does not know
        return


def _held(value: Any, code: str) -> Iterator[tuple[str, Any]]:
    """The objects in a context in whose place another call may have another one."""
    other = is_atom(value) or isinstance(value, (tuple, frozenset, Tensor)) or has_sizes(value)
    if not other and (
        is_copied(value) or torch_api.is_opaque(value) or (is_object(value) and has_own_equality(type(value)))
    ):
        yield code, value
    for step, inside in parts_of(value):
        yield from _held(inside, step.replace("{}", code))
