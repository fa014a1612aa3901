"""Frozen models: eager's values for changing sizes, and again after a weight was written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st

pytest.importorskip("transformers")
pytest.importorskip("torchao")
import tiny
import weights

WEIGHTS: dict[str, Callable[[Any], Any]] = {"plain": lambda m: m, "pairs": weights.as_pairs, "int8": weights.as_int8}


def logits(function: Any, count: int) -> torch.Tensor:
    ids = torch.randint(0, 64, (1 + count, 6 + count), generator=torch.Generator().manual_seed(count))
    found = function(input_ids=ids, use_cache=False).logits
    return found.a if hasattr(found, "a") else found


@pytest.mark.parametrize("mode", ["keep", "fold"])
@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("make", [tiny._llama, tiny._gpt2], ids=lambda f: f.__name__)
@pytest.mark.sweep(every=24)
def test_a_frozen_model(make: Callable[[str, int], Any], kind: str, mode: str) -> None:
    model = WEIGHTS[kind](weights.without_conv1d(make("eager", 2).eval()))
    frozen = st.freeze(model, mode=mode)
    with torch.no_grad():
        for count in (1, 2, 3, 1):
            torch.testing.assert_close(logits(frozen, count), logits(model, count))
        made = len(frozen.specializations)
        model.lm_head.weight.mul_(1.5)  # its transpose is folded
        with pytest.raises(st.FrozenError, match="weight"):
            logits(frozen, 2)
        frozen.refreeze()
        for count in (1, 2, 3):
            torch.testing.assert_close(logits(frozen, count), logits(model, count))
    assert len(frozen.specializations) == made == 2
