"""Of a dataclass in a context, the guards compare what the trace has read, as of any other object."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from objects_in_contexts import Quantised

import subclass_trace as st
from subclass_trace.runtime import entry_code

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


CLASSES = [Mutable, Slots, Frozen, FrozenSlots, Uncompared, Beside, Property]


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


@pytest.mark.parametrize("cls", CLASSES)
def test_each_state_has_a_specialization(cls: type) -> None:
    region = st.compile(_sine)
    for k in (0, 0, 1, 0):
        q = _with(cls(), step=k)
        y = region(_wrapped(q))
        assert torch.equal(y.a, _sine(_wrapped(q)).a)
        assert y.q is q and y.q.step == k
    assert len(region.specializations) == 2


@pytest.mark.parametrize("cls", [Mutable, Slots, Uncompared, Beside, Property])
def test_one_object_that_changes(cls: type) -> None:
    """The first specialization is right again when the object is as it was."""
    region, q = st.compile(_sine), cls()
    for scale, count in ((2.0, 1), (2.0, 1), (5.0, 2), (2.0, 2), (5.0, 2)):
        (q.inner if cls is Property else q).scale = scale
        assert torch.equal(region(_wrapped(q)).a, _sine(_wrapped(q)).a)
        assert len(region.specializations) == count


@pytest.mark.parametrize("cls", CLASSES)
def test_fields_that_the_backward_reads(cls: type) -> None:
    region = st.compile(_sine)
    for rate in (3.0, 3.0, 4.0, 3.0):
        q, grads = _with(cls(), step=5, rate=rate), []
        for f in (_sine, region):
            x = _wrapped(q, True)
            f(x).backward(_wrapped(q))
            grads.append(x.grad)
        assert torch.equal(grads[0].a, grads[1].a)
        assert grads[1].q.step == 5
    assert len(region.specializations) == 2


def _gradients(f: Callable[[Any], Any], q: Any) -> list[Any]:
    x = _wrapped(q, True)
    (first,) = torch.autograd.grad(f(x), x, _wrapped(q), create_graph=True)
    (second,) = torch.autograd.grad(first, x, _wrapped(q))
    return [first.detach(), second]


@pytest.mark.parametrize("cls", CLASSES)
def test_backwards_that_are_traced_later(cls: type) -> None:
    region = st.compile(lambda x: x * x.cos())
    for k, rate in enumerate((3.0, 4.0, 3.0, 5.0)):
        q = _with(cls(), step=k)
        region(_wrapped(q))
        q = _with(cls(), step=k, rate=rate)
        expected, found = _gradients(lambda x: x * x.cos(), q), _gradients(region, q)
        assert all(torch.equal(a.a, b.a) for a, b in zip(expected, found, strict=True))
        assert all(b.q.step == k for b in found)


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
    "getattr": lambda x: x * getattr(x.q, "st" + "ep"),
    "vars": lambda x: x * vars(x.q)["step"],
    "asdict": lambda x: x * dataclasses.asdict(x.q)["step"],
    "astuple": lambda x: x * dataclasses.astuple(x.q)[1],
    "equality": lambda x: x * 2 if x.q == Mutable(step=1) else x * 3,
    "repr": lambda x: x * len(repr(x.q)),
    "a copy": lambda x: x * copy.copy(x.q).step,
    "replace": lambda x: x * dataclasses.replace(x.q, scale=1.0).step,
    "flatten": lambda x: x * x.__tensor_flatten__()[1]["q"].step,
    "a branch": lambda x: x * 2 if x.q.step > 10 else x * 3,
    "a result that keeps a copy": lambda x: Quantised(x.a * 2, dataclasses.replace(x.q)),
    "a result of a deep copy": lambda x: Quantised(x.a * 2, copy.deepcopy(x.q)),
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
@pytest.mark.parametrize("cls", [Mutable, Frozen, Uncompared])
def test_every_way_of_reading(how: str, cls: type) -> None:
    f = _READS[how]
    region = st.compile(f)
    for step in (1, 2, 11, 1, 12):
        q = _with(cls(), step=step)
        expected, found = f(_wrapped(q)), region(_wrapped(q))
        assert torch.equal(expected.a, found.a)
        for name in ("q", "extra"):
            a, b = getattr(expected, name, None), getattr(found, name, None)
            assert type(a) is type(b)
            for v, w in zip(*(c if isinstance(c, list) else [c] for c in (a, b)), strict=True):
                assert (v is q) == (w is q)
                assert v is w is None or (v.step, v.scale) == (w.step, w.scale)


@pytest.mark.parametrize("cls", CLASSES)
def test_one_object_in_two_wrappers(cls: type) -> None:
    """In the first call they have one object, then objects that differ in what only a second backward reads."""

    def f(x: Any, y: Any) -> Any:
        return x.sin() + y.sin()

    region = st.compile(f)
    one = cls()
    for a, b in ((one, one), (cls(), cls()), (_with(one, rate=4.0), one), (one, _with(one, rate=5.0)), (one, one)):
        found = []
        for g in (f, region):
            x, y = (Late(torch.tensor([0.5, 1.0]), q).requires_grad_() for q in (a, b))
            firsts = torch.autograd.grad(g(x, y), (x, y), Late(torch.ones(2), a), create_graph=True)
            seconds = torch.autograd.grad(firsts, (x, y), [Late(torch.ones(2), a)] * 2)
            found.append([t.detach().a for t in (*firsts, *seconds)])
        assert all(torch.equal(v, w) for v, w in zip(*found, strict=True))


@pytest.mark.parametrize("cls", [Mutable, Frozen])
def test_which_inputs_have_one_object(cls: type) -> None:
    def f(x: Any, y: Any, z: Any) -> Any:
        return x * (2 if x.q is y.q else 3) * (5 if y.q is z.q else 7)

    region, one = st.compile(f), cls()
    a, b, c = one, cls(), _with(one, step=3)
    rows = [(a, a, a), (a, b, b), (c, c, c), (b, b, a), (a, b, cls()), (c, a, c), (b, b, b)]
    for row in rows:
        assert torch.equal(f(*map(_wrapped, row)).a, region(*map(_wrapped, row)).a)
    assert len(region.specializations) == 6
    for row in rows:
        grads = []
        for g in (f, region):
            x = _wrapped(row[0], True)
            g(x, *map(_wrapped, row[1:])).sin().backward(_wrapped(a))
            grads.append(x.grad.a)
        assert torch.equal(*grads)


def test_identity_of_a_frozen_one() -> None:
    """Frozen dataclasses are no copies in a trace: classes may compare them with ``is``."""
    special = Frozen()
    f = lambda x: x * 2 if x.q is special else x * 3
    assert torch.equal(st.compile(f)(_wrapped(special)).a, f(_wrapped(special)).a)


def test_fields_that_hold_a_new_object() -> None:
    """A field is compared with all that is in it: lists, tensors, other dataclasses."""

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
        ([1.0], 2.0, torch.ones(2)),
        ([3.0], 2.0, [1]),
        ([1.0], 4.0, {}),
    ]
    for row in rows:
        q = Deep(*row)
        y = region(_wrapped(q))
        assert torch.equal(y.a, _sine(_wrapped(q)).a)
        assert y.q is q
    assert len(region.specializations) == 5


def test_a_field_of_another_type() -> None:
    region = st.compile(_sine)
    for scale in (2.0, 2, torch.tensor(2.0), True):
        q = Mutable(scale=scale)  # type: ignore[arg-type]
        assert torch.equal(region(_wrapped(q)).a, _sine(_wrapped(q)).a)


def test_sizes_that_change() -> None:
    region = st.compile(_sine)
    for n in (4, 5, 6, 7):
        q = Mutable()
        x = torch.rand(n)
        assert torch.equal(region(Quantised(x, q)).a, _sine(Quantised(x, q)).a)
    assert len(region.specializations) == 2


def test_generated_code_and_reference_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise entry_code.NotGenerated("test")

    monkeypatch.setattr(entry_code._GuardedEmitter, "emit", refuse)
    region = st.compile(_sine)
    for _ in range(3):
        q = Mutable()
        y = region(_wrapped(q))
        assert y.q is q and torch.equal(y.a, _sine(_wrapped(q)).a)
    assert len(region.specializations) == 1
