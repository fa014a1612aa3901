"""What every class of the zoo must do, whatever it is for."""

from __future__ import annotations

import copy
import doctest
import importlib
import io

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch_features import fakes_of_wrappers_without_tensors

from subclass_trace import zoo
from subclass_trace.subclass.flatten import flatten, leaves_of, unflatten
from subclass_trace.subclass.protocol import problems
from subclass_trace.subclass.spec import WrapperSpec, same_spec

torch.set_num_threads(1)


def randn(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


MAKERS = {
    "two": lambda: zoo.TwoTensor(randn(4, 4), randn(4, 4, seed=1)),
    "fp8": lambda: zoo.to_fp8(randn(4, 4)),
    "int4": lambda: zoo.PackedInt4.quantize(randn(4, 4)),
    "no_bias": lambda: zoo.OptionalBias(randn(4, 4)),
    "bias": lambda: zoo.OptionalBias(randn(4, 4), randn(4, 4, seed=1)),
    "constant": lambda: zoo.Constant(0.5, (4, 4)),
    "masked": lambda: zoo.Masked(randn(4, 4), randn(4, 4, seed=1) > 0),
    "nested": lambda: zoo.TwoTensor(*(zoo.TwoTensor(randn(4, 4, seed=i), randn(4, 4, seed=i + 1)) for i in (0, 2))),
    "two_of_fp8": lambda: zoo.TwoTensor(zoo.to_fp8(randn(4, 4)), zoo.to_fp8(randn(4, 4, seed=1))),
    "two_of_int4": lambda: zoo.TwoTensor(
        zoo.PackedInt4.quantize(randn(4, 4)), zoo.PackedInt4.quantize(randn(4, 4, seed=1))
    ),
}
every = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
LEAVES = {
    "two": 2,
    "fp8": 2,
    "int4": 2,
    "no_bias": 1,
    "bias": 2,
    "constant": 0,
    "masked": 2,
    "nested": 4,
    "two_of_fp8": 4,
    "two_of_int4": 4,
}


def value(x: torch.Tensor) -> list[torch.Tensor]:
    """The dense tensors that a wrapper stands for (two for a TwoTensor), as copies, without asking the wrapper."""
    if isinstance(x, zoo.TwoTensor):
        return value(x.a) + value(x.b)
    if isinstance(x, zoo.ScaledFP8):
        return [(x.qdata.to(torch.float32) * x.scale).to(x.dtype)]
    if isinstance(x, zoo.PackedInt4):
        low, high = (x.packed & 15).to(torch.int8), (x.packed >> 4).to(torch.int8)
        signed = torch.stack([low, high], -1).flatten(1).to(x.scale.dtype)
        dense = torch.where(signed > 7, signed - 16, signed) * x.scale
        return [dense.t() if x.transposed else dense]
    if isinstance(x, zoo.OptionalBias):
        return [x.data_.clone() if x.bias is None else x.data_ + x.bias]
    if isinstance(x, zoo.Constant):
        return [torch.full(x.shape, x.value, dtype=x.dtype)]
    if isinstance(x, zoo.Masked):
        return [torch.where(x.mask, x.data_, torch.zeros_like(x.data_))]
    assert type(x) in (torch.Tensor, torch.nn.Parameter), type(x)
    return [x.detach().clone()]


def assert_same(got: torch.Tensor, want: list[torch.Tensor]) -> None:
    for g, w in zip(value(got), want, strict=True):
        torch.testing.assert_close(g, w)


@pytest.mark.parametrize("name", ["constant", "int4", "masked", "optional_bias", "scaled_fp8", "two"])
def test_documentation_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"subclass_trace.zoo.{name}"))
    assert result.failed == 0 and result.attempted >= 4


def test_every_public_name_is_documented() -> None:
    for name in zoo.__all__:
        assert getattr(zoo, name).__doc__, name


@pytest.mark.parametrize("name", MAKERS)
def test_flatten_round_trip(name: str) -> None:
    x = MAKERS[name]()
    assert problems(type(x)) == ()
    leaves, spec = flatten(x)
    assert isinstance(spec, WrapperSpec) and len(leaves) == LEAVES[name]
    y = unflatten(spec, leaves)
    assert type(y) is type(x) and same_spec(flatten(y)[1], spec)
    assert y.stride() == x.stride()
    assert all(a is b for a, b in zip(leaves_of(y), leaves, strict=True))
    assert_same(y, value(x))


@every
def test_unflatten_honours_the_outer_size_and_stride(make) -> None:
    x = make()
    names, context = x.__tensor_flatten__()
    inner = {name: getattr(x, name) for name in names}
    y = type(x).__tensor_unflatten__(inner, context, torch.Size((4, 4)), (1, 4))
    assert y.shape == (4, 4) and y.stride() == (1, 4)


@every
def test_repr_names_the_class(make) -> None:
    assert repr(make()).startswith(type(make()).__name__ + "(")


