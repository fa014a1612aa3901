"""A graph of Dynamo's as a function that a capture runs, with the user's lines that Dynamo noted
for its nodes."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
import torch.fx as fx
from torch.utils.checkpoint import checkpoint

from ..capture.user_code import frames_of_text, runs_for
from ..torch_api import dynamo as _dynamo

Tensor = torch.Tensor


class Interpreter(fx.Interpreter):
    """Runs a graph of Dynamo's; the bodies of operators that only wrap a part of the graph are run
    in their place."""

    def __init__(self, graph: fx.GraphModule, known: Mapping[int, Tensor]) -> None:
        super().__init__(graph, garbage_collect_values=True)
        self.known = known

    def fetch_attr(self, target: str) -> Any:
        """What stands for a tensor that the graph holds; other attributes are as they are."""
        value = super().fetch_attr(target)
        return self.known.get(id(value), value)

    def run_node(self, n: fx.Node) -> Any:
        """Run one node, on behalf of the user's code that Dynamo noted for it."""
        if n.target is Tensor.set_ and any(map(_ends_data_assignment, n.users)):
            args, _ = self.fetch_args_kwargs_from_env(n)
            # what the user wrote; a wrapper's own ``set_`` would change other tensors
            args[0].data = args[1]
            return args[0]
        if _ends_data_assignment(n):
            return None
        with runs_for(n.meta.get("stack_trace")):
            return super().run_node(n)

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with lists as the user wrote them; a node has them as
        ``immutable_list``."""
        found = super().fetch_args_kwargs_from_env(n)
        return _plain(found)  # type: ignore[no-any-return]

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function, or the body of an operator."""
        name = _dynamo.higher_order_name(target)
        if name in ("wrap", "wrap_with_set_grad_enabled", "wrap_with_autocast"):
            # which call their body
            return super().call_function(target, tuple(map(self._body, args)), kwargs)
        if name in ("strict_mode", "hints_wrapper"):
            return self._body(args[0])(*args[1], **(args[2] if len(args) > 2 else {}))
        if name == "invoke_subgraph":
            return self._body(args[0])(*args[2:])
        if name == "register_hook":
            tensor, hook, *captured = args
            tensor.register_hook(lambda grad: self._body(hook)(grad, *captured))
            return tensor
        if name == "autograd_function_apply":
            with _dynamo.no_proxies():
                return super().call_function(target, args, kwargs)
        if name in ("tag_activation_checkpoint", "wrap_activation_checkpoint"):
            rest = {key: value for key, value in kwargs.items() if key != "use_reentrant"}
            return checkpoint(self._body(args[0]), *args[1:], use_reentrant=False, **rest)
        return super().call_function(target, args, kwargs)

    def call_method(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method; the number in an input that came as a number is itself."""
        if target == "item" and not isinstance(args[0], Tensor):
            return args[0]
        return super().call_method(target, args, kwargs)

    def _body(self, module: Any) -> Any:
        if not isinstance(module, fx.GraphModule):
            return module

        def body(*operands: Any, **named: Any) -> Any:
            names = [str(n.target) for n in module.graph.nodes if n.op == "placeholder"]
            rest = [named[k] for k in names[len(operands) :] if k in named]
            return Interpreter(module, self.known).run(*operands, *rest)

        return body


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return tuple(map(_plain, value)) if type(value) is tuple else value


def _ends_data_assignment(node: fx.Node) -> bool:
    """Dynamo writes ``x.data = y`` as ``x.set_(y)`` and a correction of the version counter."""
    return (
        node.op == "call_function"
        and getattr(node.target, "__name__", "") == "_lower_version_count_by_1"
    )


class GraphOfDynamo:
    """A graph of Dynamo's as a function of its arguments, and after them of the tensors that it
    holds (``held``)."""

    has_no_state = True  # what it reads is in the graph

    def __init__(self, graph: fx.GraphModule) -> None:
        self.graph = graph
        modules = [m for m in graph.modules() if isinstance(m, fx.GraphModule)]
        found = [(m, n) for m in modules for n in m.graph.nodes if n.op == "get_attr"]
        values = [operator.attrgetter(str(n.target))(m) for m, n in found]
        self.held: list[Tensor] = list({id(v): v for v in values if isinstance(v, Tensor)}.values())
        self.__name__ = "graph_of_dynamo"
        for frames in filter(
            None, (frames_of_text(n.meta.get("stack_trace")) for n in graph.graph.nodes)
        ):
            code, line = frames[-1]  # of the function that Dynamo was given
            self.__qualname__, self.traced_line = (
                f"graph of {code.co_name}",
                (code.co_filename, line),
            )
            break

    def __call__(self, *args: Any) -> Any:
        """Interpret the graph."""
        count = len(args) - len(self.held)
        known = {id(real): given for real, given in zip(self.held, args[count:], strict=True)}
        return Interpreter(self.graph, known).run(*args[:count])
