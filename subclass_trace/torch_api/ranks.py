"""Ranks: who this process is among others, what code reads of that, meshes and groups as data.

A mesh or a group is described by what is the same on all of its ranks, so that one description may
serve each of them. Whether it may is a question of what was read: `rank_reads_noted` tells of each
read of the rank, or of a coordinate, that may have decided something. A computation of torch's that
was run for each coordinate there is, and gave one result, has not.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .owners import OUR_FILES
from .this_thread import replaced_here

#: a computation is run for so many coordinates at most; more of them, and what it reads matters
_COORDINATES = 4096


def rank_and_size() -> tuple[int, int] | None:
    """The rank of this process and how many there are; None where they are not connected."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


# ---- meshes and groups as data
def is_mesh(value: object) -> bool:
    """Is it a mesh of devices?"""
    module = sys.modules.get("torch.distributed.device_mesh")
    return module is not None and isinstance(value, module.DeviceMesh)


def mesh_data(value: Any) -> list[Any] | None:
    """What a mesh of devices is like on each of its ranks, as plain data; None of anything else.

    Together with a rank it says the coordinate.
    """
    if not is_mesh(value):
        return None
    root, names = value._get_root_mesh(), value.mesh_dim_names
    return [
        str(value.device_type),
        root.mesh.tolist(),
        str(value._layout),
        None if names is None else [*names],
        value.get_coordinate() is not None,
    ]


def is_group(value: object) -> bool:
    """Is it a group of ranks?"""
    distributed = torch.distributed
    return distributed.is_available() and isinstance(value, distributed.ProcessGroup)


def group_named(name: object) -> Any:
    """The group of this name; None where there is none."""
    if type(name) is not str or rank_and_size() is None:
        return None
    try:
        resolve: Any = torch._C._distributed_c10d._resolve_process_group
        return resolve(name)
    except RuntimeError:
        return None


def members_of(group: Any) -> list[int]:
    """The ranks of a group."""
    return [*torch.distributed.get_process_group_ranks(group)]


def groups_of(mesh: Any) -> Iterator[Any]:
    """The groups of this rank along the dimensions of a mesh."""
    for dim in range(mesh.ndim):
        try:
            yield mesh.get_group(dim)
        except (AttributeError, IndexError, RuntimeError):  # it has no groups
            yield None


