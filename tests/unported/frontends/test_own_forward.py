"""An instance's own ``forward`` decides the trace, whenever it is set."""

from __future__ import annotations

import pytest
import torch

import subclass_trace as st
from subclass_trace.frontends import specialization


@pytest.mark.parametrize("generated", [True, False])
def test_an_own_forward_that_comes_and_goes(generated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not generated:
        monkeypatch.setattr(specialization, "generate", lambda *_: None)
        monkeypatch.setattr("subclass_trace.frontends.compile.generate", lambda *_: None)
    model = torch.nn.Sequential(torch.nn.ReLU())
    region = st.compile(model, backend="eager")
    x = torch.ones(2)
    torch.testing.assert_close(region(x), x)
    model[0].forward = lambda x: x * 9
    torch.testing.assert_close(region(x), x * 9)
    model[0].forward = lambda x: x * 3
    torch.testing.assert_close(region(x), x * 3)
    del model[0].forward
    torch.testing.assert_close(region(x), x)
    assert len(region.specializations) == 3
