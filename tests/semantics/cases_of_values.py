"""Cases: aliasing, mutation."""

from __future__ import annotations

import torch
from case_kit import cases, no_grad, nonleaf, plain, root, tagged
from oracle import Inputs
from wrappers import Scaled, dense, scaled, two

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


# ---------------------------------------------------------------------------------------------- aliasing
same, fact = cases("Aliasing of inputs")
same(
    "two wrappers share an inner tensor, one is written",
    lambda x, y: (x.mul_(2), y * 3)[1],
    lambda c: (lambda i: (TwoTensor(i, dense(3, seed=c)), TwoTensor(i, dense(3, seed=c + 5))))(dense(3, seed=c + 9)),
    torch="silently wrong",
)
same(
    "a wrapper and its own inner tensor, either written",
    lambda x, y: (x.mul_(2), y.add_(1), x * 1),
    lambda c: (lambda w: (w, w.a))(two(3, seed=c)),
    torch="silently wrong",
)
same(
    "two quantised tensors share their scale, it is written",
    lambda x, y: (x.scale.mul_(2), y * 1)[1],
    lambda c: (lambda s: (Scaled(dense(3, seed=c), s), Scaled(dense(3, seed=c + 5), s)))(torch.tensor(0.5)),
    torch="silently wrong",
)
same(
    "one tensor is both halves of a wrapper",
    lambda x: x.add_(1),
    lambda c: (lambda i: TwoTensor(i, i))(dense(3, seed=c)),
    torch="error (assertion)",
)
same(
    "the same wrapper twice, written", lambda x, y: (x.mul_(2), y * 1)[1], lambda c: (lambda w: (w, w))(two(3, seed=c))
)
same(
    "base and view, the base is written",
    lambda x, y: (x.mul_(2), y * 3)[1],
    lambda c: (lambda w: (w, w[1:]))(two(4, seed=c)),
    torch="refused",
    refused="eager",
)
same(
    "overlapping ranges of a value that requires grad",
    lambda x, y: (x.mul_(2), y * 3)[1],
    lambda c: (lambda w: (lambda v: Inputs((v[:5], v[3:]), (w,)))(w * 1))(two(8, seed=c).requires_grad_()),
    back=(0,),
    torch="refused",
    refused="eager",
)
same(
    "interleaved strides do not alias",
    lambda x, y: (x.mul_(2), y * 3)[1],
    lambda c: (lambda w: (w[::2], w[1::2]))(two(8, seed=c)),
    refused="eager",
)


