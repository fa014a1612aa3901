"""Containers and tensors that stand at two places: a call in which they are one object is another than one in which they are
equal, whichever was traced first."""

from __future__ import annotations

import dataclasses
import functools
from collections import OrderedDict, UserDict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.subclass.flatten import leaves_of
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
Calls = list[Callable[[], tuple[Any, ...]]]
#: makes a function, and calls of it that differ in what is one object
Case = Callable[[], tuple[Callable[..., Any], Calls]]


def one() -> Tensor:
    return torch.ones(2)


def seen(value: Any, known: dict[int, int]) -> Any:
    """A value, to be compared: the numbers in it, and which containers and tensors are one object."""
    if isinstance(value, (Tensor, list, dict, set, deque)):
        number = known.setdefault(id(value), len(known))
        if isinstance(value, Tensor):
            leaves = [t.detach().tolist() for t in leaves_of(value)]
            return number, type(value).__name__, leaves, value.requires_grad, value._version
        if isinstance(value, dict):
            return number, type(value).__name__, [(seen(k, known), seen(v, known)) for k, v in value.items()]
        return number, type(value).__name__, [seen(v, known) for v in value]
    if isinstance(value, tuple):
        return tuple(seen(v, known) for v in value)
    return vars(value) if dataclasses.is_dataclass(value) else value


def run(case: Case, wrap: Callable[[Any], Any], *, backwards: bool) -> tuple[list[Any], Any]:
    """What each call gives and leaves, two rounds of them; and the function that was called."""
    function, calls = case()
    called, told = wrap(function), []
    for call in (calls[::-1] if backwards else calls) * 2:
        args = call()
        told.append(seen((called(*args), args), {}))
    return told, called


def check(case: Case, at_most: int, *, backwards: bool) -> None:
    told, region = run(case, st.compile, backwards=backwards)
    assert told == run(case, lambda f: f, backwards=backwards)[0]
    assert len(region.specializations) <= at_most


# ---------------------------------------------------------------------------------------------- containers
def in_one_argument() -> tuple[Any, Calls]:
    def shared() -> tuple[Any, ...]:
        items = [one()]
        return {"x": items, "y": items}, one()

    return lambda q, x: x * 2 if q["x"] is q["y"] else x * 3, [shared, lambda: ({"x": [one()], "y": [one()]}, one())]


def appended_through_one() -> tuple[Any, Calls]:
    def f(q: Any, x: Tensor) -> Any:
        q["x"].append(x * 2)
        return x * len(q["y"]), q["x"] is q["y"]

    def shared() -> tuple[Any, ...]:
        items = [one()]
        return {"x": items, "y": items}, one()

    return f, [shared, lambda: ({"x": [one()], "y": [one()]}, one())]


def two_arguments(kind: Callable[[], Any]) -> tuple[Any, Calls]:
    def f(a: Any, b: Any, x: Tensor) -> Any:
        a[0] = x * 2
        return b[0] * 1, a is b, a

    def shared() -> tuple[Any, ...]:
        items = kind()
        return items, items, one()

    return f, [shared, lambda: (kind(), kind(), one())]


def two_of_three() -> tuple[Any, Calls]:
    def f(a: Any, x: Tensor) -> Any:
        a[0].append(x)
        a[1].append(x * 2)
        return [sum(v) for v in a]

    def tied(*pattern: int) -> tuple[Any, ...]:
        made = [[one()], [one()], [one()]]
        return tuple(made[k] for k in pattern), one()

    patterns = [(0, 0, 0), (0, 1, 0), (0, 1, 1), (0, 0, 1), (0, 1, 2)]
    return f, [functools.partial(tied, *p) for p in patterns]


def an_argument_and_a_name() -> tuple[Any, Calls]:
    named = [1.0, 2.0]
    return lambda a, x: x * 2 if a is named else x * 3, [lambda: (named, one()), lambda: ([1.0, 2.0], one())]


def tensors_in_both() -> tuple[Any, Calls]:
    named = [one()]

    def f(a: Any, x: Tensor) -> Any:
        a[0].mul_(2)
        return (x * 2 if a is named else x * 3), named[0] * 1, a[0] is named[0], a

    return f, [lambda: (named, one()), lambda: ([named[0]], one()), lambda: ([one()], one())]


