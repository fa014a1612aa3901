"""Of a dict that a wrapper keeps as it is, guards compare the items that the trace has read."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import json
import pickle
import string
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map, tree_map_with_path

import subclass_trace as st
from subclass_trace.errors import UnsupportedError
from subclass_trace.subclass.noted_dict import NotedDict
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


class Table(Tensor):
    """One inner tensor, and a dict that all results have from the first argument. It is the context."""

    a: Tensor
    meta: dict[str, Any]

    @staticmethod
    def __new__(cls, a: Tensor, meta: dict[str, Any]) -> Any:
        return Tensor._make_wrapper_subclass(cls, a.shape, strides=a.stride(), dtype=a.dtype, device=a.device)

    def __init__(self, a: Tensor, meta: dict[str, Any]) -> None:
        self.a, self.meta = a, meta

    def __tensor_flatten__(self) -> Any:
        return ["a"], self.meta

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"], context)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        metas: list[dict[str, Any]] = []

        def dense(t: Any) -> Any:
            if isinstance(t, cls):
                metas.append(t.meta)
                return t.a
            return t

        out = func(*tree_map(dense, args), **tree_map(dense, kwargs or {}))
        return tree_map(lambda o: cls(o, metas[0]) if isinstance(o, Tensor) else o, out)


class Inside(Table):
    """The dict is an item of the context, which is made anew each time, beside a number."""

    def __init__(self, a: Tensor, meta: dict[str, Any], number: int = 7) -> None:
        super().__init__(a, meta)
        self.number = number

    @staticmethod
    def __new__(cls, a: Tensor, meta: dict[str, Any], number: int = 7) -> Any:
        return Table.__new__(cls, a, meta)

    def __tensor_flatten__(self) -> Any:
        return ["a"], {"meta": self.meta, "number": self.number}

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"], context["meta"], context["number"])


class InTuple(Table):
    """The dict is in a tuple."""

    def __tensor_flatten__(self) -> Any:
        return ["a"], (1, self.meta)

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"], context[1])


class Copied(Table):
    """Each wrapper has a dict of its own."""

    def __init__(self, a: Tensor, meta: dict[str, Any]) -> None:
        self.a, self.meta = a, dict(meta)


class Both(Table):
    """An item is an attribute, too."""

    def __init__(self, a: Tensor, meta: dict[str, Any]) -> None:
        self.a, self.meta, self.step = a, meta, meta["step"]


class Scaled(Table):
    """The backward reads an item that the forward does not."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.sin:
            return _Sine.apply(args[0])
        return super().__torch_function__(func, types, args, kwargs or {})


class _Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.meta = x.meta
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return grad * ctx.meta["bits"] * (x if torch.is_grad_enabled() else 1)


def _make(cls: type, number: int, grad: bool = False) -> Any:
    return cls(torch.arange(3.0) + number, {"name": f"layer{number}", "bits": 4, "step": number}).requires_grad_(grad)


