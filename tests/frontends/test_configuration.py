"""Where programs keep what they are configured with: a region sees a change of it, as eager does."""

from __future__ import annotations

import argparse
import collections
import contextvars
import functools
import importlib
import itertools
import operator
import os
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import subclass_trace as st

Tensor = torch.Tensor
Case = tuple[Callable[[Tensor], Tensor], Sequence[Callable[[], Any]]]
CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


def sets(holder: Any, name: str, value: Any) -> Callable[[], Any]:
    return lambda: setattr(holder, name, value)


# ---------------------------------------------------------------------------------------------- namespaces
@case
def a_namespace() -> Case:
    args = argparse.Namespace(lr=2.0, dims=[1.0, {"a": 3.0}], inner=argparse.Namespace(k=1.0))
    return lambda x: x * args.lr * args.dims[1]["a"] * args.inner.k, [
        sets(args, "lr", 5.0),
        lambda: args.dims[1].update(a=4.0),
        sets(args.inner, "k", 7.0),
        sets(args, "inner", argparse.Namespace(k=8.0)),
    ]


@case
def a_namespace_of_a_module() -> Case:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.args = argparse.Namespace(k=2.0)

        def forward(self, x: Tensor) -> Tensor:
            args = self.args
            return x * args.k if hasattr(args, "k") else x

    net = Net()
    return net, [sets(net.args, "k", 5.0), lambda: delattr(net.args, "k"), sets(net.args, "k", 6.0)]


@case
def tensors_and_modules_of_a_namespace() -> Case:
    args = argparse.Namespace(w=torch.ones(()), net=nn.Linear(1, 1, bias=False).requires_grad_(False))
    nn.init.constant_(args.net.weight, 3.0)

    def rebind() -> None:
        args.net = nn.Linear(1, 1, bias=False).requires_grad_(False)
        nn.init.constant_(args.net.weight, 4.0)

    return lambda x: args.net(x.view(1)) * args.w, [
        sets(args, "w", torch.full((), 5.0)),
        lambda: args.net.weight.data.mul_(2),
        rebind,
    ]


@case
def a_namespace_as_a_whole() -> Case:
    args = argparse.Namespace(k=1.0)
    return lambda x: x * len(vars(args)) * (2 if "extra" in args else 1), [sets(args, "extra", 1), sets(args, "j", 1)]


@case
def what_a_function_of_autograd_reads() -> Case:
    args = argparse.Namespace(k=1.0)

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * args.k  # type: ignore[no-any-return]

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            return grads[0] * args.k

    return lambda x: Scale.apply(x), [sets(args, "k", 3.0), sets(Scale, "forward", staticmethod(lambda ctx, x: x * 7))]  # type: ignore[no-untyped-call, no-any-return]


@case
def attributes_of_each_thread() -> Case:
    local = threading.local()
    local.k = 2.0
    return lambda x: x * local.k, [sets(local, "k", 5.0)]


# ---------------------------------------------------------------------------------------------- containers
class Table(collections.UserDict[str, Any]):
    factor = 2.0


@case
def objects_in_other_containers() -> Case:
    table = Table(a=types.SimpleNamespace(k=1.0))
    chain = collections.ChainMap({"b": types.SimpleNamespace(k=1.0)})
    held = weakref.ref(Table)
    return lambda x: x * table["a"].k * chain["b"].k * table.factor * held().factor, [  # type: ignore[union-attr]
        sets(table["a"], "k", 2.0),
        sets(chain["b"], "k", 3.0),
        lambda: table.update(a=types.SimpleNamespace(k=4.0)),
        sets(table, "factor", 5.0),
    ]


@case
def a_deep_dict() -> Case:
    table: Any = 1.0
    for _ in range(8):
        table = {"a": [table]} if isinstance(table, float) else {"a": table}
    held = table

    def deepest() -> Any:
        found = held
        while isinstance(found, dict):
            found = found["a"]
        return found

    return lambda x: x * deepest()[0], [lambda: deepest().__setitem__(0, 2.0)]


@case
def the_order_of_a_dict() -> Case:
    table = collections.OrderedDict(a=1.0, b=2.0)
    return lambda x: x * next(iter(table.values())), [lambda: table.move_to_end("a")]


@case
def a_list_bound_by_a_partial() -> Case:
    held = [2.0]
    inner = functools.partial(lambda k, x: x * k[0], held)
    return lambda x: inner(x), [lambda: held.__setitem__(0, 5.0), lambda: held.insert(0, 7.0)]


class Settings(Mapping[str, Any]):
    """As the configuration objects of some libraries."""

    __module__ = "pytest"

    def __init__(self, **held: Any) -> None:
        self.__dict__["_held"] = held

    def __getitem__(self, key: str) -> Any:
        return self._held[key]

    def __getattr__(self, key: str) -> Any:
        return self.__dict__["_held"][key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)


