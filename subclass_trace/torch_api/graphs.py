"""Graph modules, and replaying a graph under functional tensors."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import PythonKeyTracer, disable_autocast_cache
from torch.fx.experimental.proxy_tensor import make_fx as make_fx
from torch.utils._thunk import Thunk

from .fakes import quiet_fake_errors
from .kinds import SYM_TYPES, is_fake
from .modes import disable_autocast, exclude_functionalize, no_modes, without_tracing
from .symbols import sympy_to_nodes


class _ReplayTracer(PythonKeyTracer):
    """A random generator may be an argument of a node (torch 2.11 and 2.12 refuse it)."""

    def create_arg(self, a: object) -> Any:
        return a if isinstance(a, torch.Generator) else super().create_arg(a)


def _symbolic_numbers(value: Any) -> list[Any]:
    """The sizes, strides and offset of a tensor that are symbols, or a number itself."""
    numbers: tuple[Any, ...] = (value,)
    if isinstance(value, torch.Tensor):
        strided = value.layout is torch.strided
        numbers = (*value.shape, *((*value.stride(), value.storage_offset()) if strided else ()))
    return [n for n in numbers if isinstance(n, SYM_TYPES) and hasattr(n.node, "expr")]


class FunctionalReplay:
    """Running a graph once more under functional tensors and proxies, so that it comes out without in-place ones."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self.mode = mode
        self.tracer: Any = _ReplayTracer()
        self.tracer.root = torch.nn.Module()
        self.tracer.graph = torch.fx.Graph(tracer_cls=PythonKeyTracer)
        self.tracer.tensor_attrs = {}
        self.first: dict[Any, Any] = {}  # expression -> the symbolic number of the first input that has it

    @property
    def graph(self) -> torch.fx.Graph:
        """The graph that is being written."""
        return self.tracer.graph  # type: ignore[no-any-return]

    def adopt(self, root: torch.nn.Module, names: list[Any]) -> None:
        """Take over constants and sub-modules."""
        for name in names:
            setattr(self.tracer.root, name, getattr(root, name))

    def place(self, name: str, value: Any, meta: dict[str, Any]) -> torch.fx.Node:
        """Add a graph input that stands for ``value``."""
        from torch.fx.experimental.proxy_tensor import get_proxy_slot, set_proxy_slot, track_tensor_tree

        proxy = self.tracer.create_proxy("placeholder", name, (), {}, name=name)
        numbers = _symbolic_numbers(value)
        # A number that earlier inputs have is read or computed there: a forward must not read the sizes of tangents. Torch
        # tells two objects apart that are one symbol.
        for n in numbers:
            expr = n.node.expr
            if expr in self.first:
                set_proxy_slot(n, self.tracer, get_proxy_slot(self.first[expr], self.tracer))
            elif expr.free_symbols and expr.free_symbols <= self.first.keys():
                set_proxy_slot(n, self.tracer, Thunk(functools.partial(self._computed, n)))
        track_tensor_tree(value, proxy, constant=None, tracer=self.tracer)
        for n in numbers:
            self.first.setdefault(n.node.expr, n)
        proxy.node.meta.update({k: v for k, v in meta.items() if k == "path"})
        proxy.node.meta.setdefault("val", value)
        return proxy.node  # type: ignore[no-any-return]

    def _computed(self, number: Any) -> Any:
        """A proxy that computes ``number`` of symbols of inputs, written where it is first asked for."""
        from torch.fx.experimental.proxy_tensor import get_proxy_slot

        expr = number.node.expr
        symbols = {s: get_proxy_slot(self.first[s], self.tracer).force() for s in expr.free_symbols}
        node: Any = next(iter(reversed(self.graph.nodes)))
        made = sympy_to_nodes(expr, symbols)
        with without_tracing():  # sub-expressions need a value too
            while node is not made.node:
                node = node.next
                node.meta["val"] = node.target(*torch.fx.node.map_arg(node.args, lambda n: n.meta["val"]))
        return made

    def wrap(self, value: torch.Tensor) -> Any:
        """A functional tensor around a fake one."""
        from torch._subclasses.functional_tensor import FunctionalTensor

        return FunctionalTensor.to_functional(value)

    def constant(self, name: str, value: torch.Tensor) -> Any:
        """A functional tensor for a constant of the graph."""
        fake = value if is_fake(value) else self.mode.from_tensor(value)
        return self._tracked(fake, self.tracer.create_proxy("get_attr", name, (), {}))

    def adopt_value(self, value: torch.Tensor, node: torch.fx.Node) -> Any:
        """A functional tensor for what ``node`` computes."""
        return self._tracked(value, torch.fx.Proxy(node, self.tracer))

    def adopt_number(self, number: Any, node: torch.fx.Node) -> Any:
        """``number``, a symbol, which ``node`` computes."""
        from torch.fx.experimental.proxy_tensor import track_tensor_tree

        track_tensor_tree(number, torch.fx.Proxy(node, self.tracer), constant=None, tracer=self.tracer)
        return number

    def _tracked(self, value: torch.Tensor, proxy: Any) -> Any:
        from torch.fx.experimental.proxy_tensor import track_tensor_tree

        with without_tracing():
            track_tensor_tree(value, proxy, constant=None, tracer=self.tracer)
        return self.wrap(value)

    def node_of(self, value: Any) -> Any:
        """The node that holds the current contents of a functional tensor, or of a symbolic number."""
        from torch.fx.experimental.proxy_tensor import get_proxy_slot

        if isinstance(value, SYM_TYPES):
            return get_proxy_slot(value, self.tracer).force().node
        if not isinstance(value, torch.Tensor):
            return value
        torch._sync(value)  # type: ignore[attr-defined,no-untyped-call]
        inner = torch._from_functional_tensor(value.elem)  # type: ignore[attr-defined]
        return get_proxy_slot(inner, self.tracer, None, lambda p: p.proxy.node)

    @contextlib.contextmanager
    def active(self, decompositions: dict[Any, Callable[..., Any]]) -> Iterator[dict[str, Any]]:
        """The modes of the replay; yields the dict that is copied into each new node's meta."""
        import torch.fx.traceback as fx_traceback
        from torch._subclasses.functional_tensor import FunctionalTensorMode
        from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode, decompose, maybe_enable_thunkify

        with contextlib.ExitStack() as stack:
            enter = stack.enter_context
            enter(no_modes())
            enter(self.mode)
            enter(quiet_fake_errors())
            enter(warnings.catch_warnings())
            warnings.simplefilter("ignore")  # there was nothing new to say
            enter(enable_python_dispatcher())
            enter(ProxyTorchDispatchMode(self.tracer, "symbolic"))
            enter(decompose(decompositions))
            enter(disable_autocast_cache())
            enter(fx_traceback.preserve_node_meta())
            enter(maybe_enable_thunkify())
            enter(exclude_functionalize())
            enter(FunctionalTensorMode())
            enter(torch.no_grad())
            enter(disable_autocast())
            meta = fx_traceback.current_meta
            meta["in_grad_fn"] = 1
            meta["grad_fn_seq_nr"] = [-1]
            yield meta

    def finish(self, outputs: list[Any]) -> torch.fx.GraphModule:
        """The finished graph."""
        self.tracer.create_node("output", "output", (outputs,), {})
        return graph_module(self.tracer.root, self.tracer.graph, "joint")


def graph_module(root: Any, graph: torch.fx.Graph, name: str = "GraphModule") -> torch.fx.GraphModule:
    """A graph module that writes its Python code only when somebody reads or calls it."""
    from torch.fx._lazy_graph_module import _make_graph_module

    with lazy_graph_modules():
        return _make_graph_module(root, graph, name)


@contextlib.contextmanager
def lazy_graph_modules() -> Iterator[None]:
    """Graph modules that torch makes inside are lazy as well."""
    from torch.fx._lazy_graph_module import _use_lazy_graph_module

    with _use_lazy_graph_module(True):
        yield


def indexing_by_tensors() -> Any:
    """Inside, ``x[i]`` with a tensor ``i`` of one element is an operation too, and no read of its number."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    return TransformGetItemToIndex()
