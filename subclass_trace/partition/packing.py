"""Saved activations in another form: rounded to int8 or FP8 by rows, or moved to the CPU (`offload`).

One saved tensor stays one saved tensor of the same name, so that every backward of a region, those traced later too,
can take it and unpack it. The graphs hold aten operations alone. A row is the last dimension; its scale (float32) is its
largest magnitude over 127 (int8) or 448 (FP8, e4m3). Packed bytes: 4 for each row, then one for each element.

A backward must not read values rounded of which no small error is small in the gradient (`sensitive`):

- *Poles*: what it divides by, takes a logarithm of, or multiplies over a dimension: the error counts in proportion to the
  number, however small that is, and rounded to 0 it makes the gradient NaN.
- *Jumps*: what it compares, or takes the sign or the whole part of. The backward of ``amax`` looks for the elements that
  are equal to the result, and finds none among rounded ones.

- *Quotients* that the backward needs and the forward could compute for it, such as ``1 / (x * x + y * y)`` of ``atan2``: the
  large ones would take all steps of a row.

Such values stay exact, through the views and pointwise operations of the backward up to what is saved. Where only the sign
matters (``relu``, ``abs``), rounding that keeps it is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.fx as fx

from .. import torch_api
from ..errors import OptionError
from .hooks import unpack_late
from .offload import Offload, arrange, begin_offload, begin_reload
from .rules import INF
from .table import COLLECTIVE, GETITEM, VIEW, Table, storage_key

aten = torch.ops.aten
Form = Literal["int8", "fp8", "cpu"]
#: a form for all, for operations (overloads, or names: "aten.gelu.default"), or chosen by a function of the node
Store = str | Mapping[Any, str] | Callable[[fx.Node], "str | None"]
Edit = Callable[[fx.Graph, fx.Node], fx.Node]
FORMS = ("int8", "fp8", "cpu")
_LARGEST = {"int8": 127.0, "fp8": 448.0}
_SMALLEST = {"int8": 1.0, "fp8": 2.0**-9}
_DTYPE = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
#: smaller tensors are not worth it
MIN_BYTES = 1024
#: a tensor on the CPU takes no memory of the device, but its way there is not free
_TRANSFER = 0.05


@dataclass(frozen=True, eq=False)
class Packing:
    """How a saved tensor is kept.

    Attributes:
        value: the example value that it is unpacked to.
        signs: rounding keeps the signs; numbers that would become 0 become the smallest of their sign.
    """

    form: str
    value: torch.Tensor
    offload: Offload
    signs: bool = False


def forms(t: Table, store: Store, weights: list[float], offload: Offload) -> dict[int, str]:
    """The form that is allowed for each row: those that are asked for, that cost bytes, and that can be packed.

    What the backward must not read rounded stays exact (`sensitive`).

    Raises:
        OptionError: an unknown form.
    """
    found = {}
    exact = sensitive(t).exact
    for i in t.rows:
        if t.late[i] or t.is_placeholder(i) or not MIN_BYTES <= weights[i] < INF or t.bits[i] & COLLECTIVE:
            continue
        form = _asked(store, t.nodes[i])
        if form is None:
            continue
        check_form(form)
        if form != "cpu" and i in exact:
            continue
        if _fits(t.val[i], form, offload):
            found[i] = form
    return found


def check_form(form: object) -> None:
    """Is this one of the forms?

    Raises:
        OptionError: it is not.
    """
    if form not in FORMS:
        raise OptionError("unknown form to store", path="MinCut.store", expected=f"one of {FORMS}", got=repr(form))


def check_store(store: object) -> None:
    """Check what can be checked of a store before there is a graph.

    Raises:
        OptionError: a form that is unknown, or an operation that is neither a name nor an overload.
    """
    if isinstance(store, str):
        check_form(store)
    elif isinstance(store, Mapping):
        for key, form in store.items():
            check_form(form)
            if not isinstance(key, (str, torch_api.OpOverload)):
                raise OptionError(
                    "a form is stored for what is no operation",
                    path="MinCut.store",
                    expected='an overload such as torch.ops.aten.gelu.default, or its name, "aten.gelu.default"',
                    got=repr(key),
                )
    elif store is not None and not callable(store):
        raise OptionError(
            "store is no form",
            path="MinCut.store",
            expected=f"one of {FORMS}, a dict from operations to them, or a function of the node",
            got=repr(store),
        )


def _asked(store: Store, node: fx.Node) -> str | None:
    if isinstance(store, str):
        return store
    if isinstance(store, Mapping):
        return store.get(str(node.target)) or store.get(node.target)
    return store(node)


def _fits(value: Any, form: str, offload: Offload) -> bool:
    if storage_key(value) is None or any(type(n) is not int for n in value.shape):
        return False
    if form == "cpu":
        return bool(value.device.type != "cpu" or offload.streams) and torch_api.is_dense(value)
    return bool(value.is_floating_point() and value.dtype.itemsize >= 2 and value.is_contiguous() and value.dim() > 0)


def packed_share(value: torch.Tensor, form: str) -> float:
    """What it weighs packed, over its weight: bytes; for the CPU, what the way there and back costs."""
    if form == "cpu":
        return _TRANSFER
    return (value.numel() + 4 * (value.numel() // value.shape[-1])) / (value.numel() * value.dtype.itemsize)


# ---------------------------------------------------------------------------------------------- graphs
def _call(graph: fx.Graph, op: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """A node with its example value."""

    def example(a: fx.Node) -> Any:
        return a.meta["val"]

    node = graph.call_function(op, args, kwargs)
    values, keywords = fx.node.map_arg((args, kwargs), example)
    first = values[0][0] if isinstance(values[0], (list, tuple)) else values[0]
    with first.fake_mode:
        node.meta["val"] = op(*values, **keywords)
    return node


def pack(graph: fx.Graph, node: fx.Node, packing: Packing) -> fx.Node:
    """Insert what packs a tensor, right after it, so that it is freed when the forward has no more use for it."""
    if packing.form == "cpu":
        return begin_offload(graph, node, packing.offload)
    with graph.inserting_before(node.next):
        return _rounded(graph, node, packing.form, packing.signs)


def _rounded(graph: fx.Graph, node: fx.Node, form: str, signs: bool) -> fx.Node:
    x = node.meta["val"]
    wide = _call(graph, aten._to_copy.default, node, dtype=torch.float32)
    size = _call(graph, aten.abs.default, wide)
    largest = _call(graph, aten.amax.default, size, [-1], True)
    scale = _call(graph, aten.div.Tensor, _call(graph, aten.clamp_min.default, largest, 1e-12), _LARGEST[form])
    ratio = _call(graph, aten.div.Tensor, size if signs else wide, scale)
    if form == "int8":
        ratio = _call(graph, aten.round.default, ratio)
    if signs:
        ratio = _call(graph, aten.clamp_min.default, ratio, _SMALLEST[form])
        ratio = _call(graph, aten.mul.Tensor, ratio, _call(graph, aten.sign.default, wide))
    small = _call(graph, aten._to_copy.default, ratio, dtype=_DTYPE[form])
    rows = x.numel() // x.shape[-1]
    scales = _call(graph, aten.view.dtype, _call(graph, aten.view.default, scale, [rows]), torch.uint8)
    numbers = _call(graph, aten.view.default, _call(graph, aten.view.dtype, small, torch.uint8), [x.numel()])
    return _call(graph, aten.cat.default, [scales, numbers])


def unpack(graph: fx.Graph, node: fx.Node, packing: Packing) -> fx.Node:
    """Append what brings the tensor back; `_finish` moves it to its first use."""
    if packing.form == "cpu":
        return begin_reload(graph, node, packing.value.device, packing.offload)
    found = _widened(graph, node, packing)
    todo = [found]
    while todo:
        made = todo.pop()
        if made is not node:
            made.meta["unpack"] = True
            todo += made.all_input_nodes
    return found


def _widened(graph: fx.Graph, node: fx.Node, packing: Packing) -> fx.Node:
    x = packing.value
    rows = x.numel() // x.shape[-1]
    scales = _call(graph, aten.view.dtype, _call(graph, aten.slice.Tensor, node, 0, 0, 4 * rows), torch.float32)
    scales = _call(graph, aten.view.default, scales, [*x.shape[:-1], 1])
    numbers = _call(graph, aten.slice.Tensor, node, 0, 4 * rows, 4 * rows + x.numel())
    numbers = _call(graph, aten.view.dtype, numbers, _DTYPE[packing.form])
    numbers = _call(graph, aten.view.default, numbers, list(x.shape))
    wide = _call(graph, aten._to_copy.default, numbers, dtype=torch.float32)
    value = _call(graph, aten.mul.Tensor, wide, scales)
    return value if x.dtype is torch.float32 else _call(graph, aten._to_copy.default, value, dtype=x.dtype)


@dataclass(frozen=True, eq=False)
class Edits:
    """What packing does to the two programs.

    Attributes:
        hand_over: row -> what the forward does to the value that it hands over.
        take: row -> what the backward does with it first.
        finish: moves the nodes of both to where they belong; None where nothing is packed.
    """

    hand_over: dict[int, Edit]
    take: dict[int, Edit]
    finish: Callable[[fx.Graph], None] | None


def packings(t: Table, packed: Mapping[int, str], offload: Offload) -> dict[int, Packing]:
    """How each packed row is kept."""
    signs = sensitive(t).signs if any(form in _DTYPE for form in packed.values()) else frozenset()
    return {i: Packing(form, t.val[i], offload, i in signs) for i, form in packed.items()}


def packing_edits(kept: Mapping[int, Packing]) -> Edits:
    """The edits that keep rows like this."""
    hand_over = {i: _packer(packing) for i, packing in kept.items()}
    take = {i: _unpacker(packing) for i, packing in kept.items()}
    return Edits(hand_over, take, _finish(kept.values()))


def _finish(kept: Collection[Packing]) -> Callable[[fx.Graph], None] | None:
    """Copies and what is unpacked go to where they belong: else all would be in memory at once, at the start."""
    offload = next((p.offload for p in kept if p.form == "cpu"), None)

    def finish(graph: fx.Graph) -> None:
        unpack_late(graph)
        if offload is not None:
            arrange(graph, offload)

    return finish if kept else None


def _packer(packing: Packing) -> Edit:
    return lambda graph, node: pack(graph, node, packing)


def _unpacker(packing: Packing) -> Edit:
    def take(graph: fx.Graph, node: fx.Node) -> fx.Node:
        node.meta = {**node.meta, "val": packed_example(packing)}
        return unpack(graph, node, packing)

    return take


def packed_example(packing: Packing) -> torch.Tensor:
    """The example value of the packed tensor."""
    graph = fx.Graph()
    node = graph.placeholder("x")
    node.meta["val"] = packing.value
    made: torch.Tensor = pack(graph, node, packing).meta["val"]
    return made


def unpack_inputs(module: fx.GraphModule, packed: Mapping[str, Packing]) -> None:
    """Let a backward that was traced later take packed tensors (changes the module)."""
    graph = module.graph
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    for node in inputs:
        packing = packed.get(node.name)
        users = list(node.users)
        if packing is None or not users:
            continue
        with graph.inserting_before(inputs[-1].next):
            value = _unpacker(packing)(graph, node)
        for user in users:
            user.replace_input_with(node, value)
    finish = _finish(packed.values())
    if finish is not None:
        finish(graph)
    module.recompile()


# ---------------------------------------------------------------------------------------------- what stays exact
#: operation -> the argument of which the relative error counts
_POLES: dict[Any, int] = {
    **dict.fromkeys((aten.div, aten.true_divide, aten.floor_divide, aten.remainder, aten.fmod, aten.xlogy), 1),
    **dict.fromkeys((aten.reciprocal, aten.rsqrt, aten.log, aten.log2, aten.log10, aten.log1p, aten.lgamma), 0),
    **dict.fromkeys((aten.digamma, aten.logit, aten.atanh, aten.acosh, aten.linalg_inv_ex, aten.prod, aten.cumprod), 0),
    **dict.fromkeys((aten.polygamma, aten.special_zeta, aten.logit_backward), 1),
    aten.linalg_solve_triangular: 0,
    aten.addcdiv: 2,
    aten._weight_norm_interface_backward: 3,
}
#: these are never 0, whatever is rounded before them
_NEVER_ZERO = (aten.exp, aten.exp2, aten.cosh, aten.sigmoid, aten.softplus)
#: operation -> the argument at which it jumps
_JUMPS: dict[Any, int] = {
    **dict.fromkeys((aten.floor, aten.ceil, aten.round, aten.trunc, aten.frac), 0),
    **dict.fromkeys((aten.hardtanh_backward, aten.hardswish_backward, aten.hardsigmoid_backward), 1),
    **dict.fromkeys((aten.softshrink_backward, aten.hardshrink_backward, aten.threshold_backward), 1),
    **dict.fromkeys((aten.floor_divide, aten.remainder, aten.fmod), 0),
}
#: operation -> the argument of which it reads the sign, and nothing else that jumps
_SIGNS: dict[Any, int] = {
    **dict.fromkeys((aten.sign, aten.sgn, aten.logical_not), 0),
    **dict.fromkeys((aten.leaky_relu_backward, aten._prelu_kernel_backward, aten.rrelu_with_noise_backward), 1),
    aten.elu_backward: 5,
}
#: these only move numbers
_COPIES = (
    *(aten._to_copy, aten.clone, aten.cat, aten.stack, aten.flip, aten.roll, aten.repeat),
    *(aten.constant_pad_nd, aten.index_select, aten.index, aten.gather),
)
_COMPARISONS = (aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge)


@dataclass(frozen=True)
class Sensitive:
    """Rows that must not be rounded; and others, of which rounding must keep the sign (and zeros)."""

    exact: frozenset[int]
    signs: frozenset[int]


def sensitive(t: Table) -> Sensitive:
    """What the operations of the backward ask of the rows that they read."""
    exact: set[int] = set()
    signs: set[int] = set()
    for u in reversed(t.rows):
        node = t.nodes[u]
        if node.op != "call_function":
            continue
        if not t.early[u]:
            for argument, only_sign in _demands_of(t, u):
                (signs if only_sign else exact).add(t.same[t.row[argument]])
        if t.view[u] or t.bits[u] & (VIEW | GETITEM):
            for rows in (exact, signs):
                rows.update(t.ins[u] if u in rows else ())
        elif (u in exact or u in signs) and not t.early[u] and _passes_on(node):
            exact.update(t.ins[u])
    exact |= _without_range(t)
    return Sensitive(frozenset(exact), frozenset(signs - exact))


def _without_range(t: Table) -> set[int]:
    """What the backward computes of quotients, and the forward could compute for it: its numbers have no common size."""
    found: set[int] = set()
    for u in t.rows:
        node = t.nodes[u]
        if node.op == "call_function" and not t.early[u]:
            pole = _pole(node, getattr(node.target, "overloadpacket", None)) is not None
            if pole or not found.isdisjoint(t.ins[u]):
                found.add(u)
    return found


def _demands_of(t: Table, u: int) -> Iterator[tuple[fx.Node, bool]]:
    """The arguments that an operation must not get rounded, and whether their signs are enough."""
    node = t.nodes[u]
    packet = getattr(node.target, "overloadpacket", None)
    if packet in _COMPARISONS or packet is aten.threshold_backward:
        only_sign = node.args[-1] in (0, 0.0)
        jumps = node.args[1:2] if packet is aten.threshold_backward else node.args
        yield from [(a, only_sign) for a in jumps if isinstance(a, fx.Node)]
        return
    for table, only_sign in ((_JUMPS, False), (_SIGNS, True)):
        place = table.get(packet)
        if place is not None and place < len(node.args) and isinstance(node.args[place], fx.Node):
            yield node.args[place], only_sign  # type: ignore[misc]
    place = _pole(node, packet)
    if place is not None and place < len(node.args) and isinstance(node.args[place], fx.Node):
        yield node.args[place], False  # type: ignore[misc]
    if place is None and packet not in _SIGNS and _is_discrete(t.val[u]):  # argmax, sort, casts to whole numbers
        yield from [(a, False) for a in node.all_input_nodes if _is_float(a.meta.get("val"))]


def _pole(node: fx.Node, packet: Any) -> int | None:
    if packet is aten.pow:
        exponent = node.args[1]
        negative = isinstance(exponent, fx.Node) or (isinstance(exponent, (int, float)) and exponent < 0)
        return 0 if negative else None
    return _POLES.get(packet)


def _passes_on(node: fx.Node) -> bool:
    """Is a small error of the result one of the arguments'?"""
    target = node.target
    packet = getattr(target, "overloadpacket", None)
    if not isinstance(target, torch_api.OpOverload) or packet in _NEVER_ZERO:
        return False
    return torch.Tag.pointwise in target.tags or packet in _COPIES


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _is_discrete(value: Any) -> bool:
    values = value if isinstance(value, (list, tuple)) else [value]
    return any(isinstance(v, torch.Tensor) and not _is_float(v) for v in values)
