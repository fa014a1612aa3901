"""Symbolic sizes: making symbols, reading them, writing expressions over them."""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import SymBool
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    StatelessSymbolicContext,
    ValueRangesSLoc,
    compute_unbacked_bindings,
)
from torch.fx.experimental.symbolic_shapes import ShapeEnv as ShapeEnv

from .exact_numbers import is_from_inside


def input_source(name: str) -> Any:
    """A source (in the sense of torch's symbolic shapes) with nothing but a name."""
    from torch._dynamo.source import ConstantSource

    return ConstantSource(name)


def name_by_position(inputs: Sequence[Any]) -> None:
    """The symbolic sizes of the dense inputs of a program get the names that torch's own have."""
    from torch._dynamo.source import (
        GetItemSource,
        LocalSource,
        TensorProperty,
        TensorPropertySource,
    )

    named = set[Any]()
    for k, t in enumerate(inputs):
        base = GetItemSource(LocalSource("flat_args"), k)
        for d, size in enumerate(t.shape):
            symbol = size_symbol(size)
            if symbol is not None and symbol not in named:
                named.add(symbol)
                source = TensorPropertySource(base, TensorProperty.SIZE, d)
                size.node.shape_env.var_to_sources[symbol] = [source]


def new_symbol(env: ShapeEnv, hint: int, name: str) -> Any:
    """A fresh SymInt for a size that no dense tensor carries (0 and 1 stay numbers)."""
    source = input_source(name)
    symbol = env.create_symbol(hint, source=source, dynamic_dim=DimDynamic.DUCK)
    return env.create_symintnode(symbol, hint=hint, source=source)


def new_number(env: ShapeEnv, hint: Any, name: str) -> Any:
    """A fresh SymInt or SymFloat of which nothing is assumed, not even that it is neither 0 nor
    1."""
    source = input_source(name)
    how: dict[str, Any] = {"positive": None, "do_not_specialize_zero_one": True}
    symbol = env.create_symbol(hint, source=source, dynamic_dim=DimDynamic.DYNAMIC, **how)
    make: Any = env.create_symintnode if type(hint) is int else env.create_symfloatnode
    return make(symbol, hint=hint, source=source)


def dynamic_context(
    sizes: Sequence[bool], alike: Sequence[bool]
) -> StatelessSymbolicContext[Any, Any]:
    """Which sizes of a dense tensor become symbols; where ``alike``, equal ones share one. Strides
    follow from the sizes, if they can."""
    rows = zip(sizes, alike, strict=True)
    return StatelessSymbolicContext(
        dynamic_sizes=[
            (DimDynamic.DUCK if s else DimDynamic.DYNAMIC) if d else DimDynamic.STATIC
            for d, s in rows
        ],
        dynamic_strides=[DimDynamic.INFER_STRIDE] * len(sizes),
    )


def unbacked_bindings(env: ShapeEnv, out: object) -> dict[Any, Any]:
    """Where in ``out`` the symbols sit that the last operation made (a data-dependent size)."""
    if not env.pending_fresh_unbacked_symbols:
        return {}
    return compute_unbacked_bindings(env, out) or {}


@contextlib.contextmanager
def unbound_symbols_set_aside(env: ShapeEnv | None) -> Iterator[None]:
    """A function is traced inside a running operation: its symbols are bound in it, those of the
    operation are not.

    Fake rules of operators that run a function several times have torch forget the symbols that it
    makes.
    """
    if env is None:
        yield
        return
    before, env.pending_fresh_unbacked_symbols = env.pending_fresh_unbacked_symbols, []
    ignored = env._ignore_fresh_unbacked_symbols_set(False)
    try:
        yield
    finally:
        env._ignore_fresh_unbacked_symbols_set(ignored)
        env.pending_fresh_unbacked_symbols = before


def sympy_to_nodes(expr: Any, env: dict[Any, Any]) -> Any:
    """Evaluate a sympy expression over fx proxies."""
    from torch.utils._sympy.interp import sympy_interp

    return sympy_interp(_proxy_analysis(), env, expr)


#: functions of `math` on a symbolic float
_UNARY = ("acos", "asin", "atan", "cos", "cosh", "log2", "sin", "sinh", "sqrt", "tan", "tanh")


#: the same as functions of symbols
_SYMBOLIC_MATH: dict[str, Callable[[Any], Any]] = {
    name: getattr(torch, f"_sym_{name}") for name in _UNARY
}


