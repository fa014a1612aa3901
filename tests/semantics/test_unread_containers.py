"""Lists, tuples, sets, arrays and members of enums in contexts: unguarded where nothing reads them."""

from __future__ import annotations

import copy
import dataclasses
import enum
import itertools
import threading
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

import subclass_trace as st

Tensor = torch.Tensor


class Kind(enum.Enum):
    ROW, COLUMN, BLOCK = "row", "column", "block"


class Noted(Tensor):
    """Keeps a value that its operations do not look at; results are dense. The context is that value."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, a: Tensor, note: Any) -> Any:
        return Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype, requires_grad=a.requires_grad)

    def __init__(self, a: Tensor, note: Any) -> None:
        self.a, self.note = a.detach(), note

    def __tensor_flatten__(self) -> Any:
        return ["a"], self.note

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"], context)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def dense(t: Any) -> Any:
            return t.a if isinstance(t, Noted) else t

        return func(*tree_map(dense, args), **tree_map(dense, kwargs or {}))


class InDict(Noted):
    def __tensor_flatten__(self) -> Any:
        return ["a"], {"note": self.note, "bits": 4}

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"], context["note"])


class InTuple(Noted):
    def __tensor_flatten__(self) -> Any:
        return ["a"], (4, self.note)

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"], context[1])


VALUES: dict[str, list[Any]] = {
    "a list": [[1], [2, 3], []],
    "a tuple": [("a", 1), ("b",), ("c", 2)],
    "a list of lists": [[[1], {"k": (2,)}], [[2]], [[]]],
    "a set": [{1}, {2, 3}, set()],
    "a frozenset": [frozenset({1}), frozenset({2}), frozenset()],
    "an array": [np.ones(2), np.zeros(3), np.ones((2, 2), np.int8)],
    "bytes": [bytearray(b"1"), bytearray(b"23"), bytearray()],
    "a member of an enum": list(Kind),
}
CASES = [(cls, name) for cls in (Noted, InDict, InTuple) for name in VALUES]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return bool(a.dtype == b.dtype and np.array_equal(a, b))
    return type(a) is type(b) and bool(a == b)


@pytest.mark.parametrize(("cls", "name"), CASES, ids=lambda v: getattr(v, "__name__", v))
def test_unread(cls: Any, name: str) -> None:
    region = st.compile(lambda x: x * 2)
    for value in VALUES[name]:
        torch.testing.assert_close(region(cls(torch.ones(3), value)), torch.full((3,), 2.0))
    assert len(region.specializations) == 1


@pytest.mark.parametrize(("cls", "name"), CASES, ids=lambda v: getattr(v, "__name__", v))
def test_read(cls: Any, name: str) -> None:
    region = st.compile(lambda x: (x * 2, x.note))
    for value in (*VALUES[name], *VALUES[name]):
        assert _same(region(cls(torch.ones(3), value))[1], value)
    assert len(region.specializations) == len(VALUES[name])


class Counts(InDict):
    """Keeps how many there are, too."""

    def __init__(self, a: Tensor, note: Any) -> None:
        super().__init__(a, note)
        self.count = len(note)


class First(InDict):
    """Keeps the first of them, too."""

    def __init__(self, a: Tensor, note: Any) -> None:
        super().__init__(a, note)
        self.first = note[0]


class OwnTuple(InDict):
    """Keeps a tuple of them."""

    def __init__(self, a: Tensor, note: Any) -> None:
        super().__init__(a, tuple(note))


class ByIdentity(InDict):
    """What it keeps of one member is another one."""

    def __init__(self, a: Tensor, note: Any) -> None:
        super().__init__(a, note)
        self.scale = 3.0 if note is Kind.BLOCK else 4.0


READS: dict[str, tuple[Any, Callable[[Any], Any], list[Any]]] = {
    "how many": (Counts, lambda x: x * x.count, [[1], [1, 2], [3]]),
    "the first": (First, lambda x: x * x.first, [[1], [2], [1, 4]]),
    "a copy": (OwnTuple, lambda x: x * x.note[0], [[1], [2], [1, 4]]),
    "which member": (ByIdentity, lambda x: x * x.scale, list(Kind)),
    "whether an item is there": (InDict, lambda x: x * (2 if 1 in x.note else 3), [{1}, {2}, {1, 3}]),
    "an item of an array": (InTuple, lambda x: x * float(x.note[0]), [np.ones(2), np.zeros(2)]),
    "an attribute by its name": (InTuple, lambda x: x * len(getattr(x, "note")), [[1], [2, 3]]),  # noqa: B009
    "all attributes": (InTuple, lambda x: x * len(vars(x)["note"]), [[1], [2, 3]]),
}


@pytest.mark.parametrize("name", READS)
def test_what_is_read_is_guarded(name: str) -> None:
    cls, function, values = READS[name]
    region = st.compile(function)
    for value in (*values, *values):
        x = cls(torch.arange(3.0), value)
        torch.testing.assert_close(region(x), function(x))


class Strict(InDict):
    """C code computes with the list."""

    def __init__(self, a: Tensor, note: Any, step: int = 0) -> None:
        super().__init__(a, note)
        self.size, self.step = torch.empty(note, device="meta").numel(), step

    @staticmethod
    def __new__(cls, a: Tensor, note: Any, step: int = 0) -> Any:
        return InDict.__new__(cls, a, note)

    def __tensor_flatten__(self) -> Any:
        return ["a"], {"note": self.note, "step": self.step}

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"], context["note"], context["step"])


def test_what_c_code_computes_of_a_list() -> None:
    region, by_size = st.compile(lambda x: x * 2), st.compile(lambda x: x * x.size)
    for step, note in ((0, [2, 3]), (1, [2, 3]), (2, [4, 3]), (3, [3, 2])):
        x = Strict(torch.ones(3), note, step)
        torch.testing.assert_close(region(x), x * 2)
        torch.testing.assert_close(by_size(x), x * x.size)
    assert len(region.specializations) == 1


class Late(InDict):
    """The backward of the backward reads what the forward does not."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _Sum.apply(args[0]) if func is torch.sum else super().__torch_function__(func, types, args, kwargs or {})


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.x = x
        return x.a.sum()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        return (grad * (sum(ctx.x.note) if torch.is_grad_enabled() else 1)).expand(3)


