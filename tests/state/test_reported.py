"""Programs that a user of the package has broken it with: values, and what they leave, are eager's."""

from __future__ import annotations

import collections
import functools
import operator
import types
import unittest.mock
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import subclass_trace as st

Wrap = Callable[[Any], Any]


def cache_with_a_keyword(wrap: Wrap) -> Any:
    config, runs = {"base": 10.0}, []

    @functools.lru_cache
    def table(n: int) -> float:
        runs.append(n)
        return config["base"] * n

    region, got = wrap(lambda x: x * table(n=3)), []
    for call in range(4):
        if call == 2:
            config["base"] = 99.0
        got.append(region(torch.ones(1)).item())
    return got, runs, table.cache_info().misses, table.cache_info().currsize


def cache_of_another_specialization(wrap: Wrap) -> Any:
    """A guard of another name does not fill the cache."""
    config = {"base": 10.0}

    @functools.lru_cache
    def scale(name: str) -> float:
        return config["base"] * len(name)

    region, got = wrap(lambda x, name: x * scale(name)), []
    for name, base, clear in [("aa", 10.0, 0), ("bbb", 10.0, 0), ("aa", 20.0, 1), ("bbb", 30.0, 0)]:
        config["base"] = base
        if clear:
            scale.cache_clear()
        got.append(region(torch.ones(1), name).item())
    return got, scale.cache_info().misses, scale.cache_info().currsize


def getattribute_appears(wrap: Wrap) -> Any:
    class Held:
        k = 2

    held = Held()
    region = wrap(lambda x: x * held.k)
    before = region(torch.ones(1)).item()
    Held.__getattribute__ = lambda self, name: 10  # type: ignore[method-assign, assignment]
    return before, region(torch.ones(1)).item()


def getattribute_of_a_metaclass_appears(wrap: Wrap) -> Any:
    class Meta(type):
        pass

    class Held(metaclass=Meta):
        k = 2

    region = wrap(lambda x: x * Held.k)
    before = region(torch.ones(1)).item()
    Meta.__getattribute__ = lambda cls, name: 8  # type: ignore[method-assign, assignment]
    return before, region(torch.ones(1)).item()


def getattr_of_a_module_appears(wrap: Wrap) -> Any:
    module = types.ModuleType("plug")
    region = wrap(lambda x: x * (module.dyn if hasattr(module, "dyn") else 1))
    before = region(torch.ones(1)).item()
    module.__getattr__ = lambda name: 5.0  # type: ignore[method-assign, assignment]
    return before, region(torch.ones(1)).item()


def _backwards(region: Any, change: Callable[[], Any]) -> list[float]:
    got = []
    for call in range(3):
        x = torch.ones(1, requires_grad=True)
        y = region(x)
        if call == 1:
            change()
        y.sum().backward()
        got.append(x.grad.item())  # type: ignore[union-attr]
    return got


def backward_is_replaced(wrap: Wrap) -> Any:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2

    def change() -> None:
        Double.backward = staticmethod(lambda ctx, g: g * 7)  # type: ignore[assignment]

    return _backwards(wrap(lambda x: Double.apply(x) * 3), change)


def backward_with_a_cell_is_replaced(wrap: Wrap) -> Any:
    space = types.SimpleNamespace(k=2.0)

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * space.k

    def change() -> None:
        Scale.backward = staticmethod(lambda ctx, g: g * 7)  # type: ignore[assignment]

    return _backwards(wrap(lambda x: Scale.apply(x) * 3), change)


def code_of_a_hook_is_replaced(wrap: Wrap) -> Any:
    def hook(g: Any) -> Any:
        return g * 9

    def f(x: Any) -> Any:
        y = x * 1
        y.register_hook(hook)
        return y * 3

    def change() -> None:
        hook.__code__ = (lambda g: g * 4).__code__

    return _backwards(wrap(f), change)


def what_none_is(wrap: Wrap) -> Any:
    """To ``__get__``, None is a missing instance."""

    @functools.singledispatch
    def kind(value: Any) -> int:
        return 1

    kind.register(int)(lambda value: 2)
    region = wrap(lambda x: x * kind(None) + len(None.__class__.__mro__) + None.__eq__(None))
    return region(torch.ones(1)).tolist()


