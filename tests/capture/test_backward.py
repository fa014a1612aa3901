"""Backward without guesses: other tangents, several backwards, higher derivatives, hooks, operations without fake kernels."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import subclass_trace as st
from subclass_trace.zoo import OptionalBias, TwoTensor


def two(*size: int, k: float = 0.5) -> TwoTensor:
    n = torch.Size(size).numel()
    ramp = torch.arange(float(n)).reshape(size) / 5 + k
    return TwoTensor(ramp, 1 - ramp)


def dense(t):
    return (
        [t]
        if type(t) in (torch.Tensor, torch.nn.Parameter)
        else [d for n in t.__tensor_flatten__()[0] for d in dense(getattr(t, n))]
    )


def close(a, b) -> None:
    assert type(a) is type(b), f"{type(a)} {type(b)}"
    for x, y in zip(dense(a), dense(b), strict=True):
        torch.testing.assert_close(x, y)


DENSE = lambda: torch.rand(3, 4)


def both(f, make, use, **options):
    """``use(call, x)`` for eager and compiled from the same input; the results must agree."""
    torch.manual_seed(1)
    x = make().detach().requires_grad_()
    region = st.compile(f, **options)
    want = use(f, x)
    x.grad = None
    got = use(region, x)
    for a, b in zip(want, got, strict=True):
        if a is None or b is None:
            assert a is b
        else:
            close(a, b)
    return region


@pytest.mark.parametrize("present", [(False, True), (True, False)])
def test_another_set_of_inner_tensors_in_the_tangent(present) -> None:
    make = lambda p: OptionalBias(torch.ones(3), torch.ones(3) if p else None)
    f = lambda x: x * 2
    x = make(present[0]).requires_grad_()
    want = torch.autograd.grad(f(x), x, make(present[1]))[0]
    got = torch.autograd.grad(st.compile(f)(x), x, make(present[1]))[0]
    close(got, want)


def test_gradcheck() -> None:
    region = st.compile(lambda x, y: (x @ y).sin())
    x, y = (torch.rand(2, 2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(region, (x, y))
    assert torch.autograd.gradgradcheck(region, (x, y))


# ---------------------------------------------------------------------------------------------- hooks


def test_hook_inside_the_region() -> None:
    def f(x):
        y = x * 2
        y.register_hook(lambda g: g * 5)
        return y * 3

    both(f, DENSE, lambda call, x: [call(x).sum().backward(), x.grad][1:])


def test_a_hook_that_changes_the_type_of_the_tangent() -> None:
    def use(call, x):
        out = call(x)
        out.register_hook(lambda g: TwoTensor(g, g * 2))
        return torch.autograd.grad(out, x, torch.ones(3, 4))

    both(lambda x: x * 2, DENSE, use)


def test_retain_grad_of_an_output() -> None:
    x = torch.ones(3, requires_grad=True)
    out = st.compile(lambda x: x * 2)(x)
    out.retain_grad()
    (out * 3).sum().backward()
    assert out.grad.tolist() == [3, 3, 3]


# ---------------------------------------------------------------------------------------------- structure of gradients
def test_unused_inputs_get_no_gradient() -> None:
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    out = st.compile(lambda x, y: x * 2)(x, y)
    assert torch.autograd.grad(out.sum(), (x, y), allow_unused=True)[1] is None
    out = st.compile(lambda x, y: x * 2)(x, y)
    out.sum().backward()
    assert y.grad is None


def test_needs_input_grad_of_integer_and_detached_outputs() -> None:
    x = torch.rand(3, requires_grad=True)
    values, where, copy, flag = st.compile(lambda x: (x.max(0).values, x.max(0).indices, x.detach(), x > 0))(x)
    assert [t.requires_grad for t in (values, where, copy, flag)] == [True, False, False, False]
    values.backward()
    assert x.grad.sum().item() == 1


def test_a_refused_backward_of_dynamic_sizes_says_what_eager_says() -> None:
    """Autograd's message names the sizes of the tensor, which are symbols in the trace."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x @ w
        x.mul_(2)
        return y

    messages = []
    for call in (function, st.compile(function, dynamic=True)):
        with pytest.raises(RuntimeError) as caught:
            call(torch.ones(3, 4), torch.ones(4, 2, requires_grad=True)).sum().backward()
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_a_view_of_a_leaf_that_the_region_makes_of_a_view_of_an_input() -> None:
    """Its history would end in a leaf inside of the region; returned as a view of the input it would have none."""

    def function(x: torch.Tensor) -> torch.Tensor:
        leaf = x.view(-1).requires_grad_()
        return leaf.view(3, 1)

    def of_a_result(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x + x
        return y, function(y)

    for f in (function, of_a_result):
        with pytest.warns(UserWarning, match="a view that cannot be replayed"):
            st.compile(f)(torch.ones(3))


@pytest.mark.parametrize("layer", [torch.nn.Embedding, torch.nn.EmbeddingBag])
@pytest.mark.usefixtures("own_backward")
def test_calls_with_sparse_gradients_run_eagerly(layer: type) -> None:
    table = layer(5, 2, sparse=True)
    region = st.compile(lambda rows: table(rows).sum())
    with pytest.warns(UserWarning, match="runs eagerly: the gradient of an input is a sparse tensor") as caught:
        region(torch.tensor([[1, 2]])).backward()
    text = str(caught[0].message)
    assert "table.weight" in text and "sparse=False" in text
    region(torch.tensor([[1, 3]])).backward()
    assert table.weight.grad.is_sparse and table.weight.grad.coalesce().indices().tolist() == [[1, 2, 3]]
    assert "2 calls: the gradient of an input is a sparse tensor (table.weight)" in region.explain()
    with torch.no_grad():
        region(torch.tensor([[1, 2]]))
    assert len(region.specializations) == 1
    with pytest.raises(st.UnsupportedError, match="the gradient of an input is a sparse tensor"):
        region.specialize(torch.tensor([[1, 2]]))


def _grows(x: torch.Tensor) -> torch.Tensor:
    x.resize_(6)
    return x.fill_(2) * 3


@pytest.mark.parametrize(
    "function", [_grows, lambda x: torch.linalg.lstsq(x.view(2, 2) + torch.eye(2), torch.ones(2, 1)).solution]
)
def test_what_only_eager_mode_has_runs_eagerly(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    region = st.compile(function)
    with pytest.warns(UserWarning, match="a call of a region runs eagerly"):
        found = region(torch.ones(4))
    # Close, not equal: LAPACK's last bit moves with where its operands lie in memory.
    for result in (found, region(torch.ones(4))):
        torch.testing.assert_close(result, function(torch.ones(4)))
    assert "calls that ran eagerly\n  2 calls: " in region.explain()


class Scaled(torch.autograd.Function):
    """A constant in the forward, two in the backward."""

    @staticmethod
    def forward(ctx, x, y):
        return x * y * torch.tensor(2.0)

    @staticmethod
    def backward(ctx, grad):
        return grad * torch.tensor(3.0), grad * torch.tensor(5.0)


def test_constants_of_a_backward_are_others_than_those_of_the_forward() -> None:
    x, y = (torch.full((2,), k, requires_grad=True) for k in (1.0, 4.0))
    out = st.compile(Scaled.apply)(x, y)
    out.sum().backward()
    assert (out[0].item(), x.grad[0].item(), y.grad[0].item()) == (8.0, 3.0, 5.0)


@pytest.mark.parametrize("middle", [torch.nn.SiLU(), torch.nn.LayerNorm(4)], ids=["silu", "layer_norm"])
def test_gradient_penalty_whose_backward_writes_in_place(middle: torch.nn.Module) -> None:
    """The first trace has no operation in place, a later one of the same region has: saved values keep their names."""
    found = []
    for call in (lambda m: m, st.compile):
        torch.manual_seed(0)
        layers = torch.nn.Sequential(torch.nn.Linear(3, 4), middle, torch.nn.Linear(4, 1))
        x = torch.rand(5, 3).requires_grad_()
        out = call(layers)(x)
        (grad,) = torch.autograd.grad(out, x, torch.ones_like(out), create_graph=True)
        loss = out.mean() + ((grad.norm(2, 1) - 1) ** 2).mean()
        found.append(torch.autograd.grad(loss, [x, *layers.parameters()]))
    for eager, ours in zip(*found, strict=True):
        assert torch.allclose(eager, ours, atol=1e-6)


def test_another_default_dtype_before_the_backward() -> None:
    """Factories that a backward recomputes have the dtype of the forward."""
    x = torch.ones(3, 3, requires_grad=True)
    y = st.compile(lambda x: (x @ torch.ones(3, 3)).sin())(x)
    torch.set_default_dtype(torch.float64)
    try:
        y.sum().backward()
    finally:
        torch.set_default_dtype(torch.float32)
    twin = torch.ones(3, 3, requires_grad=True)
    (twin @ torch.ones(3, 3)).sin().sum().backward()
    assert x.grad is not None and twin.grad is not None and torch.equal(x.grad, twin.grad)


# ------------------------------------------------ operations that torch has no fake kernel for, while sizes are symbols
Tensor = torch.Tensor


def _learnable(x: Tensor) -> Tensor:
    scale, zero = torch.full((1,), 0.3), torch.zeros(1)
    return torch._fake_quantize_learnable_per_tensor_affine(x, scale, zero, -8, 7, 1.0)


#: function, shape for a size, what explain() says where there is not one specialization for all sizes
BACKWARDS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[int], tuple[int, ...]], str]] = {
    "gamma": (lambda x: torch.distributions.Gamma(x, 1.0, validate_args=False).rsample(), lambda n: (n,), ""),
    "gamma, transposed": (lambda x: torch._standard_gamma(x.t()), lambda n: (n, 3), ""),
    "chi2": (lambda x: torch.distributions.Chi2(x, validate_args=False).rsample(), lambda n: (n, 2), ""),
    "pooling": (
        lambda x: F.fractional_max_pool3d(x, 2, output_size=(2, 2, 2)),
        lambda n: (1, 2, n, 5, n),
        "4 specializations",
    ),
    "fake quantization": (_learnable, lambda n: (n, 3), "no kernel for fake tensors"),
}


