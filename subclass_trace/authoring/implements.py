"""Which rule serves an operation: the tables that authors fill, and the order in which they are asked.

For a class, an operation is served by the first of

1. the rule that the class or the nearest base registered for this very operation;
2. the decomposition of a composite operation (these arrive in inference mode only);
3. what every wrapper needs: detach, alias, clone, conversions that keep the dtype, copy_ between equals;
4. a family (views, elementwise, in-place, factories, collectives) of the class or the nearest base;
5. the default of the class.

The answer is found once per class and operation, and forgotten when a rule is added.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from .. import torch_api
from ..errors import ProtocolError, UnsupportedError
from ..torch_api import authors as _authors
from .defaults import DEFAULTS, refused
from .effects import aten, finisher, is_view
from .families import Family, Group
from .per_inner import Run, copy_into, copy_of, identity, per_inner, same_geometry

F = TypeVar("F", bound=Callable[..., Any])
Table = dict[Any, Callable[..., Any]]
OPERATIONS, FUNCTIONS, FAMILIES = "_wrapper_operations", "_wrapper_functions", "_wrapper_families"
RESOLVED, DEFAULT = "_wrapper_resolved", "_wrapper_default"


class Resolved:
    """What serves each operation, and which types may take part, as far as it was looked up.

    An object of the package's own, which is no state of a region.
    """

    __slots__ = ("friends", "of")

    def __init__(self, cls: type) -> None:
        self.of: dict[Any, Run] = {}
        self.friends = {cls}


_IDENTITIES = frozenset({aten.detach.default, aten.alias.default, aten.lift_fresh.default})
_COPIES = frozenset({aten.clone.default, aten._to_copy.default, aten._pin_memory.default})
_QUERIES = frozenset({aten.is_pinned.default, aten.record_stream.default})
#: views of a part of the elements
_PARTS = frozenset(
    {aten.slice.Tensor, aten.select.int, aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int}
    | {aten.as_strided.default, aten.diagonal.default, aten.unfold.default}
)


# -------------------------------------------------------------------------------------------------------- registering
def add_operations(cls: type, operations: tuple[Any, ...]) -> Callable[[F], F]:
    """The decorator that registers one rule for several ATen operations, and groups of them."""
    groups = [o for o in operations if isinstance(o, Group)]
    found = [op for o in operations if not isinstance(o, Group) for op in _overloads(cls, o)]
    if not found and not groups:
        raise _nothing(cls, "implements", "aten.mm.default")

    def register(rule: F) -> F:
        if not callable(rule):
            raise _no_rule(cls, rule)
        vars(cls)[OPERATIONS].update(dict.fromkeys(found, rule))
        for group in groups:
            add_family(cls, Family(group, rule))
        forget(cls)
        return rule

    return register


def add_functions(cls: type, functions: tuple[Any, ...]) -> Callable[[F], F]:
    """The decorator that registers one rule for several torch functions."""
    if not functions:
        raise _nothing(cls, "implements_torch_function", "torch.nn.functional.linear")
    for f in functions:
        if isinstance(f, (torch_api.OpOverload, _authors.OpOverloadPacket)) or not callable(f):
            raise ProtocolError(
                f"{f!r} is no torch function",
                path=f"{cls.__name__}.implements_torch_function",
                expected="a function such as torch.nn.functional.linear or torch.Tensor.add",
                fix=f"use @{cls.__name__}.implements for ATen operations",
            )

    def register(rule: F) -> F:
        if not callable(rule):
            raise _no_rule(cls, rule)
        vars(cls)[FUNCTIONS].update(dict.fromkeys(functions, rule))
        return rule

    return register


def add_family(cls: type, family: Family) -> None:
    """Register a family; a later one is asked before an earlier one."""
    vars(cls)[FAMILIES].insert(0, family)
    forget(cls)


def forget(cls: type) -> None:
    """Drop the answers of a class and its subclasses: its rules have changed."""
    vars(cls)[RESOLVED].of.clear()
    subclasses: list[type] = type.__subclasses__(cls)
    for derived in subclasses:
        forget(derived)


def operations_of(cls: type, name: str, *operations: Any) -> frozenset[Any]:
    """Overloads of what an author listed for a family."""
    return frozenset(op for o in operations for op in _overloads(cls, o, name))


def _overloads(cls: type, operation: Any, name: str = "implements") -> Iterator[Any]:
    if isinstance(operation, _authors.OpOverloadPacket):
        yield from (op for op in _authors.overloads(operation) if not _authors.is_composite(op))
        return
    path = f"{cls.__name__}.{name}"
    if not isinstance(operation, torch_api.OpOverload):
        raise ProtocolError(
            f"{operation!r} is no ATen operation",
            path=path,
            expected="an overload such as torch.ops.aten.mm.default, a packet such as torch.ops.aten.add, or a group",
            fix=f"use @{cls.__name__}.implements_torch_function for functions such as F.linear",
        )
    if _authors.is_composite(operation):
        raise ProtocolError(
            f"{operation} never reaches __torch_dispatch__ outside of inference mode: it is composite",
            path=path,
            expected="an operation with kernels of its own",
            fix=f"implement the operations that it is made of, or @{cls.__name__}.implements_torch_function(...)",
        )
    yield operation


# ---------------------------------------------------------------------------------------------------------- answering
def resolve(cls: type[Any], func: Any) -> Run:
    """The rule that serves ``func`` for ``cls``; see the top of this file for the order."""
    if not isinstance(func, torch_api.OpOverload):
        raise UnsupportedError(
            f"{cls.__name__} has no rule for {func}: it is a higher order operator",
            got=func,
            fix="trace through the wrapper (subclass_trace.compile), or call it on the inner tensors",
        )
    run = _unfinished(cls, func)
    if _listed(cls, func) is not None or not _authors.is_composite(func):  # the parts of a composite are put right
        if is_view(func) and cls._wrapper_has_metadata and func not in _IDENTITIES:
            run = _with_strides(func, run)
        run = _inference_views(_finished(func, run), func)
    vars(cls)[RESOLVED].of[func] = run
    return run


def torch_function(cls: type, func: Any) -> Callable[..., Any] | None:
    """The author's rule for a torch function, or None."""
    for k in cls.__mro__:
        rule: Callable[..., Any] | None = vars(k).get(FUNCTIONS, {}).get(func)
        if rule is not None:
            return rule
    return None


