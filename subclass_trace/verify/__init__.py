"""The verifier: checks between the stages that tests switch on. It finds our own faults.

`verify_joint` after the trace, `verify_partition` after the partition, `verify_plan` on the plan
and the forward, `verify_guards` before they are bound. Each raises `VerificationError` with what is
wrong, where, what was expected and what is there. They check whenever they are called;
callers in the package ask ``verify.ENABLED`` first::

    with verify.enabled():
        compiled(x).sum().backward()
"""

from __future__ import annotations

import collections
import contextlib
import importlib.util
import operator
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx as fx

from ..capture.graphs import output_args, placeholders
from ..errors import OptionError, VerificationError
from ..plan import Plan, SavedValue
from ..plan.descriptors import AnyDescriptor
from ..state.guards import StateGuards
from ..state.place import GONE, Roots
from ..torch_api.kinds import FAKE_TYPES, storage_key
from ..torch_api.operators import OpOverload, op_schema

if TYPE_CHECKING:
    from ..partition.interface import Partitioned

#: do the stages of the package call the verifier? Tests set it (`enabled`); the functions here
# check regardless.
ENABLED = False
#: does z3 prove the guards on sizes of each entry (`debug`)?
PROVES = False
#: are guards on sizes that the others imply left out (`debug`)? Apart from `PROVES`, so that tests
# prove the text that users get.
SPARES = False


class debug:
    """Switch checks of this package on or off, from now on or for a ``with`` block.

    >>> import subclass_trace as st
    >>> with st.debug(validate_guards=False):
    ...     pass

    Args:
        validate_guards: z3 proves that the guards on sizes of each new specialization imply all
            that its trace has assumed; a guard that the others imply is not emitted. ``explain()``
            says what was proved, and what is unknown. It takes some milliseconds for each trace.

    Raises:
        OptionError: z3 is not installed.
    """

    def __init__(self, *, validate_guards: bool) -> None:
        global PROVES, SPARES
        if validate_guards and importlib.util.find_spec("z3") is None:
            raise OptionError(
                "guards are proved by z3, which is not installed",
                path="validate_guards",
                fix="pip install 'subclass_trace[verify]'",
            )
        self._before = PROVES, SPARES
        PROVES = SPARES = bool(validate_guards)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        global PROVES, SPARES
        PROVES, SPARES = self._before


@contextlib.contextmanager
def enabled(on: bool = True) -> Iterator[None]:
    """While inside, every stage verifies what it made."""
    global ENABLED
    before, ENABLED = ENABLED, on
    try:
        yield
    finally:
        ENABLED = before


def _require(holds: object, what: str, path: object, expected: object, got: object) -> None:
    if not holds:
        raise VerificationError(what, path=path, expected=str(expected), got=str(got))


def verify_joint(joint: fx.GraphModule, num_forward: int, saved: Collection[str] = ()) -> None:
    """A joint graph: dense, functional, its first ``num_forward`` outputs, which are the forward's,
    free of tangents.

    ``saved``: values that were saved with an earlier joint graph; those that eager mode would keep
    are in this one as well.
    """
    _graph(joint, "joint")
    _descriptors(joint, "joint")
    found = collections.Counter(
        n.meta.get("trace_name") for n in joint.graph.nodes if "trace_name" in n.meta
    )
    twice = [name for name, count in found.items() if count > 1]
    _require(not twice, "two nodes are the same value of the trace", "joint", "one", twice)
    gone = [name for name in joint.meta.get("served", ()) if name in saved and name not in found]
    _require(not gone, "a value that is saved is not in the graph", "joint", "its trace_name", gone)
    late: dict[fx.Node, bool] = {}
    for node in joint.graph.nodes:
        own = str(node.target).startswith("tangents") if node.op == "placeholder" else False
        late[node] = own or any(late[i] for i in node.all_input_nodes)
    needing = [
        o for o in output_args(joint.graph)[:num_forward] if isinstance(o, fx.Node) and late[o]
    ]
    _require(
        not needing, "an output of the forward needs a tangent", "joint.outputs", "none", needing
    )


