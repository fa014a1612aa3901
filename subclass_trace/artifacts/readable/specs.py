"""Taking values apart, and putting them together, as lines of saved source."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...subclass.context import Outer, Sizes, parts_of
from ...subclass.spec import LeafSpec, OpaqueSpec, Spec, WrapperSpec
from .text import Names, class_text, literal, refuse, sizes_text


def kind_text(spec: LeafSpec | WrapperSpec, keys: int | None, path: str) -> str:
    """What no size says of a tensor."""
    found = [literal(spec.dtype, path), literal(spec.device, path), str(spec.requires_grad)]
    return f"({', '.join(found if keys is None else [*found, str(keys)])})"


def taken_apart(
    spec: Spec, name: str, path: str, new_name: Iterator[str], cls: type | None = None
) -> Iterator[tuple[str, Spec, str]]:
    """(line, spec, name) of each tensor in a value, in flatten order: the line takes the inner
    ones of the one before; the last ones are leaves."""
    if isinstance(spec, OpaqueSpec):
        refuse("an object that a wrapper lists among its inner tensors", path)
    if isinstance(spec, LeafSpec):
        return
    inner = [next(new_name) for _ in spec.names]
    context = context_text(spec, path)
    line = f"[{', '.join(inner)}] = flatten({name}, {spec.names!r}, {context}, {path!r})"
    yield line, spec, name
    for own, attribute, held in zip(inner, spec.names, spec.inners, strict=True):
        below = f"{path}.{attribute}"
        yield "", held, own
        yield from taken_apart(held, own, below, new_name)


def context_text(spec: WrapperSpec, path: str) -> str:
    """The context of a wrapper; one that holds sizes of the call is refused."""
    waiting = [spec.context]
    while waiting:
        part = waiting.pop()
        if isinstance(part, (Outer, Sizes)):
            refuse("a context that holds sizes of a call", path)
        waiting += parts_of(part)
    return literal(spec.context, f"the context of {path}")


def wrapped(spec: Spec, leaves: Iterator[str], symbols: Names, path: str) -> str:
    """A value made of its leaves, as an expression."""
    if isinstance(spec, OpaqueSpec):
        refuse("an object that a wrapper lists among its inner tensors", path)
    if isinstance(spec, LeafSpec):
        return next(leaves)
    if spec.layout is not torch.strided:
        refuse("a wrapper of this layout", path, spec.layout)
    inner = (
        f"{name!r}: {wrapped(held, leaves, symbols, f'{path}.{name}')}"
        for name, held in zip(spec.names, spec.inners, strict=True)
    )
    sizes = f"{sizes_text(spec.size, symbols, path)}, {sizes_text(spec.stride, symbols, path)}"
    made = f"{{{', '.join(inner)}}}, {context_text(spec, path)}, {sizes}"
    return f"wrap({class_text(spec.cls, path)}, {made})"