class _Pair(tuple[int, int]):
    """A tuple with attributes, as the calls that `unittest.mock` keeps are."""

    def __new__(cls, a: int, b: int) -> _Pair:
        return tuple.__new__(cls, (a, b))

    def __init__(self, a: int, b: int) -> None:
        self.total: Any = a + b


class _Few(frozenset[int]):
    def __init__(self, *args: Any) -> None:
        self.total: Any = len(self)


def attributes_of_what_is_immutable(wrap: Wrap) -> Any:
    kept: dict[str, Any] = {"list": []}

    def f(x: Any) -> Any:
        pair, few = _Pair(1, 2), _Few([3])
        few.total = x.sum()
        kept["pair"] = pair
        kept["list"].append({"few": (few,)})
        return x * 2, pair, few

    region, found = wrap(f), []
    for _ in range(3):
        x, pair, few = region(torch.ones(2))
        last = kept["list"][-1]["few"][0]
        found += [x.tolist(), type(pair), pair, pair.total, few, few.total.item()]
        found += [last is few, last.total.item(), kept["pair"] is pair]
    return found


def a_mock_is_called(wrap: Wrap) -> Any:
    mocked = unittest.mock.Mock(return_value=2)
    region = wrap(lambda x: x * mocked(3))
    got = [region(torch.ones(1)).item() for _ in range(3)]
    return got, mocked.call_count, str(mocked.call_args), len(mocked.call_args_list)


def added_to_an_empty_list(wrap: Wrap) -> Any:
    """Which item is the first hangs on the length."""
    lists: Any = ([], collections.deque())

    def run(x: torch.Tensor) -> torch.Tensor:
        for held in lists:
            held.append(x.sum())
        return x * lists[0][0] * lists[1][0]

    region = wrap(run)
    return [region(torch.full((1,), n)).item() for n in (1.0, 2.0, 3.0)]


class Borg:
    state: dict[str, float]

    def __init__(self) -> None:
        self.__dict__ = self.state

    k: float


def one_namespace_of_many(wrap: Wrap) -> Any:
    Borg.state = {"k": 2.0}
    a, b = Borg(), Borg()

    def inside(x: torch.Tensor) -> torch.Tensor:
        made = Borg()
        made.k = made.k * 2
        return x * Borg().k

    def outside(x: torch.Tensor) -> torch.Tensor:
        a.k = a.k + 1
        return x * b.k

    regions, got = [wrap(inside), wrap(outside)], []
    for call in range(5):
        if call == 3:
            b.__dict__ = {"k": 9.0}
        got += [region(torch.ones(1)).item() for region in regions]
    return got


def descriptors_change(wrap: Wrap) -> Any:
    class Gives:
        def __get__(self, o: Any, owner: Any = None) -> float:
            return 2.0

    class Held:
        k = Gives()

    held: Any = Held()
    held.__dict__["k"] = 7.0
    regions = [wrap(lambda x: x * held.k), wrap(lambda x: x * (Held.k if type(Held.k) is float else 5.0))]
    got = []
    for change in (None, "__set__", "__get__"):
        if change == "__set__":
            Gives.__set__ = lambda self, o, value: None  # type: ignore[attr-defined]
        elif change == "__get__":
            del Gives.__get__
        got.append([region(torch.ones(1)).item() for region in regions])
    return got


def defaults_of_a_named_tuple(wrap: Wrap) -> Any:
    kind: Any = collections.namedtuple("kind", "k", defaults=(2.0,))
    region = wrap(lambda x: x * kind().k)
    got = [region(torch.ones(1)).item()]
    kind.__new__.__defaults__ = (6.0,)
    return [*got, region(torch.ones(1)).item()]


