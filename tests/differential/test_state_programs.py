"""Generated programs that change Python state: attributes, lists, dicts, sets and deques of an object, a module, a class and
globals. After each call all of it is as in eager: what stands where, which objects are one, and which are new."""

from __future__ import annotations

import collections
import dataclasses
import linecache
import os
import types
from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.strategies as hs
import pytest
import torch

import subclass_trace as st

Tensor = torch.Tensor


class Record:
    """An object that can be changed."""

    def __init__(self, n: Any) -> None:
        self.n = n


@dataclasses.dataclass(frozen=True)
class Frozen:
    """One that cannot, and that is equal to others."""

    n: Any


VALUES = (
    "Record(1)",
    "Frozen(2)",
    "[1]",
    "{'a': 1}",
    "Record(rows)",
    "Frozen(rows)",
    "[rows]",
    "(rows, 1)",
    "7",
    "'t'",
    "True",
    "None",
    "rows",
    "FIRST",
    "SECOND",
    "{1, 2}",
    "[Record(3)]",
    "{'r': Record(4)}",
    "(Record(5),)",
    "collections.deque([1])",
    "o.a",
    "o.items",
    "len(o.items)",
    "float(len(o.table))",
)
KEYS = ("1", "2", "Frozen(1)", "Frozen(rows)", "'s'", "rows", "(1, 2)")
STATEMENTS = (
    "o.a = {v}",
    "o.b = {v}",
    "o.unread = {v}",
    "o.kind.unread = {v}",
    "o.kind.c = {v}",
    "NAMES.a = {v}",
    "GLOBAL['k'] = {v}",
    "ROWS.append({v})",
    "o.items.append({v})",
    "o.items.insert(0, {v})",
    "o.items.extend([{v}, {w}])",
    "o.items[0] = {v}",
    "o.items[-1] = {v}",
    "o.items.pop()",
    "o.items.pop(0)",
    "o.items.reverse()",
    "o.items[:] = [{v}, {w}]",
    "o.items.clear()",
    "o.items += [{v}]",
    "o.items = [*o.items, {v}]",
    "o.items.remove(o.items[0])",
    "o.items.append(o.a)",
    "o.table['k'] = {v}",
    "o.table.setdefault('q', {v})",
    "o.table.update(k={v})",
    "o.table.pop('k', None)",
    "o.table.clear()",
    "k, v = next(iter(o.table.items())); del o.table[k]; o.table[k] = v",
    "o.table['k'] = o.table.pop('n', {v})",
    "o.items.sort(key=lambda v: type(v).__name__)",
    "del o.items[1:2]",
    "o.table = {{**o.table, 'z': {v}}}",
    "o.table['k'], o.table['n'] = o.table.get('n'), o.table.get('k')",
    "o.members.add({k})",
    "o.members.discard({k})",
    "o.members |= {{{k}}}",
    "o.members -= {{{k}}}",
    "o.queue.append({v})",
    "o.queue.appendleft({v})",
    "o.queue.popleft()",
    "o.queue.rotate(1)",
    "o.recent.append({v})",
    "o.slots.s = {v}",
    "helper.tag = {v}",
    "o.a, o.b = o.b, o.a",
    "t = {v}; o.a = t; o.b = t",
    "t = {v}; o.a = t; o.items.append(t)",
    "o.a = o.items[0]",
    "o.inner.a = {v}",
    "o.inner.rows.append({v})",
    "setattr(o, 'zz', {v})",
    "del o.a",
)
RESULTS = ("None", "{v}", "o.a", "o.items", "(o.a, {v})", "o.table")
BRANCHES = ("x * 2", "x * 3 if o.a is None else x * 2")


@hs.composite
def programs(draw: hs.DrawFn) -> str:
    """The source of a function of a tensor."""

    def filled(template: str) -> str:
        chosen = {name: draw(hs.sampled_from(rows)) for name, rows in (("v", VALUES), ("w", VALUES), ("k", KEYS))}
        return template.format(**chosen)

    lines = [filled(draw(hs.sampled_from(STATEMENTS))) for _ in range(draw(hs.integers(1, 3)))]
    lines += [f"y = {draw(hs.sampled_from(BRANCHES))}", f"return y, {filled(draw(hs.sampled_from(RESULTS)))}"]
    return "def f(x):\n    rows = x.shape[0]\n" + "".join(f"    {line}\n" for line in lines)


