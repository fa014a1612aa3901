"""What a region writes without having read it is written by each call, also where the call that was traced has found
the same there."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import subclass_trace as st

SETTING: Any = 1


class Slotted:
    __slots__ = ("v",)


class Plain(SimpleNamespace):
    of_class: Any = 1


class Things:
    """Each holds 1 at the beginning, and something else after `move`."""

    def __init__(self) -> None:
        self.d: dict[str, Any] = {"a": 1, "b": 2}
        self.ordered = collections.OrderedDict(a=1, b=2)
        self.default = collections.defaultdict(int, a=1)
        self.l, self.s = [1, 2], {1}
        self.counter = collections.Counter(a=1)
        self.deque: Any = collections.deque([1, 2], maxlen=2)
        self.o, self.slotted, self.module = Plain(v=1), Slotted(), nn.Module()
        self.slotted.v = 1
        self.module.register_buffer("t", torch.ones(1))
        self.other = self.o
        self.cell: Any = 1

        def put(value: Any) -> None:
            nonlocal held
            held = value

        held: Any = 1
        self.put, self.get_cell = put, lambda: held
        Plain.of_class = 1
        globals()["SETTING"] = 1

    def move(self) -> None:
        global SETTING
        self.d.update(a=8, b=5, z=3)
        for table in (self.ordered, self.default, self.counter):
            table["b"] = table["a"] = 7
        self.l[:], self.s = [9, 9], self.s
        self.s.clear()
        self.s |= {5, 7}
        self.deque.extend([7, 8])
        self.o.v, self.slotted.v, self.other, SETTING, Plain.of_class = 6, 6, Plain(v=4), 6, 6
        self.module.t = torch.zeros(1)
        self.put(6)

    def __repr__(self) -> str:
        tables = [self.d, self.ordered, self.default, self.counter, self.l, sorted(self.s), self.deque]
        texts = [repr(list(t.items()) if isinstance(t, dict) else t) for t in tables]
        values = [self.o.v, self.slotted.v, self.other.v, SETTING, Plain.of_class, self.module.t, self.get_cell()]
        return "; ".join([*texts, *map(repr, values)])


def _global(t: Things) -> None:
    global SETTING
    SETTING = 1


def _again(table: Any, key: str) -> None:
    value = table.pop(key)
    table[key] = value


def _put_and_taken(t: Things) -> None:
    t.d["z"] = 1
    del t.d["z"]


def _in_place(t: Things) -> None:
    t.s |= {1}


def _number_read_before(t: Things) -> None:
    t.o.n = t.o.v * 2
    t.o.v = 1


WRITES: dict[str, Callable[[Things], Any]] = {
    "item": lambda t: t.d.__setitem__("a", 1),
    "item of an OrderedDict": lambda t: t.ordered.__setitem__("a", 1),
    "item of a defaultdict": lambda t: t.default.__setitem__("a", 1),
    "update": lambda t: t.d.update(a=1),
    "setdefault": lambda t: t.d.setdefault("a", 1),
    "taken away and put again": lambda t: _again(t.d, "a"),
    "moved to the end": lambda t: t.ordered.move_to_end("a"),
    "put and taken away": _put_and_taken,
    "pop of a key that is not there": lambda t: t.d.pop("z", None),
    "Counter": lambda t: t.counter.update({"b": 0}),
    "attribute": lambda t: setattr(t.o, "v", 1),
    "attribute by object": lambda t: object.__setattr__(t.o, "v", 1),
    "attribute that was read": _number_read_before,
    "the same object": lambda t: setattr(t, "other", t.o),
    "namespace": lambda t: vars(t.o).update(v=1),
    "slot": lambda t: setattr(t.slotted, "v", 1),
    "class": lambda t: setattr(Plain, "of_class", 1),
    "global": _global,
    "cell": lambda t: t.put(1),
    "buffer": lambda t: setattr(t.module, "t", t.module.t),
    "buffer registered": lambda t: t.module.register_buffer("t2", None),
    "list item": lambda t: t.l.__setitem__(1, 2),
    "slice": lambda t: t.l.__setitem__(slice(None), [1, 2]),
    "appended and taken away": lambda t: (t.l.append(3), t.l.pop()),
    "reversed twice": lambda t: (t.l.reverse(), t.l.reverse()),
    "list and list": lambda t: t.l.__iadd__([]),
    "deque": lambda t: t.deque.extend([1, 2]),
    "add": lambda t: t.s.add(1),
    "discard": lambda t: t.s.discard(5),
    "set update": lambda t: t.s.update([1]),
    "set |=": _in_place,
    "difference": lambda t: t.s.difference_update([7]),
    "intersection": lambda t: t.s.intersection_update([1]),
}


@pytest.mark.parametrize("name", WRITES)
def test_as_in_eager(name: str) -> None:
    """The state after each call, whatever is there before it."""

    def run(compile: Callable[[Any], Any]) -> list[str]:
        things, seen = Things(), []

        def region(x: Tensor) -> Tensor:
            WRITES[name](things)
            return x + 1

        call = compile(region)
        for _ in range(3):
            call(torch.ones(2))
            seen.append(repr(things))
            things.move()
            call(torch.ones(2))
            seen.append(repr(things))
        return seen

    assert run(lambda f: st.compile(f)) == run(lambda f: f)


def test_settings_of_torch() -> None:
    """A region that sets what is set already sets it in each call."""
    try:
        torch.backends.mkldnn.enabled = False

        def region(x: Tensor) -> Tensor:
            torch.backends.mkldnn.enabled = False
            torch.set_float32_matmul_precision("highest")
            return x + 1

        compiled = st.compile(region)
        for _ in range(2):
            compiled(torch.ones(2))
            assert not torch.backends.mkldnn.enabled and torch.get_float32_matmul_precision() == "highest"
            torch.backends.mkldnn.enabled = True
            torch.set_float32_matmul_precision("high")
    finally:
        torch.backends.mkldnn.enabled = True
        torch.set_float32_matmul_precision("highest")


def test_a_strict_export_leaves_out_what_its_call_cannot_tell_from_nothing() -> None:
    module = nn.Linear(2, 2)

    def forward(x: Tensor) -> Tensor:
        module.training = True
        return module(x)

    x = torch.ones(1, 2)
    assert st.export(copy.deepcopy(forward), (x,)).run(x).equal(module(x))


LISTS: dict[str, Callable[[Any], Any]] = {
    "added, and a slice read": lambda t: (t.append(0), sum(list(t)[:2]))[1],
    "added, and an item read": lambda t: (t.append(0), t[1])[1],
    "added, and one read from the end": lambda t: (t.append(7), t[-2])[1],
    "added, and all read": lambda t: (t.append(7), sum(t))[1],
    "written, and another read": lambda t: (t.__setitem__(0, 4), t[1])[1],
    "written, and all read": lambda t: (t.__setitem__(0, 2), max(t))[1],
    "written from the end": lambda t: (t.__setitem__(-1, 4), t[0])[1],
    "read and written": lambda t: (t.__setitem__(0, t[0] + 1), t[0])[1],
    "written, and the length": lambda t: (t.__setitem__(0, 1), len(t))[1],
    "written and added": lambda t: (t.__setitem__(0, 9), t.append(3), t[1])[2],
    "added and written": lambda t: (t.append(3), t.__setitem__(1, 9), t[-1])[2],
    "what was added is written": lambda t: (t.append(3), t.__setitem__(len(t) - 1, 9), t[0])[2],
    "written and taken away": lambda t: (t.__setitem__(0, t[1]), t.pop(), t.append(1), t[0])[3],
    "written and reversed": lambda t: (t.__setitem__(0, 2), t.reverse(), t[0])[2],
    "written, and one in it": lambda t: (t.__setitem__(0, 2), 2 in t)[1],
    "written, and unpacked": lambda t: (t.__setitem__(0, 2), (lambda a, b, *c: b)(*t))[1],
    "written, and its place": lambda t: (t.__setitem__(0, 2), t.index(2))[1],
}


@pytest.mark.parametrize("kind", [list, collections.deque])
@pytest.mark.parametrize("name", LISTS)
def test_lists_whose_numbers_change(name: str, kind: type) -> None:
    """Numbers that differ between calls are symbols, also where the list that holds them is written."""

    def run(compile: Callable[[Any], Any]) -> list[Any]:
        held: Any = kind([1, 2])
        call, seen = compile(lambda x: x * LISTS[name](held)), list[Any]()
        for now in ([1, 2], [5, 3], [1, 2], [5, 5], [1, 2, 4, 4]):
            held.clear()
            held.extend(now)
            seen += [call(torch.ones(1)).item(), [*held]]
        return seen

    assert run(st.compile) == run(lambda f: f)


def test_a_keyword_default_that_the_region_has_written() -> None:
    def get(*, k: float = 2.0) -> float:
        return k

    def region(x: Tensor) -> Tensor:
        assert get.__kwdefaults__ is not None
        get.__kwdefaults__["k"] = 2.0
        return x * get()

    compiled = st.compile(region)
    for now in (2.0, 2.0, 3.0, 3.0):
        get.__kwdefaults__ = {"k": now}
        assert compiled(torch.ones(1)).item() == 2.0 and get.__kwdefaults__ == {"k": 2.0}
