"""Short named programs, one fact each: what a region supports, refuses, or does differently from eager.

`test_cases.py` runs every case, and `tools/semantics_table.py` prints the same list as docs/semantics.md, so the table
cannot say anything that a test did not see. The column about torch.compile is from a survey of torch 2.13 (aot_eager).
"""

from __future__ import annotations

import contextlib
import copy
import pickle
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "differential"))
from oracle import Inputs, backward_of, check
from wrappers import Scaled, dense, masked, nested, scaled, two

import subclass_trace as st
from subclass_trace.zoo import Constant, TwoTensor

Tensor = torch.Tensor


@dataclass(frozen=True)
class Case:
    """A fact: ``run`` passes, raises ``refused``, or shows the difference named by ``differs``; ``fault``: a bug, open."""

    group: str
    name: str
    run: Callable[[], Any]
    torch: str  # what torch.compile does
    refused: str = ""
    differs: str = ""
    fault: str = ""

    @property
    def expectation(self) -> str:
        """As the table prints it."""
        if self.fault:
            return f"**fault**: {self.fault}"
        return (
            f"refused: `{self.refused}`"
            if self.refused
            else f"differs: {self.differs}"
            if self.differs
            else "supported"
        )


CASES: list[Case] = []
YES = "supported"


def same(
    group: str,
    name: str,
    fn: Callable[..., Any],
    make: Callable[[int], Any],
    *,
    back: Any = None,
    torch: str = YES,
    refused: str = "",
    differs: str = "",
    fault: str = "",
    **how: Any,
) -> None:
    """Eager and compiled agree: values, types, strides, aliasing, versions, gradients, random state."""

    def run() -> None:
        def inputs(call: int) -> Inputs:
            made = make(call)
            return made if isinstance(made, Inputs) else Inputs(made if isinstance(made, tuple) else (made,))

        check(fn, inputs, backward=None if back is None else backward_of(back), **{"specializations": 1, **how})

    CASES.append(Case(group, name, run, torch, refused, differs, fault))


def fact(
    group: str, name: str, *, torch: str = YES, refused: str = "", differs: str = ""
) -> Callable[[Callable[[], Any]], Any]:
    """A case with a program of its own."""

    def add(run: Callable[[], Any]) -> Any:
        CASES.append(Case(group, name, run, torch, refused, differs))
        return run

    return add


def root(make: Callable[..., Tensor] = two, *size: int) -> Callable[[int], Inputs]:
    """One leaf that requires grad."""

    def made(call: int) -> Inputs:
        w = make(*(size or (3, 3)), seed=call).requires_grad_()
        return Inputs((w,), (w,))

    return made


def nonleaf(make: Callable[..., Tensor] = two, *size: int) -> Callable[[int], Inputs]:
    """A value of a leaf that requires grad."""

    def made(call: int) -> Inputs:
        w = make(*(size or (3, 3)), seed=call).requires_grad_()
        return Inputs((w * 1,), (w,))

    return made


def plain(make: Callable[..., Tensor] = two, *size: int) -> Callable[[int], Tensor]:
    """One input without grad."""
    return lambda call: make(*(size or (3, 3)), seed=2 * call)


def no_grad(f: Callable[..., Any]) -> Callable[..., Any]:
    """The function in no_grad."""

    def inner(*args: Any) -> Any:
        with torch.no_grad():
            return f(*args)

    return inner


# ---------------------------------------------------------------------------------------------- aliasing
A = "Aliasing of inputs"
same(
    A,
    "two wrappers share an inner tensor, one is written",
    lambda x, y: (x.mul_(2), y * 3)[1],
    lambda c: (lambda i: (TwoTensor(i, dense(3, seed=c)), TwoTensor(i, dense(3, seed=c + 5))))(dense(3, seed=c + 9)),
    torch="silently wrong",
)
same(
    A,
    "a wrapper and its own inner tensor, either written",
    lambda x, y: (x.mul_(2), y.add_(1), x * 1),
    lambda c: (lambda w: (w, w.a))(two(3, seed=c)),
    torch="silently wrong",
)
same(
    A,
    "two quantised tensors share their scale, it is written",
    lambda x, y: (x.scale.mul_(2), y * 1)[1],
    lambda c: (lambda s: (Scaled(dense(3, seed=c), s), Scaled(dense(3, seed=c + 5), s)))(torch.tensor(0.5)),
    torch="silently wrong",
)
same(
    A,
    "one tensor is both halves of a wrapper",
    lambda x: x.add_(1),
    lambda c: (lambda i: TwoTensor(i, i))(dense(3, seed=c)),
    torch="error (assertion)",
)
same(
    A,
    "the same wrapper twice, written",
    lambda x, y: (x.mul_(2), y * 1)[1],
    lambda c: (lambda w: (w, w))(two(3, seed=c)),
)
same(
    A,
    "base and view, the base is written",
    lambda x, y: (x.mul_(2), y * 3)[1],
    lambda c: (lambda w: (w, w[1:]))(two(4, seed=c)),
    torch="refused",
)
same(
    A,
    "overlapping ranges of a value that requires grad",
    lambda x, y: (x.mul_(2), y * 3)[1],
    lambda c: (lambda w: (lambda v: Inputs((v[:5], v[3:]), (w,)))(w * 1))(two(8, seed=c).requires_grad_()),
    back=(0,),
    torch="refused",
)
same(
    A,
    "interleaved strides do not alias",
    lambda x, y: (x.mul_(2), y * 3)[1],
    lambda c: (lambda w: (w[::2], w[1::2]))(two(8, seed=c)),
)


