"""What an operation that changes its arguments writes, and which of that no graph can hold; what
a trace has written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.fx as fx

from ..errors import UnsupportedError
from ..torch_api.kinds import is_dense, is_fake, storage_ref
from ..torch_api.symbols import is_data_dependent
from .aliasing import ByteRange, byte_range, may_overlap, repeats, same_elements

Tensor = torch.Tensor
_OPERANDS = (Tensor, int, float, complex)


def _of_an_array(does: str, line: str | None) -> UnsupportedError:
    return UnsupportedError(
        f"the region {does} a tensor over the memory of an array",
        code="memory-of-an-array",
        path=line,
        fix="make a copy (torch.tensor(array)), or the tensor outside of the region",
    )


class WrittenMemory:
    """The memory that the operations of a trace have written so far.

    Attributes:
        any: is there an operation with a schema that writes?
        writes: (storage, bytes) of each write, in order.
        beside: nodes that have nothing to do with written memory; see `functionalize`.
    """

    def __init__(self) -> None:
        self.any = False
        self.writes: list[tuple[Any, ByteRange]] = []
        self.beside: set[fx.Node] | None = None
        # storages of copies that may be none in a call, and of what is copied
        self._perhaps_shared: set[Any] = set()
        self._lent: set[Any] = set()  # storages that stand for memory of an array

    @property
    def storages(self) -> set[Any]:
        """Those that were written."""
        return {storage for storage, _ in self.writes}

    def touches(self, leaf: Tensor) -> bool:
        """Did an operation write into the memory that ``leaf`` can touch?"""
        storage, mine = storage_ref(leaf), byte_range(leaf)
        return any(s == storage and mine.overlaps(r) for s, r in self.writes)

    def note(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        outliving: frozenset[Any],
        line: Callable[[], str | None],
    ) -> list[Tensor]:
        """The tensors that an operation writes, which are noted.

        Raises:
            UnsupportedError: no graph can hold that, or one outlives the backward that writes it.
        """
        self.any = True
        check_write(func, args, kwargs, line)
        written = list(written_arguments(func, args, kwargs))
        for t in written:
            storage = storage_ref(t)
            self.writes.append((storage, byte_range(t)))
            if storage in outliving:
                raise late_write(func, t, line())
            if storage in self._lent:
                raise _of_an_array("writes to", line())
            if storage in self._perhaps_shared:
                what = "memory that is shared or not, by values inside a tensor"
                raise refused_write(func, t, line(), what)
        return written

    def copied(self, real: Tensor, out: Tensor, line: Callable[[], str | None]) -> Any:
        """The operation that copies a constant in each run: ``out`` of lift_fresh would alias it,
        and a region that writes to that must not change the constant. lift_fresh_copy is
        contiguous.

        Raises:
            UnsupportedError: there are gaps in its memory.
        """
        if not is_fake(real) and not real.untyped_storage().resizable():  # of `torch.from_numpy`
            self._lent.add(storage_ref(out))
        if out.is_contiguous():
            return torch.ops.aten.lift_fresh_copy.default
        if not is_dense(out):
            raise _of_an_array("makes", line())
        return torch.ops.aten.clone.default

    def refuse_lent(self, tensors: Iterable[Tensor], line: Callable[[], str | None]) -> None:
        """The memory of an array of numpy, or of bytes, is a constant of a trace.

        Raises:
            UnsupportedError: one of these results lies in it.
        """
        if self._lent and not self._lent.isdisjoint(map(storage_ref, tensors)):
            raise _of_an_array("gives", line())

    def note_copy(self, source: Any, made: Any) -> None:
        """``x[:, :n].contiguous()`` of a number from inside a tensor: eager has a view where it
        can, the trace a copy."""
        if not (is_fake(source) and is_fake(made)):
            return
        storages = storage_ref(source), storage_ref(made)
        sizes = (*source.shape, *source.stride(), *made.shape)
        if storages[0] != storages[1] and any(
            isinstance(n, torch.SymInt) and is_data_dependent(n) for n in sizes
        ):
            self._perhaps_shared.update(storages)


def written_arguments(
    func: Any, args: Sequence[Any], kwargs: dict[str, Any], kind: type = Tensor
) -> Iterator[Any]:
    """The tensors that an operation writes, by its schema; or nodes."""
    return (t for t, written in _tensors(func, args, kwargs, kind) if written)


def _tensors(
    func: Any, args: Sequence[Any], kwargs: dict[str, Any], kind: type = Tensor
) -> Iterator[tuple[Any, bool]]:
    """The tensors among the arguments of an operation, and whether it writes them."""
    for i, a in enumerate(func._schema.arguments):
        value = kwargs[a.name] if a.name in kwargs else args[i] if i < len(args) else None
        for t in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(t, kind):
                yield t, a.alias_info is not None and a.alias_info.is_write


def check_write(
    func: Any, args: Sequence[Any], kwargs: dict[str, Any], line: Callable[[], str | None]
) -> None:
    """Fake kernels let pass what real ones refuse, or what they do in the order of their reads and
    writes.

    Raises:
        RuntimeError: the result has no place in the dtype of what is written, as that of
            ``x.mul_(1j)`` for a real ``x``.
        UnsupportedError: eager mode is asked.
    """
    if (
        torch.Tag.pointwise in func.tags
        and len(args) > 1
        and all(isinstance(a, _OPERANDS) for a in args[:2])
    ):
        kind = torch.result_type(args[0], args[1])
        if not torch.can_cast(kind, args[0].dtype):
            raise RuntimeError(
                f"result type {kind} can't be cast to the desired output type {args[0].dtype}"
            )
    name = func._schema.name.removeprefix("aten::")
    rows = list(_tensors(func, args, kwargs))
    # one element of each for one that is written
    each = torch.Tag.pointwise in func.tags or name == "copy_"
    lists = name.startswith("_foreach")
    if lists and _meet([t for t, writes in rows if writes]):
        raise refused_write(func, rows[0][0], line(), "one element by several tensors of a list")
    for k, w in [(k, t) for k, (t, writes) in enumerate(rows) if writes]:
        others = [] if lists else [t for n, (t, writes) in enumerate(rows) if n < k or not writes]
        if any(may_overlap(w, t) and not (each and same_elements(w, t)) for t in others):
            raise refused_write(func, w, line(), "memory that the operation reads in another place")
        if repeats(w) and name not in ("zero_", "fill_"):
            raise refused_write(func, w, line(), "a tensor with one element in several places")
        if w.is_inference() and not torch.is_inference_mode_enabled():
            raise refused_write(func, w, line(), "an inference tensor outside of inference mode")


def _meet(tensors: Sequence[Tensor]) -> bool:
    """Do two of these share an element?"""
    seen: dict[Any, list[Tensor]] = {}
    for t in tensors:
        others = seen.setdefault(storage_ref(t) if t.layout is torch.strided else id(t), [])
        if any(may_overlap(t, other) for other in others):
            return True
        others.append(t)
    return False


def refused_write(func: Any, written: Tensor, line: str | None, what: str) -> UnsupportedError:
    """The error for a write to ``what``."""
    return UnsupportedError(
        f"the region writes to {what}",
        code="write",
        path=line,
        got=f"{func} on a tensor of shape {tuple(written.shape)}",
        fix="write to a clone",
    )


def late_write(func: Any, written: Tensor, line: str | None) -> UnsupportedError:
    """The error for a backward that writes to what it was not given for that."""
    return UnsupportedError(
        "the backward of the region writes to an input, a result or a tangent of the region",
        code="backward-write",
        path=line,
        got=f"{func} on a tensor of shape {tuple(written.shape)}",
        fix="hand the new contents out as the gradient of that input (zoo.DelayedFP8Linear "
        "does), or call "
        "torch.autograd.grad inside the region, so that the backward is a part of it",
    )


def collective(func: Any, line: str | None) -> UnsupportedError:
    """The schemas of ``c10d`` say nothing of what is written, and a handle comes out, which no
    graph can hold."""
    return UnsupportedError(
        "the region calls a collective in place",
        code="collective-in-place",
        path=line,
        got=str(func),
        fix="wait for it at once (async_op=False), on dense contiguous tensors, or call the "
        "functional form "
        "(torch.distributed._functional_collectives)",
    )


def check_kernels(func: Any, flags: Sequence[str], line: Callable[[], str | None]) -> None:
    """An operation, where the region has set flags that kernels read as they run.

    Raises:
        UnsupportedError: its values may depend on them; the graph runs under the caller's.
    """
    if torch.Tag.pointwise in func.tags or func.is_view:
        return
    raise UnsupportedError(
        "the region sets a flag of kernels for operations of its own",
        code="flag-of-kernels",
        path=line(),
        got=f"{func} with another value of: {', '.join(flags)}",
        fix="set it outside of the region",
    )
