"""Rules, families and defaults: which one serves a call, and that its results are right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from authored import (
    MAKERS,
    Halves,
    Pair,
    Scaled,
    Shifted,
    Strict,
    TaggedPair,
    assert_equal,
    leaves,
    randn,
)
from torch import Tensor
from torch.nn import functional as F

import subclass_trace as st
from subclass_trace import authoring
from subclass_trace.authoring import WrapperTensor

aten = torch.ops.aten


def scaled(*size: int) -> Scaled:
    return Scaled(randn(*size), torch.tensor(2.0))


# ------------------------------------------------------------------------------------------- what every wrapper does


def test_memory_formats() -> None:
    x = Pair(randn(2, 3, 4, 5), randn(2, 3, 4, 5))
    y = x.to(memory_format=torch.channels_last)
    assert y.stride() == y.a.stride() == (60, 1, 15, 3) and y.is_contiguous(memory_format=torch.channels_last)
    assert y.contiguous().stride() == y.contiguous().b.stride() == (60, 20, 5, 1)
    assert y.clone().stride() == (60, 1, 15, 3)
    z = Scaled(randn(2, 3, 4, 5), torch.tensor(2.0), torch.float64)  # the scale has another shape
    assert z.to(memory_format=torch.channels_last).stride() == (60, 1, 15, 3)
    w = Halves(randn(2, 3), randn(2, 3)).replace(outer_size=(6, 2), outer_stride=(1, 6))  # strides that no field has
    assert type(w.clone()) is Halves and w.clone().stride() == (1, 6)
    assert type(w.contiguous()) is Tensor


def test_versions_and_views_of_views() -> None:
    for x in (Pair(randn(4, 4), randn(4, 4)), scaled(4, 4), Shifted(randn(4, 4))):
        before = [t.clone() for t in leaves(x)]
        rows = x[1:3]
        part = rows.t()[0]
        assert part._is_view() and part._base is x and type(part) is type(x)
        part.add_(1.0)
        assert x._version == rows._version == part._version == 1
        changed = before[0].clone()
        changed[1:3, 0] += 0.5 if isinstance(x, Scaled) else 1
        torch.testing.assert_close(leaves(x)[0], changed)
        x.mul_(2.0)
        assert x._version == part._version == 2
        torch.testing.assert_close(leaves(part)[0], changed[1:3, 0] * 2)
        with torch.inference_mode():
            row = x[0]
            assert not row.is_inference() and row.add_(1.0) is row
        assert x._version == 3


# ----------------------------------------------------------------------------------------------------------- defaults
def test_per_inner() -> None:
    x, y = (Pair(randn(4, 4, seed=k), randn(4, 4, seed=k + 1)) for k in (0, 2))
    programs: list[Any] = [
        lambda x, y: x @ y + 1,
        lambda x, y: torch.cat([x, y]).split(3)[2],
        lambda x, y: F.layer_norm(x, (4,)).softmax(0),
        lambda x, y: x.sort(dim=1).values,
        lambda x, y: torch._foreach_mul([x, y], 2.0)[1],
        lambda x, y: torch.zeros_like(x) + x.new_ones(4),
        lambda x, y: torch.where(x > 0, x, y).to(torch.float64),
        lambda x, y: x.clone().t_().mul_(y),
        lambda x, y: torch.add(x, y, out=x.clone()),
        lambda x, y: x.as_strided((2, 2), (4, 1), 1),
        lambda x, y: x.clone().index_put_((torch.tensor([0, 2]),), y[:2]),
        lambda x, y: torch.mul(x, 2.0, out=y.clone()),
    ]
    for program in programs:
        got, want = program(x, y), Pair(program(x.a, y.a), program(x.b, y.b))
        assert_equal(got, want)
    assert Pair(torch.tensor(1), torch.tensor(1)).item() == 1


def test_per_inner_keeps_context_and_optional_tensors() -> None:
    x = TaggedPair(randn(2), randn(2), 4)
    assert type(x + 1) is TaggedPair and (x + 1).tag == 4
    assert (-Shifted(randn(2))).shift is None
    y = -Shifted(randn(2), torch.ones(2))
    assert type(y) is Shifted and y.shift.tolist() == [-1, -1]


def test_per_inner_refusals() -> None:
    x = TaggedPair(randn(3), randn(3), 1)
    with pytest.raises(st.UnsupportedError, match="but its operands differ") as error:
        x + x.replace(tag=2)
    assert error.value.fix == "write a rule: @TaggedPair.implements(aten.add.Tensor)"
    with pytest.raises(st.UnsupportedError, match="different Python values for the inner tensors of a Pair"):
        Pair(torch.tensor(1.0), torch.tensor(2.0)).item()
    with pytest.raises(st.UnsupportedError, match="results of different sizes"):
        Pair(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 1.0])).nonzero()
    plain = torch.zeros(3)
    for write in (lambda: plain.add_(x), lambda: plain.copy_(x), lambda: torch.add(x, 1, out=plain)):
        with pytest.raises(st.UnsupportedError, match="would write a TaggedPair into a plain tensor"):
            write()
    assert plain.tolist() == [0, 0, 0]

    class Rows(st.WrapperTensor, default="per_inner"):
        data_: Tensor
        scale: Tensor

    with pytest.raises(st.UnsupportedError, match="scale has another shape than the wrapper") as error:
        Rows(randn(4, 4), randn(4)).sum(0)
    assert error.value.path == "Rows.scale"
    with pytest.raises(st.UnsupportedError, match="scale has another shape"):
        Rows(randn(8).view(4, 2)[:, 0], randn(4)).as_strided((2,), (1,))


def test_dequantize() -> None:
    x, y = scaled(4, 4), Halves(randn(4, 2), randn(4, 2))
    for w in (x, y):
        dense = w.dequantize()
        assert_equal(w @ w, dense @ dense)
        assert_equal(torch.ones(4) + w, torch.ones(4) + dense)
        assert_equal(torch.cat([w, dense]), torch.cat([dense, dense]))
        assert type(torch.zeros_like(w)) is Tensor
        plain = torch.zeros(4, 4)
        assert plain.add_(w) is plain and torch.equal(plain, dense)
        assert w.add_(w) is w and w.mul_(torch.ones(4)) is w
        torch.testing.assert_close(w.dequantize(), dense * 2)
        assert torch.add(plain, 1, out=w) is w
        torch.testing.assert_close(w.dequantize(), plain + 1)
        assert w.zero_() is w and not w.dequantize().any()


def test_dequantize_may_return_an_inner_tensor() -> None:
    """The dense value gets a history; the inner tensor that it is must not."""

    class Plain(st.WrapperTensor, default="dequantize"):
        data_: Tensor

        def dequantize(self) -> Tensor:
            return self.data_

    x = Plain(randn(3)).requires_grad_()
    dense = x.dequantize()
    assert dense.requires_grad and dense.data_ptr() == x.data_.data_ptr()
    assert not x.data_.requires_grad
    (dense * 2).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0))
    for compiler in (st.compile, lambda f: torch.compile(f, backend="aot_eager", fullgraph=True)):
        y = compiler(lambda x: x.dequantize() * 3)(x)
        (grad,) = torch.autograd.grad(y.sum(), x)
        assert torch.equal(grad, torch.full((3,), 3.0)) and not x.data_.requires_grad


def test_dequantize_refuses_views_and_metadata() -> None:
    x = Halves(randn(4, 2), randn(4, 2))
    with pytest.raises(st.UnsupportedError, match=r"Halves has no rule for aten\.t\.default") as error:
        x.t()
    assert "@Halves.implements(aten.t.default)" in error.value.fix and "implements_views" in error.value.fix
    with pytest.raises(st.UnsupportedError, match=r"no rule for aten\.t_\.default"):
        x.t_()
    with pytest.raises(st.UnsupportedError, match="no rule for aten.view.dtype") as error:
        scaled(2, 2).view(torch.int32)
    assert "bits" in error.value.fix
    assert type(x.as_strided((4, 4), (4, 1))) is Halves  # to the geometry that it has: an alias
    with pytest.raises(st.UnsupportedError, match="no rule for aten.as_strided"):
        x.as_strided((2, 2), (4, 1))


def test_dequantize_without_requantize() -> None:
    class Frozen(st.WrapperTensor, default="dequantize"):
        data_: Tensor

        def dequantize(self) -> Tensor:
            return self.data_  # the inner tensor itself: it must not be written by accident

    x = Frozen(torch.ones(2))
    with pytest.raises(st.UnsupportedError, match=r"no rule for aten\.add_\.Tensor") as error:
        x.add_(1)
    assert "requantize_(self, value)" in error.value.fix and x.data_.tolist() == [1, 1]

    class Thawed(Frozen):
        def requantize_(self, value: Tensor) -> None:
            assert value is not self.data_
            self.data_.copy_(value)

    assert Thawed(torch.ones(2)).add_(1).data_.tolist() == [2, 2]


def test_refuse() -> None:
    x = Strict(torch.ones(2))
    with pytest.raises(st.UnsupportedError) as error:
        x.sum()
    here = f"{__file__}:{test_refuse.__code__.co_firstlineno + 3} (test_refuse)"
    assert str(error.value) == (
        "Strict has no rule for aten.sum.default\n"
        f"  where:    {here}\n"
        "  got:      aten.sum.default\n"
        "  fix:      add one: @Strict.implements(aten.sum.default), or a family such as Strict.implements_views(); serve the "
        "function that asks for it, above autograd: @Strict.implements_torch_function(torch.nn.functional.linear); "
        "or choose another default for the class: 'dequantize', 'weight' or 'per_inner'"
    )
    assert type(x.relu() + 1) is Strict and x.add_(1) is x
    with pytest.raises(st.UnsupportedError, match=r"no rule for aten\.sub_\.Tensor"):
        x.sub_(1)
    with torch.inference_mode(), pytest.raises(st.UnsupportedError, match=r"no rule for aten\.view\.default"):
        x.reshape(2, 1)  # a composite operation is taken apart


class Tanh(WrapperTensor):
    """A forward whose backward is refused."""

    value_: Tensor


Tanh.implements_per_inner(aten.tanh.default)


def test_a_refusal_in_a_backward_names_who_asks() -> None:
    x = Tanh(torch.ones(2)).requires_grad_()
    with pytest.raises(st.UnsupportedError, match="Tanh has no rule for aten.tanh_backward.default") as error:
        torch.autograd.grad(x.tanh(), x, torch.ones(2))
    assert "asked for by TanhBackward0 in a backward (torch.autograd.detect_anomaly() tells" in str(error.value.got)
    with pytest.warns(UserWarning, match="Anomaly"), torch.autograd.detect_anomaly(check_nan=False):
        y = x.tanh()
        with pytest.raises(st.UnsupportedError) as error, pytest.warns(UserWarning, match="Error detected in Tanh"):
            torch.autograd.grad(y, x, torch.ones(2))
    assert "(made at File " in str(error.value.got) and "test_authored_rules.py" in str(error.value.got)
    assert "test_authored_rules.py" in str(error.value.path) and "implements_torch_function" in str(error.value.fix)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_composites_that_may_alias(mode) -> None:
    for x in (MAKERS["pair"](), MAKERS["scaled"](), MAKERS["halves"]()):
        with mode():
            assert x.to(x.dtype) is x and x.contiguous() is x
            assert x.to(torch.float64).dtype == torch.float64
    with mode():
        assert MAKERS["pair"]().reshape(2, 8).shape == (2, 8)


# -------------------------------------------------------------------------------------------------------------- rules
def test_rules_and_their_inheritance() -> None:
    class Base(st.WrapperTensor):
        data_: Tensor

    class Derived(Base):
        pass

    x = Derived(torch.ones(2))
    with pytest.raises(st.UnsupportedError):
        x.sin()
    calls = []

    @Base.implements(aten.sin.default, aten.cos.default)
    def wave(func: Any, x: Base) -> Any:
        calls.append((func, type(x)))
        return x.replace(data_=func(x.data_))

    assert type(x.sin().cos()) is Derived  # added to the base after the derived class had refused
    assert calls == [(aten.sin.default, Derived), (aten.cos.default, Derived)]

    @Derived.implements(aten.sin.default)
    def never(func: Any, x: Derived) -> Any:
        return NotImplemented

    with pytest.raises(st.UnsupportedError, match="Derived has no rule"):
        x.sin()
    assert type(Base(torch.ones(2)).sin()) is Base
    assert type(wave) is type(never)  # the decorator gives the function back


def test_packets_register_every_overload() -> None:
    class All(st.WrapperTensor):
        data_: Tensor

    @All.implements(aten.add)
    def add(func: Any, *args: Any, **kwargs: Any) -> Any:
        called.append(str(func))
        return args[0]

    called: list[str] = []
    x = All(torch.ones(2))
    aten.add.Tensor(x, x), aten.add.Scalar(x, 1), torch.add(x, x, out=x)
    assert called == ["aten.add.Tensor", "aten.add.Scalar", "aten.add.out"]


def test_results_are_put_right() -> None:
    class Sloppy(st.WrapperTensor):
        data_: Tensor

    @Sloppy.implements(aten.mul_.Tensor, aten.add_.Tensor)
    def write(func: Any, x: Sloppy, y: Any, **kwargs: Any) -> Any:
        func(x.data_, y, **kwargs)  # returns nothing

    @Sloppy.implements(aten.add.out)
    def out_variant(func: Any, x: Sloppy, y: Any, *, alpha: float = 1, out: Sloppy) -> Any:
        return out.replace(data_=torch.add(x.data_, y, alpha=alpha, out=out.data_))

    @Sloppy.implements(aten.select.int, aten.split.Tensor)
    def view(func: Any, x: Sloppy, *args: Any) -> Any:
        found = func(x.data_, *args)
        return Sloppy(found) if isinstance(found, Tensor) else [Sloppy(t) for t in found]

    @Sloppy.implements(aten.t.default)
    def dense(func: Any, x: Sloppy) -> Any:
        return func(x.data_)

    x = Sloppy(torch.ones(4))
    assert x.mul_(2) is x and x.add_(1) is x and x.data_.tolist() == [3] * 4
    target = Sloppy(torch.zeros(4))
    assert torch.add(x, 1, out=target) is target and target.data_.tolist() == [4] * 4
    first, second = x.split(2)
    for v in (first, second, x[1]):
        assert v._is_view() and v.untyped_storage()._cdata == x.untyped_storage()._cdata
    second[0].mul_(5)
    assert x.data_.tolist() == [3, 3, 15, 3]
    with pytest.raises(st.ProtocolError, match="returned something else than a view") as error:
        Sloppy(torch.ones(2, 2)).t()
    assert error.value.got == "Tensor"


# ----------------------------------------------------------------------------------------------------------- families
class Both(st.WrapperTensor):
    """Refuses everything that no family adds."""

    data_: Tensor
    scale: Tensor


def test_views_share_what_takes_no_part() -> None:
    class Own(Both):
        pass

    Own.implements_views(inner=["data_"])
    x = Own(randn(4, 4), torch.tensor(2.0))
    for view in (x[1:], x.t(), x.view(2, 8), x.unsqueeze(0).expand(3, 4, 4), x.split(2)[1], x.reshape(-1)):
        assert view.scale is x.scale and view._base is x
    copied = x.t().reshape(-1)  # torch copies where there is no such view
    assert copied._base is None and copied.scale is not x.scale and copied.scale == x.scale
    with pytest.raises(st.UnsupportedError, match="no rule for aten.view.dtype"):
        x.view(torch.int32)
    y = Own(randn(4, 4), torch.tensor(3.0))
    with pytest.raises(st.UnsupportedError, match=r"no rule for aten\.copy_"):
        x[1:].copy_(y[1:])  # would write the scale of all rows


class Complex(st.WrapperTensor, default="dequantize"):
    re: Tensor
    im: Tensor

    @classmethod
    def outer_metadata(cls, fields):
        return st.authoring.Outer(dtype=fields.re.dtype.to_complex())

    def dequantize(self) -> Tensor:
        return torch.complex(self.re, self.im)


def test_a_conjugate_of_real_parts_is_refused_and_may_have_a_rule() -> None:
    Complex.implements_views()
    z = Complex(torch.ones(1, 2), torch.ones(1, 2))
    with pytest.raises(st.UnsupportedError, match="no rule for aten._conj"):
        z.conj()
    Complex.implements(aten._conj.default)(lambda func, z: Complex(z.re, -z.im))
    x = torch.ones(2, 1, dtype=torch.complex64, requires_grad=True)
    (x @ z).abs().sum().backward()
    assert torch.equal((z @ z.mH).resolve_conj(), torch.tensor([[4 + 0j]])) and x.grad is not None


def test_elementwise_and_in_place() -> None:
    class Own(Both):
        pass

    Own.implements_per_inner(aten.neg.default, aten.clone.default, inner="data_")
    Own.implements_per_inner(aten.neg_.default, inner="data_")
    Own.implements_per_inner(authoring.factories)
    x = Own(torch.ones(2), torch.tensor(2.0))
    y = -x
    assert y.data_.tolist() == [-1, -1] and y.scale.item() == 2 and y.scale is not x.scale
    assert x.neg_() is x and x.data_.tolist() == [-1, -1] and x.scale.item() == 2
    assert torch.zeros_like(x).scale.item() == 0
    with pytest.raises(st.UnsupportedError, match=r"scale has another shape"):
        x.new_zeros(3)
    with pytest.raises(st.UnsupportedError, match=r"no rule for aten\.relu"):
        x.relu()


def test_a_later_family_and_a_rule_come_first() -> None:
    class Own(Both):
        pass

    Own.implements_per_inner(authoring.elementwise)
    x = Own(torch.ones(2), torch.tensor(2.0))
    assert (x * 3).scale.item() == 6
    Own.implements_per_inner(aten.mul.Tensor, inner="scale")
    y = x * 3
    assert y.scale.item() == 6 and y.data_.tolist() == [1, 1]

    @Own.implements(aten.mul.Tensor)
    def mul(func: Any, x: Any, y: Any) -> Any:
        return x.replace(scale=torch.tensor(7.0))

    assert (x * 3).scale.item() == 7


class Polar(st.WrapperTensor, default="refuse"):
    """Inner tensors that mean different things."""

    size_: torch.Tensor
    angle_: torch.Tensor


Polar.implements_per_inner(aten.copy_.default)


def test_a_dense_tensor_is_copied_into_each_inner_tensor_only_where_these_are_parallel() -> None:
    x, y = Polar(torch.ones(2), torch.zeros(2)), Polar(torch.full((1,), 3.0), torch.ones(1))
    with pytest.raises(st.errors.RuleError):
        x.copy_(torch.full((2,), 5.0))
    assert x.angle_.tolist() == [0, 0]
    assert x.copy_(y) is x and x.size_.tolist() == [3, 3] and x.angle_.tolist() == [1, 1]
