"""Cases: backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from case_kit import cases, no_grad, nonleaf, plain, root
from oracle import Inputs
from wrappers import Scaled, dense, scaled, two

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


# ---------------------------------------------------------------------------------------------- backward
same, fact = cases("Backward")
same(
    "only some outputs get a gradient",
    lambda x: (x * 2, x.sin()),
    root(),
    back=(1,),
    torch="error (wrong guess of the gradient's type)",
)


@fact("tangents of other strides than the result (expanded, transposed, sliced)")
def _strides_of_tangents() -> None:
    region = st.compile(lambda x: x.sin() * 2, partitioner="default")
    for make in (lambda y: y.sum(), lambda y: y.t().contiguous().t(), lambda y: y[:, :1].expand(3, 4)):
        seen = []
        for call in (lambda x: x.sin() * 2, region):
            x = dense(4, 3, seed=0).t().requires_grad_()
            tangent = make(dense(3, 4, seed=1))
            seen.append(torch.autograd.grad(call(x), x, tangent.expand(3, 4))[0])
        assert torch.equal(*seen)
    assert len(region.specializations[0].program.backwards.compiled) == 1


@fact(
    "outer strides of a wrapper in dimensions of size 1, and strides of results without elements",
    differs="they are those of fake kernels, which are not always those of the real ones; the inner tensors' are eager's",
    torch="differs in the same way",
)
def _strides_of_size_one(compile: Any) -> Any:
    call = compile(torch.relu)
    x = TwoTensor(*(dense(2, 1, 4, 4, seed=k).to(memory_format=torch.channels_last) for k in (1, 2)))
    x = (x * 1).requires_grad_()
    return torch.autograd.grad(call(x), x, TwoTensor(*(dense(2, 1, 4, 4, seed=k) for k in (1, 2))))[0].stride()


@fact(
    "strides in dimensions of size 1 of a gradient penalty's gradients, where the loss is computed outside of the region",
    differs="eager adds the parts of a gradient up inside of the layers; a region hands each part over",
    torch="not in the survey",
)
def _strides_of_a_penalty(call: Any) -> Any:
    w, x = dense(1, 8, seed=1).requires_grad_(), dense(4, 8, seed=2).requires_grad_()
    y = call(lambda x, w: F.linear(x, w).tanh())(x, w)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return torch.autograd.grad(y.sum() + g.pow(2).sum(), w)[0].stride()


@fact(
    "the version of a gradient that is a sum (`x.grad._version`)",
    differs="eager's engine counts each addition; a region's backward hands over the sum",
    torch="not in the survey",
)
def _version_of_a_sum(call: Any) -> Any:
    x = dense(3, seed=1).requires_grad_()
    call(lambda x: (x * x).sum())(x).backward()
    assert x.grad is not None
    return x.grad._version


@fact("with `create_graph`, gradients of tangents alone require grad where the tangents do")
def _gradients_of_tangents_alone() -> None:
    region = st.compile(lambda x, w: x * 2 + w)
    for tracked in (True, False):
        x, w = (two(3, seed=k).requires_grad_() for k in (1, 2))
        tangent = two(3, seed=3).requires_grad_(tracked)
        of_x, of_w = torch.autograd.grad(region(x, w), (x, w), tangent, create_graph=True)
        assert of_x.requires_grad is tracked and of_w is tangent


same(
    "a view of an input that is written by an operation whose backward needs values",
    lambda x: (v := x.narrow(0, 0, 1), x.clamp_(-1, 1), v)[2],
    nonleaf(scaled),
    back=(0,),
)
same(
    "`requires_grad_()` of a value, after its input was given one",
    lambda x: (v := x.sigmoid(), x.requires_grad_(), v.requires_grad_(), v)[3],
    plain(dense),
    refused="eager",
)
same(
    "`requires_grad_()` of a member of a split",
    lambda x: (v := x.split(1)[0], v.requires_grad_(), v)[2],
    plain(),
    refused="eager",
)
same(
    "a value that is made a leaf in the region, and a view of it",
    lambda x: (v := x + x, v.requires_grad_(), v.split(1)[2], v)[2:],
    plain(dense),
    back=(0,),
    refused="UnsupportedError",
)


same(
    "a view of a leaf made under no_grad, which says that it requires grad and gets none",
    lambda x: [no_grad(x.view)(-1), x * 2],
    root(dense),
)
same(
    "a view made under no_grad, of a leaf or of a value, that is made a leaf in the region",
    lambda x: [no_grad(t.view)(-1).requires_grad_() for t in (x, x * 2)],
    root(dense),
    refused="eager",
)
same(
    "`.grad` of a tensor that the region makes, and returns, is set",
    lambda x: (y := torch.ones(3), setattr(y, "grad", x * 2), y)[2],
    plain(dense, 3),
    refused="UnsupportedError",
)
same(
    "a hook on the node of a view (`v.grad_fn.register_hook`)",
    lambda x: (v := x.view(-1), v.grad_fn.register_hook(lambda new, old: (new[0] * 3,)), v)[2],
    root(dense),
    back=(0,),
    refused="SideEffectError",
)


@fact("a view, returned alone, of a value that is made a leaf in the region", refused="UnsupportedError")
def _view_of_a_leaf() -> None:
    for make in (dense, two):
        out = st.compile(lambda x: (x.detach() * 2).requires_grad_().view(-1))(make(3, 3, seed=1))
        out.backward(make(9, seed=2))
        assert out._base.is_leaf and out._base.grad.shape == (3, 3)


same(
    "a value that is made a leaf in the region and is computed with",
    lambda x: (v := x + x, v.requires_grad_(), v.sin(), v)[2:],
    plain(),
    back=(0,),
    refused="UnsupportedError",
)
same(
    "view of a view that was made under no_grad",
    lambda x: no_grad(lambda: x.view(-1))().view(-1),
    root(),
    back=(0,),
    refused="eager",
)
same("gradient that depends on nothing (`sgn`)", lambda x: x.sgn(), root(), back=(0,))
same(
    "gradient whose size depends on the data, dense",
    lambda x, v: torch.index_put(x, (x > 0,), v),
    lambda c: (lambda x, v: Inputs((x, v), (x, v)))(
        dense(3, 3, seed=c).requires_grad_(), torch.tensor(2.0, requires_grad=True)
    ),
    back=(0,),
)
same(
    "gradient whose size depends on the data, wrapper: runs eagerly",
    lambda x, v: x.index_fill(0, TwoTensor(torch.tensor([0, 1]), torch.tensor([0, 1])), v),
    lambda c: (lambda x, v: Inputs((x, v), (x, v)))(
        two(3, 3, seed=c).requires_grad_(), TwoTensor(torch.tensor(1.0), torch.tensor(1.0)).requires_grad_()
    ),
    back=(0,),
    torch="graph break",
)
same(
    "eager refuses the backward, and it is not asked for",
    lambda x: (v := x.index_select(0, torch.tensor([1, 0])), w := v.amax(0), v[:1].copy_(x[:1]), x.copy_(w), w.sum())[
        4
    ],
    nonleaf(dense),
)
same(
    "gradient of another type than the output",
    lambda x: x * 2,
    root(scaled),
    back=(0,),
    torch="error (wrong guess of the gradient's type)",
)


@fact("plain gradient for a wrapper output", torch="error (wrong guess of the gradient's type)")
def _plain_tangent(compile: Any) -> Any:
    x = scaled(3, seed=1).requires_grad_()
    compile(lambda x: x * 2)(x).sum().backward()
    g = x.grad
    return type(g), (g.data_ * g.scale if isinstance(g, Scaled) else g).tolist()


@fact("two backwards with `retain_graph`")
def _retain() -> None:
    x = two(3, seed=1).requires_grad_()
    y = st.compile(lambda x: x.sin())(x)
    y.backward(y.detach(), retain_graph=True)
    first = x.grad.a.clone()
    y.backward(y.detach())
    assert torch.allclose(x.grad.a, 2 * first)


def _penalised(function: Callable[[Tensor], Tensor], start: Callable[[Tensor], Tensor]) -> None:
    found = []
    for call in (lambda f: f, st.compile):
        x = two(3, seed=1).requires_grad_()
        y = call(function)(start(x))
        (g,) = torch.autograd.grad(y.sum(), x, torch.ones_like(y.sum()), create_graph=True)
        penalty = (g * g).sum()
        penalty.backward(torch.ones_like(penalty))
        found.append(x.grad.b)
    assert torch.allclose(*found)


@fact("double backward, gradient penalty", torch="refused")
def _double() -> None:
    _penalised(lambda x: x.sin() * x, lambda x: x)


@fact("double backward of an argument that the region writes (`x.sin_()`)", torch="refused")
def _double_of_written() -> None:
    _penalised(lambda x: x.sin_() * 2, lambda x: x * 3)


@fact("double backward that leads to an argument which is written after the call")
def _double_of_written_later() -> None:
    region = st.compile(lambda x: x.exp(), partitioner="default")
    x = torch.ones(3, requires_grad=True)
    y = x * 3
    out = region(y)
    y.mul_(2)
    (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(second, 9 * torch.full((3,), 3.0).exp())


@fact(
    'with `create_graph`, products of several zeros in one place (`scatter_reduce("prod")`, `index_reduce`)',
    differs="the error that eager raises in the backward of the gradient comes in the backward of the value",
    torch="refused",
)
def _product_of_zeros() -> None:
    raised = []
    for call in (lambda f: f, st.compile):
        x, zeros = torch.ones(2, requires_grad=True), torch.zeros(2, requires_grad=True)
        index = torch.tensor([0, 0])
        y = call(lambda x, s: x.scatter_reduce(0, index, s, "prod"))(x, zeros)  # noqa: B023
        backwards = 0
        try:
            gradients = torch.autograd.grad(y.sum(), [x, zeros], create_graph=True)
            backwards += 1
            torch.autograd.grad(gradients[1].sum(), x)
        except RuntimeError as error:
            raised.append((backwards, str(error).partition("\n")[0]))
    assert raised[0] == raised[1]


@fact("the caller's gradient object stays untouched", torch="silently wrong")
def _tangent_untouched() -> None:
    x = two(3, 3, seed=1).requires_grad_()
    a, b = torch.ones(3, 3).t(), torch.ones(3, 3).t()
    g = TwoTensor(a, b)
    st.compile(lambda x: x * 2)(x).backward(g)
    assert g.a is a and g.b is b


@fact("gradients for other results than before", torch="error (wrong guess of the type)")
def _released() -> None:
    def f(x: Tensor) -> Any:
        return x.sin(), (x * x).cos()

    region = st.compile(f)
    for used in ((0, 1), (1,), (0,)):
        grads = []
        for call in (f, region):
            x = two(3, seed=1).requires_grad_()
            sum(call(x)[k].sum() for k in used).backward()
            grads.append(x.grad.a)
        assert torch.equal(*grads)


@fact("vmapped gradients (`is_grads_batched`)", close=True)
def _batched(call: Any) -> Any:
    x = dense(3, seed=1).requires_grad_()
    y = call(lambda x: x.sin())(x)
    return torch.autograd.grad(y, x, torch.eye(3), is_grads_batched=True)[0]


@fact(
    "gradients of `prod` of inputs without zeros (with `create_graph` of `cumprod` too), where the product overflows or "
    "underflows, or is not finite",
    torch="differs in the same way",
    differs="eager divides the product by each input; a region multiplies the others, as eager does if there are zeros",
    close=True,
)
def _overflowing_product(compile: Any) -> Any:
    call = compile(torch.prod)
    x = torch.tensor([1e30, 1e30], requires_grad=True)
    return torch.autograd.grad(call(x), x)[0]


@fact(
    "the last bits of the gradient of a value that `masked_fill` puts in",
    torch="differs in the same way",
    differs="eager picks the masked elements and adds these up; a region adds up all, with zeros for the others",
)
def _gradient_of_a_filled_value(call: Any) -> Any:
    values = torch.linspace(0.1, 0.7, 1001)
    value = torch.ones((), requires_grad=True)
    out = call(lambda x, v: x.masked_fill(x > 0.3, v))(values, value)
    return torch.autograd.grad((out * values).sum(), value)[0]


@fact(
    "the last bits of a gradient where views and values of one intermediate are results together",
    torch="differs in the same way",
    differs="the gradients of views are added up outside of the region, before those of the values",
)
def _gradient_of_views_and_values(call: Any) -> Any:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y.sin(), y[0], y.cos(), y[1:], y.exp()

    x = torch.linspace(-1, 1, 200).view(4, 50).requires_grad_()
    loss: Any = sum((out * out.detach().cos()).sum() for out in call(function)(x))
    return torch.autograd.grad(loss, x)[0]


@fact(
    "gradient of a result with respect to an input that got its history in the region (`x.mul_(w)`)",
    torch="differs in the same way",
    differs="a region is one node of the autograd graph: what its input has become inside of it is not part of it",
)
def _gradient_of_written_input() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        x.mul_(w)
        return x * 2

    x, w = torch.ones(3), torch.ones(3, requires_grad=True)
    y = st.compile(f)(x, w)
    (g,) = torch.autograd.grad(y.sum(), x, allow_unused=True)
    assert g is not None, "eager gives 2"


def _graded(view: bool) -> Callable[[Tensor], Any]:
    def f(x: Tensor) -> Tensor:
        y = (x * 2).detach() if view else x * 2
        y.grad = torch.ones_like(y)
        return y.view(-1) if view else y

    return f


same(
    "`.grad` of a value with a history, which is returned, is set",
    _graded(False),
    root(dense),
    torch="not in the survey",
    refused="UnsupportedError",
)
same(
    "`.grad` of a value is set of which a view is returned",
    _graded(True),
    plain(dense),
    torch="not in the survey",
    refused="UnsupportedError",
)


@fact(
    "gradient of one result with respect to another result",
    torch="differs in the same way",
    differs="a region is one node of the autograd graph: what one result does to another inside of it is not part of it",
)
def _gradient_between_results() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        return y, y.sin()

    x = torch.ones(3, requires_grad=True)
    y, z = st.compile(f)(x)
    (g,) = torch.autograd.grad(z.sum(), y, allow_unused=True)
    assert g is not None, "eager gives cos(y)"
