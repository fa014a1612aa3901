"""Python attributes that somebody has set on wrappers, beside what their contexts say (``x.n = 3``).

A traced wrapper is built anew, so it has what ``__tensor_unflatten__`` sets. Where that is a number, a string or None, or the
wrapper of the call has one there, it is taken over from that wrapper, and guarded. Nested wrappers too: ``x.inner.n`` has the
name ``inner.n``.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import _torch
from ..subclass.arguments import ObjectIdentity, attributes_inside
from ..subclass.context import same_context, snapshot
from ..subclass.kept import kept
from ..subclass.paths import owner_of
from ..subclass.protocol import is_traceable
from ..subclass.spec import Spec, WrapperSpec
from .facts import SIMPLE
from .inputs import TracedInputs

Facts = dict[tuple[int, str], Any]


def own_attributes(inputs: TracedInputs, guarded: bool = True) -> Facts:
    """Take over what the wrappers of the call hold: (number of the input, dotted name) -> value, for the guards.

    Args:
        guarded: another tracer guards attributes where False, and has its own.
    """
    found: Facts = {}
    for number, row in enumerate(inputs.inputs):
        real = row.real()
        if real is not None and guarded:
            _take_over(number, row.traced, real, row.spec, (), found)
        for name, value in row.facts.items():  # a trace that is made again
            owner, last = owner_of(row.traced, name[1:]) if name.startswith(".") else (None, "")
            if owner is not None and hasattr(owner, last) and type(value) in SIMPLE:
                object.__setattr__(owner, last, value)
    return found


def _known(value: Any) -> Any:
    return ObjectIdentity(value) if isinstance(value, torch.Tensor) else kept(value)


def _take_over(number: int, traced: Any, real: Any, spec: Spec, names: tuple[str, ...], found: Facts) -> None:
    if not isinstance(spec, WrapperSpec) or type(traced) is not type(real) or not is_traceable(real):
        return
    mine, theirs = dict(attributes_inside(traced)), dict(attributes_inside(real))
    code = getattr(getattr(type(real), "__tensor_flatten__", None), "__code__", None)
    told = frozenset() if code is None else frozenset(code.co_names)  # the context tells them, as far as it matters
    for name in sorted(mine.keys() & theirs.keys() - {*spec.names}):
        fresh, value = mine[name], theirs[name]
        if isinstance(fresh, (torch.Tensor, *_torch.SYM_TYPES)) or not {type(fresh), type(value)}.intersection(SIMPLE):
            continue
        same = same_context(fresh, value)
        if not same:
            object.__setattr__(traced, name, value if isinstance(value, torch.Tensor) else snapshot(value))
        if not same or name not in told:
            found[number, "." + ".".join((*names, name))] = _known(value)
    for name, inner in zip(spec.names, spec.inners, strict=True):
        _take_over(number, getattr(traced, name), getattr(real, name), inner, (*names, name), found)
