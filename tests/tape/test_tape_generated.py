"""Random graphs with random hooks: gradients bitwise, and the log of all hooks, as the eager engine gives them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as hs
from saving_scenarios import Choosy, Scaled
from scenario import Hooks, close, data, note
from torch.utils.checkpoint import checkpoint

from subclass_trace.tape import compiled_autograd
from subclass_trace.tape.order import walk
from subclass_trace.tape.segments import Segment

UNARY = {
    "sin": torch.sin,
    "exp": lambda x: (x * 0.1).exp(),
    "scale": lambda x: x * 1.37,
    "flip": lambda x: x.flip(0).t().contiguous().t(),
    "part": lambda x: torch.cat([x[:1], x[1:] * 3]),
    "inplace": lambda x: x.clone().mul_(0.7).tanh_(),
    "written view": lambda x: _write_view(x),
    "softmax": lambda x: x.softmax(-1),
    "norm": lambda x: torch.nn.functional.layer_norm(x, (3,)),
    "checkpoint": lambda x: checkpoint(lambda t: t.sin() * t, x, use_reentrant=False),
    "detach": lambda x: x.detach() + 1,
}
BINARY = {
    "add": torch.add,
    "mul": torch.mul,
    "matmul": lambda x, y: x @ y.t() @ y,
    "broadcast": lambda x, y: x * y[:1] + y.sum(),
    "function": lambda x, y: Scaled.apply(x, 0.5, y)[0],
    "both results": lambda x, y: sum(Scaled.apply(x, 0.5, y)),
    "choosy": lambda x, y: Choosy.apply(x, y)[0],
}
HOOKS = ["log", "change", "retain", "pre", "post", "change pre", "change post", None, None, None]


def _write_view(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[0].mul_(y[1].detach() + 2)
    return y


@hs.composite
def programs(draw: Any) -> dict[str, Any]:
    count = draw(hs.integers(1, 9))
    pick = hs.integers(0, 1_000)
    saved_under_hooks = draw(hs.booleans())
    # A limit (docs/notes/compiled_autograd.md): of a node without a gradient, as "choosy" leaves some, hooks unpack as well.
    names = hs.sampled_from([n for n in (*UNARY, *BINARY) if n != "choosy" or not saved_under_hooks])
    rows = [(draw(names), draw(pick), draw(pick), draw(hs.sampled_from(HOOKS))) for _ in range(count)]
    return {
        "rows": rows,
        "leaf hooks": draw(hs.lists(hs.sampled_from(["log", "change", "post", "node post", "node pre"]), max_size=3)),
        "saved under hooks": saved_under_hooks,
        "roots": draw(hs.lists(pick, min_size=1, max_size=3)),
        "call": draw(hs.sampled_from(["backward", "grad", "some", "twice", "create_graph"])),
    }


def hang(tensor: torch.Tensor, kind: str | None, name: str, log: list[Any]) -> None:
    """Put one hook on a tensor or its node."""
    if kind is None or not tensor.requires_grad:
        return
    node = tensor.grad_fn
    if kind == "log":
        tensor.register_hook(note(log, name))
    elif kind == "change":
        tensor.register_hook(lambda g: (note(log, f"{name} changed")(g), None if g is None else g * 1.5)[1])
    elif kind == "retain":
        tensor.retain_grad()
    elif node is not None and kind.endswith("pre"):
        change = kind.startswith("change")
        node.register_prehook(lambda gs: (note(log, f"{name} pre")(gs), _halved(gs) if change else None)[1])
    elif node is not None and kind.endswith("post"):
        change = kind.startswith("change")
        node.register_hook(lambda out, gs: (note(log, f"{name} post")((out, gs)), _halved(out) if change else None)[1])


def _halved(gs: Any) -> tuple[Any, ...]:
    return tuple(None if g is None else g * 0.5 for g in gs)


def run(program: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    log: list[Any] = []
    leaves = [data(2, 3, seed=k).requires_grad_() for k in range(3)]
    for k, kind in enumerate(program["leaf hooks"]):
        leaf = leaves[k]
        if kind == "post":
            leaf.register_post_accumulate_grad_hook(lambda p, k=k: note(log, f"leaf {k} done")(p.grad))
        elif kind.startswith("node"):
            node = leaf.view_as(leaf).grad_fn.next_functions[0][0]
            log.append(node)  # else the hook dies with the node
            hang_on_node(node, kind, f"leaf {k}", log)
        else:
            hang(leaf, kind, f"leaf {k}", log)
    values = [*leaves]
    outer = Hooks(log) if program["saved under hooks"] else torch.enable_grad()
    with outer:
        for k, (name, a, b, kind) in enumerate(program["rows"]):
            x, y = values[a % len(values)], values[b % len(values)]
            out = UNARY[name](x) if name in UNARY else BINARY[name](x, y)
            hang(out, kind, f"{k} {name}", log)
            values.append(out)
    roots = [
        v
        for v in {id(v): v for v in (values[-1 - r % len(values)] for r in program["roots"])}.values()
        if v.requires_grad
    ]
    if not roots:
        return [], []
    grads = [data(2, 3, seed=90 + k) for k in range(len(roots))]
    results = call(program["call"], roots, grads, leaves)
    results += [v.grad for v in values[3:] if v.requires_grad and v.retains_grad]
    return [None if r is None else r.detach().clone() for r in results], [
        r for r in log if not hasattr(r, "next_functions")
    ]


def hang_on_node(node: Any, kind: str, name: str, log: list[Any]) -> None:
    if kind.endswith("pre"):
        node.register_prehook(lambda gs: note(log, f"{name} node pre")(gs))
    else:
        node.register_hook(lambda out, gs: note(log, f"{name} node post")(gs))


def call(kind: str, roots: list[Any], grads: list[Any], leaves: list[Any]) -> list[Any]:
    if kind in ("grad", "create_graph"):
        create = kind == "create_graph"
        return list(torch.autograd.grad(roots, leaves, grads, allow_unused=True, create_graph=create))
    if kind == "some":
        # The eager engine calls the hooks of a single root even when it leads to no wanted leaf; nobody else does.
        if len(walk(roots, leaves[:2]).nodes) > 1:
            torch.autograd.backward(roots, grads, inputs=leaves[:2])
    elif kind == "twice":
        torch.autograd.backward(roots, grads, retain_graph=True)
        torch.autograd.backward(roots, grads)
    else:
        torch.autograd.backward(roots, grads)
    return [p.grad for p in leaves]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@given(programs())
def test_generated_graphs(program: dict[str, Any]) -> None:
    expected, expected_log = run(program)
    for _ in range(4):  # captured, recorded, then run from the recording
        with compiled_autograd():
            got, log = run(program)
        assert log == expected_log
        for a, b in zip(got, expected, strict=True):
            assert (a is None) == (b is None)
            assert a is None or torch.equal(a, b)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@settings(max_examples=max(5, settings().max_examples // 10))
@given(programs())
def test_generated_graphs_in_segments(program: dict[str, Any]) -> None:
    """The same programs, lowered: gradients and logs but for rounding, and no segment that could not be traced."""
    expected, expected_log = run(program)
    compiled_autograd.reset()
    for _ in range(2):  # traced, then by the short way
        with compiled_autograd(backend="eager"):
            got, log = run(program)
        assert len(log) == len(expected_log) and all(map(close, log, expected_log))
        for a, b in zip(got, expected, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    graphs = [g for t in compiled_autograd.tapes for g in t.lowered.values()]
    segments = [n.target for g in graphs for n in g.graph.nodes if isinstance(n.target, Segment)]
    assert [s.refused for s in segments if s.refused is not None] == []