def replaced_in_both() -> tuple[Any, Calls]:
    named = {"k": one()}

    def f(a: Any, x: Tensor) -> Any:
        a["k"] = x * 3
        return a is named, a["k"] * 1

    return f, [lambda: (named, one()), lambda: ({"k": one()}, one())]


def inner_of_a_name() -> tuple[Any, Calls]:
    named = {"a": [1.0], "b": [1.0]}

    def f(a: Any, x: Tensor) -> Any:
        return x * (2 if a is named["a"] else 3 if a is named["b"] else 5)

    return f, [lambda: (named["a"], one()), lambda: (named["b"], one()), lambda: ([1.0], one())]


def names() -> tuple[Any, Calls]:
    q: dict[str, list[int]] = {}

    def f(x: Tensor) -> Any:
        q["x"].append(1)
        return x * len(q["y"]), q["x"] is q["y"]

    def shared() -> tuple[Any, ...]:
        q["x"] = q["y"] = []
        return (one(),)

    def apart() -> tuple[Any, ...]:
        q["x"], q["y"] = [], []
        return (one(),)

    return f, [shared, apart]


def behind_names() -> tuple[Any, Calls]:
    q: UserDict[str, list[int]] = UserDict(a=[1])
    other = q["a"]

    def shared() -> tuple[Any, ...]:
        nonlocal other
        other = q["a"]
        return (one(),)

    def apart() -> tuple[Any, ...]:
        nonlocal other
        other = list(q["a"])
        return (one(),)

    return lambda x: x * 2 if other is q["a"] else x * 3, [shared, apart]


