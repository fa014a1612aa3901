"""Interpolation of a wrapper whose size changes: its class gets the operation that it gets in eager mode, so bits agree."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

MODES = {
    3: ("nearest", "nearest-exact", "linear"),
    4: ("nearest", "nearest-exact", "bilinear", "bicubic"),
    5: ("nearest", "nearest-exact", "trilinear"),
}
CASES = [(dims, mode) for dims, modes in MODES.items() for mode in modes]


@pytest.mark.parametrize(("dims", "mode"), CASES)
@pytest.mark.parametrize("last", [False, True])
def test_as_in_eager(dims: int, mode: str, last: bool) -> None:
    def function(x):
        return F.interpolate(x, scale_factor=1.7, mode=mode)

    region = st.compile(function)
    for size in (4, 6, 5):
        seen = []
        for run in (function, region):
            torch.manual_seed(0)
            parts = [torch.randn(2, 3, *[size] * (dims - 2)) for _ in range(2)]
            if last:
                parts = [t.transpose(1, -1).contiguous().transpose(1, -1) for t in parts]
            x = TwoTensor(*parts).requires_grad_()
            out = run(x)
            (out.sin() * out).sum().backward(TwoTensor(torch.tensor(1.0), torch.tensor(2.0)))
            seen.append([t for value in (out.detach(), x.grad) for t in (value.a, value.b)])
        for a, b in zip(*seen, strict=True):
            assert torch.equal(a, b) and a.stride() == b.stride()
