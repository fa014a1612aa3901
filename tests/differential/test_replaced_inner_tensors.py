"""An argument is changed in place under autograd, and one of its inner tensors is replaced in the region as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracle import Inputs, backward_of, check
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map_only

Tensor = torch.Tensor
aten = torch.ops.aten


class Replacing(torch.Tensor):
    """``add_`` gives it another inner tensor, as some quantised classes do."""

    data_: Tensor

    @staticmethod
    def __new__(cls, data: Tensor) -> Replacing:
        self = Tensor._make_wrapper_subclass(cls, data.shape, strides=data.stride(), dtype=data.dtype)
        self.data_ = data
        return self

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["data_"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, Tensor], context: Any, size: Any, stride: Any) -> Replacing:
        return cls(inner["data_"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inner, kwargs = tree_map_only(cls, lambda x: x.data_, (args, kwargs or {}))
        if func is aten.add_.Tensor:
            args[0].data_ = inner[0] + inner[1]
            return args[0]
        out = tree_map_only(Tensor, cls, func(*inner, **kwargs))
        return return_and_correct_aliasing(func, args, kwargs, out)


def _set(x: Any, w: Any) -> Any:
    x.mul_(w)
    x.a = x.a * 2
    return x


def _set_before(x: Any, w: Any) -> Any:
    x.a = x.a * 2
    x.mul_(w)


def _set_twice_read(x: Any, w: Any) -> Any:
    x.mul_(w)
    x.a = x.a.t().contiguous()
    return x * 2, x[0]


def _one_for_both(x: Any, w: Any) -> Any:
    x.mul_(w)
    x.b = x.a


def _that_of_another(x: Any, w: Any) -> Any:
    x.mul_(w)
    x.b = w.a


def _view_of_another(x: Any, w: Any) -> Any:
    x.mul_(w)
    x.b = w.a[:]


def _written_as_view(x: Any, w: Any) -> Any:
    x[1:].mul_(w[1:])
    x.a = x.a * 2


def _deep(x: Any, w: Any) -> Any:
    x.mul_(w)
    x.b.a = x.b.a * 2


def _through_view(x: Any, w: Any, v: Any) -> Any:
    v.mul_(w)
    x.a = x.a * 2


def _data(x: Any, w: Any) -> Any:
    x.mul_(w)
    x.data = x.data * 2


def _replaced_by_class(x: Any, w: Any) -> Any:
    x.add_(w)
    return x * 2


def _by_class_and_again(x: Any, w: Any) -> Any:
    x.mul_(w)
    x.add_(1)
    x.mul_(3)


def _zeroed(x: Any, w: Any) -> Any:
    x.add_(w)
    x.zero_()


def _random(call: int, k: int) -> Tensor:
    return torch.randn(3, 3, generator=torch.Generator().manual_seed(10 * call + k))


MAKERS: dict[str, Callable[[int, int], Tensor]] = {
    "dense": _random,
    "two": lambda call, k: TwoTensor(_random(call, k), _random(call, k + 5)),
    "nested": lambda call, k: TwoTensor(MAKERS["two"](call, k), MAKERS["two"](call, k + 2)),
    "replacing": lambda call, k: Replacing(_random(call, k)),
}
CASES = [
    *((f, "two") for f in (_set, _set_before, _set_twice_read, _one_for_both, _that_of_another, _view_of_another)),
    *((f, "two") for f in (_written_as_view, _data)),
    *((f, "nested") for f in (_set, _deep)),
    *((f, "replacing") for f in (_replaced_by_class, _by_class_and_again, _zeroed)),
    (_data, "dense"),
]


def _check(program: Callable[..., Any], kind: str, arguments: Callable[[Tensor, Tensor], tuple[Tensor, ...]]) -> None:
    def make(call: int) -> Inputs:
        root, w = (MAKERS[kind](call, k).requires_grad_() for k in range(2))
        return Inputs(arguments(root * 1, w), (root, w))

    def returned(*args: Any) -> Any:
        return program(*args), args[0]

    for chosen in (0, -1):  # a result of the program, then the argument itself
        check(returned, make, backward=backward_of((chosen,)), specializations=1)


@pytest.mark.parametrize("view", [False, True], ids=["value", "view"])
@pytest.mark.parametrize(("program", "kind"), CASES, ids=[f"{f.__name__[1:]}-{kind}" for f, kind in CASES])
def test_the_argument_has_the_history_of_what_changed_it(program: Callable[..., Any], kind: str, view: bool) -> None:
    _check(program, kind, lambda x, w: (x.view(3, 3) if view else x, w))
