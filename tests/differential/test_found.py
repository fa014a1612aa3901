"""Programs in which a search once found a difference from eager, shrunk: they stay as plain programs.

Each is what hypothesis printed. A new finding is added as it is, with a name that says what was wrong.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from oracle import backward_of, check
from strategies import Program
from torch.testing._internal.two_tensor import TwoTensor

import subclass_trace as st

pytestmark = pytest.mark.filterwarnings("ignore:a call of a region runs eagerly")

#: name -> (how inputs are made, arguments, roots, the program, results, outputs to differentiate, tangents or sums)
FOUND = {
    "view made under no_grad of a member of a split of a value": (
        ("w0 = dense(3, 3, seed=call).requires_grad_()",),
        ("w0",),
        ("w0",),
        ("v0 = x0 + x0", "v1, v2, v3 = v0.split(1)", "with torch.no_grad():", "    v4 = v1.view(-1)"),
        ("v4",),
        (0,),
        "tangent",
    ),
    "result that its own node saves, of a written wrapper": (
        ("w0 = scaled(3, 3, seed=call).requires_grad_()", "a0 = w0 * 1"),
        ("a0",),
        ("w0",),
        ("x0.relu_()",),
        ("x0",),
        (0,),
        "sum",
    ),
    "expanded part of a sort is written": (
        ("w0 = dense(3, 3, seed=call)",),
        ("w0",),
        (),
        ("v0, v1 = x0.sort()", "v2 = v1.expand(2, *v1.shape)", "v3 = v2 + v2", "v2[:1] = v3[:1]"),
        ("x0", "v1"),
        None,
        "tangent",
    ),
    "window that is all of an unfold is written": (
        ("w0 = dense(2, 3, seed=call)",),
        ("w0",),
        (),
        ("v0 = x0.unfold(0, 2, 1)", "v0.add_(1)"),
        ("v0",),
        None,
        "tangent",
    ),
    "a written view before its base, which the graph computes as a view": (
        ("w0 = dense(3, 3, seed=call)",),
        ("w0",),
        (),
        ("v0 = x0 + x0", "v1 = v0.view(-1)", "v1.add_(1)"),
        ("x0", "v1", "v0"),
        None,
        "tangent",
    ),
    "what an in-place operation on a view saves cannot be asked for": (
        ("w0 = scaled(3, 3, seed=call).requires_grad_()", "a0 = w0 * 1"),
        ("a0",),
        ("w0",),
        ("v0 = x0[1:]", "v1 = v0.unsqueeze(0)", "v2, v3 = v0.sort()", "v4, v5 = v2.split(1)", "v1.mul_(v5)"),
        ("v0",),
        (0,),
        "tangent",
    ),
    "a write by the code of a class, which eager's counter does not count": (
        ("w0 = dense(3, 3, seed=call)",),
        ("w0",),
        (),
        ("x0.copy_(x0)", "v1 = TwoTensor(x0, x0)", "v1.add_(1)", "x0.data.add_(1)"),
        ("v1",),
        None,
        "tangent",
    ),
    "a detached view of one part of an input, of which another part is written": (
        ("w0 = dense(3, 3, seed=call).requires_grad_()", "a0 = w0 * 1"),
        ("a0",),
        ("w0",),
        ("x0[:1] = x0[1:2]",),
        ("x0[1:].t().detach()",),
        None,
        "tangent",
    ),
    "a Masked gradient that somebody else holds": (
        ("w0 = masked(3, 3, seed=call).requires_grad_()",),
        ("w0", "w0"),
        ("w0",),
        ("v0 = x1 + 1",),
        ("v0",),
        (0,),
        "tangent",
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    *parts, backward, how = FOUND[name]
    fn, make = Program(*parts, backward, how).functions()
    check(fn, make, backward=None if backward is None else backward_of(backward, how), specializations=1)


def test_a_view_that_a_region_returns_may_be_written() -> None:
    found = []
    for call in (lambda f: f, st.compile):
        x = torch.ones(2, 2, requires_grad=True)
        y = call(lambda x: (x * 2).view(-1))(x)
        y.add_(1)  # autograd would refuse it for a view that comes out of a Function
        y.sum().backward()
        found.append(x.grad)
    assert torch.equal(*found)


@pytest.mark.parametrize("training", [True, False])
def test_rrelu_of_a_transposed_tensor_is_contiguous(training: bool) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.rrelu(x, 0.1, 0.3, training)

    for make in (lambda t: t, lambda t: TwoTensor(t, t * 2)):
        x = make(torch.randn(4, 5).t()).requires_grad_()
        found = []
        for call in (program, st.compile(program)):
            torch.manual_seed(0)
            out = call(x)
            (grad,) = torch.autograd.grad(out, x, out.detach() * 0 + 1)
            inner = out if type(out) is torch.Tensor else out.a
            found.append((out.stride(), inner.stride(), inner.detach(), grad.stride()))
        assert found[0][:2] == found[1][:2] and found[0][3] == found[1][3]
        assert torch.equal(found[0][2], found[1][2])


@pytest.mark.parametrize("wrap", [lambda t: t, lambda t: TwoTensor(t, t * 2)], ids=["dense", "TwoTensor"])
def test_a_constant_is_written_to_an_expanded_view(wrap: Any) -> None:
    """Torch allows it: which of the elements in one place is written last does not matter."""

    def f(x: Any) -> Any:
        v = x.expand(2, *x.shape)
        v.zero_()
        w = x[:1].expand(2, 3)
        w.fill_(3.0)
        return v, w, x * 1

    a, b = (wrap(torch.arange(9.0).view(3, 3)) for _ in range(2))
    for found, expected in zip(st.compile(f)(a), f(b), strict=True):
        assert found.stride() == expected.stride() and torch.equal(
            getattr(found, "a", found), getattr(expected, "a", expected)
        )
    assert a._version == b._version
