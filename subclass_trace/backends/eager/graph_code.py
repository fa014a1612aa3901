"""Straight-line code for dense graphs: an fx graph goes in, a Python function over one list of
inputs comes out.

The convention is *boxed*: the caller passes a list and keeps no reference to its items; the
function empties the list and deletes every value, inputs too, right after its last use. This is
what keeps the peak memory of a backward low: a saved activation is freed when the gradient that
needs it is done.

    >>> graph = torch.fx.Graph()
    >>> x, y = graph.placeholder("x"), graph.placeholder("y")
    >>> x.meta["val"], y.meta["val"] = torch.ones(2), torch.ones(2)
    >>> total = graph.call_function(torch.ops.aten.add.Tensor, (x, y))
    >>> total.meta["val"] = torch.ones(2)
    >>> double = graph.call_function(torch.ops.aten.mul.Tensor, (total, 2.0))
    >>> _ = graph.output((double, None))
    >>> boxed = compile_graph(fx.GraphModule(torch.nn.Module(), graph))
    >>> print(boxed.source)
    def graph(inputs):
        (x, y) = inputs
        inputs.clear()
        add_tensor = torch_add(x, y)  # aten.add.Tensor
        del x, y
        mul_tensor = torch_mul(add_tensor, 2.0)  # aten.mul.Tensor
        del add_tensor
        return (mul_tensor, None)
    >>> boxed([torch.ones(2), torch.ones(2)])
    (tensor([4., 4.]), None)

The graph is to be run without gradients; the caller sets that state.
"""

from __future__ import annotations

import builtins
import itertools
import keyword
import linecache
import math
import operator
import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.fx as fx

from ...capture.graphs import where
from ...errors import UnsupportedError, VerificationError
from ...partition.half import Half
from ...torch_api.kinds import SYM_TYPES
from ...torch_api.operators import OpOverload
from .bindings import bind_call, proved
from .branches import branches
from .views import ViewCall, inputs_of, spare_views

_file_numbers = itertools.count()


def display(
    value: list[Any] | tuple[Any, ...] | dict[Any, Any] | slice, code: Callable[[Any], str]
) -> str:
    """The source of a container, each item written by ``code``.

    >>> inner = lambda v: display(v, repr) if isinstance(v, (tuple, dict)) else repr(v)
    >>> display([1, (2,), {"k": slice(3)}], inner)
    "[1, (2,), {'k': slice(None, 3, None)}]"
    """
    if isinstance(value, list):
        return f"[{', '.join(map(code, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(code, value))}{',' * (len(value) == 1)})"
    if isinstance(value, slice):
        return f"slice({', '.join(map(code, (value.start, value.stop, value.step)))})"
    return f"{{{', '.join(f'{code(k)}: {code(v)}' for k, v in value.items())}}}"


@dataclass(frozen=True, eq=False)
class BoxedGraph:
    """A compiled dense graph.

    Attributes:
        function: takes a list of inputs, empties it, and returns the tuple of flat outputs.
        source: the text of ``function``. Tracebacks show its lines.
        name: the name of ``function``.
    """

    function: Callable[[list[Any]], tuple[Any, ...]]
    source: str
    name: str
    _boxed_call: ClassVar[bool] = True

    def __call__(self, inputs: list[Any]) -> tuple[Any, ...]:
        return self.function(inputs)


def compile_graph(gm: fx.GraphModule, *, name: str = "graph") -> BoxedGraph:
    """Generate and compile the code of a dense graph.

    All nodes are run, in their order, but for views that can be spared. Attributes of ``gm`` are
    read now, once. The text depends on the graph alone.

    Args:
        gm: a graph of placeholders, attributes and function calls, with example values in
            ``meta["val"]``.
        name: the name of the function.

    Raises:
        VerificationError: an argument of a node is a symbolic size that is not a node of the graph.
    """
    body = [n for n in gm.graph.nodes if n.op not in ("placeholder", "output")]
    inputs = [n for n in gm.graph.nodes if n.op == "placeholder"]
    return compile_half(
        Half(gm, inputs, body, list(_flat(gm.graph.output_node().args[0])), {}), name=name
    )


