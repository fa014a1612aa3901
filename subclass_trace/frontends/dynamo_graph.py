"""A graph of Dynamo's as a function that a capture runs, with the user's lines that Dynamo noted for its nodes."""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.fx as fx

from .. import torch_api
from ..capture.recorder import Recorder
from ..torch_api import dynamo as _dynamo

Tensor = torch.Tensor


@dataclasses.dataclass(frozen=True)
class _Code:
    """Stands for a code object in the recorded frames: Dynamo keeps its frames as text."""

    co_filename: str
    co_name: str


_FRAME = re.compile(r'  File "(.*)", line (\d+), in (.*)')


def frames(text: str | None) -> tuple[tuple[_Code, int], ...]:
    """The frames of a stack trace, innermost first, as the recorder keeps them."""
    found = _FRAME.findall(text or "")
    return tuple((_Code(file, name), int(line)) for file, line, name in reversed(found))


class GraphRecorder(Recorder):  # type: ignore[no-untyped-call]
    """Records what the interpreted graph does, with the user's frames that Dynamo noted for its nodes."""

    follows_state = False
    current: fx.Node | None = None

    def __init__(self, mode: Any, decompositions: dict[Any, Callable[..., Any]], outer: Recorder | None = None) -> None:
        super().__init__(mode, decompositions, outer)
        self.items: dict[str, Any] = {}  # see `Session`

    def user_frames(self) -> tuple[Any, ...]:
        return () if self.current is None else frames(self.current.meta.get("stack_trace"))

    def _local_scalar(self, func: Any, t: Tensor) -> Any:
        """An argument that is a float came in as a tensor; its symbol is known."""
        known = self._nodes.get(id(t))
        number = None if known is None else _dynamo.known_item(known[0].meta.get("val"))
        if known is None or number is None or self.was_written(t):
            return super()._local_scalar(func, t)
        if number.node.expr.is_number:  # a branch, or a kernel that takes no symbol, fixed it: Dynamo guards the value
            return type(number.node.hint)(number)
        self.items[str(known[0].target)] = number
        node = self.graph.call_function(func, (known[0],))
        self.annotate(node, func, (t,), {})
        self.track_result(node, number, ())
        return number

    def track_result(self, node: fx.Node, out: Any, args: Any = ()) -> None:
        """As its base class; a number that came in as a tensor is held by its node."""
        super().track_result(node, out, args)
        if isinstance(out, torch_api.SYM_TYPES) and out.node.expr.is_Symbol:  # a number that came in as a tensor
            self.symbols.bind(node, out)


class Interpreter(fx.Interpreter):
    """Runs a graph of Dynamo's; the bodies of operators that only wrap a part of the graph are run in their place."""

    def __init__(self, graph: fx.GraphModule, recorder: GraphRecorder | None, known: Mapping[int, Tensor]) -> None:
        super().__init__(graph, garbage_collect_values=True)
        self.recorder, self.known = recorder, known

    def fetch_attr(self, target: str) -> Any:
        """What stands for a tensor that the graph holds; other attributes are as they are."""
        value = super().fetch_attr(target)
        return self.known.get(id(value), value)

    def run_node(self, n: fx.Node) -> Any:
        """Run one node; the recorder reads the user's frames from it."""
        if self.recorder is not None and n.op.startswith("call"):
            self.recorder.current = n
        if n.target is Tensor.set_ and any(map(_ends_data_assignment, n.users)):
            args, _ = self.fetch_args_kwargs_from_env(n)
            args[0].data = args[1]  # what the user wrote; a wrapper's own ``set_`` would change other tensors
            return args[0]
        if _ends_data_assignment(n):
            return None
        return super().run_node(n)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function, or the body of an operator."""
        name = _dynamo.higher_order_name(target)
        if name in ("wrap", "strict_mode"):
            return self._body(args[0])(*(args[1] if name == "strict_mode" else args[1:]), **kwargs)
        if name == "invoke_subgraph":
            return self._body(args[0])(*args[2:])
        if name == "register_hook":
            tensor, hook, *captured = args
            tensor.register_hook(lambda grad: self._body(hook)(grad, *captured))
            return tensor
        if name == "hints_wrapper":
            return self._body(args[0])(*args[1], **args[2])
        if name == "wrap_with_set_grad_enabled":
            with torch.set_grad_enabled(args[0]):
                return self._body(args[1])(*args[2:], **kwargs)
        if name == "wrap_with_autocast":
            device, dtype, enabled, cache, body, *operands = args
            with torch.autocast(device, dtype, enabled, cache):
                return self._body(body)(*operands, **kwargs)
        if name in ("tag_activation_checkpoint", "wrap_activation_checkpoint"):
            return self._checkpoint(args, dict(kwargs))
        return super().call_function(target, args, kwargs)

    def call_method(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method; the number in an input that came as a number is itself."""
        if target == "item" and isinstance(args[0], (int, float)):
            return args[0]
        return super().call_method(target, args, kwargs)

    def _checkpoint(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        from torch.utils.checkpoint import checkpoint

        kwargs.pop("use_reentrant", None)
        return checkpoint(self._body(args[0]), *args[1:], use_reentrant=False, **kwargs)

    def _body(self, module: Any) -> Callable[..., Any]:
        if not isinstance(module, fx.GraphModule):
            return module  # type: ignore[no-any-return]

        def body(*operands: Any, **named: Any) -> Any:
            names = [str(n.target) for n in module.graph.nodes if n.op == "placeholder"]
            rest = [named[k] for k in names[len(operands) :] if k in named]
            return Interpreter(module, self.recorder, self.known).run(*operands, *rest)

        return body


def _ends_data_assignment(node: fx.Node) -> bool:
    """Dynamo writes ``x.data = y`` as ``x.set_(y)`` and a correction of the version counter."""
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "_lower_version_count_by_1"


class GraphOfDynamo:
    """A graph of Dynamo's as a function of its arguments, and after them of the tensors that it holds (``held``)."""

    has_no_state = True  # what it reads is in the graph

    def __init__(self, graph: fx.GraphModule) -> None:
        self.graph = graph
        self.recorder: GraphRecorder | None = None
        modules = [m for m in graph.modules() if isinstance(m, fx.GraphModule)]
        found = [(m, n) for m in modules for n in m.graph.nodes if n.op == "get_attr"]
        values = [operator.attrgetter(str(n.target))(m) for m, n in found]
        self.held: list[Tensor] = list({id(v): v for v in values if isinstance(v, Tensor)}.values())
        self.__name__ = "graph_of_dynamo"

    def __call__(self, *args: Any) -> Any:
        """Interpret the graph."""
        count = len(args) - len(self.held)
        known = {id(real): given for real, given in zip(self.held, args[count:], strict=True)}
        return Interpreter(self.graph, self.recorder, known).run(*args[:count])
