"""Emitters for one value: taking it apart under guards, and putting it together."""

from __future__ import annotations

import keyword
import marshal
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import torch_api
from ..capture.facts import failed_fact
from ..capture.inputs import has_gradient
from ..errors import UnsupportedError
from ..plan import InputPlan, Plan
from ..subclass.context import (
    has_sizes,
    same_context,
    with_outer,
    without_outer,
)
from ..subclass.protocol import flattens_alike, unflatten_of
from ..subclass.spec import LeafSpec, OpaqueSpec, SizeExpr, Spec, WrapperSpec, leaf_count
from ..subclass.template import Examples
from ..subclass.visit import rebuild
from .guards import failed_value
from .sizes import evaluator
from .source import EXPRESSION_GLOBALS, Source

Tensor = torch.Tensor
_NAMES = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_KNOWN_NAMES = {*EXPRESSION_GLOBALS, *keyword.kwlist, "abs", "float", "int", "max", "min", "round"}


def expression_code(expr: Any, symbols: dict[Any, str]) -> str:
    """An expression over size symbols as source, with no names but the symbols' and what each module can call."""
    text = torch_api.expression_source(expr, symbols)
    unknown = {*_NAMES.findall(text)} - {*symbols.values()} - _KNOWN_NAMES
    if unknown:  # sympy prints some functions by names of its own
        raise UnsupportedError(
            "a size is computed by a function that cannot be written as Python",
            expected="sums, products, quotients and roots of sizes",
            got=f"{', '.join(sorted(unknown))} in {text}",
            fix="compile with dynamic='never'",
        )
    return text


def size_code(size: Any, symbols: dict[Any, str]) -> str:
    """A size as source: a number, or an expression over the symbols' local names."""
    return expression_code(size.expr, symbols) if isinstance(size, SizeExpr) else repr(size)


def sizes_code(sizes: Sequence[Any], symbols: dict[Any, str]) -> str:
    """A tuple of sizes as source."""
    return "(" + "".join(f"{size_code(s, symbols)}, " for s in sizes) + ")"


#: of these the same object is the same value
_IDENTITY = (bool, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format, type)
#: what is written by value; bytes are written as an array of them is
_WRITTEN = frozenset({int, float, complex, str, bool, type(None)})
#: the version of the format that does not tell one object twice from two equal ones
_BY_VALUE = 2
_DEEPEST = 60


@dataclass
class Checks:
    """What is still to be checked after taking values apart."""

    tensors: list[tuple[str, Spec]] = field(default_factory=list)  # distinct tensors, for the tensor guard
    sized: list[tuple[str, WrapperSpec]] = field(default_factory=list)  # jagged ones, and those with sizes in contexts
    conditions: list[str] = field(default_factory=list)


class PlainContext:
    """A list, tuple or dict of numbers and strings: compared as a whole, and copied, by the bytes that Python writes for it.

    These tell types and signs of zero apart, and one NaN is like another; other values may have the same ones as bytes alone.
    """

    def __init__(self, value: Any) -> None:
        self.written = marshal.dumps(value, _BY_VALUE)
        self.value = self.fresh()

    @staticmethod
    def of(value: Any) -> PlainContext | None:
        """What stands for such a container; None for anything else."""
        return PlainContext(value) if type(value) in (list, tuple, dict) and value and _is_plain(value) else None

    def holds(self, now: Any) -> bool:
        """Is ``now`` the same container?"""
        try:
            if marshal.dumps(now, _BY_VALUE) == self.written:
                return True
        except ValueError:  # it holds something else
            return False
        return same_context(self.value, now)  # strings that are equal may be written in two ways

    def fresh(self) -> Any:
        """A copy that nobody else has."""
        return marshal.loads(self.written)


def _is_plain(value: Any, depth: int = 0) -> bool:
    if type(value) not in (list, tuple, dict) or depth > _DEEPEST:
        return False
    parts = [*value, *value.values()] if type(value) is dict else value
    return all(type(v) in _WRITTEN or _is_plain(v, depth + 1) for v in parts)


def same_code(source: Source, now: str, known: Any) -> str:
    """The condition that the context ``now`` is the same as the known one, as source: identity, then `same_context`."""
    constant = source.constant(known, "context")
    if isinstance(known, _IDENTITY):
        return f"{now} is {constant}"
    if type(known) in (int, str, bytes):
        return f"type({now}) is {type(known).__name__} and {now} == {constant}"
    if (plain := PlainContext.of(known)) is not None:
        return f"{source.constant(plain.holds, 'is_context')}({now})"
    same = f"{source.bind('same_context', same_context)}({constant}, {now})"
    return same if type(known) is tuple else f"({now} is {constant} or {same})"