def compile_eager(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> BoxedGraph:
    """Every operation of the graph as one call, with the results of eager mode bit for bit."""
    return compile_graph(gm, name="backward" if gm.meta.get("is_backward") else "forward")


def compile_half(half: Half, *, name: str, by_autograd: bool = False) -> BoxedGraph:
    """`compile_graph` for one of the two programs of a partition. ``by_autograd``: each view leaves
    its own history."""
    for node in half.body:
        if node.op in ("call_method", "call_module"):
            raise UnsupportedError(
                f"the graph holds a {node.op} node",
                code="graph-node",
                path=node.name,
                fix="trace to aten operations",
            )
    body, merged, calls = half.body, half.merged, dict[fx.Node, ViewCall]()
    if not by_autograd:
        body, merged, calls = spare_views(body, half.outputs, merged, frozenset(half.inputs))
    body, guards = branches(body, half.outputs, merged, calls)
    writer = _Writer(Half(half.owner, half.inputs, body, half.outputs, merged), calls, name, guards)
    source = writer.write()
    function = function_of(source, name, writer.namespace, f"{name} graph")
    del writer.namespace[name]  # it is no cycle
    function._boxed_call = True
    return BoxedGraph(function, source, name)


def proofs_of(half: Half, *, by_autograd: bool = False) -> list[tuple[Any, str, str]]:
    """(operation, pattern, where its function was found), for the calls of a program that was
    compiled: see `bindings`."""
    body, merged, calls = half.body, half.merged, dict[fx.Node, ViewCall]()
    if not by_autograd:
        body, merged, calls = spare_views(body, half.outputs, merged, frozenset(half.inputs))
    writer = _Proofs(Half(half.owner, half.inputs, body, half.outputs, merged), calls, "graph")
    writer.write()
    return list(writer.found)


def function_of(text: str, name: str, namespace: dict[str, Any], what: str) -> Any:
    """The function ``name`` that this source defines in a namespace. Tracebacks show its lines."""
    file = f"<subclass_trace {what} {next(_file_numbers)}>"  # no name of another source
    exec(compile(text, file, "exec"), namespace)  # our own text, made just now
    function = namespace[name]
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    weakref.finalize(function, linecache.cache.pop, file, None)
    return function


# ---- text
class _Writer:
    """Writes one function. Names are those of the nodes, made unique among everything the function
    mentions."""

    def __init__(
        self,
        half: Half,
        calls: Mapping[fx.Node, ViewCall],
        name: str,
        guards: Mapping[fx.Node, fx.Node] | None = None,
    ) -> None:
        """``guards``: of nodes that run in some calls only, see `branches`."""
        self.half, self.calls, self.name, self.guards = half, calls, name, guards or {}
        self.lines: list[str] = []
        self._guard: fx.Node | None = None  # of the last line
        self.variables: dict[fx.Node, str] = {}
        self.namespace: dict[str, Any] = {}  # the globals of the function
        self._globals: dict[Any, str] = {}
        self._taken = {name, "inputs", *keyword.kwlist, *dir(builtins)}

    def write(self) -> str:
        """The source of the whole list."""
        half = self.half
        order = [n for n in half.body if n.op != "get_attr"]
        # variables first: they have the better right to their names
        for node in (*half.inputs, *order):
            self.variables[node] = self._fresh(node.name)
        for node in half.body:
            if node.op == "get_attr":
                self.variables[node] = self._global(_attribute(half.owner, node), node.name)
        for node, other in half.merged.items():
            if other in self.variables:
                self.variables[node] = self.variables[other]
        deaths, used = self._deaths(order)
        self.lines.append(f"def {self.name}(inputs):")
        if half.inputs:
            self.lines.append(
                f"    {display(tuple(half.inputs), self.variables.__getitem__)} = inputs"
            )
        self.lines.append("    inputs.clear()")
        given: list[fx.Node] = []  # what was there before a branch, and dies in it
        for step in (None, *order):
            guard, dead = None if step is None else self.guards.get(step), deaths.get(step, [])
            if guard is not self._guard:
                self._otherwise(given)
                given = []
            if step is not None:
                self._line(self._call(step, self.variables[step] if step in used else None), guard)
            if dead:
                self._line(f"del {', '.join(self.variables[n] for n in dead)}", guard)
            given += [n for n in dead if guard is not None and self.guards.get(n) is not guard]
        self._otherwise(given)
        self.lines.append(
            f"    return {display(tuple(half.outputs), lambda r: self._text(r, None))}"
        )
        return "\n".join(self.lines)

    def _deaths(
        self, order: list[fx.Node]
    ) -> tuple[dict[fx.Node | None, list[fx.Node]], set[fx.Node]]:
        """Which local values die after which node, under None those that nothing uses; and the
        values that something uses."""
        merged = self.half.merged
        kept = {merged.get(r, r) for r in self.half.outputs if isinstance(r, fx.Node)}
        last: dict[fx.Node, fx.Node | None] = dict.fromkeys(self.half.inputs)
        for node in order:
            guard = self.guards.get(node)
            for named in (*inputs_of(node, self.calls), *([] if guard is None else [guard])):
                used = merged.get(named, named)
                # a saved constant is an input of the backward
                if used.op != "get_attr" or used in last:
                    last[used] = node
        deaths: dict[fx.Node | None, list[fx.Node]] = {}
        for value, by in last.items():
            if value not in kept:
                deaths.setdefault(by, []).append(value)
        return deaths, kept | {value for value, by in last.items() if by is not None}

    def _call(self, node: fx.Node, variable: str | None) -> str:
        """One line that calls an operation; its value gets a name if anything uses it."""
        call, target = self.calls.get(node), node.target
        if target is operator.getitem:
            text, comment = (
                f"{self._text(node.args[0], node)}[{self._text(node.args[1], node)}]",
                "",
            )
        else:
            if call is None:
                text, name = self._called(node, target, node.args, node.kwargs)
            else:
                target = call.target
                text, name = self._called(node, target, (call.origin, *call.rest), {})
                if call.chain:
                    origin = made = self.variables[call.origin]
                    for view in call.chain:
                        made, _ = self._called(
                            node, view.target, view.args, view.kwargs, first=made
                        )
                    text = f"{text} if {origin}.is_contiguous() else {made}"
            line = where(node)  # for tracebacks, which show it
            called = target if isinstance(target, OpOverload) else name
            comment = f"  # {called}" + (f", {line}" if line else "")
        return f"{text}{comment}" if variable is None else f"{variable} = {text}{comment}"

    def _line(self, text: str, guard: fx.Node | None) -> None:
        """A line, in a branch where it runs in some calls only."""
        if guard is not None and guard is not self._guard:
            self.lines.append(f"    if not {self.variables[guard]}:")
        self._guard = guard
        self.lines.append(f"    {'' if guard is None else '    '}{text}")

    def _otherwise(self, values: list[fx.Node]) -> None:
        """After a branch: where it did not run, these die as well."""
        if values:
            self.lines += [
                "    else:",
                f"        del {', '.join(self.variables[n] for n in values)}",
            ]

    def _called(
        self, node: fx.Node, target: Any, given: Any, named: Any, first: str | None = None
    ) -> tuple[str, str]:
        """The text of a call and what it calls; ``first`` in the place of its first argument."""
        binding = bind_call(target, given, named)
        args = [self._text(a, node) for a in given[first is not None :]]
        args += [f"{k}={self._text(v, node)}" for k, v in named.items()]
        args = args if first is None else [first, *args]
        return f"{self._global(binding.callable, binding.name)}({', '.join(args)})", binding.name

    # ---- arguments
    def _text(self, arg: Any, user: fx.Node | None) -> str:
        if isinstance(arg, fx.Node):
            return self.variables[arg]
        if type(arg) in (int, bool, str, type(None)):
            return repr(arg)
        if type(arg) is float and math.isfinite(arg):
            return repr(arg)
        if isinstance(arg, (list, tuple, dict, slice)):
            return display(arg, lambda a: self._text(a, user))
        if isinstance(arg, SYM_TYPES):
            what = "a symbolic size is an argument of a node, but no node of the graph computes it"
            raise VerificationError(what, path="output" if user is None else user.name, got=arg)
        named = isinstance(arg, (*_NAMED, float, complex))
        return self._global(
            arg, str(arg).replace("-", "minus_") if named else f"{type(arg).__name__}_constant"
        )

    def _global(self, value: Any, name: str) -> str:
        """The name of a global that holds ``value``."""
        key = (
            (type(value), repr(value))
            if isinstance(value, (*_NAMED, float, complex))
            else id(value)
        )
        if key not in self._globals:
            self._globals[key] = self._fresh(name)
            self.namespace[self._globals[key]] = value  # also keeps the id in the key alive
        return self._globals[key]

    def _fresh(self, name: str) -> str:
        base = (
            re.sub(r"\W+", "_", name.removeprefix("torch._C._")).strip("_")
            if not name.isidentifier()
            else name
        )
        base += "_" if name.endswith("_") and not base.endswith("_") else ""
        base = base if base.isidentifier() else f"value_{base}"
        candidate = base
        for number in itertools.count(1):
            if candidate not in self._taken:
                break
            candidate = f"{base}_{number}"
        self._taken.add(candidate)
        return candidate


class _Proofs(_Writer):
    """Notes what was proved, while it writes."""

    def __init__(self, half: Half, calls: Mapping[fx.Node, ViewCall], name: str) -> None:
        super().__init__(half, calls, name)
        self.found: dict[tuple[Any, str, str], None] = {}

    def _called(
        self, node: fx.Node, target: Any, given: Any, named: Any, first: str | None = None
    ) -> tuple[str, str]:
        made = super()._called(node, target, given, named, first)
        if (known := proved(target, given, named)) is not None:
            self.found[(target, *known)] = None
        return made


_NAMED = (torch.dtype, torch.device, torch.layout, torch.memory_format)


def _attribute(gm: fx.GraphModule, node: fx.Node) -> Any:
    return operator.attrgetter(str(node.target))(gm)


def _flat(result: Any) -> Iterator[Any]:
    """The items of nested lists, tuples and dicts."""
    if isinstance(result, dict):
        result = tuple(result.values())
    if isinstance(result, (list, tuple)):
        for item in result:
            yield from _flat(item)
    else:
        yield result
