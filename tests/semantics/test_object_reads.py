"""Of an object in a context, the guards compare the attributes that the trace has read, set or deleted, and no others."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import inspect
import operator
import pickle
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

import subclass_trace as st
from subclass_trace.capture import object_reads
from subclass_trace.runtime import codegen
from subclass_trace.subclass import noting
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


class Quantised(Tensor):
    """One inner tensor; ``q`` in the context. ``sin`` is multiplied with what ``q.use`` gives, ``cos`` (the backward of
    ``sin``) with what ``q.late`` gives."""

    a: Tensor
    q: Any

    @staticmethod
    def __new__(cls, a: Tensor, q: Any) -> Any:
        return Tensor._make_wrapper_subclass(cls, a.shape, strides=a.stride(), dtype=a.dtype, device=a.device)

    def __init__(self, a: Tensor, q: Any) -> None:
        self.a, self.q = a, q

    def __tensor_flatten__(self) -> Any:
        return ["a"], {"q": self.q}

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"], context["q"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        q = next(t.q for t in tree_leaves((args, kwargs)) if isinstance(t, cls))
        dense_args, dense_kwargs = tree_map_only(cls, lambda t: t.a, (args, kwargs or {}))
        out = func(*dense_args, **dense_kwargs)
        if func is torch.ops.aten.sin.default:
            out = out * q.use()
        if func is torch.ops.aten.cos.default and hasattr(type(q), "late"):
            out = out * q.late()
        out = tree_map_only(Tensor, lambda t: cls(t, q), out)
        return return_and_correct_aliasing(func, args, kwargs or {}, out)


class Plain:
    def __init__(self) -> None:
        self.scale, self.step, self.table = 2.0, 0, [1.0, 2.0]

    def use(self) -> Any:
        return self.scale


class Slots:
    __slots__ = ("__hidden", "scale", "step")

    def __init__(self) -> None:
        self.scale, self.step, self.__hidden = 2.0, 0, 1.0

    def use(self) -> float:
        return self.scale * self.__hidden


class Property(Plain):
    @property
    def doubled(self) -> float:
        return self.scale * 2

    def use(self) -> float:
        return self.doubled


class Cached(Plain):
    @functools.cached_property
    def doubled(self) -> float:
        return self.scale * 2

    def use(self) -> float:
        return self.doubled


class Lazy(Plain):
    """Attributes that are not there are looked for elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.others = {"factor": 3.0}

    def __getattr__(self, name: str) -> Any:
        try:
            return self.others[name]
        except KeyError:
            raise AttributeError(name) from None

    def use(self) -> float:
        return float(self.factor) * self.scale


