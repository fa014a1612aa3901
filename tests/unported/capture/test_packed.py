"""Packed sequences whose lengths are known are right; others are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

import subclass_trace as st

Tensor = torch.Tensor
LAYERS = {
    "gru": lambda first: nn.GRU(3, 4, 2, batch_first=first, dropout=0.5),
    "lstm": lambda first: nn.LSTM(3, 4, batch_first=first, proj_size=2),
    "rnn": lambda first: nn.RNN(3, 4, batch_first=first, bias=False, bidirectional=True),
}


class Encoder(nn.Module):
    def __init__(self, kind: str, first: bool, is_sorted: bool, total: int | None) -> None:
        super().__init__()
        self.layer, self.first, self.is_sorted, self.total = LAYERS[kind](first), first, is_sorted, total

    def forward(self, x: Tensor, lengths: list[int]) -> Any:
        packed = pack_padded_sequence(x, lengths, batch_first=self.first, enforce_sorted=self.is_sorted)
        out, hidden = self.layer(packed)
        padded, sizes = pad_packed_sequence(out, self.first, padding_value=-1.0, total_length=self.total)
        return padded, sizes, hidden, packed.data


@pytest.mark.parametrize(
    ("kind", "first", "lengths", "total", "dynamic"),
    [
        ("gru", True, [5, 3, 3, 1], None, True),
        ("lstm", False, [2, 5, 1, 4], 7, False),
        ("rnn", True, [4, 4, 4, 4], 5, True),
        pytest.param("gru", True, [5, 3, 3, 1], None, False, marks=pytest.mark.slow),
        pytest.param("lstm", False, [2, 5, 1, 4], 7, True, marks=pytest.mark.slow),
        pytest.param("rnn", True, [4, 4, 4, 4], 5, False, marks=pytest.mark.slow),
    ],
)
def test_recurrent_layers(kind: str, first: bool, lengths: list[int], total: int | None, dynamic: bool) -> None:
    torch.manual_seed(0)
    model = Encoder(kind, first, lengths == sorted(lengths, reverse=True), total)
    region, rows = st.compile(model, dynamic=dynamic), []
    start = torch.randn(4, 5, 3) if first else torch.randn(5, 4, 3)
    for call in (model, region):
        torch.manual_seed(1)
        x = start.clone().requires_grad_()
        padded, sizes, hidden, data = call(x, lengths)
        assert sizes.tolist() == lengths
        (padded.sin().sum() + data.sum()).backward()
        grads = [x.grad, *[p.grad for p in model.parameters()]]
        rows.append([padded, data, *(hidden if isinstance(hidden, tuple) else [hidden]), *grads])
        model.zero_grad()
    for found, expected in zip(rows[1], rows[0], strict=True):
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()


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
            lambda x, n: torch.gru(x, n, torch.zeros(1, 2, 4), model._flat_weights, True, 1, 0.0, False, False)[0]  # type: ignore[arg-type]
        )(packed.data, packed.batch_sizes),
    }
    for call in functions.values():
        with pytest.raises(st.DataDependentError, match="packed sequences") as caught:
            call()
        assert "test_packed.py:" in str(caught.value.path)


def test_sizes_that_are_tensors() -> None:
    def f(x: Tensor, n: Tensor) -> Any:
        return torch.zeros(2, torch.tensor(3)) + x, x.new_ones((torch.tensor(3), n.max())).sum()

    for found, expected in zip(st.compile(f)(torch.ones(3), torch.tensor([2, 4])), (torch.ones(2, 3), 12), strict=True):
        assert torch.equal(found, torch.as_tensor(expected, dtype=torch.float))
