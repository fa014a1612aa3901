"""Which rule serves an operation: the tables that authors fill, and the order in which they are
asked.

For a class, an operation is served by the first of

1. the rule that the class or the nearest base registered for this very operation;
2. the decomposition of a composite operation (these arrive in inference mode only);
3. what every wrapper needs: detach, alias, clone, conversions that keep the dtype, copy_ between
   equals;
4. a family (views, elementwise, in-place, factories, collectives) of the class or the nearest base;
5. the default of the class.

The answer is found once per class and operation, and forgotten when a rule is added.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import ProtocolError, UnsupportedError
from ..state.current import call_kept, call_method
from ..subclass.attributes import Memo
from ..torch_api import authors as _authors
from ..torch_api.modes import no_modes
from ..torch_api.operators import OpOverload, op_schema
from .defaults import DENSE_DEFAULTS, dequantized, refused
from .effects import BIT_VIEWS, Run, aten, changes_metadata, is_view, put_right, written_positions
from .per_inner import copy_into, copy_of, identity, per_inner, same_geometry
from .weights import weight

Rule = Callable[..., Any]
#: what operations without a rule do: the names that a class may choose from
DEFAULTS: dict[str, Callable[[type, Any], Run]] = {
    "refuse": refused,
    "dequantize": dequantized,
    "weight": weight,
    "per_inner": per_inner,
}
RULES = "_wrapper_rules"
#: the class attribute that counts the changes of its rules, on which what a region was traced for
# depends
VERSION = "_wrapper_version"


@dataclass(frozen=True, eq=False)
class Group:
    """A named set of operations, decided by a question: `views`, `elementwise`, and so on.

    ``@Cls.implements(elementwise)`` gives all of them one rule.
    """

    name: str
    holds: Callable[[Any], bool]

    def __contains__(self, func: object) -> bool:
        return self.holds(func)


@dataclass(frozen=True, eq=False)
class Family:
    """Operations of a class that are served together.

    Attributes:
        operations: which ones.
        rule: the author's function; None to run each operation on the named inner tensors.
        inner: names of the inner tensors that take part; None for all.
    """

    operations: Container[Any]
    rule: Rule | None = None
    inner: tuple[str, ...] | None = None


class Rules:
    """The rules of one class, and what was resolved so far."""

    def __init__(self, cls: type) -> None:
        self.operations: dict[Any, Rule] = {}
        self.functions: dict[Any, Rule] = {}
        self.families: list[Family] = []
        self.resolved: Memo = Memo()  # operation -> `Run`
        self.friends: Memo = Memo({cls: True})  # types that may take part in a call


_WRITES = frozenset({aten.copy_.default, aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default})
_FACTORIES = frozenset(
    getattr(aten, name).default
    for kind in ("empty", "zeros", "ones", "full", "rand", "randn")
    for name in (f"{kind}_like", f"new_{kind}")
    if hasattr(aten, name)
) | {aten.new_empty_strided.default}


def _is_views(func: Any) -> bool:
    view = is_view(func) and func not in BIT_VIEWS and not changes_metadata(func)
    return view or func is aten._unsafe_view.default


def _is_in_place(func: Any) -> bool:
    pointwise = torch.Tag.pointwise in func.tags or func in _WRITES
    return pointwise and written_positions(func) == [0] and not changes_metadata(func)


#: views of values (not of bits), and the copies that torch makes where it would like a view
views = Group("views", _is_views)
#: pointwise operations that make new tensors, as torch tags them
elementwise = Group(
    "elementwise", lambda f: torch.Tag.pointwise in f.tags and not written_positions(f)
)
#: pointwise operations that write to their first argument, and copy_, fill_, zero_
in_place = Group("in_place", _is_in_place)
#: operations that make a tensor like another one: ``*_like`` and ``new_*``
factories = Group("factories", lambda f: f in _FACTORIES)
#: collectives: functional ones, as DTensor issues them, and those in place of ``torch.distributed``
collectives = Group(
    "collectives", lambda f: _authors.is_functional_collective(f) or _authors.is_c10d(f)
)

_IDENTITIES = frozenset({aten.detach.default, aten.alias.default, aten.lift_fresh.default})
_COPIES = frozenset({aten.clone.default, aten._to_copy.default, aten._pin_memory.default})
_QUERIES = frozenset({aten.is_pinned.default, aten.record_stream.default})
#: views of a part of the elements
_PARTS = (
    aten.slice.Tensor,
    aten.select.int,
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.unbind.int,
)


# ---- registering
def add_operations(cls: type, operations: tuple[Any, ...], rule: Rule) -> None:
    """Register one rule for several ATen operations, and groups of them."""
    for operation in operations:
        if isinstance(operation, Group):
            add_family(cls, Family(operation, rule))
        else:
            vars(cls)[RULES].operations.update(dict.fromkeys(overloads(cls, operation), rule))
    forget(cls)


def add_family(cls: type, family: Family) -> None:
    """Register a family; a later one is asked before an earlier one."""
    vars(cls)[RULES].families.insert(0, family)
    forget(cls)


def forget(cls: type) -> None:
    """Drop the answers of a class and its subclasses: its rules have changed."""
    vars(cls)[RULES].resolved.clear()
    setattr(cls, VERSION, vars(cls).get(VERSION, 0) + 1)
    subclasses: list[type] = type.__subclasses__(cls)
    for derived in subclasses:
        forget(derived)


def overloads(cls: type, operation: Any) -> Iterator[Any]:
    """What an author means by an operation or a packet.

    Raises:
        ProtocolError: no ATen operation, or a composite one, which never arrives.
    """
    if isinstance(operation, _authors.OpOverloadPacket):
        yield from (op for op in _authors.overloads(operation) if not _authors.is_composite(op))
    elif not isinstance(operation, OpOverload):
        raise ProtocolError(
            f"{operation!r} is no ATen operation",
            path=cls.__name__,
            expected="an overload such as torch.ops.aten.mm.default, a packet such as "
            "torch.ops.aten.add, or a group",
            fix=f"use @{cls.__name__}.implements_torch_function for functions such as F.linear",
        )
    elif _authors.is_composite(operation):
        raise ProtocolError(
            f"{operation} never reaches __torch_dispatch__ outside of inference mode: it is "
            "composite",
            path=cls.__name__,
            expected="an operation with kernels of its own",
            fix="implement the operations that it is made of, or "
            f"@{cls.__name__}.implements_torch_function(...)",
        )
    else:
        yield operation


# ---- answering
def resolve(cls: type[Any], func: Any) -> Run:
    """The rule that serves ``func`` for ``cls``; see the top of this file for the order."""
    if not isinstance(func, OpOverload):
        raise UnsupportedError(
            f"{cls.__name__} has no rule for {func}: it is a higher order operator",
            code="wrapper-form",
            fix="trace through the wrapper (subclass_trace.compile), or call it on the inner "
            "tensors",
        )
    default, rule = DEFAULTS[cls._wrapper_default](cls, func), rule_of(cls, "operations", func)
    if rule is None and _authors.is_composite(func):
        run = _decomposed(func, default)  # its parts are put right
    else:
        run = (
            _unlisted(cls, func, default)
            if rule is None
            else _with_default(cls, func, rule, default)
        )
        if is_view(func) and cls._wrapper_has_metadata and func not in _IDENTITIES:
            run = _with_strides(func, run)
        run = put_right(func, run)
    vars(cls)[RULES].resolved[func] = run
    return run


def rule_of(cls: type, table: str, func: Any) -> Rule | None:
    """The author's rule in ``table`` of the class or its nearest base, or None."""
    tables = (getattr(vars(k)[RULES], table) for k in cls.__mro__ if RULES in vars(k))
    return next((t[func] for t in tables if func in t), None)


