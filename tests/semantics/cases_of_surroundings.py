"""Cases: what is around a region."""

from __future__ import annotations

import copy
import functools
import pickle
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from case_kit import cases, plain, root
from torch.utils.checkpoint import checkpoint
from wrappers import Scaled, dense, two

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


same, fact = cases("Around a region")


@fact("forward-mode AD: runs eagerly, recorded in `explain()`", torch="silently wrong (tangent dropped)")
def _forward_ad() -> None:
    import torch.autograd.forward_ad as fwad

    region = st.compile(lambda x: x.sin())
    with fwad.dual_level():
        x = fwad.make_dual(torch.zeros(2), torch.ones(2))
        assert torch.equal(fwad.unpack_dual(region(x)).tangent, torch.ones(2))
    assert "forward-mode" in region.explain()


@fact("a class whose operations call a region of its own, or a function of `torch.compile`", torch="not in the survey")
def _class_with_a_region() -> None:
    def check(times: Any) -> None:
        class Coded(Scaled):
            @classmethod
            def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if func is torch.ops.aten.mm.default:
                    return func(args[0], times(args[1].data_, args[1].scale))  # called in this round
                return super().__torch_dispatch__(func, types, args, kwargs)

        weight = Coded(dense(3, 3, seed=1), torch.tensor(0.5))
        region = st.compile(lambda x: (x @ weight).relu(), frontend="trace")
        for seed in range(3):
            x = dense(2, 3, seed=seed).requires_grad_()
            want = (x @ (dense(3, 3, seed=1) * 0.5)).relu()
            assert torch.equal(region(x), want)
            assert torch.equal(*(torch.autograd.grad(y.sum(), x)[0] for y in (region(x), want)))
        assert len(region.specializations) == 1

    for compile_it in (st.compile, functools.partial(torch.compile, backend="eager")):
        check(compile_it(lambda codes, scale: codes * scale))


@fact("`nn.LSTM`, `nn.GRU`, `nn.RNN`, which keep weak references to their weights", torch="runs them eagerly")
def _recurrent() -> None:
    for layer in (torch.nn.LSTM(3, 4), torch.nn.GRU(3, 4), torch.nn.RNN(3, 4)):
        assert torch.equal(st.compile(layer)(x := dense(2, 2, 3, seed=0))[0], layer(x)[0])


@fact(
    "ranges of `torch.profiler.record_function` inside the region",
    torch="not in the survey",
    differs="they are recorded in the call that traces, and in no later one",
)
def _ranges(call: Any) -> Any:
    def f(x: Tensor) -> Tensor:
        with torch.profiler.record_function("mine"):
            return x * 2

    region = call(f)
    region(dense(2, seed=0))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        region(dense(2, seed=1))
    return [event.name for event in profile.events()].count("mine")


@fact("vmap, grad, jvp around the call: run eagerly, recorded in `explain()`")
def _functorch() -> None:
    region = st.compile(lambda x: x.sin().sum())
    x = dense(3, seed=0)
    assert torch.allclose(torch.func.grad(region)(x), x.cos())
    assert "functorch" in region.explain()


same("torch.func.grad inside the region", lambda x: torch.func.grad(lambda y: y.sin().sum())(x), plain(dense))
same(
    "checkpoint inside the region",
    lambda x: checkpoint(lambda y: y.sin().cos(), x, use_reentrant=False) * 2,
    root(),
    back=(0,),
)


@fact("checkpoint around the region", close=True)
def _checkpoint_around(call: Any) -> Any:
    x = two(3, seed=1).requires_grad_()
    y = checkpoint(call(lambda x: x.sin() * 2), x, use_reentrant=False)
    y.backward(y.detach())
    return x.grad.a


@fact("a checkpoint in which the region is called with several sizes, with dropout", close=True)
def _checkpoint_of_sizes(call: Any) -> Any:
    region = call(lambda x: F.dropout(x.sin() * 2, 0.5, True))
    found = []
    for size in (4, 4, 6, 5, 6):
        torch.manual_seed(size)
        x = dense(size, 3, seed=size).requires_grad_()
        y = checkpoint(lambda t: torch.cat([region(t), region(t[:2])]), x, use_reentrant=False)
        y.square().sum().backward()
        found += [y.detach(), x.grad]
    return torch.cat([t.flatten() for t in found])