@case
def the_mapping_of_a_library() -> Case:
    settings = Settings(k=1.0, inner=Settings(k=3.0))

    def function(x: Tensor) -> Tensor:
        inner = settings.inner
        return x * settings["k"] * inner.k * settings.get("later", 1.0)  # type: ignore[no-any-return]

    return function, [
        lambda: settings._held.update(k=2.0),
        lambda: settings.inner._held.update(k=5.0),
        lambda: settings._held.update(later=7.0),
    ]


# ---------------------------------------------------------------------------------------------- what torch and Python hold
@case
def a_scheduler() -> Case:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(()))], lr=2.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0 / (epoch + 1))

    def step() -> None:
        optimizer.step()
        scheduler.step()

    return lambda x: x * scheduler.get_last_lr()[0] + scheduler.last_epoch, [step, step]


@case
def variables_around_the_program() -> Case:
    var = contextvars.ContextVar[float]("var")
    os.environ.pop("OF_A_TEST", None)

    def function(x: Tensor) -> Tensor:
        return x * var.get(2.0) * float(os.environ.get("OF_A_TEST", "3")) * len(os.getenv("OF_A_TEST") or "a")

    return function, [
        lambda: var.set(5.0),
        lambda: os.environ.__setitem__("OF_A_TEST", "11"),
        lambda: os.environ.pop("OF_A_TEST"),
    ]


@case
def a_function_for_each_type() -> Case:
    @functools.singledispatch
    def factor(value: Any) -> float:
        return 1.0

    return lambda x: x * factor(3), [lambda: factor.register(int, lambda value: 5.0)]


@case
def getters() -> Case:
    held = types.SimpleNamespace(k=1.0)
    return lambda x: x * operator.attrgetter("k")(held), [sets(held, "k", 2.0)]


@case
def what_a_python_module_computes() -> Case:
    module: Any = types.ModuleType("of_the_user")
    exec("table = {}\ndef __getattr__(name): return table.get(name, 3.0)\n", module.__dict__)
    return lambda x: x * module.K, [lambda: module.table.update(K=7.0), sets(module, "K", 2.0)]


@case
def what_an_object_computes() -> Case:
    class Held:
        def __init__(self) -> None:
            self.table = {"k": 1.0}

        def __getattr__(self, name: str) -> Any:
            return self.__dict__["table"][name]

    held = Held()
    return lambda x: x * held.k, [lambda: held.table.update(k=7.0), sets(held, "k", 2.0)]


@case
def a_global_that_comes_later() -> Case:
    globals().pop("LATER", None)

    def function(x: Tensor) -> Tensor:
        try:
            return x * LATER * globals()["LATER"]  # type: ignore[name-defined, no-any-return]
        except NameError:
            return x

    return function, [lambda: globals().update(LATER=2.0), lambda: globals().update(LATER=3.0)]


@case
def settings_of_an_optimizer() -> Case:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(()))], lr=2.0)
    return lambda x: x * optimizer.defaults["lr"], [lambda: optimizer.defaults.update(lr=5.0)]


@case
def an_attribute_that_a_class_overrides() -> Case:
    class Base:
        table = {"k": 1.0}

        @classmethod
        def get(cls) -> float:
            return cls.table["k"]

    class Last(Base):
        pass

    return lambda x: x * Last.get(), [sets(Last, "table", {"k": 2.0}), lambda: delattr(Last, "table")]


@case
def an_attribute_of_a_metaclass() -> Case:
    class Meta(type):
        k = 2.0

    class Held(metaclass=Meta):
        pass

    return lambda x: x * Held.k, [sets(Meta, "k", 5.0), sets(Held, "k", 7.0)]


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_seen(name: str) -> None:
    rows = []
    for compile in (lambda f: f, st.compile):
        function, changes = CASES[name]()
        compiled = compile(function)
        rows.append([float(compiled(torch.ones(())))])
        for change in changes:
            change()
            rows[-1] += [float(compiled(torch.ones(()))) for _ in range(2)]
    assert rows[0] == rows[1]
    assert len(set(rows[0])) > 1  # the changes matter


# ---------------------------------------------------------------------------------------------- imports inside of functions
def with_imports(x: Tensor) -> Tensor:
    import of_a_test.inner as inner  # type: ignore[import-not-found]
    from of_a_test import K, scale

    k = importlib.import_module("of_a_test.inner").M
    return scale(x) * K * k * inner.L  # type: ignore[no-any-return]


