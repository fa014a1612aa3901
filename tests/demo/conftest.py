"""The demo is imported from the root of the repository, by these tests and by the processes that they start."""

from __future__ import annotations

import demo_workers
import pytest


@pytest.fixture(autouse=True)
def _root_on_path(monkeypatch):
    monkeypatch.syspath_prepend(demo_workers.ROOT)
