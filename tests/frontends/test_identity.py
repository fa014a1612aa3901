"""Which tensor an input is: code that keeps tables by tensor or by ``id()``, sets of parameters, and optimizers' state."""

from __future__ import annotations

import functools
import threading
import types
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.weak import WeakTensorKeyDictionary

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
Module = torch.nn.Module
#: makes a function of a model, and what is to be looked at afterwards
Make = Callable[[Module], tuple[Callable[[Tensor], Any], Callable[[], Any]]]


def model() -> Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh(), torch.nn.Linear(2, 2))


def seen(value: Any) -> Any:
    if isinstance(value, Tensor):
        return type(value).__name__, value.tolist(), value.requires_grad, value._version
    return [seen(v) for v in value] if isinstance(value, (list, tuple)) else value


def steps(make: Make, wrap: Callable[[Any], Any]) -> Any:
    """Three calls, and what they leave in the model."""
    module = model()
    function, left = make(module)
    called, told = wrap(function), []
    for k in range(3):
        told.append(seen(called(torch.full((3, 2), 1.0 + k))))
    return told, seen(list(module.parameters())), seen(left())


def in_a_set(m: Module) -> Any:
    undecayed = {p for n, p in m.named_parameters() if n.endswith("bias")}
    return lambda x: (m(x), [p in undecayed for p in m.parameters()]), lambda: len(undecayed)


def in_a_list(m: Module) -> Any:
    kept = list(m.parameters())[::2]
    return lambda x: (m(x), [any(p is q for q in kept) for p in m.parameters()]), lambda: kept[0] is m[0].weight


def by_name_and_in_an_object(m: Module) -> Any:
    weight = m[0].weight
    m.first = weight

    class Holder:
        weight = m[0].weight

    holder = Holder()
    return lambda x: (m(x), weight is m[0].weight, holder.weight is weight, m.first is weight), lambda: (
        weight is m[0].weight,
        "weight" in vars(holder),
    )


def a_table(m: Module) -> Any:
    average = {p: p.detach().clone() for p in m.parameters()}

    def f(x: Tensor) -> Tensor:
        y = m(x)
        with torch.no_grad():
            for p in m.parameters():
                average[p].lerp_(p + 1, 0.5)
        return y

    return f, lambda: ([a is b for a, b in zip(average, m.parameters(), strict=True)], list(average.values()))


def an_optimizer(make: Callable[..., Any], first: bool, how: str) -> Make:
    def made(m: Module) -> Any:
        optimizer = make(m.parameters())
        if not first:
            m(torch.ones(2, 2)).sum().backward()
            optimizer.step()
        (group,) = optimizer.param_groups

        def f(x: Tensor) -> Any:
            optimizer.zero_grad()
            loss = m(x).pow(2).sum()
            loss.backward()
            if how == "groups":
                for p in group["params"]:
                    p.grad.mul_(0.5)
            told: Any = [p is q for p, q in zip(group["params"], m.parameters(), strict=True)]
            if how == "state":
                told += [p in optimizer.state for p in m.parameters()]
                for p in m.parameters():
                    for held in optimizer.state[p].values():
                        if held.dim():
                            held.mul_(0.5)
            optimizer.step()
            if how == "state after":
                told += [held * 1 for p in m.parameters() for held in optimizer.state[p].values()]
            return loss.detach(), told

        return f, lambda: (
            [list(held.values()) for held in optimizer.state.values()],
            [a is b for a, b in zip(optimizer.state, m.parameters(), strict=True)],
            [a is b for a, b in zip(group["params"], m.parameters(), strict=True)],
        )

    return made


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1),
}


@pytest.mark.parametrize("make", [in_a_set, in_a_list, by_name_and_in_an_object, a_table])
def test_parameters_that_stand_elsewhere_too(make: Make) -> None:
    assert steps(make, st.compile) == steps(make, lambda f: f)


