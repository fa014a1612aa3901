"""What a context has from elsewhere: attributes of classes, classes themselves, globals of functions."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch

import subclass_trace as st

Tensor = torch.Tensor


class Scaled(Tensor):
    """``sin``, ``cos`` (the backward of ``sin``) and no other operation are multiplied with ``c.scale``."""

    a: Tensor
    c: Any

    @staticmethod
    def __new__(cls, a: Tensor, c: Any) -> Any:
        return Tensor._make_wrapper_subclass(cls, a.shape, strides=a.stride(), dtype=a.dtype)

    def __init__(self, a: Tensor, c: Any) -> None:
        self.a, self.c = a, c

    def __tensor_flatten__(self) -> Any:
        return ["a"], self.c

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"], context)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        c = next(t.c for t in args if isinstance(t, cls))
        out = func(*[t.a if isinstance(t, cls) else t for t in args], **(kwargs or {}))
        if func in (torch.ops.aten.sin.default, torch.ops.aten.cos.default):
            out = out * c.scale
        return cls(out, c)


def classes() -> tuple[Any, Any]:
    class Base:
        scale = 1.0
        made = 0
        late: Any

        def __init__(self) -> None:
            type(self).made += 1

    class Sub(Base):
        pass

    return Base, Sub


def check(wrap: Callable[[], Any], steps: list[Callable[[], Any]], specializations: int) -> None:
    """After each step, the region and its gradient are those of eager; twice."""
    compiled = st.compile(lambda x: x.sin())
    for step in steps:
        step()
        for _ in range(2):
            found = []
            for function in (torch.sin, compiled):
                x = Scaled(torch.tensor([0.5, 1.0]), wrap()).requires_grad_()
                y = function(x)
                y.backward(Scaled(torch.ones(2), x.c))
                assert x.grad is not None
                found.append((y.a, x.grad.a))
            torch.testing.assert_close(*found)
    assert len(compiled.specializations) == specializations


def test_attribute_of_the_class_and_of_its_bases() -> None:
    base, sub = classes()
    config = sub()
    steps = [
        lambda: None,
        lambda: setattr(base, "scale", 2.0),
        lambda: setattr(sub, "scale", 3.0),  # hides that of the base
        lambda: setattr(config, "scale", 4.0),  # and this one that of the class
        lambda: delattr(config, "scale"),
        lambda: delattr(sub, "scale"),
    ]
    check(lambda: config, steps, 4)  # the last two find those of 3.0 and 2.0


def test_attributes_that_the_class_is_given_later() -> None:
    class Plain:
        @property
        def scale(self) -> float:
            return getattr(self, "other", 1.0)

    config = Plain()
    check(lambda: config, [lambda: None, lambda: setattr(Plain, "other", 3.0)], 2)


def test_container_of_the_class() -> None:
    class Table:
        scales: ClassVar[list[float]] = [1.0]
        scale = property(lambda self: self.scales[0])

    config = Table()
    check(lambda: config, [lambda: None, lambda: Table.scales.__setitem__(0, 2.0)], 2)


def test_class_variable_of_a_dataclass() -> None:
    @dataclasses.dataclass
    class Config:
        bits: int = 8
        scale: ClassVar[float] = 1.0

    steps = [lambda: None, lambda: setattr(Config, "scale", 2.0), lambda: setattr(Config, "bits", 4)]
    check(lambda: Config(8), steps, 2)


def test_class_as_context() -> None:
    base, sub = classes()
    check(lambda: sub, [lambda: None, lambda: setattr(base, "scale", 2.0), lambda: setattr(sub, "scale", 3.0)], 3)


def test_class_inside_of_a_context() -> None:
    base, sub = classes()

    class Holder(tuple[Any, ...]):
        scale = property(lambda self: self[0].scale)

    held = Holder((sub,))
    check(lambda: held, [lambda: None, lambda: setattr(base, "scale", 2.0)], 2)


def test_enumeration_as_context() -> None:
    class Scale(enum.Enum):
        A = 1.0
        scale = property(lambda self: self.value)

    check(lambda: Scale.A, [lambda: None], 1)


RATE = 1.0
RATES = [1.0]


@pytest.mark.parametrize("nested", [False, True])
def test_global_of_a_function(nested: bool) -> None:
    class Config:
        def __init__(self) -> None:
            self.function = (lambda: [RATE * r for r in RATES][0]) if nested else (lambda: RATE * RATES[0])

        scale = property(lambda self: self.function())

    def rate(value: float) -> None:
        globals()["RATE"] = value

    config = Config()
    check(lambda: config, [lambda: rate(1.0), lambda: rate(2.0), lambda: RATES.__setitem__(0, 3.0)], 3)
    RATES[0] = 1.0


def test_the_guard_says_what_changed() -> None:
    base, sub = classes()
    compiled = st.compile(lambda x: x.sin())
    x = Scaled(torch.ones(2), sub())
    compiled(x)
    base.scale = 7.0
    compiled(x)
    assert "scale')]: expected 1.0, got 7.0" in compiled.explain()


class _Table:
    def __init__(self) -> None:
        self.scale = 1.0


def _of_class_data() -> dict[str, Callable[[], tuple[Any, list[Callable[[], Any]]]]]:
    """A class, and changes of what it holds; ``scale`` is what the operations read."""

    def holding(value: Any, scale: Callable[[Any], Any], change: Callable[[Any], Any]) -> Any:
        cls: Any = type("Holding", (), {"data": value, "scale": property(scale)})
        return cls, [lambda: None, lambda: change(cls)]

    def by_method() -> Any:
        class ByMethod:
            data = 1.0
            made = 0

            def __init__(self) -> None:
                type(self).made += 1

            @classmethod
            def found(cls) -> float:
                return cls.data

            @property
            def scale(self) -> float:
                return self.found()

        return ByMethod, [lambda: None, lambda: setattr(ByMethod, "data", 3.0)]

    def answered() -> Any:
        class Answered:
            def __getattr__(self, name: str) -> Any:
                if name == "scale":
                    return 3.0
                raise AttributeError(name)

        return Answered, [lambda: None, lambda: setattr(Answered, "scale", 9.0)]

    return {
        "an empty list": lambda: holding([], lambda s: 1.0 + len(s.data), lambda c: c.data.append(1)),
        "a set": lambda: holding({1}, lambda s: 2.0 if 2 in s.data else 1.0, lambda c: c.data.add(2)),
        "an object": lambda: holding(_Table(), lambda s: s.data.scale, lambda c: setattr(c.data, "scale", 5.0)),
        "by type(self)": lambda: holding(2.0, lambda s: type(s).data, lambda c: setattr(c, "data", 5.0)),
        "by a method of the class": by_method,
        "in place of __getattr__": answered,
    }


@pytest.mark.parametrize("make", _of_class_data().values(), ids=_of_class_data())
def test_what_a_class_holds_may_change(make: Callable[[], Any]) -> None:
    cls, steps = make()
    config = cls()
    check(lambda: config, steps, 2)