class Nested(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.unused = Plain(), Plain()

    def use(self) -> float:
        return float(self.inner.scale)


@dataclasses.dataclass(eq=False)
class Data:
    scale: float = 2.0
    step: int = 0

    def use(self) -> float:
        return self.scale


class Module(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.step = 2.0, 0
        self.weight = torch.nn.Parameter(torch.full((1,), 2.0), requires_grad=False)

    def use(self) -> Any:
        return self() * self.scale

    def forward(self) -> Tensor:
        return self.weight


class Linear(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(1, 1)
        self.scale, self.step = 2.0, 0
        self.requires_grad_(False)

    def use(self) -> Any:
        return self.weight[0, 0] * self.scale


class Dictionary(collections.UserDict[str, float]):
    step = 0

    def __init__(self, *_: Any) -> None:
        super().__init__(scale=2.0)
        self.scale = 2.0

    def use(self) -> float:
        return self["scale"] * self.scale


_CLASSES: list[Callable[[], Any]] = [Plain, Slots, Property, Cached, Lazy, Nested, Data, Module, Linear, Dictionary]


def _sin(x: Any) -> Any:
    return x.sin()


def _same(region: Any, function: Callable[[Any], Any], q: Any, count: int) -> None:
    """One call: as in eager, and so many specializations afterwards."""
    found, expected = region(Quantised(torch.ones(3), q)), function(Quantised(torch.ones(3), q))
    assert type(found) is type(expected) and found.q is q
    assert torch.equal(found.a, expected.a)
    assert len(region.specializations) == count


@pytest.mark.parametrize("generated", [True, False])
@pytest.mark.parametrize("make", _CLASSES, ids=lambda c: c.__name__)
def test_a_counter_in_an_object_makes_no_specialization(
    make: Any, generated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not generated:
        monkeypatch.setattr(codegen._EntryEmitter, "emit", _refuse)
    q, region = make(), st.compile(_sin)
    for _ in range(4):
        q.step += 1
        _same(region, _sin, q, 1)
    if make is not Cached:
        (q.inner if make is Nested else q).scale = 5.0
        _same(region, _sin, q, 2)
    assert not {"__getattribute__", "__setattr__", "__delattr__"} & {*vars(make)} - ({"__getattr__"})
    assert not noting._rows and not noting._classes and not noting._stored and not noting._originals


def _refuse(self: Any) -> Any:
    raise codegen.NotGenerated("for the reference")


# ---------------------------------------------------------------------------------------------- read in some way
class Ways(Plain):
    """``use`` reads ``step`` in the way that is tried."""

    way: Callable[[Any], Any]

    def use(self) -> Any:
        return type(self).way(self)


class SlotWays(Slots):
    __slots__ = ()
    way: Callable[[Any], Any]

    def use(self) -> Any:
        return type(self).way(self)


def _stores(q: Any) -> int:
    q.step = 1
    return 1


def _deletes(q: Any) -> int:
    try:
        del q.extra
    except AttributeError:
        return 1
    return 2


def _match(q: Any) -> int:
    match q:
        case Ways(step=1):
            return 5
    return 7


_WAYS: dict[str, Callable[[Any], Any]] = {
    "attribute": lambda q: q.step,
    "getattr": lambda q: getattr(q, "st" + "ep"),
    "attrgetter": lambda q: operator.attrgetter("step")(q),
    "vars": lambda q: vars(q)["step"],
    "__dict__": lambda q: q.__dict__["step"],
    "copy": lambda q: copy.copy(q).step,
    "deepcopy": lambda q: copy.deepcopy(q).step,
    "pickle": lambda q: pickle.loads(pickle.dumps(q)).step,
    "__reduce_ex__": lambda q: object.__reduce_ex__(q, 4)[2]["step"],
    "getmembers": lambda q: dict(inspect.getmembers(q))["step"],
    "len of vars": lambda q: sum(v for v in vars(q).values() if isinstance(v, int)),
    "thread": lambda q: _in_thread(lambda: q.step),
    "match": _match,
}


def _in_thread(function: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("name", _WAYS)
def test_what_is_read_is_compared(name: str) -> None:
    Ways.way = _WAYS[name]
    q, region = Ways(), st.compile(_sin)
    for step, count in ((1, 1), (1, 1), (2, 2), (1, 2)):
        q.step = step
        _same(region, _sin, q, count)


def test_the_table_of_attributes_that_somebody_holds() -> None:
    q, region = Ways(), st.compile(_sin)
    table = vars(q)
    Ways.way = lambda q: table["step"]
    for step, count in ((1, 1), (1, 1), (2, 2), (1, 2)):
        q.step = step
        _same(region, _sin, q, count)


def test_slots_that_are_read_are_compared() -> None:
    SlotWays.way = lambda q: q.step
    q, region = SlotWays(), st.compile(_sin)
    for step, count in ((1, 1), (2, 2), (1, 2)):
        q.step = step
        _same(region, _sin, q, count)


def test_an_attribute_that_is_looked_for_and_not_there() -> None:
    Ways.way = lambda q: getattr(q, "extra", 1.0)
    q, region = Ways(), st.compile(_sin)
    _same(region, _sin, q, 1)
    q.extra = 4.0  # type: ignore[attr-defined]
    _same(region, _sin, q, 2)
    del q.extra  # type: ignore[attr-defined]
    _same(region, _sin, q, 2)


def test_an_attribute_that_hides_a_method_of_the_class() -> None:
    q, region = Plain(), st.compile(_sin)
    _same(region, _sin, q, 1)
    q.use = lambda: 7.0  # type: ignore[method-assign]
    _same(region, _sin, q, 2)


def test_what_is_read_while_a_wrapper_is_built() -> None:
    class Built(Quantised):
        def __init__(self, a: Tensor, q: Any) -> None:
            super().__init__(a, q)
            self.factor = q.scale

    region, q = st.compile(lambda x: x.a * x.factor), Plain()
    for scale, count in ((2.0, 1), (3.0, 2), (2.0, 2)):
        q.scale = scale
        assert torch.equal(region(Built(torch.ones(2), q)), torch.ones(2) * scale)
        q.step += 1
        region(Built(torch.ones(2), q))
        assert len(region.specializations) == count


def test_what_is_read_while_a_result_is_taken_apart() -> None:
    class Told(Quantised):
        """Its results repeat a number of the object in their context, and nothing else reads it."""

        def __tensor_flatten__(self) -> Any:
            return ["a"], {"q": self.q, "n": self.q.scale}

    def function(x: Any) -> Any:
        return Told(x.a * 2, x.q)

    region, q = st.compile(function), Plain()
    for scale, count in ((2.0, 1), (3.0, 2)):
        q.scale = scale
        found = region(Quantised(torch.ones(2), q))
        assert found.__tensor_flatten__()[1]["n"] == scale
        assert len(region.specializations) == count


def test_a_value_that_is_set_again_is_compared() -> None:
    """A region that sets what is set already does nothing now, and would do something for another value."""
    Ways.way = _stores
    q, region = Ways(), st.compile(_sin)
    q.step = 1
    _same(region, _sin, q, 1)
    q.step = 2
    with pytest.raises(st.UnsupportedError, match="changes the flatten context of an input in place"):
        region(Quantised(torch.ones(3), q))
    assert q.step == 1 or q.step == 2


def test_an_attribute_that_the_region_fails_to_delete() -> None:
    Ways.way = _deletes
    q, region = Ways(), st.compile(_sin)
    _same(region, _sin, q, 1)
    q.extra = 1  # type: ignore[attr-defined]
    with pytest.raises(st.UnsupportedError, match="changes the flatten context of an input in place"):
        region(Quantised(torch.ones(3), q))


def test_the_class_of_an_object_is_compared() -> None:
    class Other(Plain):
        def use(self) -> float:
            return 9.0

    q, region = Plain(), st.compile(_sin)
    _same(region, _sin, q, 1)
    q.__class__ = Other
    _same(region, _sin, q, 2)


# ---------------------------------------------------------------------------------------------- what cannot be seen
class OwnGetattribute(Plain):
    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, "step" if name == "scale" else name)


class RoundTheClass(Plain):
    def use(self) -> Any:
        return object.__getattribute__(self, "step")


class Remembers(Plain):
    """A table outside of the object has what was read of it."""

    @functools.lru_cache(maxsize=4)  # noqa: B019
    def use(self) -> int:
        return self.step


class RemembersInProperty(Plain):
    @property
    @functools.lru_cache(maxsize=4)  # noqa: B019
    def remembered(self) -> int:
        return self.step

    def use(self) -> int:
        return self.remembered


class OfList(list[float]):
    step = 0

    def use(self) -> int:
        return self.step


@pytest.mark.parametrize("make", [OwnGetattribute, RoundTheClass, Remembers, RemembersInProperty, OfList])
def test_objects_whose_reads_are_not_seen_are_compared_as_a_whole(make: Any) -> None:
    assert not object_reads._is_watchable(make)
    q, region = make(), st.compile(_sin)
    for step, count in ((1, 1), (2, 2)):
        q.step = step
        Remembers.use.cache_clear()
        RemembersInProperty.remembered.fget.cache_clear()  # type: ignore[attr-defined]
        _same(region, _sin, q, count)


# ---------------------------------------------------------------------------------------------- backwards
class Late(Plain):
    """The backward reads ``factor``, the forward does not."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = 1.0

    def late(self) -> float:
        return self.factor


def _gradient(function: Any, q: Any, between: Callable[[], None] = lambda: None) -> Tensor:
    x = Quantised(torch.full((2,), 0.3), q).requires_grad_()
    out = function(x)
    between()
    out.backward(Quantised(torch.ones(2), q))
    return x.grad.a  # type: ignore[union-attr,no-any-return]


@pytest.mark.parametrize("retain", [True, False])
def test_what_the_backward_reads(retain: bool) -> None:
    q, region = Late(), st.compile(_sin, retain_trace=retain)
    for factor, count in ((1.0, 1), (1.0, 1), (3.0, 2), (1.0, 2)):
        q.factor = factor
        q.step += 1
        assert torch.equal(_gradient(region, q), _gradient(_sin, q))
        assert len(region.specializations) == count


def test_an_object_that_changes_before_the_backward() -> None:
    q, region = Late(), st.compile(_sin)

    def between() -> None:
        q.factor = 4.0

    for _ in range(3):
        found = []
        for function in (region, _sin):
            q.factor = 1.0
            found.append(_gradient(function, q, between))
        assert torch.equal(*found)
    assert len(region.specializations) == 1
    q.factor = 1.0
    assert torch.equal(_gradient(region, q), _gradient(_sin, q))


def test_a_backward_that_is_traced_later_reads_more() -> None:
    def second(function: Any, q: Any) -> Tensor:
        x = Quantised(torch.full((2,), 0.3), q).requires_grad_()
        (grad,) = torch.autograd.grad(function(x), x, Quantised(torch.ones(2), q), create_graph=True)
        (twice,) = torch.autograd.grad(grad, x, Quantised(torch.ones(2), q))
        return twice.a  # type: ignore[attr-defined,no-any-return]

    q, region = Late(), st.compile(lambda x: x.cos())
    for scale in (1.0, 3.0, 1.0):
        q.scale = scale  # the backward of cos is sin
        assert torch.equal(second(region, q), second(lambda x: x.cos(), q))


# ---------------------------------------------------------------------------------------------- several
def test_one_object_of_several_wrappers_is_compared_once() -> None:
    q = Plain()
    region = st.compile(lambda *xs: [x.sin() for x in xs])
    region(*[Quantised(torch.ones(2), q) for _ in range(4)])
    (entry,) = region.specializations
    assert len(entry.plan.objects) == 1
    assert entry.source.count("as_it_was") == 1
    q.scale = 3.0
    region(*[Quantised(torch.ones(2), q) for _ in range(4)])
    assert len(region.specializations) == 2


def test_an_object_that_is_reached_in_another_way() -> None:
    """Nothing reads the attribute that leads to it; it is read all the same."""
    inner = Plain()

    class Leads(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def use(self) -> float:
            return float(inner.scale)

    q, region = Leads(), st.compile(_sin)
    for scale, count in ((1.0, 1), (2.0, 2), (1.0, 2)):
        inner.scale = scale
        inner.step += 1
        q.step += 1
        _same(region, _sin, q, count)


def test_objects_in_containers() -> None:
    class Several(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.parts = [Plain(), Plain()]

        def use(self) -> float:
            return float(self.parts[1].scale)

    q, region = Several(), st.compile(_sin)
    for change, count in (
        (lambda: None, 1),
        (lambda: setattr(q.parts[0], "scale", 7.0), 1),
        (lambda: setattr(q.parts[1], "scale", 7.0), 2),
        (lambda: q.parts.pop(0), 3),
    ):
        change()
        if len(q.parts) == 1:
            q.parts.append(q.parts[0])
        _same(region, _sin, q, count)


def test_an_exception_restores_the_classes() -> None:
    class Fails(Plain):
        def use(self) -> float:
            raise KeyError("none")

    q = Fails()
    with pytest.raises(KeyError):
        st.compile(_sin)(Quantised(torch.ones(2), q))
    assert not {"__getattribute__", "__setattr__", "__delattr__"} & {*vars(Fails)}
    assert not noting._rows and not noting._classes and not noting._stored and not noting._originals


def test_threads_that_trace_at_once() -> None:
    q, results = Plain(), list[Any]()

    def run() -> None:
        region = st.compile(_sin)
        for _ in range(3):
            results.append(region(Quantised(torch.ones(3), q)).a)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 12 and all(torch.equal(r, results[0]) for r in results)
    assert not {"__getattribute__", "__setattr__"} & {*vars(Plain)}
    assert not noting._rows and not noting._stored


def test_own_methods_for_attributes_are_put_back() -> None:
    class Sets(Plain):
        def __setattr__(self, name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

    own = vars(Sets)["__setattr__"]
    q, region = Sets(), st.compile(_sin)
    for _ in range(2):
        q.step += 1
        _same(region, _sin, q, 1)
    assert vars(Sets)["__setattr__"] is own


def test_explain_tells_what_is_compared() -> None:
    q, region = Plain(), st.compile(_sin)
    region(Quantised(torch.ones(2), q))
    assert "context['q'] of args[0] (Plain; by .scale, .use)" in region.explain()
    q.scale = 3.0
    region(Quantised(torch.ones(2), q))
    assert "context['q'] of args[0]: expected scale=2.0, got 3.0" in region.explain()


def test_a_nested_wrapper() -> None:
    q, region = Plain(), st.compile(_sin)
    for scale, count in ((2.0, 1), (2.0, 1), (3.0, 2)):
        q.scale = scale
        q.step += 1
        x = TwoTensor(Quantised(torch.ones(2), q), Quantised(torch.ones(2), q))
        assert torch.equal(region(x).a.a, x.sin().a.a)
        assert len(region.specializations) == count


# ---------------------------------------------------------------------------------------------- any program
class Part:
    kind = 1.0

    def __init__(self) -> None:
        self.n, self.step = 1.0, 0

    @property
    def twice(self) -> float:
        return self.n * 2

    def method(self) -> float:
        return self.n + self.kind


class Loose(Part):
    def __getattr__(self, name: str) -> float:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.n + len(name)


class Tree(Part):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.items = Part(), Loose(), [Part(), 2.0, 3]
        self.table: dict[str, Any] = {"k": 1.0, "o": Part()}
        self.alias = self.left
        self.up = self

    def use(self) -> float:
        return sum(float(read(self)) for read in type(self).reads)

    reads: tuple[Callable[[Any], Any], ...] = ()


_READERS: tuple[Callable[[Any], Any], ...] = (
    lambda q: q.n,
    lambda q: q.left.n,
    lambda q: q.right.n,
    lambda q: q.left.twice,
    lambda q: q.right.method(),
    lambda q: q.right.unknown,
    lambda q: getattr(q.left, "extra", 5.0),
    lambda q: hasattr(q, "extra"),
    lambda q: q.items[0].n,
    lambda q: sum(v for v in q.items if isinstance(v, (int, float))),
    lambda q: q.table["k"],
    lambda q: q.table["o"].n,
    lambda q: len(q.table),
    lambda q: len(vars(q.left)),
    lambda q: q.alias.n,
    lambda q: q.alias is q.left,
    lambda q: q.up.up.left.kind,
    lambda q: type(q.left) is Part,
    lambda q: copy.copy(q.right).n,
)


_CHANGES: tuple[Callable[[Any], Any], ...] = (
    lambda q: setattr(q, "step", q.step + 1),
    lambda q: setattr(q, "n", q.n + 1),
    lambda q: setattr(q.left, "n", q.left.n + 1),
    lambda q: setattr(q.left, "step", q.left.step + 1),
    lambda q: setattr(q.right, "n", q.right.n + 1),
    lambda q: setattr(q.left, "extra", 2.0),
    lambda q: vars(q.left).pop("extra", None),
    lambda q: setattr(q, "extra", 2.0),
    lambda q: setattr(q.items[0], "n", 7.0),
    lambda q: q.items.append(4.0),
    lambda q: q.items.__setitem__(1, q.items[1] + 1),
    lambda q: q.table.__setitem__("k", q.table["k"] + 1),
    lambda q: q.table.__setitem__("new", 1.0),
    lambda q: setattr(q.table["o"], "n", 9.0),
    lambda q: setattr(q, "left", Loose()),
    lambda q: setattr(q, "alias", q.right),
    lambda q: setattr(q, "left", q.alias),
    lambda q: setattr(q, "table", dict(q.table)),
    lambda q: setattr(q.left, "kind", 3.0),
    lambda q: setattr(q, "up", Tree()),
    lambda q: setattr(q.right, "unknown", 3.0),
    lambda q: setattr(q.right, "method", lambda: 8.0),
    lambda q: setattr(q.left, "__class__", Loose),
)


@pytest.mark.parametrize("seed", range(16))
def test_any_reads_and_changes(seed: int) -> None:
    chance = random.Random(seed)

    class Program(Tree):
        reads = tuple(chance.sample(_READERS, chance.randint(1, 4)))

    q, region = Program(), st.compile(_sin)
    for _ in range(7):
        found, expected = region(Quantised(torch.ones(1), q)), _sin(Quantised(torch.ones(1), q))
        assert found.a.item() == expected.a.item()
        for change in chance.sample(_CHANGES, chance.randint(1, 2)):
            change(q)


class _LeavesOut:
    """Equal by ``n`` alone; its operations read ``scale``."""

    def __init__(self, scale: float, n: int) -> None:
        self.scale, self.n = scale, n

    def __eq__(self, other: Any) -> bool:
        return type(other) is _LeavesOut and self.n == other.n

    __hash__ = None  # type: ignore[assignment]


def test_what_was_read_counts_though_the_class_calls_others_equal() -> None:
    f = lambda x: x * x.q.scale
    compiled = st.compile(f)
    changed = _LeavesOut(2.0, 1)
    for c in (changed, _LeavesOut(2.0, 1), _LeavesOut(3.0, 1), changed):
        x = Quantised(torch.ones(2), c)
        assert torch.equal(compiled(x).a, f(x).a)
        changed.scale += 1
        assert torch.equal(compiled(x).a, f(x).a)