_FIRST = {"name": "layer1", "bits": 4, "step": 1}
#: what reads nothing that differs, and what does
SAME: dict[str, Callable[[Any], Any]] = {
    "all, which a call hands on": lambda x: (x * 2, x.meta),
    "an operation": lambda x: x * 2,
    "views": lambda x: (x.view(-1), x[1:], x.detach(), x.t()),
    "an item": lambda x: x * x.meta["bits"],
    "an item, or else": lambda x: x * x.meta.get("bits", 1) + x.meta.get("none", 3),
    "which items there are": lambda x: x * len(x.meta) if "bits" in x.meta and "none" not in x.meta else x,
    "their names": lambda x: x * sum(len(key) for key in x.meta) + len(list(x.meta.keys())) + len(sorted(x.meta)),
    "its class": lambda x: x * 2 if isinstance(x.meta, dict) and x.meta.__class__ is dict else x,
    "its type": lambda x: x * 2 if type(x.meta) is dict else x,
    "a result with it": lambda x: type(x)(x.a * 2, x.meta),
    "a result with an item": lambda x: type(x)(x.a * 2, {"step": 0, "bits": x.meta["bits"]}),
    "a format": lambda x: x * len(string.Template("$bits").substitute(x.meta) + "{bits}".format_map(x.meta)),
    "a pattern": lambda x: x * _bits(x.meta),
    "the input": lambda x: x,
    "in place": lambda x: x.mul_(2),
}
READ: dict[str, Callable[[Any], Any]] = {
    "the item": lambda x: (x * 2, x.meta["name"]),
    "a copy": lambda x: (x * 2, dict(x.meta)),
    "its copy": lambda x: (x * 2, x.meta.copy(), copy.copy(x.meta), copy.deepcopy(x.meta)),
    "unpacked": lambda x: (x * 2, {**x.meta}),
    "arguments": lambda x: (x * 2, dict(**x.meta)),
    "joined": lambda x: (x * 2, x.meta | {"more": 1}, {"more": 1} | x.meta),
    "values": lambda x: (x * 2, list(x.meta.values())),
    "items": lambda x: (x * 2, list(x.meta.items())),
    "text": lambda x: (x * 2, repr(x.meta), f"{x.meta}", json.dumps(x.meta)),
    "a pickle": lambda x: (x * 2, pickle.loads(pickle.dumps(x.meta))),
    "a tree": lambda x: (x * 2, tree_map(lambda v: v, x.meta), tree_map_with_path(lambda p, v: (str(p), v), x.meta)),
    "another of its class": lambda x: (x * 2, type(x.meta)(x.meta), x.meta.fromkeys(["a"], x.meta["step"])),
    "in a dataclass": lambda x: (x * 2, dataclasses.asdict(_Record(x.meta))),
    "equality": lambda x: x * 2 if x.meta == _FIRST else x,
    "equality, turned": lambda x: x * 2 if dict(_FIRST) == x.meta else x,
    "inequality": lambda x: x * 2 if x.meta != _FIRST else x,
    "a result with more": lambda x: type(x)(x.a * 2, {**x.meta, "more": 1}),
}


@dataclasses.dataclass
class _Record:
    held: Any


def _bits(meta: Any) -> int:
    match meta:
        case {"bits": int(bits)}:
            return bits
    return -1


def _assert_same(found: Any, expected: Any, mine: Any, theirs: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, Table):
        assert torch.equal(found.a, expected.a) and found.meta == expected.meta and type(found.meta) is dict
        assert (found.meta is mine.meta) == (expected.meta is theirs.meta)
        assert (found is mine) == (expected is theirs)
    elif isinstance(expected, tuple):
        for a, b in zip(found, expected, strict=True):
            _assert_same(a, b, mine, theirs)
    else:
        assert found == expected


def _noted_inside(value: Any, seen: set[int]) -> Iterator[NotedDict]:
    if id(value) in seen or isinstance(value, type):
        return
    seen.add(id(value))
    if type(value) is NotedDict:
        yield value
    rows = [*value] if isinstance(value, (list, tuple)) else [*value.values()] if isinstance(value, dict) else []
    slots = (n for k in type(value).__mro__ for n in vars(k).get("__slots__", ()) if hasattr(value, n))
    for part in (*rows, *getattr(value, "__dict__", {}).values(), *(getattr(value, n) for n in slots)):
        yield from _noted_inside(part, seen)


def _calls(function: Callable[[Any], Any], cls: type, count: int, grad: bool = False) -> Any:
    region = st.compile(function)
    for number in (1, 2, 1, 3):
        mine, theirs = _make(cls, number, grad), _make(cls, number, grad)
        found, expected = region(mine), function(theirs)
        _assert_same(found, expected, mine, theirs)
        if grad and isinstance(expected, Table) and expected.grad_fn is not None:
            found.sum().backward()
            expected.sum().backward()
            _assert_same(mine.grad, theirs.grad, mine, theirs)
    assert len(region.specializations) == count
    assert not [row for s in region.specializations for row in _noted_inside(s.plan, set())]
    return region


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("cls", [Table, Inside, InTuple])
@pytest.mark.parametrize("name", SAME)
def test_what_is_not_read_may_differ(name: str, cls: type, grad: bool) -> None:
    _calls(SAME[name], cls, 1, grad and name != "in place")  # eager refuses that of a leaf


@pytest.mark.parametrize("cls", [Table, Inside, InTuple])
@pytest.mark.parametrize("name", READ)
def test_what_is_read_is_compared(name: str, cls: type) -> None:
    region = st.compile(READ[name])
    for number in (1, 2, 1, 3):
        mine, theirs = _make(cls, number), _make(cls, number)
        _assert_same(region(mine), READ[name](theirs), mine, theirs)
    assert len(region.specializations) >= 2


