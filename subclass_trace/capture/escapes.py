"""Traced tensors and symbols that would leave the region inside of the contexts of its results."""

from __future__ import annotations

from typing import Any

import torch

from .. import _torch
from ..errors import UnsupportedError
from ..subclass.arguments import attributes_inside
from ..subclass.components import parts_of
from ..subclass.context import Lent, is_atom
from ..subclass.paths import Path
from ..subclass.protocol import flattens_alike, is_traceable
from ..subclass.spec import Spec, WrapperSpec
from .diagnostics import kept_number
from .facts import holds_traced


def check_escapes(spec: Spec, path: Path) -> None:
    """Look at what the context of a result holds: numbers that differ between calls may stand in containers and dataclasses
    there, where a call finds them; traced tensors nowhere.

    Raises:
        UnsupportedError: there is one, or an object with one inside.
    """
    if not isinstance(spec, WrapperSpec):
        return
    for name, inner in zip(spec.names, spec.inners, strict=True):
        check_escapes(inner, path.attr(name))
    if not flattens_alike(spec.cls) and _torch.context_shortcut(spec.cls) is None:
        _look(spec.context, path)


def _look(value: Any, path: Path, depth: int = 8) -> None:
    if isinstance(value, (Lent, *_torch.SYM_TYPES)) or is_atom(value) or depth == 0:
        return
    parts = list(value) if isinstance(value, tuple) else [part for _, part in parts_of(value)]
    for part in parts:
        _look(part, path, depth - 1)
    if isinstance(value, torch.Tensor) and not is_traceable(value) and not _torch.is_fake(value):
        return
    inside = () if parts or isinstance(value, torch.Tensor) else attributes_inside(value)
    for name, held in inside:
        if isinstance(held, _torch.SYM_TYPES):
            raise kept_number(held, path.attr(name))  # the size is fixed then
    if not parts and holds_traced(value):
        kind = "tensor" if isinstance(value, torch.Tensor) else f"{type(value).__qualname__} with a traced value inside"
        raise UnsupportedError(
            "the region puts a value that it computes into the flatten context of a result",
            path=path,
            expected="contexts of values that are known while tracing, and sizes in containers and dataclasses",
            got=f"a {kind}",
            fix="let __tensor_flatten__ name the tensor as an inner tensor, or return it beside the wrapper",
        )
