"""Emitters for one value: taking it apart under guards, and putting it together."""

from __future__ import annotations

import contextlib
import marshal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ..capture.metadata import fact_code
from ..plan import InputPlan, Plan, gradient_of
from ..subclass.context import (
    has_sizes,
    map_sizes,
    may_change,
    same_context,
    with_outer,
    without_outer,
)
from ..subclass.paths import Path
from ..subclass.protocol import flattens_alike, unflatten_of
from ..subclass.spec import (
    LeafSpec,
    OpaqueSpec,
    SizeExpr,
    Spec,
    WrapperSpec,
    leaf_count,
    leaf_spans,
)
from ..subclass.template import Examples
from ..subclass.values import LITERALS, SINGLETONS
from ..subclass.visit import VALUE, inner_values, rebuild
from ..torch_api.kinds import failed_tensor_guard, tensor_guard
from ..torch_api.modes import disable_autocast, set_grad
from ..torch_api.symbols import expression_source
from ..torch_api.texts import text_of as torch_text_of
from ..torch_api.wrappers import context_shortcut, make_wrapper_subclass, shortcut_constructor
from .sizes import evaluate, evaluator
from .source import Code

Tensor = torch.Tensor


def size_code(size: Any, symbols: dict[Any, str]) -> str:
    """A size as source: a number, or an expression over the symbols' local names."""
    return expression_source(size.expr, symbols) if isinstance(size, SizeExpr) else repr(size)


def sizes_code(sizes: Sequence[Any], symbols: dict[Any, str]) -> str:
    """A tuple of sizes as source."""
    return "(" + "".join(f"{size_code(s, symbols)}, " for s in sizes) + ")"


#: of these the same object is the same value
_IDENTITY = (*SINGLETONS, type)
#: what is written by value; bytes are written as an array of them is
_WRITTEN = (LITERALS | {float, complex}) - {bytes}
#: the version of the format that does not tell one object twice from two equal ones
_BY_VALUE = 2
_DEEPEST = 60
#: containers of so many parts are compared part by part
_SHORT = 8


def plain_context(value: Any) -> bytes | None:
    """What Python writes for a list, tuple or dict of numbers and strings; None for anything else.

    That tells types and signs of zero apart, and one NaN is like another; other values may have the
    same as bytes alone.
    """
    plain = type(value) in (list, tuple, dict) and value and _is_plain(value)
    return marshal.dumps(value, _BY_VALUE) if plain else None


def _is_plain(value: Any, depth: int = 0) -> bool:
    if type(value) not in (list, tuple, dict) or depth > _DEEPEST:
        return False
    parts = [*value, *value.values()] if type(value) is dict else value
    return all(type(v) in _WRITTEN or _is_plain(v, depth + 1) for v in parts)


def same_code(source: Code, now: str, known: Any) -> str:
    """The condition that the context ``now`` is the same as the known one, as source: identity,
    then `same_context`."""
    constant = source.constant(known, "context")
    if isinstance(known, torch.device):  # torch makes another object each time
        return f"(type({now}) is {source.bind('device', torch.device)} and {now} == {constant})"
    if isinstance(known, _IDENTITY):
        return f"{now} is {constant}"
    if type(known) in (int, str, bytes):
        return f"type({now}) is {type(known).__name__} and {now} == {constant}"
    same = f"{source.bind('same_context', same_context)}({constant}, {now})"
    if (written := plain_context(known)) is not None:  # equal strings may be two spellings
        return (
            f"({source.bind('written', marshal.dumps)}({now}, {_BY_VALUE}) == {written!r} or "
            f"{same})"
        )
    kind = type(known)
    keys = [*known] if kind is dict else [*range(len(known))] if kind in (list, tuple) else []
    if kind in (list, tuple, dict) and len(keys) <= _SHORT and {*map(type, keys)} <= {int, str}:
        length = f"[*{now}] == {keys}" if kind is dict else f"len({now}) == {len(keys)}"
        parts = [same_code(source, f"{now}[{key!r}]", known[key]) for key in keys]
        return f"({' and '.join([f'type({now}) is {kind.__name__}', length, *parts])})"
    return f"({now} is {constant} or {same})"


