"""Which operations a class has: a sweep over torch's OpInfo samples, with the most used missing ones first.

Each operation runs on samples whose tensors are wrapped, and on the dense ones:

    supported   the result is a wrapper again (or no tensor), and its projection is the dense result
    dense       the result is a dense tensor with the right numbers: the class's default was used
    refused     it raises, for all samples
    wrong       other numbers or sizes than the dense operation, or it changes its operand
"""

from __future__ import annotations

import enum
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from ..torch_api import testing as private
from . import probes
from .subject import Subject

_COUNTED = Path(__file__).with_name("common_operations.txt").read_text(encoding="utf-8").splitlines()
#: names of OpInfos, the most used first: counted once in training steps of seven models
COMMON: tuple[str, ...] = tuple(line.split()[0] for line in _COUNTED if not line.startswith("#"))
_RANK = {name: k for k, name in enumerate(COMMON)}
_DIES = {"sparse.mm.reduce"}  # kills the process in eager


class Support(enum.Enum):
    """What a class does with an operation."""

    SUPPORTED = "supported"
    DENSE = "dense"
    REFUSED = "refused"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Row:
    """One operation: what the class does with it, why, and its place among the most used ones (None: rarely used)."""

    operation: str
    support: Support
    reason: str
    rank: int | None


@dataclass(frozen=True)
class Coverage:
    """The operations of a class, the most used first."""

    rows: tuple[Row, ...]

    @property
    def counts(self) -> Counter[Support]:
        """How many operations are supported, use the default, are refused, are wrong."""
        return Counter(r.support for r in self.rows)

    @property
    def missing(self) -> tuple[Row, ...]:
        """What is refused or wrong, wrong ones first, then by use."""
        bad = [r for r in self.rows if r.support in (Support.REFUSED, Support.WRONG)]
        return tuple(sorted(bad, key=lambda r: (r.support is not Support.WRONG, _place(r))))

    def as_json(self) -> list[dict[str, Any]]:
        """Plain data."""
        return [
            {"operation": r.operation, "outcome": r.support.value, "reason": r.reason, "rank": r.rank}
            for r in self.rows
        ]


def _place(row: Row) -> tuple[int, str]:
    return (len(COMMON) if row.rank is None else row.rank, row.operation)


def cover(
    subject: Subject,
    operations: Iterable[str] | None = None,
) -> Coverage:
    """Sweep over operations.

    Args:
        operations: names of OpInfos; all by default (a minute or so), `COMMON` for the usual ones (seconds).
    """
    database = private.opinfo_database()
    names = [n for n in (database if operations is None else operations) if n in database and n not in _DIES]
    rows = []
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        for name in names:
            row = _try(subject, name, database[name])
            if row is not None:
                rows.append(row)
    return Coverage(tuple(sorted(rows, key=_place)))


def _try(subject: Subject, name: str, op: Any, samples: int = 3) -> Row | None:
    """The worst that happened on the first samples that the class can be built for; None if it can for none."""
    seen: list[tuple[Support, str]] = []
    dtype = next((d for d in subject.floating if op.supports_dtype(d, "cpu")), None)
    try:
        found = list(islice(op.sample_inputs("cpu", dtype), 12)) if dtype is not None else []
    except Exception:  # torch has no samples for this dtype after all
        found = []
    for sample in found:
        wrapped = _wrap_sample(subject, sample)
        if wrapped is not None:
            outcome = _compare(subject, op, sample, wrapped)
            if outcome is not None:
                seen.append(outcome)
        if len(seen) == samples:
            break
    if not seen:
        return None
    wrong = [s for s in seen if s[0] is Support.WRONG]
    done = [s for s in seen if s[0] is not Support.REFUSED]
    support, reason = (wrong or done or seen)[0]
    return Row(name, support, reason, _RANK.get(name))


def _wrap_sample(subject: Subject, sample: Any) -> Any:
    """(input, args, kwargs) with the first tensor, and all of its kind, wrapped; None if the class has no such instance."""
    first = sample.input[0] if isinstance(sample.input, (list, tuple)) and sample.input else sample.input
    if not isinstance(first, torch.Tensor) or first.dtype not in subject.dtypes:
        return None
    if wrap(subject, first) is None:
        return None

    def one(t: torch.Tensor) -> Any:
        made = wrap(subject, t) if t.dtype in subject.dtypes else None
        return t if made is None else made

    return tuple(private.map_tensors(one, part) for part in (sample.input, sample.args, sample.kwargs))


def wrap(subject: Subject, dense: torch.Tensor) -> Any:
    """An instance of the subject made from a dense tensor; None if there is none."""
    try:
        names = {**subject.namespace, "_dense": dense.detach().clone()}
        made = eval(subject.make.format(*["_dense"] * subject.arity), names)
    except Exception:  # sizes, dtypes or layouts that the class does not have
        return None
    return made if isinstance(made, torch.Tensor) else None


def _compare(subject: Subject, op: Any, sample: Any, wrapped: Any) -> tuple[Support, str] | None:
    dense = private.map_tensors(lambda t: _dense(subject, t), wrapped)
    try:
        torch.manual_seed(1)
        expected, kept = _call(op, *dense)
        writes = not _near(subject, kept, dense[0])
        torch.manual_seed(2)
        random = not _near(subject, _call(op, *dense)[0], expected)
    except Exception:  # the dense operation does not take what the projection gives
        return None
    _, args, kwargs = wrapped
    torch.manual_seed(1)
    try:
        got, kept = _call(op, wrapped[0], args, kwargs)
        dense_got = private.map_tensors(lambda t: _dense(subject, t), got)
    except Exception as error:
        return (
            Support.REFUSED,
            f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160] if str(error) else ''}",
        )
    shapes = [[tuple(t.shape) for t in private.tensors_of(v)] for v in (dense_got, expected)]
    if shapes[0] != shapes[1]:
        return Support.WRONG, f"sizes {shapes[0]}, expected {shapes[1]}"
    if not random and subject.dense is not None and not _near(subject, dense_got, expected):
        return Support.WRONG, "other numbers than the dense operation"
    if not writes and not _same_leaves(kept, wrapped[0]):
        return Support.WRONG, "it changes its operand"
    plain = any(type(t) in (torch.Tensor, torch.nn.Parameter) for t in private.tensors_of(got))
    return (Support.DENSE, "the result is dense") if plain else (Support.SUPPORTED, "")


def _call(op: Any, first: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The result, and the operand after the call."""
    copy = private.map_tensors(torch.clone, first)
    return op.op(copy, *args, **kwargs), copy


def _same_leaves(a: Any, b: Any) -> bool:
    pairs = zip(private.tensors_of(a), private.tensors_of(b), strict=True)
    return all(probes.same(probes.leaves(x), probes.leaves(y)) for x, y in pairs)


def _dense(subject: Subject, t: torch.Tensor) -> torch.Tensor:
    if not hasattr(type(t), "__tensor_flatten__"):
        return t
    if subject.dense is None:
        return torch.zeros(t.shape, dtype=t.dtype)
    made: torch.Tensor = eval(subject.dense.format("_x"), {**subject.namespace, "_x": t})
    return made.detach()


def _near(subject: Subject, a: Any, b: Any) -> bool:
    xs, ys = private.tensors_of(a), private.tensors_of(b)
    rtol, atol = subject.tolerance
    return len(xs) == len(ys) and all(
        x.shape == y.shape and (x.dtype != y.dtype or probes.same(x, y, rtol=max(rtol, 1e-4), atol=max(atol, 1e-5)))
        for x, y in zip(xs, ys, strict=True)
    )