@fact(A, "another alias pattern on a later call is another specialization", torch="silently wrong")
def _alias_later() -> None:
    region = st.compile(lambda x, y: (x.mul_(2), y * 1)[1])
    i = torch.ones(2)
    for x, y in ((two(2, seed=1), two(2, seed=2)), (TwoTensor(i, i.clone()), TwoTensor(i, i.clone()))):
        want = [t.clone() for t in (y.a, y.b)]
        want[0] = want[0] * 2 if y.a is i else want[0]
        got = region(x, y)
        assert torch.equal(got.a, want[0]) and torch.equal(got.b, want[1])
    assert len(region.specializations) == 2


# ---------------------------------------------------------------------------------------------- mutation
M = "Mutation"
same(M, "value of a view chain", lambda x: (x.view(-1)[1:4].mul_(2), x * 1)[1], plain())
same(M, "inner tensor of a wrapper (`x.a.add_(1)`)", lambda x: (x.a.add_(1), x * 2)[1], plain(), torch="silently wrong")
same(M, "leaf that requires grad, under no_grad", lambda x: (no_grad(lambda: x.add_(1))(), x * 2)[1], root(), back=(0,))
same(M, "leaf that requires grad, outside no_grad: eager refuses too", lambda x: x.add_(1), root())
same(
    M,
    "non-leaf, used afterwards with its own gradient",
    lambda x: (x.add_(1), x * 2),
    nonleaf(),
    back=(0, 1),
    torch="error (wrong guess of the gradient's type)",
)
same(M, "through `.data`", lambda x: (x.data.add_(1), x * 2)[1], root(), back=(0,))
same(M, "`_foreach_add_` on a list", lambda x: (torch._foreach_add_([x], 1.0), x * 1)[1], plain())
same(
    M,
    "`_foreach_copy_([a, b], [b, a])`: the second step reads what the first wrote",
    lambda x: (torch._foreach_copy_([x[0], x[1]], [x[1], x[0]]), x * 1)[1],
    plain(dense),
    torch="silently wrong",
)
same(
    M,
    "shape: `unsqueeze_`, `transpose_`",
    lambda x: (x.unsqueeze_(0).transpose_(0, 1), x * 1)[1],
    plain(),
    torch="graph break",
)
same(
    M,
    "shape of an input after `detach()` of it",
    lambda x: (d := x.detach(), x.unsqueeze_(0), d * 1)[2],
    plain(dense),
)
same(
    M,
    "disjoint window of an overlapping view (`unfold`)",
    lambda x: (x.unfold(0, 2, 1)[:1].add_(1), x * 1)[1],
    plain(dense, 4),
)
same(
    M,
    "one row of an expanded value (`expand(3, -1)[0]`)",
    lambda x: (y := x * 2, y.expand(3, 4)[0].zero_(), y)[2],
    lambda c: torch.full((4,), float("inf")),
)
same(
    M,
    "overlapping inputs that start in the middle of a storage",
    lambda x, y: (x.mul_(2), y * 1)[1],
    lambda c: (lambda b: (b[:, 1:3], b[1:3]))(dense(26, seed=c)[2:].view(4, 6)),
)
same(
    M,
    "in-place operation without a functional form in torch (`polygamma_`)",
    lambda x: x.clone().abs_().polygamma_(1),
    plain(dense),
)
same(
    M,
    "swap of two inputs",
    lambda x, y: (t := x.clone(), x.copy_(y), y.copy_(t), None)[3],
    lambda c: (two(3, seed=c), two(3, seed=c + 7)),
    torch="supported (inductor: silently wrong)",
)
same(
    M,
    "a Python attribute of an input is set",
    lambda x: (setattr(x, "tag", "new"), x * 2)[1],
    plain(scaled),
    torch="silently wrong",
)
same(
    M,
    "a member of a split, tracked by autograd: eager refuses too",
    lambda x, y: x.mul_(2),
    lambda c: (lambda w: Inputs((w * 1).split(2), (w,)))(two(4, seed=c).requires_grad_()),
)


@fact(
    M,
    "shape of a dense value, of which a view is used afterwards, differentiable",
    torch="not in the survey",
    refused="UnsupportedError",
)
def _reshaped_base() -> None:
    def f(x: Tensor) -> Tensor:
        base = x + x
        view = base[1:]
        base.t_()
        return view * 2

    st.compile(f)(torch.ones(3, 3, requires_grad=True))


@fact(
    M,
    "shape of an argument that is a view of another one, which requires grad",
    torch="not in the survey",
    refused="UnsupportedError",
)
def _reshaped_view() -> None:
    whole = torch.ones(3, 3, requires_grad=True) * 1
    st.compile(lambda x, y: y.t_())(whole, whole[1:])


same(
    M,
    "`detach_()` of an input",
    lambda x: (y := x * 2, x.detach_(), y, x * 3)[2:],
    nonleaf(),
    back=(0,),
    torch="graph break",
)
same(M, "`requires_grad_(False)` of a leaf, which is written then", lambda x: x.requires_grad_(False).mul_(2), root())
same(
    M,
    "an input that is detached in place, and then made a leaf",
    lambda x: x.detach_().requires_grad_() * 2,
    nonleaf(),
    torch="graph break",
    refused="UnsupportedError",
)


def _tagged(call: int) -> Tensor:
    x = two(3, seed=call)
    x.tag = 2 + call % 2
    return x


