"""Emitters for one value: taking it apart under guards, and putting it together."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from .. import torch_api
from ..capture.facts import failed_fact
from ..capture.inputs import has_gradient
from ..plan import InputPlan, Plan
from ..subclass.context import KeptPlain, Lent, has_sizes, same_context, with_outer, without_outer
from ..subclass.parts import marks_in
from ..subclass.protocol import flattens_alike, unflatten_of
from ..subclass.spec import LeafSpec, OpaqueSpec, SizeExpr, Spec, WrapperSpec, leaf_count
from ..subclass.template import Examples
from .source import EXPRESSION_GLOBALS, Source

Tensor = torch.Tensor
_NAMES = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_KNOWN_NAMES = {*EXPRESSION_GLOBALS, *keyword.kwlist, "abs", "float", "int", "max", "min", "round"}


class NotGenerated(Exception):
    """This plan holds something that the generator does not emit; the reference interpreter serves it."""


def expression_code(expr: Any, symbols: dict[Any, str]) -> str:
    """An expression over size symbols as source, with no names but the symbols' and what each module can call."""
    text = torch_api.expression_source(expr, symbols)
    unknown = {*_NAMES.findall(text)} - {*symbols.values()} - _KNOWN_NAMES
    if unknown:  # sympy prints some functions by names of its own
        raise NotGenerated(f"{', '.join(sorted(unknown))} in {text}")
    return text


def size_code(size: Any, symbols: dict[Any, str]) -> str:
    """A size as source: a number, or an expression over the symbols' local names."""
    if isinstance(size, SizeExpr):
        return expression_code(size.expr, symbols)
    if not isinstance(size, int):
        raise NotGenerated(f"a size {size!r}")
    return repr(size)


def sizes_code(sizes: Sequence[Any], symbols: dict[Any, str]) -> str:
    """A tuple of sizes as source."""
    return "(" + "".join(f"{size_code(s, symbols)}, " for s in sizes) + ")"


#: of these the same object is the same value
_IDENTITY = (bool, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format, type)


@dataclass
class Checks:
    """What is still to be checked after taking values apart."""

    tensors: list[tuple[str, Spec]] = field(default_factory=list)  # distinct tensors, for the tensor guard
    conditions: list[str] = field(default_factory=list)


def same_code(source: Source, now: str, known: Any) -> str:
    """The condition that the context ``now`` is the same as the known one, as source: identity, then `same_context`."""
    constant = source.constant(known, "context")
    if isinstance(known, _IDENTITY):
        return f"{now} is {constant}"
    if type(known) in (int, str, bytes):
        return f"type({now}) is {type(known).__name__} and {now} == {constant}"
    plain = known if isinstance(known, KeptPlain) else KeptPlain.of(known)
    if plain is not None:
        return f"{source.constant(plain.holds, 'is_context')}({now})"
    same = f"{source.bind('same_context', same_context)}({constant}, {now})"
    return same if type(known) is tuple else f"({now} is {constant} or {same})"


class Unwrapper:
    """Emits taking inputs apart, and collects the checks of each value."""

    def __init__(self, source: Source, miss: str) -> None:
        self.source, self.miss = source, miss
        self.checks = Checks()

    def unwrap(self, variable: str, spec: Spec) -> list[str]:
        """Local names of the leaves of ``variable``; call inside a ``try`` for missing attributes."""
        if isinstance(spec, OpaqueSpec):
            raise NotGenerated("an opaque value by itself")
        if spec.layout is torch.jagged:
            raise NotGenerated("a jagged tensor")
        self.checks.tensors.append((variable, spec))
        if isinstance(spec, LeafSpec):
            return [variable]
        leaves: list[str] = []
        self._check_context(variable, spec)
        for name, inner in zip(spec.names, spec.inners, strict=True):
            if isinstance(inner, OpaqueSpec):
                continue
            if not name.isidentifier():
                raise NotGenerated(f"an attribute named {name!r}")
            local = self.source.name("u")
            self.source.line(f"{local} = {variable}.{name}")
            leaves += self.unwrap(local, inner)
        return leaves

    def _check_context(self, variable: str, spec: WrapperSpec) -> None:
        if has_sizes(spec.context):
            raise NotGenerated("sizes in a context")
        source = self.source
        shortcut = torch_api.context_shortcut(spec.cls)
        dynamic = spec.has_dynamic_size
        if shortcut is not None and not dynamic and self.shortcut_value is not None:
            known = source.constant(self.shortcut_value(variable), "spec")
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

    #: maps a local name to the real value's shortcut attribute; set by the entry emitter, which has real inputs
    shortcut_value: Callable[[str], Any] | None = None


