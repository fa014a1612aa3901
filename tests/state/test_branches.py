"""What a branch of `torch.cond` reaches by more than its own names: Dynamo looks at it, so its code is read too."""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import subclass_trace as st

Tensor = torch.Tensor


class Held:
    text: str


def read() -> int:
    return len(Held.text)


def around(f: Callable[[], int]) -> Callable[[], int]:
    def inner() -> int:
        return f()

    return inner


@contextlib.contextmanager
def managed() -> Iterator[int]:
    yield read()


@torch.no_grad()
def without_grad() -> int:
    return read()


def by_default(f: Callable[[], int] = read) -> int:
    return f()


def in_managed() -> int:
    with managed() as n:
        return n


class Object:
    """An object with all ways to code."""

    def __init__(self) -> None:
        self.held = read

    def method(self) -> int:
        return read()

    @property
    def given(self) -> int:
        return read()

    @staticmethod
    def static() -> int:
        return read()

    def __call__(self) -> int:
        return read()


class Below(Object):
    pass


class Module(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * read()


class Outer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Module()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


LIST, DICT, OBJECT, BELOW = [read], {"a": read}, Object(), Below()
WRAPPED, PARTIAL, BOUND, MODULE = around(read), functools.partial(around(read)), OBJECT.method, Outer()
OTHER: Any = types.ModuleType("zz_other")
OTHER.Held, OTHER.me = Held, OTHER
exec("def read():\n    return len(Held.text)", OTHER.__dict__)

BRANCHES: dict[str, Any] = {
    "a list": lambda x: x * LIST[0](),
    "a dict": lambda x: x * DICT["a"](),
    "a closure": lambda x: x * WRAPPED(),
    "a partial": lambda x: x * PARTIAL(),
    "a default": lambda x: x * by_default(),
    "a context manager": lambda x: x * in_managed(),
    "a decorator of torch's": lambda x: x * without_grad(),
    "a bound method": lambda x: x * BOUND(),
    "a method": lambda x: x * OBJECT.method(),
    "a property": lambda x: x * OBJECT.given,
    "a static method": lambda x: x * Object.static(),
    "a base class": lambda x: x * BELOW.method(),
    "a new object": lambda x: x * Object().method(),
    "an attribute": lambda x: x * OBJECT.held(),
    "a callable object": lambda x: x * OBJECT(),
    "another module": lambda x: x * OTHER.read(),
    "another module by itself": lambda x: x * OTHER.me.read(),
    "a layer": lambda x: MODULE(x),
    "a layer as the branch": MODULE,
}


#: code of a library that calls code of the user's
EAGERLY = ("a context manager", "a decorator of torch's")


@pytest.mark.parametrize("way", BRANCHES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.sweep(every=4)
def test_what_the_code_behind_reads(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call after a change is eager's, and one without a change is no new specialization; or it runs eagerly."""
    monkeypatch.setitem(sys.modules, "zz_other", OTHER)
    region = st.compile(lambda x: torch.cond(x.sum() > 0, BRANCHES[way], lambda x: x.clone(), (x,)), frontend="trace")
    for k, text in enumerate(("aa", "aa", "aaa", "aaaa")):
        monkeypatch.setattr(Held, "text", text, raising=False)
        assert region(torch.ones(2)).tolist() == [len(text)] * 2
        assert k > 1 or len(region.specializations) == (way not in EAGERLY)