def _count(x: Tensor) -> Tensor:
    x.tag += 1
    x.kept = x * 2
    return x * x.tag


same(
    M,
    "Python attributes that the user has set on an input, a wrapper too: read and set",
    _count,
    _tagged,
    specializations=2,
)


@fact(M, "a Python attribute of an input is deleted", torch="not in the survey", refused="UnsupportedError")
def _deletes_an_attribute() -> None:
    def f(x: Tensor) -> Tensor:
        del x.tag
        return x * 2

    st.compile(f)(_tagged(0))


same(
    M,
    "an inner tensor is replaced",
    lambda x: (setattr(x, "scale", x.scale * 2), x * 1)[1],
    plain(scaled),
    torch="silently wrong",
)
same(
    M,
    "a tensor that the function closes over",
    lambda x: (_COUNTER.add_(1), x * _COUNTER)[1],
    lambda c: (_COUNTER.zero_(), two(3, seed=c))[1],
)
same(
    M,
    "a tensor that the function closes over, which differentiable results depend on",
    lambda x: (_COUNTER.add_(1), x * _COUNTER, _COUNTER)[1:],
    lambda c: (_COUNTER.zero_(), w := two(3, seed=c).requires_grad_(), Inputs((w,), (w,)))[2],
    back=(0,),
    torch="graph break",
)
same(
    M,
    "a tensor in a list that the function closes over, its shape too",
    lambda x: (_HELD[0].mul_(2), _HELD[0].unsqueeze_(0), x * _HELD[0])[2],
    lambda c: (_HELD.__setitem__(0, dense(3, seed=1)) if not c else _HELD[0].squeeze_(0), dense(3, seed=c))[1],
    calls=1,
)

_COUNTER = torch.zeros(())
_HELD = [torch.zeros(3)]

# ---------------------------------------------------------------------------------------------- outputs
P = "Outputs"
same(P, "the input itself, twice", lambda x: (x, x), root(), back=(0,))
same(P, "view of an input", lambda x: x.view(-1)[1:], root(), back=(0,))
same(P, "view of a wrapper whose inner shape is another", lambda x: x[1:], plain(scaled), torch="silently wrong")
same(
    P,
    "two views of one intermediate, differentiable",
    lambda x: (v := x * 2, v[0], v[1:])[1:],
    root(),
    back=(0, 1),
    torch="error",
)
same(P, "members of a split of an intermediate", lambda x: (x * 2).split(1), root(), back=(0, 1, 2), torch="error")
same(P, "value and its detach", lambda x: (v := x * 2, v.detach())[0:2], root(), back=(0,), torch="error")
same(P, "another wrapper type than came in", lambda x: Scaled(x.a.detach(), torch.tensor(2.0)), plain())
same(P, "an inner tensor taken out of the wrapper", lambda x: (x.a, x * 2), plain())
same(
    P,
    "a view of an inner tensor beside that tensor",
    lambda x: (x.a, x.a.view(-1)[1:]),
    plain(),
)
same(
    P,
    "a view of an input whose own shape was changed",
    lambda x: x.unsqueeze(0).unsqueeze_(0),
    plain(dense),
)
same(
    P,
    "a wrapper made of the detached input, and a written view of it",
    lambda x: (v := TwoTensor(x.detach(), x.detach()), w := v[0], w.mul_(2), (v, w))[3],
    nonleaf(),
)
same(P, "torch.Size", lambda x: x.shape, plain())
same(P, "None, numbers, nested containers", lambda x: {"a": [x * 2, None], "b": (x.dim(), "text")}, plain())
same(P, "wrapper without inner tensors", lambda x: x + 1, lambda c: Constant(2.0, (3, 3)), torch="error (internal)")
same(P, "wrapper of wrappers", lambda x: (x @ x.t()).relu(), root(nested), back=(0,))


@fact(P, "an unregistered container with tensors", torch="graph break", refused="UnsupportedError")
def _container() -> None:
    class Box:
        def __init__(self, value: Tensor) -> None:
            self.value = value

    st.compile(lambda x: Box(x * 2))(two(2, seed=0))


# ---------------------------------------------------------------------------------------------- backward
B = "Backward"
same(
    B,
    "only some outputs get a gradient",
    lambda x: (x * 2, x.sin()),
    root(),
    back=(1,),
    torch="error (wrong guess of the gradient's type)",
)


@fact(B, "strides of a gradient follow those of the tangent: expanded, transposed, sliced")
def _strides_of_gradients() -> None:
    region = st.compile(lambda x: x.sin() * 2)
    for make in (lambda y: y.sum(), lambda y: y.t().contiguous().t(), lambda y: y[:, :1].expand(3, 4)):
        seen = []
        for call in (lambda x: x.sin() * 2, region):
            x = dense(4, 3, seed=0).t().requires_grad_()
            tangent = make(dense(3, 4, seed=1))
            seen.append(torch.autograd.grad(call(x), x, tangent.expand(3, 4))[0].stride())
        assert seen[0] == seen[1]


@fact(
    B,
    "outer strides of a wrapper in dimensions of size 1",
    differs="they are those of fake kernels, which are not always those of the real ones; the inner tensors' are eager's",
    torch="differs in the same way",
)
def _strides_of_size_one() -> None:
    strides = []
    for call in (torch.relu, st.compile(torch.relu)):
        x = TwoTensor(*(dense(2, 1, 4, 4, seed=k).to(memory_format=torch.channels_last) for k in (1, 2)))
        x = (x * 1).requires_grad_()
        strides.append(
            torch.autograd.grad(call(x), x, TwoTensor(*(dense(2, 1, 4, 4, seed=k) for k in (1, 2))))[0].stride()
        )
    assert strides[0] == strides[1]


