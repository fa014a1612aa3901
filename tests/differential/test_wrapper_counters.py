"""Version counters of wrappers that have an inner tensor of an input: those of eager."""

from __future__ import annotations

import torch
from wrappers import scaled

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


def test_a_wrapper_with_an_inner_tensor_of_an_input_counts_for_itself() -> None:
    def negated(x: Tensor) -> Tensor:
        made = TwoTensor(-x.a, x.b)  # type: ignore[attr-defined]
        made.a.add_(1)
        return made

    def written(x: Tensor) -> Tensor:
        return (-x).add_(1)

    for grad in (False, True):
        for function in (negated, written):
            versions = []
            for call in (function, st.compile(function)):
                x = scaled(3, 3, seed=0) if function is written else TwoTensor(torch.ones(3), torch.ones(3))
                out = call(x.requires_grad_(grad and function is written))
                versions.append((out._version, x._version))
            assert versions[0] == versions[1]
