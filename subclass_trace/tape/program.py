"""A tape as straight-line Python.

Every value is deleted right after its last use, so that memory goes down as in the eager engine. Three shortcuts:

- After each node C++ checks the results against what the next nodes expect (``validate_outputs``), which from Python
  costs as much as an operation. A C++ tensor guard, made in the first run, says faster that there is nothing to do, or
  that a broadcast gradient is to be summed.
- A first gradient that nobody else holds becomes ``param.grad``, without a copy and without a call.
- Constant arguments are made once.

A shortcut is armed by the first run that could have taken it, and whenever its condition fails the full path runs.
"""

from __future__ import annotations

import itertools
import keyword
import math
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx as fx

from .. import torch_api
from ..backends.eager.graph_code import display, function_of
from ..torch_api import tape as _door
from . import operations

Tensor = torch.Tensor


def make_program(graph: fx.GraphModule, names: Sequence[str]) -> Callable[[list[Any]], Sequence[Any]]:
    """The program of a tape's graph: takes a list of all that the engine gives, empties it, returns the outputs.

    ``names`` are those of the autograd nodes, for messages.
    """
    writer = _Writer(graph, names)
    source = writer.write()
    return function_of(source, "tape", writer.namespace, "tape")  # type: ignore[no-any-return]


def never(*values: Any) -> bool:
    """A shortcut that is not armed."""
    return False


class Validation:
    """The full path of one ``validate_outputs``, which arms the short one.

    Args:
        owner: the name of the autograd node.
        short: the name of the short path, and where the program looks it up; None where there is none.
    """

    def __init__(
        self,
        owner: str,
        function: Callable[..., Any],
        short: tuple[str, dict[str, Any]] | None = None,
    ) -> None:
        self.owner, self.function, self.short = owner, function, short

    def __call__(self, outputs: list[Any], expected: Sequence[Any]) -> Any:
        try:
            results = self.function(outputs, expected)
        except RuntimeError as error:  # C++ does not know the name of the node here
            raise RuntimeError(str(error).replace(_CAPTURE, f"Function {self.owner} returned an ")) from error
        if self.short is not None and self.short[1][self.short[0]] is never:
            self._arm(outputs, results, expected)
        return results

    def _arm(self, outputs: list[Any], results: Sequence[Any], expected: Sequence[Any]) -> None:
        assert self.short is not None
        name, namespace = self.short
        places = [i for i, e in enumerate(expected) if e is not None]
        summed = {}
        for i in places:
            out, result, size = outputs[i], results[i], list(expected[i][1])
            if type(out) is not Tensor or out.dtype != result.dtype or out.device != result.device:
                return
            if list(result.shape) != size:
                return
            summed[i] = None if out is result else size
        tensors = [outputs[i] for i in places]
        namespace.update({f"{name}_sum_{i}": size for i, size in summed.items()})
        namespace[name] = torch_api.tensor_guard(
            tensors, [list(t.shape) for t in tensors], [[None] * t.dim() for t in tensors]
        )


_CAPTURE = "[Compiled Autograd Tracing:]"


class _Accumulation:
    """The full path of one AccumulateGrad, which arms the short one."""

    def __init__(self, name: str, namespace: dict[str, Any]) -> None:
        self.name, self.namespace = name, namespace

    def __call__(self, param: Tensor, grad: Tensor | None, has_post_hooks: bool) -> None:
        if self.namespace[self.name] is never and not has_post_hooks and operations.may_become_grad(param, grad):
            assert grad is not None
            both = [param, grad]
            guard = torch_api.tensor_guard(both, [list(t.shape) for t in both], [list(t.stride()) for t in both])
            self.namespace[self.name] = guard
        operations.accumulate_grad(param, grad, has_post_hooks)


def _calibrate() -> tuple[int, int] | None:
    """Owners of a tensor that one local variable holds, as a program sees them."""
    if not _door.HAS_REFERENCE_COUNTS:
        return None
    grad = torch.empty(1)
    return sys.getrefcount(grad), _door.grad_references(grad)


_SOLE = _calibrate()