@fact(B, "with `create_graph`, gradients of tangents alone require grad where the tangents do")
def _gradients_of_tangents_alone() -> None:
    region = st.compile(lambda x, w: x * 2 + w)
    for tracked in (True, False):
        x, w = (two(3, seed=k).requires_grad_() for k in (1, 2))
        tangent = two(3, seed=3).requires_grad_(tracked)
        of_x, of_w = torch.autograd.grad(region(x, w), (x, w), tangent, create_graph=True)
        assert of_x.requires_grad is tracked and of_w is tangent


same(
    B,
    "a view of an input that is written by an operation whose backward needs values",
    lambda x: (v := x.narrow(0, 0, 1), x.clamp_(-1, 1), v)[2],
    nonleaf(scaled),
    back=(0,),
)
same(
    B,
    "`requires_grad_()` of a value, after its input was given one",
    lambda x: (v := x.sigmoid(), x.requires_grad_(), v.requires_grad_(), v)[3],
    plain(dense),
)
same(
    B,
    "`requires_grad_()` of a member of a split",
    lambda x: (v := x.split(1)[0], v.requires_grad_(), v)[2],
    plain(),
)
same(
    B,
    "a value that is made a leaf in the region, and a view of it",
    lambda x: (v := x + x, v.requires_grad_(), v.split(1)[2], v)[2:],
    plain(),
    back=(0,),
)


@fact(B, "a view, returned alone, of a value that is made a leaf in the region")
def _view_of_a_leaf() -> None:
    for make in (dense, two):
        out = st.compile(lambda x: (x.detach() * 2).requires_grad_().view(-1))(make(3, 3, seed=1))
        out.backward(make(9, seed=2))
        assert out._base.is_leaf and out._base.grad.shape == (3, 3)


same(
    B,
    "a value that is made a leaf in the region and is computed with",
    lambda x: (v := x + x, v.requires_grad_(), v.sin(), v)[2:],
    plain(),
    back=(0,),
    refused="UnsupportedError",
)
same(
    B,
    "view of a view that was made under no_grad",
    lambda x: no_grad(lambda: x.view(-1))().view(-1),
    root(),
    back=(0,),
)
same(
    B,
    "gradient that depends on nothing (`sgn`)",
    lambda x: x.sgn(),
    root(),
    back=(0,),
)
same(
    B,
    "gradient whose size depends on the data, dense",
    lambda x, v: torch.index_put(x, (x > 0,), v),
    lambda c: (lambda x, v: Inputs((x, v), (x, v)))(
        dense(3, 3, seed=c).requires_grad_(), torch.tensor(2.0, requires_grad=True)
    ),
    back=(0,),
)
same(
    B,
    "gradient whose size depends on the data, wrapper",
    lambda x, v: x.index_fill(0, TwoTensor(torch.tensor([0, 1]), torch.tensor([0, 1])), v),
    lambda c: (lambda x, v: Inputs((x, v), (x, v)))(
        two(3, 3, seed=c).requires_grad_(), TwoTensor(torch.tensor(1.0), torch.tensor(1.0)).requires_grad_()
    ),
    back=(0,),
    torch="graph break",
    refused="DataDependentError",
)
same(
    B,
    "eager refuses the backward, and it is not asked for",
    lambda x: (v := x.index_select(0, torch.tensor([1, 0])), w := v.amax(0), v[:1].copy_(x[:1]), x.copy_(w), w.sum())[
        4
    ],
    nonleaf(dense),
)
same(
    B,
    "gradient of another type than the output",
    lambda x: x * 2,
    root(scaled),
    back=(0,),
    torch="error (wrong guess of the gradient's type)",
)


@fact(B, "plain gradient for a wrapper output", torch="error (wrong guess of the gradient's type)")
def _plain_tangent() -> None:
    grads = []
    for call in (lambda f: f, st.compile):
        x = scaled(3, seed=1).requires_grad_()
        call(lambda x: x * 2)(x).sum().backward()
        grads.append(x.grad)
    assert type(grads[0]) is type(grads[1]) and torch.equal(
        *(g.data_ * g.scale if isinstance(g, Scaled) else g for g in grads)
    )


@fact(B, "two backwards with `retain_graph`")
def _retain() -> None:
    x = two(3, seed=1).requires_grad_()
    y = st.compile(lambda x: x.sin())(x)
    y.backward(y.detach(), retain_graph=True)
    first = x.grad.a.clone()
    y.backward(y.detach())
    assert torch.allclose(x.grad.a, 2 * first)


@fact(B, "double backward, gradient penalty", torch="refused")
def _double() -> None:
    found = []
    for call in (lambda f: f, st.compile):
        x = two(3, seed=1).requires_grad_()
        y = call(lambda x: x.sin() * x)(x)
        (g,) = torch.autograd.grad(y.sum(), x, torch.ones_like(y.sum()), create_graph=True)
        penalty = (g * g).sum()
        penalty.backward(torch.ones_like(penalty))
        found.append(x.grad.b)
    assert torch.allclose(*found)


@fact(B, "the caller's gradient object stays untouched", torch="silently wrong")
def _tangent_untouched() -> None:
    x = two(3, 3, seed=1).requires_grad_()
    a, b = torch.ones(3, 3).t(), torch.ones(3, 3).t()
    g = TwoTensor(a, b)
    st.compile(lambda x: x * 2)(x).backward(g)
    assert g.a is a and g.b is b


