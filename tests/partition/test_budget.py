"""Memory budgets: kept on real bytes, at most a tenth more work than torch's solver at equal bytes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._functorch.config as functorch_config
from functorch.compile import min_cut_rematerialization_partition
from programs import program

import subclass_trace as st
from benchmarks.graphs import Joint, load
from subclass_trace.capture.graphs import is_random, output_args
from subclass_trace.partition.costs import seconds
from subclass_trace.partition.min_cut import MinCut
from subclass_trace.partition.rules import Facts
from subclass_trace.partition.split import make_split
from subclass_trace.partition.table import Table


def real_bytes(t: Table, joint: Joint, rows: list[int]) -> int:
    """Unique storages beyond inputs and results that eager keeps: counted here without the partitioner's weights."""
    row = {n.name: i for i, n in enumerate(t.nodes)}
    alive = {t.storage[i] for i in t.primals}
    alive |= {t.storage[o] for o in t.forward_out if type(o) is int} & {
        t.storage[row[n]] for n in joint.served if n in row
    }
    tensors = [i for i in rows if isinstance(t.val[i], torch.Tensor) and t.storage[i] not in alive]
    return sum({t.storage[i]: t.val[i].untyped_storage().nbytes() for i in tensors}.values())


def extra_work(t: Table, rows: list[int]) -> float:
    return sum(seconds(t, i) for i in make_split(t, rows).recomputed)


def chosen(joint: Joint, cut: MinCut) -> tuple[Table, list[int]]:
    table = Table(joint.module, joint.num_forward)
    return table, cut.choose(table, Facts(kept=joint.served))


@pytest.mark.parametrize("name", ["mlp8", "conv4", "tf2"])
def test_the_limit_is_kept_on_real_bytes(name: str) -> None:
    joint = load(name)
    table, full = chosen(joint, MinCut())
    most = real_bytes(table, joint, full)
    before = None
    for share in (1.0, 0.9, 0.6, 0.5, 0.3, 0.1, 0.0):
        limit = max(int(share * most), 2)
        table, rows = chosen(joint, MinCut(budget=share))
        assert real_bytes(table, joint, rows) <= limit or share == 0.0
        try:
            table, rows = chosen(joint, MinCut(budget=limit))
        except st.OptionError as error:
            assert error.expected is not None and "bytes" in error.expected
            continue
        assert real_bytes(table, joint, rows) <= limit
        work = extra_work(table, rows)
        assert before is None or work >= before - 1e-6, "less memory costs no less work"
        before = work


LARGE = [pytest.param(n, marks=pytest.mark.slow) for n in ("mlp8+dec", "tf12", "llama+dec", "gpt2")]


@pytest.mark.parametrize("share", [0.8, 0.5, 0.2])
@pytest.mark.parametrize("name", ["mlp8", "tf2", *LARGE])
@pytest.mark.sweep(every=4)
def test_hardly_more_work_than_torch(name: str, share: float) -> None:
    """At the bytes of torch's choice. Under a budget torch draws again without a generator's state, and so gets wrong
    gradients: its draws count as saved, which they would have to be."""
    joint = load(name)
    with functorch_config.patch(activation_memory_budget=share):
        forward, _ = min_cut_rematerialization_partition(joint.copy(), None, num_fwd_outputs=joint.num_forward)
    table, _ = chosen(joint, MinCut())
    row = {n.name: i for i, n in enumerate(table.nodes)}
    theirs = [table.same[row[n.name]] for n in output_args(forward.graph)[joint.num_forward :]]
    draws = [i for i in make_split(table, theirs).recomputed if is_random(table.nodes[i])]
    theirs = sorted([*theirs, *draws])
    limit = real_bytes(table, joint, theirs)
    table, mine = chosen(joint, MinCut(budget=max(limit, 2)))
    assert real_bytes(table, joint, mine) <= limit
    assert extra_work(table, mine) <= 1.1 * extra_work(table, theirs)


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 8), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("budget", [0.4, 2000, pytest.param(0.0, marks=pytest.mark.slow)])
def test_values_under_a_budget(budget: float, seeds: range) -> None:
    for seed in seeds:
        function, make = program(seed)
        results = []
        for call in (
            st.compile(function, partitioner="default"),
            st.compile(function, activation_memory_budget=budget),
        ):
            inputs = make()
            torch.manual_seed(0)
            try:
                outs = call(*inputs)
            except st.OptionError as error:
                assert budget == 2000 and error.path == "activation_memory_budget"
                break
            roots = [o for o in outs if o.requires_grad]
            results.append(torch.autograd.grad([o.sum() for o in roots], inputs[:3], allow_unused=True))
        for a, b in zip(*results, strict=True) if len(results) == 2 else ():
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("budget", [-0.1, 1.5, True, "half", float("nan")])
def test_budgets_out_of_range(budget: Any) -> None:
    for make in (lambda: st.compile(abs, activation_memory_budget=budget), lambda: MinCut(budget=budget)):
        with pytest.raises(st.OptionError) as caught:
            make()
        assert caught.value.expected and caught.value.got == repr(budget)


def test_a_budget_that_cannot_be_kept_says_what_can() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (torch.rand(1000) * x.exp()).sin()

    with pytest.raises(st.OptionError) as caught:
        st.compile(f, activation_memory_budget=100)(torch.ones(1000, requires_grad=True))
    assert caught.value.expected == "at least 4000 bytes, which the backward cannot do without"