def is_sized(spec: WrapperSpec) -> bool:
    """Is it compared, and built, with the sizes of the call: a jagged tensor, or one with sizes in its context?"""
    return spec.layout is torch.jagged or has_sizes(spec.context)


def attribute_code(variable: str, name: str) -> str:
    """An attribute as source."""
    return f"{variable}.{name}" if name.isidentifier() else f"getattr({variable}, {name!r})"


class Unwrapper:
    """Emits taking inputs apart, and collects the checks of each value."""

    def __init__(self, source: Source, miss: str, examples: dict[str, Any]) -> None:
        """``examples``: values of the specs, by local names."""
        self.source, self.miss, self.examples = source, miss, examples
        self.checks = Checks()

    def unwrap(self, variable: str, spec: Spec) -> list[str]:
        """Local names of the leaves of ``variable``; call inside a ``try`` for missing attributes."""
        assert not isinstance(spec, OpaqueSpec)
        if spec.layout is not torch.jagged:
            self.checks.tensors.append((variable, spec))
        if isinstance(spec, LeafSpec):
            return [variable]
        leaves: list[str] = []
        self._check_context(variable, spec)
        for name, inner in zip(spec.names, spec.inners, strict=True):
            if isinstance(inner, OpaqueSpec):
                continue
            local = self.source.name("u")
            self.source.line(f"{local} = {attribute_code(variable, name)}")
            if variable in self.examples:
                self.examples[local] = getattr(self.examples[variable], name)
            leaves += self.unwrap(local, inner)
        return leaves

    def _check_context(self, variable: str, spec: WrapperSpec) -> None:
        source = self.source
        if is_sized(spec):
            source.line(f"if type({variable}) is not {source.constant(spec.cls, 'cls')}: {self.miss}")
            self.checks.sized.append((variable, spec))
            return
        shortcut = torch_api.context_shortcut(spec.cls)
        dynamic = spec.has_dynamic_size
        value = None if shortcut is None or dynamic else self.shortcut_value(variable)
        if value is not None:
            known = source.constant(value, "spec")
            source.line(f"c = {variable}.{shortcut}")
            source.line(f"if c is not {known} and c != {known}: {self.miss}")
            return
        source.line(f"if type({variable}) is not {source.constant(spec.cls, 'cls')}: {self.miss}")
        if flattens_alike(spec.cls) and not any(isinstance(s, OpaqueSpec) for s in spec.inners):
            return
        source.line(f"n, c = {variable}.__tensor_flatten__()")
        source.line(f"if (*n,) != {source.constant(spec.names)}: {self.miss}")
        if dynamic:
            source.bind("without_outer", without_outer)
            source.line(f"c = without_outer(c, tuple({variable}.shape), {variable}.stride())")
        source.line(f"if not ({same_code(source, 'c', spec.context)}): {self.miss}")
        for name, inner in zip(spec.names, spec.inners, strict=True):
            if isinstance(inner, OpaqueSpec):
                source.bind("same_context", same_context)
                value = source.constant(inner.value, "opaque")
                source.line(
                    f"if {variable}.{name} is not {value} and not same_context({value}, {variable}.{name}): {self.miss}"
                )

    def shortcut_value(self, variable: str) -> Any:
        """What the shortcut attribute of the value with this local name is; None where that is not known."""
        value = self.examples.get(variable)
        attribute = None if value is None else torch_api.context_shortcut(type(value))
        return None if attribute is None else getattr(value, attribute)


