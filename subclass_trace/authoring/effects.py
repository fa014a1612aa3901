"""What an operation's schema says about memory: what it writes to, which results are arguments or
views of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import ProtocolError
from ..torch_api.operators import op_schema
from ..torch_api.wrappers import return_and_correct_aliasing

Run = Callable[[tuple[Any, ...], dict[str, Any]], Any]
aten = torch.ops.aten

#: Views that look at the same bytes as something else: they mean nothing on an inner tensor that is
# no plain value.
BIT_VIEWS = frozenset({aten.view.dtype, aten.view_as_real.default, aten.view_as_complex.default})


def is_view(func: Any) -> bool:
    """Does the operation return views of its first argument?"""
    return bool(func.is_view)


def changes_metadata(func: Any) -> bool:
    """Does the operation change sizes or strides of an argument in place, like ``t_`` and
    ``resize_``?"""
    return torch.Tag.inplace_view in func.tags


def written_positions(func: Any) -> list[int]:
    """The positions of the arguments that the operation writes to."""
    arguments = op_schema(func).arguments
    return [
        i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write
    ]


def written(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that this call writes to."""
    found: list[Any] = []
    for i in written_positions(func):
        value = args[i] if i < len(args) else kwargs.get(op_schema(func).arguments[i].name)
        found += value if isinstance(value, (list, tuple)) else [value]
    return [t for t in found if isinstance(t, torch.Tensor)]


def returns_arguments(func: Any) -> bool:
    """Is every result an argument (or is there none)?"""
    return all(r.alias_info is not None and r.alias_info.is_write for r in op_schema(func).returns)


def put_right(func: Any, run: Run) -> Run:
    """``run`` with results as the schema says: in-place and out= operations return the very
    argument, views claim the storage of their base. In inference mode a view of a normal tensor is
    a normal tensor, made outside of that mode.
    """
    if not any(r.alias_info is not None for r in op_schema(func).returns) and not is_view(func):
        return run

    def right(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not is_view(func):
            return return_and_correct_aliasing(func, args, kwargs, run(args, kwargs))
        base = args[0]
        normal = torch.is_inference_mode_enabled() and not base.is_inference()
        with torch.inference_mode(False) if normal else contextlib.nullcontext():
            out = run(args, kwargs)
            for t in out if isinstance(out, (list, tuple)) else [out]:
                if type(t) is not type(base):
                    cls = type(base).__name__
                    raise ProtocolError(
                        f"the rule of {cls} for {func} returned something else than a view",
                        path=cls,
                        expected=f"{cls} over views of the inner tensors, since writes to a view "
                        "must reach its base",
                        got=type(t).__qualname__,
                        fix=f"return {cls}, or raise an error where there is no such view",
                    )
            return return_and_correct_aliasing(func, args, kwargs, out)

    return right


def substitute(cls: type, function: Callable[[Any], Any], value: Any) -> Any:
    """``value`` with ``function`` applied to each instance of ``cls`` in it; lists, tuples and
    dicts are copied."""
    if isinstance(value, cls):
        return function(value)
    if isinstance(value, (tuple, list)):
        return type(value)([substitute(cls, function, v) for v in value])
    if isinstance(value, dict):
        return {k: substitute(cls, function, v) for k, v in value.items()}
    return value


def instances(cls: type, value: Any) -> list[Any]:
    """The instances of ``cls`` in ``value``, in order."""
    found: list[Any] = []
    substitute(cls, found.append, value)
    return found
