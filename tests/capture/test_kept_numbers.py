"""Wrappers that keep numbers in their contexts which a region computes of sizes: each size gets a specialization."""

from __future__ import annotations

import importlib
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

import subclass_trace as st
from subclass_trace.state.code_names import is_called_only

Tensor = torch.Tensor
aten = torch.ops.aten


class Gain(torch.Tensor):
    """``data * gain``: a product with a number is one of the gain alone."""

    data_: Tensor

    @staticmethod
    def __new__(cls, data: Tensor, gain: float) -> Gain:
        self = Tensor._make_wrapper_subclass(cls, data.shape, strides=data.stride(), dtype=data.dtype)
        self.data_, self.gain, self.label = data, gain, "none"
        return self

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["data_"], {"gain": self.gain}

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, Tensor], context: Any, size: Any, stride: Any) -> Gain:
        return cls(inner["data_"], context["gain"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        x = args[0]
        if func is aten.mul.Tensor and isinstance(x, cls) and not isinstance(args[1], Tensor):
            return cls(x.data_.clone(), x.gain * args[1])
        if func.is_view:
            return return_and_correct_aliasing(func, args, kwargs, cls(func(x.data_, *args[1:]), x.gain))
        args, kwargs = tree_map_only(cls, lambda t: t.data_ * t.gain, (args, kwargs or {}))
        return func(*args, **kwargs)


def _of_two(x: Any) -> Any:
    return x * x.shape[0] * (1 / x.shape[1]), x[1:] * x.shape[0]


def _power(x: Any) -> Any:
    return x * x.shape[0] ** -0.5


def _int(x: Any) -> Any:
    return x * int(x.shape[0])


PROGRAMS = [_power, _int, _of_two]


def _seen(*values: Any) -> list[Any]:
    return [
        (type(t), t.gain, t.label, t.data_.tolist()) if isinstance(t, Gain) else t.tolist()
        for t in tree_leaves(values)
        if isinstance(t, Tensor)
    ]


@pytest.mark.parametrize("gain", [3, 0.1])
@pytest.mark.parametrize("program", PROGRAMS)
def test_each_size_has_the_number_of_eager(program: Callable[[Any], Any], gain: float) -> None:
    region = st.compile(program)
    for n in (2, 3, 4, 3, 2):
        a, b = (Gain(torch.arange(3.0 * n).view(n, 3), gain) for _ in range(2))
        assert _seen(region(a), a) == _seen(program(b), b)
    assert len(region.specializations) <= 3


def test_gradients_of_such_a_product() -> None:
    program: Callable[[Any], Any] = lambda x: x * (1 / x.shape[0])
    region = st.compile(program)
    for n in (2, 3, 4):
        grads = []
        for f in (program, region):
            x = Gain(torch.ones(n, 3), 0.1).requires_grad_()
            f(x).sum().backward()
            assert x.grad is not None
            grads += _seen(x.grad)
        assert grads[0] == grads[1]


@pytest.mark.parametrize("program", [lambda x: x * x.data_.sum().item()])
def test_numbers_from_inside_tensors_are_refused(program: Callable[[Any], Any]) -> None:
    with pytest.raises(st.UnsupportedError, match="a wrapper keeps a number that is computed of others"):
        st.compile(program)(Gain(torch.ones(2, 3), 0.1))


def _inside(x: Tensor, i: Tensor) -> Any:
    return x * float(x.sum()), x[int(i)] + float(i) / 3, float(x.sum()) * 2


@pytest.mark.skipif(sys.version_info < (3, 11), reason="code does not tell that float and int are only called")
def test_numbers_inside_tensors_by_the_classes_of_python() -> None:
    region = st.compile(_inside, frontend="trace")
    for n in range(3):
        x, i = torch.arange(3.0) * n - 1, torch.tensor(n)
        assert _seen(region(x, i)[:2]) == _seen(_inside(x, i)[:2]) and region(x, i)[2] == _inside(x, i)[2]
    assert len(region.specializations) == 1
    with pytest.raises(ValueError, match="one element"):
        st.compile(lambda x: x * float(x))(torch.ones(2))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="code does not tell that float and int are only called")
@pytest.mark.parametrize(
    ("text", "only_called"),
    [
        ("def f(n): return float(n)\nclass A:\n    x = [float(1)]", True),
        # from 3.14 on annotations are functions, which any thread may call
        ("def f(n: float = 1.0) -> float: return float(n)\nclass A:\n    x = float", sys.version_info < (3, 14)),
        ("def f(n): return float(n)\ndef g(v): return type(v) is float", False),
        ("def f(n): return float(n)\nclass A:\n    def g(self, v): return isinstance(v, float)", False),
        ("def f(n): return float(n)\ng = lambda v: list(map(float, v))", False),
    ],
)
def test_classes_of_numbers_that_other_threads_could_tell_apart(
    text: str, only_called: bool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands for ``float`` in the globals of a module is there for all threads, if no code does more than call it."""
    name = f"numbers_{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module(name)
    assert is_called_only(module, "float") is only_called
    region = st.compile(lambda x, n: x * module.f(n), frontend="trace")
    for n in range(3):
        assert region(torch.ones(2), n).equal(torch.ones(2) * float(n))
    assert len(region.specializations) == (2 if only_called else 3)
