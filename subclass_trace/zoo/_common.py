"""The few lines that every class of the zoo would otherwise repeat.

A ``__torch_dispatch__`` here always reads the same way: leave foreign wrappers alone (`foreign`), run the operations
that the class is closed under, and end in a default: take the wrappers apart (`unwrap`) and compute densely, or
`refuse`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .. import torch_api
from ..errors import UnsupportedError

aten = torch.ops.aten

# Views that look at the same bytes as something else: they mean nothing on a quantised inner tensor.
_BIT_VIEWS = frozenset({aten.view.dtype, aten.view_as_real.default, aten.view_as_complex.default})


def apply(function: Any, *args: Any) -> Any:
    """``function.apply(*args)`` of an autograd function (torch leaves it without annotations)."""
    return function.apply(*args)


def foreign(cls: type, types: Sequence[type]) -> bool:
    """Does the call involve a wrapper of another class? Then ``cls`` returns NotImplemented and the other may try.

    Fake tensors, parameters and plain subclasses are not foreign: only classes that flatten are.
    """
    return any(hasattr(t, "__tensor_flatten__") and not issubclass(t, cls) for t in types)


def same_strides(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Do two tensors of one shape lie alike? The stride of a dimension of size 1 means nothing, and is not the same
    on every path."""
    return all(size == 1 or s == t for size, s, t in zip(a.shape, a.stride(), b.stride(), strict=True))


def unwrap(cls: type[Any], function: Callable[[Any], Any], tree: Any) -> Any:
    """``tree`` with ``function`` applied to each ``cls`` in it."""
    return torch_api.tree_map_only(cls, function, tree)


def is_view(cls: type, func: Any) -> bool:
    """Does the operation return views of its first argument, value for value? Refuses views of the bits."""
    if func in _BIT_VIEWS:
        raise refuse(cls, func, fix="take the dense value first: a wrapper's bits are not those of its value")
    return bool(func.is_view)


def view(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], compute: Callable[..., Any]) -> Any:
    """The result of the view operation ``compute(func, *args, **kwargs)``, tied to the storage of ``args[0]``.

    In inference mode a view of a normal tensor is a normal tensor, so it must be made outside of that mode.
    """
    normal = torch.is_inference_mode_enabled() and not args[0].is_inference()
    with torch.inference_mode(False) if normal else contextlib.nullcontext():
        return torch_api.return_and_correct_aliasing(func, args, kwargs, compute(func, *args, **kwargs))


def is_mutable(func: Any) -> bool:
    """Does the operation write to one of its arguments?"""
    return bool(func._schema.is_mutable)


def changes_metadata(func: Any) -> bool:
    """Does the operation change sizes or strides of an argument in place, like ``t_`` and ``resize_``?"""
    return torch.Tag.inplace_view in func.tags


def written(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors among the arguments that the operation writes to."""
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            for t in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(t, torch.Tensor):
                    yield t


def refuse(cls: type, func: Any, fix: str) -> UnsupportedError:
    """The error for an operation that a class does not have."""
    return UnsupportedError(f"{cls.__name__} has no rule for {func}", got=func, fix=fix)


def in_place(
    cls: type,
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    dense: Callable[[Any], torch.Tensor],
    store: Callable[[Any, torch.Tensor], None],
) -> Any:
    """Any in-place or out= operation by way of dense copies.

    Args:
        dense: makes the dense copy of a wrapper.
        store: writes a dense value into the inner tensors of a wrapper.
    """
    if changes_metadata(func):
        raise refuse(cls, func, fix="use the out-of-place operation: the sizes of this wrapper do not change in place")
    copies: dict[int, torch.Tensor] = {}  # one per wrapper, so that x.add_(x) reads what it should

    def copy(x: Any) -> torch.Tensor:
        if id(x) not in copies:
            copies[id(x)] = dense(x)
        return copies[id(x)]

    dense_args, dense_kwargs = unwrap(cls, copy, (args, kwargs))
    out = func(*dense_args, **dense_kwargs)
    for x in written(func, args, kwargs):
        if isinstance(x, cls):
            store(x, copies[id(x)])
    return torch_api.return_and_correct_aliasing(func, args, kwargs, out)