class Two(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a: list[int] = []
        self.b: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if self.a is self.b else x * 3


class Plain:
    def __init__(self) -> None:
        self.a: list[int] = []
        self.b: list[int] = []


def attributes(holder: Any, function: Callable[..., Any]) -> tuple[Any, Calls]:
    def shared() -> tuple[Any, ...]:
        holder.a = holder.b = []
        return (one(),)

    def apart() -> tuple[Any, ...]:
        holder.a, holder.b = [], []
        return (one(),)

    return function, [shared, apart]


def of_a_module() -> tuple[Any, Calls]:
    module = Two()
    return attributes(module, module)


def of_an_object() -> tuple[Any, Calls]:
    held = Plain()
    return attributes(held, lambda x: x * 2 if held.a is held.b else x * 3)


@dataclasses.dataclass
class Settings:
    scale: int = 2
    names: list[int] = dataclasses.field(default_factory=list)


def equal_objects() -> tuple[Any, Calls]:
    def shared() -> tuple[Any, ...]:
        settings = Settings()
        return settings, settings, one()

    return lambda p, q, x: x * 2 if p is q else x * 3, [shared, lambda: (Settings(), Settings(), one())]


def inside_of_objects() -> tuple[Any, Calls]:
    def shared() -> tuple[Any, ...]:
        items: list[int] = []
        return Settings(names=items), items, Settings(names=items), one()

    def f(p: Settings, items: list[int], q: Settings, x: Tensor) -> Any:
        return x * (2 if p.names is items else 3), x * (5 if q.names is p.names else 7)

    return f, [shared, lambda: (Settings(), [], Settings(), one())]


def an_object_and_a_name() -> tuple[Any, Calls]:
    named = Settings()
    return lambda p, x: x * 2 if p is named else x * 3, [lambda: (named, one()), lambda: (Settings(), one())]


def one_of_many() -> tuple[Any, Calls]:
    many = [[k] for k in range(40)]
    return lambda a, x: x * 2 if any(a is v for v in many) else x * 3, [lambda: (many[3], one()), lambda: ([3], one())]


def buffers() -> tuple[Any, Calls]:
    known = bytearray(b"abc")

    def f(a: bytearray, b: bytearray, x: Tensor) -> Tensor:
        return x * 2 if a is b else x * 3

    return f, [lambda: (known, known, one()), lambda: (known, bytearray(known), one())]


def argument_of_a_partial() -> tuple[Any, Calls]:
    named = [1.0]
    held = {"f": functools.partial(lambda items, x: x * 2 if items is named else x * 3, named)}
    made = held["f"]

    def shared() -> tuple[Any, ...]:
        held["f"] = made
        return (one(),)

    def apart() -> tuple[Any, ...]:
        held["f"] = functools.partial(made.func, [1.0])
        return (one(),)

    return lambda x: held["f"](x), [shared, apart]


CONTAINERS: dict[str, tuple[Case, int]] = {
    "in one argument": (in_one_argument, 2),
    "appended through one": (appended_through_one, 2),
    "two lists": (lambda: two_arguments(lambda: [one()]), 2),
    "two dicts": (lambda: two_arguments(lambda: {0: one(), "k": one()}), 2),
    "two ordered dicts": (lambda: two_arguments(lambda: OrderedDict({0: one()})), 2),
    "two deques": (lambda: two_arguments(lambda: deque([one()])), 2),
    "two of three": (two_of_three, 5),
    "an argument and a name": (an_argument_and_a_name, 2),
    "tensors in both": (tensors_in_both, 3),
    "replaced in both": (replaced_in_both, 4),  # which tensor a name holds is compared
    "inner of a name": (inner_of_a_name, 3),
    "names": (names, 2),
    "behind names": (behind_names, 2),
    "attributes of a module": (of_a_module, 2),
    "attributes of an object": (of_an_object, 2),
    "equal objects": (equal_objects, 2),
    "inside of objects": (inside_of_objects, 2),
    "an object and a name": (an_object_and_a_name, 2),
    "one of many": (one_of_many, 2),
    "buffers": (buffers, 2),
    "argument of a partial": (argument_of_a_partial, 4),
}


@pytest.mark.parametrize("backwards", [False, True], ids=["shared first", "apart first"])
@pytest.mark.parametrize("name", CONTAINERS)
def test_containers_that_are_one_object_and_equal_ones(name: str, backwards: bool) -> None:
    case, at_most = CONTAINERS[name]
    check(case, at_most, backwards=backwards)


@pytest.mark.parametrize("make", [list, set, lambda: {"n": 0}, lambda: deque([1, 2], maxlen=2)])
def test_a_log_that_is_read_as_an_argument(make: Callable[[], Any]) -> None:
    def case() -> tuple[Any, Calls]:
        log = make()

        def f(a: Any, x: Tensor) -> Tensor:
            if isinstance(log, dict):
                log["n"] += 1
                return x * a["n"]
            (log.add if isinstance(log, set) else log.append)(7)
            return x * len(a)

        return f, [lambda: (log, one()), lambda: (make(), one())]

    for backwards in (False, True):
        check(case, 4, backwards=backwards)


def test_nothing_is_asked_where_no_two_containers_are() -> None:
    region = st.compile(lambda x, y: x * y["k"])
    region(one(), {"k": one()})
    assert "id(" not in (region.specializations[0].source or "")
    region = st.compile(lambda x, y: x * y)
    region(one(), one())
    assert "id(" not in (region.specializations[0].source or "")


@pytest.mark.parametrize(
    "name", ["in one argument", "two of three", "inner of a name", "inside of objects", "one of many"]
)
def test_generated_entries_serve_what_was_compiled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, calls = CONTAINERS[name][0]()
    region = st.compile(function)
    for call in calls:
        region(*call())
    monkeypatch.setattr(region, "_Region__slow_call", None)
    for call in calls:
        args, same = call(), call()
        assert seen((region(*args), args), {}) == seen((function(*same), same), {})


def test_numbers_in_a_list_that_is_two_arguments() -> None:
    region = st.compile(lambda a, b, x: x * a[0] + b[0])
    for n in (2.0, 3.0, 4.0, 5.0):
        items = [n]
        assert region(items, items, one()).tolist() == [2 * n] * 2
        assert region([n], [n + 1], one()).tolist() == [2 * n + 1] * 2
    assert len(region.specializations) <= 4


def test_the_reason_says_that_containers_are_one() -> None:
    region, items = st.compile(lambda a, b, x: x * len(a)), [1.0]
    region(items, items, one())
    region([1.0], [1.0], one())
    assert "other containers are one object" in region.specializations[1].reason


def test_an_exception_in_the_middle_of_what_two_arguments_share() -> None:
    def f(a: list[Any], b: list[Any], x: Tensor) -> None:
        a.append(x)
        b.append(2)
        raise ValueError("in the middle")

    for call in (f, st.compile(f)):
        items: list[Any] = [1]
        x = one()
        with pytest.raises(ValueError, match="in the middle"):
            call(items, items, x)
        assert len(items) == 3 and items[1] is x and items[2] == 2


# ---------------------------------------------------------------------------------------------- tensors
def wrapper() -> Tensor:
    return TwoTensor(one(), one() + 1)


MAKES: dict[str, Callable[[], Tensor]] = {
    "dense": one,
    "wrapper": wrapper,
    "nested": lambda: TwoTensor(wrapper(), wrapper()),
}


class Holder:
    held: Any = None


def tensor_functions(t: Tensor) -> dict[str, Callable[..., Any]]:
    """Functions of a tensor that may be ``t``, which they reach otherwise as well."""
    listed, in_tuple, in_set, key, holder, of_class = (
        [t],
        {"k": (t, 1)},
        {t},
        {t: 2.0},
        Holder(),
        type("C", (), {"t": t}),
    )
    holder.held = t

    def in_place(x: Tensor) -> Any:
        y = x.mul_(2)
        return listed[0] * 1, y is x, y is listed[0]

    def by_default(x: Tensor, other: Any = (t, 1)) -> Any:
        return x * 2 if other[0] is x else x * 3

    def by_keyword(x: Tensor, *, other: Any = t) -> Any:
        return x * 2 if other is x else x * 3

    def attribute(x: Tensor) -> Any:
        x.tag = 5  # type: ignore[attr-defined]
        return x * listed[0].tag if listed[0] is x else x * 3  # type: ignore[attr-defined]

    def gradient(x: Tensor) -> Any:
        return x * 2 if listed[0].grad is None else x * 3

    return {
        "cell": lambda x: x * 2 if x is t else x * 3,
        "list": lambda x: x * 2 if any(v is x for v in listed) else x * 3,
        "value in a list": lambda x: x + listed[0] * 2,
        "tuple in a dict": lambda x: x * 2 if in_tuple["k"][0] is x else x * 3,
        "set": lambda x: x * 2 if x in in_set else x * 3,
        "key": lambda x: x * key.get(x, 5.0),
        "attribute": lambda x: x * 2 if holder.held is x else x * 3,
        "attribute of a class": lambda x: (x + of_class.t * 2, of_class.t is x),  # type: ignore[attr-defined]
        "default": by_default,
        "default by keyword": by_keyword,
        "in place": in_place,
        "attribute that is set": attribute,
        "gradient": gradient,
        "returned": lambda x: (x, listed[0], listed[0] is x, listed),
    }


@pytest.mark.parametrize(
    ("kind", "backwards"),
    [
        pytest.param(
            k, b, marks=pytest.mark.slow if b and k == "nested" else (), id=f"{k}-{'other' if b else 'same'} first"
        )
        for k in MAKES
        for b in (False, True)
    ],
)
@pytest.mark.parametrize("name", tensor_functions(one()))
def test_an_argument_that_stands_elsewhere_too(name: str, kind: str, backwards: bool) -> None:
    def case() -> tuple[Any, Calls]:
        t = MAKES[kind]()
        return tensor_functions(t)[name], [lambda: (t,), lambda: (MAKES[kind](),)]

    check(case, 2, backwards=backwards)


@pytest.mark.parametrize("kind", MAKES)
def test_the_gradient_of_an_argument_that_stands_elsewhere_too(kind: str) -> None:
    def steps(wrap: Callable[[Any], Any]) -> list[Any]:
        t, told = MAKES[kind]().requires_grad_(), []
        listed = [t]

        def f(x: Tensor) -> Tensor:
            first = listed[0]
            return x * first if first.grad is None else x * first + first.grad

        called = wrap(f)
        for x in (t, MAKES[kind](), t, MAKES[kind]()):
            out = called(x)
            out.backward(torch.ones_like(out.detach()))
            told.append(seen((out, t, None if t.grad is None else t.grad.clone()), {}))
        return told

    assert steps(st.compile) == steps(lambda f: f)


def test_an_inner_tensor_that_stands_elsewhere_too() -> None:
    def case() -> tuple[Any, Calls]:
        t = TwoTensor(one(), one())
        listed = [t.a]
        return lambda x: (x * 2, listed[0] * 3, x.a is listed[0]), [lambda: (t,), lambda: (TwoTensor(one(), one()),)]

    for backwards in (False, True):
        check(case, 2, backwards=backwards)


NAMED: Any = None


@pytest.mark.parametrize("kind", MAKES)
@pytest.mark.parametrize("backwards", [False, True], ids=["same first", "other first"])
def test_a_name_that_is_bound_to_another_tensor_than_the_one_in_a_list(kind: str, backwards: bool) -> None:
    def case() -> tuple[Any, Calls]:
        listed = [MAKES[kind]()]

        def bound_to(t: Tensor) -> tuple[Any, ...]:
            global NAMED
            NAMED = t
            return ()

        return lambda: (NAMED * 2 + listed[0], NAMED is listed[0]), [
            lambda: bound_to(listed[0]),
            lambda: bound_to(MAKES[kind]() * 2),
        ]

    check(case, 2, backwards=backwards)


def test_a_parameter_that_is_replaced_while_a_list_keeps_it() -> None:
    def steps(wrap: Callable[[Any], Any]) -> list[Any]:
        module = torch.nn.Linear(2, 2)
        torch.nn.init.ones_(module.weight)
        module.kept = [module.weight]  # type: ignore[assignment]
        called, told = wrap(lambda x: x @ module.kept[0] + x @ module.weight), []  # type: ignore[index]
        for _ in range(3):
            told.append(called(one()).tolist())
            module.weight = torch.nn.Parameter(module.weight.detach() * 2)
        return told

    assert steps(st.compile) == steps(lambda f: f)


def test_what_held_an_argument_holds_it_afterwards() -> None:
    t = one()
    listed, key, in_tuple = [t], {t: 1}, {"k": (t, 2)}
    before = in_tuple["k"]

    def f(x: Tensor) -> Tensor:
        if len(listed) + len(key) + len(in_tuple) > 3:
            raise ValueError("no")
        return x * 2

    region = st.compile(f)
    region(t)
    listed.append(t)
    with pytest.raises(ValueError, match="no"):
        region(t)
    assert listed[0] is listed[1] is t and [*key] == [t] and key[t] == 1 and in_tuple["k"] is before
    assert len(region.specializations) == 1


def test_a_set_among_the_arguments_that_holds_another() -> None:
    def case() -> tuple[Any, Calls]:
        t = one()
        return lambda s, x: x * 2 if x in s else x * 3, [lambda: ({t}, t), lambda: ({t}, one())]

    for backwards in (False, True):
        check(case, 2, backwards=backwards)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    t: Tensor


class Locked:
    __slots__ = ("t", "writes")

    def __init__(self, t: Tensor) -> None:
        object.__setattr__(self, "t", t)
        object.__setattr__(self, "writes", 0)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, "writes", self.writes + 1)
        raise AttributeError(name)


