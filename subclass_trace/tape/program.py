"""A tape as straight-line Python.

Every value is deleted right after its last use, so that memory goes down as in the eager engine.
Two shortcuts:

- After each node C++ checks the results against what the next nodes expect (``validate_outputs``),
  which from Python costs as much as an operation. A C++ tensor guard, made in the first run, says
  faster that there is nothing to do, or that a broadcast gradient is to be summed.
- A first gradient that nobody else holds becomes ``param.grad``, without a copy and without a call.
"""

from __future__ import annotations

import keyword
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx as fx
from torch import Tensor

from ..backends.eager.graph_code import display, function_of
from ..torch_api import tape as _door
from ..torch_api.kinds import tensor_guard
from ..torch_api.modes import grad_enabled
from ..torch_api.operators import OpOverload, raw_callable
from . import operations

_CAPTURE = "[Compiled Autograd Tracing:]"


def make_program(
    graph: fx.GraphModule, names: Sequence[str]
) -> Callable[[list[Any]], Sequence[Any]]:
    """The program of a tape's graph: takes a list of all that the engine gives, empties it, returns
    the outputs.

    ``names`` are those of the autograd nodes, for messages.
    """
    writer = _Writer(graph, names)
    source = writer.write()
    return function_of(source, "tape", writer.namespace, "tape")  # type: ignore[no-any-return]


def _never(*values: Any) -> bool:
    return False


def _guard(tensors: list[Tensor], strides: bool) -> Callable[..., bool]:
    rows = [list(t.stride()) if strides else [None] * t.dim() for t in tensors]
    return tensor_guard(tensors, [list(t.shape) for t in tensors], rows)


class _Check:
    """The full path of one ``validate_outputs``, which arms the short one: ``guard`` of the results
    that are expected, and for each the size that it is summed to, if it is."""

    def __init__(self, function: Callable[..., Any], owner: str, is_static: bool) -> None:
        self.function, self.owner, self.is_static, self.guard = function, owner, is_static, _never
        self.sums: dict[int, list[int] | None] = {}

    def __call__(self, outputs: list[Any], expected: Sequence[Any]) -> Any:
        try:
            results = self.function(outputs, expected)
        except RuntimeError as error:  # C++ does not know the name of the node here
            raise RuntimeError(
                str(error).replace(_CAPTURE, f"Function {self.owner} returned an ")
            ) from error
        rows = {i: (outputs[i], results[i]) for i, e in enumerate(expected) if e is not None}
        plain = all(
            type(o) is Tensor and (o.dtype, o.device) == (r.dtype, r.device)
            for o, r in rows.values()
        )
        if self.is_static and self.guard is _never and plain:
            self.sums = {i: None if o is r else list(r.shape) for i, (o, r) in rows.items()}
            self.guard = _guard([o for o, _ in rows.values()], strides=False)
        return results


class _Accumulation:
    """The full path of one AccumulateGrad, which arms the short one."""

    def __init__(self) -> None:
        self.guard = _never

    def __call__(self, param: Tensor, grad: Tensor | None, has_post_hooks: bool) -> None:
        if (
            self.guard is _never
            and grad is not None
            and grad.layout is param.layout is torch.strided
        ):
            if (grad.shape, grad.stride()) == (param.shape, param.stride()):
                self.guard = _guard([param, grad], strides=True)
        operations.accumulate_grad(param, grad, has_post_hooks)


def _calibrate() -> tuple[int, int] | None:
    """Owners of a tensor that one local variable holds, as a program sees them.

    Through a list: from Python 3.14 on, some loads of a local variable count as an owner, and
    others do not.
    """
    grad = torch.empty(1)
    return (sys.getrefcount([grad][0]), grad._use_count()) if hasattr(grad, "_use_count") else None


_SOLE = _calibrate()