@pytest.mark.parametrize(
    ("first", "how"),
    [(True, "groups"), (True, "compared"), (False, "groups"), (False, "state"), (False, "state after")],
)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_parameters_of_an_optimizer_are_those_of_the_module(kind: str, first: bool, how: str) -> None:
    make = an_optimizer(OPTIMIZERS[kind], first, how)
    assert steps(make, st.compile) == steps(make, lambda f: f)


# ---------------------------------------------------------------------------------------------- id() and hash()
def decayed(m: Module) -> Any:
    undecayed = {id(p) for n, p in m.named_parameters() if n.endswith("bias")}
    return lambda x: (m(x), [id(p) in undecayed for p in m.parameters()]), lambda: len(undecayed)


def names_by_id(m: Module) -> Any:
    names = {id(p): n for n, p in m.named_parameters()}
    return lambda x: (m(x), [names[id(p)] for p in m.parameters()]), lambda: sorted(names.values())


def moments_by_id(m: Module) -> Any:
    moments = {id(p): torch.zeros_like(p) for p in m.parameters()}
    kept = list(m.parameters())

    def f(x: Tensor) -> Tensor:
        m.zero_grad()
        loss: Tensor = m(x).pow(2).sum()
        loss.backward()
        with torch.no_grad():
            for p in kept:
                assert p.grad is not None
                p.sub_(moments[id(p)].mul_(0.9).add_(p.grad), alpha=0.1)
        return loss.detach()

    return f, lambda: list(moments.values())


@pytest.mark.parametrize("make", [decayed, names_by_id, moments_by_id])
def test_tables_by_the_id_of_a_parameter(make: Make) -> None:
    assert steps(make, st.compile) == steps(make, lambda f: f)


TENSORS = [torch.full((2,), 1.0 + k) for k in range(3)]
FIRST = id(TENSORS[0])


class Registry:
    """As libraries keep what they know of tensors."""

    def __init__(self) -> None:
        self.known: dict[Any, float] = {}
        self.last, self.log = 0, list[int]()

    def put(self, key: Any) -> None:
        self.known[key] = len(self.known) + 2.0

    def factor(self, t: Tensor) -> float:
        return self.known.get(id(t), 1.0)


def registered(*numbers: int) -> Callable[[Tensor, Tensor], Any]:
    registry = Registry()
    for k in numbers:
        registry.put(id(TENSORS[k]))
    return lambda a, b: a * registry.factor(a) + b * registry.factor(b)


def in_a_tuple() -> Callable[[Tensor, Tensor], Any]:
    known = {(id(TENSORS[1]), "a"): 5.0}
    return lambda a, b: a * known.get((id(a), "a"), 1.0) + b * known.get((id(b), "b"), 2.0)


def by_hash() -> Callable[[Tensor, Tensor], Any]:
    known = {hash(TENSORS[1])}
    return lambda a, b: a * (2 if hash(a) in known else 3) + b


def from_a_list() -> Callable[[Tensor, Tensor], Any]:
    numbers = [id(TENSORS[1]), FIRST]

    def f(a: Tensor, b: Tensor) -> Tensor:
        known = {n: k + 2 for k, n in enumerate(numbers)}
        return a * known.get(id(a), 1) + b

    return f


def inside_alone() -> Callable[[Tensor, Tensor], Any]:
    """Which of its arguments are the same is all that it asks, through an inner function that holds itself."""

    def f(*given: Tensor) -> Any:
        known: dict[int, Tensor] = {}

        def visit(rest: Any) -> None:
            if rest:
                known.setdefault(id(rest[0]), rest[0] * 2)
                visit(rest[1:])

        visit(given)
        return list(known.values())

    return f