class Wrapper:
    """Emits rewrapping: by a verified template, by DTensor's constructor, or by ``__tensor_unflatten__``."""

    def __init__(self, source: Source, examples: Examples, symbols: dict[Any, str], env: str) -> None:
        """``env``: the expression of a dict with the values of symbols."""
        self.source, self.examples, self.symbols, self.env = source, examples, symbols, env

    def wrap(self, spec: Spec, leaves: Iterator[str]) -> str:
        """The expression (a local name) of a value made of the next leaves."""
        if isinstance(spec, LeafSpec):
            return next(leaves)
        if isinstance(spec, OpaqueSpec):
            return self.source.constant(spec.value, "opaque")
        if is_sized(spec):
            out, bind, own = self.source.name("w"), self.source.bind, [next(leaves) for _ in range(leaf_count(spec))]
            made = f"{bind('rebuild', rebuild)}({self.source.constant(spec, 'spec')}, iter(({tuple_code(own)})), "
            self.source.line(f"{out} = {made}{bind('evaluator', evaluator)}({self.env}))")
            return out
        inner = [(n, self.wrap(s, leaves)) for n, s in zip(spec.names, spec.inners, strict=True)]
        out = self.source.name("w")
        if not self._by_shortcut(out, spec, dict(inner)) and not self._by_template(out, spec, inner):
            self._by_unflatten(out, spec, inner)
        return out

    def _by_shortcut(self, out: str, spec: WrapperSpec, inner: dict[str, str]) -> bool:
        construct, attribute = torch_api.shortcut_constructor(spec.cls), torch_api.context_shortcut(spec.cls)
        if construct is None or attribute is None or spec.has_dynamic_size:
            return False
        tensors = [n for n, s in zip(spec.names, spec.inners, strict=True) if not isinstance(s, OpaqueSpec)]
        if len(tensors) != 1:
            return False
        source = self.source
        known = source.constant(self.examples.attribute(spec, attribute), "spec")
        made = source.constant(construct, "construct")
        cls = source.constant(spec.cls, "cls")
        source.line(f"{out} = {made}({cls}, {inner[tensors[0]]}, {known}, requires_grad=False)")
        return True

    def _by_template(self, out: str, spec: WrapperSpec, inner: list[tuple[str, str]]) -> bool:
        template = self.examples.template(spec)
        if template is None:
            return False
        source = self.source
        source.bind("make_wrapper", torch_api.WRAPPER_CONSTRUCTOR)
        parts = [source.constant(v) for v in (template.dtype, template.layout, template.device)]
        outer = f"{source.constant(spec.size)}, {source.constant(spec.stride)}, {template.storage_offset}"
        meta = f"{outer}, None, {', '.join(parts)}"
        source.line(f"{out} = make_wrapper({source.constant(spec.cls, 'cls')}, {meta}, False, False)")
        for name, value in template.constants:
            source.line(f"{out}.{name} = {source.constant(value)}")
        for name, local in inner:
            source.line(f"{out}.{name} = {local}")
        return True

    def _by_unflatten(self, out: str, spec: WrapperSpec, inner: list[tuple[str, str]]) -> None:
        source = self.source
        source.bind("Size", torch.Size)
        source.bind("with_outer", with_outer)
        parts = ", ".join(f"{name!r}: {local}" for name, local in inner)
        size, stride = sizes_code(spec.size, self.symbols), sizes_code(spec.stride, self.symbols)
        if (plain := PlainContext.of(spec.context)) is not None:
            context = f"{source.constant(plain.fresh, 'fresh_context')}()"
        else:
            context = source.constant(spec.context, "context")
            if not isinstance(spec.context, _IDENTITY):
                context = f"with_outer({context}, {size}, {stride})"
        unflatten = source.constant(unflatten_of(spec.cls), "unflatten")
        source.line(f"{out} = {unflatten}({{{parts}}}, {context}, Size({size}), {stride})")


def graph_call(source: Source, call: str, autocast: Any) -> str:
    """The line that runs a graph: the casts of autocast are in it."""
    return f"with {source.bind('no_autocast', torch_api.disable_autocast)}(): {call}" if autocast else call


def sizes_of_outputs(source: Source, plan: Plan) -> dict[Any, str]:
    """Emit keeping the numbers among the outputs of the forward graph in ``call``; returns the symbols that they tell."""
    first, symbols = plan.results.forward_leaves, dict[Any, str]()
    if plan.results.size_outputs:
        source.line(f"call.sizes = o[{first}:{first + plan.results.size_outputs}]")
    for symbol, k in plan.results.unbacked:
        symbols[symbol] = f"z_{symbol}"
        source.line(f"z_{symbol} = call.env[{source.constant(symbol, 'symbol')}] = o[{first + k}]")
    return symbols


def detached_outputs(source: Source, plan: Plan, leaves: Sequence[str]) -> list[str]:
    """Expressions for the leaves that the forward returns, made objects of their own where they are none.

    ``leaves``: for those of the inputs, which a value may be made of.
    """
    flat, asked, place = [f"o[{k}]" for k in range(plan.results.forward_leaves)], set[int](), 0
    for k, spec in enumerate(plan.results.values):
        asked |= set() if k in plan.mutations.spent_values else {*range(place, place + leaf_count(spec))}
        place += leaf_count(spec)
    for k in sorted((plan.results.detach_values | plan.results.shared.keys()) & asked):
        shared = plan.results.shared.get(k)
        value = (
            f"o[{k}]" if shared is None else flat[shared.number] if shared.kind == "value" else leaves[shared.number]
        )
        source.line(f"d{k} = {value}{'.detach()' if shared is None else ''}")
        flat[k] = f"d{k}"
    return flat


def wrapped(wrapper: Wrapper, plan: Plan, parts: Iterator[str]) -> list[str]:
    """Emit putting values together; None in the place of those that nobody asks for."""
    values = []
    for k, spec in enumerate(plan.results.values):
        own = [next(parts) for _ in range(leaf_count(spec))]
        values.append("None" if k in plan.mutations.spent_values else wrapper.wrap(spec, iter(own)))
    return values