@every
def test_requires_grad_and_parameter(make) -> None:
    x = make()
    p = torch.nn.Parameter(x)
    assert type(p) is type(x) and isinstance(p, torch.nn.Parameter) and p.requires_grad and p.is_leaf
    assert_same(p, value(x))
    leaves, spec = flatten(p)
    assert unflatten(spec, leaves).requires_grad


@every
def test_detach_is_another_object_over_the_same_memory(make) -> None:
    x = make().requires_grad_()
    y = x.detach()
    assert y is not x and type(y) is type(x) and not y.requires_grad
    for a, b in zip(leaves_of(x), leaves_of(y), strict=True):
        assert a.data_ptr() == b.data_ptr()


@every
def test_clone_and_deepcopy_share_nothing(make) -> None:
    x = make()
    for y in (x.clone(), copy.deepcopy(x)):
        assert type(y) is type(x)
        assert_same(y, value(x))
        for a, b in zip(leaves_of(x), leaves_of(y), strict=True):
            assert a.data_ptr() != b.data_ptr()


@every
def test_pickle(make) -> None:
    x, file = make(), io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    y = torch.load(file, weights_only=False)
    assert type(y) is type(x)
    assert_same(y, value(x))


@every
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_transpose_is_a_view(make, mode) -> None:
    x = make()
    with mode():
        y = x.t()
    assert type(y) is type(x) and y.stride() == (1, 4)
    assert_same(y, [v.t() for v in value(x)])
    for a, b in zip(leaves_of(x), leaves_of(y), strict=True):
        assert a.data_ptr() == b.data_ptr()


@every
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_linear_against_dense(make, mode) -> None:
    w = make()
    if isinstance(w, zoo.Masked):
        pytest.skip("no one answer for missing elements")
    x, bias = randn(2, 3, 4, seed=5), randn(4, seed=6)
    want = [torch.nn.functional.linear(x, v, bias) for v in value(w)]
    with mode():
        got = torch.nn.functional.linear(x, w, bias)
    assert isinstance(got, zoo.TwoTensor) == isinstance(w, zoo.TwoTensor)
    assert_same(got, want)


@every
def test_gradient_against_dense(make) -> None:
    w, x = make(), randn(3, 4, seed=5)
    if isinstance(w, zoo.Masked):
        pytest.skip("no one answer for missing elements")
    want_w, want_x = [], []
    for v in value(w):
        dense_x, v = x.clone().requires_grad_(), v.requires_grad_()
        (dense_x @ (v * 2)).square().sum().backward()
        want_w.append(v.grad)
        want_x.append(dense_x.grad)
    w = w.requires_grad_()
    plain_x = zoo.TwoTensor(x, x.clone()) if len(want_x) == 2 else x.clone()
    if len(want_x) == 4:
        plain_x = zoo.TwoTensor(plain_x2 := zoo.TwoTensor(x, x.clone()), plain_x2.clone())
    plain_x.requires_grad_()
    (plain_x @ (w * 2)).square().sum().backward()
    assert_same(plain_x.grad, want_x)
    assert_same(w.grad, want_w)


@every
def test_foreign_wrappers_are_left_alone(make) -> None:
    x = make()
    other = zoo.Masked(randn(4, 4), randn(4, 4) > 0) if not isinstance(x, zoo.Masked) else zoo.OptionalBias(randn(4, 4))
    with pytest.raises(TypeError, match="Multiple dispatch failed"):
        torch.add(x, other)
    with pytest.raises(TypeError, match="Multiple dispatch failed"):
        torch.add(other, x)


@every
def test_fake_tensors(make) -> None:
    x = make()
    if not leaves_of(x) and not fakes_of_wrappers_without_tensors():
        pytest.skip("this torch makes no fake of a wrapper without inner tensors")
    mode = FakeTensorMode(shape_env=ShapeEnv())
    fake = mode.from_tensor(x)
    assert type(fake) is type(x) and all(isinstance(leaf, FakeTensor) for leaf in leaves_of(fake))
    with mode:
        y = (fake.t() * 2).clone()
    want = (x.t() * 2).clone()
    assert type(y) in (type(want), FakeTensor)
    assert y.stride() == want.stride() and y.dtype == want.dtype


@every
def test_changing_the_metadata_in_place_is_right_or_refused(make) -> None:
    x = make()
    want = [v.t() for v in value(x)]
    if isinstance(x, zoo.TwoTensor) and not isinstance(x.a, (zoo.ScaledFP8, zoo.PackedInt4)):
        assert x.t_() is x and x.stride() == (1, 4)
        assert_same(x, want)
    else:
        with pytest.raises(RuntimeError, match=r"has no rule for aten\.t_\.default"):
            x.t_()


@every
def test_a_view_of_the_bits_is_refused(make) -> None:
    if isinstance(make(), zoo.TwoTensor) and not isinstance(make().a, (zoo.ScaledFP8, zoo.PackedInt4)):
        pytest.skip("each half has bits of its own")
    with pytest.raises(RuntimeError, match="bits"):
        make().view(torch.int32)
