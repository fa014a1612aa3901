"""Of an object in a context, the guards compare the attributes that the trace has read, set or deleted, and no others."""

from __future__ import annotations

import copy
import functools
import inspect
import operator
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from objects_in_contexts import CLASSES, Cached, Nested, Plain, Quantised, Slots, check_call, sine

import subclass_trace as st
from subclass_trace.capture import object_reads
from subclass_trace.runtime import codegen
from subclass_trace.subclass import noting

Tensor = torch.Tensor


@pytest.mark.parametrize("generated", [True, False])
@pytest.mark.parametrize("make", CLASSES, ids=lambda c: c.__name__)
def test_a_counter_in_an_object_makes_no_specialization(
    make: Any, generated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not generated:
        monkeypatch.setattr(codegen._EntryEmitter, "emit", _refuse)
    q, region = make(), st.compile(sine)
    for _ in range(4):
        q.step += 1
        check_call(region, sine, q, 1)
    if make is not Cached:
        (q.inner if make is Nested else q).scale = 5.0
        check_call(region, sine, q, 2)
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
    q, region = Ways(), st.compile(sine)
    for step, count in ((1, 1), (1, 1), (2, 2), (1, 2)):
        q.step = step
        check_call(region, sine, q, count)


def test_the_table_of_attributes_that_somebody_holds() -> None:
    q, region = Ways(), st.compile(sine)
    table = vars(q)
    Ways.way = lambda q: table["step"]
    for step, count in ((1, 1), (1, 1), (2, 2), (1, 2)):
        q.step = step
        check_call(region, sine, q, count)


def test_slots_that_are_read_are_compared() -> None:
    SlotWays.way = lambda q: q.step
    q, region = SlotWays(), st.compile(sine)
    for step, count in ((1, 1), (2, 2), (1, 2)):
        q.step = step
        check_call(region, sine, q, count)


def test_an_attribute_that_is_looked_for_and_not_there() -> None:
    Ways.way = lambda q: getattr(q, "extra", 1.0)
    q, region = Ways(), st.compile(sine)
    check_call(region, sine, q, 1)
    q.extra = 4.0  # type: ignore[attr-defined]
    check_call(region, sine, q, 2)
    del q.extra  # type: ignore[attr-defined]
    check_call(region, sine, q, 2)


def test_an_attribute_that_hides_a_method_of_the_class() -> None:
    q, region = Plain(), st.compile(sine)
    check_call(region, sine, q, 1)
    q.use = lambda: 7.0  # type: ignore[method-assign]
    check_call(region, sine, q, 2)


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
    q, region = Ways(), st.compile(sine)
    q.step = 1
    check_call(region, sine, q, 1)
    q.step = 2
    with pytest.raises(st.UnsupportedError, match="changes the flatten context of an input in place"):
        region(Quantised(torch.ones(3), q))
    assert q.step == 1 or q.step == 2


def test_an_attribute_that_the_region_fails_to_delete() -> None:
    Ways.way = _deletes
    q, region = Ways(), st.compile(sine)
    check_call(region, sine, q, 1)
    q.extra = 1  # type: ignore[attr-defined]
    with pytest.raises(st.UnsupportedError, match="changes the flatten context of an input in place"):
        region(Quantised(torch.ones(3), q))


def test_the_class_of_an_object_is_compared() -> None:
    class Other(Plain):
        def use(self) -> float:
            return 9.0

    q, region = Plain(), st.compile(sine)
    check_call(region, sine, q, 1)
    q.__class__ = Other
    check_call(region, sine, q, 2)


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
    q, region = make(), st.compile(sine)
    for step, count in ((1, 1), (2, 2)):
        q.step = step
        Remembers.use.cache_clear()
        RemembersInProperty.remembered.fget.cache_clear()  # type: ignore[attr-defined]
        check_call(region, sine, q, count)