ARGUMENTS: dict[str, Callable[[], Callable[[Tensor, Tensor], Any]]] = {
    "none registered": lambda: registered(),
    "one registered": lambda: registered(1),
    "two registered": lambda: registered(2, 0),
    "in a tuple": in_a_tuple,
    "by hash": by_hash,
    "a list among the keys": lambda: lambda a, b: a * 2 if id(a) in [FIRST, 5] else b,
    "a number": lambda: lambda a, b: a * 2 if id(a) == FIRST else b,
    "other than a number": lambda: lambda a, b: a * 2 if id(a) != FIRST else b,
    "each other": lambda: lambda a, b: a * 2 if id(a) == id(b) else b,
    "returned": lambda: lambda a, b: (id(a), {id(b): a * 1}, type(id(a)) is int or "a number"),
    "as text": lambda: lambda a, b: (f"{id(a)}", str(id(b)), a * 1),
    "in order": lambda: lambda a, b: sorted((a, b), key=id)[0] * 2,
    "computed with": lambda: lambda a, b: a * (id(a) // 16 % 97),
    "in a table of its own": lambda: lambda a, b: a * {FIRST: 2}.get(id(a), 3),
    "from a list in a table of its own": from_a_list,
    "inside alone": inside_alone,
}


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_id_of_an_argument(name: str, backwards: bool) -> None:
    calls = [(a, b) for a in TENSORS for b in TENSORS] * 2

    def told(wrap: Callable[[Any], Any]) -> list[Any]:
        called = wrap(ARGUMENTS[name]())
        for t in TENSORS:
            vars(t).clear()
        results = [called(a, b) for a, b in (calls[::-1] if backwards else calls)]
        if name == "returned":
            results = [(n, [(k, seen(v)) for k, v in table.items()]) for n, table, _ in results]
        return seen(results)  # type: ignore[no-any-return]

    assert told(st.compile) == told(lambda f: f)


@pytest.mark.parametrize(("name", "most"), [("inside alone", 2), ("none registered", 2), ("one registered", 5)])
def test_other_tensors_are_served_where_code_asks_only_which_are_the_same(name: str, most: int) -> None:
    region = st.compile(ARGUMENTS[name]())
    for _ in range(3):
        fresh = [torch.ones(2), torch.ones(2)]
        for a, b in [(a, b) for a in (*fresh, TENSORS[1]) for b in (*fresh, TENSORS[1])]:
            region(a, b)
    assert len(region.specializations) <= most


def added_to_a_list(registry: Registry, a: Tensor) -> Tensor:
    registry.log.append(id(a))
    return a * 2


def an_attribute(registry: Registry, a: Tensor) -> Tensor:
    same, registry.last = registry.last == id(a), id(a)
    return a * 2 if same else a * 3


def a_key(registry: Registry, a: Tensor) -> Tensor:
    registry.known[id(a)] = 2.0
    return a * 2


def on_the_tensor(registry: Registry, a: Tensor) -> Tensor:
    a.number = id(a)  # type: ignore[attr-defined]
    return a * 2


def in_an_argument(registry: Registry, a: Tensor, *table: dict[int, Tensor]) -> Tensor:
    for held in table:
        held[id(a)] = a * 1
    return a * 2


@pytest.mark.parametrize("step", [added_to_a_list, an_attribute, a_key, on_the_tensor, in_an_argument])
def test_a_number_of_an_argument_that_is_kept(step: Callable[..., Tensor]) -> None:
    def told(wrap: Callable[[Any], Any]) -> list[Any]:
        registry, found = Registry(), list[Any]()
        called = wrap(functools.partial(step, registry))
        for k in (0, 0, 1, 2, 2, 0):
            given = dict[int, Tensor]()
            vars(TENSORS[k]).clear()
            found += [called(TENSORS[k], *([given] if step is in_an_argument else []))]
            left = [*registry.log, *registry.known, registry.last, *vars(TENSORS[k]).values(), *given]
            found += [(n, type(n).__name__) for n in left]
        return seen(found)  # type: ignore[no-any-return]

    assert told(st.compile) == told(lambda f: f)


def test_a_number_of_an_argument_in_an_exception() -> None:
    def f(a: Tensor) -> Tensor:
        raise ValueError(id(a))

    with pytest.raises(ValueError) as caught:
        st.compile(f)(TENSORS[0])
    assert caught.value.args == (FIRST,) and "id" not in globals()


def test_a_table_that_changes_between_calls() -> None:
    def told(wrap: Callable[[Any], Any]) -> list[Any]:
        registry, found = Registry(), list[Any]()
        called = wrap(lambda a: a * registry.factor(a))
        for k in (0, 1, 0, 2):
            found += [called(t).tolist() for t in TENSORS]
            registry.put(id(TENSORS[k]))
        return found

    assert told(st.compile) == told(lambda f: f)


def test_a_name_that_is_bound_to_another_tensor() -> None:
    def told(wrap: Callable[[Any], Any]) -> list[Any]:
        named, factors = TENSORS[0], {FIRST: 5.0}
        called, found = wrap(lambda x: x * factors.get(id(named), 1.0)), []
        for named in TENSORS:
            found.append(called(torch.ones(2)).tolist())
        return found

    assert told(st.compile) == told(lambda f: f)


# ---------------------------------------------------------------------------------------------- pytrees of one's own classes
class Pair:
    def __init__(self, first: Any, second: Any) -> None:
        self.first, self.second = first, second


class Fresh(Pair):
    """What it holds is made anew when it is taken apart."""


torch.utils._pytree.register_pytree_node(Pair, lambda p: ([p.first, p.second], None), lambda rest, _: Pair(*rest))
torch.utils._pytree.register_pytree_node(
    Fresh,
    lambda p: ([Pair(p.first, p.second), Pair(p.first, p.second)], None),
    lambda rest, _: Fresh(rest[0].first, rest[0].second),
)


def pair() -> Pair:
    return Pair(one(), one())


def one() -> Tensor:
    return torch.ones(2)


def both(a: Any, b: Any) -> Any:
    b.mark = 3
    return a is b, id(a) == id(b), getattr(a, "mark", 5), a.first * 2 + b.second


def inside(a: Any, b: Any) -> Any:
    return a[0] is b, a[0].first is b.first, b.second * 2, a[1]


def test_a_node_of_a_pytree_that_is_two_arguments() -> None:
    shared = pair()
    for f, calls in (
        (both, [(shared, shared), (shared, pair()), (pair(), shared)]),
        (inside, [([shared, 3], shared), ([pair(), None], shared), ((shared, torch.Size([2, 3])), shared)]),
    ):
        for rows in (calls, calls[::-1]):
            region = st.compile(f)
            for args in rows * 2:
                assert seen(region(*args)) == seen(f(*args))
                vars(shared).pop("mark", None)
            assert len(region.specializations) <= len(calls)


def test_nodes_that_are_made_anew_are_not_one_object() -> None:
    assert st.compile(lambda a, b: (a is b, a.first + b.second))(Fresh(one(), one()), Fresh(one(), one()))[0] is False


# ---------------------------------------------------------------------------------------------- other things that hold tensors
class Listed(list[Any]):
    pass


class Locked(dict[str, Any]):
    """Read like an object; and nothing may be written to it."""

    def __getattr__(self, name: str) -> Any:
        return self[name]

    def __setitem__(self, name: str, value: Any) -> None:
        raise TypeError("no")


class Named(tuple[Any, ...]):
    pass


class Base:
    __slots__ = ("held",)


class Slotted(Base):
    """It has a ``__dict__`` too."""


def slotted(t: Tensor) -> Slotted:
    made = Slotted()
    made.held = t
    return made


def local(t: Tensor) -> threading.local:
    made = threading.local()
    made.held = t
    return made


def listed(t: Tensor) -> Listed:
    made = Listed([3])
    made.held = t  # type: ignore[attr-defined]
    return made


#: what holds a tensor, and how code finds it there
HOLDERS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Any]]] = {
    "partial": (lambda t: functools.partial(lambda a, b: a, t, 3), lambda h: h()),
    "keyword of a partial": (lambda t: functools.partial(lambda *, a: a, a=t), lambda h: h()),
    "arguments of a partial": (lambda t: functools.partial(lambda a: a, t), lambda h: h.args[0]),
    "partial in a list": (lambda t: [functools.partial(lambda a: a, (t, 3))], lambda h: h[0]()[0]),
    "bound method": (lambda t: types.MethodType(lambda a: a, t), lambda h: h()),
    "proxy": (lambda t: types.MappingProxyType({"a": t}), lambda h: h["a"]),
    "frozenset": (lambda t: frozenset([t]), lambda h: next(iter(h))),
    "frozenset in a tuple": (lambda t: (3, frozenset([t])), lambda h: next(iter(h[1]))),
    "subclass of list": (lambda t: Listed([t]), lambda h: h[0]),
    "attribute of a list": (listed, lambda h: h.held),
    "subclass of dict": (lambda t: Locked(held=t), lambda h: h.held),
    "subclass of tuple": (lambda t: Named((t, 3)), lambda h: h[0]),
    "inherited slot": (slotted, lambda h: h.held),
    "thread's own": (local, lambda h: h.held),
    "counter": (lambda t: Counter({"a": t}), lambda h: h["a"]),
    "result of torch.max": (lambda t: torch.return_types.max((t, t)), lambda h: h.values),
    "weak reference": (weakref.ref, lambda h: h()),
    "weak references": (lambda t: [weakref.ref(t), 3], lambda h: h[0]()),
    "weak values": (lambda t: weakref.WeakValueDictionary(a=t), lambda h: h["a"]),
    "weak keys": (lambda t: _weak_keys(t), lambda h: next(iter(h.keys()))),
    "ordered keys": (lambda t: OrderedDict([(one(), 2), (t, 3)]), lambda h: list(h)[1]),
}


