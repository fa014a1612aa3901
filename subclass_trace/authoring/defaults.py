"""What a class does with an operation that it has no rule for: dequantise, run on each inner
tensor, or refuse."""

from __future__ import annotations

from typing import Any

import torch

from ..state.current import call_method
from .effects import Run, aten, changes_metadata, is_view, substitute, written, written_positions
from .per_inner import refuse

DENSE = "_wrapper_dense"  # the class attribute that holds the author's dequantize


def refused(cls: type, func: Any, fix: str | None = None) -> Run:
    """``default="refuse"``: RuleError for everything."""

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise refuse(cls, func, fix)

    return run


def dequantized(cls: type[Any], func: Any) -> Run:
    """``default="dequantize"``: compute on the dense values.

    Results are dense. What is written to is made dense, changed, and given to ``requantize_``.
    Views are refused: a dense copy would swallow writes.
    """
    if is_view(func):
        every = f"{cls.__name__}.implements_views() for all of them"
        if cls._wrapper_has_metadata:  # the inner tensors may have other shapes: packed codes
            every = (
                f"{cls.__name__}.implements_views(inner=...) with inner tensors that have "
                "the shape of the wrapper"
            )
        fix = (
            f"write the view: @{cls.__name__}.implements({func}), or {every}; "
            "or call .dequantize() first. A dense copy is not made, because writes to it would "
            "not reach the base"
        )
        return refused(cls, func, fix)
    if changes_metadata(func):
        return refused(
            cls,
            func,
            "use the out-of-place operation: the sizes of this wrapper do not change in place",
        )
    if func is aten.copy_.default:
        return _stored(cls, func)
    return _rewritten(cls, func) if written_positions(func) else _computed(cls, func)


def _computed(cls: type[Any], func: Any) -> Run:
    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        dense = substitute(cls, dense_value, args)
        return func(*dense, **(substitute(cls, dense_value, kwargs) if kwargs else kwargs))

    return run


def dense_value(x: Any) -> torch.Tensor:
    """The author's ``dequantize``, without autograd around it."""
    value: torch.Tensor = call_method(x, DENSE)
    return value


def _stored(cls: type[Any], func: Any) -> Run:
    """copy_ without a dense copy of the target: torch.compile ends in it, and admits writes to
    graph inputs only."""

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x, value = args[0], substitute(cls, dense_value, args[1])
        if not isinstance(x, cls):
            return func(x, value, *args[2:], **kwargs)
        _check_writable(cls, func)
        call_method(x, "requantize_", value.to(device=x.device, dtype=x.dtype).expand(x.shape))
        return x

    return run


def _check_writable(cls: type[Any], func: Any) -> None:
    if not hasattr(cls, "requantize_"):
        fix = (
            f"give {cls.__name__} a method requantize_(self, value) that stores a dense value "
            "in place"
        )
        raise refuse(cls, func, fix)


def _rewritten(cls: type[Any], func: Any) -> Run:
    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        targets = [t for t in written(func, args, kwargs) if isinstance(t, cls)]
        if targets:
            _check_writable(cls, func)
        # one per wrapper, so that x.add_(x) reads what it should
        copies: dict[int, torch.Tensor] = {}

        def dense(x: Any) -> torch.Tensor:
            if id(x) not in copies:
                value = dense_value(x)
                kept = any(value is getattr(x, n) for n in x.__tensor_flatten__()[0])
                copies[id(x)] = value.clone() if kept or value._is_view() else value
            return copies[id(x)]

        out = func(*substitute(cls, dense, args), **substitute(cls, dense, kwargs))
        for x in targets:
            call_method(x, "requantize_", copies[id(x)])
        return out

    return run


#: defaults of classes that stand for one dense value
DENSE_DEFAULTS = frozenset({"dequantize", "weight"})