def is_sized(spec: WrapperSpec) -> bool:
    """Is it compared, and built, with the sizes of the call: a jagged tensor, or one with sizes in
    its context?"""
    return spec.layout is torch.jagged or has_sizes(spec.context)


def attribute_code(variable: str, name: str) -> str:
    """An attribute as source."""
    return f"{variable}.{name}" if name.isidentifier() else f"getattr({variable}, {name!r})"


class Unwrapper:
    """Emits taking inputs apart, and collects what `tensor_checks` checks of each value.

    Attributes:
        examples: values of the specs, by local names.
        tensors: distinct tensors, with their paths; ``sized``: jagged ones, and those with sizes in
            contexts.
        changing: contexts that can be changed in place, by local names, with what they are and
            their paths.
    """

    def __init__(self, source: Code, examples: dict[str, Any]) -> None:
        self.source, self.examples = source, examples
        self.tensors: list[tuple[str, Spec, Path]] = []
        self.sized: list[tuple[str, WrapperSpec, Path]] = []
        self.changing: list[tuple[str, Any, Path]] = []

    def unwrap(self, variable: str, spec: Spec, path: Path) -> list[str]:
        """Local names of the leaves of ``variable``; call inside a ``try`` for missing
        attributes."""
        assert not isinstance(spec, OpaqueSpec)
        if spec.layout is not torch.jagged:
            self.tensors.append((variable, spec, path))
        if isinstance(spec, LeafSpec):
            return [variable]
        leaves: list[str] = []
        self._check_context(variable, spec, path)
        for name, inner in zip(spec.names, spec.inners, strict=True):
            if isinstance(inner, OpaqueSpec):
                continue
            local = self.source.name("u")
            self.source.line(f"{local} = {attribute_code(variable, name)}")
            if variable in self.examples:
                self.examples[local] = getattr(self.examples[variable], name)
            leaves += self.unwrap(local, inner, path.attr(name))
        return leaves

    def _check_context(self, variable: str, spec: WrapperSpec, path: Path) -> None:
        source, text_of = self.source, torch_text_of
        why = (
            f"{f'{path}: expected {spec.cls.__qualname__}, got '!r} + type({variable}).__qualname__"
        )
        guard = f"type({path}) is {spec.cls.__qualname__}"
        if is_sized(spec):
            source.check(
                f"if type({variable}) is not {source.constant(spec.cls, 'cls')}", why, guard
            )
            self.sized.append((variable, spec, path))
            return
        shortcut = context_shortcut(spec.cls)
        dynamic = spec.has_dynamic_size
        value = (
            None
            if shortcut is None or dynamic
            else getattr(self.examples.get(variable), shortcut, None)
        )
        known = text_of(spec.context if value is None else value)
        other = (
            f"{f'{path}: expected the context {known}, got '!r} + "
            f"{source.bind('text_of', text_of)}(c)"
        )
        alike = f"{path}.{shortcut or '__tensor_flatten__()[1]'} == {known}"
        if value is not None:
            same = source.constant(value, "spec")
            source.line(f"c = {variable}.{shortcut}")
            source.check(f"if c is not {same} and c != {same}", other, alike)
            return
        source.check(f"if type({variable}) is not {source.constant(spec.cls, 'cls')}", why, guard)
        opaque = [
            (n, s.value)
            for n, s in zip(spec.names, spec.inners, strict=True)
            if isinstance(s, OpaqueSpec)
        ]
        if flattens_alike(spec.cls) and not opaque:
            return
        source.line(f"n, c = {variable}.__tensor_flatten__()")
        source.check(
            f"if (*n,) != {source.constant(spec.names)}",
            f"{f'{path}: expected {spec.names}, got '!r} + str(n)",
            f"{path}.__tensor_flatten__()[0] == {[*spec.names]}",
        )
        if dynamic:
            source.bind("without_outer", without_outer)
            source.line(f"c = without_outer(c, tuple({variable}.shape), {variable}.stride())")
        source.check(f"if not ({same_code(source, 'c', spec.context)})", other, alike)
        if may_change(spec.context) and not dynamic:
            self.changing.append((source.name("c"), spec.context, path))
            source.line(f"{self.changing[-1][0]} = c")
        for name, was in opaque:
            self._check_opaque(variable, f"{path}.{name}", name, was)

    def _check_opaque(self, variable: str, path: str, name: str, was: Any) -> None:
        source = self.source
        value, found = source.constant(was, "opaque"), attribute_code(variable, name)
        same = source.bind("same_context", same_context)
        source.check(
            f"if {found} is not {value} and not {same}({value}, {found})",
            repr(f"{path}: expected {torch_text_of(was)}"),
            f"{path} is the same",
        )