def _family(cls: type, func: Any) -> Family | None:
    known = (f for k in cls.__mro__ if RULES in vars(k) for f in vars(k)[RULES].families)
    return next((f for f in known if func in f.operations), None)


def _unlisted(cls: type[Any], func: Any, default: Run) -> Run:
    family = _family(cls, func)
    if func in _IDENTITIES:  # what they mean is the same for every wrapper
        return identity(cls, func)
    if func in _COPIES:
        return copy_of(cls, func, default)
    if func in _QUERIES or func.name() in _authors.MOVES:
        return per_inner(cls, func)
    if _authors.is_c10d(func) and cls._wrapper_default in DENSE_DEFAULTS and family is None:
        return refused(cls, func)  # what it writes would be lost in a dense copy
    serves = default
    if family is not None:
        of_inner = family.rule is None
        serves = (
            per_inner(cls, func, family.inner)
            if of_inner
            else _with_default(cls, func, family.rule, default)
        )
    if func is aten.copy_.default and (family is None or family.rule is None):
        exact = family is not None or not _shares_parts(cls)
        return copy_into(cls, func, _by_source(cls, serves, default), exact)
    return same_geometry(cls, func, serves) if func is aten.as_strided.default else serves


def _by_source(cls: type[Any], serves: Run, default: Run) -> Run:
    """copy_ of something else: of a dense tensor, into each inner tensor only where these are
    parallel. (Elsewhere it would be taken for the scale, the mask, the imaginary part.)"""
    if cls._wrapper_default in DENSE_DEFAULTS:
        return default

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        parallel = cls._wrapper_default == "per_inner" or isinstance(args[1], cls)
        return (serves if parallel else default)(args, kwargs)

    return run


