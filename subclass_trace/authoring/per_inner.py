"""Running an operation on each inner tensor in turn, and what every wrapper needs: aliases and
copies."""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence
from typing import Any

import torch

from ..errors import RuleError, UnsupportedError
from ..torch_api import authors as _authors
from ..torch_api.modes import no_modes
from ..torch_api.owners import Owner, owner_of_file
from ..torch_api.texts import text_of
from .effects import (
    BIT_VIEWS,
    Run,
    aten,
    instances,
    is_view,
    returns_arguments,
    substitute,
    written,
    written_positions,
)
from .fields import build, like, values_of

#: operations that mean the same on an inner tensor of any shape
_ANY_SHAPE = frozenset(
    {
        aten.detach.default,
        aten.alias.default,
        aten.lift_fresh.default,
        aten.clone.default,
        aten._to_copy.default,
    }
    | {
        aten.copy_.default,
        aten.zero_.default,
        aten.fill_.Scalar,
        aten.zeros_like.default,
        aten.ones_like.default,
    }
    | {
        aten.empty_like.default,
        aten.full_like.default,
        aten.is_pinned.default,
        aten._pin_memory.default,
    }
    | {aten.record_stream.default}
)


def per_inner(cls: type[Any], func: Any, inner: tuple[str, ...] | None = None) -> Run:
    """The rule that runs ``func`` on each inner tensor.

    Args:
        inner: the names of the inner tensors that take part; None for all. A view shares the others
            with its base, a new tensor gets copies of them, an in-place operation leaves them
            alone.

    The returned function raises UnsupportedError where the operands do not have the same inner
    tensors and context, where a plain tensor would be written to, and where results that are no
    tensors differ.
    """
    changes = bool(written_positions(func))
    sized = (
        torch.Tag.pointwise not in func.tags
        and func not in _ANY_SHAPE
        and func.name() not in _authors.MOVES
    )

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = instances(cls, (args, kwargs))
        first = found[0]
        names = _common_names(func, found, inner)
        if not names:
            raise refuse(cls, func)
        if changes and not all(isinstance(t, cls) for t in written(func, args, kwargs)):
            raise _writes_plain(cls, func)
        if _authors.is_c10d(func) and len(found) != len(instances(torch.Tensor, (args, kwargs))):
            raise _writes_plain(cls, func)
        if sized:
            _check_shapes(func, first, names)
        parts = [operator.attrgetter(name) for name in names]
        outs = [
            func(*substitute(cls, part, args), **(substitute(cls, part, kwargs) if kwargs else {}))
            for part in parts
        ]
        if returns_arguments(func):
            return None  # `put_right` returns the arguments themselves
        rest = (
            {}
            if inner is None
            else {n: getattr(first, n) for n in first.__tensor_flatten__()[0] if n not in names}
        )
        return _together(
            func,
            first,
            names,
            outs,
            rest if is_view(func) else {n: t.clone() for n, t in rest.items()},
        )

    return run


def _common_names(func: Any, found: list[Any], inner: tuple[str, ...] | None) -> Sequence[str]:
    """The inner tensors of the first wrapper, when the others have the same, and the same
    context."""
    first = found[0]
    names, context = first.__tensor_flatten__()
    for x in found[1:]:
        other_names, other = (names, context) if x is first else x.__tensor_flatten__()
        if list(other_names) != list(names) or not (other is context or other == context):
            cls = type(first).__name__
            raise UnsupportedError(
                f"{func} runs on each inner tensor of {cls}, but its operands differ",
                code="wrapper-form",
                path=cls,
                expected=f"inner tensors {list(names)} and context "
                f"{text_of(context, 80)} in all of them",
                got=f"{list(other_names)} and {text_of(other, 80)}",
                fix=f"write a rule: @{cls}.implements({func})",
            )
    return names if inner is None else [n for n in inner if n in names]


def _check_shapes(func: Any, x: Any, names: Sequence[str]) -> None:
    """An operation with sizes or dimensions means the same inside only if inside has the shape of
    outside.

    Functional collectives cut and join rows, so that rows have to agree.
    """
    rows = _authors.is_functional_collective(func)
    for name in names:
        t = getattr(x, name)
        if func is aten._conj.default and not t.is_complex():  # of a real part torch asserts
            fix = f"write a rule, which may give a copy: @{type(x).__name__}.implements({func})"
            raise refuse(type(x), func, fix)
        same = t.shape == x.shape or (rows and t.shape[:1] == x.shape[:1])
        if same and func is aten.as_strided.default:
            same = t.stride() == x.stride() and t.storage_offset() == x.storage_offset()
        if not same:
            cls = type(x).__name__
            raise UnsupportedError(
                f"{func} runs on each inner tensor of {cls}, but {name} has another shape than "
                "the wrapper",
                code="wrapper-form",
                path=f"{cls}.{name}",
                expected=f"shape {tuple(x.shape)}, stride {x.stride()}",
                got=f"shape {tuple(t.shape)}, stride {t.stride()}",
                fix="name the inner tensors that take part (inner=...), or write a rule: "
                f"@{cls}.implements({func})",
            )


