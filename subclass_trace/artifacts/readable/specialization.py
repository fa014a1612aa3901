"""One specialization as source: what it asks of a call, its graphs, how results are made."""

from __future__ import annotations

import enum
import itertools
import types
from collections.abc import Iterator
from typing import Any

from ...capture.graphs import primal_number
from ...data.objects import fingerprint, functions_in, name_of
from ...plan import (
    InputOutput,
    LeafPrimal,
    OutputPlan,
    SameOutput,
    SizeOutput,
    SymbolPlan,
    ValueOutput,
    ViewOutput,
)
from ...plan.values import Constant, Entry, Make, New, Output, Recipe
from ...state.kinds import C_CALLABLES
from ...state.place import Place, Roots
from ...state.rows import Row
from ...subclass.spec import LeafSpec, SizeExpr, leaf_count
from ...torch_api.operators import OpOverload
from ...torch_api.symbols import expression_source
from .backward import backward_lines, served_backwards
from .specs import kind_text, taken_apart, wrapped
from .text import (
    class_text,
    constant_text,
    graph_lines,
    is_of_torch,
    literal,
    named_text,
    place_text,
    refuse,
    size_text,
    sizes_text,
    thing_text,
)


def _same_code(at: str, codes: list[str]) -> str:
    return f"[fingerprint(g.__code__) for g in functions_in({at})] == {codes}"


def _is_of_class(place: Place) -> bool:
    return isinstance(place.root.key, type)


