"""Which objects in the contexts of traced inputs results may have: see `subclass.parts`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from .. import torch_api
from ..errors import ProtocolError
from ..subclass.arguments import has_own_equality
from ..subclass.context import Lent, Part, has_sizes, is_atom, is_buffer, is_copied, map_parts, parts_of
from ..subclass.flatten import wrappers_inside
from ..subclass.kept import is_object
from ..subclass.protocol import flattens_alike, is_traceable
from ..subclass.spec import OpaqueSpec, Spec, WrapperSpec
from ..subclass.visit import inner_values

Tensor = torch.Tensor


class Lending:
    """The objects in the contexts of traced inputs that results may have, by their marks."""

    def __init__(self, objects: Mapping[Lent, Any]) -> None:
        self.objects = dict(objects)
        self._marks = {id(value): mark for mark, value in reversed(self.objects.items())}

    @staticmethod
    def of(shape_env: Any, wrappers: Sequence[Any]) -> Lending:
        """What these traced inputs have. What a class makes anew each time stays alive."""
        objects: dict[Lent, Any] = {}
        aside = torch_api.unbound_symbols_set_aside(shape_env)  # a class may compute its context
        with aside, torch_api.without_tracing(), torch.no_grad():
            for number, value in enumerate(wrappers):
                objects |= {Lent(number, names, steps, held): held for names, steps, held in lendable(value)}
        return Lending(objects)

    def in_calls(self, used: Collection[Lent]) -> tuple[Lent, ...]:
        """The marks of which a call needs the objects, in this order. ``used``: by its results."""
        return tuple(m for m in self.objects if m in used)

    def marked(self, spec: Spec) -> Spec:
        """The spec of a result, with marks in the place of what it has from an input."""
        if isinstance(spec, OpaqueSpec):
            return OpaqueSpec(self._marks.get(id(spec.value), spec.value))
        if not isinstance(spec, WrapperSpec):
            return spec
        return replace(spec, inners=tuple(map(self.marked, spec.inners)), context=self._in_spec(spec.context))

    def _in_spec(self, context: Any) -> Any:
        mark = self._marks.get(id(context))
        return map_parts(context, self._in_spec) if mark is None else mark

    def in_place_of(self, value: Any) -> Any:
        """The same for an attribute of a result."""
        mark = self._marks.get(id(value))
        return map_parts(value, self.in_place_of) if mark is None else mark


def lendable(value: Any) -> Iterator[tuple[tuple[str, ...], tuple[Part, ...] | None, Any]]:
    """The objects in the contexts of a wrapper, and of those inside of it, that other calls may have others for: the
    attributes that lead to the wrapper, the parts of the context that lead to the object, and the object.

    Those that are attributes themselves (a DeviceMesh beside inner tensors) have no such parts.
    """
    for names, wrapper in _wrappers(value):
        inner, values, context = inner_values(wrapper)
        yield from (((*names, n), None, v) for n, v in zip(inner, values, strict=True) if not isinstance(v, Tensor))
        yield from ((names, steps, held) for steps, held in _held(context, ()))


def _wrappers(value: Any) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """A wrapper and those inside of it, with the names that lead there, as far as their contexts may hold objects."""
    if not isinstance(value, Tensor) or not is_traceable(value):
        return
    try:
        for names, wrapper in (((), value), *wrappers_inside(value)):
            cls = type(wrapper)
            alike = flattens_alike(cls) and all(isinstance(v, Tensor) for v in inner_values(wrapper)[1])
            if not alike and torch_api.context_shortcut(cls) is None:
                yield tuple(names), wrapper
    except ProtocolError:  # a class computes its context of numbers that a trace does not know
        return


def _held(value: Any, steps: tuple[Part, ...]) -> Iterator[tuple[tuple[Part, ...], Any]]:
    """The objects in a context in whose place another call may have another one."""
    if _may_be_another(value) and not has_sizes(value):
        yield steps, value
    for part, inside in parts_of(value):
        yield from _held(inside, (*steps, part))


def _may_be_another(value: Any) -> bool:
    if is_copied(value) or is_buffer(value) or type(value) is Tensor or torch_api.is_opaque(value):
        return True
    other = is_atom(value) or isinstance(value, (tuple, frozenset, Tensor))
    return not other and is_object(value) and has_own_equality(type(value))
