"""Calls that eager mode refuses are refused alike: the class of the error, its words, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import subclass_trace as st
from subclass_trace.errors import UnsupportedError

#: fake kernels refuse these as well, with another class or text
CASES: dict[str, Callable[[Any], Any]] = {
    "index by floats": lambda x: x[torch.tensor([0.0])],
    "index by short integers": lambda x: x[torch.tensor([0], dtype=torch.int16)],
    "embedding of one dimension": lambda x: F.embedding(x.long(), torch.ones(3)),
    "weights for other classes": lambda x: F.cross_entropy(x[None], torch.tensor([0]), weight=torch.ones(2)),
    "several targets": lambda x: F.nll_loss(x[None], torch.tensor([[0]])),
    "clamp without bounds": lambda x: x.clamp(),
    "alpha of another kind": lambda x: torch.add(x.int(), 1, alpha=0.5),
    "elu of int": lambda x: F.elu(x.int()),
    "shift of float, out of place": lambda x: x << 1,
    "out of ints": lambda x: torch.add(x, 1, out=torch.empty(3, dtype=torch.int)),
}


@pytest.mark.parametrize("name", CASES)
def test_as_in_eager(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exception) as eager:
        CASES[name](torch.tensor([1.0, 2.0, 3.0]))
    x = torch.tensor([1.0, 2.0, 3.0])
    with pytest.raises(Exception) as ours:
        st.compile(CASES[name])(x)
    assert type(ours.value) is type(eager.value)
    assert str(ours.value).partition("\n")[0] == str(eager.value).partition("\n")[0]
    assert x.tolist() == [1.0, 2.0, 3.0] and x._version == 0
    assert "Traceback" not in capfd.readouterr().err  # torch's own report of what its fake kernel refused


def test_right_calls_of_mixed_types_pass() -> None:
    def f(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        n.add_(1)
        n.bitwise_or_(4)
        x.mul_(n)
        x.div_(torch.tensor(2))
        x.index_put_((torch.tensor([True, False]),), torch.tensor(9.0))
        n.floor_divide_(n)  # the zeros that the real kernel is asked with would be a division by zero
        return torch.add(x, n, out=torch.empty(2, dtype=torch.double))

    (x, n), (y, m) = [(torch.tensor([1.0, 2.0]), torch.tensor([3, 4])) for _ in range(2)]
    assert torch.equal(st.compile(f)(x, n), f(y, m))
    assert torch.equal(x, y) and torch.equal(n, m)


def test_fake_kernel_is_wrong() -> None:
    """Up to torch 2.14."""
    try:
        found = st.compile(lambda x: x.nan_to_num_())(torch.ones(2, dtype=torch.cfloat))
    except UnsupportedError as error:
        assert "the trace fails where eager does not" in str(error)
    else:
        assert found.tolist() == [1, 1]
