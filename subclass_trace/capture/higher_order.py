"""Higher order operators (cond, while_loop, scan, flex_attention, ...): one rule for all.

An operator arrives below its own autograd rule, which has already split it into a forward and a backward operator. Its
callables are replaced by closures that record, the operator runs under the fake mode alone (its fake rule calls the
closures with the right operands), and becomes one node whose branches are graph modules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx as fx

from .. import torch_api
from ..errors import NeedsEager, UnsupportedError
from ..torch_api import pytree
from .graphs import is_write

Tensor = torch.Tensor
#: these take graph modules and read them; they must not be wrapped
_READS_GRAPHS = ("flex_attention", "flex_attention_backward")


def _is_callable(x: object) -> bool:
    plain = (Tensor, torch_api.OpOverload, type, *torch_api.SYM_TYPES)
    return callable(x) and not isinstance(x, plain)


class _Branches:
    """Records the callables of one operator while its fake rule runs them."""

    def __init__(self, recorder: Any, func: Any) -> None:
        self.recorder, self.func = recorder, func
        self.modules: dict[int, fx.GraphModule] = {}
        self.wrapped: dict[int, Callable[..., Any]] = {}
        self.operands: list[tuple[Any, ...]] = []

    def wrap(self, function: Any) -> Any:
        if isinstance(function, fx.GraphModule) and self.func.name() in _READS_GRAPHS:
            self.modules[id(function)] = function
            return function

        def traced(*operands: Any) -> Any:
            if any(isinstance(x, Tensor) and not torch_api.is_fake(x) for x in pytree.tree_leaves(operands)):
                line = self.recorder.user_line()
                raise NeedsEager(f"{self.func.name()} over wrappers", path=line, fix="give it dense tensors")
            with torch_api.unbound_symbols_set_aside(self.recorder.mode.shape_env):
                module = torch_api.make_fx(function, self.recorder.decompositions)(*operands)
                if any(map(is_write, module.graph.nodes)):
                    what = f"a branch of {self.func.name()} writes in place"
                    raise UnsupportedError(what, path=self.recorder.user_line(), fix="write out of place")
                self.modules[id(function)] = module
                self.operands.append(operands)
                return function(*operands)

        self.wrapped[id(function)] = traced
        return traced

    def record_uncalled(self) -> None:
        """A callable that the fake rule did not call (while_loop's condition) takes its sibling's operands."""
        for key, function in list(self.wrapped.items()):
            if key not in self.modules and self.operands:
                function(*self.operands[0])


def record_higher_order(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Record one call of a higher order operator.

    Raises:
        UnsupportedError: its fake rule did not run one of its callables.
    """
    branches = _Branches(recorder, func)
    flat, spec = pytree.tree_flatten((args, kwargs))
    fake_args, fake_kwargs = pytree.tree_unflatten([branches.wrap(x) if _is_callable(x) else x for x in flat], spec)
    with recorder.mode:
        out = func(*fake_args, **fake_kwargs)
        branches.record_uncalled()
    out = pytree.tree_map(lambda o: _result(recorder, o), out)

    def argument(x: Any) -> Any:
        if not _is_callable(x):
            return recorder.node_of(x)
        if id(x) not in branches.modules:
            what = f"the higher order operator {func.name()} has a callable that its fake rule does not run"
            raise UnsupportedError(what, path=recorder.user_line())
        name = f"branch_{recorder.next_submodule()}"
        setattr(recorder.root, name, branches.modules[id(x)])
        node = recorder.graph.get_attr(name)
        node.meta["partitioner_tag"] = recorder.tag
        return node

    node_args, node_kwargs = pytree.tree_unflatten([argument(x) for x in flat], spec)
    node = recorder.graph.call_function(func, node_args, node_kwargs)
    recorder.annotate(node)
    recorder.track_result(node, out)
    # while_loop stacks the values of as many iterations as it needs
    recorder.symbols.bind_data_dependent(node, out, recorder.tag)
    return out


def _result(recorder: Any, value: Any) -> Any:
    """What the operator has made is no view of something inside it (in torch 2.11, that of flex attention is)."""
    if isinstance(value, Tensor) and value._base is not None and not recorder.knows(value._base):
        return torch_api.detached(recorder.mode, value)
    return value
