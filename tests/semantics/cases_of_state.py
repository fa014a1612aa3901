"""Cases: sizes, contexts of wrappers, and what is around a region."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import pickle
import threading
import time
import types
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from case_kit import A, C, D, S, fact, plain, root, same
from oracle import Inputs
from torch.utils.checkpoint import checkpoint
from wrappers import Scaled, dense, masked, two

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


# ---------------------------------------------------------------------------------------------- sizes
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


@fact(
    D,
    "a size where torch takes a number: `torch.linspace(0, 1, n)`, `torch.hann_window(n)` (one specialization for all sizes)",
    torch="not in the survey",
)
def _sizes_as_numbers() -> None:
    def f(x: Tensor) -> Tensor:
        return x * torch.linspace(0, 1, x.shape[0])[:, None] * torch.hann_window(x.shape[0])[:, None]

    region = st.compile(f, dynamic=True)
    for n in (3, 4, 7):
        assert torch.equal(region(x := two(n, 2, seed=n)).b, f(x).b)
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
same(
    D,
    "`int(x)`, `float(x)`, `bool(x)`, `torch.allclose(x, y)`: returned, computed with, `int(x)` as a size",
    lambda x: (int(x.sum()), x * float(x.sum()), bool(x.any()), torch.allclose(x, x), torch.ones(int((x > 0).sum()))),
    plain(dense),
    torch="not in the survey",
)
same(
    D,
    "`torch.tensor([x[0], n])` of tensors and numbers inside tensors",
    lambda x: torch.tensor([x.sum(), x.sum().item(), 2]),
    plain(dense),
    torch="not in the survey",
)
same(
    D,
    "a view or a copy, by a number inside a tensor (`x[:, :n].contiguous()`, `reshape`), returned where eager has a view",
    lambda x, n: x[:, : n.item()].contiguous(),
    lambda c: (dense(3, 3, seed=c), torch.tensor(3)),
    torch="not in the survey",
    differs="it is a copy in each call",
)
same(
    D,
    "the same, written while the other one is used afterwards",
    lambda x, n: x[:, : n.item()].contiguous().add_(1),
    lambda c: (dense(3, 3, seed=c), torch.tensor(3)),
    torch="not in the survey",
    refused="DataDependentError",
)
same(
    D,
    "the time (`time.time()`): returned, stored or computed with",
    lambda x: (x, time.time()),
    plain(dense),
    torch="not in the survey",
    refused="UnsupportedError",
)
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


@fact(
    D,
    "such a check, caught in the region (`try: torch.linalg.inv(x)`, `except RuntimeError:`)",
    torch="differs in the same way",
    differs="the values are looked at in the call, when the function has long run: the error leaves the region; "
    "`torch.linalg.inv_ex` gives the number of the column instead",
)
def _caught_check() -> None:
    def f(x: Tensor) -> Tensor:
        try:
            return torch.linalg.inv(x)
        except RuntimeError:
            return x * 5

    try:
        got = st.compile(f)(torch.zeros(2, 2))
    except torch.linalg.LinAlgError:
        got = None
    assert got is not None and torch.equal(got, f(torch.zeros(2, 2)))


@fact(
    D, "a call that eager refuses by dtypes or shapes (`x.mul_(1j)` of a real `x`): the same error, also where caught"
)
def _refused_call() -> None:
    def f(x: Tensor) -> Tensor:
        try:
            return x.mul_(1j)
        except RuntimeError as error:
            return x * len(str(error))

    assert torch.equal(st.compile(f)(torch.ones(2)), f(torch.ones(2)))


same(
    D,
    "checks of torch.distributions (ValueError for invalid parameters and samples)",
    lambda x, y: torch.distributions.Normal(x * 0, x).log_prob(y),
    lambda c: (torch.ones(3) - 2 * (c == 1), dense(3, seed=c)),
    torch="not checked",
)


class _Scaling(torch.distributions.Transform):
    """A transform of a user's: code of torch calls its methods."""

    domain = codomain = torch.distributions.constraints.real
    bijective = True

    def __init__(self, w: Tensor) -> None:
        super().__init__()
        self.w, self.factor = w, 1.0

    def _inverse(self, y: Tensor) -> Tensor:
        return y / (self.w * self.factor)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.w.log()


@fact(
    D,
    "parameters of a distribution, and a transform of the user's inside of it, replaced or changed between calls",
    torch="not in the survey",
)
def _inside_distributions() -> None:
    found = []
    for call in (lambda f: f, st.compile):
        mine = _Scaling(torch.full((3,), 2.0, requires_grad=True))
        flow: Any = torch.distributions.TransformedDistribution(
            torch.distributions.Normal(torch.zeros(3), torch.ones(3)), [mine]
        )
        region: Any = call(lambda x, flow=flow: flow.log_prob(x).sum())
        results, first = [region(dense(3, seed=1)).item()], mine.w
        mine.factor = 3.0
        results.append(region(dense(3, seed=1)).item())
        flow.base_dist.loc = torch.ones(3)
        mine.w = torch.full((3,), 5.0, requires_grad=True)
        loss = region(dense(3, seed=1))
        loss.backward()
        assert mine.w.grad is not None
        found.append([*results, loss.item(), first.grad, mine.w.grad.tolist()])
    assert found[0] == found[1]