@fact(B, "gradients for other results than before, without the retained trace", torch="error (wrong guess of the type)")
def _released() -> None:
    def f(x: Tensor) -> Any:
        return x.sin(), (x * x).cos()

    region = st.compile(f, retain_trace=False)
    for used in ((0, 1), (1,), (0,)):
        grads = []
        for call in (f, region):
            x = two(3, seed=1).requires_grad_()
            sum(call(x)[k].sum() for k in used).backward()
            grads.append(x.grad.a)
        assert torch.equal(*grads)


@fact(B, "vmapped gradients (`is_grads_batched`)")
def _batched() -> None:
    found = []
    for call in (lambda f: f, st.compile):
        x = dense(3, seed=1).requires_grad_()
        y = call(lambda x: x.sin())(x)
        found.append(torch.autograd.grad(y, x, torch.eye(3), is_grads_batched=True)[0])
    assert torch.allclose(*found)


@fact(B, "tensor hooks and post-accumulate-grad hooks")
def _hooks() -> None:
    seen: list[Any] = []
    x = two(3, seed=1).requires_grad_()
    x.register_hook(lambda g: seen.append(type(g)))
    x.register_post_accumulate_grad_hook(lambda t: seen.append(t is x))
    y = st.compile(lambda x: x * 2)(x)
    y.backward(y.detach())
    assert seen == [TwoTensor, True]


@fact(
    B,
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


# ---------------------------------------------------------------------------------------------- random numbers
R = "Random numbers"
same(
    R,
    "dropout: the random stream of eager, also after the call",
    lambda x: F.dropout(x, 0.5, True) * 2,
    root(),
    back=(0,),
)
same(R, "two equal random operations are not merged", lambda x: torch.randn_like(x) - torch.randn_like(x), plain())
same(
    R,
    "dropout in a checkpoint is not drawn again",
    lambda x: checkpoint(lambda y: F.dropout(y.sin(), 0.5, True), x, use_reentrant=False),
    root(),
    back=(0,),
)
same(R, "rrelu, gumbel_softmax", lambda x: F.gumbel_softmax(F.rrelu(x, training=True)), root(), back=(0,))
same(
    R,
    "`torch.manual_seed` in the region",
    lambda x: (torch.manual_seed(3), torch.rand(2) + x)[1],
    plain(dense, 2),
    torch="graph break",
    refused="UnsupportedError",
)

# ---------------------------------------------------------------------------------------------- modes and numbers
N = "Modes and numbers"


def _mode(context: Callable[[], Any], f: Callable[..., Any]) -> Callable[..., Any]:
    def inner(*args: Any) -> Any:
        with context():
            return f(*args)

    return inner


@contextlib.contextmanager
def _double_by_default() -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


same(
    N,
    "autocast in the region",
    _mode(lambda: torch.autocast("cpu", torch.bfloat16), lambda x: x @ x.sin()),
    plain(dense),
)
same(
    N,
    "one leaf used twice under autocast",
    _mode(lambda: torch.autocast("cpu", torch.bfloat16), lambda x: x @ x),
    root(dense),
    back=(0,),
    torch="differs in the same way",
    differs="each use is cast anew, so gradients add up in float32; eager's cache casts once and adds up in bfloat16",
)
same(
    N,
    "default dtype set in the region",
    _mode(_double_by_default, lambda x: x + torch.ones(3)),
    plain(dense),
)
same(N, "channels_last", lambda x: x.to(memory_format=torch.channels_last) * 2, plain(two, 2, 3, 4, 4))
same(
    N,
    "zero-sized and 0-dim",
    lambda x, y: (x.sum(), y * 2),
    lambda c: (two(0, 3, seed=c), TwoTensor(torch.tensor(1.0), torch.tensor(2.0))),
)


def _computed_in_inference_mode(x: Tensor) -> Any:
    with torch.inference_mode():
        y = x * 2
    return y, y[0]


same(N, "a result that is computed in inference mode is an inference tensor", _computed_in_inference_mode, root())


@fact(N, "the node behind an input (`x.grad_fn.name()`, `type(x.grad_fn).__name__`)")
def _history_of_an_input() -> None:
    region = st.compile(lambda x: (x.detach() * 1, x.grad_fn.name(), type(x.grad_fn).__name__)[1:])
    for x in (two(3, seed=1).requires_grad_() * 2, two(3, seed=1).requires_grad_().sin()):
        assert region(x) == (x.grad_fn.name(), type(x.grad_fn).__name__)


@fact(N, "the address of an input's memory (`data_ptr()`, also of its storage)", refused="UnsupportedError")
def _address() -> None:
    st.compile(lambda x: x * (x.untyped_storage().data_ptr() % 2 + 1))(dense(3, seed=1))


@fact(
    N,
    "the very class of a dense input (`type(x) is torch.Tensor`)",
    torch=YES,
    differs="it is FakeTensor while it is traced: ask `isinstance(x, torch.Tensor)`, which holds, or nn.Parameter's",
)
def _class_of_a_dense_input() -> None:
    assert st.compile(lambda x: type(x) is torch.Tensor)(dense(3, seed=1))


@fact(
    N,
    "all Python attributes of an input at once (`vars(x)`)",
    torch="not in the survey",
    differs="those that the user has set are found by their names alone",
)
def _all_attributes() -> None:
    assert "tag" in st.compile(lambda x: list(vars(x)))(_tagged(0))


@fact(
    N,
    "a differentiable result, made with inference mode turned off inside of it",
    torch="graph break",
    refused="UnsupportedError",
)
def _out_of_inference_mode() -> None:
    def f(x: Tensor) -> Tensor:
        with torch.inference_mode(False):
            return x * 2

    with torch.inference_mode():
        st.compile(f)(torch.ones(2).requires_grad_())


same(
    N,
    "batch norm updates its statistics once",
    lambda x, m, v: F.batch_norm(x, m, v, training=True),
    lambda c: (two(4, 3, seed=c), two(3, seed=1), TwoTensor(torch.ones(3), torch.ones(3))),
)
same(
    N,
    "conj bit of an inner tensor",
    lambda x: x * 2,
    lambda c: (lambda t: TwoTensor(t.conj(), t.conj()))(torch.tensor([1 + 2j])),
    torch="differs in the same way",
)


@fact(N, "grad mode, inference mode, autocast around the call are guards")
def _ambient() -> None:
    region = st.compile(lambda x: x @ x)
    x = dense(2, 2, seed=0)
    with torch.inference_mode():
        assert region(x).is_inference()
    with torch.autocast("cpu", torch.bfloat16):
        assert region(x).dtype is torch.bfloat16
    assert region(x).dtype is torch.float32 and len(region.specializations) == 3


# ---------------------------------------------------------------------------------------------- sizes
D = "Sizes and data"


@fact(D, "a changing size costs one more specialization")
def _sizes() -> None:
    region = st.compile(lambda x: (x * 2).sum(0))
    for n in (3, 4, 7, 9):
        assert torch.allclose(region(x := two(n, 2, seed=n)).a, (x.a * 2).sum(0))
    assert len(region.specializations) == 2


@fact(D, "`dynamic=True` needs one")
def _dynamic() -> None:
    region = st.compile(lambda x: x.view(-1) * x.shape[0], dynamic=True)
    for n in (3, 4, 7):
        assert torch.equal(region(x := two(n, 2, seed=n)).b, x.b.view(-1) * n)
    assert len(region.specializations) == 1


@fact(D, "sizes as outputs")
def _size_outputs() -> None:
    region = st.compile(lambda x: (x.shape[0] + 1, x * 2), dynamic=True)
    assert region(two(3, seed=0))[0] == 4 and region(two(5, seed=0))[0] == 6


def _jagged(lengths: tuple[int, ...], seed: int = 0) -> Tensor:
    values = dense(sum(lengths), 4, seed=seed)
    return torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()]))


