"""Cases: outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from case_kit import cases, nonleaf, plain, root
from oracle import Inputs
from wrappers import Scaled, dense, nested, scaled, two

import subclass_trace as st
from subclass_trace.zoo import Constant, TwoTensor

Tensor = torch.Tensor


# ---------------------------------------------------------------------------------------------- outputs
same, fact = cases("Outputs")
same("the input itself, twice", lambda x: (x, x), root(), back=(0,))
same("view of an input", lambda x: x.view(-1)[1:], root(), back=(0,))
same("view of a wrapper whose inner shape is another", lambda x: x[1:], plain(scaled), torch="silently wrong")
same(
    "two views of one intermediate, differentiable",
    lambda x: (v := x * 2, v[0], v[1:])[1:],
    root(),
    back=(0, 1),
    torch="error",
)
same("the one view of an intermediate: its `_base`", lambda x: (x * 2)[1:].t(), root(), back=(0,))
same("a result that was written in place", lambda x: (x * 2).add_(1).mul_(3), root(), back=(0,))
same(
    "a view through which its base was written",
    lambda x: (y := x * 2, v := y.view(-1), v.mul_(3), (v, y))[3],
    root(dense),
    back=(0,),
)
same(
    "`detach()` of an input and of a result, and views of both: they share version counters",
    lambda x: (y := (x * 2).exp_(), d := y.detach(), (x.detach(), x.detach()[0], y, d))[2],
    root(),
    back=(2,),
)
same, fact = cases("Mutation")
same(
    "`buffer.data = new` after the backward's values were computed from it",
    lambda x, b: (y := x * b, setattr(b, "data", b.data * 2), y.sin())[2],
    lambda c: (w := dense(3, seed=c).requires_grad_(), Inputs((w, dense(3, seed=9)), (w,)))[1],
    back=(0,),
    torch="graph break",
    refused="eager",
)
same, fact = cases("Outputs")
same(
    "an `nn.Parameter` that the region makes (`requires_grad=False`), beside what it is made of",
    lambda x: (v := x * 2, torch.nn.Parameter(v, requires_grad=False), torch.nn.Parameter(x + 1, requires_grad=False)),
    plain(),
    torch="not in the survey",
)


@fact(
    "offloading hooks, which put parameters into a module before its forward and take them out afterwards",
    torch="not in the survey",
)
def _offloaded() -> None:
    def made() -> Any:
        module, stored = torch.nn.Linear(3, 3), dense(3, 3, seed=1)

        def put(*_: Any) -> None:
            module._parameters["weight"] = torch.nn.Parameter(stored.clone(), requires_grad=False)

        def take(*_: Any) -> None:
            nothing = torch.empty(3, 3, device="meta")
            module._parameters["weight"] = torch.nn.Parameter(nothing, requires_grad=False)

        module.register_forward_pre_hook(put)
        module.register_forward_hook(take)
        take()
        module.bias.data.zero_()
        return module

    module = made()
    region = st.compile(module, frontend="trace")
    for seed in range(4):
        with torch.no_grad():
            assert torch.equal(region(dense(2, 3, seed=seed)), dense(2, 3, seed=seed) @ dense(3, 3, seed=1).t())
        assert type(module.weight) is torch.nn.Parameter and module.weight.is_meta
    assert len(region.specializations) == 1


same, fact = cases("Backward")
same(
    "`retain_grad()` of a result (inside of a region that runs its backward: right)",
    lambda x: (h := x * 2, h.retain_grad(), h)[2],
    root(dense),
    back=(0,),
    torch="not in the survey",
    refused="UnsupportedError",
)
same, fact = cases("Outputs")
same(
    "`detach()` of an input that is written then",
    lambda x: (d := x.detach(), x.mul_(2), (x * 3, d))[2],
    plain(dense),
)
same(
    "`F.linear` of a vector, with a bias: a view of a matrix",
    lambda x: torch.nn.functional.linear(x[0], x[:, :3], x[:, 0]),
    root(dense, 3, 3),
    back=(0,),
    torch="not in the survey",
)
same("`.data` of an input that is written then", lambda x: (d := x.data, x.mul_(2), (x * 3, d))[2], plain(dense))
same(
    "`detach()` of a value with a history, which is written then",
    lambda x: (d := x.detach(), x.mul_(2), (x * 3, d))[2],
    nonleaf(dense),
    back=(0,),
)
same("`x.detach().requires_grad_()`", lambda x: x.detach().requires_grad_(), root(dense), refused="UnsupportedError")
same("members of a split of an intermediate", lambda x: (x * 2).split(1), root(dense), back=(0, 1, 2), torch="error")
same("value and its detach", lambda x: (v := x * 2, v.detach())[0:2], root(), back=(0,), torch="error")
same("another wrapper type than came in", lambda x: Scaled(x.a.detach(), torch.tensor(2.0)), plain())
same("an inner tensor taken out of the wrapper", lambda x: (x.a, x * 2), plain())
same("a view of an inner tensor beside that tensor", lambda x: (x.a, x.a.view(-1)[1:]), plain())
same(
    "a view of an input whose own shape was changed",
    lambda x: x.unsqueeze(0).unsqueeze_(0),
    plain(dense),
    refused="eager",
)
same(
    "a wrapper made of the detached input, and a written view of it",
    lambda x: (v := TwoTensor(x.detach(), x.detach()), w := v[0], w.mul_(2), (v, w))[3],
    nonleaf(),
)
same("torch.Size", lambda x: x.shape, plain())
same("None, numbers, nested containers", lambda x: {"a": [x * 2, None], "b": (x.dim(), "text")}, plain())
same("wrapper without inner tensors", lambda x: x + 1, lambda c: Constant(2.0, (3, 3)), torch="error (internal)")
same("wrapper of wrappers", lambda x: (x @ x.t()).relu(), root(nested), back=(0,))


@fact(
    "inner tensors of a result that are views of those of an input (`TwoTensor(x.a.t(), x.b.t())`): are they views?",
    differs="they share memory and version counters, but `_is_view()` is False and they have no base",
    torch="not in the survey",
)
def _views_inside(call: Any) -> Any:
    x = two(3, seed=0)
    y = call(lambda x: TwoTensor(x.a.t(), x.b.t()))(x)
    assert y.a.untyped_storage().data_ptr() == x.a.untyped_storage().data_ptr()
    return y.a._is_view()


def _views_of_dtensors(
    fn: Callable[[Any], Sequence[Tensor]], requires_grad: bool, write: bool = False
) -> list[list[Any]]:
    """What is seen of the results of ``fn``, views of a DTensor that is split by rows: in eager mode, and in a region.

    The numbers of each, of the first one after a ``write`` to it, and of the DTensor; and the gradient.
    """
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    found: list[list[Any]] = []
    try:
        mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
        for call in (lambda f: f, st.compile):
            root = DTensor.from_local(torch.arange(16.0).view(4, 4), mesh, [Shard(0)]).requires_grad_(requires_grad)
            x = root * 1
            results = call(fn)(x)
            if write:
                results[0].mul_(3)
            seen = [t.to_local().tolist() for t in results]
            if requires_grad:
                sum([t.sum() for t in (*results, x)]).backward()
                seen.append(root.grad.full_tensor().tolist())
            found.append([*seen, x.to_local().tolist()])
        return found
    finally:
        dist.destroy_process_group()


@fact(
    "`chunk`, `split`, `unbind` of a DTensor that requires grad, one or all members returned", torch="not in the survey"
)
def _members_of_dtensors() -> None:
    every = (lambda x: x.chunk(2, 1), lambda x: x.split(2, 1), lambda x: x.unbind(1))
    for fn in (lambda x: x.chunk(2, 1)[:1], lambda x: x.split(2, 1)[1:]):
        eager, ours = _views_of_dtensors(fn, False)
        assert eager == ours
    for fn in every:
        eager, ours = _views_of_dtensors(fn, True)
        assert eager == ours


#: eager gathers the rows first: these lie in memory of their own, and autograd takes them for views
_GATHERED = (lambda x: [x[:2]], lambda x: [x[0]], lambda x: x.chunk(2))


@fact(
    "a part of a DTensor along the dimension that is split (`x[:2]`, `x[0]`, `x.chunk(2)`), which its class gathers: values and "
    "gradients",
    torch="not in the survey",
)
def _parts_of_a_split_dimension() -> None:
    for fn in _GATHERED:
        for grad in (False, True):
            eager, ours = _views_of_dtensors(fn, grad)
            assert eager == ours


@fact("such a part, with a history, of an argument that the region writes", torch="not in the survey")
def _parts_of_a_written_dtensor() -> None:
    def written(x: Any) -> Any:
        y = x[:2]
        x.mul_(2)
        return [y]

    eager, ours = _views_of_dtensors(written, True)
    assert eager == ours


@fact("an unregistered container with tensors", torch="graph break")
def _container() -> None:
    class Box:
        def __init__(self, value: Tensor) -> None:
            self.value = value

    region, x = st.compile(lambda x: Box(x * 2)), two(2, seed=0)
    first, second = region(x), region(x)
    assert type(second) is Box and first is not second and torch.equal(second.value.a, (x * 2).a)
