"""CUDA graphs by other ways: any sequence of calls, modes and options, Dynamo, compiled autograd, threads."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import hypothesis.strategies as strategies
import pytest
import torch
from hypothesis import given, settings
from in_graphs import ONE, events, graphed, mlp, randn, same

import subclass_trace as st
from subclass_trace.backends import Settings, resolve_backend, with_cudagraphs
from subclass_trace.backends.cudagraphs import program, recording
from subclass_trace.errors import BackendError, OptionError
from subclass_trace.frontends.dynamo import dynamo_options
from subclass_trace.testing import EmulatedRecorder
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


class Model(torch.nn.Module):
    """Weights, a written buffer, random numbers, a written input, views, a list."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 4)
        self.wrapped = torch.nn.Parameter(TwoTensor(randn(4, 4), randn(4, 4, seed=1)))
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: Tensor, other: list[Tensor], writes: bool) -> tuple[Tensor, ...]:
        with torch.no_grad():
            self.count += x.sum(0)
            if writes:
                torch._foreach_mul_([x, *other], 0.5)
        h = torch.nn.functional.dropout(self.layer(x), 0.3).relu()
        y = h + (x @ self.wrapped).tanh().a + other[0].sum()
        return y, y[:1], h.exp(), x


class World:
    """One side: eager mode or a region, with what calls have left."""

    def __init__(self, model: torch.nn.Module, run: Any) -> None:
        self.model, self.run = model, run
        self.kept: list[Any] = []
        self.losses: list[Tensor] = []
        self.buffers = [randn(8, 4, seed=k) for k in range(2)]
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)

    def do(self, what: tuple[Any, ...]) -> Any:
        """One step; what can be compared of it."""
        torch.manual_seed(hash(what) % 1000)
        name, *rest = what
        if name == "call":
            size, aliased, writes, grad, keep = rest
            base = self.buffers[0]
            x = base[:size] if aliased else randn(size, 4, seed=size)
            x = self.kept[-1][2][:size].detach() if aliased == 2 and self.kept else x
            with torch.set_grad_enabled(grad):
                found = self.run(x, [self.buffers[1]], writes)
            if keep:
                self.kept.append(found)
            if grad:
                self.losses.append(found[0].square().mean() + found[2].mean())
            return found, self.buffers
        if name == "backward" and self.losses:
            self.losses.pop(0 if rest[0] else -1).backward(retain_graph=False)
        elif name == "step":
            self.losses.clear()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=rest[0])
        elif name == "move":
            self.model.layer.weight.data = self.model.layer.weight.data * 0.9
        elif name == "drop":
            self.kept.clear()
        gradients = [None if p.grad is None else p.grad.clone() for p in self.model.parameters()]
        return gradients, self.kept, [*self.model.parameters()], [*self.model.buffers()]


flags = strategies.booleans()
calls = strategies.tuples(
    strategies.just("call"), strategies.sampled_from([2, 3, 5]), strategies.sampled_from([0, 1, 2]), flags, flags, flags
)
rest = strategies.one_of(
    strategies.tuples(strategies.just("backward"), flags),
    strategies.tuples(strategies.just("step"), flags),
    strategies.sampled_from([("move",), ("drop",)]),
)
sequences = strategies.lists(strategies.one_of(calls, calls, rest), min_size=4, max_size=14)


@pytest.mark.filterwarnings("ignore:a region has recorded 2 sizes")
@pytest.mark.parametrize("outputs", [pytest.param("clone", marks=pytest.mark.long), "weak"])
@settings(max_examples=settings().max_examples // 2)
@given(sequence=sequences)
def test_any_sequence_of_calls_is_that_of_eager(outputs: str, sequence: list[tuple[Any, ...]]) -> None:
    reference, model = Model(), Model()
    region, recorder = graphed(model, outputs=outputs, limit=2)
    theirs, ours = World(reference, reference), World(model, region)
    for what in [*sequence, *sequence]:
        try:
            expected = theirs.do(what)
        except RuntimeError as error:  # written since it was saved, or a part of a graph that is gone
            assert "inplace operation" in str(error) or "second time" in str(error)
            return
        same(expected, ours.do(what))


def test_a_region_in_two_threads() -> None:
    region, _ = graphed(lambda x: (x * 2).exp())
    wait = threading.Barrier(2)

    def work(seed: int) -> None:
        wait.wait()
        for k in range(20):
            x = randn(4, seed=seed + k)
            same(region(x), (x * 2).exp())

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(work, (0, 100)))