def tensor_checks(source: Source, checks: Checks, values: dict[str, Tensor], symbols: dict[Any, str], env: str) -> str:
    """An expression that is true when all tensors are as their specs say.

    ``values``: a real tensor for each local name, from which the C++ guard is made; ``env``: see `Wrapper`.
    """
    rows, conditions = _once(checks.tensors, values)
    conditions += checks.conditions
    for name, spec in rows:
        conditions += dynamic_checks(name, spec, symbols)
    conditions += sized_checks(source, checks, env)
    if rows:
        sizes = [[s if isinstance(s, int) else None for s in spec.size] for _, spec in rows]  # type: ignore[union-attr]
        strides = [[s if isinstance(s, int) else None for s in spec.stride] for _, spec in rows]  # type: ignore[union-attr]
        check = source.constant(torch_api.tensor_guard([values[name] for name, _ in rows], sizes, strides), "check")
        conditions.insert(0, f"{check}({', '.join(name for name, _ in rows)})")
    return " and ".join(conditions) or "True"


def sized_checks(source: Source, checks: Checks, env: str) -> list[str]:
    """Conditions that values whose contexts or sizes are those of the call are as their specs say."""
    failed = source.bind("failed_value", failed_value) if checks.sized else ""
    return [f"{failed}({source.constant(spec, 'sized')}, {name}, {env}) is None" for name, spec in checks.sized]


def _once(rows: Sequence[tuple[str, Spec]], values: Mapping[str, Tensor]) -> tuple[list[tuple[str, Spec]], list[str]]:
    """The rows of distinct tensors, and conditions that the others (a wrapper inside of another, twice) are those again."""
    names: dict[int, str] = {}
    out, conditions = [], []
    for name, spec in rows:
        first = names.setdefault(id(values[name]), name)
        if first == name:
            out.append((name, spec))
        else:
            conditions.append(f"{name} is {first}")
    return out, conditions


def dynamic_checks(name: str, spec: Spec, symbols: dict[Any, str], strides: bool = True) -> list[str]:
    """Conditions that the sizes of a tensor, and its strides, are as the symbols say."""
    out = []
    rows = (("shape[{}]", spec.size), ("stride({})", spec.stride if strides else ()))  # type: ignore[union-attr]
    for attribute, sizes in rows:
        for d, n in enumerate(sizes):
            if isinstance(n, SizeExpr):
                code = size_code(n, symbols)
                out.append(f"{name}.{attribute.format(d)} == {code}")
    return out


#: asked of each parameter of an optimizer -> the attribute that is true where it does not hold
_NO_HOOKS = {
    ("gradient hooks", False): torch_api.GRADIENT_HOOKS,
    ("accumulation hooks", False): torch_api.ACCUMULATION_HOOKS,
}


def failed_metadata_code(source: Source, row: InputPlan, name: str) -> list[str]:
    """Conditions that hold where `guards.failed_metadata` finds a reason."""
    out = []
    if row.is_leaf is not None:
        out.append(f"{name}.is_leaf is not {row.is_leaf}")
    if row.no_gradient:
        out.append(f"{source.bind('has_gradient', has_gradient)}({name})")
    out += [f"{name}.{_NO_HOOKS[fact]}" for fact in row.facts if fact in _NO_HOOKS]
    if asked := tuple(fact for fact in row.facts if fact not in _NO_HOOKS):
        failed, facts = source.bind("failed_fact", failed_fact), source.bind(source.name("facts"), asked)
        out.append(f"{failed}({facts}, {name}) is not None")
    return out


def symbol_lines(
    plan: Plan, source: Source, flat: Sequence[str], inputs: Sequence[str], leaves: Sequence[str]
) -> dict[Any, str]:
    """Emit reading the symbols' values; returns symbol -> local name."""
    symbols: dict[Any, str] = {}
    for row in plan.inputs.symbols:
        local = symbols[row.symbol] = str(row.symbol)
        if row.input is not None:
            source.line(f"{local} = {inputs[row.input]}.shape[{row.dim}]")
            continue
        if row.kind == "argument":
            source.line(f"{local} = {flat[row.dim]}")
            continue
        assert row.leaf is not None
        leaf = leaves[row.leaf]
        what = {"size": f"shape[{row.dim}]", "stride": f"stride({row.dim})", "storage_offset": "storage_offset()"}
        source.line(f"{local} = {leaf}.{what[row.kind]}")
    return symbols


def tuple_code(names: Sequence[str]) -> str:
    """The items of a tuple display."""
    return "".join(f"{n}, " for n in names)