class SpecializationText:
    """Writes the functions of one specialization; their names end in its number.

    Raises:
        ExportError: by `lines`: something of it cannot be written.
    """

    def __init__(self, number: int, entry: Any) -> None:
        self.number, self.entry, self.plan = number, entry, entry.plan
        self.guards, self.ambient = entry.state, entry.ambient
        self.roots = Roots((), {}, entry.state.function)
        self.symbols: dict[Any, str] = {
            row.symbol: str(row.symbol) for row in entry.plan.inputs.symbols
        }
        self.constants: dict[str, str] = {}
        self.backwards = served_backwards(entry.program)

    def lines(self) -> Iterator[str]:
        """All of it."""
        self._refuse_the_rest()
        body = [
            *self._guards(),
            *graph_lines(self.entry.graphs.first, f"forward_{self.number}", self.constant),
            *(("", "", *backward_lines(self)) if self.backwards else ()),
            "",
            "",
            *self._call(),
        ]
        yield from ("", "", f"# ---- specialization {self.number}: {self.entry.reason}")
        yield from (f"{name} = {text}" for name, text in self.constants.items())
        yield from body

    def constant(self, value: Any, path: str) -> str:
        text = constant_text(value, path)
        name = f"constant_{self.number}_{len(self.constants)}"
        self.constants[name] = text
        return name

    def _refuse_the_rest(self) -> None:
        plan, inputs = self.plan, self.plan.inputs
        rows = (
            ("effects on Python state", plan.side_effects and plan.side_effects[0].place),
            ("a gradient that the region sets", plan.mutations.gradients),
            ("sizes that depend on values", plan.results.unbacked),
            ("results that share memory of inputs", plan.results.shared),
            ("absolute offsets of memory", inputs.offsets_matter),
            ("what is another thing on each rank", self.entry.all_rank_reads),
            ("modes of DTensor", self.ambient.dtensor),
            ("autocast around the call", self.ambient.autocast),
            ("default devices around the call", self.ambient.devices),
            ("folded weights", self.entry.program.frozen),
            ("a history that a write gives", [m for m in plan.mutations.rows if m.differentiable]),
        )
        for what, got in rows:
            if got:
                refuse(what, "the plan", got)
        for row in inputs.rows:
            if row.facts or row.of_gradient or row.grad_dtype != row.spec.dtype:
                refuse("what the region asks of an input besides its metadata", row.path)
        for symbol in inputs.symbols:
            if symbol.ragged:
                refuse("a ragged size", symbol.symbol)
        if inputs.alias is not None:
            families, *groups = inputs.alias
            if groups or len({*families}) < len(families):
                refuse("inputs that share memory", "the plan", inputs.alias)

    # ---- what is asked of a call
    def _guards(self) -> Iterator[str]:
        a = self.ambient
        yield from ("", "", f"def guards_{self.number}(f, args, kwargs):")
        yield f'    need(torch.is_grad_enabled() is {a.grad}, "grad mode is {a.grad}")'
        yield f'    need(torch.is_inference_mode_enabled() is {a.inference}, "inference mode")'
        yield '    need(no_autocast(), "no autocast")'
        level = "torch.autograd.forward_ad._current_level"
        yield f'    need({level} < 0, "no forward-mode derivatives")'
        known = f"torch.are_deterministic_algorithms_enabled() is {a.deterministic}"
        yield f'    need({known}, "deterministic algorithms: {a.deterministic}")'
        yield f'    need(torch.get_default_dtype() is {a.dtype}, "default dtype {a.dtype}")'
        count, keywords = self.guards.positional, [*self.guards.keywords]
        arguments = f"len(args) == {count} and [*kwargs] == {keywords}"
        told = f"{count} arguments and the keywords {keywords}"
        yield f"    need({arguments}, {told!r})"
        for row in self.guards.rows:
            if (line := self.row(row)) is not None:
                yield f"    {line}"
        yield from self._inputs()

    def row(self, row: Row) -> str | None:
        """One row as a line; None of what the version of torch says."""
        if is_of_torch(row.place) and (row.kind in ("func", "is") or _is_of_class(row.place)):
            return None
        at = place_text(row.place)
        holds = None if at is None else self._holds(row, at)
        if holds is not None:
            return f"need({holds}, {row.code!r})"
        if is_of_torch(row.place):
            return None
        refuse("a guard", row.place, row.code)

    def _holds(self, row: Row, at: str) -> str | None:
        known = row.known
        simple = {
            "truth": f"bool({at}) is {known}",
            "len": f"len({at}) == {known}",
            "there": f"{at} is not MISSING",
            "tensor": f"isinstance({at}, torch.Tensor)",
            "hooks": f"no_hooks({at})",
        }
        if row.kind in simple:
            return simple[row.kind]
        if row.kind in ("value", "exact"):
            text = literal(known, row.place)
            return f"{at} is MISSING" if text == "MISSING" else f"same({at}, {text})"
        if row.kind in ("type", "number"):
            return f"is_thing(type({at}), {named_text(known)})"
        if row.kind == "keys":
            return f"same([*{at}], {literal([*known], row.place)})"
        if row.kind == "func" and known is not None:
            return _same_code(at, [fingerprint(known)])
        if row.kind == "is":
            return self._is(known, at, row.place)
        if row.kind == "set" and not row.place.moves:
            held = sorted(repr(v) for v in row.place.read(self.roots) if literal(v, row.place))
            return f"sorted(map(repr, {at})) == {held}"
        if row.kind in ("alias", "other", "distinct"):
            places = known if row.kind == "distinct" else (known,)
            others = [place_text(place) for place in places]
            if None in others:
                return None
            if row.kind == "distinct":
                objects = ", ".join([at, *map(str, others)])
                return f"len({{*map(id, ({objects}))}}) == {1 + len(others)}"
            return f"{at} is {'not ' if row.kind == 'other' else ''}{others[0]}"
        return None

    def _is(self, known: Any, at: str, place: Place) -> str | None:
        """An identity: of a thing by its name, of code by what it does."""
        if isinstance(known, enum.Enum):
            return f"{at} is {literal(known, place)}"
        if isinstance(known, (types.FunctionType, staticmethod, classmethod, property)):
            return _same_code(at, [fingerprint(g.__code__) for g in functions_in(known)])
        if not isinstance(known, (type, types.ModuleType, *C_CALLABLES)):
            text = thing_text(name_of(known))
            return None if text is None else f"{at} is {text}"
        if isinstance(known, type):
            return f"is_thing({at}, {named_text(known)})"
        name = getattr(known, "__qualname__", None) or known.__name__
        return f"is_thing({at}, {getattr(known, '__module__', None)!r}, {name!r})"

    def _inputs(self) -> Iterator[str]:
        """The inputs are read, taken apart and compared."""
        plan = self.plan.inputs
        kinds, names = iter(plan.kinds), (f"t{k}" for k in itertools.count())
        leaves: dict[int, str] = {}
        checks = []
        for k, row in enumerate(plan.rows):
            place: Place = self.guards.flat[row.position]
            if (read := place_text(place)) is None:
                refuse("a tensor that no argument or attribute leads to", row.path)
            yield f"    x{k} = {read}  # {str(row.path)!r}"
            numbers = iter(row.leaves)
            spec, path = row.spec, str(row.path)
            parts = [("", spec, f"x{k}"), *taken_apart(spec, f"x{k}", path, names)]
            for line, held, name in parts:
                if line:
                    yield f"    {line}"
                    continue
                kind = next(kinds)
                text = kind_text(held, kind.keys, path)
                cls = class_text(kind.cls, path)
                told = f"{path} is a {kind.cls.__qualname__}"
                yield f"    need(type({name}) is {cls}, {told!r})"
                checks.append((held, name, f"{cls}, {text}", path))
                if isinstance(held, LeafSpec):
                    number = next(numbers)
                    if number in leaves:
                        told = f"{path} has a tensor twice"
                        yield f"    need({name} is {leaves[number]}, {told!r})"
                    leaves.setdefault(number, name)
        self.leaves = [leaves[k] for k in range(plan.leaf_count)]
        self.inputs = [f"x{k}" for k in range(len(plan.rows))]
        for row in plan.symbols:
            yield f"    {self.symbols[row.symbol]} = {self._told(row)}"
        for held, name, kind, path in checks:
            sizes = ", ".join(sizes_text(n, self.symbols, path) for n in (held.size, held.stride))
            yield f"    check({name}, {kind}, {sizes}, {path!r})"
        for condition in plan.conditions:
            holds = expression_source(condition, self.symbols)
            yield f"    need({holds}, {str(condition)!r})"
        inputs, own = ", ".join(self.inputs), ", ".join(self.leaves)
        yield f"    distinct([{inputs}], 'inputs')"
        yield f"    distinct([{own}], 'tensors inside of inputs')"
        if plan.alias is not None:
            yield f"    apart([{inputs}], [{own}])"
        sizes = "".join(f"{name}, " for name in self.symbols.values())
        yield f"    return [{inputs}], [{own}], ({sizes})"
        yield from ("", "")

    def _told(self, row: SymbolPlan) -> str:
        if row.kind == "flat":
            read = place_text(self.guards.flat[row.number])
            return read or refuse("a number that no argument leads to", row.symbol)
        return f"{(self.leaves if row.kind == 'leaf' else self.inputs)[row.number]}{row.attribute}"

    # ---- a call
    def unpack_sizes(self) -> list[str]:
        """The symbols, of the tuple ``sizes``."""
        names = "".join(f"{name}, " for name in self.symbols.values())
        return [f"({names}) = sizes"] if names else []

    def primals(self) -> str:
        """The arguments of the forward graph."""
        found = []
        for node in self.entry.graphs.first.inputs:
            primal = self.plan.inputs.primals[primal_number(node)]
            leaf = isinstance(primal, LeafPrimal)
            found.append(
                f"leaves[{primal.leaf}]" if leaf else size_text(primal.size, self.symbols, node)
            )
        return ", ".join(found)

    def values(self) -> list[str]:
        """The forward values of ``o``, put together; None of what the graph has written itself."""
        plan, spent = self.plan, self.plan.mutations.spent_values
        flat = iter(
            f"o[{k}].detach()" if k in plan.results.detach_values else f"o[{k}]"
            for k in range(plan.results.forward_leaves)
        )
        made = []
        for k, spec in enumerate(plan.results.values):
            own = iter([next(flat) for _ in range(leaf_count(spec))])
            made.append("None" if k in spent else wrapped(spec, own, self.symbols, f"value {k}"))
        return made

    def _call(self) -> Iterator[str]:
        n = self.number
        yield f"def call_{n}(f, args, kwargs):"
        yield f"    x, leaves, sizes = guards_{n}(f, args, kwargs)"
        yield ""
        yield "    def ready():"
        for line in self._ready():
            yield f"        {line}"
        yield ""
        yield "    return ready"

    def _ready(self) -> Iterator[str]:
        n, plan = self.number, self.plan
        yield from self.unpack_sizes()
        if self.backwards:
            inputs = "".join(f", x[{k}]" for k in plan.gradients.differentiated)
            yield "numbers = [None]"
            yield f"v = Region_{n}.apply(x, leaves, sizes, numbers{inputs})"
            yield "numbers = numbers[0]"
        elif plan.gradients.by_autograd:
            yield f"o = forward_{n}({self.primals()})"
            yield f"v = [{', '.join(self.values())}]"
        else:
            yield "with torch.no_grad():"
            yield f"    o = forward_{n}({self.primals()})"
            yield f"    v = [{', '.join(self.values())}]"
        if not self.backwards:
            first = plan.results.forward_leaves
            yield f"numbers = o[{first} : {first + plan.results.size_outputs}]"
        yield from self._written()
        for k, output in enumerate(plan.results.outputs):
            yield from self._output(k, output)
        made: dict[int, str] = {}
        yield f"return {self._recipe(plan.results.recipe, made)}"

    def _written(self) -> Iterator[str]:
        """New contents of inputs."""
        plan = self.plan
        for m in () if plan.mutations.in_program else plan.mutations.rows:
            spec = plan.results.values[m.value]
            if not isinstance(spec, LeafSpec):
                refuse("a wrapper that is written", plan.inputs.rows[m.input].path)
            leaf = plan.inputs.rows[m.input].leaves[0]
            yield "with torch.no_grad():"
            yield f"    leaves[{leaf}].copy_(v[{m.value}])"

    def _output(self, k: int, output: OutputPlan) -> Iterator[str]:
        path = f"result {k}"
        if isinstance(output, ValueOutput):
            if output.protected or output.parameter:
                refuse("a view of what is no value, or a Parameter, as a result", path)
            yield f"r{k} = v[{output.value}]"
        elif isinstance(output, InputOutput):
            read = place_text(self.guards.flat[output.position])
            yield f"r{k} = {read or refuse('an input as a result', path)}"
        elif isinstance(output, SameOutput):
            yield f"r{k} = r{output.result}"
        elif isinstance(output, SizeOutput):
            yield f"r{k} = numbers[{output.index}]"
        elif isinstance(output, ViewOutput):
            base = f"x[{output.base}]" if output.of_input else f"v[{output.base}]"
            yield f"r{k} = {base}"
            mode = f"{output.requires_grad} if r{k}.requires_grad else torch.is_grad_enabled()"
            yield f"with torch.set_grad_enabled({mode}):"
            for step in output.steps:
                if not isinstance(step.operation, OpOverload):
                    refuse("a view", path, step.operation)
                given = [self._view_argument(a, path) for a in step.args]
                given += [f"{name}={self._view_argument(v, path)}" for name, v in step.kwargs]
                which = "" if step.which is None else f"[{step.which}]"
                call = ", ".join([f"r{k}", *given])
                yield f"    r{k} = torch.ops.{step.operation}({call}){which}"
        else:
            refuse("a tensor that the region only hands on", path)

    def _view_argument(self, value: Any, path: str) -> str:
        if isinstance(value, (list, tuple)):
            inner = "".join(f"{self._view_argument(v, path)}, " for v in value)
            return f"[{inner}]" if isinstance(value, list) else f"({inner})"
        if isinstance(value, SizeExpr):
            return size_text(value, self.symbols, path)
        return literal(value, path)

    def _recipe(self, recipe: Recipe, made: dict[int, str]) -> str:
        if isinstance(recipe, Constant):
            return literal(recipe.value, "the result")
        if isinstance(recipe, Output):
            return f"r{recipe.index}"
        if isinstance(recipe, Entry) and (read := place_text(recipe.place)) is not None:
            return read
        if isinstance(recipe, Make) and recipe.cls is tuple:
            return f"({''.join(f'{self._recipe(r, made)}, ' for r in recipe.items)})"
        if isinstance(recipe, New) and recipe.cls is list and not recipe.fields:
            return f"[{', '.join(self._recipe(r, made) for r in recipe.items or ())}]"
        if isinstance(recipe, New) and recipe.cls is dict and not recipe.fields:
            rows = [(self._recipe(k, made), self._recipe(v, made)) for k, v in recipe.pairs or ()]
            return f"{{{', '.join(f'{k}: {v}' for k, v in rows)}}}"
        refuse("an object of the result", "the result", getattr(recipe, "cls", type(recipe)))