def _statistics_in_a_checkpoint(**kinds: Any) -> list[torch.Tensor]:
    """The running mean after one step, eager's and ours."""
    found = []
    for call in (lambda f: f, st.compile):
        norm = torch.nn.BatchNorm1d(2)
        checkpoint(call(norm), dense(4, 2, seed=1).requires_grad_(), use_reentrant=False, **kinds).sum().backward()
        found.append(norm.running_mean.clone())
    return found


@fact(
    "a checkpoint around the region that updates statistics of a batch norm",
    differs="once: the second run stops at the last saved tensor, before they are written back (`early_stop=False`: twice, "
    "as in eager)",
)
def _batch_norm_in_a_checkpoint() -> None:
    assert torch.equal(*_statistics_in_a_checkpoint())


@fact("a checkpoint with `early_stop=False` around the region that updates statistics of a batch norm")
def _batch_norm_in_a_whole_checkpoint() -> None:
    assert torch.equal(*_statistics_in_a_checkpoint(early_stop=False))


@fact(
    "`torch.compiler.is_compiling()` asked in a region",
    differs="True, as in `torch.compile`: libraries take their traceable paths",
)
def _asks_whether_it_is_compiled() -> None:
    def asks(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if torch.compiler.is_compiling() else x

    x = dense(2, seed=1)
    assert st.compile(asks)(x).equal(asks(x))


@fact("backwards of several results, one after the other, without retain_graph: refused by autograd", torch="refused")
def _several_results() -> None:
    x = dense(3, seed=1).requires_grad_()
    first, second = st.compile(lambda x: (x.sin().exp(), x.cos()), partitioner="default")(x)
    first.sum().backward()
    with pytest.raises(RuntimeError, match=r"a second time(.|\n)*all its results have one backward"):
        second.sum().backward()


@fact("saved_tensors_hooks inside the region: hooks that count", refused="UnsupportedError")
def _unpack_hooks_inside(compile: Any) -> Any:
    seen = [0, 0]

    def pack(t: torch.Tensor) -> torch.Tensor:
        seen[0] += 1
        return t

    def unpack(t: torch.Tensor) -> torch.Tensor:
        seen[1] += 1
        return t

    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return x.sin().exp()

    region = compile(function)
    for k in range(3):
        region(dense(3, seed=k).requires_grad_()).sum().backward()
    return seen


@fact(
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


@fact("saved_tensors_hooks in the region", torch="graph break", refused="UnsupportedError")
def _hooks_inside(compile: Any) -> Any:
    def f(x: Tensor, seen: Any) -> Tensor:
        pack, unpack = lambda t: (seen(type(t)), t.to(torch.float16))[1], lambda t: t.to(torch.float32)
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return (x.sin() * x).exp()

    x, seen = two(3, seed=1).requires_grad_(), Log()
    y = compile(f)(x, seen)
    y.backward(y.detach())
    assert TwoTensor in seen.rows
    return x.grad.a.tolist(), seen.rows


class Log:
    """Keeps what it is called with."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def __call__(self, value: Any) -> None:
        self.rows.append(value)


@fact("torch.func.functional_call of a module inside of a region")
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


@fact("deepcopy of a compiled module")
def _deepcopy() -> None:
    region = st.compile(torch.nn.Linear(2, 2))
    other = copy.deepcopy(region)
    x = dense(1, 2, seed=0)
    assert torch.equal(region(x), other(x)) and other.function is not region.function


@fact("pickle of a compiled module")
def _pickle() -> None:
    region = st.compile(torch.nn.Linear(2, 2))
    x = dense(1, 2, seed=0)
    assert torch.equal(region(x), pickle.loads(pickle.dumps(region))(x))


@fact("threads share a region")
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


@fact("an exception of the user's code passes unchanged, with what eager wrote before it")
def _exception() -> None:
    x = two(2, seed=0)
    before = x.a + 1

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


@torch.library.custom_op("st_semantics_cases::doubled", mutates_args=())
def _doubled(x: Tensor) -> Tensor:
    return x * 2


same(
    "an operator of the user's without a kernel for fake tensors",
    lambda x: _doubled(x) + 1,
    lambda c: two(2, seed=c).a,
    torch="error",
    refused="eager",
)