def verify_templates(specs: Iterable[Spec | None], examples: Examples) -> None:
    """Find the templates of all that `Wrapper` would make of these."""
    for spec in specs:
        if not isinstance(spec, WrapperSpec) or is_sized(spec):
            continue
        verify_templates(spec.inners, examples)
        if shortcut_constructor(spec.cls) is None:
            examples.template(spec)


class Wrapper:
    """Emits rewrapping: by a verified template, by DTensor's constructor, or by
    ``__tensor_unflatten__``."""

    def __init__(self, source: Code, examples: Examples, symbols: dict[Any, str], env: str) -> None:
        """``env``: the expression of a dict with the values of symbols."""
        self.source, self.examples, self.symbols, self.env = source, examples, symbols, env

    def wrap(self, spec: Spec, leaves: Iterator[str]) -> str:
        """The expression (a local name) of a value made of the next leaves."""
        if isinstance(spec, LeafSpec):
            return next(leaves)
        if isinstance(spec, OpaqueSpec):
            return self.source.constant(spec.value, "opaque")
        if is_sized(spec):
            out, bind, own = (
                self.source.name("w"),
                self.source.bind,
                [next(leaves) for _ in range(leaf_count(spec))],
            )
            made = (
                f"{bind('rebuild', rebuild)}({self.source.constant(spec, 'spec')}, "
                f"iter(({tuple_code(own)})), "
            )
            self.source.line(f"{out} = {made}{bind('evaluator', evaluator)}({self.env}))")
            return out
        inner = [(n, self.wrap(s, leaves)) for n, s in zip(spec.names, spec.inners, strict=True)]
        out = self.source.name("w")
        if not self._by_shortcut(out, spec, dict(inner)) and not self._by_template(
            out, spec, inner
        ):
            self._by_unflatten(out, spec, inner)
        return out

    def _by_shortcut(self, out: str, spec: WrapperSpec, inner: dict[str, str]) -> bool:
        construct, attribute = (
            shortcut_constructor(spec.cls),
            context_shortcut(spec.cls),
        )
        if construct is None or attribute is None or spec.has_dynamic_size:
            return False
        local = next(
            inner[n]
            for n, s in zip(spec.names, spec.inners, strict=True)
            if not isinstance(s, OpaqueSpec)
        )
        source = self.source
        known = source.constant(getattr(self.examples.make(spec), attribute), "spec")
        made = source.constant(construct, "construct")
        cls = source.constant(spec.cls, "cls")
        source.line(f"{out} = {made}({cls}, {local}, {known}, requires_grad=False)")
        return True

    def _by_template(self, out: str, spec: WrapperSpec, inner: list[tuple[str, str]]) -> bool:
        template = self.examples.template(spec)
        if template is None:
            return False
        source = self.source
        source.bind("make_wrapper", make_wrapper_subclass)
        parts = [source.constant(v) for v in (template.dtype, template.layout, template.device)]
        outer = (
            f"{source.constant(spec.size)}, {source.constant(spec.stride)}, "
            f"{template.storage_offset}"
        )
        meta = f"{outer}, None, {', '.join(parts)}"
        source.line(
            f"{out} = make_wrapper({source.constant(spec.cls, 'cls')}, {meta}, False, False)"
        )
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
        if (written := plain_context(spec.context)) is not None:
            context = f"{source.bind('copy_of', marshal.loads)}({written!r})"
        else:
            context = source.constant(spec.context, "context")
            if not isinstance(spec.context, _IDENTITY):
                context = f"with_outer({context}, {size}, {stride})"
        unflatten = source.constant(unflatten_of(spec.cls), "unflatten")
        source.line(f"{out} = {unflatten}({{{parts}}}, {context}, Size({size}), {stride})")


