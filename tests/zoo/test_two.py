"""TwoTensor: each half must see exactly the dense program."""

from __future__ import annotations

import pytest
import torch

from subclass_trace.zoo import TwoTensor


def two(*size: int) -> TwoTensor:
    g = torch.Generator().manual_seed(0)
    return TwoTensor(torch.randn(*size, generator=g), torch.randn(*size, generator=g))


PROGRAMS = {
    "pointwise": lambda x: (x.sin() * 2 - x).relu(),
    "reduction": lambda x: x.sum(0, keepdim=True) / x.mean(),
    "matmul": lambda x: x @ x.t(),
    "several": lambda x: torch.cat([t.exp() for t in x.split(2)], 1),
    "softmax": lambda x: torch.nn.functional.layer_norm(x.softmax(-1), (3,)),
    "mutation": lambda x: x.clone().add_(1).mul_(x),
    "view mutation": lambda x: _write_through_a_view(x.clone()),
    "sort": lambda x: x.sort(dim=1).values + x.argmax(),
    "foreach": lambda x: torch._foreach_add([x, x * 2], 1.0)[1],
}


def _write_through_a_view(x: torch.Tensor) -> torch.Tensor:
    x[1:, :2].t().zero_()
    return x


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_each_half_sees_the_dense_program(program) -> None:
    x = two(4, 3)
    want = program(x.a.clone()), program(x.b.clone())
    got = program(x)
    assert type(got) is TwoTensor
    torch.testing.assert_close((got.a, got.b), want)
    assert got.stride() == want[0].stride()


def test_mixed_with_plain_tensors() -> None:
    x, y = two(2, 2), torch.ones(2, 2, requires_grad=True)
    out = x * y + 1
    torch.testing.assert_close(out.b, x.b + 1)
    out.sum().backward()
    torch.testing.assert_close((y.grad.a, y.grad.b), (x.a, x.b))


def test_halves_must_agree() -> None:
    with pytest.raises(ValueError, match=r"the halves of a TwoTensor must agree .* got \(2,\), \(1,\)"):
        TwoTensor(torch.ones(2), torch.ones(3))
