"""A dataclass in a context: each state has a specialization, however the region or a backward reads it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from objects_in_contexts import Quantised

import subclass_trace as st

Tensor = torch.Tensor


class _Use:
    """``sin`` of a `Quantised` is multiplied with ``use()``, ``cos`` with ``late()``."""

    scale: float
    step: int
    rate: float

    def use(self) -> float:
        return self.scale

    def late(self) -> float:
        return self.rate


@dataclasses.dataclass
class Mutable(_Use):
    scale: float = 2.0
    step: int = 0
    rate: float = 3.0


@dataclasses.dataclass(slots=True)
class Slots(_Use):
    scale: float = 2.0
    step: int = 0
    rate: float = 3.0


@dataclasses.dataclass(frozen=True)
class Frozen(_Use):
    scale: float = 2.0
    step: int = 0
    rate: float = 3.0


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots(_Use):
    scale: float = 2.0
    step: int = 0
    rate: float = 3.0


@dataclasses.dataclass
class Uncompared(_Use):
    """Fields that its ``==`` leaves out are read as well."""

    scale: float = dataclasses.field(default=2.0, compare=False)
    step: int = dataclasses.field(default=0, compare=False)
    rate: float = dataclasses.field(default=3.0, compare=False)


@dataclasses.dataclass
class Beside(_Use):
    """What it holds besides its fields."""

    name: str = "w"

    def __post_init__(self) -> None:
        self.scale, self.step, self.rate = 2.0, 0, 3.0


@dataclasses.dataclass
class Property:
    inner: Mutable = dataclasses.field(default_factory=Mutable)
    step: int = 0
    table: list[int] = dataclasses.field(default_factory=lambda: [1, 2])

    @property
    def rate(self) -> float:
        return self.inner.rate

    def use(self) -> float:
        return self.inner.use()

    def late(self) -> float:
        return self.rate


CLASSES = [Slots, FrozenSlots, Uncompared, Beside, Property]


def _with(value: Any, **changes: Any) -> Any:
    """Another object with other attributes."""
    twin = copy.deepcopy(value)
    for name, v in changes.items():
        holder = twin.inner if isinstance(twin, Property) and name != "step" else twin
        object.__setattr__(holder, name, v)
    return twin


def _wrapped(q: Any, requires_grad: bool = False) -> Any:
    return Quantised(torch.tensor([0.5, 1.0]), q).requires_grad_(requires_grad)


def _sine(x: Any) -> Any:
    return x.sin()


class Late(Quantised):
    """The operations of a second backward read ``rate``, and no others."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        q = next(t.q for t in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(t, cls))
        args, kwargs = torch.utils._pytree.tree_map_only(cls, lambda t: t.a, (args, kwargs or {}))
        out = func(*args, **kwargs)
        if func is torch.ops.aten.neg.default:
            out = out * q.rate
        return torch.utils._pytree.tree_map_only(Tensor, lambda t: cls(t, q), out)


@pytest.mark.parametrize("cls", CLASSES)
def test_fields_that_a_second_backward_reads(cls: type) -> None:
    region = st.compile(_sine)
    for k, rate in enumerate((3.0, 4.0, 3.0)):
        q = _with(cls(), step=k, rate=rate)
        found = []
        for f in (_sine, region):
            x = Late(torch.tensor([0.5, 1.0]), q).requires_grad_()
            (first,) = torch.autograd.grad(f(x), x, Late(torch.ones(2), q), create_graph=True)
            (second,) = torch.autograd.grad(first, x, Late(torch.ones(2), q))
            found.append((first.detach().a, second.a))
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


_READS: dict[str, Callable[[Any], Any]] = {
    "a field": lambda x: x * x.q.step,
    "asdict": lambda x: x * dataclasses.asdict(x.q)["step"],
    "equality": lambda x: x * 2 if x.q == Mutable(step=1) else x * 3,
    "repr": lambda x: x * len(repr(x.q)),
    "replace": lambda x: x * dataclasses.replace(x.q, scale=1.0).step,
    "a result that keeps a copy": lambda x: Quantised(x.a * 2, dataclasses.replace(x.q)),
    "an attribute of a result": lambda x: _named(x * 2, copy.copy(x.q)),
    "its own object": lambda x: Quantised(x.a * 2, x.q),
    "in a container": lambda x: Quantised(x.a * 2, [x.q, x.q]),
}


def _named(y: Any, q: Any) -> Any:
    y.extra = q
    return y


def _match(x: Any) -> Any:
    match x.q:
        case Mutable(step=1 | 2):
            return x * 2
        case _:
            return x * 3


_READS["a pattern"] = _match


@pytest.mark.parametrize("how", _READS)
@pytest.mark.parametrize("cls", [Mutable, Frozen])
def test_every_way_of_reading(how: str, cls: type) -> None:
    f = _READS[how]
    region = st.compile(f)
    for step in (1, 11, 1):
        q = _with(cls(), step=step)
        expected, found = f(_wrapped(q)), region(_wrapped(q))
        assert torch.equal(expected.a, found.a)
        for name in ("q", "extra"):
            a, b = getattr(expected, name, None), getattr(found, name, None)
            assert type(a) is type(b)
            for v, w in zip(*(c if isinstance(c, list) else [c] for c in (a, b)), strict=True):
                assert (v is q) == (w is q)
                assert v is w is None or (v.step, v.scale) == (w.step, w.scale)


def test_fields_that_hold_a_new_object() -> None:
    """A field is compared with all that is in it: lists, other dataclasses."""

    @dataclasses.dataclass
    class Deep:
        scales: list[float]
        shift: Any
        unused: Any = None

        def use(self) -> Any:
            return self.scales[0] + self.shift

    region = st.compile(_sine)
    rows = [
        ([1.0], 2.0, None),
        ([1.0], 2.0, object()),
        ([3.0], 2.0, [1]),
        ([1.0], 4.0, {}),
    ]
    for row in rows:
        q = Deep(*row)
        y = region(_wrapped(q))
        assert torch.equal(y.a, _sine(_wrapped(q)).a)
        assert y.q is q
    assert len(region.specializations) == 4


def test_a_field_of_another_type() -> None:
    region = st.compile(_sine)
    for scale in (2.0, 2, True):
        q = Mutable(scale=scale)  # type: ignore[arg-type]
        assert torch.equal(region(_wrapped(q)).a, _sine(_wrapped(q)).a)