def _weak_keys(t: Tensor) -> WeakTensorKeyDictionary:
    made = WeakTensorKeyDictionary()
    made[t] = 3
    return made


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("name", HOLDERS)
def test_an_argument_that_something_holds(name: str, backwards: bool) -> None:
    make, find = HOLDERS[name]

    def told(wrap: Callable[[Any], Any]) -> list[Any]:
        mine = one()
        holder, found = make(mine), []
        kept = find(holder)

        def f(x: Tensor) -> Any:
            held = find(holder)
            x.add_(1)
            return held is x, held * 2

        called = wrap(f)
        for x in [one(), mine, one(), mine][:: -1 if backwards else 1]:
            found.append(seen(called(x)))
        assert kept is mine and find(holder) is mine
        assert len(getattr(called, "specializations", ())) <= 2
        return [*found, seen(mine)]

    assert told(st.compile) == told(lambda f: f)


@pytest.mark.parametrize("name", HOLDERS)
def test_a_parameter_that_something_holds(name: str) -> None:
    make, find = HOLDERS[name]

    def told(wrap: Callable[[Any], Any]) -> list[Any]:
        m = model()
        holder, old = make(m[0].weight), m[0].weight
        called, found = wrap(lambda x: (m(x), find(holder) is m[0].weight, find(holder) * 2)), []
        for _ in range(2):
            found += [seen(called(torch.ones(3, 2))) for _ in range(2)]
            m[0].weight = torch.nn.Parameter(torch.ones(2, 2))
        assert find(holder) is old
        return found

    assert told(st.compile) == told(lambda f: f)