def verify_partition(
    parts: Partitioned, num_forward: int, tangents: Sequence[str], written: Collection[str] = ()
) -> None:
    """Two programs that fit each other; what is saved must not lie in the memory of inputs that the
    region writes."""
    _graph(parts.backward, "backward")
    _descriptors(parts.backward, "backward")
    values = dict(zip(parts.saved, output_args(parts.forward.graph)[num_forward:], strict=False))
    inputs = placeholders(parts.backward.graph)
    known = len(inputs) == len(parts.backward_inputs) and set(parts.backward_inputs) <= {
        *values,
        *tangents,
    }
    what = "an input of the backward is neither saved nor a tangent"
    _require(known, what, "backward.inputs", [*values, *tangents], parts.backward_inputs)
    for node, name in zip(inputs, parts.backward_inputs, strict=True):
        if name in values:
            made, taken = _shape(values[name]), _shape(node)
            what = "the forward saves something else than the backward takes"
            _require(made == taken, what, f"saved.{name}", taken, made)
    given = [n for n in placeholders(parts.forward.graph) if str(n.target) in written]
    memory = {storage_key(n.meta["val"]): n.name for n in given}
    for name, node in values.items():
        owner = memory.get(storage_key(node.meta["val"]))
        _require(
            owner is None,
            "a saved value lies in a written input",
            f"saved.{name}",
            "memory of its own",
            owner,
        )


def verify_plan(forward: fx.GraphModule, plan: Plan, in_place: bool = False) -> None:
    """The forward graph (``in_place``: as recorded) takes what the plan's primals give, and returns
    what the plan reads."""
    _graph(forward, "forward", in_place)
    _descriptors(forward, "forward")
    taken, given = len(placeholders(forward.graph)), len(plan.inputs.primals)
    what = "the graph takes another number of inputs than the plan gives"
    _require(taken == given, what, "forward.inputs", given, taken)
    count = plan.results.forward_leaves + plan.results.size_outputs + len(plan.gradients.saved)
    made = len(output_args(forward.graph))
    _require(
        made == count, "the graph returns another number of values", "forward.outputs", count, made
    )


def verify_guards(guards: StateGuards, call: Roots) -> None:
    """Each place can be read again in the call that it was read in; what calls a cache is not
    asked."""
    for row in guards.rows:
        if not row.place.late:
            try:
                row.holds(call)
            except GONE as error:
                _require(
                    False,
                    "the place of a guard cannot be read",
                    row.place,
                    "as it was read",
                    repr(error),
                )


# ---- graphs
def _descriptors(module: fx.GraphModule, where: str) -> None:
    """Each input and each output says what it is."""
    inputs = placeholders(module.graph)
    dumb = [
        n.name
        for n in inputs
        if not isinstance(n.meta.get("descriptor"), AnyDescriptor | SavedValue)
    ]
    _require(
        not dumb,
        "an input does not say what it is",
        f"{where}.inputs",
        'node.meta["descriptor"]',
        dumb,
    )
    said, count = module.meta.get("descriptors", ()), len(output_args(module.graph))
    complete = len(said) == count and all(isinstance(d, AnyDescriptor | SavedValue) for d in said)
    _require(
        complete,
        "an output does not say what it is",
        f"{where}.outputs",
        f"{count} descriptors",
        [*map(str, said)],
    )


def _graph(
    module: fx.GraphModule, where: str, in_place: bool = False, branch: bool = False
) -> None:
    """Values are known FakeTensors, constants plain tensors; no operation writes, in branches of
    operators neither."""
    for node in module.graph.nodes:
        path = f"{where}.{node.name}"
        if node.op in ("placeholder", "call_function") and not branch:
            _require(
                "val" in node.meta,
                "a node has no value",
                path,
                'node.meta["val"]',
                sorted(node.meta),
            )
            others = [
                type(t).__qualname__
                for t in _tensors(node.meta["val"])
                if type(t) not in FAKE_TYPES
            ]
            _require(not others, "a value in the graph is not dense", path, "FakeTensors", others)
        if node.op == "get_attr":
            held = operator.attrgetter(str(node.target))(module)
            dense = type(held) in (torch.Tensor, torch.nn.Parameter, *FAKE_TYPES)
            dense = dense or not isinstance(held, torch.Tensor)
            _require(
                dense, "a constant is not dense", path, "a plain tensor", type(held).__qualname__
            )
            if isinstance(held, fx.GraphModule):
                _graph(held, path, in_place, branch=True)
        elif node.op == "call_function" and isinstance(node.target, OpOverload) and not in_place:
            mutable = op_schema(node.target).is_mutable
            what = "the graph holds an operation that writes to its arguments"
            _require(not mutable, what, path, "functional operations", node.target)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    for part in value if isinstance(value, (list, tuple)) else ():
        yield from _tensors(part)


def _shape(node: fx.Node) -> str:
    value = node.meta["val"]
    return f"{value.dtype}{[*value.shape]}" if isinstance(value, torch.Tensor) else "a number"