def _writes_plain(cls: type, func: Any) -> RuleError:
    made = f"if torch makes it: {cls.__name__}.implements_per_inner(authoring.factories)"
    return RuleError(
        f"{func} would write a {cls.__name__} into a plain tensor",
        code="no-rule",
        expected=f"a {cls.__name__} as the argument that is written to",
        fix=f"make the written tensor a {cls.__name__} ({made}), or use the out-of-place operation",
    )


def _together(
    func: Any, x: Any, names: Sequence[str], outs: Sequence[Any], rest: dict[str, torch.Tensor]
) -> Any:
    """The results for the inner tensors as one: tensors become wrappers, everything else must be
    equal."""
    head = outs[0]
    if isinstance(head, (list, tuple)):
        return type(head)(
            _together(func, x, names, parts, rest) for parts in zip(*outs, strict=True)
        )
    if isinstance(head, torch.Tensor):
        by_values = torch.Tag.dynamic_output_shape in func.tags
        if not by_values or all(out.shape == head.shape for out in outs):
            return like(x, {**rest, **dict(zip(names, outs, strict=True))})
    elif (work := _authors.joined_work(list(outs))) is not None:
        return work
    elif all(out is head or out == head or (out != out and head != head) for out in outs):
        return head
    different = (
        "results of different sizes"
        if isinstance(head, torch.Tensor)
        else "different Python values"
    )
    name, out = next((n, o) for n, o in zip(names, outs, strict=True) if not _same(o, head))
    cls = type(x).__name__
    raise RuleError(
        f"{func} gives {different} for the inner tensors of a {cls}",
        code="no-rule",
        expected=f"{text_of(head, 80)} for each, as for {names[0]}",
        got=f"{text_of(out, 80)} for {name}",
        fix=f"do not read values of a {cls} into Python, or read them from its inner tensors",
    )


def _same(a: Any, b: Any) -> bool:
    return bool(a.shape == b.shape if isinstance(a, torch.Tensor) else a == b)


# ---- operations that every wrapper needs
def identity(cls: type[Any], func: Any) -> Run:
    """detach, alias, lift_fresh: the same wrapper over the same memory."""

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = args[0]
        return like(
            x, {n: func(getattr(x, n)) for n in x.__tensor_flatten__()[0]}, x.shape, x.stride()
        )

    return run


def copy_of(cls: type[Any], func: Any, otherwise: Run) -> Run:
    """clone, and _to_copy and _pin_memory that keep the dtype: each inner tensor copied, the
    context kept.

    A memory format is passed on where the wrapper looks like its first inner tensor. Elsewhere
    nothing is known of how inside and outside belong together, and the copy shows the strides that
    torch gives a copy which keeps them.

    Args:
        otherwise: for another dtype or layout, and for contiguous strides that the copy would not
            have.
    """

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = args[0]
        if kwargs.get("layout") not in (None, x.layout):
            return otherwise(args, kwargs)
        if kwargs.get("dtype") not in (None, x.dtype):
            converted = _in_dtype(x, func, kwargs)
            return otherwise(args, kwargs) if converted is None else converted
        how = {k: v for k, v in kwargs.items() if k not in ("dtype", "layout")}
        elsewhere = {k: v for k, v in how.items() if k != "memory_format"}
        inner = {n: getattr(x, n) for n in x.__tensor_flatten__()[0]}
        first = next(iter(inner.values()), None)
        alike = first is not None and first.shape == x.shape and first.stride() == x.stride()
        if (
            not alike
            and how.get("memory_format") is torch.contiguous_format
            and not x.is_contiguous()
        ):
            return otherwise(args, kwargs)
        tensors = {
            n: func(t, *args[1:], **(how if alike and t.shape == x.shape else elsewhere))
            for n, t in inner.items()
        }
        return like(x, tensors) if alike else like(x, tensors, x.shape, _strides_of_copy(x))

    return run