def test_a_partial_that_is_the_function() -> None:
    m = model()
    region = st.compile(functools.partial(lambda w, x: (w is m[0].weight, x @ w), m[0].weight))
    assert region(torch.ones(3, 2))[0] is True and region.function.args == (m[0].weight,)


WEAK_TABLES: dict[str, Callable[[WeakTensorKeyDictionary, Tensor], Any]] = {
    "new": lambda table, x: table.__setitem__(x, x * 2),
    "a number": lambda table, x: table.__setitem__(TENSORS[0], 5.0),
    "gone": lambda table, x: table.pop(TENSORS[0]),
}


@pytest.mark.parametrize("name", WEAK_TABLES)
def test_a_weak_table_that_a_region_writes_to(name: str) -> None:
    table = _weak_keys(TENSORS[0])

    def f(x: Tensor) -> Tensor:
        WEAK_TABLES[name](table, x)
        return x * 2

    with pytest.raises(st.UnsupportedError, match="a table that holds tensors weakly"):
        st.compile(f)(TENSORS[1])
    assert [*table.items()] == [(TENSORS[0], 3)]


def test_a_weak_table_that_changes_between_calls() -> None:
    def told(wrap: Callable[[Any], Any]) -> list[Any]:
        table, found = WeakTensorKeyDictionary(), list[Any]()
        called = wrap(lambda x: (x * table.get(x, 1.0), x in table, len(table)))
        for change in (
            lambda: None,
            lambda: table.__setitem__(TENSORS[0], 2.0),
            lambda: table.__setitem__(TENSORS[1], 3.0),
            lambda: table.__setitem__(TENSORS[0], 4.0),
            lambda: table.pop(TENSORS[0]),
        ):
            change()
            found += [seen(called(t)) for t in TENSORS]
        return found

    assert told(st.compile) == told(lambda f: f)