@functools.cache
def _whole_power(base: Any, exponent: Any) -> Any:
    """Whole powers as products: ``**`` of a symbolic float asks whether the base is negative."""
    whole = (
        isinstance(exponent, (int, float)) and 0 < abs(exponent) <= 16 and exponent == int(exponent)
    )
    if not whole or not isinstance(base, torch.fx.Proxy):
        return base**exponent
    product: Any = functools.reduce(operator.mul, [base] * int(abs(exponent)))
    return product if exponent > 0 else 1.0 / product


def _proxy_analysis() -> Any:
    """Torch's arithmetic on plain Python numbers, with what would compute at once on a proxy as a
    node instead."""
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    def node(function: Callable[..., Any], count: int = 1) -> Any:
        """The function of the first arguments; those that follow are dtypes, which follow from the
        function."""

        def call(*args: Any) -> Any:
            args = args[:count]
            proxy = next((a for a in args if isinstance(a, torch.fx.Proxy)), None)
            return (
                function(*args)
                if proxy is None
                else proxy.tracer.create_proxy("call_function", function, args, {})
            )

        return staticmethod(call)

    if_then_else = node(torch.sym_ite, 3).__func__

    def choose(otherwise: Any, pair: tuple[Any, Any]) -> Any:
        value, condition = pair
        return if_then_else(condition, value, otherwise)

    members = {
        "pow": staticmethod(_whole_power),
        "pow_by_natural": staticmethod(_whole_power),
        "int_truediv": staticmethod(operator.truediv),
        "bitwise_and": staticmethod(operator.and_),
        "bitwise_or": staticmethod(operator.or_),
        "floor_to_int": node(math.floor),
        "ceil_to_int": node(math.ceil),
        "trunc_to_int": node(math.trunc),
        "round_to_int": node(round),
        "round_decimal": node(round, 2),
        # Torch's functions make nodes themselves, but not where function modes are off.
        "to_dtype": node(torch.sym_float),
        "not_": node(torch.sym_not),
        "minimum": node(torch.sym_min, 2),
        "maximum": node(torch.sym_max, 2),
        # torch 2.11 has none
        "expr_cond_pair": staticmethod(lambda value, condition: (value, condition)),
        "piecewise": staticmethod(
            lambda *pairs: functools.reduce(choose, reversed(pairs[:-1]), pairs[-1][0])
        ),
    }
    members.update((name, node(function)) for name, function in _SYMBOLIC_MATH.items())
    return type("ProxyAnalysis", (PythonReferenceAnalysis,), members)


def size_symbol(size: object) -> Any:
    """The sympy symbol that a size (or another number) is, or None: not symbolic, an expression, or
    a nested int."""
    if not isinstance(size, (torch.SymInt, torch.SymFloat)) or size.node.is_nested_int():
        return None
    return size.node.expr if size.node.expr.is_Symbol else None


def symbol_among(known: Collection[Any], number: object) -> Any:
    """The symbol of ``known`` that a number is, or was made as before the trace took it for
    something else; else None."""
    if not isinstance(number, (torch.SymInt, torch.SymFloat)) or number.node.is_nested_int():
        return None
    node: Any = number.node
    return next((e for e in (node.expr, node._expr) if e.is_Symbol and e in known), None)


def argument_symbol(number: Any) -> Any:
    """The symbol that a number of the call was made as, whatever the trace took it for since; None
    for a constant."""
    return number.node._expr if number.node._expr.is_Symbol else None


def ragged_parts(size: torch.SymInt) -> tuple[Any, Any] | None:
    """(symbol, coefficient) of a nested int that a trace made; None for one of eager mode."""
    node: Any = size.node
    env = getattr(node, "shape_env", None)
    if env is None:
        return None
    for symbol in node.expr.free_symbols:
        if _is_singleton(symbol_values(env).get(symbol)):
            return symbol, node.expr / symbol
    return None


def nested_int_id(size: torch.SymInt) -> int:
    """The number of a nested int of eager mode, without its coefficient."""
    return int(size.node.nested_int())


def new_ragged_size(mode: FakeTensorMode) -> torch.SymInt:
    """A symbol for the ragged size of a jagged tensor."""
    return mode.create_symbolic_nested_int()  # type: ignore[return-value]


def is_data_dependent(size: Any) -> bool:
    """Does a symbolic number depend on values inside tensors?"""
    return not size.node.is_nested_int() and is_from_inside(size)


def is_known(number: Any) -> bool:
    """Does a symbolic number (an int, a float or a bool) follow from numbers that the traced call
    has?"""
    node = number.node
    return bool(node.expr.free_symbols <= symbol_values(node.shape_env).keys())