same(
    D,
    "the text of a tensor, or of a number inside of it",
    lambda x: f"{x.sum()} {x.sum().item():.2f}",
    plain(dense),
    torch="graph break",
    refused="DataDependentError",
)


def _as_for_each_size(f: Callable[[Tensor], Any], specializations: int) -> None:
    region = st.compile(f, dynamic=True)
    for n in (4, 5, 6):
        assert torch.equal(region(torch.ones(n)), f(torch.ones(n)))
    assert len(region.specializations) == specializations


@fact(D, "the text or hash of a size, a size as a key (each size has a specialization)")
def _number_of_a_size() -> None:
    _as_for_each_size(lambda x: x * {"4": 2, "5": 3}.get(str(x.shape[0]), {6: 4}.get(x.shape[0], 5)), 3)


@fact(D, "`isinstance(x.shape[0], int)`, `type(x.shape[0]) is int` (one specialization for all sizes)")
def _class_of_a_size() -> None:
    _as_for_each_size(lambda x: x * (2 if isinstance(x.shape[0], int) and type(x.shape[0]) is int else 3), 1)


@fact(D, "a size as an index, `len(x)`, `x.shape.numel()`, `int(x.shape[0])` (one specialization for all sizes)")
def _size_in_use() -> None:
    _as_for_each_size(lambda x: x[x.shape[0] - 1] * len(x) + x.shape.numel() * int(x.shape[0]), 1)


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
    for function, count in ((lambda x: x * 2, 1), (lambda x: x * x.tag["k"], 2)):
        region = st.compile(function)
        tag = {"k": 1}
        region(Scaled(dense(2, seed=0), torch.tensor(1.0), tag))
        tag["k"] = 2
        x = Scaled(dense(2, seed=0), torch.tensor(1.0), tag)
        out, expected = region(x), function(x)
        assert out.tag is tag and torch.equal(out.data_, expected.data_)
        assert len(region.specializations) == count


@fact(C, "an object or a closure that is changed in place between calls", torch="error (guard)")
def _changed() -> None:
    box = types.SimpleNamespace(v=2.0)
    for tag, value in ((box, lambda: box.v), (lambda: box.v, lambda: box.v)):
        region = st.compile(lambda x: x.data_ * (x.tag() if callable(x.tag) else x.tag.v))
        for box.v in (2.0, 3.0, 2.0):
            x = Scaled(dense(2, seed=0), torch.tensor(1.0), tag)
            assert torch.equal(region(x), x.data_ * value())
        assert len(region.specializations) == 2


@fact(C, "attributes of an object, or fields of a dataclass, that nothing reads (a step counter)", torch="not checked")
def _of_object() -> None:
    for held in (Counting(), Counted()):
        region = st.compile(lambda x: x.data_ * x.tag.scale)
        for held.scale, count in ((2.0, 1), (2.0, 1), (3.0, 2)):
            held.step += 1
            x = Scaled(dense(2, seed=0), torch.tensor(1.0), held)
            assert torch.equal(region(x), x.data_ * held.scale)
            assert len(region.specializations) == count


@dataclasses.dataclass
class Counted:
    """A configuration with a step counter."""

    scale: float = 1.0
    step: int = 0


@dataclasses.dataclass
class Config:
    """A context that can be changed."""

    scale: float
    factor: ClassVar[float] = 1.0


def _configured(scale: float) -> Any:
    return Scaled(dense(2, seed=0), torch.tensor(1.0), Config(scale)).requires_grad_()


class _Configured(torch.autograd.Function):
    """Multiplied with what the context says, in the backward too."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.data_ * x.tag.scale * x.tag.factor

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return Scaled(grad * x.tag.scale * x.tag.factor, torch.tensor(1.0), x.tag)


@fact(C, "a result has the dataclass, dict or list of its input", torch="not checked")
def _handed_on() -> None:
    region = st.compile(lambda x: x * 2)
    for tag in (Config(2.0), Config(2.0), {"scale": 2.0}, [2.0]):
        assert region(Scaled(dense(2, seed=0), torch.tensor(1.0), tag)).tag is tag
    assert len(region.specializations) == 3


@fact(C, "a context that is changed between forward and backward", torch="not checked")
def _between() -> None:
    region = st.compile(_Configured.apply)
    for scale in (1.0, 3.0, 1.0):
        x = _configured(1.0)
        y = region(x)
        x.tag.scale = scale
        y.sum().backward()
        assert torch.equal(x.grad.data_, torch.full((2,), scale))
    assert len(region.specializations) == 1


@fact(C, "attributes of the class of an object in a context", torch="not checked")
def _of_class() -> None:
    region = st.compile(lambda x: x.data_ * x.tag.factor)
    for Config.factor in (1.0, 2.0, 1.0):
        x = _configured(1.0)
        assert torch.equal(region(x), x.data_ * Config.factor)
    assert len(region.specializations) == 2


class Counting:
    """A quantiser of which ``scale`` is read."""

    def __init__(self) -> None:
        self.scale, self.step = 1.0, 0


@fact(C, "an object that the operations of the class change", torch="not checked", refused="UnsupportedError")
def _counted() -> None:
    def f(x: Any) -> Any:
        x.tag.calls += 1
        return x.data_ * 2

    st.compile(f)(Scaled(dense(2, seed=0), torch.tensor(1.0), types.SimpleNamespace(calls=0)))


@fact(
    C,
    "what cannot be compared: a quantized tensor, an iterator, a list that contains itself",
    torch="not checked",
    refused="UnsupportedError",
)
def _incomparable() -> None:
    tag: list[Any] = []
    tag.append(tag)
    st.compile(lambda x: x * 2)(Scaled(dense(2, seed=0), torch.tensor(1.0), tag))


same(C, "optional inner tensors that come and go", lambda x: x * 2, lambda c: masked(3, seed=c))


# ---------------------------------------------------------------------------------------------- around a region
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


def _statistics_in_a_checkpoint(**kinds: Any) -> list[torch.Tensor]:
    """The running mean after one step, eager's and ours."""
    found = []
    for call in (lambda f: f, st.compile):
        norm = torch.nn.BatchNorm1d(2)
        checkpoint(call(norm), dense(4, 2, seed=1).requires_grad_(), use_reentrant=False, **kinds).sum().backward()
        found.append(norm.running_mean.clone())
    return found


