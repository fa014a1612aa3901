"""What can be changed in place in the flatten contexts of wrappers: traced wrappers have copies of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .. import _torch
from .components import parts_of
from .context import is_atom, is_buffer, is_copied
from .flatten import wrappers_inside
from .kept_objects import is_looked_inside
from .protocol import flattens_alike, is_traceable


def copied_in(context: Any) -> Iterator[Any]:
    """The parts of a context, itself among them, of which a traced wrapper has copies."""
    if is_copied(context) or is_buffer(context):
        yield context
    for _, value in parts_of(context):
        yield from copied_in(value)


def may_change(context: Any, objects: bool = False) -> bool:
    """Does a context hold anything of which a traced wrapper has a copy? ``objects``: or an object of the user's."""
    if is_copied(context) or is_buffer(context) or (objects and not is_atom(context) and is_looked_inside(context)):
        return True
    return any(may_change(v, objects) for _, v in parts_of(context))


def own_contexts(value: Any) -> list[tuple[tuple[str, ...], torch.Tensor]]:
    """The wrappers in a value, itself among them, whose classes write contexts of their own, each with the attributes that
    lead to it."""
    if not is_traceable(value) or value.is_nested:
        return []
    rows = [((), value), *wrappers_inside(value)]
    return [r for r in rows if not flattens_alike(type(r[1])) and _torch.context_shortcut(type(r[1])) is None]