def test_a_backward_that_is_traced_later_reads_the_lists_of_its_call() -> None:
    region = st.compile(lambda x: torch.sum(x))
    for note in ([1, 2], [3, 4], [1, 2], [5]):
        x = Late(torch.ones(3), note).requires_grad_()
        for create_graph in (False, True):
            (now,) = torch.autograd.grad(region(x), x, create_graph=create_graph)
            (expected,) = torch.autograd.grad(torch.sum(x), x, create_graph=create_graph)
            torch.testing.assert_close(now, expected)
    assert len(region.specializations) == 1


# ---------------------------------------------------------------------------------------------- while it is built
class Derived(InDict):
    """Keeps numbers beside the value; ``scale`` says what it makes of the value."""

    def __init__(self, a: Tensor, note: Any, bits: float = 4.0) -> None:
        super().__init__(a, note)
        self.bits, self.scale = bits, self._scale(note, bits)

    @staticmethod
    def __new__(cls, a: Tensor, note: Any, bits: float = 4.0) -> Any:
        return InDict.__new__(cls, a, note)

    def __tensor_flatten__(self) -> Any:
        return ["a"], {"note": self.note, "bits": self.bits}

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"], context["note"], context["bits"])

    def _scale(self, note: Any, bits: float) -> float:
        raise NotImplementedError


class ByPattern(Derived):
    def _scale(self, note: Any, bits: float) -> float:
        match note:
            case [n]:
                return float(n)
        return bits


class ByClass(Derived):
    def _scale(self, note: Any, bits: float) -> float:
        return 9.0 if type(note) is list and len(note) == 1 else bits


class ByLeaves(Derived):
    def _scale(self, note: Any, bits: float) -> float:
        return 3.0 if len(tree_leaves(note)) == 1 else bits


class TwoSwitches(Derived):
    def _scale(self, note: Any, bits: float) -> float:
        return 7.0 if note[0] is Kind.BLOCK and note[1] is Kind.ROW else bits


class Consumes(Derived):
    def _scale(self, note: Any, bits: float) -> float:
        n = len(note)
        note.clear()
        return bits + 0 * n


class Locked(Derived):
    lock = threading.Lock()

    def _scale(self, note: Any, bits: float) -> float:
        self.lock.acquire()
        torch.empty(note, device="meta")  # C code asks for a list; no ``finally``
        self.lock.release()
        return bits


class OnTheInnerTensor(Derived):
    def _scale(self, note: Any, bits: float) -> float:
        self.a.tag = (note, bits)
        return bits


#: a class, values, and what the region reads
BUILT: dict[str, tuple[Any, list[Any], Callable[[Any], Any]]] = {
    "a pattern": (ByPattern, [[1, 2], [9], [5, 6]], lambda x: x * x.scale),
    "its class": (ByClass, [[1, 2], [8], (8,)], lambda x: x * x.scale),
    "its leaves": (ByLeaves, [[1, 2], [8], [5, 6]], lambda x: x * x.scale),
    "two members": (TwoSwitches, [(a, b) for a in Kind for b in Kind], lambda x: x * x.scale),
    "consumed": (Consumes, [[1, 2], [3], [4, 5]], lambda x: x * x.scale),
    "under a lock": (Locked, [[1, 2], [2, 3], []], lambda x: x * x.scale),
    "left inside": (OnTheInnerTensor, [[1], [2], [2]], lambda x: (x * 2, x.a.tag)),
}


