"""The steady state: what a compiled call costs beyond its dense graph.

The base is the very dense program that a region runs, called on dense tensors: for inference the
forward graph, for training the forward and the backward graph without autograd. It has the same
dense back end as ours, so the ratio shows guards, unwrapping, rewrapping, and what autograd costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from subclass_trace.backends.eager.graph_code import compile_graph
from subclass_trace.subclass.flatten import leaves_of
from subclass_trace.zoo import TwoTensor

from . import stacks
from .harness import interleaved
from .results import Figure, Goal
from .subjects import Subject, WrongValues, check, five_operations, many_parameters, ranks

_INFERENCE, _TRAINING = (
    "inference time / dense forward graph",
    "training time / dense graphs without autograd",
)


def subjects(quick: bool) -> list[tuple[Subject, Goal]]:
    """What is measured, with its goal. Call it, and use them, inside `ranks`."""
    count = 10 if quick else 100
    return [
        (five_operations("TwoTensor", train=False), Goal("<=", 1.4)),
        (five_operations("TwoTensor", train=True), Goal("<=", 2.2)),
        (many_parameters("DTensor", train=False, count=count), Goal("<=", 1.4)),
        (many_parameters("DTensor", train=True, count=count), Goal("<=", 2.3)),
    ]


def verify(quick: bool) -> None:
    """Do all stacks, and the base, give eager's values?"""
    with ranks():
        for subject, _ in subjects(quick):
            _stacks(subject)


def run(quick: bool, say: Callable[[str], None]) -> Iterator[Figure]:
    """Measure."""
    with ranks():
        for subject, goal in subjects(quick):
            say(f"steady state, {subject.name}")
            compiled, base = _stacks(subject)
            variants: dict[str, Callable[[], Any]] = {"graph": base}
            variants |= {name: _step(subject, function) for name, function in compiled.items()}
            if subject.trains and isinstance(subject.inputs[0], TwoTensor):
                variants["by hand"] = _step(subject, _by_hand(subject, compiled["ours"]))
            variants["dense eager"] = subject.dense()
            times = interleaved(variants, rounds=5 if quick else 20)
            ratios = times.ratios("graph")
            what = _TRAINING if subject.trains else _INFERENCE
            yield Figure(
                "steady", what, subject.name, ratios.pop("ours"), goal, ratios, times.medians()
            )
    say("steady state, rows of a cache")
    yield _rows_of_cache(quick)


