"""`backend="cudagraphs"` with the emulated recorder: what each call gives, and what a recording is made of."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from in_graphs import ONE, events, graphed, mlp, randn, same

from subclass_trace.testing import EmulatedRecorder
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


def check(function: Callable[..., Any], calls: Sequence[Sequence[Any]], **options: Any) -> EmulatedRecorder:
    """Each of these calls gives what eager gives, leaves its inputs so, and what it gave stays."""
    region, recorder = graphed(function, **options)
    kept = []
    for args in calls:
        own = copy.deepcopy(args)
        state = torch.get_rng_state()
        expected = function(*args)
        after = torch.get_rng_state()
        torch.set_rng_state(state)
        found = region(*own)
        assert torch.equal(after, torch.get_rng_state())
        same(args, own)
        kept.append((expected, found))
        for then, now in kept:
            same(then, now)
    return recorder


def steps(module: torch.nn.Module, batches: Sequence[Tensor], make: Any, **options: Any) -> list[list[str]]:
    """Steps of training, eagerly and in graphs; the events of each."""
    reference, told = copy.deepcopy(module), []
    region, recorder = graphed(module, **options)
    ours, theirs = make(module.parameters()), make(reference.parameters())
    for k, x in enumerate(batches):
        state = torch.get_rng_state()
        for model, optimizer in ((reference, theirs), (region, ours)):
            torch.manual_seed(k)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        torch.set_rng_state(state)
        same([*reference.parameters()], [*module.parameters()])
        same([*reference.buffers()], [*module.buffers()])
        told.append(events(recorder))
    return told


def test_a_step_copies_its_input_and_its_tangent() -> None:
    told = steps(mlp(), [randn(3, 4, seed=k) for k in range(5)], lambda p: torch.optim.AdamW(p, lr=0.1))
    assert told[0] == ["warm", "warm"]
    assert told[2:] == [[*ONE, *ONE]] * 3


def test_inner_tensors_of_wrappers_are_weights_too() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(TwoTensor(randn(3, 3), randn(3, 3, seed=1)))

        def forward(self, x: Tensor) -> Tensor:
            return (x @ self.weight).tanh()

    def make(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    told = steps(Layer(), [randn(2, 3, seed=k) for k in range(4)], make)
    assert told[-1].count("copy") == 1 + 2  # x, and the two inner tensors of the tangent


def test_batch_norm_writes_its_statistics() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    steps(module, [randn(5, 4, seed=k) for k in range(4)], lambda p: torch.optim.SGD(p, lr=0.1))
    module.eval().requires_grad_(False)
    check(module, [(randn(5, 4, seed=k),) for k in range(3)])


def increment(x: Tensor) -> Tensor:
    x.add_(1)
    return x


def add_to_each(xs: list[Tensor], y: Tensor) -> Tensor:
    torch._foreach_add_(xs, [y, y])
    torch._foreach_mul_(xs, 2)
    return xs[0] * xs[1]


def halves(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    return y[:1], y[1:], y.t(), x.view(-1), x


def write_a_part(x: Tensor, y: Tensor) -> Tensor:
    x[:2].copy_(y)
    return x.sum() + y.sum()


def twice(x: Tensor) -> tuple[Tensor, ...]:
    y = x.exp()
    return y, y, y.view(-1)


SHAPED = {
    "mutated input": (increment, lambda k: (randn(3, seed=k),)),
    "mutated list": (add_to_each, lambda k: ([randn(3, seed=k), randn(3, seed=k + 9)], torch.tensor(0.5))),
    "views": (halves, lambda k: (randn(2, 3, seed=k),)),
    "one result twice": (twice, lambda k: (randn(2, 3, seed=k),)),
    "a part is written": (write_a_part, lambda k: (randn(4, seed=k), randn(2, seed=k))),
    "expanded": (lambda x: x + 1, lambda k: (randn(3, 1, seed=k).expand(3, 4),)),
    "transposed": (lambda x: x.sin(), lambda k: (randn(3, 4, seed=k).t(),)),
    "strided": (lambda x: x.sin(), lambda k: (randn(3, 8, seed=k)[:, ::2],)),
    "overlapping itself": (lambda x: x * 2, lambda k: (randn(8, seed=k).as_strided((3, 4), (2, 1)),)),
    "empty": (lambda x, y: (x + 1, y * 2), lambda k: (torch.empty(0, 3), randn(2, seed=k))),
    "complex": (lambda x: torch.view_as_real(x * 1j), lambda k: (torch.complex(randn(3, seed=k), randn(3)),)),
    "whole numbers": (lambda x, n: x.cumsum(0) * n, lambda k: (torch.arange(k, k + 3), 3)),
    "dropout": (lambda x: torch.nn.functional.dropout(x, 0.5), lambda k: (randn(40, seed=k),)),
    "a constant": (lambda x: (x * 2, 3, None), lambda k: (randn(2, seed=k),)),
    "wrapper": (lambda x: (x * 2, x.a.sin()), lambda k: (TwoTensor(randn(2, seed=k), randn(2)),)),
}


@pytest.mark.parametrize("name", SHAPED)
def test_calls_are_those_of_eager(name: str) -> None:
    function, make = SHAPED[name]
    recorder = check(function, [make(k) for k in range(4)])
    assert recorder.events.count("replay") == 3


def test_inputs_that_share_memory() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return y + 1

    region, recorder = graphed(f)
    for first, second in ((slice(0, 4), slice(0, 4)), (slice(0, 2), slice(4, 6)), (slice(0, 4), slice(2, 6))):
        for k in range(4):
            base, own = randn(6, seed=k), randn(6, seed=k)
            same(f(base[first], base[second]), region(own[first], own[second]))
            same(base, own)
    assert recorder.events.count("replay") >= 3  # where parts overlap the region leaves all to eager mode


def test_versions_move_as_in_eager() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2).add_(1)
        return x + y

    region, _ = graphed(f)
    for _ in range(3):
        x, y = randn(2), randn(2)
        before = x._version, y._version
        region(x, y)
        assert (x._version, y._version) == (before[0] + 2, before[1])

    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            self.count.add_(x).mul_(2)
            return self.count + 1

    module = Counts()
    region, recorder = graphed(module)
    for k in range(1, 5):
        same(region(torch.ones(3)), module.count + 1)
        assert module.count._version == 2 * k
    assert events(recorder)[-2:] == ONE


def test_a_saved_input_that_was_written_is_seen() -> None:
    region, _ = graphed(lambda x, w: x * w)
    for _ in range(3):
        x, w = randn(2), randn(2).requires_grad_()
        y = region(x, w).sum()
        x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


def test_a_generator_is_registered() -> None:
    ours, theirs = torch.Generator(), torch.Generator()

    def noise(x: Tensor, generator: torch.Generator) -> Tensor:
        return x + torch.rand(x.shape, generator=generator)

    region, recorder = graphed(lambda x: noise(x, ours))
    for g in (ours, theirs):
        g.manual_seed(3)
    for k in range(4):
        x = randn(5, seed=k)
        same(noise(x, theirs), region(x))
        assert torch.equal(ours.get_state(), theirs.get_state())
    assert recorder.events.count("replay") == 3


def test_seed_and_offset_come_last_among_the_static_inputs() -> None:
    """There are none of either: a recording draws by its generator, so that static inputs keep their places."""
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
    told = steps(module, [randn(3, 4, seed=k) for k in range(5)], lambda p: torch.optim.SGD(p, lr=0.1))
    assert told[-1] == [*ONE, *ONE]
    region, _ = graphed(module)
    graph = region.specialize(randn(3, 4)).graphs.forward.graph
    taken = [str(n.meta["descriptor"]) for n in graph.nodes if n.op == "placeholder"]
    assert taken == ["args[0]", "self[0].weight", "self[0].bias"]


def test_results_are_clones() -> None:
    region, _ = graphed(lambda x: x * 2)
    found = [region(torch.full((2,), float(k))) for k in range(5)]
    assert [t[0].item() for t in found] == [0.0, 2.0, 4.0, 6.0, 8.0]


def test_weak_results_are_the_memory_of_the_recording() -> None:
    region, recorder = graphed(lambda x: x * 2, outputs="weak")
    x = randn(3)
    region(x)
    places = set()
    for _ in range(3):
        y = region(x)
        places.add(y.data_ptr())
        del y
    assert len(places) == 1 and recorder.events.count("replay") == 3
    y = region(x)
    z = region(x + 1)  # y is in use
    same(y, x * 2)
    same(z, x * 2 + 2)
    assert recorder.events.count("replay") == 4
    assert "results of an earlier call are in use" in region.explain()


def test_a_result_of_a_result() -> None:
    for outputs in ("clone", "weak"):
        region, _ = graphed(lambda x: x * 2 + 1, outputs=outputs)
        for k in range(4):
            x = randn(3, seed=k)
            same(region(region(x)), (x * 2 + 1) * 2 + 1)


def test_another_regions_recording_as_input() -> None:
    recorder = EmulatedRecorder()
    first, _ = graphed(lambda x: x.exp(), recorder=recorder, outputs="weak")
    second, _ = graphed(lambda y: y.mul_(2).sum(0), outputs="weak")
    for k in range(5):
        x = randn(3, 2, seed=k)
        y = first(x)
        same(second(y), (x.exp() * 2).sum(0))
        same(y, x.exp() * 2)
        del y


def test_a_graph_per_size_in_one_pool() -> None:
    region, recorder = graphed(lambda x: (x * 2).relu(), dynamic=True)
    for n in (5, 5, 5, 7, 7, 5, 7, 5):
        x = randn(n, seed=n)
        same(region(x), (x * 2).relu())
    assert recorder.events.count("record") == 2
    assert "2 recordings" in region.explain()


def test_sizes_that_change_in_training() -> None:
    batches = [randn(n, 4, seed=k) for k, n in enumerate((3, 3, 3, 5, 5, 5, 3, 5, 7, 7, 3))]
    told = steps(mlp(), batches, lambda p: torch.optim.SGD(p, lr=0.1), dynamic=True)
    assert sum(t.count("record") for t in told) == 6  # forward and backward of three sizes
    assert told[-1].count("replay") == 2


def test_a_limit_of_sizes_is_said_once() -> None:
    region, recorder = graphed(lambda x: x * 2, dynamic=True, limit=2)
    with pytest.warns(UserWarning, match="has recorded 2 sizes, its limit") as said:
        for n in (3, 4, 5, 6, 7) * 3:
            same(region(randn(n)), randn(n) * 2)
    assert len(said) == 1 and recorder.events.count("record") == 2
    assert "the limit of sizes is reached" in region.explain()


def test_a_number_that_no_tensor_needs_is_no_size() -> None:
    class Counting(torch.nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return (x * 2).exp()

    module = Counting()
    region, recorder = graphed(module)
    for k in range(8):
        same(region(randn(3, seed=k)), (randn(3, seed=k) * 2).exp())
    assert module.calls == 8 and recorder.events.count("record") <= 2


class Attention(torch.nn.Module):
    """A layer of a transformer, for rows of 3 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = torch.nn.LayerNorm(4), torch.nn.Linear(4, 12), torch.nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.stack([x, x * 2, x.cumsum(1)], 1)
        q, k, v = (t.unflatten(-1, (2, 2)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return torch.cat([x.softmax(-1).mean(1), x[:, 0]], 1)


@pytest.mark.parametrize("make", [mlp, Attention])
def test_sizes_are_padded_to_the_next_of_the_list(make: Callable[[], torch.nn.Module]) -> None:
    layer = make().requires_grad_(False)
    region, recorder = graphed(layer, sizes=[2, 4, 8])
    with pytest.warns(UserWarning, match="none of options\\['sizes'\\] is as large"):
        for n in (9, 2, 3, 4, 5, 6, 7, 8, 10) * 3:
            expected, found = layer(randn(n, 4, seed=n)), region(randn(n, 4, seed=n))
            torch.testing.assert_close(found, expected)  # products of other sizes round otherwise
    assert recorder.events.count("record") == 3


MIXING = {
    "mean over the batch": lambda x: x - x.mean(0),
    "sort": lambda x: x.sort(0).values * 2,
    "flip": lambda x: x.flip(0) + 1,
    "random": lambda x: torch.nn.functional.dropout(x, 0.5) * 2,
    "gram": lambda x: x @ x.t(),
    "the size itself": lambda x: x / x.shape[0],
}


@pytest.mark.parametrize("name", MIXING)
def test_rows_that_are_mixed_are_not_padded(name: str) -> None:
    function = MIXING[name]
    region, recorder = graphed(function, sizes=[4])
    with pytest.warns(UserWarning, match="calls of other sizes than options"):
        for n in (9, 3, 4, 3, 4, 3):
            torch.manual_seed(n)
            expected = function(randn(n, 2))
            torch.manual_seed(n)
            same(expected, region(randn(n, 2)))
    assert recorder.events.count("record") == 1


def test_sizes_of_a_training_loop_are_recorded_as_listed() -> None:
    batches = [randn(n, 4, seed=k) for k, n in enumerate((3, 4, 5, 4, 5, 6, 4, 7, 8, 6, 4))]
    with pytest.warns(UserWarning, match="it has a backward"):
        told = steps(mlp(), batches, lambda p: torch.optim.SGD(p, lr=0.1), sizes=[4])
    assert sum(t.count("record") for t in told) == 2


def test_what_waits_for_the_device_cuts_the_graph() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = (x * 2).exp() + 1
        found = (y > 2).nonzero()
        return (y * 3).relu(), found

    recorder = check(f, [(randn(6, seed=k),) for k in range(5)])
    assert recorder.events.count("replay") >= 4
    region, _ = graphed(f)
    region(randn(6))
    text = region.explain()
    assert "nonzero" in text and "the size of its result is a value from the device" in text
    assert f"{__file__.rpartition('/')[2]}:" in text


def test_a_value_that_a_later_part_writes() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = (x * 2).exp()
        found = (y > 2).nonzero()
        y.add_(1).mul_(2)
        x.sub_(1).mul_(3)
        return y, found

    recorder = check(f, [(randn(6, seed=k),) for k in range(5)])
    assert recorder.events.count("record") == 2


def test_training_with_a_cut_graph() -> None:
    class Picks(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.last = mlp(), mlp()

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x)
            return self.last(y) * (y > 0).nonzero().shape[0]

    told = steps(Picks(), [randn(3, 4, seed=k) for k in range(5)], lambda p: torch.optim.SGD(p, lr=0.1))
    assert told[-1].count("replay") >= 2


def test_numbers_in_tensors_of_the_host_stay_outside() -> None:
    recorder = EmulatedRecorder(host=lambda t: t.dtype == torch.float64)
    check(
        lambda x, s: (x * s).relu() * 2,
        [(randn(3), torch.tensor(k + 0.5).double()) for k in range(4)],
        recorder=recorder,
    )
    assert recorder.events.count("replay") == 3


def test_what_cannot_be_recorded_at_all_runs_with_one_warning() -> None:
    class Broken(EmulatedRecorder):
        def record(self, work: Any) -> Any:
            raise RuntimeError("operation not permitted when stream is capturing")

    region, _ = graphed(lambda x: x * 2, recorder=Broken())
    with pytest.warns(UserWarning, match="runs without a CUDA graph, it cannot be recorded: operation") as said:
        for k in range(5):
            same(region(randn(3, seed=k)), randn(3, seed=k) * 2)
    assert len(said) == 1 and "4 calls ran without" in region.explain()


def test_a_weight_that_moves_is_recorded_again_and_then_copied() -> None:
    layer = torch.nn.Linear(3, 3).requires_grad_(False)
    region, recorder = graphed(layer)
    for k in range(8):
        layer.weight.data = randn(3, 3, seed=k)
        gc.collect()
        same(layer(randn(2, 3)), region(randn(2, 3)))
    told = events(recorder)
    assert told.count("record") <= 5 and told[-3:] == ["copy", "copy", "replay"]


def test_storage_that_is_exchanged_is_seen() -> None:
    layer = torch.nn.Linear(3, 3).requires_grad_(False)
    region, _ = graphed(layer)
    for k in range(5):
        same(layer(randn(2, 3)), region(randn(2, 3)))
        if k == 1:
            layer.weight.set_(randn(3, 3, seed=5))  # type: ignore[no-untyped-call]
        if k == 2:
            layer.load_state_dict({"weight": randn(3, 3), "bias": randn(3)}, assign=True)
            layer.requires_grad_(False)


def test_equal_layers_have_a_recording_each_and_one_trace() -> None:
    recorder = EmulatedRecorder()
    layers = [torch.nn.Linear(3, 3).requires_grad_(False) for _ in range(4)]
    regions = [graphed(layer, recorder=recorder)[0] for layer in layers]
    for k in range(4):
        x = y = randn(2, 3, seed=k)
        for layer, region in zip(layers, regions, strict=True):
            x, y = layer(x), region(y)
        same(x, y)
    assert len({id(region.specializations[0].program) for region in regions}) == 1
    assert events(recorder).count("record") == 4
