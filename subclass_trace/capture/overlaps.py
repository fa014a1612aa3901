"""Operations that write to memory which another of their arguments shows, or to several elements in one place.

Most real kernels refuse that, fake kernels never look. Some real ones run, and read what they have already written
(``x.addmm_(x, x)``, ``x[:, 1:].copy_(x[:, :-1])``), while the functional form in a graph reads everything first. So such a
call, which is rare, is rehearsed on real memory that is laid out like that of the traced one:

    it raises                                         the region raises the same
    it gives other numbers than with copied sources   an `AliasingError`
    it gives the same numbers                         the call is recorded as any other, unless it is a matrix product

Views of one tensor that share no element (``cache[:, 5].copy_(cache[:, 4])``) are told apart without that. Where their
places depend on numbers from inside tensors (``k = int(t)``), each call looks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .. import _torch
from ..errors import AliasingError
from .aliasing import may_overlap, one_storage, partly_overlap, repeats, same_place
from .eager_errors import Unknown, number, rehearse, smaller_sizes, tensors_in

Tensor = torch.Tensor
aten = torch.ops.aten
#: bytes of one storage that a rehearsal may take
_MOST = 1 << 26
_SEED = 0
_REFUSED_BY_EAGER = (
    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory location. "
    "Please clone() the tensor before performing the operation."
)
#: Sums of products, whose kernels (of other libraries) are chosen by size and processor. Where the result is an argument,
#: one of them gives the numbers of a copy for 8 rows and others for 16, so no rehearsal speaks for the next call.
_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "matmul", "linalg_matmul"}


def refuse_overlap(func: Any, args: Sequence[Any], kwargs: dict[str, Any], recorder: Any) -> None:
    """Raise what eager raises for an operation that writes to memory which its other arguments show.

    Args:
        args, kwargs: traced tensors and other arguments.
        recorder: of the capture. It knows where in the user's code this is, and records what each call has to look at.

    Raises:
        AliasingError: the real kernel runs, and reads what it has already written.
    """
    if func.namespace != "aten":
        return
    elementwise = func is aten.copy_.default or torch.Tag.pointwise in func.tags
    alike = partly = False
    for written, others in _steps(func, args, kwargs):
        for k, w in enumerate(written):
            rest = [*written[:k], *others]
            same = [same_place(w, t) for t in rest]
            alike |= any(same)
            partly |= repeats(w) or any(not s and may_overlap(w, t) for s, t in zip(same, rest, strict=True))
    if not partly and (elementwise or not alike):
        return
    try:
        wrong = _rehearsal(func, args, kwargs, partly)
    except Unknown:
        rows = [(w, t) for written, others in _steps(func, args, kwargs) for w in written for t in others]
        wrong = any(partly_overlap(w, t) for w, t in rows)
        wrong = wrong or not all(_may_be_settled(w, t, elementwise) for w, t in rows)
    if wrong:
        shapes = [t.shape for t in tensors_in((*args, *kwargs.values()))]
        raise _depends_on_order(_torch.op_name(func), recorder.user_line(), shapes)


def _may_be_settled(written: Tensor, other: Tensor, elementwise: bool) -> bool:
    """False where it depends on numbers from inside tensors whether two arguments share memory."""
    if not may_overlap(written, other) or (elementwise and same_place(written, other)):
        return True
    return not any(isinstance(n, torch.SymInt) and _torch.is_data_dependent(n) for n in _numbers(written, other))


def _numbers(*tensors: Tensor) -> list[Any]:
    return [n for t in tensors for n in (*t.shape, *t.stride(), t.storage_offset())]


def _depends_on_order(name: str, line: str | None, shapes: Sequence[Any]) -> AliasingError:
    return AliasingError(
        f"{name} writes to memory that it reads through another argument: the result depends on the order of reads and "
        "writes",
        path=line,
        expected="arguments that share no memory with the tensor that is written",
        got="in one memory: shapes " + ", ".join(str([*shape]) for shape in shapes),
        fix="clone the other argument before the operation",
    )


def _steps(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """(the tensors that are written, the others); those of a list operation in place for each of its steps."""
    rows = list(_arguments(func, args, kwargs))
    counts = {len(a) for _, a in rows if isinstance(a, (list, tuple))}
    if not func._schema.name.startswith("aten::_foreach") or len(counts) != 1:
        yield [t for w, a in rows if w for t in tensors_in([a])], [t for w, a in rows if not w for t in tensors_in([a])]
        return
    for k in range(counts.pop()):
        step = [(w, a[k] if isinstance(a, (list, tuple)) else a) for w, a in rows]
        yield (
            [a for w, a in step if w and isinstance(a, Tensor)],
            [a for w, a in step if not w and isinstance(a, Tensor)],
        )


def _arguments(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[tuple[bool, Any]]:
    """(is it written, the argument) for each argument of a call, in order."""
    writes = {a.name: a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments}
    yield from zip(writes.values(), args, strict=False)
    yield from ((writes[name], a) for name, a in kwargs.items())


def _rehearsal(func: Any, args: Sequence[Any], kwargs: dict[str, Any], partly: bool) -> bool:
    """Does the real kernel give other numbers on shared memory than on copies of it?

    Raises:
        Exception: what the real kernel raises on shared memory alone.
        Unknown: no real tensors can stand for the arguments.
    """
    rows = [(w, t) for w, a in _arguments(func, args, kwargs) for t in tensors_in([a])]
    writes = [t for w, t in rows if w]
    kind = _in_memory if partly else _in_small_memory

    def run(change: Callable[[Tensor], Tensor]) -> tuple[Exception | None, list[Tensor]]:
        make, made = kind([t for _, t in rows], writes), list[Tensor]()

        def stand_in(t: Tensor) -> Tensor:
            made.append(change(make(t)))
            return made[-1]

        return rehearse(func, args, kwargs, stand_in), made

    error, shared = run(lambda t: t)
    if error is not None:
        if run(_contiguous)[0] is None:
            raise error from None
        return False  # that is not about memory
    error, apart = run(_with_own_storage)
    if error is not None:
        return False
    if func._schema.name.removeprefix("aten::").removesuffix("_") in _PRODUCTS:
        return True
    with _torch.no_modes():
        return not all(_close(a, b) for (w, _), a, b in zip(rows, shared, apart, strict=True) if w)


def _in_memory(tensors: Sequence[Tensor], writes: Sequence[Tensor]) -> Callable[[Tensor], Tensor]:
    """Makes tensors that lie in real storages as those of the trace do in theirs."""
    storages: dict[Any, Tensor] = {}

    def make(t: Tensor) -> Tensor:
        if t.layout is not torch.strided:
            raise Unknown
        key = _torch.storage_ref(t)
        if key not in storages:
            count = number(t.untyped_storage().nbytes()) // t.element_size()
            storages[key] = _filled(count, t, any(one_storage(w, t) for w in writes))
        memory = storages[key].view(t.dtype)
        return memory.as_strided([*map(number, t.shape)], [*map(number, t.stride())], number(t.storage_offset()))

    return make


def _in_small_memory(tensors: Sequence[Tensor], writes: Sequence[Tensor]) -> Callable[[Tensor], Tensor]:
    """Makes small tensors, the same one for tensors in the same place."""
    smaller = smaller_sizes(tensors)
    made: list[tuple[Tensor, Tensor]] = []

    def make(t: Tensor) -> Tensor:
        found = next((new for old, new in made if same_place(old, t)), None)
        if found is None:
            size = [smaller(number(n)) for n in t.shape]
            found = _filled(math.prod(size), t, any(same_place(w, t) for w in writes)).view(size)
            made.append((t, found))
        return found

    return make


def _filled(count: int, like: Tensor, written: bool) -> Tensor:
    """Numbers that differ, in memory of their own; zeros for what may be an index, a mask that is not the same throughout."""
    if count * like.element_size() > _MOST or like.is_quantized or like.is_nested:
        raise Unknown
    dtype, device = like.dtype, like.device
    try:
        if dtype is torch.bool:
            return torch.arange(count, device=device) != (0 if count > 1 else 1)
        if not (written or dtype.is_floating_point or dtype.is_complex):
            return torch.zeros(count, dtype=dtype, device=device)
        numbers = torch.rand(count, generator=torch.Generator().manual_seed(_SEED), dtype=torch.float64) + 0.1
        return (numbers if dtype.is_floating_point or dtype.is_complex else numbers * 100).to(device, dtype)
    except RuntimeError as error:  # no such device here, or no such numbers
        raise Unknown from error


def _contiguous(t: Tensor) -> Tensor:
    return t.clone(memory_format=torch.contiguous_format)


def _with_own_storage(t: Tensor) -> Tensor:
    """The same, in the same place of another storage, where kernels compute in the same order."""
    return t.new_empty(0).set_(t.untyped_storage().clone(), t.storage_offset(), t.shape, t.stride())  # type: ignore[no-untyped-call]


def _close(a: Tensor, b: Tensor) -> bool:
    """The same numbers? Kernels may round otherwise where the result is an argument, too."""
    kind = torch.complex128 if a.is_complex() else torch.float64
    return torch.allclose(a.to(kind), b.to(kind), rtol=1e-2, atol=1e-3, equal_nan=True)