@contextlib.contextmanager
def gradients_off(source: Code, is_needed: bool) -> Iterator[None]:
    """Inside, the lines run without gradients, if that is needed."""
    if is_needed:
        source.bind("set_grad", set_grad)
        source.line("set_grad(False)")
        source.line("try:")
        source.depth += 1
    yield
    if is_needed:
        source.line("pass")
        source.depth -= 1
        source.line("finally: set_grad(True)")


def graph_call(source: Code, call: str, autocast: Any) -> str:
    """The line that runs a graph: the casts of autocast are in it."""
    return f"with {source.bind('no_autocast', disable_autocast)}(): {call}" if autocast else call


def sizes_of_outputs(source: Code, plan: Plan) -> dict[Any, str]:
    """Emit keeping the numbers among the outputs of the forward graph in ``call``; returns the
    symbols that they tell."""
    first, symbols = plan.results.forward_leaves, dict[Any, str]()
    if plan.results.size_outputs:
        source.line(f"call.sizes = o[{first}:{first + plan.results.size_outputs}]")
    for symbol, k in plan.results.unbacked:
        symbols[symbol] = f"z_{symbol}"
        source.line(f"z_{symbol} = call.env[{source.constant(symbol, 'symbol')}] = o[{first + k}]")
    return symbols


def detached_outputs(source: Code, plan: Plan, leaves: Sequence[str]) -> list[str]:
    """Expressions for the leaves that the forward returns, made objects of their own where they are
    none.

    ``leaves``: for those of the inputs, which a value may be made of.
    """
    flat = [f"o[{k}]" for k in range(plan.results.forward_leaves)]
    spans = leaf_spans(plan.results.values)
    spent = {p for k in plan.mutations.spent_values for p in range(spans[k].start, spans[k].stop)}
    for k in sorted((plan.results.detach_values | plan.results.shared.keys()) - spent):
        shared = plan.results.shared.get(k)
        value = (
            f"o[{k}]"
            if shared is None
            else flat[shared.number]
            if shared.kind == "value"
            else leaves[shared.number]
        )
        own = "detach()" if shared is None else shared.kind
        source.line(f"d{k} = {value}{'' if own in ('input', 'value') else '.' + own}")
        flat[k] = f"d{k}"
    return flat


def wrapped(wrapper: Wrapper, plan: Plan, parts: Iterator[str]) -> list[str]:
    """Emit putting values together; None in the place of those that nobody asks for."""
    values = []
    for k, spec in enumerate(plan.results.values):
        own = [next(parts) for _ in range(leaf_count(spec))]
        values.append("None" if k in plan.mutations.spent_values else wrapper.wrap(spec, iter(own)))
    return values


