"""Containers, classes and objects with which a user has broken the package: values, and what they leave, are eager's."""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import subclass_trace as st

Wrap = Callable[[Any], Any]


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
    gives: Any = Gives
    held.__dict__["k"] = 7.0
    regions = [wrap(lambda x: x * held.k), wrap(lambda x: x * (Held.k if type(Held.k) is float else 5.0))]
    got = []
    for change in (None, "__set__", "__get__"):
        if change == "__set__":
            gives.__set__ = lambda self, o, value: None
        elif change == "__get__":
            del gives.__get__
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
        a += map(a.count, [0, 9, 0])
        s: Any = set()
        s.update(len(s) for _ in range(3))
        s.update((len(s) + 10 for _ in range(2)), [7], (len(s) + 20 for _ in range(2)))
        d: Any = {}
        d.update(((len(d), n) for n in range(3)), k=1)
        q: Any = collections.deque()
        q.extend(len(q) for _ in range(3))
        c: Any = collections.Counter()
        c.update(len(c) for _ in range(3))
        kept.extend(f"t{len(kept)}" for _ in range(2))
        seen: list[int] = []

        def noted(n: int) -> int:
            seen.append(n)
            return n

        most = max((noted(n) for n in range(3)), key=lambda n: len(seen) * -n)
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
