"""What a region asks of its inputs beside their values is answered as in eager, and guarded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


def _leaf() -> Tensor:
    return torch.ones(2, requires_grad=True)


def _no_leaf() -> Tensor:
    return _leaf() * 1


def _parameter() -> Tensor:
    return nn.Parameter(torch.ones(2))


def _two() -> Tensor:
    return TwoTensor(torch.ones(2), torch.full((2,), 2.0))


def _wrapped_parameter() -> Tensor:
    return nn.Parameter(_two())


def _wrapped_leaf() -> Tensor:
    return _two().requires_grad_()


def _retains() -> Tensor:
    x = _no_leaf()
    x.retain_grad()
    return x


def _inference() -> Tensor:
    with torch.inference_mode():
        return torch.ones(2)


MAKE: dict[str, Callable[[], Tensor]] = {
    "constant": lambda: torch.ones(2),
    "leaf": _leaf,
    "no leaf": _no_leaf,
    "parameter": _parameter,
    "wrapped leaf": _wrapped_leaf,
    "wrapped parameter": _wrapped_parameter,
    "part": lambda: torch.ones(3)[1:],
    "member": lambda: (torch.ones(2, 2, requires_grad=True) * 1).unbind(0)[1],
    "retains": _retains,
    "inference": _inference,
    "buffer": lambda: nn.Buffer(torch.ones(2)),
}

ASKS: dict[str, Callable[[Tensor], Any]] = {
    "is_leaf": lambda x: x.is_leaf,
    "grad_fn": lambda x: x.grad_fn is None,
    "parameter": lambda x: isinstance(x, nn.Parameter),
    "view is_leaf": lambda x: x[:1].is_leaf,
    "detached": lambda x: x.detach().is_leaf and not isinstance(x.detach(), nn.Parameter),
    "storage_offset": lambda x: x.storage_offset() == 1,
    "grad": lambda x: x.grad is None,
    "is_inference": lambda x: x.is_inference(),
    "nbytes": lambda x: x.nbytes == 8,
    "buffer": lambda x: isinstance(x, nn.Buffer),
}


def _same(a: Any, b: Any) -> None:
    for p, q in zip(a.__tensor_flatten__()[0], b.__tensor_flatten__()[0], strict=True) if hasattr(a, "a") else ():
        _same(getattr(a, p), getattr(b, q))
    if not hasattr(a, "a"):
        torch.testing.assert_close(a, b)


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("ask", ASKS)
def test_answers_are_those_of_eager(ask: str, grad: bool) -> None:
    def function(x: Tensor) -> Tensor:
        return x * 2 if ASKS[ask](x) else x * 3

    region = st.compile(function)
    makers = [m for name, m in MAKE.items() if not (ask == "view is_leaf" and "wrapped" in name)]
    for make in [*makers, *reversed(makers)]:  # in two orders, each served by what was made before
        x = make()
        with torch.set_grad_enabled(grad):
            _same(region(x), function(x))


@pytest.mark.parametrize("first", [0, 1])
def test_a_storage_offset_that_is_read_is_guarded(first: int) -> None:
    def function(x: Tensor) -> Tensor:
        return x + x[1:].storage_offset()

    region, base = st.compile(function), torch.zeros(5)
    for start in (first, 1 - first, first, 2):
        x = base[start : start + 2]
        torch.testing.assert_close(region(x), function(x))
    assert len(region.specializations) == 3


def test_an_input_that_is_returned_keeps_its_own_type() -> None:
    x = nn.Parameter(torch.ones(2))
    region = st.compile(lambda x: (x, x.detach(), x.view(1, 2)))
    for _ in range(2):
        same, detached, view = region(x)
        assert same is x and not isinstance(detached, nn.Parameter) and not isinstance(view, nn.Parameter)
        assert all("_is_param" not in vars(t) for t in (detached, view))


def test_a_leaf_that_was_written_is_no_leaf() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(y)
        return x * 2 if x.is_leaf or x.grad_fn is None else x * 3

    region = st.compile(function)
    for _ in range(2):
        torch.testing.assert_close(region(torch.ones(2), _leaf()), function(torch.ones(2), _leaf()))


@pytest.mark.parametrize("function", [lambda x: x * 2 if x.grad is None else x * 3])
@pytest.mark.parametrize("make", [_leaf, _parameter, _wrapped_leaf, lambda: torch.ones(2)])
def test_a_gradient_that_a_region_asks_for(function: Callable[[Tensor], Tensor], make: Callable[[], Tensor]) -> None:
    region = st.compile(function)
    for given in (False, False, True, True, False):
        seen, outs = [], []
        for call in (function, region):
            x = make()
            x.grad = gradient = make().detach() if given else None
            outs.append(call(x))
            seen.append((x.grad is None, x.grad is gradient))
        _same(*outs)
        assert seen[0] == seen[1]
    assert len(region.specializations) == 2


def test_retain_grad_in_a_region() -> None:
    def of_input(x: Tensor) -> Tensor:
        x.retain_grad()
        return x * 2

    def of_result(x: Tensor) -> tuple[Tensor, Tensor]:
        h = x * 2
        h.retain_grad()
        return h, h * 3

    region = st.compile(of_input)
    x = _leaf()
    region(x).sum().backward()
    assert x.grad.tolist() == [2, 2]
    with pytest.raises(st.UnsupportedError, match="asks for retain_grad"):
        region(_no_leaf())
    with pytest.raises(st.UnsupportedError, match=r"retain_grad\(\) on a result"):
        st.compile(of_result)(_leaf())


def _tagged(**attributes: object) -> Tensor:
    x = torch.ones(2)
    vars(x).update(attributes)
    return x


def test_a_parameter_that_the_region_makes() -> None:
    for value in (_two(), torch.ones(2)):
        with pytest.raises(st.UnsupportedError, match="autograd leaf, and returns it"):
            st.compile(nn.Parameter)(value)


# ---------------------------------------------------------------------------------------------- Python attributes
def _tagged_two(**attributes: object) -> Tensor:
    x = _two()
    vars(x).update(attributes)
    return x


def _counts(x: Tensor) -> Tensor:
    x.tag = getattr(x, "tag", 0) + 1
    return x * x.tag


def _keeps(x: Tensor) -> Tensor:
    x.kept = x * 2
    return x * 3


USES: list[Callable[[Tensor], Any]] = [
    lambda x: x * getattr(x, "tag", 5),
    lambda x: x * (2 if hasattr(x, "tag") else 3),
    _counts,
    _keeps,
]


@pytest.mark.parametrize("make", [_tagged, _tagged_two])
@pytest.mark.parametrize("function", USES)
def test_attributes_that_the_user_set_on_an_input(
    function: Callable[[Tensor], Any], make: Callable[..., Tensor]
) -> None:
    region = st.compile(function)
    for attributes in ({}, {"tag": 3}, {"tag": 4}, {"tag": 2.5}, {}, {"tag": 3}):
        seen = []
        for call in (function, region):
            x = make(**attributes)
            seen.append((str(call(x)), str(vars(x))))
        assert seen[0] == seen[1]


def test_a_tensor_that_is_kept_on_an_input_is_differentiable() -> None:
    x = _leaf()
    st.compile(_keeps)(x)
    x.kept.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


# ---------------------------------------------------------------------------------------------- what no guard can tell
UNANSWERABLE: dict[str, Callable[[Tensor], Any]] = {
    "_version": lambda x: x._version,
    "_version of an input": lambda x: x.detach()._version,
    "storage": lambda x: x.untyped_storage().nbytes(),
}


@pytest.mark.parametrize("what", UNANSWERABLE)
def test_a_question_without_an_answer_is_refused(what: str) -> None:
    region = st.compile(lambda x: (x * 2, UNANSWERABLE[what](x))[0])
    with pytest.raises(st.UnsupportedError, match=what) as caught:
        region(torch.ones(3)[1:])
    assert "args[0]" in str(caught.value) or "test_metadata_reads" in str(caught.value)


@pytest.mark.parametrize(
    "ask", [lambda x: x._base is None, lambda x: x.view(-1)._base is x], ids=["of an input", "of a view"]
)
def test_the_base_of_a_view_is_asked_of_the_real_tensor(ask: Callable[[Tensor], Any]) -> None:
    region = st.compile(lambda x: x * 2 if ask(x) else x * 3)
    for x in (torch.ones(2), torch.ones(3)[1:], torch.ones(2)):
        torch.testing.assert_close(region(x), x * 2 if ask(x) else x * 3)
