"""Programs as data: lists of nodes in their order, each with its operation by name, its arguments,
and what its value is like.

An argument is named by how many nodes before it stands, so that equal layers are equal text; an
output by its number. Values
are written as layouts: sizes, strides, dtype, device, with expressions over symbols where they have
some; `GraphReader` makes fake tensors of them, so that a back end compiles what it would have
compiled after a trace.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx as fx

from ..backends.eager.bindings import learn
from ..backends.eager.graph_code import proofs_of
from ..errors import DescriptionError
from ..partition.half import Half
from ..runtime.sizes import to_expr
from ..state.place import Roots
from ..subclass.spec import SizeExpr
from ..torch_api.exact_numbers import is_at_most, is_equal, is_less, is_other
from ..torch_api.fakes import fake_like, fake_mode, symbolic_number
from ..torch_api.graphs import graph_module
from ..torch_api.kinds import SYM_TYPES, is_fake
from ..torch_api.operators import OpOverload, StandIn
from ..torch_api.ranks import group_named
from ..torch_api.symbols import ShapeEnv, define_symbol, symbol_bounds
from .checks import is_name
from .objects import name_of
from .places import PlaceReader, PlaceWriter

#: what of a node's metadata is kept besides its value: what a back end asks
_KEPT = ("is_step", "left_out")
#: targets of nodes that are no operations of torch's
_PYTHON = {
    f.__name__: f
    for f in (
        *(
            operator.getitem,
            operator.add,
            operator.sub,
            operator.mul,
            operator.truediv,
            operator.floordiv,
            operator.mod,
        ),
        *(
            operator.pow,
            operator.neg,
            operator.pos,
            operator.abs,
            operator.eq,
            operator.ne,
            operator.lt,
            operator.le,
        ),
        *(
            operator.gt,
            operator.ge,
            operator.and_,
            operator.or_,
            operator.xor,
            operator.not_,
            operator.index,
            operator.invert,
        ),
    )
}
_OF_TORCH = {
    name: getattr(torch, name) for name in dir(torch) if name.startswith(("sym_", "_sym_"))
}
_OF_NUMBERS = {f.__name__: f for f in (is_equal, is_other, is_less, is_at_most)}
_BUILT_IN = {"round": round, "float": float, "int": int, "bool": bool, "pow": pow, "divmod": divmod}
_MATH = {name: f for name, f in vars(math).items() if callable(f)}
_TABLES = {
    "python": _PYTHON,
    "torch": _OF_TORCH,
    "built-in": _BUILT_IN,
    "math": _MATH,
    "numbers": _OF_NUMBERS,
}


class GraphWriter(PlaceWriter):
    """Writes halves of a partition. ``symbols``: those that stand in values, with what is known of
    them."""

    def __init__(self, call: Roots) -> None:
        super().__init__(call)
        self.symbols: dict[str, Any] = {}

    def half(self, half: Half, path: str) -> Any:
        """One program."""
        if not half.is_plain:
            half = Half.of_module(half.module)
        numbers: dict[fx.Node, int] = {}
        inputs = []
        for node in half.inputs:
            numbers[node] = len(numbers)
            inputs.append([node.name, self.example(node.meta.get("val"))])
        for node, other in half.merged.items():
            if other in numbers:
                numbers[node] = numbers[other]

        def number(node: fx.Node) -> int:
            return numbers[half.merged.get(node, node)]

        body = []
        for k, node in enumerate(half.body, len(half.inputs)):
            numbers[node] = k
            body.append(self._node(node, half, _before(number, k), f"{path}.{node.name}"))
        outputs = [self.argument(o, number, f"{path}.output") for o in half.outputs]
        return {"inputs": inputs, "body": body, "outputs": outputs}

    def proofs(self, halves: Iterable[tuple[Half, bool]]) -> Any:
        """What was proved of the calls of programs (with: is it run by autograd?)."""
        found = {
            row: None
            for half, by_autograd in halves
            for row in proofs_of(half, by_autograd=by_autograd)
        }
        return [[name_of(op), pattern, where] for op, pattern, where in found]

    def _node(self, node: fx.Node, half: Half, number: Callable[[fx.Node], int], path: str) -> Any:
        kept = {
            name: node.meta[name] for name in _KEPT if type(node.meta.get(name)) in (int, str, bool)
        }
        if lines := str(node.meta.get("stack_trace") or "").splitlines():
            last = max(
                (k for k, line in enumerate(lines) if line.startswith("  File ")), default=None
            )
            kept |= {} if last is None else {"stack_trace": "\n".join(lines[last:])}
        if node.op == "get_attr":
            held = operator.attrgetter(str(node.target))(half.owner)
            known = (
                self._nested(held, path)
                if isinstance(held, fx.GraphModule)
                else self.value(held, path)
            )
            return ["constant", node.name, known, kept]
        args = [self.argument(a, number, path) for a in node.args]
        named = {k: self.argument(v, number, path) for k, v in node.kwargs.items()}
        self._name_groups(node, args, named)
        return [
            self._target(node.target, path),
            node.name,
            args,
            named,
            self.example(node.meta.get("val")),
            kept,
        ]

    def _name_groups(self, node: fx.Node, args: list[Any], named: dict[str, Any]) -> None:
        """A group is told by a name, which is another one in other processes."""
        for held, key in group_arguments(node, args, named):
            if (group := group_named(held[key])) is not None:
                held[key] = ["group name", self.group(group)]

    def _nested(self, module: fx.GraphModule, path: str) -> Any:
        """The graph of a branch: its result has a structure of its own."""
        inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
        body = [n for n in module.graph.nodes if n.op not in ("placeholder", "output")]
        half = Half(module, inputs, body, [], {})
        numbers = {node: k for k, node in enumerate((*half.inputs, *half.body))}
        result = module.graph.output_node().args[0]
        return ["graph", self.half(half, path), self.argument(result, numbers.__getitem__, path)]

    def _target(self, target: Any, path: str) -> Any:
        for kind, table in _TABLES.items():
            name = getattr(target, "__name__", "")
            if table.get(name) is target:
                return [kind, name]
        name = name_of(target)
        if name is None or name[0] not in ("op", "higher"):
            return self.gap(path, f"an operation that no name leads to: {target!r}")
        return name

    def argument(self, arg: Any, number: Callable[[fx.Node], int], path: str) -> Any:
        """An argument of a node."""
        if isinstance(arg, fx.Node):
            return ["node", number(arg)]
        if isinstance(arg, (list, tuple)):
            return [
                "list" if isinstance(arg, list) else "tuple",
                *(self.argument(a, number, path) for a in arg),
            ]
        if isinstance(arg, slice):
            return [
                "slice",
                *(self.argument(a, number, path) for a in (arg.start, arg.stop, arg.step)),
            ]
        if isinstance(arg, dict):
            return ["dict", *([k, self.argument(v, number, path)] for k, v in arg.items())]
        return self.value(arg, path)

    def example(self, value: Any) -> Any:
        """What the value of a node is like; None where that is not known."""
        if isinstance(value, SYM_TYPES):
            return ["number", *self._symbolic(value)]
        if isinstance(value, torch.Tensor):
            if value.layout is not torch.strided or not is_fake(value):
                return None
            numbers = [
                [self._size(n) for n in ns]
                for ns in (value.shape, value.stride(), (value.storage_offset(),))
            ]
            kind = [str(value.dtype).removeprefix("torch."), str(value.device), *numbers]
            return ["tensor", *kind, [value.is_conj(), value.is_neg()]]
        if isinstance(value, (list, tuple)):
            return ["list" if isinstance(value, list) else "tuple", *map(self.example, value)]
        return value if type(value) in (int, float, bool) else None

    def _size(self, n: Any) -> Any:
        if not isinstance(n, torch.SymInt):
            return n
        made = to_expr(n)
        return self._symbolic(n) if isinstance(made, SizeExpr) else made

    def _symbolic(self, n: Any) -> Any:
        kind = {torch.SymInt: "int", torch.SymFloat: "float", torch.SymBool: "bool"}
        name = next(text for cls, text in kind.items() if isinstance(n, cls))
        for symbol in n.node.expr.free_symbols:
            if symbol.name not in self.symbols:
                bounds = symbol_bounds(n.node.shape_env, symbol)
                self.symbols[symbol.name] = [self.value(symbol), *bounds]
        hint = n.node.hint
        return [name, self.value(n.node.expr), hint if type(hint) in (int, float, bool) else None]


def group_arguments(
    node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[Any, Any]]:
    """Which of these arguments of a node are groups of ranks: what holds one, and its key there."""
    if isinstance(node.target, OpOverload):
        for k, argument in enumerate(node.target._schema.arguments):
            if "group" in argument.name and k < len(args):
                yield args, k
            elif "group" in argument.name and argument.name in kwargs:
                yield kwargs, argument.name


def _before(number: Callable[[fx.Node], int], k: int) -> Callable[[fx.Node], int]:
    return lambda node: number(node) - k


class GraphReader(PlaceReader):
    """Reads programs; all of one description share a fake mode.

    Args:
        fakes: values are fake tensors, as a compiler wants them, also where sizes are plain
            numbers: stand-ins do for the eager back end, and a fake mode imports Dynamo.
    """

    def __init__(self, data: Any, call: Roots, fakes: bool, constants: Any = None) -> None:
        self.fakes = fakes
        self._mode: Any = None
        super().__init__(data, call, constants)

    def define(self, symbols: Any) -> None:
        """Let the fake mode know of the symbols of a description."""
        self.fakes = self.fakes or bool(symbols)
        for symbol, *bounds in symbols.values():
            define_symbol(self.mode.shape_env, self.value(symbol), *bounds)

    def learn(self, proofs: Any) -> None:
        """What was proved need not be proved again."""
        for name, pattern, where in proofs:
            op = self.value(["named", *name])
            if not isinstance(op, OpOverload):
                raise DescriptionError("no operation of a graph", path="proofs", got=str(name)[:80])
            learn(op, str(pattern), where)

    def half(self, data: Any) -> Half:
        """One program, as a list of nodes of a graph of its own."""
        return self._graph(data)[0]

    def _graph(self, data: Any) -> tuple[Half, list[fx.Node]]:
        graph, owner = fx.Graph(), torch.nn.Module()
        nodes: list[fx.Node] = []
        for name, example in data["inputs"]:
            node = graph.placeholder(name)
            node.meta["val"] = self.example(example)
            nodes.append(node)
        count = len(nodes)
        for entry in data["body"]:
            nodes.append(self._node(graph, owner, nodes, *entry))
        outputs = [self._argument(o, nodes) for o in data["outputs"]]
        return Half(graph_module(owner, graph), nodes[:count], nodes[count:], outputs, {}), nodes

    def _nested(self, data: Any, result: Any) -> fx.GraphModule:
        half, nodes = self._graph(data)
        graph = nodes[0].graph if nodes else fx.Graph()
        graph.output(self._argument(result, nodes))
        return graph_module(half.owner, graph)

    def _node(
        self,
        graph: fx.Graph,
        owner: torch.nn.Module,
        nodes: list[fx.Node],
        target: Any,
        name: str,
        *rest: Any,
    ) -> fx.Node:
        if target == "constant":
            data, kept = rest
            held = (
                self._nested(*data[1:])
                if type(data) is list and data[:1] == ["graph"]
                else self.value(data)
            )
            attribute = f"_constant{len(nodes)}"
            setattr(owner, attribute, held)
            node = graph.create_node("get_attr", attribute, (), {}, name)
            node.meta["val"] = self._fake(held)
        else:
            args, named, example, kept = rest
            given = tuple(self._argument(a, nodes) for a in args)
            keywords = {str(k): self._argument(v, nodes) for k, v in named.items()}
            if not all(map(is_name, keywords)):
                raise DescriptionError("no keyword of an operation", path=f"graph.{name}")
            node = graph.create_node("call_function", self._target(target), name=name)
            node.args = given  # given to create_node, they would be walked through once more
            if keywords:
                node.kwargs = keywords
            node.meta["val"] = self.example(example)
        if node.name != name:
            node.name = name
        node.meta.update({str(k): v for k, v in kept.items() if k in (*_KEPT, "stack_trace")})
        return node

    def _target(self, name: Any) -> Any:
        kind, *rest = name
        table = _TABLES.get(kind)
        if table is not None:
            return table[rest[0]]
        if kind not in ("op", "higher"):
            raise DescriptionError("no operation of a graph", path="graph", got=str(name)[:80])
        return self.value(["named", *name])

    def _argument(self, data: Any, nodes: list[fx.Node]) -> Any:
        if type(data) is not list:
            return self.value(data)
        tag, *rest = data
        if tag == "node":
            return nodes[rest[0]]
        if tag in ("list", "tuple"):
            items = [self._argument(a, nodes) for a in rest]
            return items if tag == "list" else tuple(items)
        if tag == "slice":
            return slice(*(self._argument(a, nodes) for a in rest))
        if tag == "dict":
            return {k: self._argument(v, nodes) for k, v in rest}
        if tag == "group name":
            return self.value(rest[0]).group_name
        return self.value(data)

    # ---- values
    def example(self, data: Any) -> Any:
        """A fake value that is like this."""
        if type(data) is not list:
            return data
        tag, *rest = data
        if tag in ("list", "tuple"):
            return (list if tag == "list" else tuple)(map(self.example, rest))
        if tag == "number":
            return self._number(*rest)
        dtype, device, size, stride, offset, lazy = rest
        rows = [
            [self._number(*n) if type(n) is list else n for n in numbers]
            for numbers in (size, stride, offset)
        ]
        return self._like(rows, getattr(torch, dtype), torch.device(device), lazy)

    def _like(self, rows: Any, dtype: torch.dtype, device: torch.device, lazy: Any) -> Any:
        size, stride, offset = rows
        if self.fakes:
            return fake_like(self.mode, size, stride, offset[0], dtype, device, lazy)
        if True in lazy:
            return None
        return StandIn.make(
            tuple(size), tuple(stride), dtype, device, torch.strided, False, offset[0]
        )

    def _number(self, kind: str, expr: Any, hint: Any) -> Any:
        return symbolic_number(self.mode.shape_env, kind, self.value(expr), hint)

    def _fake(self, held: Any) -> Any:
        """A constant of a graph, as the graph's other values are."""
        if not isinstance(held, torch.Tensor):
            return None
        lazy = (held.is_conj(), held.is_neg())
        return self._like(
            (held.shape, held.stride(), [held.storage_offset()]), held.dtype, held.device, lazy
        )

    @property
    def mode(self) -> Any:
        """The fake mode of all values."""
        if self._mode is None:
            self._mode = fake_mode(ShapeEnv())
        return self._mode