@fact(D, "jagged tensors: other lengths and another batch cost one more specialization")
def _jagged_sizes() -> None:
    region = st.compile(lambda x: x.unflatten(-1, (2, 2)).transpose(1, 2) * 2)
    for lengths in ((2, 1, 3), (4, 2), (1, 5, 3), (6, 1, 2, 2)):
        x = _jagged(lengths).detach().requires_grad_()
        out = region(x)
        assert torch.equal(out.values(), (x.unflatten(-1, (2, 2)).transpose(1, 2) * 2).values())
        out.values().sum().backward()
        assert torch.equal(x.grad.values(), torch.full_like(x.values(), 2.0))
    assert len(region.specializations) == 2


@fact(D, "jagged tensors: a result has the offsets of its input, so that they go together")
def _jagged_offsets() -> None:
    region = st.compile(lambda x: (x.sin(), x.size(1)))
    for lengths in ((2, 1, 3), (1, 5, 3)):
        x = _jagged(lengths)
        out, ragged = region(x)
        assert torch.equal((out + x).values(), (x.sin() + x).values()) and bool(ragged == x.size(1))


@fact(D, "a jagged tensor made of a dense argument, returned", differs="it shares the memory, but is no view")
def _jagged_of_dense() -> None:
    v, x = dense(6, 4, seed=0), _jagged((2, 1, 3))
    out = st.compile(lambda v, o: torch.nested.nested_tensor_from_jagged(v, o))(v, x.offsets())
    assert out._values.untyped_storage().data_ptr() == v.untyped_storage().data_ptr()
    assert out._is_view()


@fact(D, "attention of jagged tensors on a CPU", torch="graph break", refused="UnsupportedError")
def _jagged_attention() -> None:
    def attend(x: Tensor) -> Tensor:
        h = x.unflatten(-1, (2, 2)).transpose(1, 2)
        return F.scaled_dot_product_attention(h, h, h)

    st.compile(attend)(_jagged((2, 1, 3)))