def _unfinished(cls: type[Any], func: Any) -> Run:
    default: Run = DEFAULTS[getattr(cls, DEFAULT)](cls, func)
    rule = _listed(cls, func)
    if rule is not None:
        return _with_default(cls, func, rule, default)
    if _authors.is_composite(func):
        return _decomposed(func, default)
    family = _family(cls, func)
    serves = default if family is None else _of_family(cls, func, family, default)
    if func is aten.copy_.default and (family is None or family.rule is None):
        exact = family is not None or not _shares_parts(cls)
        return copy_into(cls, func, default if getattr(cls, DEFAULT) == "dequantize" else serves, exact)
    if func in _IDENTITIES | _COPIES:  # what they mean is the same for every wrapper
        serves = default
    return _basic(cls, func, serves) or serves


def _decomposed(func: Any, default: Run) -> Run:
    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = _authors.decomposed(func, args, kwargs)
        return default(args, kwargs) if out is NotImplemented else out  # torch.export keeps some composites whole

    return run


def _of_family(cls: type[Any], func: Any, family: Family, default: Run) -> Run:
    return per_inner(cls, func, family.inner) if family.rule is None else _with_default(cls, func, family.rule, default)


def _basic(cls: type[Any], func: Any, otherwise: Run) -> Run | None:
    if func in _IDENTITIES:
        return identity(cls, func)
    if func in _COPIES:
        return copy_of(cls, func, otherwise)
    if func in _QUERIES or func.name() in _authors.MOVES:
        return per_inner(cls, func)
    if _authors.is_c10d(func) and getattr(cls, DEFAULT) == "dequantize" and _family(cls, func) is None:
        return refused(cls, func)  # what it writes would be lost in a dense copy
    if func is aten.as_strided.default:
        return same_geometry(cls, func, otherwise)
    return None