def test_inference_mode() -> None:
    layer = mlp()
    region, recorder = graphed(layer)
    for k in range(4):
        with torch.inference_mode():
            found, expected = region(randn(3, 4, seed=k)), layer(randn(3, 4, seed=k))
            assert found.is_inference()
            same(expected, found)
        with torch.no_grad():
            same(layer(randn(3, 4, seed=k)), region(randn(3, 4, seed=k)))
    assert events(recorder)[-4:] == [*ONE, *ONE]


def test_reset_gives_memory_back() -> None:
    region, recorder = graphed(lambda x: x * 2)
    for _ in range(3):
        region(randn(3))
    assert len(recorder._graphs) == 1 and "1 recordings" in region.explain()
    region.reset()
    gc.collect()
    assert len(recorder._graphs) == 0 and "0 recordings" in region.explain()
    same(region(randn(3)), randn(3) * 2)


def test_collectives_are_in_no_recording() -> None:
    """So no recording outlives a process group that it needs."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:

        def f(x: Tensor) -> Tensor:
            y = (x * 2).exp()
            torch.distributed.all_reduce(y)
            return (y + 1).sin()

        region, recorder = graphed(f)
        for k in range(4):
            same(f(randn(3, seed=k)), region(randn(3, seed=k)))
        assert recorder.events.count("record") == 2
        assert "it needs a process group, which may end before a recording does" in region.explain()
    finally:
        torch.distributed.destroy_process_group()
    same(randn(3).exp(), st.compile(torch.exp)(randn(3)))


def test_compiled_autograd_records_each_segment() -> None:
    recorder = EmulatedRecorder()
    backend = with_cudagraphs(resolve_backend("eager"), Settings(recorder))
    model, reference, hooked = mlp(), mlp(), list[float]()
    for m in (model, reference):
        m[0].weight.register_hook(lambda g: hooked.append(g.sum().item()))
    for k in range(5):
        reference(randn(3, 4, seed=k)).square().sum().backward()
        with st.compiled_autograd(backend=backend):
            model(randn(3, 4, seed=k)).square().sum().backward()
        same([p.grad for p in model.parameters()], [p.grad for p in reference.parameters()])
        assert hooked[-1] == hooked[-2]
    assert recorder.events.count("replay") > 0


def test_dynamo_in_front() -> None:
    recorder = EmulatedRecorder()
    options = {"backend": "cudagraphs", "options": {"recorder": recorder}}
    assert dynamo_options("reduce-overhead", options).mode == "reduce-overhead"
    model, reference = mlp(), mlp()
    compiled = torch.compile(model, backend="subclass_trace", options=options)
    for k in range(4):
        for m in (compiled, reference):
            m(randn(3, 4, seed=k)).square().sum().backward()
        same([p.grad for p in model.parameters()], [p.grad for p in reference.parameters()])
    assert events(recorder)[-4:] == [*ONE, *ONE]


def test_a_region_that_is_handed_over() -> None:
    recorder = EmulatedRecorder()

    def f(x: Tensor) -> Tensor:
        print("called")
        return (x * 2).exp()

    region = st.compile(f, backend="cudagraphs", options={"recorder": recorder}, frontend="dynamo")
    for k in range(4):
        same(region(randn(3, seed=k)), (randn(3, seed=k) * 2).exp())
    assert recorder.events.count("replay") == 3


@pytest.mark.inductor
@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_modes_of_inductor(mode: str) -> None:
    recorder = EmulatedRecorder()
    model, reference = mlp(), mlp()
    in_graphs = "no-cudagraphs" not in mode
    settings = {"recorder": recorder} if in_graphs else None
    region = st.compile(model, backend="inductor", mode=mode, options=settings, frontend="trace")
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, reference)]
    for k in range(4):
        for m, optimizer in zip((region, reference), optimizers, strict=True):
            optimizer.zero_grad()
            m(randn(3, 4, seed=k)).square().sum().backward()
            optimizer.step()
        torch.testing.assert_close([*model.parameters()], [*reference.parameters()])
    assert events(recorder)[-4:] == [*ONE, *ONE] * in_graphs


@pytest.mark.inductor
def test_inductor_with_a_cut_graph() -> None:
    recorder = EmulatedRecorder()

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = (x * 2).exp() + 1
        return (y * 3).relu(), (y > 2).nonzero()

    settings = {"recorder": recorder}
    region = st.compile(f, backend="inductor", mode="reduce-overhead", options=settings, frontend="trace")
    for k in range(4):
        torch.testing.assert_close(region(randn(5, seed=k)), f(randn(5, seed=k)))
    assert recorder.events.count("replay") > 0


@pytest.mark.parametrize("sizes", [{}, {"sizes": [1, 2, 4, 8]}])
def test_inputs_that_overlap(sizes: dict[str, Any]) -> None:
    settings = {"recorder": EmulatedRecorder(), **sizes}
    region = st.compile(lambda x, y: x * y + x, backend="cudagraphs", options=settings, dynamic=True, frontend="trace")
    for k in range(4):
        base = torch.arange(6.0) + k
        torch.testing.assert_close(region(base[:3], base[1:4]), base[:3] * base[1:4] + base[:3])


def test_whole_numbers_as_indices_are_recorded() -> None:
    settings = {"recorder": (recorder := EmulatedRecorder())}
    region = st.compile(lambda x, i: (x * 2)[i] + 1, backend="cudagraphs", options=settings, frontend="trace")
    for k in range(4):
        torch.testing.assert_close(region(randn(6, seed=k), torch.tensor([1, 3])), randn(6, seed=k)[[1, 3]] * 2 + 1)
    assert len(recorder._graphs) == 1 and recorder.events.count("replay") > 0


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown mode": ({"mode": "fast"}, "mode has no such value"),
    "eager": ({"mode": "reduce-overhead"}, "this back end has no mode 'reduce-overhead'"),
    "autotune": ({"backend": "cudagraphs", "mode": "max-autotune"}, "this back end has no mode 'max-autotune'"),
    "callable": ({"backend": lambda gm, _: gm, "mode": "max-autotune"}, "this back end has no mode"),
    "other compiler": ({"backend": "inductor", "mode": "max-autotune", "fw_compiler": lambda gm, _: gm}, "no mode"),
    "mode and options": (
        {"backend": "inductor", "mode": "max-autotune-no-cudagraphs", "options": {"shape_padding": True}},
        "takes no options of inductor",
    ),
    "outputs": ({"options": {"outputs": "some"}}, "'outputs' has no such value"),
    "sizes": ({"options": {"sizes": [0, 2]}}, "'sizes' has no such value"),
    "no options": ({"options": 3}, "options has no such value"),
    "no list": ({"options": {"sizes": 4}}, "'sizes' has no such value"),
    "truth is no size": ({"options": {"sizes": [True]}}, "'sizes' has no such value"),
    "limit": ({"options": {"limit": 0}}, "'limit' has no such value"),
    "recorder": ({"options": {"recorder": "emulated"}}, "'recorder' has no such value"),
    "unknown option": ({"options": {"size": [2]}}, "takes no such options"),
    "of another back end": ({"backend": "eager", "options": {"sizes": [2]}}, "takes no options"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_options_are_refused(name: str) -> None:
    options, message = REFUSED[name]
    with pytest.raises(OptionError, match=message):
        st.compile(lambda x: x, **{"backend": "eager" if "mode" in options else "cudagraphs", **options})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_cuda() -> None:
    for options in ({"backend": "cudagraphs"}, {"backend": "inductor", "mode": "reduce-overhead"}):
        with pytest.raises(BackendError, match="(?s)there is no CUDA here.*backend='eager'.*EmulatedRecorder"):
            st.compile(lambda x: x, **options)


def poisoned(region: Any) -> bool:
    """Is something wrong with these calls?"""
    kept = []
    try:
        for k in range(5):
            x = randn(3, seed=k)
            kept.append((region(x), x, randn(3, seed=k)))
        return any(not torch.equal(y, (t + 1) * 2) or not torch.equal(x, t + 1) for y, x, t in kept)
    except RuntimeError:
        return True


def written(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


MUTANTS = {
    "nothing is copied in": lambda patch: patch.setattr(EmulatedRecorder, "copy", lambda self, to, of: None),
    "results are not cloned": lambda patch: patch.setattr(
        recording._Results, "_copy", lambda self, out, head: lambda *_: out
    ),
    "nothing is copied back": lambda patch: patch.setattr(program, "written_inputs", lambda graph: set()),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not poisoned(graphed(written)[0])
    MUTANTS[name](monkeypatch)
    assert poisoned(graphed(written)[0])


def test_constants_of_a_frozen_region_stay_where_they_are() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).eval().requires_grad_(False)
    recorder = EmulatedRecorder()
    region = st.compile(module, backend="cudagraphs", options={"recorder": recorder}, frontend="trace")
    frozen = st.freeze(region)
    for k in range(6):
        if k == 3:
            module[0].weight.add_(1)
            frozen.refreeze()
        torch.testing.assert_close(frozen(randn(3, 4, seed=k)), module(randn(3, 4, seed=k)))
    assert events(recorder)[-2:] == ONE