class Wrapper:
    """Emits rewrapping: by a verified template, by DTensor's constructor, or by ``__tensor_unflatten__``."""

    def __init__(
        self, source: Source, examples: Examples, symbols: dict[Any, str], lent: Callable[[Lent], str] | None = None
    ) -> None:
        """``lent``: the expression of what a result has from an input."""
        self.source, self.examples, self.symbols, self.lent = source, examples, symbols, lent

    def wrap(self, spec: Spec, leaves: Iterator[str]) -> str:
        """The expression (a local name) of a value made of the next leaves."""
        if isinstance(spec, LeafSpec):
            return next(leaves)
        if isinstance(spec, OpaqueSpec):
            if isinstance(spec.value, Lent) and self.lent is not None:
                return self.lent(spec.value)
            return self.source.constant(spec.value, "opaque")
        if spec.layout is torch.jagged:
            raise NotGenerated("a jagged tensor")
        if has_sizes(spec.context):
            raise NotGenerated("sizes in a context")
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
        plain, marks = KeptPlain.of(spec.context), marks_in([replace(spec, inners=())])
        if isinstance(spec.context, Lent) and self.lent is not None:
            context = self.lent(spec.context)
        elif plain is not None:
            context = f"{source.constant(plain.fresh, 'fresh_context')}()"
        else:
            context = source.constant(spec.context, "context")
            if not isinstance(spec.context, _IDENTITY):
                lend = ""
                if marks and self.lent is not None:
                    rows = [f"{source.constant(mark, 'lent')}: {self.lent(mark)}" for mark in marks]
                    lend = f", {{{', '.join(rows)}}}.__getitem__"
                context = f"with_outer({context}, {size}, {stride}{lend})"
        unflatten = source.constant(unflatten_of(spec.cls), "unflatten")
        source.line(f"{out} = {unflatten}({{{parts}}}, {context}, Size({size}), {stride})")


def detached_outputs(source: Source, plan: Plan, count: int, left_out: Collection[int]) -> list[str]:
    """Expressions for the first ``count`` outputs of the forward, made objects of their own where they are none; not those
    of values that are left out."""
    flat, asked, place = [f"o[{k}]" for k in range(count)], set[int](), 0
    for k, spec in enumerate(plan.values):
        asked |= set() if k in left_out else {*range(place, place + leaf_count(spec))}
        place += leaf_count(spec)
    for k in sorted(plan.detach_values & asked):
        source.line(f"d{k} = o[{k}].detach()")
        flat[k] = f"d{k}"
    return flat


def wrapped(wrapper: Wrapper, specs: Sequence[Spec], parts: Iterator[str], left_out: Collection[int]) -> list[str]:
    """Emit putting values together; None in the place of those that are left out."""
    values = []
    for k, spec in enumerate(specs):
        own = [next(parts) for _ in range(leaf_count(spec))]
        values.append("None" if k in left_out else wrapper.wrap(spec, iter(own)))
    return values


def tensor_checks(
    source: Source, checks: Checks, values: dict[str, Tensor] | None, symbols: dict[Any, str], use_cpp: bool
) -> str:
    """An expression that is true when all tensors are as their specs say.

    ``values``: a real tensor for each local name, from which the C++ guard is made; without them, or without
    ``use_cpp``, the comparison is emitted in Python.
    """
    rows, conditions = _once(checks.tensors, values or {})
    conditions += checks.conditions
    for name, spec in rows:
        conditions += dynamic_checks(name, spec, symbols)
    if not rows:
        return " and ".join(conditions) or "True"
    guard = None
    if use_cpp and values is not None:
        sizes = [[s if isinstance(s, int) else None for s in spec.size] for _, spec in rows]  # type: ignore[union-attr]
        strides = [[s if isinstance(s, int) else None for s in spec.stride] for _, spec in rows]  # type: ignore[union-attr]
        guard = torch_api.tensor_guard([values[name] for name, _ in rows], sizes, strides)
    if guard is not None:
        check = source.constant(guard, "check")
        return " and ".join([f"{check}({', '.join(name for name, _ in rows)})", *conditions])
    python = [c for name, spec in rows for c in _python_checks(source, name, spec)]
    distinct = f"len({{{', '.join(f'id({name})' for name, _ in rows)}}}) == {len(rows)}"
    return " and ".join([*python, distinct, *conditions])


def _once(rows: Sequence[tuple[str, Spec]], values: Mapping[str, Tensor]) -> tuple[list[tuple[str, Spec]], list[str]]:
    """The rows of distinct tensors, and conditions that the others (a wrapper inside of another, twice) are those again."""
    names: dict[int, str] = {}
    out, conditions = [], []
    for name, spec in rows:
        first = names.setdefault(id(values.get(name, name)), name)
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


def _python_checks(source: Source, name: str, spec: Spec) -> list[str]:
    """The checks of the C++ guard in Python: the tested fallback."""
    assert not isinstance(spec, OpaqueSpec)
    kind = f"type({name}) in {source.constant((Tensor, torch.nn.Parameter), 'dense')}"
    if spec.cls is not Tensor:
        kind = f"type({name}) is {source.constant(spec.cls, 'cls')}"
    out = [kind]
    for attribute in ("dtype", "device", "layout"):
        out.append(f"{name}.{attribute} == {source.constant(getattr(spec, attribute))}")
    out.append(f"{name}.requires_grad is {spec.requires_grad}")
    if isinstance(spec, LeafSpec):
        out.append(f"({name}.is_conj(), {name}.is_neg()) == {spec.lazy}")
    out.append(f"{name}.dim() == {len(spec.size)}")
    for attribute, sizes in (("shape[{}]", spec.size), ("stride({})", spec.stride)):
        out += [f"{name}.{attribute.format(d)} == {n}" for d, n in enumerate(sizes) if isinstance(n, int)]
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
    for row in plan.symbols:
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
        source.line(f"{local} = {leaf}.{what.get(row.kind, 'item()')}")
    return symbols
