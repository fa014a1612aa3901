"""The graph that a mode writes, and which traced tensor or number is which of its nodes."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.fx as fx

from ..plan.descriptors import AnyDescriptor
from ..torch_api.fake_results import FakeResults
from ..torch_api.fakes import detached
from ..torch_api.kinds import SYM_TYPES, is_fake
from ..torch_api.modes import PROXY_MODE_KEY, DispatchMode, no_modes, no_overrides
from .phase import Phase
from .symbols import Symbols

Tensor = torch.Tensor
_VALUES = (Tensor, *SYM_TYPES)


class TracedGraph(DispatchMode):  # type: ignore[misc]
    """Inputs, constants and results of one graph, by the tensors that stand for them, and the mode
    that writes it.

    Attributes:
        mode: the FakeTensorMode of the trace.
        decompositions: operation -> what runs in its place.
        results: the results of operations on fake tensors.
        phase: where the trace stands.
        primals, tangents: how many inputs of each kind there are.
    """

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Dynamo does not see a capture anyway: do not pay for hiding each operation from it."""
        return False

    @classmethod
    def is_infra_mode(cls) -> bool:
        """User modes run above it."""
        return True

    def __init__(
        self,
        mode: Any,
        decompositions: dict[Any, Callable[..., Any]],
        results: FakeResults,
    ) -> None:
        super().__init__()
        # On the instance: __exit__ looks in its __dict__, and would otherwise pop a mode of the
        # user.
        self._mode_key = PROXY_MODE_KEY
        self.mode, self.decompositions, self.results = mode, decompositions, results
        self.graph, self.root = fx.Graph(), torch.nn.Module()
        self.symbols = Symbols(self.graph, mode)
        self.phase = Phase()
        self.tracer = self.symbols.tracer
        # Nested ints ask the PROXY mode's tracer.
        self.tracer.enable_thunkify = False  # type: ignore[attr-defined]
        self._last_placeholder: fx.Node | None = None
        # holds the tensors, so that ids stay unique
        self._nodes: dict[int, tuple[fx.Node, Tensor]] = {}
        self._lifted: dict[int, tuple[Tensor, Tensor]] = {}
        # of constants and branches, of all traces into this graph
        self.numbers: Iterator[int] = itertools.count()
        self._adopted: list[int] = []
        self.primals = 0
        self.tangents = 0

    def __sym_dispatch__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return func(*args, **kwargs)  # nothing to write: see `symbols`

    def node_of(self, value: Any) -> Any:
        """The node of a tensor or symbolic number; other values stand for themselves."""
        hit = self._nodes.get(id(value))
        if hit is not None:
            return hit[0]
        if isinstance(value, SYM_TYPES):
            return self.symbols.node_of(value, self.tag)
        return self.node_of_real(value) if isinstance(value, Tensor) else value

    @property
    def tag(self) -> str:
        """The part of the graph that is being written, "is_forward" or "is_backward"."""
        return self.phase.tag

    def node_of_real(self, value: Tensor) -> fx.Node:
        """The node of a tensor that no operation of the trace has given."""
        raise NotImplementedError

    def argument(self, a: Any) -> Any:
        """An argument of an operation, as its node has it."""
        if isinstance(a, _VALUES):
            return self.node_of(a)
        if type(a) in (list, tuple):
            return [self.argument(x) for x in a]
        return a

    def call(self, target: Any, args: Any, kwargs: Any) -> fx.Node:
        """A node for an operation."""
        given = tuple(map(self.argument, args)), {k: self.argument(v) for k, v in kwargs.items()}
        node = self.graph.create_node("call_function", target)
        node.args = given[0]  # given to create_node, they would be walked through once more
        if kwargs:
            node.kwargs = given[1]
        return node

    def placeholder(self, name: str, value: Any, *, is_untouched: bool = False) -> fx.Node:
        """Add a graph input after the last one; ``value`` (a tensor or a SymInt) is from now on its
        node.

        ``is_untouched``: no operation will run on ``value`` itself, so that it needs no snapshot.
        """
        with (
            self.graph.inserting_after(self._last_placeholder)
            if self._last_placeholder
            else self._at_start()
        ):
            node = self.graph.placeholder(name)
        self._last_placeholder = node
        if isinstance(value, Tensor):
            if is_untouched:
                self._nodes[id(value)] = (node, value)
                node.meta["val"] = value
            else:
                self.track(value, node)
            if not name.startswith("tangents"):
                self.symbols.bind(node, value)
        else:
            node.meta["val"] = value
            self.symbols.bind(node, value)
        return node

    def primal(self, value: Any) -> int:
        """Add the next dense graph input, ``primals_N``: a leaf of an input as it came in, or a
        number; returns N - 1."""
        self.primals += 1
        self.placeholder(f"primals_{self.primals}", value, is_untouched=True)
        return self.primals - 1

    def tangent(self, value: Any, descriptor: AnyDescriptor) -> str:
        """Add the next tangent, ``tangents_N``; returns its name."""
        self.tangents += 1
        node = self.placeholder(f"tangents_{self.tangents}", value)
        node.meta["descriptor"] = descriptor
        return node.name

    def _at_start(self) -> Any:
        first = next(iter(self.graph.nodes), None)
        return self.graph.inserting_before(first)

    def track(self, value: Tensor, node: fx.Node) -> None:
        """``value`` is what ``node`` computes."""
        self._nodes[id(value)] = (node, value)
        # Without grad mode nothing will give the value a history: it is its own snapshot.
        snapshot = is_fake(value) and (torch.is_grad_enabled() or node.op == "placeholder")
        node.meta["val"] = detached(self.mode, value) if snapshot else value

    def alias(self, value: Tensor, like: Tensor) -> None:
        """``value`` is the very value of ``like``: no node of its own."""
        self._nodes[id(value)] = (self.node_of(like), value)

    def bare(self, fake: Tensor) -> Tensor:
        """A fake tensor of the same metadata that nobody has touched."""
        return detached(self.mode, fake)

    def knows(self, value: Tensor) -> bool:
        """Has this tensor a node in the graph?"""
        return id(value) in self._nodes or id(value) in self._lifted

    def adopt(self, real: Tensor, fake: Tensor) -> None:
        """A real leaf that the function reaches by name is an input: ``fake``."""
        if id(real) not in self._lifted:
            self._lifted[id(real)] = (fake, real)
            self._adopted.append(id(real))

    def forget_inputs(self) -> None:
        """From now on nothing leads to the tensors of the call."""
        for key in self._adopted:
            del self._lifted[key]
        self._adopted = []

    def constant(self, real: Tensor) -> Tensor:
        """The fake that stands for a real dense tensor which is read from where it is."""
        hit = self._lifted.get(id(real))
        if hit is None:
            fake = detached(self.mode, self.mode.from_tensor(real, static_shapes=True))
            name = f"_constant{next(self.numbers)}"
            with no_overrides(), no_modes():
                setattr(self.root, name, real)
            node = self.graph.get_attr(name)
            node.meta["partitioner_tag"] = self.tag
            self.track(fake, node)
            hit = self._lifted[id(real)] = (fake, real)
        return hit[0]

    def constant_again(self, node: fx.Node) -> Tensor:
        """A constant, read once more where the graph is written now."""
        fake, again = self.bare(node.meta["val"]), self.graph.get_attr(str(node.target))
        again.meta["partitioner_tag"] = self.tag
        self.track(fake, again)
        return fake

    def erase(self, nodes: Sequence[fx.Node]) -> None:
        """Take nodes of a trace that failed out again, else the forward would run them."""
        self._lifted = {
            k: row for k, row in self._lifted.items() if self._nodes[id(row[0])][0] not in nodes
        }
        for node in nodes:
            self.graph.erase_node(node)

    def note_results(self, node: fx.Node, out: Any, args: Any) -> None:
        """``out`` is what an operation with these arguments has just given."""
        self.track_result(node, out, args)
        if self.mode.shape_env.pending_fresh_unbacked_symbols:
            self.symbols.bind_data_dependent(node, out, self.tag)

    def track_result(self, node: fx.Node, out: Any, args: Any = ()) -> None:
        """``out`` is what a call with these arguments gives."""
        if isinstance(out, Tensor):
            if any(out is a for a in args):
                node.meta["val"] = detached(self.mode, out)
            else:
                self.track(out, node)
        elif isinstance(out, (list, tuple)):
            node.meta["val"] = type(out)(
                detached(self.mode, o) if isinstance(o, Tensor) else o for o in out
            )
            for i, o in enumerate(out):
                # flex attention's backward has a tuple of gradients
                if isinstance(o, (Tensor, list, tuple)):
                    item = self.graph.call_function(operator.getitem, (node, i))
                    item.meta.update({k: v for k, v in node.meta.items() if k != "val"})
                    self.track_result(item, o)
        else:
            node.meta["val"] = out
