"""Each test starts with an empty cache of tapes, and must leave compiled autograd off."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from subclass_trace.tape import compiled_autograd


@pytest.fixture(autouse=True)
def _empty_cache() -> Iterator[None]:
    engine = torch.autograd.Variable._execution_engine
    compiled_autograd.reset()
    yield
    assert not compiled_autograd.enabled
    assert torch.autograd.Variable._execution_engine is engine, "the engine was left replaced"
    assert torch._C._dynamo.compiled_autograd.set_autograd_compiler(None, False)[0] is None, "a compiler was left"