def _world(source: str, is_module: bool) -> dict[str, Any]:
    def helper() -> None: ...

    class Slots:
        __slots__ = ("s",)

    class Kind:
        c = unread = 0

    class Owner(torch.nn.Module if is_module else object):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.unread, self.kind = None, 1, 0, Kind
            self.items, self.table = [Record(0), 5, Frozen(6)], {"k": Record(7), "n": 8}
            self.members, self.queue = {1, Frozen(9)}, collections.deque([Record(0), 1])
            self.recent = collections.deque([Record(0), 1], maxlen=3)
            self.inner, self.slots = types.SimpleNamespace(a=Record(1), rows=[]), Slots()
            self.slots.s = 0

    world: dict[str, Any] = {
        "o": Owner(),
        "NAMES": types.SimpleNamespace(a=0),
        "helper": helper,
        "GLOBAL": {},
        "ROWS": [],
    }
    world |= {
        "FIRST": Record(100),
        "SECOND": Record(200),
        "Record": Record,
        "Frozen": Frozen,
        "collections": collections,
    }
    name = f"<state program {hash(source)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    exec(compile(source, name, "exec"), world)
    return world


def _seen(value: Any, known: dict[int, int], kept: list[Any], depth: int = 0) -> Any:
    """What a value is, with numbers in the place of what can be changed: the same ones for the same objects."""
    if isinstance(value, Tensor):
        return type(value).__name__, value.tolist()
    if isinstance(value, (int, float, str, type(None))):
        return type(value).__name__, value
    if isinstance(value, type) or depth > 6:
        return getattr(value, "__name__", "deep")
    if isinstance(value, tuple):
        return tuple(_seen(v, known, kept, depth + 1) for v in value)
    if isinstance(value, Frozen):
        return "Frozen", _seen(value.n, known, kept, depth + 1)
    kept.append(value)  # else another object could have its id
    number = known.setdefault(id(value), len(known))
    if isinstance(value, (set, frozenset)):
        return number, sorted(str(_seen(v, known, kept, depth + 1)) for v in value)
    if isinstance(value, (list, collections.deque)):
        return number, type(value).__name__, [_seen(v, known, kept, depth + 1) for v in value]
    names = value if isinstance(value, dict) else vars(value) if hasattr(value, "__dict__") else {"s": value.s}
    return number, [(k, _seen(v, known, kept, depth + 1)) for k, v in names.items() if k[:1] != "_" and k != "training"]


def _run(source: str, is_module: bool, compiled: Callable[[Any], Any]) -> tuple[list[Any], bool]:
    """What stands after each call; and whether the last one was refused."""
    world = _world(source, is_module)
    function, owner = compiled(world["f"]), world["o"]
    known: dict[int, int] = {}
    kept: list[Any] = []
    rows = []
    for n in (3, 3, 4, 5, 3):
        result: Any
        try:
            result = function(torch.ones(n))
        except st.SubclassTraceError:
            return rows, True
        except (IndexError, KeyError, AttributeError, TypeError, ValueError, StopIteration) as error:
            result = type(error).__name__
        class_attributes = owner.kind.c, owner.kind.unread
        outside = (
            class_attributes,
            vars(world["helper"]),
            world["NAMES"],
            world["GLOBAL"],
            world["ROWS"],
            world["FIRST"],
            world["SECOND"],
        )
        if isinstance(result, str) and source.count("rows") > 1:  # a container with a size is then not put anywhere
            return [*rows, result], False
        rows.append([_seen(v, known, kept) for v in (result, owner, *outside)])
        if isinstance(result, str):
            return rows, False
    return rows, False


@hypothesis.given(source=programs(), is_module=hs.booleans())
def test_python_state_is_as_in_eager(source: str, is_module: bool) -> None:
    _check(source, is_module)


@pytest.mark.fuzz
@hypothesis.settings(max_examples=int(os.environ.get("STATE_PROGRAMS", "3000")))
@hypothesis.given(source=programs(), is_module=hs.booleans())
def test_python_state_is_as_in_eager_for_long(source: str, is_module: bool) -> None:
    _check(source, is_module)


def _check(source: str, is_module: bool) -> None:
    expected, _ = _run(source, is_module, lambda f: f)
    found, refused = _run(source, is_module, st.compile)
    assert found == expected[: len(found)] and (refused or len(found) == len(expected)), source