@fact("another alias pattern on a later call is another specialization", torch="silently wrong")
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
same, fact = cases("Mutation")
same("value of a view chain", lambda x: (x.view(-1)[1:4].mul_(2), x * 1)[1], plain())
same("inner tensor of a wrapper (`x.a.add_(1)`)", lambda x: (x.a.add_(1), x * 2)[1], plain(), torch="silently wrong")
same("leaf that requires grad, under no_grad", lambda x: (no_grad(lambda: x.add_(1))(), x * 2)[1], root(), back=(0,))
same("leaf that requires grad, outside no_grad: eager refuses too", lambda x: x.add_(1), root())
same(
    "non-leaf, used afterwards with its own gradient",
    lambda x: (x.add_(1), x * 2),
    nonleaf(),
    back=(0, 1),
    torch="error (wrong guess of the gradient's type)",
)
same("through `.data`", lambda x: (x.data.add_(1), x * 2)[1], root(), back=(0,))
same("`_foreach_add_` on a list", lambda x: (torch._foreach_add_([x], 1.0), x * 1)[1], plain())
same(
    "`_foreach_copy_([a, b], [b, a])`: the second step reads what the first wrote",
    lambda x: (torch._foreach_copy_([x[0], x[1]], [x[1], x[0]]), x * 1)[1],
    plain(dense),
    torch="silently wrong",
)
same(
    "shape: `unsqueeze_`, `transpose_`",
    lambda x: (x.unsqueeze_(0).transpose_(0, 1), x * 1)[1],
    plain(),
    torch="graph break",
    refused="eager",
)
same(
    "shape of an input after `detach()` of it",
    lambda x: (d := x.detach(), x.unsqueeze_(0), d * 1)[2],
    plain(dense),
    refused="eager",
)
same(
    "disjoint window of an overlapping view (`unfold`)",
    lambda x: (x.unfold(0, 2, 1)[:1].add_(1), x * 1)[1],
    plain(dense, 4),
)
same(
    "one row of an expanded value (`expand(3, -1)[0]`)",
    lambda x: (y := x * 2, y.expand(3, 4)[0].zero_(), y)[2],
    lambda c: torch.full((4,), float("inf")),
)
same(
    "overlapping inputs that start in the middle of a storage",
    lambda x, y: (x.mul_(2), y * 1)[1],
    lambda c: (lambda b: (b[:, 1:3], b[1:3]))(dense(26, seed=c)[2:].view(4, 6)),
    refused="eager",
)
same(
    "a source that overlaps what is written (`x.index_copy_(0, i, x[1:])`, `x.mul_(x.t())`): eager refuses too",
    lambda x: x.mul_(x.t()),
    plain(dense),
    torch="not in the survey",
)
same(
    "a result that depends on the order of reads and writes (`x.addmm_(x, x)`, `torch.mm(x, x, out=x)`)",
    lambda x: x.addmm_(x, x),
    plain(dense),
    torch="not in the survey",
    refused="eager",
)
same(
    "a row of an expanded view, written after the shape of its base has changed",
    lambda x: (v := x + x, w := v[:1].expand(2, 3), v.unsqueeze_(0), w[1].add_(1), w[1])[4],
    plain(dense),
    torch="not in the survey",
    refused="eager",
)
same(
    "in-place operation without a functional form in torch (`polygamma_`)",
    lambda x: x.clone().abs_().polygamma_(1),
    plain(dense),
)
same(
    "swap of two inputs",
    lambda x, y: (t := x.clone(), x.copy_(y), y.copy_(t), None)[3],
    lambda c: (two(3, seed=c), two(3, seed=c + 7)),
    torch="supported (inductor: silently wrong)",
)
same(
    "`x.set_(y)`, `x.data = y`: they share memory afterwards",
    lambda x, y: (x.set_(y), x.add_(1), y * 2)[2],
    lambda c: (dense(3, seed=c), dense(3, seed=c + 7)),
    torch="graph break",
    refused="eager",
)
same(
    "`x.data = y` of wrappers",
    lambda x, y: (setattr(x, "data", y), x.add_(1), y * 2)[2],
    lambda c: (two(3, seed=c), two(3, seed=c + 7)),
    torch="graph break",
)
same(
    "`out=` of another size, which grows",
    lambda x, y: torch.add(x, 1, out=y),
    lambda c: (dense(3, seed=c), torch.empty(0)),
    refused="eager",
)
same(
    "`as_strided` of an input across several inputs, written",
    lambda x, y: (x.as_strided((4,), (1,), 1).mul_(2), x + y)[1],
    lambda c: (lambda b: (b[3:], b[:3]))(dense(6, seed=c)),
    torch="not in the survey",
)
same(
    "`as_strided` of an input, written outside of all inputs",
    lambda x: x.as_strided((4,), (1,), 1).mul_(2),
    lambda c: dense(6, seed=c)[3:],
    torch="not in the survey",
)


@fact('a list or a dict among the arguments (`d["z"] = y`, `losses.append(x)`)')
def _containers() -> None:
    def f(d: dict[str, Tensor], xs: list[Tensor]) -> None:
        d["z"] = d["x"] * 2
        xs.append(d["z"] + 1)

    d, xs = {"x": torch.ones(2)}, [torch.zeros(2)]
    st.compile(f)(d, xs)
    assert list(d) == ["x", "z"] and d["z"].tolist() == [2, 2] and xs[1].tolist() == [3, 3] and len(xs) == 2


same(
    "a Python attribute of an input is set",
    lambda x: (setattr(x, "tag", "new"), x * 2)[1],
    plain(scaled),
    torch="silently wrong",
    refused="eager",
)
same(
    "a member of a split, tracked by autograd: eager refuses too",
    lambda x, y: x.mul_(2),
    lambda c: (lambda w: Inputs((w * 1).split(2), (w,)))(two(4, seed=c).requires_grad_()),
)


@fact(
    "shape of a dense value, of which a view is used afterwards, differentiable",
    torch="not in the survey",
    refused="eager",
)
def _reshaped_base() -> None:
    def f(x: Tensor) -> Tensor:
        base = x + x
        view = base[1:]
        base.t_()
        return view * 2

    st.compile(f)(torch.ones(3, 3, requires_grad=True))


@fact(
    "shape of an argument that is a view of another one, which requires grad: runs eagerly", torch="not in the survey"
)
def _reshaped_view() -> None:
    whole = dense(3, 3, seed=0).requires_grad_() * 1
    member = whole[1:]
    st.compile(lambda x, y: y.t_())(whole, member)


