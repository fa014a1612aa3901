"""Saved activations as plain references of the autograd node: they behave as autograd's own saved variables do."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.capture.aliasing import alias_check, alias_pattern
from subclass_trace.runtime import function_code
from subclass_trace.zoo import Constant, TwoTensor


def two(n: int = 4) -> TwoTensor:
    return TwoTensor(torch.randn(n), torch.randn(n)).requires_grad_()  # type: ignore[return-value]


def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * y).sin() * y


def warm(region: st.Region, *inputs: torch.Tensor) -> None:
    for _ in range(2):
        region(*inputs).sum().backward()


def test_the_activations_are_kept_on_the_node() -> None:
    x, y = two(), two()
    region = st.compile(f, backend="eager")
    warm(region, x, y)
    out = region(x, y)  # before torch 2.13 the Python object of a node does not keep the node
    node = out.grad_fn
    assert node is not None and len(node.saved) >= 4 and not node.saved_tensors  # type: ignore[attr-defined]


def test_a_second_backward_is_refused_as_by_autograd() -> None:
    x, y = two(), two()
    region = st.compile(f, backend="eager")
    warm(region, x, y)
    out = region(x, y).sum()
    out.backward(retain_graph=True)
    out.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        out.backward()


@pytest.mark.parametrize("which", ["wrapper", "inner"])
def test_a_write_between_forward_and_backward_is_noticed(which: str) -> None:
    x, y = two(), two()
    region = st.compile(f, backend="eager")
    warm(region, x, y)
    out = region(x, y).sum()
    with torch.no_grad():
        (y if which == "wrapper" else y.a).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_a_write_to_a_saved_dense_result_is_noticed() -> None:
    region = st.compile(lambda x: x.exp(), backend="eager", partitioner="default")
    x = torch.randn(4, requires_grad=True)
    warm(region, x)
    out = region(x)
    with torch.no_grad():
        out.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_hooks_see_every_activation() -> None:
    x, y = two(), two()
    region = st.compile(f, backend="eager")
    warm(region, x, y)
    packed: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (packed.append(t), t)[1], lambda t: t):
        out = region(x, y)
    assert len(packed) >= 4
    expected = torch.autograd.grad(f(x, y).sum(), (x, y))
    for got, want in zip(torch.autograd.grad(out.sum(), (x, y)), expected, strict=True):
        torch.testing.assert_close(got.a, want.a)  # type: ignore[attr-defined]


@pytest.mark.parametrize("saved_result", [False, True])
def test_nothing_is_kept_alive_by_a_cycle(saved_result: bool) -> None:
    function = (lambda x: x.exp()) if saved_result else (lambda x: x.sin() * 2)
    region = st.compile(function, backend="eager", partitioner="default")
    x = torch.randn(4, requires_grad=True)
    warm(region, x)
    assert bool(region.specializations[0].plan.saved_results) is saved_result
    gc.collect()
    gc.disable()
    try:
        out = region(x)
        gone = weakref.ref(out)
        del out
        assert gone() is None
    finally:
        gc.enable()


def test_the_usual_tangent_of_a_sum_takes_the_generated_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """``sum`` hands an expanded tangent (stride 0) to the region, where the trace expected a contiguous one."""
    region = st.compile(lambda x: x.sin() * 2, backend="eager")
    x = torch.randn(3, 4, requires_grad=True)
    warm(region, x)
    calls = []
    monkeypatch.setattr(function_code.FastBackward, "slow", lambda *a: calls.append(a))
    x.grad = None
    region(x).sum().backward()
    assert not calls and x.grad is not None
    torch.testing.assert_close(x.grad, x.detach().cos() * 2)
    assert x.grad.is_contiguous()


#: function, what is made of its results: an expanded tangent that gradients follow, an absent one, several layouts in turn
OTHER_TANGENTS = {
    "expanded": (lambda x, y: x.t() * y.t(), [lambda o: o.sum()]),
    "absent": (
        lambda x, y: (x * y, y.sin()),
        [lambda o: o[0].sum(), lambda o: o[1].sum(), lambda o: (o[0] + o[1]).sum()],
    ),
    "in turn": (lambda x, y: x * y, [lambda o: (o * o).sum(), lambda o: o.sum(), lambda o: (o.t() * o.t()).sum()]),
}


@pytest.mark.parametrize("make", [lambda: torch.randn(3, 3), lambda: TwoTensor(torch.randn(3, 3), torch.randn(3, 3))])
@pytest.mark.parametrize("name", OTHER_TANGENTS)
def test_other_tangents_that_come_twice_take_generated_backwards_as_well(
    name: str, make: Callable[[], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    function, losses = OTHER_TANGENTS[name]
    region = st.compile(function)
    calls: list[Any] = []
    general = function_code.run_backward
    monkeypatch.setattr(function_code, "run_backward", lambda *a: calls.append(a) or general(*a))
    for turn in range(4):
        calls.clear()
        for loss in losses:
            base = make(), make()
            found = []
            for call in (function, region):
                x, y = (t.detach().clone().requires_grad_() for t in base)
                out = loss(call(x, y))
                out.backward(retain_graph=True)
                out.backward()  # adds the same once more
                found.append([(t.grad, None if t.grad is None else t.grad.stride()) for t in (x, y)])
                with pytest.raises(RuntimeError, match="second time"):
                    out.backward()
            for (a, s), (b, t) in zip(*found, strict=True):
                assert s == t and type(a) is type(b)
                if a is not None:
                    torch.testing.assert_close(getattr(b, "a", b), getattr(a, "a", a))
        assert not calls or turn < 2
    x, y = (make().requires_grad_() for _ in range(2))
    out = losses[0](region(x, y))
    with torch.no_grad():
        y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_a_batch_norm_is_delivered_by_generated_code() -> None:
    torch.manual_seed(0)
    eager, region_of = torch.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4)
    region = st.compile(region_of, backend="eager")
    for _ in range(3):
        x = torch.randn(6, 4)
        torch.testing.assert_close(region(x), eager(x), rtol=0, atol=0)
    entry = region.specializations[0].source
    assert entry is not None and "finish" not in entry and "copy_" in entry
    for (name, got), want in zip(region_of.named_buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, msg=name)
        assert got._version == want._version, name


def test_alias_check_is_alias_pattern() -> None:
    base = torch.randn(8)
    a, b, sparse = torch.randn(4), torch.randn(4), torch.eye(3).to_sparse()
    calls = [(a, b), (base[:4], base[4:]), (base[:4], b), (a.detach(), a), (a, torch.empty(0)), (sparse, a)]
    for known in calls:
        check = alias_check(alias_pattern(known, known))
        for now in calls:
            assert check(now, now) is (alias_pattern(now, now) == alias_pattern(known, known))


def test_a_tangent_without_leaves() -> None:
    x = Constant(0.5, (4,)).requires_grad_()
    region = st.compile(lambda x: x.clone(), backend="eager")
    for _ in range(3):
        out = region(x)
        (got,) = torch.autograd.grad(out, x, torch.ones_like(out))
        (expected,) = torch.autograd.grad(x.clone(), x, torch.ones_like(out))
        assert type(got) is type(expected) and repr(got) == repr(expected)


def test_what_was_written_after_the_forward_is_named() -> None:
    x, w = torch.randn(4), torch.randn(4, requires_grad=True)
    y = st.compile(lambda x, w: x * w)(x, w)
    x.mul_(2)
    with pytest.raises(
        RuntimeError, match=r"modified by an inplace operation: args\[0\], a float32 tensor of shape \[4\]"
    ):
        y.sum().backward()
    two = TwoTensor(torch.randn(4), torch.randn(4))
    y = st.compile(lambda x, w: x * w)(two, w)
    two.mul_(2)
    with pytest.raises(RuntimeError, match=r"a float32 TwoTensor of shape \[4\] whose inner tensor the backward reads"):
        y.sum().backward(TwoTensor(torch.tensor(1.0), torch.tensor(1.0)))
    two = TwoTensor(torch.randn(4), torch.randn(4)).requires_grad_()
    y = st.compile(lambda x: x.exp(), partitioner="default")(two)
    y.a.mul_(2)
    with pytest.raises(
        RuntimeError, match=r"tensor of shape \[4\] that the backward reads, which aten.exp.default at .* has made"
    ):
        y.sum().backward(TwoTensor(torch.tensor(1.0), torch.tensor(1.0)))
