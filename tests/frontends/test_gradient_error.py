"""`st.gradient_error`: two partitions on the same inputs and random numbers, compared gradient by gradient."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import subclass_trace as st
from benchmarks.graphs import MODELS
from subclass_trace.zoo import TwoTensor
from subclass_trace.zoo.scaled_fp8 import to_fp8

INT8, FP8 = st.MinCut(store="int8"), st.MinCut(store="fp8")


@pytest.mark.parametrize(("cut", "most"), [(INT8, 0.01), (FP8, 0.03)], ids=["int8", "fp8"])
def test_a_transformer(cut, most) -> None:
    function, args = MODELS["tf2"]()
    found = st.gradient_error(function, args, cut)
    wanted = {f"args[{k}]": a for k, a in enumerate(args) if a.requires_grad}
    eager = dict(zip(wanted, torch.autograd.grad(function(*args), list(wanted.values())), strict=True))
    assert {r.path for r in found.gradients} == set(wanted)
    for row in found.gradients:
        assert row.norm == pytest.approx(float(eager[row.path].norm()), rel=1e-4)
        assert 0 <= row.error <= found.worst.error
    assert 0 < found.worst.error < most
    assert found.stored_bytes < 0.4 * found.exact_bytes
    assert {a.form for a in found.activations} == {cut.store}
    # a quarter, and four bytes for each row
    assert all(a.stored_bytes == a.exact_bytes // 4 * (1 + 4 / a.shape[-1]) for a in found.activations)
    (region := st.compile(function, partitioner=cut))(*args)
    assert sum(r.bytes for r in region.specializations[0].saved) == found.stored_bytes
    assert all(a.where is not None and ".py:" in a.where for a in found.activations)
    assert found.worst == max(found.gradients, key=lambda r: r.error)


def test_wrappers_are_compared_by_their_inner_tensors() -> None:
    x = TwoTensor(torch.randn(64, 64) / 8, torch.randn(64, 64)).requires_grad_()
    found = st.gradient_error(lambda x: (x @ x).sin(), (x,), INT8)
    y = x.detach().requires_grad_()
    (y @ y).sin().backward(torch.ones_like(y).detach())
    both = torch.cat([y.grad.a.flatten(), y.grad.b.flatten()])
    assert found.gradients[0].norm == pytest.approx(float(both.norm()), rel=1e-4)
    assert len(found.activations) == 2 and 0 < found.worst.error < 0.1
    region = st.compile(lambda x: (x @ x).sin(), partitioner=INT8)
    out = region(z := x.detach().requires_grad_())
    out.backward(torch.ones_like(out).detach())
    difference = torch.cat([(z.grad.a - y.grad.a).flatten(), (z.grad.b - y.grad.b).flatten()])
    assert found.worst.error == pytest.approx(float(difference.norm() / both.norm()), rel=1e-3)


def test_a_quantised_weight() -> None:
    w = to_fp8(torch.randn(64, 64))
    x = torch.randn(32, 64, requires_grad=True)
    found = st.gradient_error(lambda x, w: F.gelu(x @ w).tanh(), (x, w), INT8)
    assert [r.path for r in found.gradients] == ["args[0]"]
    assert 0 < found.worst.error < 0.05 and found.activations


def test_rounding_that_ruins_a_gradient_is_seen() -> None:
    """One large number in each row: steps of the int8 grid are larger than a period of the sine."""
    w = torch.randn(64, 64)
    w[:, 0] *= 1e4
    rest = torch.ones(64)
    rest[0] = 0
    x = torch.randn(64, 64, requires_grad=True)
    cut = st.MinCut(store={"aten.mm.default": "int8"})  # left alone it would keep the cosines, which round well
    found = st.gradient_error(lambda x: (x @ w).sin() * rest, (x,), cut)
    assert found.worst.error > 0.5
    tame = st.gradient_error(lambda x: (x @ w.tanh()).sin() * rest, (x,), cut)
    assert tame.worst.error < 0.2


def test_errors_that_are_no_numbers() -> None:
    x = torch.ones(64, 64, requires_grad=True)
    found = st.gradient_error(lambda x: ((x @ x) * float("inf")).sin(), (x,), INT8)
    text = json.dumps(found.to_dict(), allow_nan=False)
    assert json.loads(text)["worst"]["error"] == "nan"


def test_nothing_is_changed_and_both_runs_start_alike() -> None:
    """Random numbers, running statistics, assigned buffers, inputs that are written, and ``grad``."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear = nn.BatchNorm1d(64), nn.Linear(64, 64)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x, count):
            count.add_(1)
            self.seen = self.seen + 1
            return F.dropout(self.linear(self.norm(x)).sin(), 0.5) * count

    torch.manual_seed(0)
    model, x, count = Model(), torch.randn(32, 64, requires_grad=True), torch.ones(())
    before = {k: v.clone() for k, v in model.state_dict().items()}
    state = torch.get_rng_state()
    found = st.gradient_error(model, (x, count), INT8)
    assert torch.equal(state, torch.get_rng_state()) and count == 1 and x.grad is None
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert {"args[0]", "self.linear.weight", "self.norm.weight"} <= {r.path for r in found.gradients}
    assert 0 < found.worst.error < 0.05
    model(x, count).sum().backward()
    assert found.gradients[0].norm == pytest.approx(float(x.grad.norm()), rel=1e-3), "the same mask as eager mode's"


def test_as_text_and_as_json() -> None:
    x = torch.linspace(-1, 1, 4096).view(64, 64).requires_grad_()
    found = st.gradient_error(lambda x: (x @ x).sin(), (x,), INT8)
    lines = str(found).splitlines()
    assert lines[0].startswith("gradient error of ") and lines[0].endswith("of args[0]")
    assert lines[1] == "saved for the backward: 16.0 KiB exact, 4.2 KiB stored (27%)"
    assert any("aten.cos.default" in line and "int8" in line and "[64, 64]" in line for line in lines)
    data = json.loads(json.dumps(found.to_dict()))
    assert data["stored_bytes"] == found.stored_bytes and data["worst"]["path"] == "args[0]"
    assert data["activations"][0]["form"] == "int8" and data["gradients"][0]["error"] == found.worst.error


def test_what_cannot_be_compared() -> None:
    x = torch.ones(64, 64, requires_grad=True)
    for cut in (st.MinCut(), "min_cut"):
        with pytest.raises(st.OptionError, match="nothing to compare"):
            st.gradient_error(torch.sin, (x,), cut)
    with pytest.raises(st.UnsupportedError, match="nothing gets a gradient"):
        st.gradient_error(torch.sin, (x.detach(),), INT8)


def test_tangents_are_the_callers() -> None:
    x = torch.linspace(-1, 1, 4096).view(64, 64).requires_grad_()
    function = lambda x: (x @ x).sin()
    once, thrice = (
        st.gradient_error(function, (x,), INT8, grad_outputs=g) for g in (None, [torch.full((64, 64), 3.0)])
    )
    assert thrice.gradients[0].norm == pytest.approx(3 * once.gradients[0].norm, rel=1e-4)


def test_an_error_leaves_the_tensors_of_the_call_as_they_were() -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            raise ValueError("no gradient")

    count, x = torch.zeros(1), torch.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match="no gradient"):
        st.gradient_error(lambda x, count: (count.add_(1), Fails.apply(x))[1], (x, count), st.MinCut(store="int8"))
    assert count.tolist() == [0]
