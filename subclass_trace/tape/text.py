"""A tape as text: its autograd nodes in running order, with what happens at each.

::

    tape of 4 autograd nodes, 1 hook, 1 unpacking
      node            seq_nr
      GraphRoot
      SumBackward0    2
      SinBackward0    1
        unpack packed[0] with hooks[1]
        tensor hook hooks[0]
      AccumulateGrad
        into inputs[1].grad
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.fx as fx


def _given(arg: object) -> str:
    """``inputs_3`` as ``inputs[3]``."""
    if isinstance(arg, fx.Node) and arg.op == "placeholder":
        what, _, number = str(arg.target).rpartition("_")
        return f"{what}[{number}]"
    return str(arg)


def _event(node: fx.Node) -> str | None:
    kind, note = node.meta.get("kind"), str(node.meta.get("note", ""))
    if kind == "hook":
        by_number = note == "retain_grad"
        return note if by_number else f"{note} {_given(node.args[0])}"
    if kind == "post_accumulate":
        return f"{note} {_given(node.args[0])}"
    if kind == "unpack":
        return f"unpack {_given(node.args[1])} with {_given(node.args[0])}"
    if kind == "accumulate":
        return f"into {_given(node.args[0])}.grad"
    if kind == "sum":
        return "sum of gradients"
    return f"call {note}" if kind == "backward" else None


def counts(tape: Any) -> str:
    """``4 autograd nodes, 1 hook, 1 unpacking``."""
    kinds = [n.meta.get("kind") for n in tape.graph.graph.nodes]
    hooks, unpacked = sum(k in ("hook", "post_accumulate") for k in kinds), kinds.count("unpack")
    many = (
        (len(tape.nodes), "autograd node", "s"),
        (hooks, "hook", "s"),
        (unpacked, "unpacking", "s"),
    )
    return ", ".join(f"{n} {what}{end if n != 1 else ''}" for n, what, end in many)


def describe(tape: Any) -> str:
    """The whole table, and the segments of each back end that the tape was run with."""
    events: dict[int, list[str]] = {}
    for node in tape.graph.graph.nodes:
        text = _event(node)
        if text is not None:
            events.setdefault(node.meta["node"], []).append(text)
    width = max(len(n.name) for n in tape.nodes)
    lines = [f"tape of {counts(tape)}", f"  {'node':<{width}}  seq_nr"]
    for k, n in enumerate(tape.nodes):
        lines.append(f"  {n.name:<{width}}  {'' if n.seq_nr is None else n.seq_nr}".rstrip())
        lines += [f"    {event}" for event in events.get(k, ())]
    for runner, lowered in tape.lowered.items():
        lines += ["", f"segments for the back end {runner.backend!r}", *segment_lines(lowered)]
    return "\n".join(lines)


def segment_lines(lowered: fx.GraphModule) -> Iterator[str]:
    """What a lowered tape calls, one line each; a segment with the kinds of arguments it was
    compiled for."""
    for node in lowered.graph.nodes:
        if node.meta.get("kind") != "segment":
            continue
        segment = node.target
        made = segment.region.specializations
        sizes = [sum(n.op == "call_function" for n in s.graphs.forward.graph.nodes) for s in made]
        text = f"aten graphs of {sizes} operations" if made else "not run yet"
        if segment.refused is not None:
            text = (
                f"runs as it is: {type(segment.refused).__name__}: "
                f"{str(segment.refused).splitlines()[0]}"
            )
        yield f"  {segment.__name__}: {node.meta['note']} of the tape, {text}"