# ---- reads
class _Reads:
    """Tells of reads on one thread.

    Attributes:
        instead: the coordinate in ``mesh`` that code is told, where it is run for others.
        asked: the dimensions it has asked for meanwhile.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note, self._thread = note, threading.get_ident()
        self.mesh: Any = None
        self.instead: dict[int, int] | None = None
        self.asked = set[int]()

    def note(self, what: str) -> None:
        """The rank, or a coordinate, was read."""
        if threading.get_ident() == self._thread and not _is_logging():
            self._note(what)

    def for_each(self, mesh: Any, compute: Callable[[], Any], what: str) -> Any:
        """The result of ``compute``, which reads the coordinate in a mesh: noted, unless all
        coordinates give the same."""
        here = mesh._coordinate_on_dim
        if here is None or self.instead is not None:
            return compute()
        self.asked, self.mesh = set(), mesh
        found = self._instead(dict(enumerate(here)), compute)
        dims = sorted(self.asked)
        if dims and not self._is_same(mesh, dims, dict(enumerate(here)), compute, found):
            self.note(what)
        return found

    def _is_same(
        self, mesh: Any, dims: list[int], here: dict[int, int], compute: Any, found: Any
    ) -> bool:
        count = 1
        for dim in dims:
            count *= mesh.size(dim)
        if count > _COORDINATES or _has_symbols(found):
            return False
        for there in itertools.product(*(range(mesh.size(dim)) for dim in dims)):
            if self._instead({**here, **dict(zip(dims, there, strict=True))}, compute) != found:
                return False
        return sorted(self.asked) == dims

    def _instead(self, coordinate: dict[int, int], compute: Callable[[], Any]) -> Any:
        self.instead = coordinate
        try:
            return compute()
        finally:
            self.instead = None

    def one_of(self, original: Any, mesh: Any, dim: int) -> Any:
        """``mesh._sym_get_coordinate(dim)``."""
        if self.instead is not None and mesh is self.mesh:
            self.asked.add(dim)
            return self.instead[dim]
        self.note("its coordinate in a mesh")
        return original(mesh, dim)

    def all_of(self, original: Any, mesh: Any) -> Any:
        """``mesh.get_coordinate()``: DTensor asks whether there is one, also from C++."""
        found = original(mesh)
        # below the function of `replaced_here` and the one that stands in
        caller = sys._getframe(3).f_code
        by_user = caller.co_name == "call_function" and caller.co_filename.startswith(OUR_FILES)
        if found is None or by_user:
            self.note("its coordinate in a mesh")
            return found
        return _Coordinate.of(found, self)


def _is_logging() -> bool:
    """Is it a line of a log that says whose it is?"""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") != "torch._logging._internal":
        frame = frame.f_back
    return frame is not None


def _has_symbols(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_has_symbols, value))
    held = getattr(value, "logical_shape", ())
    return isinstance(value, torch.SymInt) or any(isinstance(n, torch.SymInt) for n in held)


class _Coordinate(tuple[int, ...]):
    """A coordinate that tells when it is looked at."""

    reads: _Reads

    @classmethod
    def of(cls, found: tuple[int, ...], reads: _Reads) -> _Coordinate:
        """The same, which tells."""
        made = cls(found)
        made.reads = reads
        return made


def _told(name: str) -> Any:
    original: Any = getattr(tuple, name)

    def method(self: _Coordinate, *args: Any) -> Any:
        self.reads.note("its coordinate in a mesh")
        return original(self, *args)

    return method


for _name in (
    *("__getitem__", "__iter__", "__contains__", "__hash__", "__eq__", "__ne__", "__lt__"),
    *("__le__", "__gt__", "__ge__", "__add__", "__mul__", "__repr__", "index", "count"),
):
    setattr(_Coordinate, _name, _told(_name))


@contextlib.contextmanager
def rank_reads_noted(note: Callable[[str], None]) -> Iterator[None]:
    """Inside, ``note`` is told of what this thread reads of the rank of its process, where there
    are several.

    What has it, has it of one of these: a group of C++, the table of the ranks of groups, a mesh.
    """
    here = rank_and_size()
    if here is None or here[1] == 1:
        yield
        return
    reads = _Reads(note)
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    with contextlib.ExitStack() as stack:
        for cls in (c10d.ProcessGroup, torch._C._distributed_c10d.Backend):
            stack.enter_context(_told_of(cls, reads))
        stack.enter_context(_table_told_of(type(c10d._world), reads))
        mesh: Any = sys.modules.get("torch.distributed.device_mesh")
        if mesh is not None:
            stack.enter_context(_mesh_told_of(mesh.DeviceMesh, reads))
        if "torch.distributed.tensor._redistribute" in sys.modules:
            _forget_what_dtensor_knows(reads)
            stack.enter_context(_sizes_for_each(reads))
        yield


@contextlib.contextmanager
def _told_of(cls: Any, reads: _Reads) -> Iterator[None]:
    """A group tells its rank."""
    original: Any = cls.rank

    def rank(self: Any) -> Any:
        reads.note("its rank in a group")
        return original(self)

    with replaced_here(cls, "rank", rank):
        yield


@contextlib.contextmanager
def _table_told_of(cls: Any, reads: _Reads) -> Iterator[None]:
    """The ranks of a group, which are those of a group of this rank."""
    original: Any = vars(cls)["pg_group_ranks"]

    def told(self: Any) -> Any:
        reads.note("the ranks of a group")
        return original.fget(self)

    cls.pg_group_ranks = property(told, original.fset, original.fdel)
    try:
        yield
    finally:
        cls.pg_group_ranks = original


@contextlib.contextmanager
def _mesh_told_of(cls: Any, reads: _Reads) -> Iterator[None]:
    whole, one = cls.get_coordinate, cls._sym_get_coordinate
    with (
        replaced_here(cls, "get_coordinate", lambda self: reads.all_of(whole, self)),
        replaced_here(cls, "_sym_get_coordinate", lambda self, dim: reads.one_of(one, self, dim)),
    ):
        yield


def _forget_what_dtensor_knows(reads: _Reads) -> None:
    """It remembers what it found out of the same operation, and would not read the coordinate
    again."""
    forget: Any = getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", None)
    if forget is None:
        reads.note("its coordinate in a mesh, perhaps: what DTensor remembers is not known")
    else:
        forget()


@contextlib.contextmanager
def _sizes_for_each(reads: _Reads) -> Iterator[None]:
    """The size of a shard, and the steps of a redistribution, are asked for often: they are the
    same everywhere where shards are even."""
    utils: Any = sys.modules["torch.distributed.tensor._utils"]
    redistribute: Any = sys.modules["torch.distributed.tensor._redistribute"]
    shape: Any = utils._compute_local_shape_and_global_offset
    steps: Any = redistribute._gen_transform_infos_non_cached

    def local_shape(
        sizes: Any, mesh_shape: Any, coordinate: Any, placements: Any, *rest: Any
    ) -> Any:
        mesh = getattr(coordinate, "__self__", None)
        if not is_mesh(mesh) or rest != (True,):  # else the place in the whole is asked for
            return shape(sizes, mesh_shape, coordinate, placements, *rest)
        compute = functools.partial(shape, sizes, mesh_shape, coordinate, placements, *rest)
        return reads.for_each(mesh, compute, "the size of its shard, which is uneven")

    def transform(source: Any, *rest: Any) -> Any:
        what = "the sizes of shards on the way to another placement, which are uneven"
        return reads.for_each(source.device_mesh, lambda: steps(source, *rest), what)

    with (
        replaced_here(utils, "_compute_local_shape_and_global_offset", local_shape),
        replaced_here(redistribute, "_gen_transform_infos_non_cached", transform),
    ):
        yield