def maybe(condition: Any) -> bool:
    """Is the condition true, or not known because it depends on values inside tensors?"""
    if not isinstance(condition, SymBool):
        return bool(condition)
    from torch.fx.experimental.symbolic_shapes import guard_or_true

    return bool(guard_or_true(condition))


def surely(condition: Any) -> bool:
    """Is the condition true, whatever the values inside tensors are?"""
    if not isinstance(condition, SymBool):
        return bool(condition)
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    return bool(guard_or_false(condition))


def narrowed(known: Any, least: Any, most: Any) -> Any:
    """A range of a symbol, and in these bounds (None: no bound)."""
    from torch.utils._sympy.value_ranges import ValueRanges

    bounds = [b if n is None else n for n, b in ((least, known.lower), (most, known.upper))]
    return known & ValueRanges(*bounds)


def as_range(condition: Any) -> tuple[Any, Any, Any] | None:
    """A condition that is a bound of one symbol: (symbol, least, most); None: it says something
    else."""
    import sympy  # type: ignore[import-untyped]

    left: Any = getattr(condition, "lhs", None)
    right: Any = getattr(condition, "rhs", None)
    if left is None or not left.is_Symbol or not right.is_Integer:
        return None
    bounds = {
        sympy.Ge: (right, None),
        sympy.Gt: (right + 1, None),
        sympy.Le: (None, right),
        sympy.Lt: (None, right - 1),
    }
    kinds = [found for kind, found in bounds.items() if isinstance(condition, kind)]
    return (left, *kinds[0]) if kinds else None


def shape_conditions(env: ShapeEnv, known: frozenset[Any]) -> list[Any]:
    """What a trace assumed of its size symbols, as sympy conditions on ``known`` ones: ranges, and
    branches taken.

    Ranges come first: a branch may divide by a size that was not 0.
    """
    import sympy

    conditions: dict[Any, None] = {}
    for symbol in known:
        bounds = env.var_to_range.get(symbol)
        if bounds is not None and bounds.lower.is_Integer and bounds.lower > 0:
            conditions[sympy.Ge(symbol, bounds.lower, evaluate=False)] = None
    for guard in env.guards:
        conditions.update(dict.fromkeys(_in_terms_of(known, guard.expr, env)))
    return [c for c in conditions if c is not sympy.true]


def made_as(number: Any) -> Any:
    """The expression that a symbolic number had when it was made; None for any other number."""
    return number.node._expr if isinstance(number, (torch.SymInt, torch.SymFloat)) else None


def assumed(env: ShapeEnv, known: frozenset[Any]) -> Iterator[Any]:
    """All that a trace assumed of ``known`` symbols, as it was said: ranges, branches taken, and
    what was found to be equal."""
    import sympy

    for symbol in sorted(known, key=str):
        bounds, equal = env.var_to_range.get(symbol), env.replacements.get(symbol)
        if bounds is not None and symbol.is_integer:
            ends = ((sympy.Ge, bounds.lower), (sympy.Le, bounds.upper))
            finite = ((op, n) for op, n in ends if n.is_Integer and abs(n) < 2**62)
            yield from (op(symbol, n, evaluate=False) for op, n in finite)
        if equal is not None and (equal := env.replace(equal)).free_symbols <= known:
            yield sympy.Eq(symbol, equal, evaluate=False)
    for guard in env.guards:
        yield from _in_terms_of(known, guard.expr, env)


def _in_terms_of(known: frozenset[Any], condition: Any, env: ShapeEnv) -> tuple[Any, ...]:
    """Conditions on ``known`` symbols from which this one follows.

    A symbol that was found to be equal to others, or to a number, since the condition was assumed
    is what it is equal to: that it is equal is checked with the size. Where it follows from nothing
    that a call tells, all sizes are taken for constant.
    """
    unknown = condition.free_symbols - known
    if not unknown:
        return (condition,)
    condition = condition.xreplace({s: env.replace(s) for s in unknown})
    free = condition.free_symbols
    if free <= known:
        return (condition,)
    values = symbol_values(env)
    if all(_is_singleton(values.get(s)) for s in free):
        # a nested int is no number, and which ones are the same is guarded with the offsets
        return ()
    return equalities(known, values)


def _is_singleton(value: Any) -> bool:
    """Is it what torch has for the value of a nested int?"""
    return hasattr(value, "_coeff")


@dataclass(frozen=True, eq=False)
class Assumptions:
    """What a shape environment takes for true of its symbols at one moment."""

    guards: tuple[Any, ...]
    replacements: dict[Any, Any]
    ranges: dict[Any, Any]
    axioms: dict[Any, Any]
    divisible: frozenset[Any]