def tensor_checks(
    unwrapper: Unwrapper, values: dict[str, Tensor], symbols: dict[Any, str], env: str
) -> None:
    """Check that all tensors are as their specs say.

    ``values``: a real tensor for each local name, from which the C++ guard is made; ``env``: see
    `Wrapper`.
    """
    source, names, rows = unwrapper.source, dict[int, str](), list[tuple[str, Any, Path]]()
    paths = {name: path for name, _, path in unwrapper.tensors}
    for name, spec, path in unwrapper.tensors:
        first = names.setdefault(id(values[name]), name)
        if first == name:
            rows.append((name, spec, path))
        else:  # a leaf, or a wrapper inside of another, twice
            source.check(
                f"if {name} is not {first}",
                repr(f"{path} is another tensor"),
                f"{path} is {paths[first]}",
            )
    if rows:
        sizes = [[s if isinstance(s, int) else None for s in spec.size] for _, spec, _ in rows]
        strides = [[s if isinstance(s, int) else None for s in spec.stride] for _, spec, _ in rows]
        check = source.constant(
            tensor_guard([values[name] for name, _, _ in rows], sizes, strides), "check"
        )
        fixed = source.compared.setdefault(check, {})
        for (name, *_), row, steps in zip(rows, sizes, strides, strict=True):
            fixed |= {f"{name}.shape[{d}]": n for d, n in enumerate(row) if n is not None}
            fixed |= {f"{name}.stride({d})": n for d, n in enumerate(steps) if n is not None}
        given, shown = ", ".join(name for name, _, _ in rows), [str(path) for _, _, path in rows]
        why = (
            f"{source.bind('failed_tensor_guard', failed_tensor_guard)}({check}, "
            f"{shown!r}, {given})"
        )
        source.check(f"if not {check}({given})", why, f"check_tensors({', '.join(shown)})")
    for name, spec, path in rows:  # sizes and strides are as the symbols say
        attributes = [(f"shape[{d}]", n) for d, n in enumerate(spec.size)]
        for attribute, n in [
            *attributes,
            *[(f"stride({d})", n) for d, n in enumerate(spec.stride)],
        ]:
            now = f"{name}.{attribute}"
            if isinstance(n, SizeExpr) and source.reads.get(now) != n.expr:
                code = size_code(n, symbols)
                why = f"{f'{path}.{attribute}: expected '!r} + f'{{{code}}}, got {{{now}}}'"
                source.check(f"if {now} != {code}", why, f"{path}.{attribute} == {code}")
    for name, spec, path in unwrapper.sized:
        alike = (
            f"{source.bind('sized_alike', sized_alike)}({source.constant(spec, 'sized')}, "
            f"{name}, {env})"
        )
        guard = (
            f"{path} has the sizes of its symbols, and the context {torch_text_of(spec.context)}"
        )
        source.check(f"if not {alike}", repr(f"{path}: other sizes or another context"), guard)


def sized_alike(spec: WrapperSpec, value: Tensor, env: Mapping[Any, Any]) -> bool:
    """Is a value whose context, or sizes, are those of the call as its spec says? (Inner tensors
    have checks of their own.)"""
    names, inners, context = inner_values(value, VALUE)
    if names != spec.names or (value.dtype, value.device, value.requires_grad) != (
        *(spec.dtype, spec.device, spec.requires_grad),
    ):
        return False
    opaque = [
        (i.value, v) for i, v in zip(spec.inners, inners, strict=True) if isinstance(i, OpaqueSpec)
    ]
    expected = map_sizes(spec.context, lambda n: evaluate(n, env))
    besides = (
        without_outer(context, tuple(value.shape), tuple(value.stride()))
        if spec.has_dynamic_size
        else context
    )
    alike = same_context(expected, besides) or same_context(expected, context)
    return alike and all(same_context(known, now) for known, now in opaque)


def metadata_checks(source: Code, row: InputPlan, name: str) -> None:
    """Check what the region asked of an input besides its values."""
    for fact, known in row.facts:
        if fact == "grad":
            source.bind("gradient_of", gradient_of)
        failed = f"{'not ' if known else ''}{fact_code(fact, name)}"
        source.check(
            f"if {failed}",
            repr(f"{row.path}: expected {fact} = {known}"),
            f"{row.path}.{fact} == {known}",
        )


def symbol_lines(
    plan: Plan, source: Code, flat: Sequence[str], inputs: Sequence[str], leaves: Sequence[str]
) -> dict[Any, str]:
    """Emit reading the symbols' values; returns symbol -> local name."""
    names = {"flat": flat, "input": inputs, "leaf": leaves}
    for row in plan.inputs.symbols:
        read = f"{names[row.kind][row.number]}{row.attribute}"
        source.reads[read] = row.symbol
        source.line(f"{row.symbol} = {read}")
    return {row.symbol: str(row.symbol) for row in plan.inputs.symbols}


def tuple_code(names: Sequence[str]) -> str:
    """The items of a tuple display."""
    return "".join(f"{n}, " for n in names)