def _write_rows(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    for k in range(8):
        cache[:, k] = x * k
    return cache[:, :8].sum(1)


def _rows_of_cache(quick: bool) -> Figure:
    """Eight rows of an input of 16 MiB are written in place: nothing may cost a copy of it."""
    eager, ours = (torch.zeros(8, 64 if quick else 2048, 256) for _ in range(2))
    x, region = torch.randn(8, 256), stacks.ours(_write_rows)
    for _ in range(2):
        if not torch.equal(_write_rows(eager, x), region(ours, x)) or not torch.equal(eager, ours):
            raise WrongValues("rows of a cache: other values than eager mode's")
    variants: dict[str, Callable[[], Any]] = {
        "eager": lambda: _write_rows(eager, x),
        "ours": lambda: region(ours, x),
    }
    times = interleaved(variants, rounds=5 if quick else 20)
    what = "inference time / eager"
    return Figure(
        "steady",
        what,
        "8 rows of a cache written in place",
        times.ratio("ours", "eager"),
        Goal("<=", 1.5),
    )


def _step(subject: Subject, function: Callable[..., Any]) -> Callable[[], Any]:
    inputs, tangent = subject.inputs, subject.tangent
    if not subject.trains:
        return lambda: function(*inputs)
    grad = torch.autograd.grad
    return lambda: grad(function(*inputs), inputs, tangent)


def _stacks(subject: Subject) -> tuple[dict[str, Callable[..., Any]], Callable[[], Any]]:
    """The compiled functions by name, and the base; all of them checked."""
    region = stacks.ours(subject.function)
    found: dict[str, Callable[..., Any]] = {
        "aot_function": stacks.aot(subject.function),
        "torch.compile": stacks.dynamo(subject.function),
        "ours": region,  # last: what makes Dynamo forget resets regions, too
    }
    for name, function in found.items():
        stacks.forget()
        check(subject, function, name)
    if len(region.specializations) != 1:
        raise WrongValues(
            f"{subject.name}: {len(region.specializations)} specializations for one kind of call"
        )
    return {**found, "eager": subject.function}, _base(subject, region)


def _by_hand(subject: Subject, region: Any) -> Callable[..., Any]:
    """The least that a training step can cost with autograd: the same graphs in an
    ``autograd.Function`` for these very inputs, without a guard, a check of the tangent, or a
    version comparison. Only TwoTensors."""
    graphs, count = region.specializations[0].graphs, 2
    forward = compile_graph(graphs.forward, name="forward").function
    backward = compile_graph(graphs.backward, name="backward").function
    t = subject.tangent
    meta = (tuple(t.shape), t.stride(), 0, None, t.dtype, t.layout, t.device, False, False)

    def wrap(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = torch.Tensor._make_wrapper_subclass(TwoTensor, *meta)
        out.a, out.b = a, b
        return out

    class ByHand(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, primals: list[Any], *inputs: torch.Tensor) -> torch.Tensor:
            results = forward(primals)
            ctx.saved = results[count:]
            ctx.set_materialize_grads(False)
            return wrap(results[0], results[1])

        @staticmethod
        def backward(ctx: Any, tangent: Any) -> Any:
            saved, ctx.saved = ctx.saved, None
            grads = backward([*saved, tangent.a, tangent.b])
            return None, *[wrap(grads[k], grads[k + 1]) for k in range(0, len(grads), 2)]

    apply = super(torch.autograd.Function, ByHand).apply  # C's, without the Python prologue
    ByHand._backward_cls.apply = ByHand.backward
    step = lambda *inputs: apply([leaf for x in inputs for leaf in (x.a, x.b)], *inputs)  # noqa: E731
    check(subject, step, "by hand")
    return step


def _base(subject: Subject, region: Any) -> Callable[[], Any]:
    """The dense graphs of a region on dense tensors."""
    graphs, plan = region.specializations[0].graphs, region.specializations[0].plan
    forward = compile_graph(graphs.forward, name="forward").function
    leaves = [t.detach() for t in _leaves(subject.inputs)]
    if len(leaves) != sum(n.op == "placeholder" for n in graphs.forward.graph.nodes):
        raise WrongValues(
            f"{subject.name}: the forward graph takes other inputs than the dense leaves"
        )
    if graphs.backward is None:
        _compare(subject, forward([*leaves]), 1)
        return lambda: forward([*leaves])
    backward = compile_graph(graphs.backward, name="backward").function
    tangents = leaves_of(subject.tangent)
    count = plan.results.forward_leaves + plan.results.size_outputs
    saved = {row.name: count + k for k, row in enumerate(plan.gradients.saved)}
    wanted = [str(n.target) for n in graphs.backward.graph.nodes if n.op == "placeholder"]
    order = [saved[n] for n in wanted if n in saved]
    if wanted[len(order) :] != [f"tangents_{k + 1}" for k in range(len(tangents))]:
        raise WrongValues(
            f"{subject.name}: the backward graph takes {wanted}, not saved values and then the "
            "tangents"
        )
    whole = order == list(range(count, count + len(order))) and len(order) == len(
        plan.gradients.saved
    )

    def plain() -> Any:
        with torch.no_grad():
            return backward([*forward([*leaves])[count:], *tangents])

    def picked() -> Any:
        with torch.no_grad():
            out = forward([*leaves])
            return backward([*[out[k] for k in order], *tangents])

    step = plain if whole else picked
    _compare(subject, step(), None)
    return step


def _leaves(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [leaf for v in values for leaf in leaves_of(v)]


def _compare(subject: Subject, got: Sequence[Any], count: int | None) -> None:
    expected = subject.step(subject.function)
    expected = expected[:1] if count else expected[1:]
    for a, b in zip(got, _leaves(expected), strict=True):
        if not torch.allclose(a, b, rtol=1e-4, atol=1e-5):
            raise WrongValues(
                f"{subject.name}: the bare dense graph gives other values than eager mode"
            )