def _in_dtype(x: Any, func: Any, kwargs: dict[str, Any]) -> Any:
    """The copy in another floating dtype, or None where the declaration does not say how.

    It does where the outer dtype is a field of the context, or where inner tensors that look like
    the wrapper have it. A scale of that dtype is not converted, since it may be too small for the
    other one; that of a weight is, if the other dtype reaches as far.
    """
    dtype, kept = kwargs["dtype"], x.dtype
    if not (
        dtype.is_floating_point and kept.is_floating_point and hasattr(type(x), "_wrapper_dense")
    ):
        return None
    how = {k: v for k, v in kwargs.items() if k in ("device", "non_blocking", "pin_memory")}
    values = {n: dtype if v is kept else v for n, v in values_of(x).items()}
    by_context = any(v is kept for v in values_of(x).values())
    far = (
        type(x)._wrapper_default == "weight"
        and torch.finfo(dtype).max > 0.9 * torch.finfo(kept).max
    )
    for n, t in values.items():
        if isinstance(t, torch.Tensor):
            shown = not by_context and t.dtype is kept and (t.shape == x.shape or far)
            values[n] = func(t, dtype=dtype if shown else t.dtype, **how)
    new = build(type(x), values, x.shape, _strides_of_copy(x))
    same = all(
        v.dtype is not kept or v.shape == x.shape or by_context
        for v in values.values()
        if isinstance(v, torch.Tensor)
    )
    return new if new.dtype is dtype and same else None


def _strides_of_copy(x: torch.Tensor) -> Sequence[Any]:
    """The strides of ``x.clone()`` for a dense tensor with those of ``x``: the same order, without
    gaps."""
    if x.is_contiguous():
        return x.stride()
    with no_modes():  # a tracer should not see this
        return torch.empty_like(torch.empty_strided(x.shape, x.stride(), device="meta")).stride()


def copy_into(cls: type[Any], func: Any, otherwise: Run, exact: bool) -> Run:
    """copy_ of one wrapper into another of the same make: inner tensor by inner tensor, so nothing
    is rounded twice.

    Args:
        otherwise: for any other source, or target.
        exact: False where views share inner tensors with their base, which a copy into a view must
            not change.
    """

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x, source = args[0], args[1]
        if not (
            exact and isinstance(x, cls) and type(source) is type(x) and source.shape == x.shape
        ):
            return otherwise(args, kwargs)
        names, context = x.__tensor_flatten__()
        theirs, other = source.__tensor_flatten__()
        same = list(names) == list(theirs) and context == other
        if not same or any(getattr(x, n).shape != getattr(source, n).shape for n in names):
            return otherwise(args, kwargs)
        for n in names:
            func(getattr(x, n), getattr(source, n), *args[2:], **kwargs)
        return x

    return run


def same_geometry(cls: type[Any], func: Any, otherwise: Run) -> Run:
    """as_strided to the sizes, strides and offset that the wrapper has (FSDP asks for it): an
    alias."""

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x, size, stride, *rest = args
        offset = rest[0] if rest else kwargs.get("storage_offset")
        same = tuple(size) == tuple(x.shape) and tuple(stride) == tuple(x.stride())
        if same and (offset is None or offset == x.storage_offset()):
            return identity(cls, aten.alias.default)(args, {})
        return otherwise(args, kwargs)

    return run


def refuse(cls: type[Any], func: Any, fix: str | None = None) -> RuleError:
    """The error for an operation that a class does not have."""
    name = cls.__name__
    if func in BIT_VIEWS:
        fix = "take the dense value first: a wrapper's bits are not those of its value"
    general = (
        f"add one: @{name}.implements({func}), or a family such as {name}.implements_views(); "
        "serve the function that asks "
        f"for it, above autograd: @{name}.implements_torch_function(torch.nn.functional.linear); "
        "or choose another default for the class: 'dequantize', 'weight' or 'per_inner'"
    )
    asked = _authors.running_backward()
    got = f"{func}, {asked}" if asked else func
    what = f"{name} has no rule for {func}"
    return RuleError(
        what, code="no-rule", path=_user_line(), got=got, fix=fix or cls._wrapper_advice or general
    )


def _user_line() -> str | None:
    """``file:line`` of the innermost frame that is neither torch's nor ours."""
    frame: Any = sys._getframe(1)
    while frame is not None and owner_of_file(frame.f_code.co_filename) is not Owner.USER:
        frame = frame.f_back
    return (
        None
        if frame is None
        else f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"
    )