def test_it_is_told() -> None:
    text = _calls(lambda x: x * x.meta["bits"], Inside, 1).explain()
    assert "context['meta']['name'] of args[0] (any str; nothing read .meta['name'])" in text
    assert "['bits']" not in text.partition("unguarded")[2].partition("\n")[0]


def test_keys_and_types_are_compared() -> None:
    region = st.compile(lambda x: x * 2)
    for meta in (
        {"a": 1, "b": 2},
        {"b": 2, "a": 1},
        {"a": 1},
        {"a": 1, "b": 2.0},
        {"a": 1, "b": True},
        {"a": 5, "b": 6},
    ):
        x = Table(torch.ones(2), dict(meta))
        assert region(x).meta is x.meta and x.meta == meta
    assert len(region.specializations) == 5


@pytest.mark.parametrize("cls", [Copied, Both])
def test_classes_that_do_more_with_it(cls: type) -> None:
    region = st.compile(lambda x: x.a * x.meta["bits"])
    for number in (1, 2, 3):
        torch.testing.assert_close(region(_make(cls, number)), (torch.arange(3.0) + number) * 4)
    assert len(region.specializations) == 1
    _calls(lambda x: x * x.meta["step"], cls, 3)


def test_an_attribute_that_is_made_of_it() -> None:
    class Derived(Table):
        def __init__(self, a: Tensor, meta: dict[str, Any]) -> None:
            self.a, self.meta, self.twice = a, meta, 2 * meta["step"]

    _calls(lambda x: x * x.twice, Derived, 3)
    _calls(lambda x: type(x)(x.a * x.meta["bits"], x.meta), Derived, 3)  # the class computes with it: it is guarded


def test_one_dict_of_two_wrappers() -> None:
    def function(x: Any, y: Any) -> Any:
        return x * 2, y * (3 if x.meta is y.meta else 4)

    for cls in (Table, Inside):
        region = st.compile(function)
        for number in (1, 2):
            x = _make(cls, number)
            y = cls(x.a + 1, x.meta)
            one, other = region(x, y)
            assert one.meta is x.meta and other.meta is x.meta
            assert torch.equal(one.a, x.a * 2)


def test_inside_of_another_wrapper() -> None:
    region = st.compile(lambda x: x * x.b.meta["bits"])
    for number in (1, 2, 3):
        x = TwoTensor(_make(Table, number), _make(Table, number))
        found = region(x)
        assert torch.equal(found.a.a, x.a.a * 4) and found.b.meta is x.b.meta and found.a.meta is x.a.meta
    assert len(region.specializations) == 1


def test_dicts_in_it_are_read_as_a_whole() -> None:
    def make(number: int, deep: int) -> Any:
        return Table(torch.ones(2), {"step": number, "rest": {"deep": deep, "list": [deep]}})

    region = st.compile(lambda x: x * x.meta["rest"]["deep"])
    for number, deep in ((1, 2), (2, 2), (2, 3), (3, 3)):
        torch.testing.assert_close(region(make(number, deep)).a, torch.full((2,), float(deep)))
    assert len(region.specializations) == 2


def test_changing_it_is_refused_as_before() -> None:
    def change(x: Any) -> Any:
        x.meta["step"] += 1
        return x * 2

    x = _make(Table, 1)
    with pytest.raises(UnsupportedError, match="changes the flatten context"):
        st.compile(change)(x)
    assert x.meta["step"] == 1


@pytest.mark.parametrize("cls", [Table, Inside])
def test_it_is_changed_between_calls(cls: type) -> None:
    region = st.compile(lambda x: x * x.meta["bits"])
    x = _make(cls, 1)
    for bits, step in ((4, 1), (4, 2), (5, 2), (4, 3)):
        x.meta.update(bits=bits, step=step)
        found = region(x)
        assert torch.equal(found.a, x.a * bits) and found.meta is x.meta
    assert len(region.specializations) == 2


