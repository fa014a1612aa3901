"""Quantisation-aware training: kernels that give their buffers a size at the first batch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import subclass_trace as st


@pytest.mark.filterwarnings("ignore")
def test_statistics_per_channel_get_their_size_at_the_first_batch() -> None:
    quantization = torch.ao.quantization
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    model.qconfig = quantization.get_default_qat_qconfig("fbgemm")  # type: ignore[assignment]
    model = quantization.QuantWrapper(model)
    quantization.prepare_qat(model.train(), inplace=True)
    other = copy.deepcopy(model)
    starts = [[t._version for t in m.buffers()] for m in (model, other)]
    region = st.compile(other, backend="eager")
    for k in range(3):
        x = torch.randn(2, 3, generator=torch.Generator().manual_seed(k))
        expected, got = model(x), region(x)
        assert torch.equal(expected, got)
        for y in (expected, got):
            y.sum().backward()
        for (name, a), b in zip(model.named_buffers(), other.buffers(), strict=True):
            assert torch.equal(a, b) and a.shape == b.shape, name
        moved = [
            [t._version - n for t, n in zip(m.buffers(), start, strict=True)]
            for m, start in zip((model, other), starts, strict=True)
        ]
        assert moved[0] == moved[1]
        for a, b in zip(model.parameters(), other.parameters(), strict=True):
            assert torch.equal(a.grad, b.grad)
    assert len(region.specializations) <= 2
