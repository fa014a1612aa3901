"""List operations in place whose later steps read what earlier ones wrote: as in eager, one after the other."""

from __future__ import annotations

import pytest
import torch

import subclass_trace as st

ALIASED = {
    "copy": lambda x: torch._foreach_copy_(x, x[::-1]),
    "add": lambda x: torch._foreach_add_(x, [*x[1:], x[0]], alpha=2),
    "mul": lambda x: torch._foreach_mul_(x, [*x[1:], x[0]]),
    "pow": lambda x: torch._foreach_pow_(x, [*x[1:], x[0]]),
    "lerp by lists": lambda x: torch._foreach_lerp_(x, [*x[1:], x[0]], x[::-1]),
    "addcmul": lambda x: torch._foreach_addcmul_(x, [*x[1:], x[0]], x[::-1], [1.0, 2.0, 3.0]),
    "addcdiv, numbers in a tensor": lambda x: torch._foreach_addcdiv_(
        x, [*x[1:], x[0]], x[::-1], torch.tensor([1.0, 2.0, 3.0])
    ),
    "one tensor twice": lambda x: torch._foreach_add_([x[0], x[0]], [x[1], x[2]]),
    "sqrt of one tensor twice": lambda x: torch._foreach_sqrt_([x[0], x[0], x[1]]),
    "halves of one tensor": lambda x: torch._foreach_copy_([x[0][:1], x[0][1:]], [x[0][1:], x[0][:1]]),
    "by a number that a step changes": lambda x: torch._foreach_mul_([x[0][0], x[1]], x[0][0]),
}


def lists() -> list[torch.Tensor]:
    return [torch.tensor([1.5, 2.0]), torch.tensor([7.0, 5.0]), torch.tensor([3.0, 0.5])]


@pytest.mark.parametrize("name", ALIASED)
def test_as_in_eager(name: str) -> None:
    expected, got = lists(), lists()
    ALIASED[name](expected)
    st.compile(lambda *x: (ALIASED[name](list(x)), None)[1])(*got)
    for a, b in zip(expected, got, strict=True):
        assert torch.equal(a, b)


def test_gradients() -> None:
    def step(*p: torch.Tensor) -> torch.Tensor:
        x = [t * 2 for t in p]
        torch._foreach_add_(x, [*x[1:], x[0]])
        return sum(t.sin().sum() for t in x)

    found = []
    for f in (step, st.compile(step)):
        p = [t.requires_grad_() for t in lists()]
        f(*p).backward()
        found.append([t.grad for t in p])
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


def test_parts_of_the_tensor_that_is_written() -> None:
    def f(b: torch.Tensor) -> None:
        torch._foreach_add_([b[:2], b[1:3]], [b[2:4], b[:2]])

    with pytest.raises(RuntimeError, match="single memory location"):
        f(torch.ones(4))
    with pytest.raises(RuntimeError, match="single memory location"):
        st.compile(f)(torch.ones(4))


def test_lists_that_share_nothing_stay_one_operation() -> None:
    found = st.trace(lambda x, y: torch._foreach_add([x, y], [y, y]), torch.ones(2), torch.ones(2))
    targets = [str(n.target) for n in found.forward.graph.nodes if n.op == "call_function"]
    assert targets.count("aten._foreach_add.List") == 1

    def in_place(x: torch.Tensor, y: torch.Tensor) -> None:
        torch._foreach_add_([x, y], 1.0)

    found = st.trace(in_place, torch.ones(2), torch.ones(2))
    targets = [str(n.target) for n in found.forward.graph.nodes if n.op == "call_function"]
    assert targets.count("aten._foreach_add.Scalar") == 1


def test_several_views_of_one_tensor_move_its_version_once_each() -> None:
    def f(b: torch.Tensor) -> None:
        torch._foreach_mul_([b[:2], b[2:]], 2.0)

    expected, got = torch.ones(4), torch.ones(4)
    f(expected)
    st.compile(f)(got)
    assert got._version == expected._version == 2
    assert torch.equal(got, expected)
