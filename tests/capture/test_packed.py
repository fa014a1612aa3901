"""Packed sequences whose lengths are known are right; others are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

import subclass_trace as st

Tensor = torch.Tensor


def test_other_lengths_are_another_specialization() -> None:
    def f(x: Tensor, lengths: Any) -> Any:
        return pack_padded_sequence(x * 2, lengths)

    region, x = st.compile(f), torch.randn(3, 2, 1)
    for lengths in ([3, 1], [2, 2], torch.tensor([3, 1]).tolist()):
        found, expected = region(x, lengths), f(x, lengths)
        assert isinstance(found, PackedSequence)
        assert torch.equal(found.data, expected.data) and torch.equal(found.batch_sizes, expected.batch_sizes)
    assert len(region.specializations) == 2


@pytest.mark.parametrize("lengths", [[1, 3], [3, 0], [3, 2, 1]])
def test_what_eager_refuses(lengths: list[int]) -> None:
    x = torch.randn(3, 2, 1)
    with pytest.raises(RuntimeError) as expected:
        pack_padded_sequence(x, lengths)
    with pytest.raises(RuntimeError) as found:
        st.compile(pack_padded_sequence)(x, lengths)
    assert str(found.value).splitlines()[0] == str(expected.value).splitlines()[0]


def test_lengths_of_the_call_are_refused() -> None:
    model, lengths = nn.GRU(3, 4), torch.tensor([3, 2])
    packed = pack_sequence([torch.randn(3, 3), torch.randn(2, 3)])
    functions: dict[str, Any] = {
        "lengths": lambda: st.compile(lambda x, n: pack_padded_sequence(x, n).data)(torch.randn(3, 2, 3), lengths),
        "a global": lambda: st.compile(lambda x: pack_padded_sequence(x, lengths).data)(torch.randn(3, 2, 3)),
        "packed": lambda: st.compile(lambda p: pad_packed_sequence(p)[0])(packed),
        "a layer": lambda: st.compile(
            lambda x, n, w: torch.gru(x, n, torch.zeros(1, 2, 4), w, True, 1, 0.0, False, False)[0]  # type: ignore[arg-type]
        )(packed.data, packed.batch_sizes, list(model.parameters())),
    }
    for call in functions.values():
        with pytest.raises(st.DataDependentError, match="packed sequences") as caught:
            call()
        assert "test_packed.py:" in str(caught.value.path)


def test_recurrent_modules_are_refused() -> None:
    """They hold weak references to their weights."""
    with pytest.raises(st.SideEffectError, match="changes cannot be told") as caught:
        st.compile(nn.LSTM(3, 4))(torch.ones(2, 2, 3))
    assert caught.value.path == "self._flat_weight_refs[0]"


def test_sizes_that_are_tensors() -> None:
    def f(x: Tensor, n: Tensor) -> Any:
        return torch.zeros(2, torch.tensor(3)) + x, x.new_ones((torch.tensor(3), n.max())).sum()

    for found, expected in zip(st.compile(f)(torch.ones(3), torch.tensor([2, 4])), (torch.ones(2, 3), 12), strict=True):
        assert torch.equal(found, torch.as_tensor(expected, dtype=torch.float))