class _Writer:
    """Writes the program of a tape."""

    def __init__(self, gm: fx.GraphModule, names: Sequence[str]) -> None:
        self.gm, self.nodes, self.names = gm, list(gm.graph.nodes), names
        self.namespace: dict[str, Any] = {
            "grad_enabled": grad_enabled,
            "getrefcount": sys.getrefcount,
        }
        self.lines: list[str] = []
        self.variables = {
            n: f"{n.name}_" if keyword.iskeyword(n.name) else n.name for n in self.nodes
        }
        self._globals: dict[int, str] = {}
        self._parts: dict[fx.Node, dict[int, fx.Node]] = {}
        for n in self.nodes:
            if (
                n.op == "call_function"
                and n.target is operator.getitem
                and n.args[0].op == "call_function"
            ):
                self._parts.setdefault(n.args[0], {})[n.args[1]] = n
            elif n.op == "get_attr":
                self.variables[n] = self._global(operator.attrgetter(str(n.target))(gm), n.name)

    def write(self) -> str:
        """The source."""
        inputs = [self.variables[n] for n in self.nodes if n.op == "placeholder"]
        parts = {n for row in self._parts.values() for n in row.values()}
        dies = self._last_uses()
        self.lines = [
            "def tape(given):",
            f"    ({', '.join([*inputs, ''])}) = given",
            "    given.clear()",
        ]
        self.lines.append("    no_graph = not grad_enabled()")
        self._delete(dies.get(None, []))
        for node in self.nodes:
            if node.op != "call_function" or node in parts:
                continue
            # its list is all that holds its values: see segments.py
            if node.meta.get("kind") == "segment":
                self.lines.append(f"    values = {self._text(node.args[0])}")
                self._delete(dies.pop(node, []))
                self._call(node, "    ", "values")
            elif node.meta.get("kind") == "validate":
                self._validate(node)
            elif (
                node.meta.get("kind") == "accumulate"
                and _SOLE is not None
                and node.args[2] is False
            ):
                self._accumulate(node)
            else:
                self._call(node, "    ")
            for done in (node, *self._parts.get(node, {}).values()):
                self._delete(dies.get(done, []))
        self.lines.append(
            f"    return [{', '.join(self._text(a) for a in self.nodes[-1].args[0])}]"
        )
        return "\n".join(self.lines)

    # ---- calls
    def _call(
        self, node: fx.Node, indent: str, args: str | None = None, function: str | None = None
    ) -> None:
        if args is None:
            named = [f"{k}={self._text(v)}" for k, v in node.kwargs.items()]
            args = ", ".join([*map(self._text, node.args), *named])
        if function is None:
            target: Any = _door.without_layer(node.target)
            target = raw_callable(target) if isinstance(target, OpOverload) else target
            function = self._global(target, getattr(node.target, "__name__", "function"))
        name, parts = self.variables[node], self._parts.get(node, {})
        self.lines.append(f"{indent}{name} = {function}({args})")
        self.lines += [f"{indent}{self.variables[part]} = {name}[{i}]" for i, part in parts.items()]
        if all(n in parts.values() for n in node.users):
            self.lines.append(f"{indent}del {name}")

    def _validate(self, node: fx.Node) -> None:
        outputs: Any
        expected: Any
        outputs, expected = node.args
        rows = [o for o, e in zip(outputs, expected, strict=True) if e is not None]
        is_static = all(type(n) is int for e in expected if e is not None for n in e[1])
        check = _Check(_door.without_layer(node.target), self.names[node.meta["node"]], is_static)
        function, parts = self._global(check, "validate"), self._parts.get(node, {})
        if not outputs:
            return
        if not is_static or not rows or not parts or any(o is None for o in rows):
            self._call(node, "    ", function=function)
            return
        self.lines.append(f"    if {function}.guard({', '.join(map(self._text, rows))}):")
        for i, part in parts.items():
            value, size = self._text(outputs[i]), f"{function}.sums.get({i})"
            self.lines.append(
                f"        {self.variables[part]} = {value} if {size} is None else "
                f"{value}.sum_to_size({size})"
            )
        self.lines.append("    else:")
        self._call(node, "        ", function=function)

    def _accumulate(self, node: fx.Node) -> None:
        assert _SOLE is not None
        param, grad, _ = map(self._text, node.args)
        full = self._global(_Accumulation(), "accumulate")
        sole = f"getrefcount([{grad}][0]) <= {_SOLE[0]} and {grad}._use_count() <= {_SOLE[1]}"
        self.lines.append(
            f"    if no_graph and {param}.grad is None and {full}.guard({param}, {grad}) and "
            f"{sole}:"
        )
        self.lines.append(
            f"        {param}.grad = {grad}.detach() if {grad}._is_view() else {grad}"
        )
        self.lines.append(f"    else: {full}({param}, {grad}, False)")

    # ---- values
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
            self.lines.append(f"    del {', '.join(self.variables[v] for v in values)}")

    def _text(self, arg: Any) -> str:
        if isinstance(arg, fx.Node):
            return self.variables[arg]
        if type(arg) in (int, bool, str, type(None)):
            return repr(arg)
        return (
            display(arg, self._text)
            if _has_nodes(arg)
            else self._global(_plain(arg), type(arg).__name__)
        )

    def _global(self, value: Any, name: str) -> str:
        """The name of a global that holds ``value``."""
        key = id(value)
        if key not in self._globals:
            base = "".join(c if c.isalnum() else "_" for c in name) or "value"
            self._globals[key] = f"{base}_g{len(self._globals)}"  # no node of a tape is named so
            self.namespace[self._globals[key]] = value
        return self._globals[key]


def _has_nodes(value: Any) -> bool:
    found: list[fx.Node] = []
    fx.map_arg(value, found.append)
    return bool(found)


def _plain(value: Any) -> Any:
    """fx's immutable lists as plain ones: C++ takes no others."""
    if isinstance(value, (list, tuple)):
        return (list if isinstance(value, list) else tuple)(map(_plain, value))
    return value
