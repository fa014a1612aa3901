"""Never more bytes are saved than by torch's min-cut partitioner."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.fx as fx
from functorch.compile import min_cut_rematerialization_partition
from programs import program

from benchmarks.graphs import NAMES, Joint, load
from subclass_trace.capture.graphs import output_args
from subclass_trace.partition.min_cut import MinCut
from subclass_trace.partition.rules import Facts
from subclass_trace.partition.split import Split, make_split
from subclass_trace.partition.table import Table
from subclass_trace.torch_api.kinds import storage_key


def split_of(joint: Joint, cut: MinCut) -> Split:
    table = Table(joint.module, joint.num_forward)
    return make_split(table, cut.choose(table, Facts(kept=joint.served)))


def saved_by(split: Split) -> list[str]:
    return [split.table.name(i) for i in (*split.saved, *split.sizes)]


def saved_by_torch(joint: Joint) -> list[str]:
    forward, _ = min_cut_rematerialization_partition(joint.copy(), None, num_fwd_outputs=joint.num_forward)
    return [n.name for n in output_args(forward.graph)[joint.num_forward :]]


def unique_bytes(joint: Joint, names: Sequence[str]) -> int:
    """Bytes of the saved storages, without inputs and results that eager keeps as well: these live anyway."""
    nodes = {n.name: n for n in joint.module.graph.nodes}
    given = {storage_key(n.meta["val"]) for n in nodes.values() if n.op == "placeholder"}
    results = {storage_key(n.meta["val"]) for n in output_args(joint.module.graph)[: joint.num_forward]}
    given |= results & {storage_key(nodes[n].meta["val"]) for n in joint.served if n in nodes}
    sizes = {}
    for name in names:
        value = nodes[name].meta["val"]
        if isinstance(value, torch.Tensor) and storage_key(value) not in given:
            sizes[storage_key(value)] = value.untyped_storage().nbytes()
    return sum(sizes.values())


def state_of(module: fx.GraphModule) -> list[tuple[object, ...]]:
    return [(n.name, n.format_node(), sorted(n.meta), n.meta.get("recompute")) for n in module.graph.nodes]


#: the dearest of them
_SLOW = ("gpt2", "gpt2+dec", "tf6", "tf6_dropout", "tf6_dropout+dec", "llama+dec")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in _SLOW or "12" in n or "two" in n else []) for n in NAMES]
)
@pytest.mark.sweep(every=3)
def test_model_graphs(name: str) -> None:
    joint = load(name)
    before = state_of(joint.module)
    theirs = saved_by_torch(joint)
    mine = saved_by(split_of(joint, MinCut()))
    assert state_of(joint.module) == before, "the joint graph is neither copied nor edited"
    ratio = unique_bytes(joint, mine) / unique_bytes(joint, theirs)
    assert ratio <= (0.82 if name.startswith(("tf", "gpt2", "llama")) else 1.0)


def test_as_a_partition_function_of_torch() -> None:
    """As ``partition_fn`` of ``aot_function``, static shapes."""
    from functorch.compile import aot_function, nop

    function, make = program(3)
    results = []
    for call in (function, aot_function(function, nop, nop, partition_fn=MinCut())):
        inputs = make()
        torch.manual_seed(0)
        outs = [o for o in call(*inputs) if o.requires_grad]
        torch.manual_seed(1)
        grads = torch.autograd.grad([o.sum() for o in outs], inputs[:3], allow_unused=True)
        results.append([*outs, *[g for g in grads if g is not None]])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)