def _listed(cls: type, func: Any) -> Callable[..., Any] | None:
    for k in cls.__mro__:
        rule: Callable[..., Any] | None = vars(k).get(OPERATIONS, {}).get(func)
        if rule is not None:
            return rule
    return None


def _family(cls: type, func: Any) -> Family | None:
    return next((f for k in cls.__mro__ for f in vars(k).get(FAMILIES, ()) if func in f.operations), None)


def _shares_parts(cls: type) -> bool:
    """May a view of a part of the elements share an inner tensor with its base?"""
    for func in _PARTS:
        family = _family(cls, func)
        by_rule = _listed(cls, func) is not None or (family is not None and family.rule is not None)
        if by_rule or (family is not None and family.inner is not None):
            return True
    return False


def _with_default(cls: type, func: Any, rule: Callable[..., Any], default: Run) -> Run:
    returns = torch_api.op_schema(func).returns
    # results that are arguments, or views of them, are put right and checked by the finisher
    fresh = len(returns) == 1 and str(returns[0].type) == "Tensor" and returns[0].alias_info is None

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = rule(func, *args, **kwargs)
        if out is NotImplemented:
            return default(args, kwargs)
        if fresh and not isinstance(out, torch.Tensor):
            raise ProtocolError(
                f"the rule of {cls.__name__} for {func} returned no tensor",
                path=f"{cls.__name__}: {getattr(rule, '__qualname__', rule)}",
                expected="a tensor, or NotImplemented",
                got=f"{type(out).__qualname__}: {out!r:.60}",
                fix="return what the operation gives on dense tensors",
            )
        return out

    return run


def _with_strides(func: Any, run: Run) -> Run:
    """The view of a class that derives its outer size and says nothing of strides is made as a contiguous tensor: give it
    the strides that the view of a dense tensor has, which is what compilers compute on their own.
    """

    def strided(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x, out = args[0], run(args, kwargs)
        if type(out) is not type(x) or out.dim() < 2 or not out.is_contiguous():
            return out  # these strides were given by the author
        outer = type(out).outer_metadata(out)
        if outer.size is None or outer.stride is not None:
            return out  # these are those of the first inner tensor, or were derived
        with torch_api.no_modes():  # a tracer should not see this
            dense = func(torch.empty_strided(x.shape, x.stride(), device="meta"), *args[1:], **kwargs)
        if dense.shape != out.shape or dense.stride() == out.stride():
            return out
        return out.replace(outer_size=out.shape, outer_stride=dense.stride())

    return strided


def _finished(func: Any, run: Run) -> Run:
    finish = finisher(func)
    return run if finish is None else lambda args, kwargs: finish(args, kwargs, run(args, kwargs))


def _inference_views(run: Run, func: Any) -> Run:
    """In inference mode a view of a normal tensor is a normal tensor, so it must be made outside of that mode."""
    if not is_view(func):
        return run

    def outside(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        normal = torch.is_inference_mode_enabled() and not args[0].is_inference()
        with torch.inference_mode(False) if normal else contextlib.nullcontext():
            return run(args, kwargs)

    return outside


def _nothing(cls: type, name: str, example: str) -> ProtocolError:
    return ProtocolError(
        f"{name}() was given nothing to implement",
        path=f"{cls.__name__}.{name}",
        fix=f"@{cls.__name__}.{name}({example})",
    )


def _no_rule(cls: type, rule: Any) -> ProtocolError:
    return ProtocolError(f"{rule!r} cannot be a rule", path=cls.__name__, expected="a function (func, *args, **kwargs)")