def assumptions_of(env: ShapeEnv) -> Assumptions:
    """The assumptions now."""
    known = dict(env.replacements), dict(env.var_to_range), dict(env.axioms)
    return Assumptions(tuple(env.guards), *known, frozenset(env.divisible))


def restore_assumptions(env: ShapeEnv, then: Assumptions) -> None:
    """Forget what was assumed since then, except of symbols that are newer."""
    if len(env.guards) == len(then.guards) and env.replacements == then.replacements:
        return
    newer = {s: e for s, e in env.replacements.items() if s not in then.ranges}
    env.guards[:] = then.guards
    env.replacements = {**then.replacements, **newer}
    env.var_to_range = {**env.var_to_range, **then.ranges}
    env.axioms, env.divisible = dict(then.axioms), set(then.divisible)
    env._resimplify_floor_div_axioms = True
    if hasattr(env, "_replacements_version_counter"):  # torch 2.11 counts all versions in one
        env._replacements_version_counter += 1
    env._version_counter += 1
    env._prev_cache_key = env._get_key()
    env.fake_tensor_cache.clear()  # a result that it serves makes its assumptions no more
    for method in vars(type(env)).values():
        if hasattr(method, "cache_clear"):
            method.cache_clear()


def fix_rounded(env: ShapeEnv, since: int = 0) -> None:
    """Where a trace took a computed float for constant, take the symbols that it is computed of for
    constant instead.

    ``since``: how many guards are not looked at.

    Sympy adds up in an order of its own, so that the guard ``1.0 + 2.0*p - p/3.0 == 1.0333`` may
    fail for the very number that it was made from.
    """
    import sympy

    values = symbol_values(env)
    for guard in tuple(env.guards[since:]):
        e = guard.expr
        if (
            isinstance(e, sympy.Eq)
            and e.atoms(sympy.Float)
            and not (e.lhs.is_Symbol or e.rhs.is_Symbol)
        ):
            for symbol in sorted(e.free_symbols & values.keys() - env.replacements.keys(), key=str):
                env.evaluate_expr(sympy.Eq(symbol, values[symbol]))


def symbol_values(env: ShapeEnv) -> dict[Any, Any]:
    """What the symbols were in the call that is traced."""
    return env.backed_var_to_val


def equalities(symbols: Any, values: Any) -> tuple[Any, ...]:
    """The condition of each symbol that has a value: that it has it."""
    import sympy

    return tuple(
        sympy.Eq(s, values[s], evaluate=False) for s in sorted(symbols, key=str) if s in values
    )


def is_one_size(condition: Any) -> bool:
    """Does it say of a symbol that it is a number?"""
    sides = getattr(condition, "args", ())
    equal = getattr(condition, "rel_op", None) == "=="
    return equal and any(s.is_Symbol for s in sides) and any(s.is_number for s in sides)


def expression_source(expr: Any, names: dict[Any, str]) -> str:
    """A sympy expression over size symbols as Python source with these local names."""
    import sympy
    from torch.utils._sympy.printers import PythonPrinter

    renamed = expr.xreplace(
        {s: sympy.Symbol(n, integer=s.is_integer, real=True) for s, n in names.items()}
    )
    return f"({PythonPrinter().doprint(renamed)})"


def symbol_bounds(env: ShapeEnv, symbol: Any) -> tuple[Any, Any, Any]:
    """The value of a symbol in the call that was traced, and between which numbers it lies; None
    for no such number."""
    known = env.var_to_range.get(symbol)
    ends = (None, None) if known is None else (known.lower, known.upper)
    numbers = [int(n) if n is not None and n.is_Integer else None for n in ends]
    value = symbol_values(env).get(symbol)
    plain = None if value is None else float(value) if value.is_Float else int(value)
    return plain, numbers[0], numbers[1]


def define_symbol(
    env: ShapeEnv, symbol: Any, value: Any, lower: int | None, upper: int | None
) -> None:
    """Let an environment know of a symbol of another one."""
    import sympy
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges

    many = int_oo if symbol.is_integer else sympy.oo
    ends = (-many if lower is None else lower, many if upper is None else upper)
    env.var_to_range[symbol] = ValueRanges(*ends)
    # else torch looks for the user's frame, and imports torch.export for that
    place = env._get_sloc("a description")
    env.var_to_range_sloc[symbol] = ValueRangesSLoc(place, place)
    if value is not None:
        symbol_values(env)[symbol] = (
            sympy.Integer(value) if type(value) is int else sympy.Float(value)
        )