def test_imports_inside_of_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_a_test").mkdir()
    (tmp_path / "of_a_test" / "__init__.py").write_text(
        "K = 2.0\ndef scale(x):\n    from .inner import L\n    from . import inner\n    return x * K * L * inner.M\n"
    )
    (tmp_path / "of_a_test" / "inner.py").write_text("L = 3.0\nM = 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    region, x = st.compile(with_imports), torch.ones(())
    try:
        assert [float(region(x)) for _ in range(3)] == [36.0] * 3  # the first call imports
        count = len(region.specializations)
        package = sys.modules["of_a_test"]
        for module, name, value in ((package, "K", 5.0), (package.inner, "L", 7.0), (package.inner, "M", 2.0)):  # fmt: skip
            monkeypatch.setattr(module, name, value)
            assert float(region(x)) == float(with_imports(x))
        monkeypatch.setattr(package, "scale", lambda x: x * 11)
        assert float(region(x)) == float(with_imports(x)) == 11 * 5 * 2 * 7
        assert len(region.specializations) == count + 4
    finally:
        for name in ("of_a_test", "of_a_test.inner"):
            sys.modules.pop(name, None)


# ---------------------------------------------------------------------------------------------- iterators
class Takes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = iter([1.0, 2.0])

    def forward(self, x: Tensor) -> Tensor:
        return x * next(self.numbers, 0.0)


def taking(kind: str) -> tuple[Callable[[Tensor], Tensor], Any]:
    count, numbers = itertools.count(1), (float(k) for k in range(3))
    if kind == "count":
        return lambda x: x * next(count), count
    if kind == "generator":
        return lambda x: sum((x * v for v in numbers), x), numbers
    if kind == "caught":

        def function(x: Tensor) -> Tensor:
            try:
                return x * next(count)
            except Exception:
                return x

        return function, count
    net = Takes()
    return net, net.numbers


@pytest.mark.parametrize("kind", ["count", "generator", "caught", "module"])
def test_items_of_an_iterator_are_refused(kind: str) -> None:
    function, iterator = taking(kind)
    with pytest.raises(st.errors.UnsupportedError, match=r"takes an item(.|\n)*(count|numbers)"):
        st.compile(function)(torch.ones(()))
    assert next(iterator) in (0, 1)  # nothing was taken
    assert not isinstance(function, Takes) or function.numbers is iterator


def test_an_iterator_that_only_stands_there() -> None:
    count = itertools.count()

    def function(x: Tensor) -> Tensor:
        numbers = iter([2.0, 3.0])
        return x * next(numbers) * next(numbers) if count is not None else x

    assert float(st.compile(function)(torch.ones(()))) == 6
    assert next(count) == 0


def test_what_is_set_up_in_the_first_call() -> None:
    class Shared:
        instance: Any = None
        k = 1.0

        @classmethod
        def get(cls) -> Any:
            if cls.instance is None:
                cls.instance = cls()
            return cls.instance

    region = st.compile(lambda x: x * Shared.get().k)
    assert [float(region(torch.ones(()))) for _ in range(3)] == [1.0] * 3
    Shared.instance.k = 5.0
    assert [float(region(torch.ones(()))) for _ in range(2)] == [5.0] * 2
    assert len(region.specializations) == 3


# ---------------------------------------------------------------------------------------------- what a function does there
def holders() -> dict[str, Any]:
    def function() -> None:
        """Only its attributes count."""

    return {
        "namespace": argparse.Namespace(),
        "python module": types.ModuleType("of_a_test"),
        "function": function,
        "thread": threading.local(),
    }


@pytest.mark.parametrize("kind", holders())
def test_what_is_assigned_to_attributes(kind: str) -> None:
    rows = []
    for compile in (lambda f: f, st.compile):
        held = holders()[kind]
        held.calls = held.read = 0

        def function(x: Tensor, held: Any = held) -> Tensor:
            held.calls += 1
            held.read += 1
            if not hasattr(held, "ready"):
                held.ready = True
                return x * 5
            return x * held.read  # type: ignore[no-any-return]

        def around(x: Tensor, function: Any = function, held: Any = held) -> Tensor:
            return function(x)  # type: ignore[no-any-return]

        called = compile(around)
        rows.append([(float(called(torch.ones(()))), held.calls, held.read, held.ready) for _ in range(3)])
    assert rows[0] == rows[1] == [(5.0, 1, 1, True), (2.0, 2, 2, True), (3.0, 3, 3, True)]


@pytest.mark.parametrize("kind", [*holders(), "context"])
def test_a_tensor_does_not_escape_there(kind: str) -> None:
    held = holders().get(kind)
    var = contextvars.ContextVar("var", default=0)

    def function(x: Tensor) -> Tensor:
        if held is None:
            var.set(x * 2)  # type: ignore[arg-type]
        else:
            held.found = x * 2
        return x * var.get()

    with pytest.raises(st.errors.UnsupportedError, match="escapes"):
        st.compile(function)(torch.ones(()))
    assert not hasattr(held, "found") and var.get() == 0
