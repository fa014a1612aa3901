"""A graph as recordings, and what stands between them.

In: a dense graph whose inputs and outputs have descriptors. Out: a callable. Operations that no
recording can have (they wait for the device, have another device's memory, or an effect) cut the
graph: each run of others is a `Graphed`.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx as fx

from ...capture.effects import has_effects
from ...capture.graphs import output_args, placeholders, where
from ...capture.writes import written_arguments
from ...plan import SavedValue
from ...plan.descriptors import Input, NewContents
from ...torch_api.graphs import graph_module
from ...torch_api.kinds import SYM_TYPES, storage_key
from ...torch_api.lines import location_text
from ...torch_api.memory import address, part_of, with_version_of
from ...torch_api.operators import OpOverload, indexes_by_numbers, op_schema
from ...torch_api.symbols import is_data_dependent
from ...torch_api.trees import pytree, tree_map_only
from .buffers import fresh_memory, is_computed_with
from .graphed import Graphed
from .padding import Padding
from .pool import Pool
from .recording import Interface

Tensor = torch.Tensor
Boxed = Callable[[list[Any]], Sequence[Any]]
#: (graph module, example inputs) -> a boxed callable
Inner = Callable[[fx.GraphModule, Sequence[Any]], Boxed]
_WAITS = {
    torch.Tag.data_dependent_output: "it waits for a value from the device",
    torch.Tag.dynamic_output_shape: "the size of its result is a value from the device",
    torch.Tag.cudagraph_unsafe: "it says that it cannot be recorded",
}


def compile_graphed(
    gm: fx.GraphModule,
    examples: Sequence[Any],
    *,
    inner: Inner,
    pool: Pool,
    role: str,
    opaque: bool = False,
) -> Boxed:
    """Compile a graph: ``inner`` makes a boxed callable of each part.

    Args:
        role: "forward", "backward" or "inference".
        opaque: see `Work`.
    """
    graph, outputs = gm.graph, output_args(gm.graph)
    inputs, program = placeholders(graph), _Program(gm, inner, pool, opaque)
    kinds = {n: _input_kind(n, role) for n in inputs}
    number = {n: k for k, n in enumerate(inputs) if kinds[n] == "number"}
    described = [*gm.meta.get("descriptors", ()), *[None] * len(outputs)]
    gives = [number.get(o, _output_kind(d)) for o, d in zip(outputs, described, strict=False)]
    if program.outside or any(n.op != "placeholder" for n in program.idle):
        return _Parts(program, kinds, gives)
    plain = role == "inference" and not written_inputs(graph) and "contents" not in gives
    padding = Padding.of(gm, plain) if pool.settings.sizes else None
    group = object() if role == "backward" else None
    return program.graphed(gm, list(examples), [kinds[n] for n in inputs], gives, group, padding)


class _Program:
    """A graph that is compiled.

    Attributes:
        outside: operations that are in no recording -> why.
        idle: numbers of which no tensor is computed.
    """

    def __init__(self, gm: fx.GraphModule, inner: Inner, pool: Pool, opaque: bool) -> None:
        self.gm, self.inner, self.pool, self.opaque = gm, inner, pool, opaque
        self.outside = {n: why for n in gm.graph.nodes if (why := _unfit(n, pool)) is not None}
        for node, why in self.outside.items():
            at = where(node)
            pool.outside[f"{node.target}{f' at {location_text(at)}' if at else ''}: {why}"] = None
        read = set[fx.Node]()
        for n in reversed(gm.graph.nodes):
            if n.op != "output" and (n in read or not isinstance(n.meta.get("val"), SYM_TYPES)):
                read.update(n.all_input_nodes)
        values = {n: n.meta.get("val") for n in gm.graph.nodes}
        self.idle = {n for n, v in values.items() if isinstance(v, SYM_TYPES) and n not in read}

    def graphed(
        self,
        gm: fx.GraphModule,
        examples: list[Any],
        kinds: list[str],
        gives: Sequence[str | int],
        group: object,
        padding: Padding | None = None,
    ) -> Graphed:
        """A part, or all of it."""
        nodes = placeholders(gm.graph)
        known = [k for k, n in enumerate(nodes) if _has_symbols(n.meta.get("val"))]
        known += [k for k, n in enumerate(nodes) if kinds[k] == "number" and n not in self.idle]
        leaves = [x for n in gm.graph.nodes for x in pytree.tree_leaves((n.args, n.kwargs))]
        generators = dict.fromkeys(x for x in leaves if isinstance(x, torch.Generator))
        written = frozenset(written_inputs(gm.graph))
        rest = tuple(enumerate(gives)), self.opaque, tuple(generators)
        face = Interface(tuple(kinds), tuple(known), written, *rest)
        return Graphed(self.inner(gm, examples), face, self.pool, group, padding)


def _has_symbols(value: Any) -> bool:
    return isinstance(value, Tensor) and bool(_symbols(value))


def _input_kind(node: fx.Node, role: str) -> str:
    what = node.meta.get("descriptor")
    if not isinstance(node.meta.get("val"), Tensor):
        return "number"
    if isinstance(what, Input) and what.is_static:
        return "static"
    saved = role == "backward" and isinstance(what, Input) and is_computed_with(node.meta["val"])
    return "pooled" if saved or isinstance(what, SavedValue) else "copied"


def _output_kind(what: Any) -> str:
    if isinstance(what, NewContents):
        return "contents"
    return "pooled" if isinstance(what, SavedValue) else "result"


def written_inputs(graph: fx.Graph) -> set[int]:
    """The inputs whose memory an operation writes, as its schema says; lists of tensors too."""
    owners: dict[int | None, set[int]] = {}
    for k, node in enumerate(placeholders(graph)):
        owners.setdefault(storage_key(node.meta.get("val")), set()).add(k)
    found = set[int]()
    for node in graph.nodes:
        if isinstance(node.target, OpOverload) and op_schema(node.target).is_mutable:
            for written in written_arguments(node.target, node.args, node.kwargs, fx.Node):
                if (key := storage_key(written.meta.get("val"))) is not None:
                    found |= owners.get(key, set())
    return found


# ---- where a graph is cut
def _unfit(node: fx.Node, pool: Pool) -> str | None:
    if node.op != "call_function":
        return None
    target, near = node.target, (node, *node.all_input_nodes)
    if isinstance(target, OpOverload):
        for tag in target.tags:
            if tag in _WAITS and not indexes_by_numbers(target, _values(node.args)):
                return _WAITS[tag]
        if "c10d" in target.namespace:
            return "it needs a process group, which may end before a recording does"
        if has_effects(target):
            return "it is called for what it does"
    elif target is not operator.getitem and getattr(target, "__module__", "") != "_operator":
        if any(isinstance(v, Tensor) for v in pytree.tree_leaves(node.meta.get("val"))):
            return "it is no plain operation"
    for n in near:
        for v in pytree.tree_leaves(n.meta.get("val")):
            numbers = (*v.shape, *v.stride()) if isinstance(v, Tensor) else (v,)
            if any(isinstance(m, SYM_TYPES) and is_data_dependent(m) for m in numbers):
                return "a size or number is a value from the device"
            if isinstance(v, Tensor) and pool.recorder.on_host(v):
                if n.op != "placeholder" or v.dim():
                    return "it works on memory of the host"
    return None


def _values(args: Any) -> Any:
    return tree_map_only(fx.Node, lambda n: n.meta.get("val"), args)


class _Parts:
    """A graph in parts, each a run of nodes in their order. Boxed."""

    _boxed_call = True

    def __init__(
        self, program: _Program, kinds: dict[fx.Node, str], gives: Sequence[str | int]
    ) -> None:
        graph, self.pool, self.gives = program.gm.graph, program.pool, gives
        self.inputs, self.outputs = placeholders(graph), output_args(graph)
        runs = _runs(graph, {*program.outside, *program.idle})
        last = {n: k for k, (run, _) in enumerate(runs) for m in run for n in m.all_input_nodes}
        kept = {o for o in self.outputs if isinstance(o, fx.Node)}
        self.parts: list[tuple[list[fx.Node], list[fx.Node], list[fx.Node], Boxed]] = []
        for k, (run, fit) in enumerate(runs):
            out = [n for n in run if n in kept or last.get(n, k) > k]
            part, taken = _part(program.gm, run, out)
            examples = [n.meta.get("val") for n in taken]
            if fit:
                known = [kinds.get(n, "copied") for n in taken]
                inside = ["inside"] * len(out)
                call: Boxed = program.graphed(part, examples, known, inside, object())
                kinds |= dict.fromkeys(out, "pooled")
            else:
                call = program.inner(part, examples)
            kinds |= {n: "number" for n in out if not isinstance(n.meta.get("val"), Tensor)}
            gone = [n for n, at in last.items() if at == k and n not in kept]
            self.parts.append((taken, out, gone, call))
        self.any_fit = any(fit for _, fit in runs)

    def __call__(self, given: list[Any]) -> list[Any]:
        """Serve a call."""
        if not self.any_fit:
            self.pool.say("a region runs without a CUDA graph: nothing of it can be recorded")
        values: dict[Any, Any] = dict(zip(self.inputs, given, strict=True))
        given.clear()
        for taken, out, gone, call in self.parts:
            values.update(zip(out, call([values[n] for n in taken]), strict=True))
            for n in gone:
                values.pop(n, None)
        found = [values[o] if isinstance(o, fx.Node) else o for o in self.outputs]
        values.clear()
        clones: dict[int, tuple[Tensor, Tensor]] = {}
        return [self._own(v, kind, clones) for v, kind in zip(found, self.gives, strict=True)]

    def _own(self, value: Any, kind: str | int, clones: dict[int, tuple[Tensor, Tensor]]) -> Any:
        """A result does not stay in the pool; two that share memory do so afterwards. What is saved
        has the version counter of a result."""
        at = address(value) if isinstance(value, Tensor) and type(kind) is str else 0
        if at == 0 or (by := self.pool.memory.get(at)) is None or not by.keeps(at):
            return value
        if kind != "result":
            return with_version_of(value, clones[at][1]) if at in clones else value
        if at not in clones:
            clones[at] = value, fresh_memory(value)
            return clones[at][1]
        first, made = clones[at]
        return part_of(value, first)(made)


def _runs(graph: fx.Graph, outside: set[fx.Node]) -> list[tuple[list[fx.Node], bool]]:
    """Runs of nodes, and whether each is recorded: one operation alone is not worth it."""
    fit: dict[fx.Node, bool] = {}
    for n in graph.nodes:
        if n.op not in ("placeholder", "output", "get_attr"):
            of = n.args[0] if n.target is operator.getitem else n
            fit[n] = fit.get(of, of not in outside)
    for _, group in itertools.groupby(fit, fit.__getitem__):
        if len(run := list(group)) == 1:
            fit[run[0]] = False
    return [(list(run), ok) for ok, run in itertools.groupby(fit, fit.__getitem__)]


def _part(
    gm: fx.GraphModule, run: Sequence[fx.Node], out: Sequence[fx.Node]
) -> tuple[fx.GraphModule, list[fx.Node]]:
    """A graph of its own, and what it takes: the sizes of its tensors, too."""
    made = set(run)
    given = dict.fromkeys(n for m in run for n in m.all_input_nodes if n not in made)
    read = {s for n in (*run, *given) for s in _symbols(n.meta.get("val"))}
    sizes = [n for n in placeholders(gm.graph) if isinstance(n.meta.get("val"), torch.SymInt)]
    taken = [n for n in sizes if _symbols(n.meta["val"]) & read and n not in given]
    taken += [n for n in given if n.op != "get_attr"]
    graph = fx.Graph()
    copies = {n: graph.placeholder(n.name) for n in taken}
    copies |= {n: graph.node_copy(n) for n in given if n.op == "get_attr"}
    for n, copy in copies.items():
        copy.meta = dict(n.meta)
    for n in run:
        copies[n] = graph.node_copy(n, copies.__getitem__)
    graph.output(tuple(copies[n] for n in out))
    return graph_module(gm, graph), taken


def _symbols(value: Any) -> set[Any]:
    numbers = (*value.shape, *value.stride()) if isinstance(value, Tensor) else (value,)
    return {s for n in numbers if isinstance(n, torch.SymInt) for s in n.node.expr.free_symbols}