@pytest.mark.parametrize("kind", [Frozen, Locked])
def test_objects_that_refuse_to_be_written(kind: Callable[[Tensor], Any]) -> None:
    x = one()
    table, holder = {"a": x}, kind(x)
    for call in (lambda f: f, st.compile):
        result, same = call(lambda a: (a * 2 + table["a"] + holder.t, a is holder.t))(x)
        assert result.tolist() == [4.0, 4.0] and same
        assert table["a"] is x and holder.t is x and getattr(holder, "writes", 0) == 0


def test_a_caller_that_iterates_over_what_the_region_reads() -> None:
    x, y = one(), one() * 2
    queue, table, ordered = deque([x, y]), {x: 1, y: 2}, OrderedDict([(x, 1), (y, 2)])
    for held in (queue, table, ordered):
        region = st.compile(lambda a, held=held: a + len(held))
        assert [region(t).tolist() for t in held] == [[3.0, 3.0], [4.0, 4.0]]
    region = st.compile(lambda a: (a + queue[0], a is queue[1]))
    for k, t in enumerate(queue):
        result, same = region(t)
        assert result.tolist() == [2.0 + k] * 2 and same is (k == 1)


def test_an_argument_deep_in_a_container_that_no_guard_looks_into() -> None:
    held = [[torch.full((2,), float(k))] for k in range(40)]
    x = held[0][0] = one()
    region = st.compile(lambda a: a + held[0][0])
    assert [region(t).tolist() for t in (x, torch.zeros(2), x)] == [[2.0, 2.0], [1.0, 1.0], [2.0, 2.0]]
