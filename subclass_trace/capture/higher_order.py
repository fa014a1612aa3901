"""Higher order operators (cond, while_loop, scan, flex_attention, ...): one rule for all.

An operator arrives below its own autograd rule, which has already split it into a forward and a
backward operator. Its callables are replaced by closures that record, the operator runs under the
fake mode alone (its fake rule calls the closures with the right operands), and becomes one node
whose branches are graph modules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx as fx

from ..errors import UnsupportedError
from ..subclass.protocol import REAL
from ..torch_api.fakes import detached
from ..torch_api.graphs import indexing_by_tensors, make_fx
from ..torch_api.kinds import SYM_TYPES, is_fake
from ..torch_api.operators import OpOverload
from ..torch_api.symbols import unbound_symbols_set_aside
from ..torch_api.trees import pytree
from .graphs import is_write
from .phase import Recording

Tensor = torch.Tensor
#: these take graph modules and read them; they must not be wrapped
_READS_GRAPHS = ("flex_attention", "flex_attention_backward")


#: of constants: the very value
_DETACH: dict[Any, Any] = {torch.ops.aten.detach_.default: lambda t: t}


def _is_callable(x: object) -> bool:
    plain = (Tensor, OpOverload, type, *SYM_TYPES)
    return callable(x) and not isinstance(x, plain)


def record_higher_order(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """Record one call of a higher order operator."""
    if func.name() == "while_loop" and not all(isinstance(x, Tensor) for x in args[2]):
        raise UnsupportedError(
            "a loop of while_loop carries a number",
            code="number-carried",
            path=recorder.user_line(),
            fix="carry a tensor, torch.tensor(0)",
        )
    flat, spec = pytree.tree_flatten((args, kwargs))
    flat = [recorder.lift(x) if type(x) in REAL else x for x in flat]
    modules = {
        id(x): _of_operators(recorder, x)
        for x in flat
        if isinstance(x, fx.GraphModule) and func.name() in _READS_GRAPHS
    }
    met: list[tuple[Any, ...]] = []

    def branch(function: Any) -> Callable[..., Any]:
        def traced(*operands: Any) -> Any:
            if any(isinstance(x, Tensor) and not is_fake(x) for x in pytree.tree_leaves(operands)):
                what = f"{func.name()} over wrappers"
                raise UnsupportedError(
                    what,
                    code="operator-over-wrappers",
                    path=recorder.user_line(),
                    fix="give it dense tensors",
                )
            with unbound_symbols_set_aside(recorder.mode.shape_env):
                module = _traced_branch(recorder, func.name(), function, operands)
                modules[id(function)] = module
                met.append(operands)
                return function(*operands)

        return traced

    branches = {id(x): branch(x) for x in flat if _is_callable(x) and id(x) not in modules}
    fake_args, fake_kwargs = pytree.tree_unflatten([branches.get(id(x), x) for x in flat], spec)
    with recorder.mode:
        out = func(*fake_args, **fake_kwargs)
        # while_loop's condition is not called, and takes what its body takes
        for key in branches.keys() - modules.keys():
            branches[key](*met[0])
    out = pytree.tree_map(lambda o: _result(recorder, o), out)

    def argument(x: Any) -> Any:
        if id(x) not in modules:
            return recorder.node_of(x)
        name = f"branch_{next(recorder.numbers)}"
        setattr(recorder.root, name, modules[id(x)])
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


def _traced_branch(
    recorder: Recording, name: str, function: Any, operands: Sequence[Any]
) -> fx.GraphModule:
    """The graph of a branch.

    Raises:
        UnsupportedError: it uses a tensor from outside, or writes.
    """
    decompositions = {**recorder.decompositions, **_DETACH}
    try:
        module = make_fx(function, decompositions)(*operands)
        if any(map(is_write, module.graph.nodes)):  # to what it has made, say
            functional = torch.func.functionalize(function, remove="mutations")
            module = make_fx(functional, decompositions)(*operands)
    except AssertionError as error:  # of the fake mode
        raise UnsupportedError(
            f"a branch of {name} uses a tensor from outside",
            code="branch-of-operator",
            path=recorder.user_line(),
            got=str(error)[:200],
            fix="pass it as an operand",
        ) from error
    if any(map(is_write, module.graph.nodes)):
        raise UnsupportedError(
            f"a branch of {name} writes in place",
            code="branch-of-operator",
            path=recorder.user_line(),
            fix="write out of place",
        )
    return module


def _of_operators(recorder: Recording, module: fx.GraphModule) -> fx.GraphModule:
    """A branch that Dynamo has made calls functions of Python; back ends want operators."""
    inputs = [n.meta.get("example_value") for n in module.graph.find_nodes(op="placeholder")]
    if any(x is None for x in inputs):  # torch's own trace made it
        return module
    with recorder.mode:
        examples = [
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device) for x in inputs
        ]
    with (
        indexing_by_tensors(),
        unbound_symbols_set_aside(recorder.mode.shape_env),
    ):
        return make_fx(module, {**recorder.decompositions, **_DETACH})(*examples)


def _result(recorder: Recording, value: Any) -> Any:
    """What the operator has made is no view of something inside it (in torch 2.11, that of flex
    attention is)."""
    if isinstance(value, Tensor) and value._base is not None and not recorder.knows(value._base):
        return detached(recorder.mode, value)
    return value