def torch_function_of_another_class(wrap: Wrap) -> Any:
    config, calls = {"v": 1.0}, []

    class Answers:
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> float:
            calls.append(func.__name__)
            return config["v"]

    borrowed = type("Borrowed", (), {"__torch_function__": Answers.__torch_function__})()
    static: Any = staticmethod(lambda func, types, *rest: Answers.__torch_function__(func, types))
    other = type("Static", (), {"__torch_function__": static})()
    region = wrap(lambda x: x * torch.mul(borrowed, 2) * torch.mul(other, 2))
    got = [region(torch.ones(1)).item() for _ in range(2)]
    config["v"] = 3.0
    return [*got, region(torch.ones(1)).item()], calls


def wrong_answers_of_special_methods(wrap: Wrap) -> Any:
    answers = {"__bool__": (2, "3 if o else 2"), "__len__": (2.5, "len(o)"), "__float__": (2, "float(o)")}
    got = []
    for name, (value, text) in answers.items():
        o = type("Of", (), {name: lambda self, value=value: value})()
        space: dict[str, Any] = {"o": o}
        try:
            got.append(wrap(eval(f"lambda x: x * ({text})", space))(torch.ones(1)))
        except TypeError as error:
            got.append(str(error))
    return got


def written_before_an_ambiguous_truth(wrap: Wrap) -> Any:
    calls: list[int] = []

    def run(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        assert x < 4
        return x

    with pytest.raises(RuntimeError, match="more than one value"):
        wrap(run)(torch.ones(3))
    return calls


def filled_item_by_item(wrap: Wrap) -> Any:
    """What makes the next item looks at those that are there."""

    def run(x: torch.Tensor, kept: Any) -> Any:
        a: Any = []
        a.extend(len(a) for _ in range(3))
        a += map(lambda n: n + len(a), [1, 2])  # noqa: C417
        s: Any = set()
        s.update(len(s) for _ in range(3))
        d: Any = {}
        d.update(((len(d), n) for n in range(3)), k=1)
        q: Any = collections.deque()
        q.extend(len(q) for _ in range(3))
        c: Any = collections.Counter()
        c.update(len(c) for _ in range(3))
        kept.extend(f"t{len(kept)}" for _ in range(2))
        seen: list[int] = []
        most = max((seen.append(n) or n for n in range(3)), key=lambda n: len(seen) * -n)  # type: ignore[func-returns-value]
        try:
            a.extend(1 // (2 - n) for n in range(4))
        except ZeroDivisionError:
            a.append("stopped")
        return x * 1, a, s, d, [*q], dict(c), most

    region, got = wrap(run), []
    kept: list[str] = []
    for _ in range(3):
        got.append(repr(region(torch.ones(1), kept)[1:]))
    return got, kept


def keys_that_are_put_again(wrap: Wrap) -> Any:
    """They are the last ones, whatever others have put there meanwhile."""
    d, o, e = {"a": 1, "b": 2}, SimpleNamespace(a=1, b=2), collections.OrderedDict(a=1, b=2)

    def run(x: torch.Tensor) -> torch.Tensor:
        d["b"] = d.pop("b")
        del o.a
        o.a = 2
        del e["a"]
        e["a"] = 4
        return x + 1

    region = wrap(run)
    region(torch.ones(1))
    d["q"] = o.q = e["q"] = 3
    region(torch.ones(1))
    return [*d.items()], [*vars(o).items()], [*e.items()]


def classes_that_gain_methods(wrap: Wrap) -> Any:
    def tried(f: Any) -> Any:
        try:
            return f()
        except TypeError:
            return 5.0

    gained: dict[str, tuple[Any, Any]] = {
        "__call__": (lambda o: 2.0 if callable(o) else 3.0, lambda self: 1),
        "__iter__": (lambda o: tried(lambda: sum(o)), lambda self: iter([4.0])),
        "__index__": (lambda o: tried(lambda: [1.0, 2.0][o]), lambda self: 1),
        "__length_hint__": (lambda o: operator.length_hint(o, 4), lambda self: 7),
    }
    got = []
    for name, (read, method) in gained.items():
        o = type("Gains", (), {})()
        region = wrap(lambda x, o=o, read=read: x * read(o))
        got.append(region(torch.ones(1)).item())
        setattr(type(o), name, method)
        got.append(region(torch.ones(1)).item())
    return got


def namespaces_that_are_made(wrap: Wrap) -> Any:
    kept = SimpleNamespace(last=None)

    def run(x: torch.Tensor) -> Any:
        kept.last = SimpleNamespace(loss=x.sum(), n=3)
        return SimpleNamespace(out=x * 2, same=kept.last)

    region = wrap(run)
    outs = [region(torch.full((1,), n)) for n in (1.0, 2.0)]
    return [(o.out.item(), o.same.loss.item(), o.same.n) for o in outs], outs[-1].same is kept.last


def getters_of_c(wrap: Wrap) -> Any:
    class Held:
        inner = 2.0
        get = lambda self: self.inner
        one = property(operator.attrgetter("inner"))
        two = property(operator.methodcaller("get"))

    held, got = Held(), []

    def run(x: torch.Tensor) -> torch.Tensor:
        held.inner = 5.0
        n = held.one * held.two
        held.inner = 3.0
        return x * n

    region = wrap(run)
    for _ in range(3):
        got.append(region(torch.ones(1)).item())
    return got


PROGRAMS = (
    attributes_of_what_is_immutable,
    a_mock_is_called,
    what_none_is,
    cache_with_a_keyword,
    cache_of_another_specialization,
    getattribute_appears,
    getattribute_of_a_metaclass_appears,
    getattr_of_a_module_appears,
    backward_is_replaced,
    backward_with_a_cell_is_replaced,
    code_of_a_hook_is_replaced,
    added_to_an_empty_list,
    one_namespace_of_many,
    descriptors_change,
    defaults_of_a_named_tuple,
    torch_function_of_another_class,
    wrong_answers_of_special_methods,
    written_before_an_ambiguous_truth,
    filled_item_by_item,
    keys_that_are_put_again,
    classes_that_gain_methods,
    namespaces_that_are_made,
    getters_of_c,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_as_eager(program: Callable[[Wrap], Any]) -> None:
    assert program(lambda f: st.compile(f, frontend="trace")) == program(lambda f: f)


def test_a_number_that_each_backward_finds_changed() -> None:
    """It is not traced without end: the region runs eagerly, and says so."""
    space, layer = types.SimpleNamespace(k=0.0), torch.nn.Linear(2, 2)

    def f(x: Any) -> Any:
        y = layer(x)
        y.register_hook(lambda g: g * space.k)
        return y.sin()

    region = st.compile(f)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(30):
            space.k += 0.1
            found = []
            for call in (f, region):
                layer.weight.grad = None
                call(torch.ones(1, 2)).sum().backward()
                found.append(layer.weight.grad)
            assert torch.equal(*found)
    assert len([w for w in caught if "reads another value of Python state" in str(w.message)]) == 1
    assert "another value of Python state" in region.explain()


class _Text(str):
    __slots__ = ()


_PAIR = collections.namedtuple("_PAIR", "a b")(1, "x")
_TEXTS: dict[str, Callable[[], Any]] = {
    "a namedtuple": lambda: f"{_PAIR} {_PAIR!r} {'%s-%s' % _PAIR}",  # noqa: UP031
    "a number in a text": lambda: 1 in _Text("a1"),
    "a text in a text": lambda: "a" in _Text("a1"),
    "a text in bytes": lambda: "a" in bytearray(b"ab"),
    "a width for an object": lambda: f"{SimpleNamespace(a=1):>5}",
    "no width": lambda: f"{SimpleNamespace(a=1)}",
}


@pytest.mark.parametrize("name", _TEXTS)
def test_texts_and_what_is_in_them(name: str) -> None:
    """Values, or the error, are eager mode's."""

    def seen(x: torch.Tensor) -> torch.Tensor:
        try:
            found.append(_TEXTS[name]())
        except TypeError as error:
            found.append(str(error))
        return x + 1

    found: list[Any] = []
    for call in (seen, st.compile(seen)):
        call(torch.ones(1))
    assert found[0] == found[1]