class _Writer:
    """Writes the program of a tape."""

    def __init__(self, gm: fx.GraphModule, names: Sequence[str]) -> None:
        self.gm, self.nodes, self.names = gm, list(gm.graph.nodes), names
        self.namespace: dict[str, Any] = {}
        self.lines: list[str] = []
        self.variables: dict[fx.Node, str] = {}
        self._globals: dict[Any, str] = {}
        self._short = itertools.count()
        self._parts: dict[fx.Node, dict[int, fx.Node]] = {}
        for n in self.nodes:
            if n.op == "call_function" and n.target is operator.getitem and n.args[0].op == "call_function":
                self._parts.setdefault(n.args[0], {})[n.args[1]] = n

    def write(self) -> str:
        """The source."""
        for node in self.nodes:
            if node.op == "get_attr":
                self.variables[node] = self._global(operator.attrgetter(str(node.target))(self.gm), node.name)
            elif node.op != "output":
                self.variables[node] = f"{node.name}_" if keyword.iskeyword(node.name) else node.name
        inputs = [n for n in self.nodes if n.op == "placeholder"]
        dies = self._last_uses()
        self._line("def tape(given):")
        if inputs:
            self._line(f"    ({', '.join(self.variables[n] for n in inputs)},) = given")
        self._line("    given.clear()")
        self._line(f"    no_graph = not {self._global(torch_api.grad_enabled, 'grad_enabled')}()")
        self._delete(dies.get(None, []))
        for node in self.nodes:
            if node.op == "call_function" and not self._is_part(node):
                if node.meta.get("kind") == "segment":
                    self._segment(node, dies.pop(node, []))
                else:
                    self._call(node)
                for done in (node, *self._parts.get(node, {}).values()):
                    self._delete(dies.get(done, []))
        output = self.nodes[-1]
        self._line(f"    return [{', '.join(self._text(a) for a in output.args[0])}]")
        return "\n".join(self.lines)

    # ---------------------------------------------------------------- calls
    def _call(self, node: fx.Node) -> None:
        kind = node.meta.get("kind")
        if kind == "validate" and node.args[0]:
            self._validate(node)
        elif kind == "accumulate" and _SOLE is not None and node.args[2] is False and node.args[1] is not None:
            self._accumulate(node)
        elif kind != "validate":
            self._plain_call(node, self._function(node), "    ")

    def _segment(self, node: fx.Node, dying: list[fx.Node]) -> None:
        """See Note [Who owns what a segment is given] in segments.py."""
        self._line(f"    values = {self._text(node.args[0])}")
        self._delete(dying)
        name, parts = self.variables[node], self._parts.get(node, {})
        self._line(f"    {name} = {self._global(node.target, name)}(values)")
        for i, part in parts.items():
            self._line(f"    {self.variables[part]} = {name}[{i}]")
        self._line(f"    del {name}")

    def _plain_call(self, node: fx.Node, function: str, indent: str) -> None:
        args = [self._text(a) for a in node.args] + [f"{k}={self._text(v)}" for k, v in node.kwargs.items()]
        call = f"{function}({', '.join(args)})"
        parts = self._parts.get(node)
        if parts is None:
            self._line(f"{indent}{self.variables[node]} = {call}" if node.users else f"{indent}{call}")
            return
        name = self.variables[node]
        self._line(f"{indent}{name} = {call}")
        for i, part in parts.items():
            self._line(f"{indent}{self.variables[part]} = {name}[{i}]")
        if all(n in parts.values() for n in node.users):
            self._line(f"{indent}del {name}")

    def _function(self, node: fx.Node) -> str:
        target: Any = _door.without_layer(node.target)
        if isinstance(target, torch_api.OpOverload):
            target = torch_api.raw_callable(target)
        return self._global(target, getattr(node.target, "__name__", "function"))

    def _validate(self, node: fx.Node) -> None:
        outputs: Any
        outputs, expected = node.args
        rows = [(o, e) for o, e in zip(outputs, expected, strict=True) if e is not None]  # type: ignore[arg-type]
        parts = self._parts.get(node, {})
        function, owner = _door.without_layer(node.target), self.names[node.meta["node"]]
        dynamic = any(isinstance(n, fx.Node) for _, e in rows for n in e[1])
        if dynamic or not rows or not parts or any(o is None for o, _ in rows):
            self._plain_call(node, self._global(Validation(owner, function), "validate"), "    ")
            return
        short = f"is_valid_{next(self._short)}"
        self.namespace[short] = never
        values = [self.variables[o] for o, _ in rows]
        full = Validation(owner, function, (short, self.namespace))
        self._line(f"    if {short}({', '.join(values)}):")
        for i, part in parts.items():
            value, size = self._text(outputs[i]), f"{short}_sum_{i}"
            self.namespace[size] = None
            self._line(f"        {self.variables[part]} = {value} if {size} is None else {value}.sum_to_size({size})")
        self._line("    else:")
        self._plain_call(node, self._global(full, f"validate_{short[9:]}"), "        ")

    def _accumulate(self, node: fx.Node) -> None:
        assert _SOLE is not None
        param, grad, _ = map(self._text, node.args)
        count = self._global(sys.getrefcount, "getrefcount")
        sole = f"{count}({grad}) <= {_SOLE[0]} and {grad}._use_count() <= {_SOLE[1]}"
        short = f"is_whole_{next(self._short)}"
        self.namespace[short] = never
        full = self._global(_Accumulation(short, self.namespace), f"accumulate_{short[9:]}")
        self._line(f"    if no_graph and {param}.grad is None and {short}({param}, {grad}) and {sole}:")
        self._line(f"        {param}.grad = {grad}.detach() if {grad}._is_view() else {grad}")
        self._line(f"    else: {full}({param}, {grad}, False)")

    # ---------------------------------------------------------------- values
    def _is_part(self, node: fx.Node) -> bool:
        return node in self._parts.get(node.args[0], {}).values() if node.target is operator.getitem else False  # type: ignore[arg-type]

    def _last_uses(self) -> dict[fx.Node | None, list[fx.Node]]:
        """After which node each value dies; under None the inputs that nothing reads."""
        last: dict[fx.Node, fx.Node | None] = {n: None for n in self.nodes if n.op == "placeholder"}
        for node in self.nodes:
            if node.op == "call_function":
                if not node.users and node.target is operator.getitem:
                    last[node] = node
                for read in node.all_input_nodes:
                    # a part is taken right after its whole, which is deleted there
                    if read.op != "get_attr" and read not in self._parts:
                        last[read] = node
        for read in self.nodes[-1].all_input_nodes:
            last.pop(read, None)
        found: dict[fx.Node | None, list[fx.Node]] = {}
        for value, by in last.items():
            found.setdefault(by, []).append(value)
        return found

    def _delete(self, values: Sequence[fx.Node]) -> None:
        if values:
            self._line(f"    del {', '.join(self.variables[v] for v in values)}")

    def _line(self, text: str) -> None:
        self.lines.append(text)

    def _text(self, arg: Any) -> str:
        if isinstance(arg, fx.Node):
            return self.variables[arg]
        if type(arg) in (int, bool, str, type(None)) or (type(arg) is float and math.isfinite(arg)):
            return repr(arg)
        if not _has_nodes(arg):
            return self._global(plain(arg), type(plain(arg)).__name__)
        return display(arg, self._text)

    def _global(self, value: Any, name: str) -> str:
        """The name of a global that holds ``value``."""
        key = id(value)
        if key not in self._globals:
            base = "".join(c if c.isalnum() else "_" for c in name) or "value"
            self._globals[key] = f"{base}_g{len(self._globals)}"  # no node of a tape is named so
            self.namespace[self._globals[key]] = value
        return self._globals[key]


def _has_nodes(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_has_nodes, value))
    if isinstance(value, dict):
        return any(map(_has_nodes, value.values()))
    if isinstance(value, slice):
        return any(map(_has_nodes, (value.start, value.stop, value.step)))
    return isinstance(value, fx.Node)


def plain(value: Any) -> Any:
    """fx's immutable lists as plain ones: C++ takes no others."""
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return tuple(plain(v) for v in value) if isinstance(value, tuple) else value