@pytest.mark.parametrize("name", BUILT)
def test_what_a_class_does_with_it_while_it_is_built(name: str) -> None:
    cls, values, function = BUILT[name]
    region = st.compile(function)
    for k, value in enumerate((*values, *values)):
        mine, other = (cls(torch.arange(3.0), copy.copy(value), 4.0 + k // 3) for _ in range(2))
        torch.testing.assert_close(region(mine), function(other))
        assert mine.note == other.note


def test_three_truth_values_that_decide_together() -> None:
    class Three(InDict):
        def __init__(self, a: Tensor, p: bool, q: bool, bits: float) -> None:
            super().__init__(a, None)
            self.p, self.q, self.bits, self.scale = p, q, bits, 7.0 if p and q else bits

        @staticmethod
        def __new__(cls, a: Tensor, p: bool, q: bool, bits: float) -> Any:
            return InDict.__new__(cls, a, None)

        def __tensor_flatten__(self) -> Any:
            return ["a"], (self.p, self.q, self.bits)

        @classmethod
        def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
            return cls(inner["a"], *context)

    region = st.compile(lambda x: x * x.scale)
    for p, q in itertools.product((False, True), repeat=2):
        x = Three(torch.ones(3), p, q, 4.0)
        torch.testing.assert_close(region(x), x * x.scale)


class Made(enum.Enum):
    """Has members that it makes when they are asked for."""

    A = 1

    @classmethod
    def _missing_(cls, value: Any) -> Any:
        member = object.__new__(cls)
        member._name_, member._value_ = f"M{value}", value
        return member


@pytest.mark.parametrize(
    "values",
    [
        [Made(5), Made(6), Made.A],
        [[[1], [2]], [[1]], []],
        [[{"u": [1]}], [{"v": 2}], []],
        [{Kind.ROW: [1]}, {Kind.BLOCK: [1, 2]}, {}],
        [{int: [1]}, {torch.device("cpu"): 2}, {float("inf"): [3]}],
    ],
    ids=["members made later", "lists in lists", "dicts in lists", "keys that are members", "keys of other kinds"],
)
def test_training(values: list[Any]) -> None:
    for cls in (Noted, InDict, InTuple):
        region = st.compile(lambda x: (x * 2).sum())
        for value in (*values, *values):
            x = cls(torch.ones(3), value).requires_grad_()
            (grad,) = torch.autograd.grad(region(x), x)
            torch.testing.assert_close(grad, torch.full((3,), 2.0))


@dataclasses.dataclass
class Settings:
    note: list[int]
    bits: int = 4


class KeepsBoth(Late):
    """Keeps the dataclass and a list of it."""

    def __init__(self, a: Tensor, settings: Settings) -> None:
        super().__init__(a, settings.note)
        self.settings = settings

    def __tensor_flatten__(self) -> Any:
        return ["a"], self.settings

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"], context)


def test_double_backward_with_a_dataclass_and_its_list() -> None:
    for note in ([1, 2], [3, 4]):
        x = KeepsBoth(torch.ones(3), Settings(note)).requires_grad_()
        (now,) = torch.autograd.grad(st.compile(torch.sum)(x), x, create_graph=True)
        torch.testing.assert_close(now, torch.full((3,), float(sum(note))))


def test_numbers_of_numpy_and_frozen_sets_are_values() -> None:
    class Kept(InDict):
        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return Kept(args[0].a + args[1].a, args[1].note) if func is torch.ops.aten.add.Tensor else NotImplemented

    region = st.compile(torch.add)
    for one, two in ((np.float32(1), np.float32(5)), (frozenset({1}), frozenset({5}))):
        for x, y in ((one, one), (two, one), (one, two), (two, two)):
            assert region(Kept(torch.ones(2), x), Kept(torch.ones(2), y)).note == y


def test_a_tuple_of_the_outer_sizes_stays_a_tuple() -> None:
    class Sized(InDict):
        def __init__(self, a: Tensor, note: Any) -> None:
            super().__init__(a, tuple(a.shape))

    region = st.compile(lambda x: (x * 2, x.note))
    for n in (3, 4, 5):
        note = region(Sized(torch.ones(n, 2), None))[1]
        assert type(note) is tuple and note == (n, 2)


def test_explain_names_them() -> None:
    region = st.compile(lambda x: x * 2)
    region(InDict(torch.ones(3), [1, 2]))
    assert "context['note'] of args[0] (any list; nothing read .note)" in str(region.explain())


class Scales(InTuple):
    """The kernel of ``sin`` reads the list; a tag beside it is not read."""

    def __init__(self, a: Tensor, note: Any, tag: Any = "a") -> None:
        super().__init__(a, note)
        self.tag = tag

    @staticmethod
    def __new__(cls, a: Tensor, note: Any, tag: Any = "a") -> Any:
        return InTuple.__new__(cls, a, note)

    def __tensor_flatten__(self) -> Any:
        return ["a"], (self.tag, self.note)

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"], context[1], context[0])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        x = next(t for t in args if isinstance(t, Scales))
        out = super().__torch_dispatch__(func, types, args, kwargs)
        return out * sum(x.note) if func is torch.ops.aten.sin.default else out


@pytest.mark.parametrize("tag", ["a", [1], None])
@pytest.mark.parametrize("changes", [(False, True), (True, False)])
def test_a_list_that_changes_between_forward_and_backward(tag: Any, changes: tuple[bool, ...]) -> None:
    def gradient(function: Any, changed: bool) -> Tensor:
        x = Scales(torch.ones(2), [1, 2], tag).requires_grad_()
        y = function(x)
        if changed:
            x.note[0] = 50
        return torch.autograd.grad(y.sum(), x)[0]

    region = st.compile(torch.cos)
    for changed in (*changes, *changes):
        torch.testing.assert_close(gradient(region, changed), gradient(torch.cos, changed))


def test_one_backward_for_all_of_them() -> None:
    region = st.compile(lambda x: (x * 2).sum())
    for k in range(4):
        region(InDict(torch.ones(3), [k] * k).requires_grad_()).backward()
    assert len(region.specializations) == 1
    assert "1 backward compiled" in str(region.explain())


COUNTED: list[int] = []


class Counted(Late):
    """The backward of its sum counts, and reads the wrapper that its ``ctx`` holds. ``detach`` gives a dense tensor."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (
            _CountedSum.apply(args[0])
            if func is torch.sum
            else super().__torch_function__(func, types, args, kwargs or {})
        )


class _CountedSum(_Sum):
    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        COUNTED.append(1)
        return (grad * sum(ctx.x.note)).expand(3)


def test_a_backward_with_effects_that_reads_a_wrapper() -> None:
    region = st.compile(lambda x: torch.sum(x))
    COUNTED.clear()
    for k, note in enumerate(([1, 2], [3, 4], [1, 2]), 1):
        x = Counted(torch.ones(3), note).requires_grad_()
        (grad,) = torch.autograd.grad(region(x), x)
        torch.testing.assert_close(grad, torch.full((3,), float(sum(note))))
        assert len(COUNTED) == k


class InTable(Tensor):
    """Its context is a dict, which it keeps as it is. The backward of its sum counts, and adds up what the dict holds."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, a: Tensor, table: Any) -> Any:
        return Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype, requires_grad=a.requires_grad)

    def __init__(self, a: Tensor, table: Any) -> None:
        self.a, self.table = a.detach(), table

    def __tensor_flatten__(self) -> Any:
        return ["a"], self.table

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"], context)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*tree_map(lambda t: t.a if isinstance(t, InTable) else t, args), **(kwargs or {}))


class _TableSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:  # type: ignore[override]
        ctx.x = x
        return x.a.sum()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        COUNTED.append(1)
        return (grad * _added_up(ctx.x.table)).expand(3)


@dataclasses.dataclass
class Pair:
    v: int
    w: int = 3


def _added_up(value: Any) -> float:
    if isinstance(value, dict):
        return 1.0 + sum(map(_added_up, value.values()))
    if isinstance(value, (list, tuple, set, frozenset)):
        return 2.0 + sum(map(_added_up, value))
    return _added_up(vars(value)) if hasattr(value, "__dict__") else float(value)


@pytest.mark.parametrize(
    "make",
    [
        int,
        lambda v: [v],
        lambda v: (v,),
        lambda v: {v},
        lambda v: frozenset({v}),
        lambda v: {"k": v},
        lambda v: types.SimpleNamespace(v=v),
        Pair,
    ],
    ids=["number", "list", "tuple", "set", "frozen set", "dict", "object", "dataclass"],
)
def test_a_backward_with_effects_that_reads_values_of_a_context(make: Callable[[int], Any]) -> None:
    """Nobody sees what its code reads in a call: so all of it counts as read."""
    region = st.compile(lambda x: _TableSum.apply(x) * 2)
    for v in (1, 2, 2, 1):
        x = InTable(torch.ones(3), {"a": 1, "b": make(v)}).requires_grad_()
        (grad,) = torch.autograd.grad(region(x), x)
        (expected,) = torch.autograd.grad(_TableSum.apply(x) * 2, x)
        assert torch.equal(grad, expected)
