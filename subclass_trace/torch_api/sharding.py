"""DTensor works out the sizes and the placements of a result: in a trace as in eager, and as no
part of the graph."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._guards import detect_fake_mode

from .modes import no_modes, no_overrides, without_tracing
from .this_thread import replaced_here


@contextlib.contextmanager
def sharding_as_eager(
    below: Callable[[], contextlib.AbstractContextManager[None]],
) -> Iterator[None]:
    """Inside, DTensor chooses what it chooses in eager for the sizes of the call that is traced,
    and says what it says.

    Args:
        below: the context of what is not the user's; comparing the costs of placements is much
            Python.
    """
    with contextlib.ExitStack() as stack:
        module: Any = sys.modules.get("torch.distributed.tensor._sharding_prop")
        if module is not None:
            stack.enter_context(
                _meshes_as_outside(sys.modules["torch.distributed.device_mesh"].DeviceMesh)
            )
            stack.enter_context(_metadata_as_eager(module.ShardingPropagator))
            stack.enter_context(_slices_as_eager(module.ShardingPropagator, below))
            stack.enter_context(_unrecorded_decompositions())
            stack.enter_context(_strides_as_numbers(module.DTensorSpec))
            stack.enter_context(_hashes_not_kept(module.DTensorSpec))
            stack.enter_context(_sizes_as_numbers_for_offsets())
        yield


@contextlib.contextmanager
def _meshes_as_outside(cls: Any) -> Iterator[None]:
    """A part of a mesh is made of ranks that are numbers, not traced tensors."""
    original: Any = cls.__getitem__

    def part(*args: Any) -> Any:
        with no_overrides(), no_modes():
            return original(*args)

    with replaced_here(cls, "__getitem__", part):
        yield


@contextlib.contextmanager
def _metadata_as_eager(propagator: Any) -> Iterator[None]:
    """The metadata of results comes from fake tensors of the whole sizes.

    Torch 2.13 does not record what it computes with these. Before, it would be, more or less of it
    as DTensor's caches are warm. A size that depends on data is an error as in eager, where these
    fake tensors have no symbols: one of this trace would stay in DTensor's cache.
    """
    name = "_propagate_tensor_meta_non_cached"
    original: Any = getattr(propagator, name)
    recorded = "disable_proxy_modes_tracing" not in original.__code__.co_names

    def propagate(self: Any, op_schema: Any) -> Any:
        with without_tracing() if recorded else contextlib.nullcontext(), _no_sizes_from_data():
            return original(self, op_schema)

    with replaced_here(propagator, name, propagate):
        yield


@contextlib.contextmanager
def _no_sizes_from_data() -> Iterator[None]:
    """Fake kernels refuse what they would make a new symbol for."""
    env = getattr(detect_fake_mode(), "shape_env", None)
    if env is None:
        yield
        return
    before = env.settings
    env.settings = dataclasses.replace(
        before, allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False
    )
    try:
        yield
    finally:
        env.settings = before


@contextlib.contextmanager
def _slices_as_eager(propagator: Any, below: Any) -> Iterator[None]:
    """A slice of the whole of a dimension that is spread leaves it there, and another one gathers
    it first. For sizes that are symbols torch takes a slice for another one; here it is a condition
    of the trace."""
    rules: Any = sys.modules.get("torch.distributed.tensor._ops._tensor_ops")
    known: Any = getattr(rules, "statically_known_true", None)
    if known is None:
        yield
        return
    name, asked = "propagate_op_sharding_non_cached", [False]
    original: Any = getattr(propagator, name)

    def propagate(self: Any, op_schema: Any) -> Any:
        before, asked[0] = asked[0], _slices_a_spread_dimension(op_schema)
        try:
            with below():
                return original(self, _with_plain_floats(op_schema))
        finally:
            asked[0] = before

    def holds(condition: Any) -> bool:
        from torch.fx.experimental.symbolic_shapes import guard_or_false

        if not asked[0] or not isinstance(condition, torch.SymBool):
            return bool(known(condition))
        # The end of a slice that goes on to the end is this number, beyond all sizes.
        return getattr(condition.node.expr, "gts", None) == sys.maxsize or bool(
            guard_or_false(condition)
        )

    with (
        replaced_here(propagator, name, propagate),
        replaced_here(rules, "statically_known_true", holds),
    ):
        yield


def _with_plain_floats(op_schema: Any) -> Any:
    """How the result of an operation on each element is spread hangs on no float; torch looks its
    rules up by all arguments, and a float that only the call knows has no hash."""
    args, named, name = op_schema.args_schema, op_schema.kwargs_schema, op_schema.op.name()
    of_elements = torch.Tag.pointwise in op_schema.op.tags or name.startswith("aten::_foreach_")
    if (
        not of_elements
        or "norm" in name
        or not any(isinstance(a, torch.SymFloat) for a in (*args, *named.values()))
    ):
        return op_schema

    def plain(a: Any) -> Any:
        return 0.5 if isinstance(a, torch.SymFloat) else a

    named = {name: plain(a) for name, a in named.items()}
    return dataclasses.replace(op_schema, args_schema=tuple(map(plain, args)), kwargs_schema=named)


def _slices_a_spread_dimension(op_schema: Any) -> bool:
    if op_schema.op is not torch.ops.aten.slice.Tensor:
        return False
    spec, dim = op_schema.args_schema[0], (*op_schema.args_schema[1:2], 0)[0]
    return any(getattr(p, "dim", None) == dim % spec.ndim for p in spec.placements)


@contextlib.contextmanager
def _unrecorded_decompositions() -> Iterator[None]:
    """For an operation without a rule torch follows a decomposition of it, on tensors and with a
    mesh of its own.

    Torch 2.11 imports that when it needs it first, which may be in a trace.
    """
    from torch.distributed.tensor._decompositions import DecompShardingStrategy as cls

    name = "propagate_strategy"
    original: Any = getattr(cls, name)

    def unrecorded(*args: Any) -> Any:
        with no_modes():
            return original(*args)

    with replaced_here(cls, name, unrecorded):
        yield


@contextlib.contextmanager
def _strides_as_numbers(spec_class: Any) -> Iterator[None]:
    """A symbolic stride becomes the number that it is (and is guarded) where a tensor's sizes are
    numbers (`x[:3, 0]`).

    Torch hashes those specs for DTensor's cache, where no symbol of a trace may be.
    """
    name = "_hash_impl"
    original: Any = getattr(spec_class, name, None)
    if original is None:
        yield
        return

    def hashed(self: Any) -> Any:
        meta = self.tensor_meta
        symbolic = meta is not None and any(isinstance(n, torch.SymInt) for n in meta.stride)
        asking = sys._getframe(3)  # what has asked for the hash of the spec
        while asking.f_code.co_name in ("call", "hashed") and asking.f_back is not None:
            asking = asking.f_back
        # in Python torch does without a hash, if there is none
        of_schema = asking.f_code.co_name == "__hash__"
        if symbolic and not of_schema and not any(isinstance(n, torch.SymInt) for n in meta.shape):
            self.tensor_meta = meta._replace(stride=tuple(map(int, meta.stride)))
        return original(self)

    with replaced_here(spec_class, name, hashed):
        yield


@contextlib.contextmanager
def _hashes_not_kept(spec_class: Any) -> Iterator[None]:
    """A spec keeps its hash when it is asked first: in a trace of a backward that is a change of
    what a ``ctx`` holds."""
    original: Any = spec_class.__hash__

    def hashed(self: Any) -> Any:
        kept = vars(self).get("_hash")
        made = original(self)
        if kept is None and vars(self).get("_hash") is not None:
            vars(self)["_hash"] = None
        return made

    with replaced_here(spec_class, "__hash__", hashed):
        yield


@contextlib.contextmanager
def _sizes_as_numbers_for_offsets() -> Iterator[None]:
    """A symbolic size becomes a number (and is guarded) where torch 2.13 asks in which place of it
    the part of this rank
    begins (`argmax` does): it writes down all places."""
    utils: Any = sys.modules.get("torch.distributed.tensor._utils")
    name = "_get_shard_size_and_offsets"
    original: Any = getattr(utils, name, None)
    if original is None:
        yield
        return

    def found(size: Any, *args: Any) -> Any:
        return original(size if args[-1] is True else int(size), *args)

    with replaced_here(utils, name, found):
        yield
