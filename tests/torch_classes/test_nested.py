"""Jagged NestedTensors: a ragged size is a symbol of its own, and the offsets are an inner tensor."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from class_table import FRONT_ENDS
from torch.nested import nested_tensor, nested_tensor_from_jagged

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning"),
    # Dynamo looks at it; whether torch warns depends on what has warned before.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning"),
]


def rows(*lengths: int, width: int = 8, grad: bool = True) -> torch.Tensor:
    torch.manual_seed(sum(lengths))
    parts = [torch.randn(n, width) for n in lengths]
    return nested_tensor(parts, layout=torch.jagged, requires_grad=grad)


def weights() -> list[torch.Tensor]:
    torch.manual_seed(7)
    return [torch.randn(8, 8, requires_grad=True), torch.randn(8, requires_grad=True)]


FUNCTIONS = {
    "linear": lambda x, w, b: F.linear(x, w, b).relu(),
    "a model": lambda x, w, b: F.layer_norm(F.gelu(F.linear(x, w)), (8,), b) * 2,
    "softmax": lambda x, w, b: F.softmax(x @ w, -1),
    "padded": lambda x, w, b: torch.nested.to_padded_tensor(x, 0.0) @ w,
    "mean over the width": lambda x, w, b: F.linear(x, w).mean(-1, keepdim=True) * x,
    "values": lambda x, w, b: x.values() @ w,
    "two of one shape": lambda x, w, b: x * F.linear(x, w) + x,
}


def step(f, x: torch.Tensor) -> list[torch.Tensor]:
    w, b = weights()
    out = f(x, w, b)
    dense = out.values() if out.is_nested else out
    dense.square().sum().backward()
    grads = [t.grad for t in (x, w, b)]
    return [out.detach(), *[g.detach() for g in grads if g is not None]]


def assert_same(expected: list[torch.Tensor], got: list[torch.Tensor]) -> None:
    assert len(expected) == len(got)
    for e, g in zip(expected, got, strict=True):
        assert type(e) is type(g) and e.is_nested == g.is_nested
        if e.is_nested:
            assert torch.equal(e.offsets(), g.offsets())
            e, g = e.values(), g.values()
        torch.testing.assert_close(g, e)


#: of what Dynamo hands over; the others are the same regions once more
SAMPLE = ("a model", "padded", "mean over the width", "values")


@pytest.mark.parametrize(
    ("name", "front_end"),
    [
        pytest.param(name, front_end, marks=pytest.mark.slow if front_end == "dynamo" and name not in SAMPLE else ())
        for name in FUNCTIONS
        for front_end in FRONT_ENDS
    ],
)
def test_forward_and_backward(name: str, front_end: str) -> None:
    f = FUNCTIONS[name]
    compiled = FRONT_ENDS[front_end](f)
    for lengths in ((3, 5), (3, 5), (2, 4, 1), (6, 2)):
        assert_same(step(f, rows(*lengths)), step(compiled, rows(*lengths)))


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_with_known_lengths(front_end: str) -> None:
    values = torch.randn(8, 4)
    offsets = torch.tensor([0, 3, 8])
    x = nested_tensor_from_jagged(values, offsets, min_seqlen=3, max_seqlen=5)
    compiled = FRONT_ENDS[front_end](lambda x: x.sin())
    got, expected = compiled(x), x.sin()
    torch.testing.assert_close(got.values(), expected.values())
    assert got._max_seqlen == expected._max_seqlen
