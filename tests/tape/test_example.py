"""The example runs, and what it prints is true."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import torch

pytest.importorskip("torch.distributed").is_available() or pytest.skip("no torch.distributed", allow_module_level=True)
ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_example_trains_alike_on_all_engines(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from examples.compiled_autograd.__main__ import main

    found = main(["--steps", "4", "--layers", "3", "--width", "32", "--batch", "256"])
    first = found["eager engine"]
    assert first.losses[-1] < first.losses[0]
    assert found["tape"].losses == first.losses and found["tape"].norms == first.norms
    torch.testing.assert_close(torch.tensor(found["segments"].losses), torch.tensor(first.losses))
    assert found["tape"].peak <= 1.05 * first.peak and found["segments"].peak <= 1.15 * first.peak
    out = capsys.readouterr().out
    assert "losses and clipped norms are" in out and "tensor hook hooks[" in out and "unpack packed[" in out