same(
    D,
    "a 0-dim tensor as an index, or as a bound of a slice",
    lambda x, i: (x[i], x[i:] * 2, x[:, i].sin(), x[i, :i], x.narrow(0, i, 1) * 3),
    lambda c: Inputs((x := two(4, 3, seed=c).requires_grad_(), torch.tensor(c - 1)), (x,)),
    back=(1, 2, 3, 4),
    torch="graph break",
)
same(
    D,
    "a 0-dim tensor as an index that is written to",
    lambda x, i: x.__setitem__(i, 5.0),
    lambda c: (two(4, 3, seed=c), torch.tensor(c + 1)),
    torch="graph break",
)
same(D, "output size from the data, dense (`nonzero`)", lambda x: (x > 0).nonzero() * 2, plain(dense))
same(
    D,
    "output size from the data, wrapper",
    lambda x: (x > 0).nonzero(),
    lambda c: (lambda t: TwoTensor(t, t.clone()))(dense(3, seed=c)),
    torch="graph break",
    refused="DataDependentError",
)
same(
    D,
    "`if` on a value",
    lambda x: x * 2 if x.sum() > 0 else x,
    plain(dense),
    torch="graph break",
    refused="DataDependentError",
)
same(
    D,
    "`.item()` of a plain tensor, used as a number or as a size",
    lambda x: (x * x.sum().item(), x.new_zeros((x > 0).sum().item()).sum()),
    root(dense),
    back=(0,),
    torch="graph break",
)
same(D, "`.tolist()`", lambda x: x.tolist(), plain(dense), torch="graph break")
same(D, "`.numpy()`", lambda x: x.numpy(), plain(dense), torch="graph break", refused="DataDependentError")
same(
    D,
    "`.apply_(f)`, `.map_(y, f)`, `.map2_(y, z, f)`",
    lambda x: x.apply_(lambda v: v + 1),
    plain(dense),
    torch="graph break",
    refused="UnsupportedError",
)
same(
    D,
    "the memory of a tensor lent: DLPack, `share_memory_`, `pin_memory`, pickle",
    lambda x: torch.from_dlpack(x),
    plain(dense),
    torch="graph break",
    refused="UnsupportedError",
)
same(
    D,
    "a check that raises (a singular matrix)",
    lambda x: torch.linalg.inv(x) + 1,
    lambda c: torch.zeros(3, 3) if c else torch.eye(3),
)
same(
    D,
    "a value that depends on constants alone, asked for",
    lambda x: x * torch.tensor([1, 2]).sum().item() if torch.arange(3).sum() > 2 else x,
    plain(),
)
same(
    D, "torch.cond, dense", lambda x: torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,)), plain(dense)
)

# ---------------------------------------------------------------------------------------------- contexts
C = "Contexts of wrappers"


@fact(A, "a global that is bound to another tensor is an input like others", torch="a specialization each")
def _rebound() -> None:
    region = st.compile(lambda x: x * _SCALE)
    for seed in range(3):
        globals()["_SCALE"] = dense(3, seed=seed)
        x = dense(3, seed=9)
        assert torch.equal(region(x), x * _SCALE)
    assert len(region.specializations) == 1
    globals()["_SCALE"] = x  # now it is the argument
    assert torch.equal(region(x), x * x) and len(region.specializations) == 2


_SCALE = torch.zeros(3)


@fact(C, "equal contexts hit, other contexts specialize")
def _context() -> None:
    region = st.compile(lambda x: x * 2)
    for tag in ("a", "a", "b", "b"):
        assert region(Scaled(dense(2, seed=0), torch.tensor(1.0), tag)).tag == tag
    assert len(region.specializations) == 2


@fact(C, "values that nothing reads", torch="a graph each")
def _unread() -> None:
    region = st.compile(lambda x: x.data_.sin())
    for tag in ("a", "b"):
        x = Scaled(dense(2, seed=0), torch.tensor(1.0), tag)
        assert torch.equal(region(x), x.data_.sin())
    assert len(region.specializations) == 1


@fact(C, "NaN equals itself", torch="error (guard)")
def _nan() -> None:
    region = st.compile(lambda x: x * 2)
    for _ in range(2):
        region(Scaled(dense(2, seed=0), torch.tensor(1.0), float("nan")))
    assert len(region.specializations) == 1


@fact(C, "objects compared by identity", torch="error (guard)")
def _identity() -> None:
    region = st.compile(lambda x: x * 2)
    for tag in (one := object(), one, object()):
        assert region(Scaled(dense(2, seed=0), torch.tensor(1.0), tag)).tag is tag
    assert len(region.specializations) == 2


@fact(C, "tensors and arrays compared by value", torch="silently wrong")
def _arrays() -> None:
    region = st.compile(lambda x: x * 2)
    for values in ([1, 2], [1, 2], [3, 4]):
        out = region(Scaled(dense(2, seed=0), torch.tensor(1.0), torch.tensor(values)))
        assert out.tag.tolist() == values
    assert len(region.specializations) == 2


@fact(C, "a dict that is changed in place between calls")
def _dict() -> None:
    region = st.compile(lambda x: x * 2)
    tag = {"k": 1}
    region(Scaled(dense(2, seed=0), torch.tensor(1.0), tag))
    tag["k"] = 2
    assert region(Scaled(dense(2, seed=0), torch.tensor(1.0), tag)).tag == {"k": 2}
    assert len(region.specializations) == 2


same(C, "optional inner tensors that come and go", lambda x: x * 2, lambda c: masked(3, seed=c))

# ---------------------------------------------------------------------------------------------- around a region
S = "Around a region"


@fact(S, "forward-mode AD: runs eagerly, recorded in `explain()`", torch="silently wrong (tangent dropped)")
def _forward_ad() -> None:
    import torch.autograd.forward_ad as fwad

    region = st.compile(lambda x: x.sin())
    with fwad.dual_level():
        x = fwad.make_dual(torch.zeros(2), torch.ones(2))
        assert torch.equal(fwad.unpack_dual(region(x)).tangent, torch.ones(2))
    assert "forward-mode" in region.explain()


@fact(S, "vmap, grad, jvp around the call: run eagerly, recorded in `explain()`")
def _functorch() -> None:
    region = st.compile(lambda x: x.sin().sum())
    x = dense(3, seed=0)
    assert torch.allclose(torch.func.grad(region)(x), x.cos())
    assert "functorch" in region.explain()


same(S, "torch.func.grad inside the region", lambda x: torch.func.grad(lambda y: y.sin().sum())(x), plain(dense))
same(
    S,
    "checkpoint inside the region",
    lambda x: checkpoint(lambda y: y.sin().cos(), x, use_reentrant=False) * 2,
    root(),
    back=(0,),
)