@fact(
    S,
    "a checkpoint around the region that updates statistics of a batch norm",
    differs="once: the second run stops at the last saved tensor, before they are written back (`early_stop=False`: twice, "
    "as in eager)",
)
def _batch_norm_in_a_checkpoint() -> None:
    assert torch.equal(*_statistics_in_a_checkpoint())


@fact(S, "a checkpoint with `early_stop=False` around the region that updates statistics of a batch norm")
def _batch_norm_in_a_whole_checkpoint() -> None:
    assert torch.equal(*_statistics_in_a_checkpoint(early_stop=False))


@fact(S, "backwards of several results, one after the other, of a checkpoint around the region")
def _several_results_of_a_checkpoint() -> None:
    found = []
    for call in (lambda f: f, st.compile):
        x = dense(3, seed=1).requires_grad_()
        for y in checkpoint(call(lambda x: (x.sin().exp(), x.cos())), x, use_reentrant=False):
            y.sum().backward()
        found.append(x.grad)
    assert torch.allclose(*found)


@fact(S, "saved_tensors_hooks inside the region: pack runs in each call, unpack in each backward")
def _unpack_hooks_inside() -> None:
    found = []
    for call in (lambda f: f, st.compile):
        seen = [0, 0]

        def pack(t: torch.Tensor, seen: list[int] = seen) -> torch.Tensor:
            seen[0] += 1
            return t

        def unpack(t: torch.Tensor, seen: list[int] = seen) -> torch.Tensor:
            seen[1] += 1
            return t

        def function(x: torch.Tensor, pack: Any = pack, unpack: Any = unpack) -> torch.Tensor:
            with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                return x.sin().exp()

        region = call(function)
        for k in range(3):
            region(dense(3, seed=k).requires_grad_()).sum().backward()
        found.append(seen)
    assert found[0] == found[1] == [6, 6]


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


@fact(S, "torch.func.functional_call of a module inside of a region")
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
    "Python side effects: what is counted, appended and assigned",
    torch="supported (graph break where needed)",
)
def _side_effects() -> None:
    counts = []
    for call in (lambda f: f, st.compile):
        log: list[int] = []
        f = call(lambda x, log=log: (log.append(1), x * 2)[1])
        f(two(2, seed=0)), f(two(2, seed=1))
        counts.append(len(log))
    assert counts[0] == counts[1]


@fact(
    S,
    "tables and sets by tensor or by its `id()`: `names[id(p)]`, `state[p]`, `p in frozen`",
    torch="not in the survey",
)
def _tables_by_tensor() -> None:
    layer, other = torch.nn.Linear(2, 2), two(2, seed=0)
    names = {id(p): n for n, p in layer.named_parameters()} | {id(other): "other"}
    lengths = {p: p.numel() for p in layer.parameters()}

    def f(x: Tensor) -> Any:
        return x * 2, names.get(id(x)), [(names[id(p)], lengths[p]) for p in layer.parameters()]

    region = st.compile(f)
    for x in (two(2, seed=1), other, two(2, seed=2), other):
        assert region(x)[1:] == f(x)[1:]
    assert len(region.specializations) == 2


@fact(
    S,
    "Python side effects: a call of a function for its effect (`print`, a file)",
    torch="supported (graph break where needed)",
    differs="they happen once per specialization, when it is traced",
)
def _calls_for_effect() -> None:
    counts = []
    for call in (lambda f: f, st.compile):
        log: list[int] = []
        note = functools.partial(log.insert, 0)
        f = call(lambda x, note=note: (note(1), x * 2)[1])
        f(two(2, seed=0)), f(two(2, seed=1))
        counts.append(len(log))
    assert counts[0] == counts[1]
