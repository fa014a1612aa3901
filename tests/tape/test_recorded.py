"""Recorded operations: from its third run on a tape issues the operations of autograd's functions itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from subclass_trace.tape import compiled_autograd
from subclass_trace.tape.recorded import FORMULAS, LIMIT, Recorded

Tensor = torch.Tensor
STEPS = 4


def recorded() -> list[Recorded]:
    """What the last tape calls for its runs of recorded operations."""
    program = compiled_autograd.tapes[-1].programs[None]
    return [v for v in program.__globals__.values() if isinstance(v, Recorded)]


def data(*shape: int, seed: int = 0, positive: bool = False) -> Tensor:
    t = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return t.abs() + 0.1 if positive else t


def gradients(f: Callable[..., Any], leaves: list[Tensor], step: int = 0) -> list[Any]:
    """Of a scalar; sums with a fixed random tensor, so that gradients differ from place to place."""
    mine = [t.detach().clone().requires_grad_(t.requires_grad) for t in leaves]
    torch.manual_seed(step)
    outs = f(*mine)
    outs = outs if isinstance(outs, (tuple, list)) else (outs,)
    loss = sum((o * data(*o.shape, seed=7 + step + k)).sum() for k, o in enumerate(outs))
    loss.backward()
    return [t.grad for t in mine]


def same_bits(got: list[Any], expected: list[Any]) -> None:
    for a, b in zip(got, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert torch.equal(a, b) and a.stride() == b.stride() and a.dtype == b.dtype
            assert not a._is_view() and not a.requires_grad


A, B, C = (
    data(4, 6).requires_grad_(),
    data(4, 6, seed=1).requires_grad_(),
    data(4, 6, seed=2, positive=True).requires_grad_(),
)
W, V, S = data(6, 6, seed=3).requires_grad_(), data(6, seed=4).requires_grad_(), data(2, 4, 6, seed=5).requires_grad_()
M, ROWS = data(2, 4, 6, 6, seed=6).requires_grad_(), torch.tensor([2, 0, 2])
#: autograd function -> (function, leaves)
CASES: dict[str, tuple[Callable[..., Any], list[Tensor]]] = {
    "Abs": (lambda a: a.abs(), [A]),
    "Add": (lambda a, v: torch.add(a, v, alpha=3), [A, V]),
    "Addcdiv": (torch.addcdiv, [A, B, C]),
    "Addcmul": (torch.addcmul, [A, B, C]),
    "Addmm": (F.linear, [A, W, V]),
    "Alias": (lambda a: torch.ops.aten.alias(a) * 2, [A]),
    "AvgPool2D": (lambda m: F.avg_pool2d(m, 2), [M]),
    "Baddbmm": (lambda s: torch.baddbmm(s, s[:, :, :4], s), [S]),
    "Bmm": (lambda s: s.bmm(s.transpose(1, 2)), [S]),
    "Cat": (lambda a, b: torch.cat([a, b, a], 1), [A, B]),
    "Clamp": (lambda a: a.clamp(-0.5, 0.5), [A]),
    "ClampMax": (lambda a: a.clamp_max(0.5), [A]),
    "ClampMin": (lambda a: a.clamp_min(0.5), [A]),
    "Clone": (lambda a: a.clone(), [A]),
    "Convolution": (lambda m, s: F.conv2d(m, s[:, :, :3, None].expand(2, 4, 3, 3)), [M, S]),
    "Cos": (torch.cos, [A]),
    "Div": (torch.div, [A, C]),
    "Dot": (torch.dot, [V, V.detach().cos().requires_grad_()]),
    "Elu": (F.elu, [A]),
    "Embedding": (lambda a: F.embedding(ROWS, a), [A]),
    "Exp": (torch.exp, [A]),
    "Expand": (lambda v: v.expand(4, 6), [V]),
    "Gelu": (F.gelu, [A]),
    "Hardtanh": (F.hardtanh, [A]),
    "Hardswish": (F.hardswish, [A]),
    "LeakyRelu": (F.leaky_relu, [A]),
    "Log": (torch.log, [C]),
    "Log1P": (torch.log1p, [C]),
    "LogSoftmax": (lambda a: a.log_softmax(1), [A]),
    "LogSigmoid": (F.logsigmoid, [A]),
    "Lerp": (torch.lerp, [A, B, C]),
    "MaxPool2DWithIndices": (lambda m: F.max_pool2d(m, 2), [M]),
    "Mean": (lambda a: a.mean(1), [A]),
    "Mm": (torch.mm, [A, W]),
    "MseLoss": (F.mse_loss, [A, B]),
    "Mul": (lambda a, v: a * v * 2.5, [A, V]),
    "Mv": (torch.mv, [A, V]),
    "NativeBatchNorm": (lambda m: F.batch_norm(m, torch.zeros(4), torch.ones(4), training=True), [M]),
    "NativeDropout": (lambda a: torch.native_dropout(a, 0.5, True)[0], [A]),
    "NativeGroupNorm": (lambda m: F.group_norm(m, 2), [M]),
    "NativeLayerNorm": (lambda a, v: F.layer_norm(a, (6,), v, v), [A, V]),
    "Neg": (torch.neg, [A]),
    "NllLoss": (lambda a: F.nll_loss(a[:3], ROWS), [A]),
    "Permute": (lambda s: s.permute(2, 0, 1), [S]),
    "Pow": (lambda c, a: (c.pow(3), c.pow(a), 2.0**a), [C, A]),
    "Reciprocal": (torch.reciprocal, [C]),
    "Relu": (torch.relu, [A]),
    "ReshapeAlias": (lambda a: torch.ops.aten._reshape_alias(a, [24], [1]), [A]),
    "Rsqrt": (torch.rsqrt, [C]),
    "Rsub": (lambda a: torch.rsub(a, 1.5), [A]),
    "Select": (lambda a: (a[1], a[:, 2]), [A]),
    "Sigmoid": (torch.sigmoid, [A]),
    "Silu": (F.silu, [A]),
    "Sin": (torch.sin, [A]),
    "Slice": (lambda a: a[1:, ::2], [A]),
    "SmoothL1Loss": (F.smooth_l1_loss, [A, B]),
    "Softmax": (lambda a: a.softmax(1), [A]),
    "Softplus": (F.softplus, [A]),
    "Split": (lambda a: a.split(2, 1)[::2], [A]),
    "SplitWithSizes": (lambda a: a.split([1, 5], 1), [A]),
    "Sqrt": (torch.sqrt, [C]),
    "Squeeze": (lambda a: a[:, :1].squeeze(1), [A]),
    "Stack": (lambda a, b: torch.stack([a, b, a]), [A, B]),
    "Sub": (lambda a, v: torch.sub(a, v, alpha=2), [A, V]),
    "Sum": (lambda a: a.sum(0), [A]),
    "T": (lambda a: a.t(), [A]),
    "Tanh": (torch.tanh, [A]),
    "Threshold": (lambda a: F.threshold(a, 0.1, 3.0), [A]),
    "ToCopy": (lambda a: a.double() * 2, [A]),
    "Transpose": (lambda s: s.transpose(0, 2), [S]),
    "Unbind": (lambda a: a.unbind(1)[1:3], [A]),
    "UnsafeSplit": (lambda a: torch.unsafe_split(a, 3, 1), [A]),
    "UnsafeView": (lambda s, w: s @ w, [S, W]),
    "Unsqueeze": (lambda a: a.unsqueeze(1), [A]),
    "View": (lambda a: a.view(24), [A]),
    "Where": (lambda a, b: torch.where(a > 0, a, b), [A, B]),
}


def test_every_function_has_a_case() -> None:
    assert CASES.keys() == FORMULAS


@pytest.mark.parametrize("name", CASES)
def test_recorded_operations_give_the_bits_of_the_function(name: str) -> None:
    f, leaves = CASES[name]
    for step in range(STEPS):
        expected = gradients(f, leaves, step)
        with compiled_autograd():
            got = gradients(f, leaves, step)
        same_bits(got, expected)
    assert any(
        n.name.removesuffix("Backward0").rstrip("0123456789").removesuffix("Backward") == name
        for n in compiled_autograd.tapes[-1].nodes
    )
    assert sum(len(r.recordings) for r in recorded()) == len(recorded()) == 1


def test_gradients_that_are_one_tensor_share_no_memory() -> None:
    """Both leaves get the same gradient: one may keep it, the other needs a copy."""
    for size in (4, 100):
        a, b = data(size, size).requires_grad_(), data(size, size, seed=1).requires_grad_()
        for _ in range(STEPS):
            a.grad = b.grad = None
            with compiled_autograd():
                (a + b).tanh().sum().backward()
            assert torch.equal(a.grad, b.grad) and a.grad.data_ptr() != b.grad.data_ptr()


def test_a_sum_takes_over_no_gradient_that_is_still_to_be_read() -> None:
    def f(a: Tensor) -> Tensor:
        b, c = a.sin(), a.cos()
        d = b + c  # one gradient for both
        return d.tanh() + b.exp() + c.exp() + c

    a = data(100, 100).requires_grad_()  # large enough for sums in place
    for _ in range(STEPS):
        expected = gradients(f, [a])
        with compiled_autograd():
            same_bits(gradients(f, [a]), expected)


def test_other_metadata_is_recorded_anew_and_beyond_the_limit_the_functions_are_called() -> None:
    f: Any = lambda a: (a * 2.0).tanh() * a.sum()
    for n in (3, 3, 3, 4, 4, 4, 5, 6, 7, 8, 9, 4, 3):
        expected = gradients(f, [data(n, 6).requires_grad_()], n)
        with compiled_autograd():
            same_bits(gradients(f, [data(n, 6).requires_grad_()], n), expected)
    (run,) = recorded()
    assert len(run.recordings) == LIMIT and run.attempts == LIMIT


def test_a_python_number_is_no_constant() -> None:
    for factor in (2.0, 3.0, 4.0, 5.0, -0.0):
        f: Any = lambda a, factor=factor: (a * factor).sin() * factor
        expected = gradients(f, [A])
        with compiled_autograd():
            same_bits(gradients(f, [A]), expected)
    assert compiled_autograd.stats.captures == 1


def test_nothing_is_recorded_in_an_unusual_state_or_for_functions_that_look_at_values() -> None:
    for _ in range(STEPS):
        with compiled_autograd(), torch.autocast("cpu", torch.bfloat16):
            gradients(F.linear, [A, W, V])
    assert set(compiled_autograd.tapes[-1].programs) == {"functions"}
    for k in range(STEPS):
        a = data(4, 6, seed=k)
        a[k % 4, 0] = 0.0  # prod's gradient takes another way where there are zeros
        a.requires_grad_()
        expected = gradients(lambda a: a.sin().prod(1).cos(), [a], k)
        with compiled_autograd():
            same_bits(gradients(lambda a: a.sin().prod(1).cos(), [a], k), expected)


def test_hooks_and_gradient_accumulation_between_recorded_operations() -> None:
    def f(a: Tensor, w: Tensor) -> Tensor:
        y = F.linear(a, w).tanh()
        y.register_hook(lambda g: g * 2)
        return F.linear(y, w).tanh()

    for step in range(STEPS):
        results = []
        for on in (False, True):
            a, w = A.detach().clone().requires_grad_(), W.detach().clone().requires_grad_()
            for k in range(3):
                with compiled_autograd() if on else torch.enable_grad():
                    (f(a, w) * (step + k)).sum().backward()
            results.append([a.grad, w.grad])
        same_bits(*results)
    assert len(recorded()) == 2
