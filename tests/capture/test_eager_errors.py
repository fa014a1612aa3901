"""Calls that eager mode refuses are refused alike: the class of the error, its words, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import subclass_trace as st
from subclass_trace.errors import UnsupportedError
from subclass_trace.zoo import TwoTensor

#: fake kernels accept these; the result would have to be cast, or cut, to fit into the tensor that is written
ACCEPTED_BY_FAKE_KERNELS: dict[str, Callable[[Any], Any]] = {
    "add a complex number": lambda x: x.add_(1j),
    "add a complex tensor": lambda x: x.add_(torch.tensor(1 + 1j)),
    "sub a complex tensor": lambda x: x.sub_(torch.ones(3, dtype=torch.cfloat)),
    "mul by a complex tensor": lambda x: x.mul_(torch.ones(3, dtype=torch.cfloat)),
    "addcmul of complex tensors": lambda x: x.addcmul_(torch.ones(3, dtype=torch.cfloat), torch.ones(3)),
    "addcdiv of complex tensors": lambda x: x.addcdiv_(torch.ones(3, dtype=torch.cfloat), torch.ones(3)),
    "int times float": lambda x: x.int().mul_(1.5),
    "int times a number inside a tensor": lambda x: x.int().mul_(x.sum().item()),
    "int times float tensor": lambda x: x.int().mul_(torch.ones(3)),
    "bool times int": lambda x: x.bool().mul_(2),
    "bool minus bool": lambda x: x.bool().sub_(x.bool()),
    "logit of int": lambda x: x.int().logit_(),
    "polygamma of int": lambda x: x.int().polygamma_(1),
    "ldexp of int": lambda x: x.int().ldexp_(torch.ones(3)),
    "abs of bool": lambda x: x.bool().abs_(),
    "shift of float": lambda x: x.__ilshift__(1),
    "masked_fill with a complex value": lambda x: x.masked_fill_(x > 0, 1j),
    "masked_fill by a float mask": lambda x: x.masked_fill_(x, 1),
    "index_fill with a complex value": lambda x: x.index_fill_(0, torch.tensor([0]), 1j),
    "index_add of another dtype": lambda x: x.index_add_(0, torch.tensor([0]), torch.ones(1).double()),
    "index_put of another dtype": lambda x: x.index_put_((torch.tensor([0]),), torch.ones(1).double()),
    "put of another dtype": lambda x: x.put_(torch.tensor([0]), torch.ones(1).double()),
    "eq with a larger tensor": lambda x: x.eq_(torch.ones(2, 3)),
    "pow with a larger tensor": lambda x: x.pow_(torch.ones(2, 3)),
    "atan2 with a larger tensor": lambda x: x.atan2_(torch.ones(100, 3)),
    "list of one, plus complex": lambda x: torch._foreach_add_([x], [x.to(torch.cfloat)]),
    "list times complex": lambda x: torch._foreach_mul_([x, x * 2, x.double()], 1j),
    "list times complex numbers": lambda x: torch._foreach_mul_([x, x * 2], [1.0, 1j]),
    "out of another kind": lambda x: torch.add(x, 1j, out=torch.empty(3)),
}
#: fake kernels refuse these as well, with another class or text
REFUSED_OTHERWISE: dict[str, Callable[[Any], Any]] = {
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
    "normal in ints": lambda x: x.int().normal_(),
    "exponential in bools": lambda x: x.bool().exponential_(),
}
CASES = ACCEPTED_BY_FAKE_KERNELS | REFUSED_OTHERWISE


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


def test_inside_of_a_wrapper() -> None:
    x = TwoTensor(torch.ones(3), torch.ones(3))
    with pytest.raises(RuntimeError, match="result type ComplexFloat can't be cast to the desired output type Float"):
        st.compile(lambda x: x.mul_(1j))(x)
    assert x.a.tolist() == [1.0, 1.0, 1.0]


def test_caught_inside_of_the_region() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        try:
            y.mul_(1j)
        except RuntimeError:
            y.mul_(3)
        return y

    assert st.compile(f)(torch.ones(2)).tolist() == [6.0, 6.0]


def test_symbolic_sizes_and_large_tensors() -> None:
    region = st.compile(lambda x, y: x.atan2_(y), dynamic=True)
    with pytest.raises(RuntimeError, match=r"output with shape \[30\] doesn't match the broadcast shape \[20, 30\]"):
        region(torch.ones(30), torch.ones(20, 30))
    large = torch.ones(1, 1).expand(1 << 20, 1 << 20)  # no zeros are made of such a size
    with pytest.raises(RuntimeError, match="can't be cast"):
        st.compile(lambda x: x[0].clone().mul_(1j) + x[0, 0])(large)
    with pytest.raises(RuntimeError, match="'weight' must be 2-D"):
        st.compile(lambda x: F.embedding(torch.tensor([1]), x[0]))(large)


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
    assert torch.ones(2, dtype=torch.cfloat).nan_to_num_().tolist() == [1, 1]
    with pytest.raises(UnsupportedError, match="torch refuses to trace aten.nan_to_num_.default here") as error:
        st.compile(lambda x: x.nan_to_num_())(torch.ones(2, dtype=torch.cfloat))
    assert "test_eager_errors.py" in str(error.value.path)


def test_a_list_of_parts_whose_sizes_are_symbols() -> None:
    """What eager says of a list operation is asked for each kind of step, and kinds are told by their sizes."""

    def step(parts: list[torch.Tensor], n: float) -> torch.Tensor:
        torch._foreach_mul_(parts, n)
        return parts[0][1:]

    region = st.compile(step)
    for k in (3, 4, 5):
        memory = torch.ones(k + 4)
        parts = [memory[:k], memory[k:]]
        assert torch.equal(region(parts, k / 2), torch.ones(k - 1) * k / 2) and torch.equal(
            memory, torch.full((k + 4,), k / 2)
        )


def test_lists_of_symbolic_sizes() -> None:
    region = st.compile(lambda xs, ys: torch._foreach_mul_(xs, ys), dynamic=True)
    for n in (3, 5):
        xs = [torch.full((n,), 2.0), torch.full((n + 1,), 3.0)]
        region([x[:-1] for x in xs], [torch.full((n - 1,), 4.0), torch.full((n,), 5.0)])
        assert [x.tolist() for x in xs] == [[8.0] * (n - 1) + [2.0], [15.0] * n + [3.0]]
        with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
            region(xs, [torch.ones(n), torch.ones(2, n + 1)])
