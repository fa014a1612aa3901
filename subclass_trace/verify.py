"""The verifier: checks between the stages that tests switch on. It finds our own faults, and those of partitioners.

Each stage has one function: `verify_joint` after the trace, `verify_partition` after the partition, `verify_plan` and
`verify_inputs` on the plan, `verify_backward` for a backward that is traced later. A rule is a function with a sentence
of documentation; each raises `VerificationError` with what is wrong, where, what was expected and what is there. The
functions check whenever they are called; callers in the package ask ``verify.ENABLED`` first::

    with verify.enabled():
        compiled(x).sum().backward()
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx as fx

from . import _torch
from .errors import VerificationError
from .plan import (
    BasePrimal,
    InputOutput,
    LeafPrimal,
    MutationPlan,
    OutputPlan,
    Plan,
    SizeOutput,
    SizePrimal,
    SymbolPlan,
    ValueAlias,
    ValueOutput,
    ViewOutput,
)
from .subclass.spec import LeafSpec, OpaqueSpec, RaggedSize, SizeExpr, Spec, WrapperSpec, leaf_count, spec_leaves

if TYPE_CHECKING:
    from .partition.interface import Partitioned

#: do the stages of the package call the verifier? Tests set it (`enabled`); the functions here check regardless.
ENABLED = False
_PLAIN = (torch.Tensor, torch.nn.Parameter, *_torch.FAKE_TYPES)


@contextlib.contextmanager
def enabled(on: bool = True) -> Iterator[None]:
    """While inside, every stage verifies what it made."""
    global ENABLED
    before, ENABLED = ENABLED, on
    try:
        yield
    finally:
        ENABLED = before


def _require(holds: object, what: str, path: object, *, expected: object, got: object) -> None:
    if not holds:
        raise VerificationError(what, path=path, expected=str(expected), got=str(got))


# ---------------------------------------------------------------------------------------------- graphs
def verify_joint(joint: fx.GraphModule, *, num_forward: int, tangents: Sequence[str]) -> None:
    """A joint graph: sound, dense, functional, tagged, with the right inputs, forward outputs free of tangents.

    Args:
        num_forward: how many of its outputs belong to the forward.
        tangents: the names of the tangents that it may take, those of the backwards that it differentiates included.
    """
    _sound(joint, "joint")
    _dense(joint, "joint")
    _functional(joint, "joint")
    _tagged(joint)
    _named_inputs(joint, tangents)
    _separate(joint, num_forward)


def verify_forward(forward: fx.GraphModule, *, write_back: bool = False) -> None:
    """The graph of a region without a backward.

    Args:
        write_back: it may end in ``copy_`` operations on its inputs.
    """
    _sound(forward, "forward")
    _dense(forward, "forward")
    _functional(forward, "forward", allowed=_write_backs(forward) if write_back else ())
    _named_inputs(forward, ())


def _sound(module: fx.GraphModule, where: str) -> None:
    """Every node is defined before it is used, and the graph returns one flat list."""
    try:
        module.graph.lint()
    except RuntimeError as error:
        raise VerificationError(
            "the graph is not sound", path=where, expected="a graph that lints", got=error
        ) from error
    outputs = module.graph.output_node().args[0]
    flat = isinstance(outputs, (list, tuple)) and not any(isinstance(o, (list, tuple, dict)) for o in outputs)
    _require(flat, "the graph does not return one flat list", where, expected="a flat list of nodes", got=outputs)


def _dense(module: fx.GraphModule, where: str) -> None:
    """No wrapper anywhere: values are FakeTensors, constants plain tensors, and every value is known."""
    for node in module.graph.nodes:
        path = f"{where}.{node.name}"
        if node.op in ("placeholder", "call_function"):
            _require(
                "val" in node.meta, "a node has no value", path, expected='node.meta["val"]', got=sorted(node.meta)
            )
            for value in _tensors(node.meta["val"]):
                fake = type(value) in _torch.FAKE_TYPES
                _require(
                    fake,
                    "a value in the graph is not dense",
                    path,
                    expected="a FakeTensor",
                    got=type(value).__qualname__,
                )
        elif node.op == "get_attr":
            held = _attribute(module, str(node.target))
            plain = isinstance(held, (fx.GraphModule, torch.Generator)) or type(held) in _PLAIN
            _require(plain, "a constant is not dense", path, expected="a plain tensor", got=type(held).__qualname__)


def _functional(module: fx.GraphModule, where: str, allowed: Collection[fx.Node] = ()) -> None:
    """No operation writes to its arguments, in the branches of higher order operators neither."""
    for node in module.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, _torch.OpOverload) and node not in allowed:
            mutable = _torch.op_schema(node.target).is_mutable
            _require(
                not mutable,
                "the graph holds an operation that writes to its arguments",
                f"{where}.{node.name}",
                expected="functional operations",
                got=node.target,
            )
        elif node.op == "get_attr":
            held = _attribute(module, str(node.target))
            if isinstance(held, fx.GraphModule):
                _functional(held, f"{where}.{node.target}")


def _write_backs(module: fx.GraphModule) -> list[fx.Node]:
    """The ``copy_`` operations on graph inputs at the end of a graph: after them nothing reads the inputs."""
    found = []
    for node in reversed(module.graph.nodes):
        if node.op == "output":
            continue
        target = node.args[0] if node.target is torch.ops.aten.copy_.default else None
        if not isinstance(target, fx.Node) or target.op != "placeholder":
            break
        found.append(node)
    return found


def _tagged(joint: fx.GraphModule) -> None:
    """Every call says whether it is forward or backward, and which autograd node it belongs to."""
    for node in joint.graph.nodes:
        if node.op != "call_function":
            continue
        path, tag = f"joint.{node.name}", node.meta.get("partitioner_tag")
        tags = ("is_forward", "is_backward")
        _require(
            tag in tags, "a node is neither forward nor backward", path, expected=f"partitioner_tag in {tags}", got=tag
        )
        number = node.meta.get("seq_nr")
        known = isinstance(number, int) or not _tensors(node.meta["val"])  # sizes belong to no autograd node
        _require(known, "a node belongs to no autograd node", path, expected="an integer seq_nr", got=number)


def _named_inputs(module: fx.GraphModule, tangents: Sequence[str]) -> None:
    """Inputs are ``primals_N`` in rising order, and tangents that were declared."""
    last = 0
    for node in module.graph.nodes:
        if node.op != "placeholder" or node.target in tangents:
            continue
        name, _, number = str(node.target).rpartition("_")
        primal = name == "primals" and number.isdigit() and int(number) > last
        expected = f"primals_N with N > {last}, or one of the tangents {list(tangents)}"
        _require(primal, "a graph input has the wrong name", f"inputs.{node.name}", expected=expected, got=node.target)
        last = int(number)


def _separate(joint: fx.GraphModule, num_forward: int) -> None:
    """No output of the forward needs a tangent or a node of the backward."""
    outputs = list(joint.graph.output_node().args[0])  # type: ignore[arg-type]
    enough = len(outputs) >= num_forward
    _require(enough, "outputs are missing", "joint.outputs", expected=f"{num_forward} or more", got=len(outputs))
    late: dict[fx.Node, bool] = {}
    for node in joint.graph.nodes:
        own = str(node.target).startswith("tangents") if node.op == "placeholder" else False
        late[node] = own or any(late[i] for i in node.all_input_nodes)
    for k, out in enumerate(outputs[:num_forward]):
        free = not (isinstance(out, fx.Node) and late[out])
        _require(
            free,
            "an output of the forward needs a tangent",
            f"joint.outputs[{k}]",
            expected="none",
            got=getattr(out, "name", out),
        )


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in _tensors(v)] if isinstance(value, (list, tuple)) else []


def _attribute(module: torch.nn.Module, target: str) -> Any:
    value: Any = module
    for part in target.split("."):
        value = getattr(value, part, None)
    return value


# ---------------------------------------------------------------------------------------------- the partition
def verify_partition(
    parts: Partitioned, *, num_forward: int, tangents: Sequence[str], written: Collection[str] = ()
) -> None:
    """Two programs that fit each other.

    Args:
        num_forward, tangents: see `verify_joint`.
        written: graph inputs that the region writes; what is saved must not lie in their memory.
    """
    for module, where in ((parts.forward, "forward"), (parts.backward, "backward")):
        _sound(module, where)
        _dense(module, where)
        _functional(module, where)
    _named_inputs(parts.forward, ())
    values = _saved_values(parts, num_forward)
    _bound(parts, tangents)
    _same_values(parts, values)
    _protected(parts, values, written)


def verify_backward(graph: fx.GraphModule, inputs: Sequence[str], have: Collection[str]) -> None:
    """A backward that was traced later: it takes nothing but saved values and tangents, named in ``have``."""
    _sound(graph, "backward")
    _dense(graph, "backward")
    _functional(graph, "backward")
    names = [str(n.target) for n in graph.graph.nodes if n.op == "placeholder"]
    _require(names == list(inputs), "the inputs of the backward differ", "backward", expected=list(inputs), got=names)
    unknown = sorted(set(names) - set(have))
    _require(not unknown, "the backward takes what is not saved", "backward", expected=sorted(have), got=unknown)


def _saved_values(parts: Partitioned, num_forward: int) -> dict[str, Any]:
    """The forward returns its outputs and then one dense tensor or number for each saved name."""
    outputs = list(parts.forward.graph.output_node().args[0])  # type: ignore[arg-type]
    expected = num_forward + len(parts.saved)
    where = "forward.outputs"
    _require(
        len(outputs) == expected,
        "the forward returns the wrong number of values",
        where,
        expected=expected,
        got=len(outputs),
    )
    unique = len(set(parts.saved)) == len(parts.saved)
    _require(unique, "a value is saved twice", "saved", expected="distinct names", got=parts.saved)
    unknown = sorted(parts.extra - set(parts.saved))
    _require(not unknown, "an extra value is not saved", "saved", expected=sorted(parts.saved), got=unknown)
    values = dict(zip(parts.saved, outputs[num_forward:], strict=True))
    names = {n.name for n in parts.forward.graph.nodes}
    for name, node in values.items():
        _require(name in names, "a saved value is no node of the forward", f"saved.{name}", expected="a node", got=name)
        value = node.meta.get("val") if isinstance(node, fx.Node) else node
        dense = type(value) in _torch.FAKE_TYPES or isinstance(value, (*_torch.SYM_TYPES, int, float, bool))
        got = type(value).__qualname__
        _require(dense, "a saved value is not dense", f"saved.{name}", expected="a FakeTensor or a number", got=got)
    return values


def _bound(parts: Partitioned, tangents: Sequence[str]) -> None:
    """Every input of the backward is a saved value or a tangent, and what the partitioner saved is used."""
    inputs = [n for n in parts.backward.graph.nodes if n.op == "placeholder"]
    _require(
        len(inputs) == len(parts.backward_inputs),
        "not every input of the backward is bound",
        "backward.inputs",
        expected=f"{len(inputs)} names",
        got=parts.backward_inputs,
    )
    unknown = [n for n in parts.backward_inputs if n not in parts.saved and n not in tangents]
    _require(
        not unknown,
        "an input of the backward is neither saved nor a tangent",
        "backward.inputs",
        expected=[*parts.saved, *tangents],
        got=unknown,
    )
    unused = sorted(set(parts.saved) - parts.extra - set(parts.backward_inputs))
    _require(not unused, "a saved value is not used", "saved", expected="inputs of the backward", got=unused)


def _same_values(parts: Partitioned, values: dict[str, Any]) -> None:
    """A saved value is on both sides a tensor of the same dtype and shape, or a number."""
    inputs = [n for n in parts.backward.graph.nodes if n.op == "placeholder"]
    for node, name in zip(inputs, parts.backward_inputs, strict=True):
        if name in values:
            made, taken = values[name].meta.get("val"), node.meta.get("val")
            _require(
                _shape(made) == _shape(taken),
                "the forward saves something else than the backward takes",
                f"saved.{name}",
                expected=_shape(taken),
                got=_shape(made),
            )


def _protected(parts: Partitioned, values: dict[str, Any], written: Collection[str]) -> None:
    """No saved value lies in the memory of an input that is written: the write-back would change it."""
    memory = {
        _storage(n.meta["val"]): n.name
        for n in parts.forward.graph.nodes
        if n.op == "placeholder" and str(n.target) in written and isinstance(n.meta["val"], torch.Tensor)
    }
    for name, node in values.items():
        value = node.meta.get("val")
        owner = memory.get(_storage(value)) if isinstance(value, torch.Tensor) else None
        expected = "memory that no write-back changes"
        _require(
            owner is None,
            "a saved value lies in a written input",
            f"saved.{name}",
            expected=expected,
            got=f"memory of {owner}",
        )


def _storage(value: torch.Tensor) -> int:
    return int(value.untyped_storage()._cdata) if value.layout is torch.strided else id(value)


def _shape(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return "a number"
    return f"{value.dtype}{[str(n) for n in value.shape]}"


# ---------------------------------------------------------------------------------------------- the plan
def verify_plan(plan: Plan) -> None:
    """Every reference inside a plan exists, and every size can be computed from the sizes of a call."""
    _plan_inputs(plan)
    _plan_positions(plan)
    for k, row in enumerate(plan.symbols):
        _plan_symbol(plan, k, row)
    _plan_primals(plan)
    _plan_values(plan)
    for k, mutation in enumerate(plan.mutations):
        _plan_mutation(plan, f"mutations[{k}]", mutation)
    twice = len({m.input for m in plan.mutations}) == len(plan.mutations)
    got = [m.input for m in plan.mutations]
    _require(twice, "an input is changed by two rows", "mutations", expected="one row per input", got=got)
    leaves = plan.out_tree.num_leaves + len(plan.assignments)  # what modules are given stands after the results
    same = leaves == len(plan.outputs)
    _require(same, "results are missing", "outputs", expected=f"{leaves}, as in out_tree", got=len(plan.outputs))
    for k, output in enumerate(plan.outputs):
        _plan_output(plan, f"outputs[{k}]", output)
    for k, alias in enumerate(plan.aliases):
        _plan_alias(plan, f"aliases[{k}]", alias)
    _plan_autograd(plan)
    _plan_sizes(plan)


def _exists(number: object, count: int, what: str, path: str) -> None:
    inside = isinstance(number, int) and 0 <= number < count
    _require(inside, f"{what} does not exist", path, expected=f"a number below {count}", got=number)


def _plan_inputs(plan: Plan) -> None:
    """Every input has one place in the leaf table per leaf, and every place is filled."""
    filled: set[int] = set()
    for k, row in enumerate(plan.inputs):
        path, count = f"inputs[{k}] {row.path}", leaf_count(row.spec)
        expected = f"{count} places"
        _require(
            len(row.leaves) == count, "an input's leaves do not fit its spec", path, expected=expected, got=row.leaves
        )
        for place in row.leaves:
            _exists(place, plan.leaf_count, "a leaf", path)
        filled.update(row.leaves)
        reachable = (row.position is None) == (row.constant is not None)
        got = f"position={row.position}"
        _require(reachable, "an input cannot be found in a call", path, expected="a position or a constant", got=got)
        if row.position is not None:
            _exists(row.position, len(plan.positions), "a position", path)
    empty = sorted(set(range(plan.leaf_count)) - filled)
    _require(not empty, "a place in the leaf table is never filled", "leaf_count", expected="inputs for all", got=empty)


def _plan_positions(plan: Plan) -> None:
    """Flat positions and inputs refer to each other."""
    for position, number in enumerate(plan.positions):
        if number is not None:
            _exists(number, len(plan.inputs), "an input", f"positions[{position}]")
    for k, row in enumerate(plan.inputs):
        if row.position is not None:
            back = plan.positions[row.position]
            _require(back == k, "a position belongs to another input", f"inputs[{k}] {row.path}", expected=k, got=back)


def _plan_symbol(plan: Plan, k: int, row: SymbolPlan) -> None:
    """A symbol is read from a dimension that exists."""
    path = f"symbols[{k}] {row.symbol}"
    if row.kind == "argument":
        _exists(row.dim, len(plan.positions), "a position", path)
        number = plan.positions[row.dim]
        _require(number is None, "a symbol is read from a tensor", path, expected="a number", got=f"input {number}")
        return
    kinds = ("size", "stride", "storage_offset", "ragged", "argument")
    _require(row.kind in kinds, "a symbol comes from an unknown kind of number", path, expected=kinds, got=row.kind)
    one = (row.leaf is None) != (row.input is None)
    got = f"leaf={row.leaf}, input={row.input}"
    _require(one, "a symbol has no single source", path, expected="a leaf or an input", got=got)
    if row.leaf is not None:
        _exists(row.leaf, plan.leaf_count, "a leaf", path)
        spec: Any = _leaf_specs(plan)[row.leaf]
    else:
        _exists(row.input, len(plan.inputs), "an input", path)
        spec = plan.inputs[row.input].spec  # type: ignore[index]
    if row.kind != "storage_offset":
        _exists(row.dim, len(spec.size), "a dimension", path)


def _leaf_specs(plan: Plan) -> dict[int, LeafSpec]:
    return {place: spec for row in plan.inputs for place, spec in zip(row.leaves, spec_leaves(row.spec), strict=True)}


def _plan_primals(plan: Plan) -> None:
    """Graph inputs are leaves that exist, each once."""
    seen: set[int] = set()
    for k, primal in enumerate(plan.primals):
        path = f"primals[{k}]"
        members = primal.members if isinstance(primal, BasePrimal) else ()
        members = (primal.leaf,) if isinstance(primal, LeafPrimal) else members
        for leaf in members:
            _exists(leaf, plan.leaf_count, "a leaf", path)
            _require(
                leaf not in seen, "a leaf is two graph inputs", path, expected="one graph input", got=f"leaf {leaf}"
            )
            seen.add(leaf)


def _plan_values(plan: Plan) -> None:
    """Positions that are detached are outputs of the forward."""
    for k in plan.detach_values:
        _exists(k, plan.forward_leaves, "a forward output", "detach_values")


def _plan_mutation(plan: Plan, path: str, m: MutationPlan) -> None:
    """A mutation changes leaves that its input has, from a value that has as many."""
    _exists(m.input, len(plan.inputs), "an input", path)
    row = plan.inputs[m.input]
    path, count = f"{path} {row.path}", leaf_count(row.spec)
    for leaf in (*m.leaves, *m.replaced):
        _exists(leaf, count, "a leaf of the input", path)
    both = sorted(set(m.leaves) & set(m.replaced))
    _require(not both, "a leaf is both copied into and replaced", path, expected="one of them", got=both)
    strange = sorted(set(m.replaced.values()) - {"data", "attribute"})
    _require(not strange, "a leaf is replaced in an unknown way", path, expected="data or attribute", got=strange)
    if m.value is None:
        needs = m.leaves or m.replaced or m.differentiable
        _require(not needs, "a mutation has no new contents", path, expected="a forward value", got=None)
        return
    _exists(m.value, len(plan.values), "a forward value", path)
    held = leaf_count(plan.values[m.value])
    _require(held == count, "new contents do not fit the input", path, expected=f"{count} leaves", got=held)


def _plan_output(plan: Plan, path: str, o: OutputPlan) -> None:
    """A result refers to something that the call has."""
    if isinstance(o, SizeOutput):
        _exists(o.index, plan.size_outputs, "a symbolic number", path)
    elif isinstance(o, InputOutput):
        _exists(o.position, len(plan.positions), "a position", path)
        tensor = plan.positions[o.position] is not None
        _require(tensor, "the result is an argument that is no tensor", path, expected="a tensor", got=o.position)
    elif isinstance(o, ViewOutput):
        count = len(plan.inputs) if o.of_input else len(plan.values)
        _exists(o.base, count, "the base of a view", path)
        _require(callable(o.replay), "a view cannot be replayed", path, expected="a function", got=o.replay)
    elif isinstance(o, ValueOutput):
        _exists(o.value, len(plan.values), "a forward value", path)
        count = leaf_count(o.spec)
        held = leaf_count(plan.values[o.value])
        _require(held == count, "the result does not fit its value", path, expected=f"{count} leaves", got=held)


def _plan_alias(plan: Plan, path: str, row: ValueAlias) -> None:
    """A value that shares memory, and what it shares it with, exist."""
    _exists(row.value, len(plan.values), "a forward value", path)
    count = leaf_count(plan.values[row.value])
    fits = len(row.leaves) == count
    _require(fits, "aliases do not fit the value", path, expected=count, got=len(row.leaves))
    if row.holder is not None:
        _exists(row.holder[0], len(plan.inputs), "an input", path)
    for alias in row.leaves:
        if alias is None:
            continue
        if alias.value is None:
            _exists(alias.leaf, plan.leaf_count, "a leaf", path)
        else:
            _exists(alias.value, len(plan.values), "a forward value", path)
            _exists(alias.leaf, leaf_count(plan.values[alias.value]), "a leaf", path)


def _plan_autograd(plan: Plan) -> None:
    """Differentiable values and differentiated inputs exist; only wrappers are watched; saved names are distinct."""
    for k in plan.differentiable:
        _exists(k, len(plan.values), "a forward value", "differentiable")
    starts = {m.input for m in plan.mutations if m.starts_grad}
    for k in plan.differentiated:
        _exists(k, len(plan.inputs), "an input", "differentiated")
        row = plan.inputs[k]
        path = f"differentiated {row.path}"
        wanted = row.requires_grad or k in starts
        _require(
            wanted, "an input gets a gradient unasked", path, expected="requires_grad=True", got="requires_grad=False"
        )
    for k in plan.watched_inputs:
        _exists(k, len(plan.inputs), "an input", "watched_inputs")
        wrapper = isinstance(plan.inputs[k].spec, WrapperSpec)
        path = f"watched_inputs {plan.inputs[k].path}"
        _require(wrapper, "an input is watched that is no wrapper", path, expected="a wrapper", got="a dense tensor")
    names = [row.name for row in plan.saved]
    _require(len(set(names)) == len(names), "a value is saved twice", "saved", expected="distinct names", got=names)
    idle = bool(names) and not plan.trains
    _require(not idle, "values are saved without a backward", "saved", expected="nothing", got=names)


# ---------------------------------------------------------------------------------------------- sizes
def _plan_sizes(plan: Plan) -> None:
    """Sizes are ints, or expressions over symbols that a call binds; no size of the trace is left."""
    bound = {row.symbol for row in plan.symbols} | {symbol for symbol, _ in plan.unbacked}
    _require(
        len(bound) == len(plan.symbols) + len(plan.unbacked),
        "a symbol is bound twice",
        "symbols",
        expected="distinct",
        got=plan.symbols,
    )
    for path, size in _all_sizes(plan):
        if isinstance(size, RaggedSize):
            continue
        known = isinstance(size, (int, SizeExpr)) and not isinstance(size, torch.SymInt)
        _require(known, "a size of the trace is left", path, expected="an int or a SizeExpr", got=repr(size))
        if isinstance(size, SizeExpr):
            free = sorted(map(str, size.expr.free_symbols - bound))
            _require(
                not free, "a size uses a symbol that no call binds", path, expected=sorted(map(str, bound)), got=free
            )
    for k, condition in enumerate(plan.conditions):
        free = sorted(map(str, condition.free_symbols - bound))
        path = f"conditions[{k}]"
        _require(
            not free, "a condition uses a symbol that no call binds", path, expected=sorted(map(str, bound)), got=free
        )


def _all_sizes(plan: Plan) -> Iterator[tuple[str, Any]]:
    for k, row in enumerate(plan.inputs):
        yield from _spec_sizes(row.spec, f"inputs[{k}] {row.path}", leaves=True)
    for k, value in enumerate(plan.values):
        yield from _spec_sizes(value, f"values[{k}]", leaves=False)
    for k, m in enumerate(plan.mutations):
        if m.metadata is not None:
            yield from _spec_sizes(m.metadata, f"mutations[{k}].metadata", leaves=True)
    for k, o in enumerate(plan.outputs):
        if isinstance(o, ValueOutput):
            yield from _spec_sizes(o.spec, f"outputs[{k}]", leaves=False)
    for k, alias in enumerate(plan.aliases):
        yield from _spec_sizes(alias.spec, f"aliases[{k}]", leaves=True)
        yield from ((f"aliases[{k}]", a.delta) for a in alias.leaves if a is not None)
    for k, primal in enumerate(plan.primals):
        if isinstance(primal, SizePrimal):
            yield f"primals[{k}]", primal.size
        elif isinstance(primal, BasePrimal):
            yield f"primals[{k}]", primal.numel


def _spec_sizes(spec: Spec, path: str, leaves: bool) -> Iterator[tuple[str, Any]]:
    """Sizes that the run time evaluates: of a forward value those of wrappers alone, since its leaves have theirs."""
    if isinstance(spec, OpaqueSpec) or (isinstance(spec, LeafSpec) and not leaves):
        return
    sizes: Iterable[Any] = (*spec.size, *spec.stride)
    if isinstance(spec, LeafSpec):
        sizes = (*sizes, spec.storage_offset)
    yield from ((path, n) for n in sizes)
    if isinstance(spec, WrapperSpec):
        for name, inner in zip(spec.names, spec.inners, strict=True):
            yield from _spec_sizes(inner, f"{path}.{name}", leaves)


# ---------------------------------------------------------------------------------------------- graph and plan
def verify_inputs(forward: fx.GraphModule, plan: Plan) -> None:
    """The forward graph takes what the plan's primals give, and returns what the plan reads from it."""
    nodes = [n for n in forward.graph.nodes if n.op == "placeholder"]
    _require(
        len(nodes) == len(plan.primals),
        "the graph takes another number of inputs than the plan gives",
        "forward.inputs",
        expected=len(plan.primals),
        got=[n.name for n in nodes],
    )
    specs = _leaf_specs(plan)
    for node, primal in zip(nodes, plan.primals, strict=True):
        value = node.meta["val"]
        if isinstance(primal, SizePrimal):
            expected, got = "a number", _kind(value)
        elif isinstance(primal, BasePrimal):
            expected, got = f"{primal.dtype} of rank 1", _kind(value)
        else:
            spec = specs[primal.leaf]
            expected, got = f"{spec.dtype} of rank {len(spec.size)}", _kind(value)
        same = expected == got
        _require(same, "a graph input differs from its leaf", f"forward.{node.name}", expected=expected, got=got)
    outputs = list(forward.graph.output_node().args[0])  # type: ignore[arg-type]
    count = plan.forward_leaves + plan.size_outputs + len(plan.saved)
    where = "forward.outputs"
    _require(
        len(outputs) == count, "the graph returns another number of values", where, expected=count, got=len(outputs)
    )
    leaves = [leaf for spec in plan.values for leaf in spec_leaves(spec)]
    for k, (node, leaf) in enumerate(zip(outputs, leaves, strict=False)):
        expected, got = f"{leaf.dtype} of rank {len(leaf.size)}", _kind(node.meta["val"])
        path = f"{where}[{k}]"
        _require(expected == got, "an output differs from the plan's value", path, expected=expected, got=got)


def _kind(value: Any) -> str:
    return f"{value.dtype} of rank {value.dim()}" if isinstance(value, torch.Tensor) else "a number"
