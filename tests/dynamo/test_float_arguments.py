"""Python floats that change between calls of ``torch.compile(..., backend="subclass_trace")``."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounterWithBackend


def run(function, p):
    x = torch.tensor([-1.0, 0.25, 0.75, 2.0], requires_grad=True)
    torch.manual_seed(0)
    y = function(x, p)
    return y.detach(), *torch.autograd.grad(y.sum(), x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, p: x.clamp(max=p),  # the backward compares with a number
        lambda x, p: torch.add(x, x * x, alpha=p),
        lambda x, p: x.abs() ** p,
        lambda x, p: F.dropout(x, p),  # the kernel takes a number
        lambda x, p: x * 2 if p > 0.2 else x * 3,
    ],
)
def test_a_float_argument_that_changes(function):
    compiled = torch.compile(function, backend="subclass_trace")
    for p in (0.5, 0.3, 0.1, 0.7):
        torch.testing.assert_close(run(compiled, p), run(function, p))


def test_one_that_may_stay_a_tensor_is_compiled_for_once():
    counter = CompileCounterWithBackend("subclass_trace")
    compiled = torch.compile(lambda x, p: x.detach() * p, backend=counter)
    for p in (0.5, 0.3, 0.1, 0.7):
        torch.testing.assert_close(compiled(torch.ones(3), p), torch.full((3,), p))
    assert counter.frame_count == 2
