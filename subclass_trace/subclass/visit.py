"""The one visitor over nested wrappers. Everything that walks inner tensors is a fold made here.

`visit` folds a live value bottom-up, `rebuild` folds a spec back into a value. See `flatten.py` for
the usual folds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from ..errors import ProtocolError, SubclassTraceError
from ..torch_api.kinds import is_fake, is_opaque
from ..torch_api.texts import text_of
from .context import fresh, map_sizes, with_outer
from .paths import Path
from .protocol import Kind, kind_of, refuse, refuse_layout, unflatten_of
from .spec import LeafSpec, OpaqueSpec, Spec

R = TypeVar("R")
VALUE = Path("value")


def inner_values(
    wrapper: torch.Tensor, path: Path = VALUE
) -> tuple[tuple[str, ...], list[Any], Any]:
    """Names, values and context that one wrapper flattens to (one level).

    Raises:
        ProtocolError: ``__tensor_flatten__`` returns something else than (names, context), or names
            an attribute that is missing, or one that is neither a tensor nor opaque.
    """
    cls = type(wrapper)
    try:
        flat = wrapper.__tensor_flatten__()  # type: ignore[attr-defined]
    except SubclassTraceError:
        raise
    except Exception as error:
        raise ProtocolError(
            f"{cls.__qualname__}.__tensor_flatten__ raised {type(error).__name__}: {error}",
            path=path,
            expected="([attribute names], context), from a method without arguments",
            fix="make it return what __init__ has set, without computing",
        ) from error
    if not (isinstance(flat, tuple) and len(flat) == 2 and isinstance(flat[0], (list, tuple))):
        raise ProtocolError(
            f"{cls.__qualname__}.__tensor_flatten__ returned something else than a pair",
            path=path,
            expected="([attribute names], context)",
            got=text_of(flat),
            fix="return the names of the inner tensors as a list of str, and everything else as "
            "the context",
        )
    names, context = flat
    values = []
    for name in names:
        try:
            value = getattr(wrapper, name)
        except (AttributeError, TypeError) as error:
            raise ProtocolError(
                f"{cls.__qualname__}.__tensor_flatten__ names an attribute that the instance "
                "does not have",
                path=f"{path}.{name}",
                expected=f"a tensor at attribute {name!r}",
                got=str(error),
                fix="name only attributes that are set; leave out optional inner tensors that "
                "are absent",
            ) from None
        if not isinstance(value, torch.Tensor) and not is_opaque(value):
            raise ProtocolError(
                f"{cls.__qualname__}.__tensor_flatten__ names an attribute that is not a tensor",
                path=f"{path}.{name}",
                expected="a tensor, or an opaque object such as a DeviceMesh",
                got=f"{type(value).__qualname__}: {value!r:.80}",
                fix="return plain Python values in the context, and leave out optional inner "
                "tensors that are None",
            )
        values.append(value)
    return tuple(names), values, context


def visit(
    value: Any,
    *,
    leaf: Callable[[torch.Tensor, Path], R],
    wrapper: Callable[[torch.Tensor, tuple[str, ...], list[R], Any, Path], R],
    opaque: Callable[[Any, Path], R],
    path: Path = VALUE,
) -> R:
    """Fold a tensor bottom-up.

    Args:
        leaf: called with each dense tensor and its path, in flatten order.
        wrapper: called with each wrapper after its inner values: (wrapper, names, results, context,
            path).
        opaque: called with each opaque attribute and its path.

    Raises:
        ProtocolError: see `inner_values`; also for a tensor subclass without the protocol.
    """
    if not isinstance(value, torch.Tensor):
        return opaque(value, path)
    kind = kind_of(type(value))
    if kind is Kind.LEAF:
        if (
            value.layout is not torch.strided
            or value.is_quantized
            or (value.is_nested and not is_fake(value))
        ):
            raise refuse_layout(value, path)
        return leaf(value, path)
    if kind is Kind.REFUSED:
        raise refuse(value, path)
    names, values, context = inner_values(value, path)
    results = [
        visit(v, leaf=leaf, wrapper=wrapper, opaque=opaque, path=path.attr(n))
        for n, v in zip(names, values, strict=True)
    ]
    return wrapper(value, names, results, context, path)


def rebuild(
    spec: Spec, leaves: Iterator[Any], size: Callable[[Sequence[Any]], Sequence[Any]] = tuple
) -> Any:
    """Fold a spec back into a value: wrappers by ``__tensor_unflatten__`` alone, from the next
    leaves.

    Args:
        leaves: dense tensors in flatten order.
        size: maps a recorded size or stride to the one of this call (for dynamic sizes).

    ``requires_grad`` is not applied: many classes drop it, so the caller does it where it means
    something.
    """
    if isinstance(spec, LeafSpec):
        return next(leaves)

    if isinstance(spec, OpaqueSpec):
        return fresh(spec.value)
    inner = {n: rebuild(s, leaves, size) for n, s in zip(spec.names, spec.inners, strict=True)}
    outer, stride = tuple(size(spec.size)), tuple(size(spec.stride))
    # A fresh context: a mutable one must not be shared by the results of two calls.
    context = with_outer(map_sizes(spec.context, lambda n: next(iter(size((n,))))), outer, stride)
    try:
        return unflatten_of(spec.cls)(inner, context, torch.Size(outer), stride)
    except SubclassTraceError:
        raise
    except Exception as error:
        raise ProtocolError(
            f"{spec.cls.__qualname__}.__tensor_unflatten__ raised {type(error).__name__}: {error}",
            expected="__tensor_unflatten__(inner_tensors, context, outer_size, outer_stride), "
            "for what was flattened",
            got=f"inner tensors {sorted(inner)}, context {text_of(context, 80)}, outer "
            f"size {outer}",
            fix="rebuild from exactly the names and the context that __tensor_flatten__ returned",
        ) from error


def map_spec(
    spec: Spec,
    size: Callable[[Sequence[Any]], Sequence[Any]],
    context: Callable[[Any], Any] = lambda c: c,
) -> Spec:
    """A copy of ``spec`` with sizes, strides and offsets mapped by ``size`` and contexts by
    ``context``."""

    def one(value: Any) -> Any:
        return next(iter(size((value,))))

    if isinstance(spec, OpaqueSpec):
        return spec
    meta = {
        "size": tuple(size(spec.size)),
        "stride": tuple(size(spec.stride)),
        "storage_offset": one(spec.storage_offset),
    }
    if isinstance(spec, LeafSpec):
        return replace(spec, **meta)
    inners = tuple(map_spec(s, size, context) for s in spec.inners)
    return replace(spec, inners=inners, context=context(spec.context), **meta)
