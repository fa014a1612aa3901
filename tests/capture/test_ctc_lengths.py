"""``ctc_loss`` with its lengths in tensors: inputs of the region, or constants that it makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import subclass_trace as st

Tensor = torch.Tensor
LENGTHS = [([6, 6], [3, 2]), ([6, 5], [1, 2])]  # the longest target of a call decides a size inside


def written(x: Tensor, targets: Tensor, inputs: Tensor, lengths: Tensor) -> Tensor:
    scaled = x * 2
    scaled.mul_(0.5)
    return F.ctc_loss(scaled.log_softmax(-1), targets, inputs, lengths)


CASES: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "mean": lambda x, targets, inputs, lengths: F.ctc_loss(x.log_softmax(-1), targets, inputs, lengths),
    "none": lambda x, *rest: F.ctc_loss(x.log_softmax(-1), *rest, reduction="none"),
    "sum": lambda x, *rest: F.ctc_loss(x.log_softmax(-1), *rest, reduction="sum", zero_infinity=True),
    "module": lambda x, *rest: torch.nn.CTCLoss(blank=3)(x.log_softmax(-1), *rest),
    "constants": lambda x, targets, *_: F.ctc_loss(
        x.log_softmax(-1), targets, torch.full((2,), x.shape[0]), torch.full((2,), targets.shape[1])
    ),
    "beside an operation in place": written,
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_as_in_eager(name: str, dynamic: bool) -> None:
    def results(function: Any) -> list[Tensor]:
        torch.manual_seed(0)
        x, targets = torch.randn(6, 2, 4, requires_grad=True), torch.randint(1, 3, (2, 3))
        found = []
        for inputs, lengths in LENGTHS:
            loss = function(x, targets, torch.tensor(inputs), torch.tensor(lengths))
            found += [loss.detach(), torch.autograd.grad(loss.sum(), x)[0]]
        return found

    region = st.compile(CASES[name], dynamic=dynamic)
    for a, b in zip(results(CASES[name]), results(region), strict=True):
        torch.testing.assert_close(a, b)
    assert len(region.specializations) == 1


def test_lengths_that_eager_refuses() -> None:
    x, targets = torch.randn(6, 2, 4).log_softmax(-1), torch.randint(1, 3, (2, 3))
    wrong = torch.tensor([7, 6]), torch.tensor([3, 2])
    with pytest.raises(RuntimeError) as eager:
        F.ctc_loss(x, targets, *wrong)
    with pytest.raises(RuntimeError) as ours:
        st.compile(F.ctc_loss)(x, targets, *wrong)
    assert str(ours.value) == str(eager.value)