same(
    "shape of a value, of which a view is made afterwards, and which is written then",
    lambda x: (base := x + x, base.t_(), v := base[1:], base.mul_(2), v * 1)[4],
    root(dense),
    back=(0,),
    torch="not in the survey",
)
same(
    "shape of a wrapper that is made in the region, of which a view is made afterwards",
    lambda x: (base := x + x, base.t_(), base[1:] * 1)[2],
    root(),
    back=(0,),
    torch="not in the survey",
)
same(
    "shape of a leaf that requires grad, changed in place and back under no_grad",
    lambda x: (no_grad(lambda: (x.t_(), x.t_()))(), x * 2)[1],
    root(dense),
    back=(0,),
    torch="not in the survey",
    refused="eager",
)
same(
    "shape of a view of an input, changed in place",
    lambda x: (v := x[1:], v.t_(), v * 1)[2],
    plain(dense),
    torch="not in the survey",
    refused="eager",
)
same(
    "shape of a view of a value, which is written then",
    lambda x: (base := x + x, v := base[1:], v.t_(), base.mul_(2), v * 1)[4],
    root(dense),
    back=(0,),
    torch="not in the survey",
    refused="eager",
)
same(
    "an input that another one repeats (`expand`) is written",
    lambda x, y: (x.mul_(2), y * 3)[1],
    lambda c: (lambda b: (b, b.expand(2, 3)))(dense(3, seed=c)),
    torch="not in the survey",
    refused="eager",
)
same(
    "an input with a negative bit is written",
    lambda x: x.mul_(2),
    lambda c: torch.complex(dense(3, seed=c), dense(3, seed=c + 5)).conj().imag,
    torch="not in the survey",
    refused="eager",
)
same(
    "`detach_()` of an input",
    lambda x: (y := x * 2, x.detach_(), y, x * 3)[2:],
    nonleaf(),
    back=(0,),
    torch="graph break",
    refused="eager",
)
same(
    "`requires_grad_(False)` of a leaf, which is written then",
    lambda x: x.requires_grad_(False).mul_(2),
    root(),
    refused="UnsupportedError",
)
same(
    "an input that is detached in place, and then made a leaf",
    lambda x: x.detach_().requires_grad_() * 2,
    nonleaf(),
    torch="graph break",
    refused="eager",
)


def _count(x: Tensor) -> Tensor:
    x.tag += 1
    x.kept = x * 2
    return x * x.tag


same(
    "Python attributes that the user has set on an input, a wrapper too: read and set",
    _count,
    tagged,
    specializations=2,
)


_NAMED = dense(3, seed=5)


@fact("a Python attribute of a tensor that the function names is set", torch="not in the survey")
def _attribute_of_a_named_tensor() -> None:
    def f(x: Tensor) -> Tensor:
        _NAMED.tag = 5  # type: ignore[attr-defined]
        return x * 2

    region = st.compile(f)
    for _ in range(2):
        region(dense(3, seed=0))
        assert vars(_NAMED).pop("tag") == 5


@fact("a Python attribute of an input is deleted", torch="not in the survey")
def _deletes_an_attribute() -> None:
    def f(x: Tensor) -> Tensor:
        del x.tag
        return x * 2

    region = st.compile(f)
    for x in (tagged(0), tagged(0)):
        region(x)
        assert not hasattr(x, "tag")


same(
    "an inner tensor is replaced",
    lambda x: (setattr(x, "scale", x.scale * 2), x * 1)[1],
    plain(scaled),
    torch="silently wrong",
    refused="eager",
)
same(
    "an inner tensor of an argument with a history is replaced, after a write",
    lambda x: (x.mul_(2), setattr(x, "a", x.a * 2), x * 2)[2],
    nonleaf(),
    back=(0,),
    torch="not in the survey",
    refused="eager",
)
same(
    "a tensor that the function closes over",
    lambda x: (_COUNTER.add_(1), x * _COUNTER)[1],
    lambda c: (_COUNTER.zero_(), two(3, seed=c))[1],
)
same(
    "a tensor that the function closes over, which differentiable results depend on",
    lambda x: (_COUNTER.add_(1), x * _COUNTER, _COUNTER)[1:],
    lambda c: (_reset(), w := two(3, seed=c).requires_grad_(), Inputs((w,), (w,)))[2],
    back=(0,),
    torch="graph break",
)
same(
    "a tensor in a list that the function closes over, its shape too",
    lambda x: (_HELD[0].mul_(2), _HELD[0].unsqueeze_(0), x * _HELD[0])[2],
    lambda c: (_HELD.__setitem__(0, dense(3, seed=1)) if not c else _HELD[0].squeeze_(0), dense(3, seed=c))[1],
    calls=1,
    refused="eager",
)

_COUNTER = torch.zeros(())


def _reset() -> None:
    """The counter as it was before all calls, its version too."""
    _COUNTER.zero_()
    torch._C._autograd._unsafe_set_version_counter((_COUNTER,), (0,))


_HELD = [torch.zeros(3)]