def test_the_backward_reads_an_item() -> None:
    """It is that of the call, and as it is when the backward runs."""
    region = st.compile(lambda x: torch.sin(x))
    for number, bits, later in ((1, 4, 4), (2, 4, 4), (3, 5, 5), (4, 4, 6), (5, 5, 4)):
        gradients = []
        for function in (region, torch.sin):
            x = Scaled(torch.arange(3.0), {"name": f"layer{number}", "bits": bits}).requires_grad_()
            out = function(x)
            x.meta["bits"] = later
            out.sum().backward()
            gradients.append(x.grad)
            assert x.grad.meta is x.meta or function is torch.sin
        assert torch.equal(gradients[0].a, gradients[1].a)
    assert len(region.specializations) == 2  # one for each number of bits, whatever the names are


def test_a_second_backward_reads_an_item() -> None:
    region = st.compile(lambda x: torch.sin(x))
    for number, bits in ((1, 4), (2, 4), (3, 5), (4, 4)):
        gradients = []
        for function in (region, torch.sin):
            x = Scaled(torch.arange(3.0), {"name": f"layer{number}", "bits": bits}).requires_grad_()
            (grad,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
            (again,) = torch.autograd.grad(grad.sum(), x)
            gradients.append((grad, again))
        for a, b in zip(*gradients, strict=True):
            assert torch.equal(a.a, b.a)
    assert len(region.specializations) == 2


def test_sizes_in_it() -> None:
    region = st.compile(lambda x: x * x.meta["n"], dynamic=True)
    for n in (3, 4, 5):
        x = Table(torch.ones(n), {"n": n, "step": n})
        torch.testing.assert_close(region(x).a, torch.full((n,), float(n)))
    assert len(region.specializations) <= 2


class _Holder:
    seen: Any = None


def test_it_never_leaves_the_trace() -> None:
    holder = _Holder()

    def keep(x: Any) -> Any:
        holder.seen = x.meta
        x.other = [x.meta]
        y = x * 2
        y.tag = x.meta
        return y, [x.meta], x.a * 2

    region = st.compile(keep)
    for number in (1, 2, 1):
        x = _make(Table, number)
        y, (meta,), _ = region(x)
        kept = (holder.seen, x.other[0], y.tag, y.meta, meta)
        assert all(type(value) is dict and value == x.meta for value in kept)


def test_a_dict_in_a_dict_that_is_kept_too() -> None:
    class Twofold(Table):
        def __init__(self, a: Tensor, meta: dict[str, Any]) -> None:
            self.a, self.meta, self.q = a, meta, meta["q"]

    def make(zero: int, step: int) -> Any:
        return Twofold(torch.ones(2), {"step": step, "q": {"zero": zero, "name": f"n{step}"}})

    ways: list[Callable[[Any], Any]] = [
        lambda x: x.a * x.meta["q"]["zero"],
        lambda x: x.a * x.q["zero"],
        lambda x: x.a * (x * 2).q["zero"],
    ]
    for way in ways:
        region = st.compile(way)
        for zero, step in ((1, 1), (2, 1), (2, 2), (3, 3)):
            assert torch.equal(region(make(zero, step)), torch.full((2,), float(zero)))


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "object": lambda meta: types.SimpleNamespace(held=meta),
    "deque": lambda meta: collections.deque([meta]),
    "ordered": lambda meta: collections.OrderedDict(a=meta),
    "partial": lambda meta: functools.partial(_bits, meta),
    "closure": lambda meta: lambda: meta["name"],
    "method": lambda meta: meta.get,
    "proxy": lambda meta: types.MappingProxyType(meta),
    "deep": lambda meta: [[[[[[meta]]]]]],
}


@pytest.mark.parametrize("name", HOLDERS)
def test_objects_that_keep_it(name: str) -> None:
    holder = _Holder()

    def keep(x: Any) -> Any:
        holder.seen = HOLDERS[name](x.meta)
        y = x * 2
        y.aux = HOLDERS[name](x.meta)
        return y

    region = st.compile(keep)
    for number in (1, 2, 3):
        holder.seen = None
        y = region(_make(Table, number))
        for kept in (holder.seen, y.aux):
            assert f"layer{number}" in repr(_name_in(kept))


def _name_in(kept: Any) -> Any:
    if isinstance(kept, types.SimpleNamespace):
        return kept.held
    if isinstance(kept, functools.partial):
        return kept.args
    if isinstance(kept, types.FunctionType):
        return kept()
    if isinstance(kept, types.BuiltinMethodType) or callable(kept):
        return kept("name")
    return dict(kept) if isinstance(kept, types.MappingProxyType) else kept