@pytest.mark.parametrize("make", [dict, OrderedDict, WeakTensorKeyDictionary])
def test_a_caller_that_iterates_over_a_table_by_tensor(make: Callable[..., Any]) -> None:
    tensors = [torch.full((2,), 1.0 + k) for k in range(4)]
    table = make({t: k for k, t in enumerate(tensors)})
    region = st.compile(lambda x: x * len(table))
    assert [region(t).tolist() for t in table] == [[4.0 * (k + 1)] * 2 for k in range(4)]
    assert all(a is b for a, b in zip(table, tensors, strict=True))


# ---------------------------------------------------------------------------------------------- inner tensors of named wrappers
INNER: dict[str, Callable[[Any, Tensor], Any]] = {
    "compared": lambda t, b: (t.a is b, t.b is b, t * 2, b * 3),
    "written": lambda t, b: (b.add_(1), t.a is b, t * 2)[1:],
    "written through the wrapper": lambda t, b: (t.add_(1), t.a is b, b * 2)[1:],
}


@pytest.mark.parametrize("name", INNER)
def test_an_inner_tensor_of_a_wrapper_with_a_name_that_is_an_argument(name: str) -> None:
    def told(wrap: Callable[[Any], Any]) -> list[Any]:
        wrapper = old = TwoTensor(one(), one() * 2)
        called, found = wrap(lambda b: INNER[name](wrapper, b)), []
        for k in range(2):
            for b in (wrapper.a, wrapper.b, old.a, one(), wrapper.a):
                results = called(b)
                which = [[r is t for t in (wrapper, wrapper.a, wrapper.b, b)] for r in results]
                parts = [(r.a, r.b) if isinstance(r, TwoTensor) else r for r in results]
                found.append((which, seen(parts), seen([wrapper.a, wrapper.b, b])))
            wrapper = TwoTensor(one() * k, one())
        return found

    assert told(st.compile) == told(lambda f: f)


def test_the_gradient_of_a_wrapper_with_a_name_whose_inner_tensor_is_an_argument() -> None:
    def told(wrap: Callable[[Any], Any]) -> list[Any]:
        wrapper = TwoTensor(one(), one()).requires_grad_()
        called, found = wrap(lambda b: wrapper * (2 if wrapper.a is b else 3) + b), []
        for b in (wrapper.a, one(), wrapper.a):
            called(b).sum().backward(TwoTensor(torch.tensor(1.0), torch.tensor(2.0)))
            found.append(seen([wrapper.grad.a, wrapper.grad.b]))
        return found

    assert told(st.compile) == told(lambda f: f)
