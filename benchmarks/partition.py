"""Partitioners on joint graphs of models: time to partition and write code, saved bytes, run time,
budgets.

Ours and torch's min-cut partitioner get the same joint graph, and both end in code that runs: ours
writes it from its table, torch's graph modules write theirs. "with graph modules" is what a
compiler such as inductor would be given. The saved bytes are those of unique storages that are
neither inputs nor results which eager mode keeps as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch._functorch.config as functorch_config
import torch.fx as fx
from functorch.compile import min_cut_rematerialization_partition

from subclass_trace.backends.eager.graph_code import compile_graph, compile_half
from subclass_trace.capture.graphs import output_args
from subclass_trace.partition.costs import seconds
from subclass_trace.partition.half import Half
from subclass_trace.partition.min_cut import MinCut
from subclass_trace.partition.rules import Facts
from subclass_trace.partition.split import halves, make_split
from subclass_trace.partition.table import Table
from subclass_trace.torch_api.kinds import storage_key

from .graphs import NAMES, Joint, load
from .harness import interleaved, once
from .results import Figure, Goal
from .subjects import WrongValues

_CODE, _MODULES = (
    "times as fast as torch's min_cut",
    "times as fast as torch's min_cut, with graph modules",
)
_BYTES, _STEP, _LINEAR = (
    "saved bytes / torch's min_cut",
    "step / torch's min_cut",
    "time per node: 48 layers / 6 layers",
)
_BUDGET, _WORK = (
    "budget: times as fast as torch",
    "budget: estimated time computed again / torch's at equal bytes",
)
_CUTS = {"ours": MinCut()}


def run(quick: bool, say: Callable[[str], None]) -> Iterator[Figure]:
    """Measure."""
    for name in ["mlp8", "tf2"] if quick else NAMES:
        say(f"partition, {name}")
        yield from _graph(load(name), rounds=2 if quick else 5)
    if not quick:
        say("partition, 48 layers")
        yield _linear()
    for name in ["tf2"] if quick else ["mlp8+dec", "conv4", "tf12", "tf12+dec", "llama+dec"]:
        for share in (0.5,) if quick else (0.8, 0.5, 0.2):
            say(f"partition, budget {share}, {name}")
            yield from _budget(load(name), share)


def verify(quick: bool) -> None:
    """Do all partitions of a graph give the same gradients?"""
    for name in ["mlp8", "tf2"] if quick else NAMES:
        joint = load(name)
        steps = [_runner(joint, *pair) for pair in _programs(joint).values()]
        results = []
        for step in steps:
            torch.manual_seed(0)
            results.append(step())
        for other in results[1:]:
            for a, b in zip(results[0], other, strict=True):
                if isinstance(a, torch.Tensor) and not torch.equal(a, b):
                    raise WrongValues(f"partitions of {name} differ")


# ---- one graph
def _decide(joint: Joint, cut: MinCut) -> tuple[Table, list[int]]:
    table = Table(joint.module, joint.num_forward)
    return table, cut.choose(table, Facts(kept=joint.served))


def _halves(joint: Joint, cut: MinCut) -> tuple[Half, Half]:
    table, rows = _decide(joint, cut)
    return halves(make_split(table, rows), joint.num_forward)


def by_torch(joint: Joint, module: fx.GraphModule) -> tuple[fx.GraphModule, fx.GraphModule]:
    forward, backward = min_cut_rematerialization_partition(
        module, None, num_fwd_outputs=joint.num_forward
    )
    for module in (forward, backward):
        _write(module)
    return forward, backward


def _write(module: fx.GraphModule) -> None:
    """Let a graph module write its code now, as its first call would."""
    (getattr(module, "real_recompile", None) or module.recompile)()


def _graph(joint: Joint, rounds: int) -> Iterator[Figure]:
    def torchs() -> Callable[[], Any]:
        module = joint.copy()
        return lambda: by_torch(joint, module)

    def code(cut: MinCut) -> Callable[[], Any]:
        def go() -> None:
            for half in _halves(joint, cut):
                compile_half(half, name="half")

        return go

    def modules() -> Callable[[], Any]:
        return lambda: [_write(half.module) for half in _halves(joint, MinCut())]

    code(MinCut())()  # the proofs of the bindings are kept per process
    made = {
        "torch": torchs,
        "modules": modules,
        **{k: (lambda c=c: code(c)) for k, c in _CUTS.items()},
    }
    times = once(made, rounds=rounds)
    raw = times.medians()
    nodes = f"{joint.name}, {len(joint.module.graph.nodes)} nodes"
    yield Figure("partition", _CODE, nodes, times.ratio("torch", "ours"), Goal(">=", 6), raw=raw)
    yield Figure(
        "partition", _MODULES, nodes, times.ratio("torch", "modules"), Goal(">=", 3), raw=raw
    )
    forward, _ = by_torch(joint, joint.copy())
    sizes = {
        "torch": float(
            _bytes(joint, [n.name for n in output_args(forward.graph)[joint.num_forward :]])
        )
    }
    for name, cut in _CUTS.items():
        table, rows = _decide(joint, cut)
        sizes[name] = float(_bytes(joint, [table.name(i) for i in make_split(table, rows).saved]))
    bound = 0.82 if joint.name.startswith(("tf", "gpt2", "llama")) else 1.0
    yield Figure(
        "partition", _BYTES, nodes, sizes["ours"] / sizes["torch"], Goal("<=", bound), raw=sizes
    )
    steps = {k: _runner(joint, *pair) for k, pair in _programs(joint).items()}
    with torch.no_grad():
        runs = interleaved(steps, rounds=9, burst_ms=50, warm_up=2)
    yield Figure(
        "partition", _STEP, nodes, runs.ratio("ours", "torch"), Goal("<=", 1.05), raw=runs.medians()
    )


def _bytes(joint: Joint, names: Sequence[str]) -> int:
    nodes = {n.name: n for n in joint.module.graph.nodes}
    alive = {storage_key(n.meta["val"]) for n in nodes.values() if n.op == "placeholder"}
    results = {
        storage_key(n.meta["val"]) for n in output_args(joint.module.graph)[: joint.num_forward]
    }
    alive |= results & {storage_key(nodes[n].meta["val"]) for n in joint.served if n in nodes}
    values = [nodes[n].meta["val"] for n in names]
    tensors = [v for v in values if isinstance(v, torch.Tensor) and storage_key(v) not in alive]
    return sum({storage_key(v): v.untyped_storage().nbytes() for v in tensors}.values())


Program = tuple[Any, Any, list[str]]


def _programs(joint: Joint) -> dict[str, Program]:
    """Forward, backward (boxed, all written by our code generator) and the names of the backward's
    inputs."""
    forward, backward = by_torch(joint, joint.copy())
    saved = [n.name for n in output_args(forward.graph)[joint.num_forward :]]
    names = [str(n.target) for n in backward.graph.nodes if n.op == "placeholder"]
    made: dict[str, Program] = {
        "torch": (
            compile_graph(forward).function,
            compile_graph(backward).function,
            [*saved, "/", *names],
        )
    }
    for name, cut in _CUTS.items():
        first, second = _halves(joint, cut)
        parts = [compile_half(h, name="half").function for h in (first, second)]
        saved = [n.name for n in first.outputs[joint.num_forward :]]
        made[name] = (*parts, [*saved, "/", *(n.name for n in second.inputs)])  # type: ignore[assignment]
    return made


def _runner(joint: Joint, forward: Any, backward: Any, names: list[str]) -> Callable[[], Any]:
    cut = names.index("/")
    saved, inputs = names[:cut], names[cut + 1 :]
    tangents = [
        n.name for n in joint.module.graph.nodes if n.op == "placeholder" and "tangents" in n.name
    ]

    def step() -> Any:
        out = list(forward(list(joint.leaves)))
        values = dict(zip(saved, out[joint.num_forward :], strict=True))
        del out[joint.num_forward :]
        values.update(zip(tangents, joint.tangents(), strict=True))
        given = [values[n] for n in inputs]
        values.clear()
        return [*out, *backward(given)]

    return step


def _linear() -> Figure:
    times = {}
    for name in ("tf6", "tf48"):
        joint = load(name)
        for half in _halves(joint, MinCut()):
            compile_half(half, name="half")
        best = float("inf")
        for _ in range(3):
            start = time.process_time()
            for half in _halves(joint, MinCut()):
                compile_half(half, name="half")
            best = min(best, time.process_time() - start)
        times[name] = 1e6 * best / len(joint.module.graph.nodes)
    return Figure(
        "partition",
        _LINEAR,
        "microseconds per node",
        times["tf48"] / times["tf6"],
        Goal("<=", 1.4),
        raw=times,
    )


# ---- budgets
def _budget(joint: Joint, share: float, rounds: int = 3) -> Iterator[Figure]:
    def torchs() -> Callable[[], Any]:
        module = joint.copy()

        def go() -> fx.GraphModule:
            with functorch_config.patch(activation_memory_budget=share):
                return min_cut_rematerialization_partition(
                    module, None, num_fwd_outputs=joint.num_forward
                )[0]

        return go

    def ours() -> None:
        make_split(*_decide(joint, cut))

    names = [n.name for n in output_args(torchs()().graph)[joint.num_forward :]]
    cut = MinCut(budget=max(_bytes(joint, names), 2))
    times = once({"torch": torchs, "ours": lambda: ours}, rounds=rounds)
    table, rows = _decide(joint, cut)
    row = {n.name: i for i, n in enumerate(table.nodes)}
    work = {
        "torch": sum(
            seconds(table, i) for i in make_split(table, [table.same[row[n]] for n in names]).again
        ),
        "ours": sum(seconds(table, i) for i in make_split(table, rows).again),
    }
    if _bytes(joint, [table.name(i) for i in rows]) > cut.budget:  # type: ignore[operator]
        raise WrongValues(f"the budget of {joint.name} is not kept")
    case = f"{joint.name}, {share}"
    raw = {**times.medians(), **{f"{k} seconds": v for k, v in work.items()}}
    yield Figure("partition", _BUDGET, case, times.ratio("torch", "ours"), Goal(">=", 15), raw=raw)
    ratio = work["ours"] / work["torch"] if work["torch"] else float(work["ours"] > 0)
    yield Figure("partition", _WORK, case, ratio, Goal("<=", 1.0), raw=raw)