@fact(S, "checkpoint around the region")
def _checkpoint_around() -> None:
    found = []
    for call in (lambda f: f, st.compile):
        x = two(3, seed=1).requires_grad_()
        y = checkpoint(call(lambda x: x.sin() * 2), x, use_reentrant=False)
        y.backward(y.detach())
        found.append(x.grad.a)
    assert torch.allclose(*found)


@fact(
    S,
    "saved_tensors_hooks around the region",
    torch="differs in the same way",
    differs="they see the dense saved activations, not wrappers",
)
def _saved_hooks() -> None:
    seen: list[Any] = []
    x = two(3, seed=1).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (seen.append(type(t)), t)[1], lambda t: t):
        y = st.compile(lambda x: x.sin())(x)
    y.backward(y.detach())
    assert seen and TwoTensor not in seen
    raise AssertionError("eager packs wrappers")


@fact(S, "saved_tensors_hooks in the region", torch="graph break")
def _hooks_inside() -> None:
    def f(x: Tensor, seen: Any) -> Tensor:
        pack, unpack = lambda t: (seen(type(t)), t.to(torch.float16))[1], lambda t: t.to(torch.float32)
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return (x.sin() * x).exp()

    rows = []
    for call in (lambda f: f, st.compile):
        x, seen = two(3, seed=1).requires_grad_(), Log()
        y = call(f)(x, seen)
        y.backward(y.detach())
        rows.append((x.grad.a, seen.rows))
    assert torch.equal(rows[0][0], rows[1][0]) and rows[0][1] == rows[1][1] and TwoTensor in rows[0][1]


class Log:
    """Keeps what it is called with."""

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def __call__(self, value: Any) -> None:
        self.rows.append(value)


@fact(S, "torch.func.functional_call of a module inside of a region (the region itself is no nn.Module)")
def _functional_call() -> None:
    module = torch.nn.Linear(2, 2)
    region = st.compile(lambda weights, x: torch.func.functional_call(module, weights, (x,)))
    weights = {"weight": torch.ones(2, 2, requires_grad=True), "bias": torch.ones(2)}
    x = dense(1, 2, seed=0)
    want = torch.func.functional_call(module, weights, (x,))
    found = region(weights, x)
    assert torch.allclose(found, want)
    (grad,) = torch.autograd.grad(found.sum(), [weights["weight"]])
    assert torch.allclose(grad, torch.autograd.grad(want.sum(), [weights["weight"]])[0])
    assert module.weight.grad is None


@fact(S, "deepcopy of a compiled module")
def _deepcopy() -> None:
    region = st.compile(torch.nn.Linear(2, 2))
    other = copy.deepcopy(region)
    x = dense(1, 2, seed=0)
    assert torch.equal(region(x), other(x)) and other.function is not region.function


@fact(S, "pickle of a compiled module")
def _pickle() -> None:
    region = st.compile(torch.nn.Linear(2, 2))
    x = dense(1, 2, seed=0)
    assert torch.equal(region(x), pickle.loads(pickle.dumps(region))(x))


@fact(S, "threads share a region")
def _threads() -> None:
    region = st.compile(lambda x: x.sin() * 2)
    wrong: list[int] = []

    def work(k: int) -> None:
        for n in range(2, 5):
            x = two(n, seed=k)
            if not torch.allclose(region(x).a, x.a.sin() * 2):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@fact(S, "an exception of the user's code passes unchanged, nothing is half written")
def _exception() -> None:
    x = two(2, seed=0)
    before = x.a.clone()

    def f(x: Tensor) -> Tensor:
        x.add_(1)
        raise KeyError("mine")

    try:
        st.compile(f)(x)
    except KeyError:
        assert torch.equal(x.a, before)
    else:
        raise AssertionError("no error")


@fact(
    S,
    "a write before an exception",
    torch="graph break or nothing written",
    differs="nothing is written; eager keeps what was written before it",
)
def _exception_differs() -> None:
    results = []
    for call in (lambda f: f, st.compile):
        x = two(2, seed=0)
        with contextlib.suppress(KeyError):
            call(lambda x: (x.add_(1), {}["mine"]))(x)
        results.append(x.a)
    assert torch.equal(*results)


@fact(
    S,
    "an operation that is called for its effect (no result, or a registered effect): once, in order",
    torch="silently dropped without a registered effect",
)
def _effects() -> None:
    log: list[float] = []
    library = torch.library.Library("st_semantics", "DEF")
    library.define("note(Tensor x) -> ()")
    library.impl("note", lambda x: log.append(float(x.sum())), "CPU")
    torch.library.register_fake("st_semantics::note", lambda x: None, lib=library)
    note = torch.ops.st_semantics.note
    f = st.compile(lambda x: (note(x), x.mul_(2), note(x), x * 1)[3])
    f(torch.ones(2)), f(torch.ones(3))
    assert log == [2, 4, 3, 6]
    library._destroy()


@fact(
    S,
    "Python side effects",
    torch="supported (graph break where needed)",
    differs="they happen once per specialization, when it is traced",
)
def _side_effects() -> None:
    counts = []
    for call in (lambda f: f, st.compile):
        log: list[int] = []
        f = call(lambda x, log=log: (log.append(1), x * 2)[1])
        f(two(2, seed=0)), f(two(2, seed=1))
        counts.append(len(log))
    assert counts[0] == counts[1]
