"""Python numbers that differ between calls: symbols where that is sound, a specialization each where it is not.

Each function runs with one number after the other, in a region and in eager mode; results, gradients and the objects that
hold the numbers must be the same, and the number of specializations is told.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
INTS = (2, 3, -2, 1, 0, 4, 3)
FLOATS = (0.1, 0.3, -0.25, 0.0, 2.7, 1 / 3)


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, k: float) -> Tensor:
        ctx.k = k
        return x * (1 - k)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * (ctx.k * 0.3 - 1), None


class Held:
    def __init__(self, k: float) -> None:
        self.k = k


def raises_for_four(x: Tensor, k: int) -> Tensor:
    if k == 4:
        raise ValueError("four")
    return x * k


def steps(x: Tensor, k: float) -> Tensor:
    """As an optimizer does with its learning rate. Each number is that of eager mode to the last bit."""
    y = x.detach().double()
    y.mul_(1 - k * 0.7 * 0.9 / 7 + 0.1).addcmul_(y, y, value=-k).addcdiv_(y, y.abs() + 1, value=k / 3 * 0.1)
    return y.lerp_(torch.ones_like(y), 1 - k)


#: name -> function, and how many specializations it takes
OF_INTS: dict[str, tuple[Callable[[Tensor, Any], Any], int]] = {
    "scale": (lambda x, k: x * k, 2),
    "in a container": (lambda x, k: {"k": (k, x * k)}, 2),
    "branch": (lambda x, k: x * k if k > 2 else x.sin(), 3),
    "size": (lambda x, k: x.sum().expand(abs(k) + 2, 3) * 1.0, 2),
    "unused": (lambda x, k: x * 2, 2),
    "wrapper": (lambda x, k: TwoTensor(x.detach(), x.detach() * 2) * k, 2),
    "its own error": (raises_for_four, 2),
    "sign": (lambda x, k: x.roll(k, 0) + k // 2 + k % 3, 2),
    "loop": (lambda x, k: sum((x * i for i in range(k)), x), 6),
    "text": (lambda x, k: x * len(f"{k}"), 6),
    "no derivative": (lambda x, k: x**k, 6),
    "conditions as results": (lambda x, k: (k > 2, not k), 3),
}
OF_FLOATS: dict[str, tuple[Callable[[Tensor, Any], Any], int]] = {
    "scale": (lambda x, k: x * k, 3),
    "dtypes": (lambda x, k: (torch.arange(3) * k, x.half() + k, x > k, torch.full((2,), k)), 3),
    "result": (lambda x, k: (k, k * 2, [1 - k], x * k), 3),
    "steps": (steps, 3),
    "of a size": (lambda x, k: x * (k * x.shape[0] + 2), 3),
    "in a function of autograd": (lambda x, k: Scale.apply(x, k), 3),
    "in an object": (lambda x, k: Held(k).k * x, 3),
    "branch": (lambda x, k: x * k if k > 0.2 else x, 6),
    "math": (lambda x, k: x * math.exp(k), 6),
    "slope": (lambda x, k: F.leaky_relu(x - 3, k), 3),
    "power": (lambda x, k: (x + 1) ** k, 6),
}


def outcome(function: Callable[..., Any], k: Any) -> Any:
    """What a call gives, with the gradient of the sum of its results."""
    x = torch.arange(12.0).reshape(3, 4).requires_grad_()
    try:
        found = function(x, k)
    except ValueError as error:
        return str(error)
    leaves = [t for t in pytree.tree_leaves(found) if isinstance(t, Tensor) and t.requires_grad]
    grad = torch.autograd.grad(sum(t.sum() for t in leaves), x)[0] if leaves else None
    return [(v.a, v.b) if isinstance(v, TwoTensor) else v for v in pytree.tree_leaves((found, grad))]


def same(a: Any, b: Any) -> None:
    rows = [pytree.tree_leaves(v) for v in (a, b)]
    assert [type(v) for v in rows[0]] == [type(v) for v in rows[1]]
    for x, y in zip(*rows, strict=True):
        if isinstance(x, Tensor):
            torch.testing.assert_close(x, y, equal_nan=True)
        else:
            assert x == pytest.approx(y, nan_ok=True)


CASES = [(*row, INTS, f"int, {name}") for name, row in OF_INTS.items()]
CASES += [(*row, FLOATS, f"float, {name}") for name, row in OF_FLOATS.items()]


@pytest.mark.parametrize(("function", "count", "numbers"), [pytest.param(*c[:3], id=c[3]) for c in CASES])
def test_arguments(function: Callable[..., Any], count: int, numbers: tuple[float, ...]) -> None:
    region = st.compile(function)
    for k in numbers:
        same(outcome(region, k), outcome(function, k))
    assert len(region.specializations) == count


def test_an_error_after_python_state_was_changed() -> None:
    """With symbols and without: what the function did before its own exception is done once."""
    found = []
    for call in (lambda f: f, st.compile):
        state: dict[str, Any] = {"calls": 0, "seen": [], "last": None}

        def f(x: Tensor, k: int, state: dict[str, Any] = state) -> Tensor:
            state["calls"] += 1
            state["seen"].append(k)
            if k == 3 or state["calls"] == 4:
                raise ValueError(k)
            state["last"] = k
            return raises_for_four(x, k) * state["calls"]

        region, rows = call(f), list[str]()
        for k in (1, 2, 3, 5, 4, 3, 6):
            try:
                rows.append(f"{region(torch.ones(2), k)} {state}")
            except ValueError as error:
                rows.append(f"{error} {state}")
        found.append(rows)
    assert found[1] == found[0]


class Tagged(torch.Tensor):
    """A wrapper with a number in its context."""

    @staticmethod
    def __new__(cls, a: Tensor, k: float) -> Tagged:
        made = torch.Tensor._make_wrapper_subclass(cls, a.shape, strides=a.stride(), dtype=a.dtype)
        made.a, made.k = a, k
        return made

    def __tensor_flatten__(self) -> Any:
        return ["a"], {"k": self.k}

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Tagged:
        return Tagged(inner["a"], context["k"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        k = next(a.k for a in args if isinstance(a, Tagged))
        return Tagged(func(*[a.a if isinstance(a, Tagged) else a for a in args], **(kwargs or {})), k)


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (lambda x, k: Tagged(x, k) * 2, 3),
        (lambda x, k: Tagged(x, k).view(-1), 3),
        (lambda x, k: Tagged(x, k * 2), 4),  # for floats: the run time knows those of the call alone
    ],
)
@pytest.mark.parametrize("numbers", [INTS[:4], FLOATS[:4]])
def test_contexts(function: Callable[..., Any], count: int, numbers: tuple[float, ...]) -> None:
    region = st.compile(function)
    for k in numbers:
        ours, eager = region(torch.ones(2, 2), k), function(torch.ones(2, 2), k)
        assert (type(ours), type(ours.k), ours.k) == (Tagged, type(eager.k), eager.k) and torch.equal(ours.a, eager.a)
    assert len(region.specializations) == (count if type(numbers[0]) is float else 2)


def test_other_back_ends_take_floats_as_they_are() -> None:
    region = st.compile(lambda x, k: x * k, backend=lambda graph, examples: graph.forward)
    for k in FLOATS[:4]:
        assert torch.equal(region(torch.ones(2), k), torch.ones(2) * k)
    assert len(region.specializations) == 4


def test_numbers_stay_numbers_on_request() -> None:
    region = st.compile(lambda x, k: x * k, automatic_dynamic=False)
    for k in INTS[:4]:
        region(torch.ones(2), k)
    assert len(region.specializations) == 4


def test_the_type_is_guarded() -> None:
    region = st.compile(lambda x, k: x * k)
    for k in (2, 3, 4, True, 2.0, 4):
        same(region(torch.arange(3), k), torch.arange(3) * k)


def test_explain_tells() -> None:
    region = st.compile(lambda x, k, name: x * (k if k > 1 else 2) * len(f"{name}"))
    for k, name in ((2, 1), (3, 2), (4, 3)):
        region(torch.ones(2), k, name)
    text = region.explain()
    assert "= args[1]" in text and "s89 = 3" not in text
    region = st.compile(lambda x, k: x * k if k > 0 else x)
    for k in (0.5, 1.5):
        region(torch.ones(2), k)
    assert "args[1]: the code asks for what only numbers serve (the region branches on a float" in region.explain()
    region(torch.ones(3), 1.5)
    assert "args[0].shape: expected (2,), got (3,)" in region.explain()


class Batch:
    def __init__(self, x: Tensor) -> None:
        self.x = x


def test_instances_of_a_class_that_nobody_has_registered() -> None:
    region = st.compile(lambda b: b.x * 2, max_specializations=2)
    for _ in range(2):
        region(Batch(torch.ones(2)))
    with pytest.raises(st.GuardError, match=r"of Batch: register the class with optree\.register_pytree_node"):
        region(Batch(torch.ones(2)))
    with pytest.raises(st.GuardError) as caught:
        region = st.compile(lambda x, n: x * hash(n), max_specializations=1)
        for n in range(2):
            region(torch.ones(2), str(n))
    assert "optree" not in str(caught.value.fix)


# ---------------------------------------------------------------------------------------------- in objects and containers
class Program:
    """What an object starts with, and its method."""

    def __init__(self, count: int, method: Callable[..., Any], **start: Any) -> None:
        self.count, self.method, self.start = count, method, start


class Owner:
    pass


class OwnerWithSlots:
    __slots__ = ("full", "k", "last", "log", "n", "objects", "rate", "rates", "seen", "sizes")


def store(self: Any, x: Tensor) -> Tensor:
    self.sizes["k"] = x.shape[0]
    return x * 2


def swap(self: Any, x: Tensor) -> Tensor:
    before, self.sizes["k"] = self.sizes["k"], x.shape[0]
    return x * before


def ring(self: Any, x: Tensor) -> Tensor:
    self.last.append(x.shape[0])
    return x * sum(self.last)


def moved(self: Any, x: Tensor) -> Tensor:
    self.last.append(x.shape[0])
    self.last.pop(0)
    return x * self.last[0]


def inserted(self: Any, x: Tensor) -> Tensor:
    self.last.insert(0, self.last.pop())
    return x * self.last[0]


def taken(self: Any, x: Tensor) -> Any:
    self.last.append(300.5)
    del self.last[:3]
    return x * len(self.last), self.objects.pop()


def emptied(self: Any, x: Tensor) -> Tensor:
    y = x * sum(self.last)
    self.last.clear()
    return y


def count_and_read(self: Any, x: Tensor) -> Tensor:
    self.n += 1
    return x * self.n


def number_or_list(self: Any, x: Tensor) -> Tensor:
    y = x * (self.n if isinstance(self.n, int) else 2)
    self.n = [1, 2] if isinstance(self.n, int) else 7
    return y


def copied(self: Any, x: Tensor) -> Tensor:
    self.log = [*self.log, self.n]
    self.n = self.n + 2
    return x * self.n


def decay(self: Any, x: Tensor) -> Tensor:
    self.rate = self.rate * 0.9 - 0.01
    self.rates[0] = self.rates[0] * 0.5 * 0.3
    return x.double() * self.rate * self.rates[0]


def replay(self: Any, x: Tensor) -> Tensor:
    """Where the next row of a buffer goes, and whether it has been full."""
    self.k = (self.k + 1) % 3
    self.full = self.full or self.k == 0
    return x * self.k + self.full


def replay_by_values(self: Any, x: Tensor) -> Tensor:
    self.seen = x.sum().item() > 12
    return x * 2


PROGRAMS = {
    "replay": Program(3, replay, k=0, full=False),
    "replay by values": Program(3, replay_by_values, seen=False),
    "store": Program(3, store, sizes={}),
    "swap": Program(2, swap, sizes={"k": 1}),
    "ring": Program(2, ring, last=deque([1, 2, 3], maxlen=3)),
    "moved": Program(2, moved, last=[1, 2, 3]),
    "inserted": Program(3, inserted, last=[4, 5, 6]),
    "taken": Program(
        6, taken, last=[1, 2, 3, 4, 5, 6, 300.5, 1.5 * 200.5, 1, 1, 1, 2, 3], objects=[[k] for k in range(8)]
    ),
    "emptied": Program(2, emptied, last=deque([4, 5, 6])),
    "count and read": Program(2, count_and_read, n=0),
    "number or list": Program(3, number_or_list, n=5),
    "decay": Program(2, decay, rate=1.0, rates=[1.0]),
    "a list of numbers": Program(6, copied, n=0, log=[]),
}


def test_an_attribute_in_a_slot_is_guarded_once() -> None:
    owner = OwnerWithSlots()
    owner.last, owner.n = [1, 2], 1
    made = st.compile(lambda x: x * owner.n * owner.last[0]).specialize(torch.ones(2))
    assert (
        len([guard for guard in made.guards.names if guard.key == "last" and type(guard.holder).__name__ == "Slotted"])
        == 1
    )


def attributes(owner: Any) -> dict[str, Any]:
    return {name: getattr(owner, name) for name in OwnerWithSlots.__slots__ if hasattr(owner, name)}


@pytest.mark.parametrize("cls", [Owner, OwnerWithSlots])
@pytest.mark.parametrize("name", PROGRAMS)
def test_state_of_an_object(name: str, cls: type) -> None:
    program = PROGRAMS[name]
    owners = cls(), cls()
    for owner in owners:
        for key, value in copy.deepcopy(program.start).items():
            setattr(owner, key, value)
    plain, region = program.method.__get__(owners[0]), st.compile(program.method.__get__(owners[1]))
    for k in range(6):
        x = torch.arange(4.0 + k)
        found, expected = (f(x) for f in (region, plain))
        assert str(found) == str(expected)
        assert str(attributes(owners[0])) == str(attributes(owners[1]))
    assert len(region.specializations) <= program.count


def test_attributes_of_a_module() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads, self.rate, self.options = 1, 0.5, {"shift": [0, 1]}
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) * self.rate * self.heads + self.options["shift"][1]

    model = Model()
    region = st.compile(model)
    for k in range(5):
        model.heads, model.rate, model.options["shift"][1] = k, 0.1 * k, k * k
        x = torch.rand(2, 4)
        for y, z in zip(region(x), model(x), strict=True):
            torch.testing.assert_close(y, z, rtol=0, atol=0)
        assert (type(model.heads), type(model.rate)) == (int, float)
    assert len(region.specializations) == 3  # a rate of 0.0 is one of its own


def test_one_list_behind_two_names() -> None:
    shared = [1, 2]
    names: dict[str, Any] = {"a": shared, "b": shared}
    exec("def function(x):\n    return x * a[0] + b[0]", names)
    function, region = names["function"], st.compile(names["function"])
    for k in range(3):
        shared[0] = k
        assert torch.equal(region(torch.ones(2)), function(torch.ones(2)))
    names["b"] = [2, 2]
    names["a"] = mine = [5, 2]
    for k in range(3):
        mine[0] = k
        assert torch.equal(region(torch.ones(2)), function(torch.ones(2)))


def test_a_number_that_equals_a_size() -> None:
    function = lambda x, n: x.view(n, -1) * n
    region = st.compile(function)
    for rows, n in ((2, 2), (3, 3), (4, 4), (4, 2), (6, 3), (5, 5)):
        assert torch.equal(region(torch.ones(rows, 3), n), function(torch.ones(rows, 3), n))


SETTINGS: dict[str, Any] = {"whole": 2, "rate": 0.5, "list": [1]}


class ReadsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * SETTINGS["whole"] * SETTINGS["rate"] + SETTINGS["list"][0]


def test_numbers_that_a_backward_reads() -> None:
    """The forward does not read them; and a backward for other results is traced when it is asked for."""
    region = st.compile(lambda x: (ReadsInBackward.apply(x), x * 2))
    for k in range(2, 6):
        SETTINGS.update(whole=k, rate=k * 0.1, list=[k * 3])
        for results in (1, 2):
            x = torch.ones(3, requires_grad=True)
            (grad,) = torch.autograd.grad([y.sum() for y in region(x)[:results]], x)
            assert torch.equal(grad, torch.ones(3) * k * (k * 0.1) + k * 3 + 2 * (results - 1))
        assert (SETTINGS["whole"], SETTINGS["rate"], SETTINGS["list"]) == (k, k * 0.1, [k * 3])
    assert len(region.specializations) <= 2


def test_later_backwards() -> None:
    """A backward for other results, and a double backward, have the number of their call."""
    region = st.compile(lambda x, k, r: (x * k, (x * k * r).sin()))
    for k, r in ((1, 0.5), (2, 0.25), (3, 0.75), (4, 0.1)):
        x = torch.ones(3, requires_grad=True)
        y, z = region(x, k, r)
        (first,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
        assert torch.equal(first, torch.full((3,), float(k)))
        (second,) = torch.autograd.grad(z.sum(), x, create_graph=True)
        (twice,) = torch.autograd.grad(second.sum(), x)
        torch.testing.assert_close(twice, -((k * r) ** 2) * (x.detach() * k * r).sin())
    assert len(region.specializations) == 2


def test_an_object_that_holds_a_size_is_returned() -> None:
    region = st.compile(lambda x: Held(x.shape[0]))
    assert [(type(held.k), held.k) for n in (3, 4, 5) if (held := region(torch.ones(n)))] == [
        (int, n) for n in (3, 4, 5)
    ]


def test_a_float_beside_a_view_whose_size_lies_inside_a_tensor() -> None:
    """Such a view is made by the reference of the run time, without generated code."""

    def step(x: Tensor, n: float) -> tuple[Tensor, Tensor]:
        count = x.long().sum().item()
        return torch.arange(count) * n, x[:count]

    region = st.compile(step)
    for n in (1, 0.5, 2.75):
        found, expected = region(torch.ones(3), n), step(torch.ones(3), n)
        assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_part_that_values_decide_beside_a_detached_tensor() -> None:
    """Whether the one lies where the other does is not asked of a number that is not known."""

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        return x[: x.long().sum().item()], x.detach()

    region = st.compile(step)
    for values in ((1.0, 1.0), (1.0, 0.0)):
        x = torch.tensor(values)
        part, detached = region(x)
        x.add_(1)
        assert torch.equal(part, x[: int(sum(values))]) and torch.equal(detached, x) and detached._version == x._version
