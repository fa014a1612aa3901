"""A kernel refuses what its fake kernel took: the error is the kernel's, with the user's line and paths added."""

from __future__ import annotations

import traceback

import pytest
import torch

import subclass_trace as st
from subclass_trace.backends.eager.blame import Blame
from subclass_trace.frontends.dynamo import register
from subclass_trace.zoo import TwoTensor

aten = torch.ops.aten


class Refusal(Exception):
    """What a kernel raises."""


@pytest.fixture(scope="module")
def picky():
    """An operation whose kernel refuses negative numbers, which a fake tensor does not have."""
    library = torch.library.Library("st_blame", "DEF")
    library.define("picky(Tensor x, Tensor y) -> Tensor")

    def kernel(x, y):
        if bool((x < 0).any()):
            raise Refusal("negative numbers")
        return x * y

    library.impl("picky", kernel, "CPU")
    library.impl("picky", lambda x, y: torch.empty_like(x), "Meta")
    torch.library.register_autograd(
        "st_blame::picky",
        lambda ctx, g: (torch.ops.st_blame.picky(g, ctx.saved_tensors[0]), None),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[1]),
        lib=library,
    )
    yield torch.ops.st_blame.picky
    library._destroy()


def text(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error))


def scaled(picky, x, w):
    return picky(x.cos(), w) + 1  # the line


def front_ends():
    def through_dynamo(f):
        register()
        torch.compiler.reset()
        return torch.compile(f, backend="subclass_trace", fullgraph=True)

    return {"functional": st.compile, "dynamo": through_dynamo}


@pytest.mark.parametrize("front_end", ["functional", "dynamo"])
def test_the_forward(picky, front_end: str) -> None:
    compiled = front_ends()[front_end](lambda x, w: scaled(picky, x, w))
    w = TwoTensor(torch.ones(3), torch.full((3,), 2.0))
    torch.testing.assert_close(compiled(torch.zeros(3), w.a), torch.full((3,), 2.0))
    with pytest.raises(Refusal, match="^negative numbers") as caught:
        compiled(torch.full((3,), 3.0), w.a)
    found = text(caught.value)
    assert "in the compiled forward, at st_blame.picky.default" in found
    line = scaled.__code__.co_firstlineno + 1
    assert f"where:    {__file__}:{line} in scaled: return picky(x.cos(), w) + 1" in found
    assert "operand:  args[1]: float32[3], stride [1], cpu" in found


def test_an_inner_tensor_is_named_by_its_path(picky) -> None:
    def inner(x):
        return picky(x.a, x.b)

    compiled = st.compile(inner)
    good = TwoTensor(torch.ones(2), torch.ones(2))
    compiled(good)
    with pytest.raises(Refusal) as caught:
        compiled(TwoTensor(-torch.ones(2), torch.ones(2)))
    assert "operand:  args[0].a: float32[2]" in text(caught.value)
    assert "operand:  args[0].b: float32[2]" in text(caught.value)


def test_the_backward_names_the_line_of_the_forward(picky) -> None:
    compiled = st.compile(lambda x, w: scaled(picky, x, w))
    x = torch.zeros(3, requires_grad=True)
    with pytest.raises(Refusal) as caught:
        compiled(x, torch.ones(3)).backward(-torch.ones(3))
    found = text(caught.value)
    assert "in the compiled backward, at st_blame.picky.default" in found
    assert "in scaled: return picky(x.cos(), w) + 1" in found


def test_errors_from_elsewhere_are_left_alone() -> None:
    error = ValueError("not ours")
    Blame("forward", {})(error)
    assert text(error) == "ValueError: not ours\n"