def _decomposed(func: Any, default: Run) -> Run:
    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = _authors.decomposed(func, args, kwargs)
        # torch.export keeps some composites whole
        return default(args, kwargs) if out is NotImplemented else out

    return run


def _shares_parts(cls: type) -> bool:
    """May a view of a part of the elements share an inner tensor with its base?"""
    families = [f for func in _PARTS if (f := _family(cls, func)) is not None]
    by_rule = any(rule_of(cls, "operations", func) for func in _PARTS)
    return by_rule or any(f.rule is not None or f.inner is not None for f in families)


def _with_default(cls: type, func: Any, rule: Any, default: Run) -> Run:
    returns = op_schema(func).returns
    # results that are arguments, or views of them, are checked by `put_right`
    fresh = len(returns) == 1 and str(returns[0].type) == "Tensor" and returns[0].alias_info is None

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = call_kept(rule, func, *args, **kwargs)
        if out is NotImplemented:
            return default(args, kwargs)
        if fresh and not isinstance(out, torch.Tensor):
            raise ProtocolError(
                f"the rule of {cls.__name__} for {func} returned no tensor",
                path=f"{cls.__name__}: {getattr(rule, '__qualname__', rule)}",
                expected="a tensor, or NotImplemented",
                got=f"{type(out).__qualname__}: {out!r:.60}",
            )
        return out

    return run


def _with_strides(func: Any, run: Run) -> Run:
    """The view of a class that derives its outer size and says nothing of strides is made as a
    contiguous tensor: give it the strides that the view of a dense tensor has, which is what
    compilers compute on their own.
    """

    def strided(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x, out = args[0], run(args, kwargs)
        if type(out) is not type(x) or out.dim() < 2 or not out.is_contiguous():
            return out  # these strides were given by the author
        outer = call_method(type(out), "outer_metadata", out)
        if outer.size is None or outer.stride is not None:
            return out  # these are those of the first inner tensor, or were derived
        with no_modes():  # a tracer should not see this
            dense = func(
                torch.empty_strided(x.shape, x.stride(), device="meta"), *args[1:], **kwargs
            )
        if dense.shape != out.shape or dense.stride() == out.stride():
            return out
        return out.replace(outer_size=out.shape, outer_stride=dense.stride())

    return strided
