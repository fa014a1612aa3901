"""The Dynamo front end is registered by hand: tests run from the source tree, where there are no entry points."""

from __future__ import annotations

import pytest
import torch

from subclass_trace.frontends.dynamo import register


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> object:
    register()
    torch.compiler.reset()
    yield
    torch.compiler.reset()