def _run(f: Callable[[Tensor], Tensor], shape: tuple[int, ...], wrapped: bool) -> tuple[str, ...]:
    torch.manual_seed(0)
    dense = torch.rand(shape) + 1
    x = (TwoTensor(dense, dense + 1) if wrapped else dense).requires_grad_()
    out = f(x)
    (out * out.detach()).sum().backward()
    assert x.grad is not None
    return str(out.detach()), str(x.grad), str(x.grad.stride()), str(torch.rand(1))


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", BACKWARDS)
@pytest.mark.sweep(every=4)
def test_as_in_eager(name: str, dynamic: bool, wrapped: bool) -> None:
    """Values, gradients and the random stream, also where the size has to be a number."""
    f, shape, said = BACKWARDS[name]
    region: Any = st.compile(f, dynamic=dynamic or None)
    if dynamic and "no kernel" in said:
        with pytest.raises(st.UnsupportedError, match=said):
            _run(region, shape(5), wrapped)
        return
    for n in (5, 6, 7, 9):
        assert _run(region, shape(n), wrapped) == _run(f, shape(n), wrapped)
    if "specializations" in said:
        assert said in region.explain()
    elif not said:
        assert len(region.specializations) <= 2


_COLLECTED = [0]


def _count_collections(phase: str, info: dict[str, int]) -> None:
    _COLLECTED[0] += 1


@pytest.mark.usefixtures("own_backward")
def test_what_the_collector_calls_is_no_read_of_a_backward() -> None:
    """Not while a later backward is traced, either."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return torch.stack([g * 2 for _ in range(3)]).sum(0) / 3

    x = torch.ones(3, requires_grad=True)
    out = st.compile(Scaled.apply)(x)
    before = gc.get_threshold()
    gc.callbacks.append(_count_collections)
    gc.set_threshold(1)
    try:
        out.backward(TwoTensor(torch.ones(3), torch.ones(3)))
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(_count_collections)
    assert _COLLECTED[0] > 0 and isinstance(x.grad, TwoTensor) and x.grad.a.tolist() == [2, 2, 2]
