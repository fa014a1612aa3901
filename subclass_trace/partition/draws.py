"""Random numbers that the backward draws again: the state of the generator is saved instead of what was drawn.

    subclass_trace::draw(method, size, parameters, dtype) -> (x, state)      as ``empty(size).method(*parameters)``
    subclass_trace::draw_again(state, method, size, parameters, dtype) -> x  the same numbers

Both draw from a generator of their own, set to the state. So the numbers are the same whatever other threads draw in
between, the backward leaves every generator where it was, and a graph may be run at any time, any number of times.
``draw`` moves the default generator to where drawing from it would have left it.

Only for the CPU, where a state has 5056 bytes: reading one while a CUDA graph is captured is an error, which cannot be
known when the graph is partitioned. Only for draws that depend on sizes and numbers alone, and that are not results.
Compilers may draw in another order, or with generators of their own, so the numbers themselves are saved for them.
"""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from .table import Table, storage_key

Tensor = torch.Tensor
aten = torch.ops.aten
#: the form of a draw whose generator's state is saved
STATE = "generator state"
#: bytes of the state of a generator of the CPU
STATE_BYTES = 5056
#: smaller draws are not worth it
MIN_BYTES = 2 * STATE_BYTES

#: operation -> the method that fills, and where its parameters begin among the arguments (None: it has none)
_FILLS: dict[Any, tuple[str, int | None]] = {
    aten.bernoulli.p: ("bernoulli_", 1),
    aten.uniform.default: ("uniform_", 1),
    aten.normal_functional.default: ("normal_", 1),
    aten.exponential.default: ("exponential_", 1),
    aten.geometric.default: ("geometric_", 1),
    aten.cauchy.default: ("cauchy_", 1),
    aten.log_normal.default: ("log_normal_", 1),
    aten.rand.default: ("uniform_", None),
    aten.rand_like.default: ("uniform_", None),
    aten.randn.default: ("normal_", None),
    aten.randn_like.default: ("normal_", None),
}
#: what a draw may be told besides, all of which its example value shows
_SHOWN = frozenset({"generator", "dtype", "layout", "device", "pin_memory", "memory_format"})


@dataclass(frozen=True)
class Draw:
    """What was drawn: a tensor of this size and dtype, filled by this method with these parameters."""

    method: str
    size: tuple[int, ...]
    parameters: tuple[float, ...]
    dtype: torch.dtype

    @property
    def arguments(self) -> tuple[Any, ...]:
        """As the operations take them."""
        return self.method, list(self.size), list(self.parameters), self.dtype


def draw_of(t: Table, i: int) -> Draw | None:
    """What row ``i`` draws, if that can be drawn again from a saved state, which is the smaller of the two."""
    node, value = t.nodes[i], t.val[i]
    fill = _FILLS.get(node.target)
    if fill is None or i in t.outputs or t.late[i] or t.size[i] < MIN_BYTES or storage_key(value) is None:
        return None
    method, begin = fill
    parameters = () if begin is None else tuple(node.args[begin:])
    plain = all(type(p) in (int, float) for p in parameters) and all(type(n) is int for n in value.shape)
    told = set(node.kwargs) <= _SHOWN and node.kwargs.get("generator") is None and not node.kwargs.get("pin_memory")
    if not (plain and told and value.device.type == "cpu" and value.is_floating_point() and value.is_contiguous()):
        return None
    return Draw(method, tuple(value.shape), tuple(map(float, parameters)), value.dtype)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------- graphs
def hand_over_state(graph: fx.Graph, node: fx.Node, draw: Draw) -> fx.Node:
    """Let ``node`` of the forward draw so that there is a state to hand over."""
    value = node.meta["val"]
    with graph.inserting_before(node):
        both = graph.call_function(operations()[0], draw.arguments)
    with graph.inserting_after(node):
        state = graph.call_function(operator.getitem, (both, 1))
    state.meta = {**node.meta, "val": state_example(value)}
    both.meta = {**node.meta, "val": (value, state.meta["val"])}
    node.target, node.args, node.kwargs = operator.getitem, (both, 0), {}  # its name says what is saved
    return state


def draw_from_state(graph: fx.Graph, state: fx.Node, draw: Draw, value: Tensor) -> fx.Node:
    """Append what draws the same numbers again."""
    node = graph.call_function(operations()[1], (state, *draw.arguments))
    node.meta["val"] = value
    return node


def state_example(value: Any) -> Tensor:
    """The example value of a state, of the mode of another one."""
    with value.fake_mode:
        return torch.empty(STATE_BYTES, dtype=torch.uint8, device="cpu")


# ---------------------------------------------------------------------------------------------- operations
_library: list[Any] = []  # what is registered lasts as long as this object
_arguments = "str method, SymInt[] size, float[] parameters, ScalarType dtype"
#: regions of several threads take turns, so that no two of them draw the same numbers
_lock = threading.Lock()


@functools.cache
def operations() -> tuple[Any, Any]:
    """``draw`` and ``draw_again``, registered on the first call."""
    library: Any = torch.library.Library("subclass_trace", "FRAGMENT")  # type: ignore[no-untyped-call]
    _library.append(library)
    seeded = (torch.Tag.nondeterministic_seeded,)
    library.define(f"draw({_arguments}) -> (Tensor, Tensor)", tags=seeded)
    library.define(f"draw_again(Tensor state, {_arguments}) -> Tensor")
    for name, real, fake in (("draw", _draw, _draw_fake), ("draw_again", _draw_again, _draw_again_fake)):
        library.impl(name, real, "CompositeExplicitAutograd")
        torch.library.register_fake(f"subclass_trace::{name}", fake, lib=library)
    return torch.ops.subclass_trace.draw.default, torch.ops.subclass_trace.draw_again.default


def _fill(generator: Any, method: str, size: Sequence[int], parameters: Sequence[float], dtype: torch.dtype) -> Tensor:
    made: Tensor = getattr(torch.empty(size, dtype=dtype, device="cpu"), method)(*parameters, generator=generator)
    return made


def _draw(method: str, size: Sequence[int], parameters: Sequence[float], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    own = torch.Generator("cpu")
    with _lock:
        state = torch.default_generator.get_state()
        own.set_state(state)
        numbers = _fill(own, method, size, parameters, dtype)
        torch.default_generator.set_state(own.get_state())
    return numbers, state


def _draw_again(
    state: Tensor, method: str, size: Sequence[int], parameters: Sequence[float], dtype: torch.dtype
) -> Tensor:
    own = torch.Generator("cpu")
    own.set_state(state)
    return _fill(own, method, size, parameters, dtype)


def _draw_fake(
    method: str, size: Sequence[int], parameters: Sequence[float], dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    return torch.empty(size, dtype=dtype, device="cpu"), torch.empty(STATE_BYTES, dtype=torch.uint8, device="cpu")


def _draw_again_fake(
    state: Tensor, method: str, size: Sequence[int], parameters: Sequence[float], dtype: torch.dtype
) -> Tensor:
    return torch.empty(size, dtype=dtype, device="cpu")
